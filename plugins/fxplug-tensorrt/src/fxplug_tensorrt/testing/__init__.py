"""For tests of converters: networks are built by TensorRT, and computed layer by layer in PyTorch."""

from __future__ import annotations

from fxplug_tensorrt.testing.checks import Checked, check_call, check_program
from fxplug_tensorrt.testing.evaluator import evaluate
from fxplug_tensorrt.testing.operators import NetworkEngine

__all__ = ["Checked", "NetworkEngine", "check_call", "check_program", "evaluate"]
