"""How calls of ATen operators become layers of TensorRT."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from fxplug_tensorrt.converters import (
    activations,
    arranging,
    elementwise,
    layers,
    picking,
    products,
    quantized,
    recurrent,
    reductions,
    resizing,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug_tensorrt.conversion import ConverterRecord

__all__ = ["builtin_converters"]


@functools.cache
def builtin_converters() -> Mapping[Any, ConverterRecord]:
    """Return operator -> converter."""
    groups = (
        elementwise,
        activations,
        reductions,
        products,
        layers,
        resizing,
        arranging,
        picking,
        quantized,
        recurrent,
    )
    return {record.target: record for group in groups for record in group.records()}
