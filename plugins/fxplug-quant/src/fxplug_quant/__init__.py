"""Quantization passes for fxplug, on the operators that PyTorch itself brings."""

from __future__ import annotations

from fxplug_quant.attention import OpenAttention
from fxplug_quant.autotuning import autotune
from fxplug_quant.bias_correction import CorrectBias
from fxplug_quant.calibration import Prepared, calibration, prepare
from fxplug_quant.canonical import export_canonical
from fxplug_quant.config import MODES, QuantConfig, Rule
from fxplug_quant.convert import convert
from fxplug_quant.dynamic import DynamicInt8
from fxplug_quant.edges import Dequantize, Int8Add, Int8Cat, Int8Mul, Quantize
from fxplug_quant.equalization import Equalize
from fxplug_quant.errors import QuantizationError
from fxplug_quant.int4 import WeightInt4Linear
from fxplug_quant.linear import DynamicInt8Linear, WeightInt8Linear
from fxplug_quant.observers import OBSERVERS
from fxplug_quant.options import DynamicInt8Options
from fxplug_quant.output_error import OutputError
from fxplug_quant.plan import Plan, PlanEntry
from fxplug_quant.planning import plan
from fxplug_quant.sensitivity import LayerSensitivity, Sensitivity, sensitivity
from fxplug_quant.smoothing import Smooth
from fxplug_quant.static_layers import Int8Conv, Int8ConvTranspose, Int8Linear
from fxplug_quant.tables import Int8Embedding, Int8EmbeddingBag

__all__ = [
    "MODES",
    "OBSERVERS",
    "CorrectBias",
    "Dequantize",
    "DynamicInt8",
    "DynamicInt8Linear",
    "DynamicInt8Options",
    "Equalize",
    "Int8Add",
    "Int8Cat",
    "Int8Conv",
    "Int8ConvTranspose",
    "Int8Embedding",
    "Int8EmbeddingBag",
    "Int8Linear",
    "Int8Mul",
    "LayerSensitivity",
    "OpenAttention",
    "OutputError",
    "Plan",
    "PlanEntry",
    "Prepared",
    "QuantConfig",
    "QuantizationError",
    "Quantize",
    "Rule",
    "Sensitivity",
    "Smooth",
    "WeightInt4Linear",
    "WeightInt8Linear",
    "autotune",
    "calibration",
    "convert",
    "export_canonical",
    "plan",
    "prepare",
    "sensitivity",
]
