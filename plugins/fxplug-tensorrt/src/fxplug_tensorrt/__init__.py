"""TensorRT for fxplug: a backend that says which parts of a graph TensorRT can run."""

from __future__ import annotations

from fxplug_tensorrt.backend import TensorRTBackend
from fxplug_tensorrt.options import TensorRTOptions

__all__ = ["TensorRTBackend", "TensorRTOptions"]
