"""Writing a program of ATen operators as a model of OpenVINO."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug import LoweringContext, Node
from fxplug.errors import BackendError
from fxplug.ir import iterate_leaves
from fxplug_openvino._engine import load_engine, load_operations
from fxplug_openvino.layout import Slot
from fxplug_openvino.ranges import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fxplug import GraphModule

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


class NotConvertibleError(BackendError):
    """A call cannot be expressed by OpenVINO's operations."""

    code = "FXP-L010"


@dataclass(frozen=True)
class Value:
    """A tensor while a model is written."""

    output: Any
    """OpenVINO's output that computes it."""
    like: torch.Tensor
    """A tensor without data, of its dtype and of the sizes that the example has."""

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype in PyTorch."""
        return self.like.dtype

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return self.like.dim()

    def axis(self, dim: int) -> int:
        """Return a dimension counted from the front."""
        return dim % self.rank if self.rank else 0


@dataclass(frozen=True)
class ConverterRecord:
    """Says how calls of one operator are written."""

    target: Any
    """An overload, such as ``torch.ops.aten.relu.default``."""
    function: Callable[..., Any]
    """Called with the `Conversion` and the arguments of the call, where tensors are a `Value`; returns OpenVINO's
    output, or a tuple of them for an operator with several results. Raises `NotConvertibleError` with the reason where
    OpenVINO cannot run the call."""


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


class Conversion:
    """What converters write with.

    Args:
        converters: Operator -> how its calls are written.
    """

    def __init__(self, converters: Mapping[Any, ConverterRecord]) -> None:
        self.ov = load_engine()
        """The package ``openvino``."""
        self.ops = load_operations()
        """OpenVINO's operations."""
        self.converters = converters
        self.kept: list[Any] = []
        """Memory that the model shares."""
        self.like: Any = None
        """What the present call returns, without data: a tensor, or a tuple of them."""

    def fail(self, reason: str) -> NotConvertibleError:
        """Return the error that says why a call cannot be written."""
        return NotConvertibleError(reason)

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
            return self.constant(value, dtype) if not hasattr(value, "get_element_type") else value
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
    module: GraphModule,
    inputs: Sequence[Any],
    converters: Mapping[Any, ConverterRecord],
    open_dimensions: Sequence[int] = (),
) -> Converted:
    """Return a model that computes what a program of ATen operators computes.

    Args:
        module: Made by ``fxplug.decompose(..., to="aten")``.
        inputs: Examples.
        converters: Operator -> how its calls are written.
        open_dimensions: Dimensions of inputs that may have any size.

    Raises:
        NotConvertibleError: Something in it cannot be written; the message says what.
    """
    return _Writer(module, inputs, converters, open_dimensions).write()


