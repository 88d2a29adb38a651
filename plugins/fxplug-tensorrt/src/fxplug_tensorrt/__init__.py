"""TensorRT for fxplug: a backend that runs parts of graphs in TensorRT."""

from __future__ import annotations

from fxplug_tensorrt.backend import TensorRTBackend
from fxplug_tensorrt.conversion import ConverterRecord
from fxplug_tensorrt.network import Conversion, NotConvertibleError, Value
from fxplug_tensorrt.options import TensorRTOptions
from fxplug_tensorrt.refitting import NewWeights, engine_weights, refit
from fxplug_tensorrt.runtime import TensorRTModule, load_module

__all__ = [
    "Conversion",
    "ConverterRecord",
    "NewWeights",
    "NotConvertibleError",
    "TensorRTBackend",
    "TensorRTModule",
    "TensorRTOptions",
    "Value",
    "engine_weights",
    "load_module",
    "refit",
]
