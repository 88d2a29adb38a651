"""The operator suite of fxplug on networks, where no GPU runs engines. Part of the test tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import fxplug
from fxplug.errors import FxplugError
from fxplug_tensorrt.conversion import convert
from fxplug_tensorrt.converters import builtin_converters
from fxplug_tensorrt.engine import build_plan
from fxplug_tensorrt.network import NotConvertibleError
from fxplug_tensorrt.options import TensorRTOptions
from fxplug_tensorrt.testing.evaluator import evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxplug.testing import OperatorProgram
    from fxplug_tensorrt.conversion import Converted

__all__ = ["NetworkEngine"]

_SIZES = (1, 2, 4)


class NetworkEngine:
    """Has TensorRT build the network and the engine of a program, and computes the network in PyTorch.

    For `fxplug.testing.run_operator_suite`. What differs from TensorRT on a GPU, such as rounding, it does not show.

    Args:
        open_batch: Whether the first size of all inputs is left open.
    """

    def __init__(self, *, open_batch: bool = False) -> None:
        self._is_open = open_batch
        self._options = TensorRTOptions(batch_sizes=_SIZES if open_batch else ())

    def __call__(self, program: OperatorProgram) -> Sequence[Any]:
        """Return what the network computes, for each run.

        Raises:
            NotConvertibleError: A call cannot be written, or TensorRT does not build the engine.
        """
        converted = self._converted(program)
        made = [evaluate(converted, inputs) for inputs in program.runs]
        build_plan(converted, self._options)
        return [tuple(found[slot.number] for slot in converted.results) for found in made]

    def _converted(self, program: OperatorProgram) -> Converted:
        inputs = program.runs[0]
        dynamic: dict[int | str, dict[int, str]] = {
            number: {0: "batch"} for number, value in enumerate(inputs) if self._is_open and value.dim()
        }
        try:
            with torch.no_grad():
                written = fxplug.decompose(program.module, inputs, to="aten", dynamic=dynamic or None)
        except FxplugError as error:
            raise NotConvertibleError(error.message) from error
        return convert(written, inputs, builtin_converters(), open_dimensions=(0,) if self._is_open else ())
