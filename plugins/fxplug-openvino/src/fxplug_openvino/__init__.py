"""OpenVINO for fxplug: a backend that says which parts of a graph OpenVINO can run."""

from __future__ import annotations

from fxplug_openvino.backend import OpenVINOBackend
from fxplug_openvino.options import OpenVINOOptions

__all__ = ["OpenVINOBackend", "OpenVINOOptions"]
