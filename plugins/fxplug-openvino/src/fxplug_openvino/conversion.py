"""Writing a program of ATen operators as a model of OpenVINO."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import fxplug.lower
from fxplug.errors import NotConvertibleError
from fxplug.lower import ConverterRecord, write_program
from fxplug.lower import EngineValue as Value
from fxplug_openvino._engine import load_engine, load_operations
from fxplug_openvino.ranges import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fxplug.lower import AtenProgram

__all__ = ["Conversion", "Converted", "ConverterRecord", "NotConvertibleError", "Value", "convert"]

_TYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "boolean",
}

_OF_SIZES = {
    operator.mul: "multiply",
    operator.add: "add",
    operator.sub: "subtract",
    operator.floordiv: "divide",
}
"""What programs compute sizes with -> OpenVINO's operation."""

_SMALL = 64


@dataclass(frozen=True)
class Converted:
    """A model, and how what it takes and gives is arranged."""

    model: Any
    inputs: tuple[tuple[int, int | None], ...]
    """For each input of the model: position in the arguments, and in the tuple that is given there, if one is."""
    results: Any
    """What the program returns, with a `Slot` in the place of each tensor."""
    dtypes: tuple[torch.dtype, ...]
    """Of the results."""
    kept: tuple[Any, ...]
    """Memory that the model shares."""
    limit: int = LIMIT
    """How far from zero whole numbers may be that go in."""


