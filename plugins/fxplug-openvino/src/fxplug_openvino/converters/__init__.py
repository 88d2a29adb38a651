"""How calls of ATen operators become operations of OpenVINO."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from fxplug_openvino.converters import (
    elementwise,
    layers,
    quantized,
    recurrent,
    reductions,
    scattering,
    shapes,
    special,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug_openvino.conversion import ConverterRecord

__all__ = ["builtin_converters"]


@functools.cache
def builtin_converters() -> Mapping[Any, ConverterRecord]:
    """Return operator -> converter."""
    groups = (elementwise, special, shapes, scattering, reductions, layers, quantized, recurrent)
    return {record.target: record for group in groups for record in group.records()}
