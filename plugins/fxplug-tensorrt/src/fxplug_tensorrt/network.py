"""What converters write with: values of a network of TensorRT, and the calls that add layers to it."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import fxplug.lower
from fxplug.errors import NotConvertibleError
from fxplug_tensorrt._trt import load_engine, make_log
from fxplug_tensorrt.eight_bits import EIGHT_BITS, FLOAT8, from_outside, stored, to_outside

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Conversion", "NotConvertibleError", "Size", "Value"]

_TYPES = {
    torch.float32: "FLOAT",
    torch.float16: "HALF",
    torch.bfloat16: "BF16",
    torch.int64: "INT64",
    torch.int32: "INT32",
    torch.bool: "BOOL",
    **dict.fromkeys(EIGHT_BITS, "INT8"),
    FLOAT8: "FP8",
}
_OUTSIDE = {**_TYPES, torch.uint8: "UINT8"}
# Layers that take numbers of eight bits, and what these are called.
_OF_EIGHT_BITS = frozenset({"dequantize", "identity"})
_NAMES_OF_EIGHT_BITS = {"INT8": "integers of eight bits", "FP8": "float8_e4m3fn"}
_COMPARISONS = frozenset({"EQUAL", "GREATER", "LESS"})
_LONGEST = 300
_MOST_DIMENSIONS = 8
_FIRST_WITH_FLOAT8 = 89


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor while a network is written. Arithmetic and comparisons add layers."""

    build: Conversion = field(repr=False)
    output: Any
    """TensorRT's tensor."""
    dtype: torch.dtype
    """Its dtype in PyTorch."""
    data: torch.Tensor | None = field(default=None, repr=False)
    """What is in it, where that is known."""
    is_size: bool = False
    """Whether it stands for a size, which is a number in PyTorch."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its sizes; -1 for one that is left open."""
        return self.build.sizes_of(self.output)

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return len(self.output.shape)

    @property
    def is_floating(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.dtype.is_floating_point

    def axis(self, dim: int) -> int:
        """Return a dimension counted from the front."""
        return dim % self.rank if self.rank else 0

    def size(self, dim: int) -> Size:
        """Return a size: a number where it is known, otherwise a `Value`."""
        return self.build.size(self, dim)

    def known_size(self, dim: int) -> int:
        """Return a size.

        Raises:
            NotConvertibleError: It is left open.
        """
        size = self.sizes[self.axis(dim)]
        if size < 0:
            raise NotConvertibleError("it has to know a size that is left open")
        return size

    def to(self, dtype: torch.dtype) -> Value:
        """Return it in another dtype, converted as PyTorch does."""
        return self.build.cast(self, dtype)

    def unary(self, operation: str) -> Value:
        """Return a function of each element; the name is one of TensorRT's ``UnaryOperation``."""
        return self.build.unary(operation, self)

    def maximum(self, other: Value | float) -> Value:
        """Return the larger of each two elements."""
        return self.build.binary("MAX", self, other)

    def minimum(self, other: Value | float) -> Value:
        """Return the smaller of each two elements."""
        return self.build.binary("MIN", self, other)

    def equals(self, other: Value | float) -> Value:
        """Return where both are the same."""
        return self.build.binary("EQUAL", self, other)

    def reduce(self, operation: str, axes: Sequence[int], *, keep: bool = False) -> Value:
        """Return a reduction; the name is one of TensorRT's ``ReduceOperation``."""
        return self.build.reduce(operation, self, axes, keep=keep)

    def reshape(self, sizes: Sequence[Size]) -> Value:
        """Return it with other sizes, of which one may be -1."""
        return self.build.reshape(self, sizes)

    def permute(self, order: Sequence[int]) -> Value:
        """Return it with its dimensions in another order."""
        return self.build.permute(self, order)

    def unsqueeze(self, *axes: int) -> Value:
        """Return it with dimensions of size one at these places of the result."""
        return self.build.unsqueeze(self, axes)

    def squeeze(self, *axes: int) -> Value:
        """Return it without these dimensions, which have size one."""
        return self.build.squeeze(self, axes)

    def __add__(self, other: Value | float) -> Value:
        """Return the sum."""
        return self.build.binary("SUM", self, other)

    __radd__ = __add__

    def __sub__(self, other: Value | float) -> Value:
        """Return the difference."""
        return self.build.binary("SUB", self, other)

    def __rsub__(self, other: float) -> Value:
        """Return the difference."""
        return self.build.binary("SUB", other, self)

    def __mul__(self, other: Value | float) -> Value:
        """Return the product."""
        return self.build.binary("PROD", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Value | float) -> Value:
        """Return the quotient of floating-point numbers."""
        return self.build.binary("DIV", self, other)

    def __rtruediv__(self, other: float) -> Value:
        """Return the quotient of floating-point numbers."""
        return self.build.binary("DIV", other, self)

    def __neg__(self) -> Value:
        """Return the negative."""
        return self.unary("NEG")

    def __lt__(self, other: Value | float) -> Value:
        """Return where it is less."""
        return self.build.binary("LESS", self, other)

    def __gt__(self, other: Value | float) -> Value:
        """Return where it is greater."""
        return self.build.binary("GREATER", self, other)

    def __invert__(self) -> Value:
        """Return the opposite of truth values."""
        return self.unary("NOT")

    def __and__(self, other: Value) -> Value:
        """Return where both are true."""
        return self.build.binary("AND", self, other)

    def __or__(self, other: Value) -> Value:
        """Return where one is true."""
        return self.build.binary("OR", self, other)


Size = int | Value
"""A size: a number, or a `Value` where it is left open."""


class Conversion(fxplug.lower.Conversion):
    """A network that is being written. Converters return a `Value`.

    Args:
        computed_in: What takes the place of float32 inside.
        refits: Whether all weights have names and memory of their own, so that an engine can be given others.
        targets: GPUs that the engine is for, by TensorRT's names; not all have all dtypes.
    """

    engine = "TensorRT"
    value_type = Value
    computes_known = True

    def __init__(
        self, computed_in: torch.dtype = torch.float32, *, refits: bool = False, targets: Sequence[str] = ()
    ) -> None:
        self.trt = load_engine()
        """The package of TensorRT."""
        self.log = make_log()
        self.builder = self.trt.Builder(self.log)
        flags = 0
        strongly = getattr(self.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        if strongly is not None:
            flags = 1 << int(strongly)
        self.net = self.builder.create_network(flags)
        """TensorRT's network."""
        self.computed_in = computed_in
        self.kept: dict[str, torch.Tensor] = {}
        """Name of a constant -> its memory, which the network reads when the engine is built."""
        self.references: dict[str, Any] = {}
        """Name of a constant -> TensorRT's reference to its memory."""
        self._without_float8 = [name for name in targets if _number_of(name) < _FIRST_WITH_FLOAT8]
        self._memory: set[int] = set()
        self.refits = refits
        """Whether the engine can be given other weights."""
        self._asked = len(self.log.complaints)  # Without a driver, there is one complaint from the start.

    # -- what every engine says

    def add_input(self, name: str, example: torch.Tensor, sizes: Sequence[int]) -> Value:
        """Return the value of a new input."""
        _refuse_empty(example)
        return self.input(name, example.dtype, sizes)

    def add_constant(self, tensor: torch.Tensor) -> Value:
        """Return the value of a tensor that is known."""
        _refuse_empty(tensor)
        return self.tensor(tensor)

    def add_result(self, name: str, value: Value) -> None:
        """Make a value a result of the network."""
        if value.is_size:
            raise NotConvertibleError("it returns a size that is not known before it runs")
        self.output(name, value)

    def check_tensor(self, like: torch.Tensor) -> None:
        """Refuse dtypes and numbers of dimensions that TensorRT does not have."""
        self.type_of(like.dtype)
        if like.dim() > _MOST_DIMENSIONS:
            raise NotConvertibleError(
                f"TensorRT has at most {_MOST_DIMENSIONS} dimensions, and one tensor has {like.dim()}"
            )

    def value_of(self, made: Any, like: torch.Tensor, target: Any) -> Value:
        """Return what a converter made, after a comparison with what the call returns."""
        _refuse_empty(like)
        if not isinstance(made, Value):
            raise NotConvertibleError(f"the converter of {target} returns a {type(made).__name__}")
        sizes = made.sizes
        fits = len(sizes) == like.dim() and all(
            size in (-1, wanted) for size, wanted in zip(sizes, like.shape, strict=True)
        )
        if not fits or made.dtype is not like.dtype or made.output.dtype != self.type_of(like.dtype):
            raise NotConvertibleError(
                f"the converter of {target} returns {made.output.dtype} of {sizes}, and PyTorch "
                f"{like.dtype} of {tuple(like.shape)}"
            )
        return made

    def size_of(self, target: Any, first: Any, second: Any) -> Any:
        """Return a size that is computed from others: values as numbers."""
        return (
            self.binary("FLOOR_DIV", first, second) if target is operator.floordiv else target(first, second)
        )

    # -- layers and values

    def add(self, kind: str, *args: Any) -> Any:
        """Return a new layer: ``add("unary", tensor, operation)`` calls ``add_unary`` of the network.

        Raises:
            NotConvertibleError: TensorRT has no such layer, or refuses it.
        """
        method = getattr(self.net, f"add_{kind}", None)
        if method is None:
            raise NotConvertibleError(f"this TensorRT has no layer {kind!r}")
        if kind not in _OF_EIGHT_BITS and (name := next(filter(None, map(self._eight_bits_in, args)), "")):
            pronoun = "it" if name == "float8_e4m3fn" else "them"
            raise NotConvertibleError(f"TensorRT does not compute with {name}; it only dequantizes {pronoun}")
        self._asked = len(self.log.complaints)
        layer = method(*args)
        if layer is None:
            raise NotConvertibleError(f"TensorRT refuses the layer {kind!r}: {self._complaint(self._asked)}")
        return layer

    def _eight_bits_in(self, argument: Any) -> str:
        """Return what an argument of a layer holds, where that are numbers of eight bits; otherwise nothing."""
        if isinstance(argument, list):
            return next(filter(None, map(self._eight_bits_in, argument)), "")
        if not isinstance(argument, self.trt.ITensor):
            return ""
        return _NAMES_OF_EIGHT_BITS.get(argument.dtype.name, "")

    def value(self, layer: Any, dtype: torch.dtype, number: int = 0) -> Value:
        """Return what a layer computes.

        Raises:
            NotConvertibleError: TensorRT cannot tell its sizes: it refuses the layer.
        """
        output = layer.get_output(number)
        self.sizes_of(output)
        return Value(self, output, dtype)

    def sizes_of(self, output: Any) -> tuple[int, ...]:
        """Return the sizes of a tensor of TensorRT; -1 for one that is left open.

        Raises:
            NotConvertibleError: TensorRT cannot tell them: it refuses the layer.
        """
        before = len(self.log.complaints)
        try:
            return tuple(output.shape)
        except (RuntimeError, ValueError) as error:
            raise NotConvertibleError(
                f"TensorRT refuses a layer: {self._complaint(before) or self._complaint(self._asked) or error}"
            ) from error

    def _complaint(self, start: int) -> str:
        found = self.log.complaints[start:]
        return " ".join(found[-1].split())[:_LONGEST] if found else ""

    # -- what goes in and out

    def type_of(self, dtype: torch.dtype) -> Any:
        """Return TensorRT's name of a dtype."""
        if dtype is torch.float32:
            dtype = self.computed_in
        if dtype not in _TYPES:
            raise NotConvertibleError(f"TensorRT does not compute with {str(dtype).removeprefix('torch.')}")
        if dtype is FLOAT8 and self._without_float8:
            raise NotConvertibleError(
                f"it has float8_e4m3fn, which GPUs have from SM{_FIRST_WITH_FLOAT8} on, and targets names "
                f"{', '.join(self._without_float8)}"
            )
        return getattr(self.trt.DataType, _TYPES[dtype])

    def input(self, name: str, dtype: torch.dtype, sizes: Sequence[int]) -> Value:
        """Return an input of the network."""
        inside = self.type_of(dtype)
        outside = getattr(self.trt.DataType, _OUTSIDE[dtype])
        made = self.net.add_input(name, outside, tuple(sizes))
        if made is None:
            raise NotConvertibleError(f"TensorRT refuses an input of {dtype}: {self._complaint(0)}")
        if dtype is torch.uint8:
            return from_outside(self, made)
        if inside != outside:
            return self.value(self.add("cast", made, inside), dtype)
        return Value(self, made, dtype)

    def output(self, name: str, value: Value) -> None:
        """Make a value a result of the network."""
        outside = getattr(self.trt.DataType, _OUTSIDE[value.dtype])
        # An input that is returned, and one value in two places, need a layer of their own.
        given = value.output if value.dtype is not torch.uint8 else to_outside(self, value)
        layer = self.add("identity", given) if given.dtype == outside else self.add("cast", given, outside)
        made = layer.get_output(0)
        made.name = name
        self.net.mark_output(made)

    def name_weights(self) -> None:
        """Give weights their names in the network, by which an engine takes others; they have to be in use."""
        for name, reference in self.references.items():
            self.net.set_weights_name(reference, name)

    # -- constants

    def tensor(self, tensor: torch.Tensor) -> Value:
        """Return a tensor as a value. Its memory is read when the engine is built."""
        name = f"constant_{len(self.kept)}"
        layer = self.add("constant", tuple(tensor.shape), self.weights(tensor, name))
        layer.name = name
        return Value(self, layer.get_output(0), tensor.dtype, tensor)

    def weights(self, tensor: torch.Tensor, name: str) -> Any:
        """Return TensorRT's reference to a tensor, whose memory is kept under a name."""
        kind = self.type_of(tensor.dtype)
        if tensor.layout is not torch.strided:
            raise NotConvertibleError(f"it reads a tensor of layout {tensor.layout}")
        data = tensor.detach().to("cpu", self.computed_in if tensor.dtype is torch.float32 else tensor.dtype)
        data = stored(data) if tensor.dtype in EIGHT_BITS else data
        return self.keep(name, data.resolve_conj().resolve_neg().contiguous(), kind)

    def keep(self, name: str, data: torch.Tensor, kind: Any) -> Any:
        """Return TensorRT's reference to memory, which lives as long as this conversion.

        Args:
            name: Of the weights in the network.
            data: On the CPU, in the order in which TensorRT reads it.
            kind: TensorRT's name of its dtype.
        """
        if self.refits and data.data_ptr() in self._memory:
            data = data.clone()  # TensorRT knows weights by their memory, and each memory has one name.
        self._memory.add(data.data_ptr())
        self.kept[name] = data
        self.references[name] = self.trt.Weights(kind, data.data_ptr(), data.numel())
        return self.references[name]

    def constant(self, value: Any, dtype: torch.dtype = torch.int64) -> Value:
        """Return a number or a list of numbers as a value."""
        return self.tensor(torch.tensor(value, dtype=dtype))

    def filled(self, sizes: Sequence[Size], value: float, dtype: torch.dtype) -> Value:
        """Return a tensor with the same number everywhere."""
        return self.expand(self.constant(value, dtype), sizes)

    # -- layers

    def cast(self, value: Any, dtype: torch.dtype) -> Value:
        """Return a value, or a number, in a dtype, converted as PyTorch does."""
        if not isinstance(value, Value):
            return self.constant(value, dtype)
        if value.dtype is dtype:
            return value
        if dtype is torch.bool:
            return ~value.equals(0)
        if dtype in EIGHT_BITS or dtype is FLOAT8:
            name = _NAMES_OF_EIGHT_BITS[_TYPES[dtype]]
            raise NotConvertibleError(f"TensorRT makes {name} by quantizing only")
        if value.is_floating and not dtype.is_floating_point:
            value = self.select(value < 0, value.unary("CEIL"), value.unary("FLOOR"))
        kind = self.type_of(dtype)
        return self.value(self.add("cast", value.output, kind), dtype)

    def unary(self, operation: str, value: Value) -> Value:
        """Return a function of each element; the name is one of TensorRT's ``UnaryOperation``."""
        kind = getattr(self.trt.UnaryOperation, operation)
        truth = operation in {"ISNAN", "ISINF"}
        return self.value(self.add("unary", value.output, kind), torch.bool if truth else value.dtype)

    def activation(
        self, kind: str, value: Value, alpha: float | None = None, beta: float | None = None
    ) -> Value:
        """Return an activation; the name is one of TensorRT's ``ActivationType``."""
        layer = self.add("activation", value.output, getattr(self.trt.ActivationType, kind))
        if alpha is not None:
            layer.alpha = alpha
        if beta is not None:
            layer.beta = beta
        return self.value(layer, value.dtype)

    def binary(self, operation: str, first: Any, second: Any) -> Value:
        """Return a function of each two elements; the name is one of TensorRT's ``ElementWiseOperation``.

        Both have the same dtype, or one is a number. Sizes are broadcast.
        """
        known = first if isinstance(first, Value) else second
        first, second = self.aligned(
            self.cast(first, known.dtype) if not isinstance(first, Value) else first,
            self.cast(second, known.dtype) if not isinstance(second, Value) else second,
        )
        kind = getattr(self.trt.ElementWiseOperation, operation)
        layer = self.add("elementwise", first.output, second.output, kind)
        made = self.value(layer, torch.bool if operation in _COMPARISONS else known.dtype)
        return Value(self, made.output, made.dtype, is_size=known.is_size) if known.is_size else made

    def aligned(self, *values: Value) -> list[Value]:
        """Return values with the same number of dimensions; those of size one come first."""
        rank = max(value.rank for value in values)
        return [value.unsqueeze(*range(rank - value.rank)) for value in values]

    def select(self, condition: Value, first: Any, second: Any) -> Value:
        """Return elements of the first where the condition is true, of the second elsewhere."""
        dtype = (first if isinstance(first, Value) else second).dtype
        values = self.aligned(condition, self.cast(first, dtype), self.cast(second, dtype))
        return self.value(self.add("select", *(value.output for value in values)), dtype)

    def reduce(self, operation: str, value: Value, axes: Sequence[int], *, keep: bool = False) -> Value:
        """Return a reduction; the name is one of TensorRT's ``ReduceOperation``."""
        if not value.rank or not axes:
            return value
        mask = sum(1 << axis for axis in {value.axis(axis) for axis in axes})
        kind = getattr(self.trt.ReduceOperation, operation)
        return self.value(self.add("reduce", value.output, kind, mask, keep), value.dtype)

    def softmax(self, value: Value, axis: int) -> Value:
        """Return the softmax along a dimension."""
        if not value.rank:
            return value * 0 + 1
        if value.rank == 1:  # TensorRT has it for two dimensions at least.
            return self.softmax(value.unsqueeze(0), 1).squeeze(0)
        layer = self.add("softmax", value.output)
        layer.axes = 1 << value.axis(axis)
        return self.value(layer, value.dtype)

    def matmul(self, first: Value, second: Value, *, transposed: bool = False) -> Value:
        """Return the product of matrices, in batches that are broadcast; the second may be transposed."""
        first, second = self.aligned(first, second)
        plain = self.trt.MatrixOperation.NONE
        turned = self.trt.MatrixOperation.TRANSPOSE if transposed else plain
        return self.value(
            self.add("matrix_multiply", first.output, plain, second.output, turned), first.dtype
        )

    # -- sizes

    def size(self, value: Value, dim: int) -> Size:
        """Return a size: a number where it is known, otherwise a value."""
        axis = value.axis(dim)
        known = value.sizes[axis]
        if known >= 0:
            return known
        place = self.constant(axis)
        layer = self.add("gather", self.shape(value).output, place.output, 0)
        return Value(self, layer.get_output(0), torch.int64, is_size=True)

    def shape(self, value: Value) -> Value:
        """Return the sizes of a value, as a value of one dimension."""
        made = self.value(self.add("shape", value.output), torch.int64)
        if made.output.dtype != self.trt.DataType.INT64:
            made = self.value(self.add("cast", made.output, self.trt.DataType.INT64), torch.int64)
        return made

    def numbers(self, sizes: Sequence[Size]) -> Value:
        """Return sizes as a value of one dimension."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant([int(size) for size in sizes if isinstance(size, int)])
        parts = [
            self.constant([size]) if isinstance(size, int) else self.reshape(size, [1]) for size in sizes
        ]
        return self.concat(parts, 0)

    def reshape(self, value: Value, sizes: Sequence[Size]) -> Value:
        """Return a value with other sizes, of which one may be -1."""
        layer = self.add("shuffle", value.output)
        layer.zero_is_placeholder = False
        if all(isinstance(size, int) for size in sizes):
            layer.reshape_dims = tuple(sizes)
        else:
            layer.set_input(1, self.numbers(sizes).output)
        return self.value(layer, value.dtype)

    def permute(self, value: Value, order: Sequence[int]) -> Value:
        """Return a value with its dimensions in another order."""
        order = [value.axis(dim) for dim in order]
        if order == list(range(value.rank)):
            return value
        layer = self.add("shuffle", value.output)
        layer.first_transpose = tuple(order)
        return self.value(layer, value.dtype)

    def unsqueeze(self, value: Value, axes: Sequence[int]) -> Value:
        """Return a value with dimensions of size one at these places of the result."""
        if not axes:
            return value
        rank = value.rank + len(axes)
        places = sorted(axis % rank for axis in axes)
        sizes: list[Size] = [value.size(dim) for dim in range(value.rank)]
        for place in places:
            sizes.insert(place, 1)
        return self.reshape(value, _one_open(sizes))

    def squeeze(self, value: Value, axes: Sequence[int]) -> Value:
        """Return a value without these dimensions, which have size one."""
        gone = {value.axis(axis) for axis in axes}
        if not gone or not value.rank:
            return value
        sizes = [value.size(dim) for dim in range(value.rank) if dim not in gone]
        return self.reshape(value, _one_open(sizes))

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Return values joined along a dimension."""
        if len(values) == 1:
            return values[0]
        layer = self.add("concatenation", [value.output for value in values])
        layer.axis = axis
        return self.value(layer, values[0].dtype)

    def expand(self, value: Value, sizes: Sequence[Size]) -> Value:
        """Return a value with dimensions of size one repeated, and more of them at the front."""
        value = value.unsqueeze(*range(len(sizes) - value.rank))
        if not sizes:
            return value
        steps = [0 if have == 1 else 1 for have in value.sizes]
        return self.slice(value, [0] * len(steps), list(sizes), steps)

    def slice(
        self,
        value: Value,
        starts: Sequence[Size],
        sizes: Sequence[Size],
        steps: Sequence[int],
        mode: str = "",
        fill: float | None = None,
    ) -> Value:
        """Return a part of a value; the mode, one of ``SampleMode``, says what is outside of it."""
        known = [all(isinstance(part, int) for part in parts) for parts in (starts, sizes)]
        zeros = (0,) * len(steps)
        layer = self.add(
            "slice",
            value.output,
            tuple(starts) if known[0] else zeros,
            tuple(sizes) if known[1] else zeros,
            tuple(steps),
        )
        if not known[0]:
            layer.set_input(1, self.numbers(starts).output)
        if not known[1]:
            layer.set_input(2, self.numbers(sizes).output)
        if mode:
            layer.mode = getattr(self.trt.SampleMode, mode)
        if fill is not None:
            layer.set_input(4, self.constant(fill, value.dtype).output)
        return self.value(layer, value.dtype)

    def part(self, value: Value, axis: int, start: Size, size: Size, step: int = 1) -> Value:
        """Return so many elements of a dimension."""
        starts: list[Size] = [0] * value.rank
        sizes: list[Size] = [value.size(dim) for dim in range(value.rank)]
        steps = [1] * value.rank
        starts[axis], sizes[axis], steps[axis] = start, size, step
        return self.slice(value, starts, sizes, steps)

    def gather(self, value: Value, index: Value, axis: int, mode: str = "DEFAULT") -> Value:
        """Return elements by their places; the mode is one of ``GatherMode``."""
        layer = self.add("gather_v2", value.output, index.output, getattr(self.trt.GatherMode, mode))
        layer.axis = axis
        return self.value(layer, value.dtype)

    def scatter(self, value: Value, index: Value, updates: Value, axis: int, mode: str = "ELEMENT") -> Value:
        """Return a value with elements replaced; the mode is one of ``ScatterMode``."""
        layer = self.add(
            "scatter", value.output, index.output, updates.output, getattr(self.trt.ScatterMode, mode)
        )
        if mode == "ELEMENT":
            layer.axis = axis
        return self.value(layer, value.dtype)

    def top(self, value: Value, count: int, axis: int, *, largest: bool) -> tuple[Value, Value]:
        """Return the first so many elements of a dimension in order, and their places."""
        if value.rank == 1:  # TensorRT orders in two dimensions at least.
            values, places = self.top(value.unsqueeze(0), count, 1, largest=largest)
            return values.squeeze(0), places.squeeze(0)
        kind = self.trt.TopKOperation.MAX if largest else self.trt.TopKOperation.MIN
        layer = self.add("topk", value.output, kind, count, 1 << axis)
        places = self.value(self.add("cast", layer.get_output(1), self.trt.DataType.INT64), torch.int64)
        return self.value(layer, value.dtype), places


def _number_of(target: str) -> int:
    """Return the number of a GPU's kind; one that is not known is refused when the engine is built."""
    number = target.removeprefix("SM")
    return int(number) if number.isdecimal() else _FIRST_WITH_FLOAT8


def _refuse_empty(value: torch.Tensor) -> None:
    if not value.numel():
        raise NotConvertibleError(
            f"TensorRT is given no empty tensors, and one is {tuple(value.shape)} large"
        )


def _one_open(sizes: list[Size]) -> list[Size]:
    """Return sizes of which the one that is not known, if there is one alone, is -1."""
    unknown = [place for place, size in enumerate(sizes) if isinstance(size, Value)]
    if len(unknown) == 1:
        sizes[unknown[0]] = -1
    return sizes
