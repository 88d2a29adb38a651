"""OpenVINO for fxplug: a backend that runs parts of graphs in OpenVINO."""

from __future__ import annotations

from fxplug_openvino.backend import OpenVINOBackend
from fxplug_openvino.conversion import Conversion, ConverterRecord, NotConvertibleError, Value
from fxplug_openvino.options import OpenVINOOptions

__all__ = [
    "Conversion",
    "ConverterRecord",
    "NotConvertibleError",
    "OpenVINOBackend",
    "OpenVINOOptions",
    "Value",
]
