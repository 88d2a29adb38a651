"""What this plugin answers when fxplug asks. TensorRT need not be installed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.plugins import BackendRecord, hookimpl
from fxplug_tensorrt import hookspecs as PLUGIN_HOOKSPECS  # noqa: N812 - what the host looks for
from fxplug_tensorrt._trt import why_not_here
from fxplug_tensorrt.backend import TensorRTBackend
from fxplug_tensorrt.options import TensorRTOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PLUGIN_HOOKSPECS", "fxplug_register_backends"]


@hookimpl
def fxplug_register_backends() -> Iterable[BackendRecord]:
    """Offer the backend."""
    return [
        BackendRecord(
            "tensorrt",
            TensorRTBackend,
            "Runs parts of graphs in TensorRT.",
            options=TensorRTOptions,
            requires=("tensorrt_rtx",),
            problem=why_not_here,
        )
    ]