class Conversion(fxplug.lower.Conversion):
    """A model that is being written, and what converters write with.

    Converters return OpenVINO's output, its node, or a `Value`.

    Args:
        converters: Operator -> how its calls are written.
        eight_bits: Says whether what takes quantized values may be computed in eight bits; asked when there are such.
    """

    engine = "OpenVINO"

    def __init__(
        self, converters: Mapping[Any, ConverterRecord], eight_bits: Callable[[], bool] = lambda: True
    ) -> None:
        self.ov = load_engine()
        """The package ``openvino``."""
        self.ops = load_operations()
        """OpenVINO's operations."""
        self.converters = converters
        self.eight_bits = eight_bits
        """Says whether what takes quantized values may be computed in eight bits; if not, it is computed in float32."""
        self.kept: list[Any] = []
        """Memory that the model shares."""
        self.parameters: list[Any] = []
        """The inputs of the model."""
        self.results: list[Any] = []
        """The results of the model."""

    # -- what every engine says

    def add_input(self, name: str, example: torch.Tensor, sizes: Sequence[int]) -> Value:
        """Return the value of a new parameter."""
        if example.device.type != "cpu":
            raise NotConvertibleError(f"an input is on {example.device} with layout {example.layout}")
        made = self.ops.parameter(list(sizes), self.type_of(example.dtype))
        self.parameters.append(made)
        return Value(made.output(0), example)

    def add_constant(self, tensor: torch.Tensor) -> Value:
        """Return the value of a tensor that is known."""
        return Value(self.tensor(tensor), tensor)

    def add_result(self, name: str, value: Any) -> None:
        """Make a value a result of the model."""
        if not isinstance(value, Value):
            raise NotConvertibleError("it returns a size that is not known before it runs")
        self.results.append(self.out(self.ops.result(value.output)).get_node())

    def is_value(self, value: Any) -> bool:
        """Return whether something is computed by the model; sizes are OpenVINO's outputs."""
        return isinstance(value, Value) or hasattr(value, "get_element_type")

    def check_tensor(self, like: torch.Tensor) -> None:
        """Refuse dtypes that OpenVINO does not have."""
        self.type_of(like.dtype)

    def value_of(self, made: Any, like: torch.Tensor, target: Any) -> Value:
        """Return what a converter returned as a value."""
        return Value(self.out(made.output if isinstance(made, Value) else made), like)

    def size_of(self, target: Any, first: Any, second: Any) -> Any:
        """Return a size that is computed from others."""
        one, other = (self.cast(value, torch.int64) for value in (first, second))
        return self.out(getattr(self.ops, _OF_SIZES[target])(one, other))

    # -- what converters write with

    def type_of(self, dtype: torch.dtype) -> Any:
        """Return OpenVINO's name of a dtype."""
        if dtype not in _TYPES:
            raise NotConvertibleError(f"OpenVINO does not compute with {str(dtype).removeprefix('torch.')}")
        return getattr(self.ov.Type, _TYPES[dtype])

    def constant(self, value: Any, dtype: torch.dtype = torch.int64) -> Any:
        """Return a number or a list of numbers as an output."""
        return self.tensor(torch.tensor(value, dtype=dtype))

    def tensor(self, tensor: torch.Tensor) -> Any:
        """Return a tensor as an output; its memory is shared where it can be."""
        kind = self.type_of(tensor.dtype)
        plain = tensor.detach()
        if plain.device.type != "cpu" or plain.layout is not torch.strided:
            raise NotConvertibleError(f"it reads a tensor on {plain.device} with layout {plain.layout}")
        plain = plain.contiguous()
        self.kept.append(plain)
        if tensor.dtype is torch.bfloat16:
            data = self.ov.Tensor(plain.view(torch.int16).numpy(), list(plain.shape), kind)
            self.kept.append(data)
            return self.ov.op.Constant(data).output(0)
        is_large = plain.numel() > _SMALL
        data = self.ov.Tensor(plain.numpy(), shared_memory=is_large)
        self.kept.append(data)
        return self.ov.op.Constant(data).output(0)

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """Return a value, or a number, as an output of a dtype."""
        if not isinstance(value, Value):
            if not self.is_value(value):
                return self.constant(value, dtype)
            kind = self.type_of(dtype)  # It is a size that is left open.
            return value if value.get_element_type() == kind else self.out(self.ops.convert(value, kind))
        if value.dtype is dtype:
            return value.output
        if dtype is torch.bool:
            zero = self.constant(0, value.dtype)
            return self.out(self.ops.not_equal(value.output, zero))
        if value.dtype.is_floating_point and not dtype.is_floating_point:
            kept = self.ops.select(
                self.ops.less(value.output, self.constant(0, value.dtype)),
                self.ops.ceiling(value.output),
                self.ops.floor(value.output),
            )
            return self.out(self.ops.convert(kept, self.type_of(dtype)))
        return self.out(self.ops.convert(value.output, self.type_of(dtype)))

    def out(self, node: Any) -> Any:
        """Return the output of an operation."""
        return node.output(0) if hasattr(node, "output") else node

    def ints(self, values: Any) -> Any:
        """Return whole numbers, some of which may be computed, as an output of one dimension."""
        if not isinstance(values, (list, tuple)):
            values = [values]
        if all(isinstance(value, int) for value in values):
            return self.constant([int(value) for value in values])
        return self.out(self.ops.concat([self._size(value) for value in values], 0))

    def _size(self, value: Any) -> Any:
        if isinstance(value, int):
            return self.constant([value])
        return self.ops.reshape(getattr(value, "output", value), self.constant([1]), False)

    def shape_of(self, value: Value) -> Any:
        """Return the sizes of a value."""
        return self.out(self.ops.shape_of(value.output, "i64"))


def convert(
    program: AtenProgram,
    converters: Mapping[Any, ConverterRecord],
    eight_bits: Callable[[], bool] = lambda: True,
) -> Converted:
    """Return a model that computes what a program of ATen operators computes.

    Args:
        program: Not changed.
        converters: Operator -> how its calls are written.
        eight_bits: Says whether what takes quantized values may be computed in eight bits; asked when there are such.

    Raises:
        NotConvertibleError: Something in it cannot be written; the message says what.
    """
    build = Conversion(converters, eight_bits)
    written = write_program(program, build, converters)
    return Converted(
        build.ov.Model(build.results, build.parameters, "fxplug"),
        tuple((place.position, place.inner) for place in written.inputs),
        written.results,
        tuple(dtype for _, dtype in written.outputs),
        tuple(build.kept),
    )
