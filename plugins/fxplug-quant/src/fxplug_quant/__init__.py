"""Quantization passes for fxplug, on the operators that PyTorch itself brings."""

from __future__ import annotations

from fxplug_quant.dynamic import DynamicInt8
from fxplug_quant.errors import QuantizationError
from fxplug_quant.linear import DynamicInt8Linear
from fxplug_quant.options import DynamicInt8Options

__all__ = ["DynamicInt8", "DynamicInt8Linear", "DynamicInt8Options", "QuantizationError"]