class _Writer:
    def __init__(
        self,
        module: GraphModule,
        inputs: Sequence[Any],
        converters: Mapping[Any, ConverterRecord],
        open_dimensions: Sequence[int],
    ) -> None:
        self._module = module
        self._inputs = inputs
        self._open = open_dimensions
        self._build = Conversion(converters)
        self._likes = LoweringContext(module, tuple(inputs)).values
        self._values: dict[Node, Any] = {}
        self._parameters: list[Any] = []
        self._places: list[tuple[int, int | None]] = []
        self._results: list[Value] = []

    def write(self) -> Converted:
        results: Any = None
        position = 0
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = self._input(position)
                position += 1
            elif node.op == "get_attr":
                self._values[node] = self._attribute(node)
            elif node.op == "output":
                results = _map(node.args[0], self._result)
            else:
                self._values[node] = self._call(node)
        if not self._results:
            raise NotConvertibleError("it returns no tensor")
        outputs = [self._build.out(self._build.ops.result(value.output)) for value in self._results]
        model = self._build.ov.Model([output.get_node() for output in outputs], self._parameters, "fxplug")
        dtypes = tuple(value.dtype for value in self._results)
        return Converted(model, tuple(self._places), results, dtypes, tuple(self._build.kept))

    def _input(self, position: int) -> Any:
        given = self._inputs[position]
        if isinstance(given, (tuple, list)):
            return tuple(self._parameter(value, (position, place)) for place, value in enumerate(given))
        return self._parameter(given, (position, None))

    def _parameter(self, given: Any, place: tuple[int, int | None]) -> Any:
        if not isinstance(given, torch.Tensor):
            if any(isinstance(leaf, torch.Tensor) for leaf in iterate_leaves((given,))):
                raise NotConvertibleError(
                    "an input holds tensors in a container inside of another, or in a dict"
                )
            return given
        if given.device.type != "cpu" or given.layout is not torch.strided:
            raise NotConvertibleError(f"an input is on {given.device} with layout {given.layout}")
        sizes = [-1 if number in self._open else size for number, size in enumerate(given.shape)]
        made = self._build.ops.parameter(sizes, self._build.type_of(given.dtype))
        self._parameters.append(made)
        self._places.append(place)
        return Value(made.output(0), given)

    def _attribute(self, node: Node) -> Any:
        value: Any = self._module
        lifted = self._module.graph.lifted
        if node.target in lifted:
            value = lifted[node.target]
        else:
            for name in str(node.target).split("."):
                value = getattr(value, name)
        if not isinstance(value, torch.Tensor):
            raise NotConvertibleError(f"it reads {node.target!r}, which is no tensor")
        return Value(self._build.tensor(value), value)

    def _result(self, value: Any) -> Any:
        found = self._values[value] if isinstance(value, Node) else value
        return _map(found, self._slot)

    def _slot(self, value: Any) -> Any:
        if not isinstance(value, Value):
            if hasattr(value, "get_element_type"):
                raise NotConvertibleError("it returns a size that is not known before it runs")
            return value
        self._results.append(value)
        return Slot(len(self._results) - 1)

    def _call(self, node: Node) -> Any:
        args = _map(node.args, self._argument)
        kwargs = {name: _map(value, self._argument) for name, value in node.kwargs.items()}
        if node.target is operator.getitem:
            return self._part(node, args[0][args[1]])
        if node.target in _OF_SIZES:
            return self._size_of(node.target, *args)
        record = self._build.converters.get(node.target)
        if record is None:
            return self._folded(node, args, kwargs)
        like = self._likes.get(node)
        if like is None:
            raise NotConvertibleError(f"what {node.target} returns is not known without running it")
        for leaf in like if isinstance(like, (tuple, list)) else (like,):
            if isinstance(leaf, torch.Tensor):
                self._build.type_of(leaf.dtype)
        self._build.like = like
        try:
            made = record.function(self._build, *args, **kwargs)
        except BackendError:
            raise
        except Exception as error:
            raise NotConvertibleError(
                f"the converter of {node.target} fails ({_owner(record)}): {type(error).__name__}: "
                f"{str(error).strip().splitlines()[-1] if str(error).strip() else ''}"
            ) from error
        return self._wrapped(made, like)

    def _part(self, node: Node, part: Any) -> Any:
        like = self._likes.get(node)
        if part is None and node.users and isinstance(like, torch.Tensor) and like.numel():
            raise NotConvertibleError(f"{node!r} is a result that OpenVINO does not compute")
        return part

    def _size_of(self, target: Any, first: Any, second: Any) -> Any:
        """Return a size that is computed from others."""
        if isinstance(first, int) and isinstance(second, int):
            return target(first, second)
        one, other = (self._build.cast(value, torch.int64) for value in (first, second))
        return self._build.out(getattr(self._build.ops, _OF_SIZES[target])(one, other))

    def _folded(self, node: Node, args: Any, kwargs: Any) -> Any:
        """Return the value of a call that takes no tensors: it is computed now."""
        if node.all_input_nodes or node.op != "call_function":
            raise NotConvertibleError(f"there is no converter for {node.target}")
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotConvertibleError(f"{node.target} draws random numbers")
        with torch.no_grad():
            value = node.target(*args, **kwargs)
        if isinstance(value, torch.Tensor):
            return Value(self._build.tensor(value), value)
        return value

    def _wrapped(self, made: Any, like: Any) -> Any:
        if isinstance(made, tuple):
            return tuple(
                None if part is None else self._wrapped(part, entry)
                for part, entry in zip(made, like, strict=False)
            )
        if made is None or not isinstance(like, torch.Tensor):
            return made
        return Value(self._build.out(made.output if isinstance(made, Value) else made), like)

    def _argument(self, value: Any) -> Any:
        return self._values[value] if isinstance(value, Node) else value


def _owner(record: ConverterRecord) -> str:
    return f"{record.function.__module__}.{getattr(record.function, '__qualname__', '')}"


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        made = [_map(part, function) for part in value]
        return tuple(made) if isinstance(value, tuple) and not hasattr(value, "_fields") else made
    if isinstance(value, dict):
        return {name: _map(part, function) for name, part in value.items()}
    return function(value)
