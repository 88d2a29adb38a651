"""Writing a program of ATen operators as a network of TensorRT."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug import LoweringContext, Node
from fxplug.errors import BackendError
from fxplug_tensorrt.network import Conversion, NotConvertibleError, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fxplug import GraphModule

__all__ = ["Converted", "ConverterRecord", "Place", "Slot", "convert"]

_MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class ConverterRecord:
    """Says how calls of one operator are written."""

    target: Any
    """An overload, such as ``torch.ops.aten.relu.default``."""
    function: Callable[..., Any]
    """Called with the `Conversion` and the arguments of the call, where tensors are a `Value`; returns a `Value`, or a
    tuple of them for an operator with several results, with None for what it does not compute. Raises
    `NotConvertibleError` with the reason where TensorRT cannot run the call."""


@dataclass(frozen=True)
class Place:
    """Where an input of a network comes from."""

    name: str
    position: int
    """In the arguments."""
    inner: int | None
    """In the tuple that is given there, if one is."""
    dtype: torch.dtype


@dataclass(frozen=True)
class Slot:
    """Stands for a result of the network."""

    number: int


@dataclass(frozen=True)
class Converted:
    """A network, and how what it takes and gives is arranged."""

    build: Conversion
    """Holds the network, and the memory that it reads."""
    inputs: tuple[Place, ...]
    results: Any
    """What the program returns, with a `Slot` in the place of each tensor."""
    outputs: tuple[tuple[str, torch.dtype], ...]
    """Name and dtype of each result."""


def convert(
    module: GraphModule,
    inputs: Sequence[Any],
    converters: Mapping[Any, ConverterRecord],
    *,
    computed_in: torch.dtype = torch.float32,
    open_dimensions: Sequence[int] = (),
) -> Converted:
    """Return a network that computes what a program of ATen operators computes.

    Args:
        module: Made by ``fxplug.decompose(..., to="aten")``.
        inputs: Examples.
        converters: Operator -> how its calls are written.
        computed_in: What takes the place of float32 inside; inputs and results keep theirs.
        open_dimensions: Dimensions of inputs whose size is left open.

    Raises:
        NotConvertibleError: Something in it cannot be written; the message says what.
    """
    return _Writer(module, inputs, converters, Conversion(computed_in), open_dimensions).write()


class _Writer:
    def __init__(
        self,
        module: GraphModule,
        inputs: Sequence[Any],
        converters: Mapping[Any, ConverterRecord],
        build: Conversion,
        open_dimensions: Sequence[int],
    ) -> None:
        self._module = module
        self._inputs = inputs
        self._converters = converters
        self._build = build
        self._open = open_dimensions
        self._likes = LoweringContext(module, tuple(inputs)).values
        self._values: dict[Node, Any] = {}
        self._places: list[Place] = []
        self._outputs: list[tuple[str, torch.dtype]] = []

    def write(self) -> Converted:
        results: Any = None
        position = 0
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = self._input(node, position)
                position += 1
            elif node.op == "get_attr":
                self._values[node] = self._attribute(node)
            elif node.op == "output":
                results = _map(node.args[0], self._result)
            else:
                self._values[node] = self._call(node)
        if not self._outputs:
            raise NotConvertibleError("it returns no tensor")
        return Converted(self._build, tuple(self._places), results, tuple(self._outputs))

    # -- what goes in and out

    def _input(self, node: Node, position: int) -> Any:
        if position >= len(self._inputs) and not node.args:
            raise NotConvertibleError(f"there is no example of the input {node.name!r}")
        given = self._inputs[position] if position < len(self._inputs) else node.args[0]
        if isinstance(given, (tuple, list)):
            return tuple(self._parameter(value, position, place) for place, value in enumerate(given))
        return self._parameter(given, position, None)

    def _parameter(self, given: Any, position: int, inner: int | None) -> Any:
        if not isinstance(given, torch.Tensor):
            return given
        if given.layout is not torch.strided:
            raise NotConvertibleError(f"an input has layout {given.layout}")
        self._refuse_empty(given)
        name = f"input_{len(self._places)}"
        sizes = [-1 if number in self._open else size for number, size in enumerate(given.shape)]
        self._places.append(Place(name, position, inner, given.dtype))
        return self._build.input(name, given.dtype, sizes)

    def _attribute(self, node: Node) -> Any:
        lifted = self._module.graph.lifted
        value = (
            lifted[node.target]
            if node.target in lifted
            else operator.attrgetter(str(node.target))(self._module)
        )
        if not isinstance(value, torch.Tensor):
            raise NotConvertibleError(f"it reads {node.target!r}, which is no tensor")
        self._refuse_empty(value)
        return self._build.tensor(value)

    def _refuse_empty(self, value: Any) -> None:
        if isinstance(value, torch.Tensor) and not value.numel():
            raise NotConvertibleError(
                f"TensorRT is given no empty tensors, and one is {tuple(value.shape)} large"
            )

    def _result(self, value: Any) -> Any:
        return _map(self._values[value] if isinstance(value, Node) else value, self._slot)

    def _slot(self, value: Any) -> Any:
        if not isinstance(value, Value):
            return value
        if value.is_size:
            raise NotConvertibleError("it returns a size that is not known before it runs")
        name = f"output_{len(self._outputs)}"
        self._build.output(name, value)
        self._outputs.append((name, value.dtype))
        return Slot(len(self._outputs) - 1)

    # -- calls

    def _call(self, node: Node) -> Any:
        args = _map(node.args, self._argument)
        kwargs = {name: _map(value, self._argument) for name, value in node.kwargs.items()}
        if node.target is operator.getitem:
            return self._part(node, *args)
        if node.target in _SIZES and any(isinstance(value, Value) and value.is_size for value in args):
            return _SIZES[node.target](*args)
        record = self._converters.get(node.target)
        if record is None or (not node.all_input_nodes and node.target.namespace == "aten"):
            return self._folded(node, args, kwargs)
        like = self._likes.get(node)
        if like is None:
            raise NotConvertibleError(f"what {node.target} returns is not known without running it")
        for leaf in like if isinstance(like, (tuple, list)) else (like,):
            if isinstance(leaf, torch.Tensor):
                self._build.type_of(leaf.dtype)
                if leaf.dim() > _MOST_DIMENSIONS:
                    raise NotConvertibleError(
                        f"TensorRT has at most {_MOST_DIMENSIONS} dimensions, and one tensor has {leaf.dim()}"
                    )
        self._build.like = like
        try:
            made = record.function(self._build, *args, **kwargs)
        except BackendError:
            raise
        except Exception as error:  # A converter fails in any way, and so do the bindings.
            reason = str(error).strip().splitlines()
            raise NotConvertibleError(
                f"the converter of {node.target} fails ({_owner(record)}): {type(error).__name__}: "
                f"{reason[-1] if reason else ''}"
            ) from error
        return self._checked(node, made, like)

    def _part(self, node: Node, value: Any, index: Any) -> Any:
        found = value[index]
        like = self._likes.get(node)
        if found is None and isinstance(like, torch.Tensor) and node.users:
            raise NotConvertibleError(f"result {index} of {node.args[0]!r} is not computed by TensorRT")
        return found

    def _folded(self, node: Node, args: Any, kwargs: Any) -> Any:
        """Return the value of a call that takes no tensors: it is computed now."""
        if node.all_input_nodes or node.op != "call_function":
            raise NotConvertibleError(f"there is no converter for {node.target}")
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotConvertibleError(f"{node.target} draws random numbers")
        with torch.no_grad():
            value = node.target(*args, **kwargs)
        if not isinstance(value, torch.Tensor):
            return value
        self._refuse_empty(value)
        return self._build.tensor(value)

    def _checked(self, node: Node, made: Any, like: Any) -> Any:
        """Return what a converter made, after a comparison with what the call returns."""
        if isinstance(made, (tuple, list)):
            return tuple(
                None if part is None else self._checked(node, part, entry)
                for part, entry in zip(made, like, strict=True)
            )
        if not isinstance(like, torch.Tensor):
            return made
        self._refuse_empty(like)
        if not isinstance(made, Value):
            raise NotConvertibleError(f"the converter of {node.target} returns a {type(made).__name__}")
        sizes = made.sizes
        fits = len(sizes) == like.dim() and all(
            size in (-1, wanted) for size, wanted in zip(sizes, like.shape, strict=True)
        )
        if not fits or made.dtype is not like.dtype or made.output.dtype != self._build.type_of(like.dtype):
            raise NotConvertibleError(
                f"the converter of {node.target} returns {made.output.dtype} of {sizes}, and PyTorch "
                f"{like.dtype} of {tuple(like.shape)}"
            )
        return made

    def _argument(self, value: Any) -> Any:
        return self._values[value] if isinstance(value, Node) else value


def _divided(first: Any, second: Any) -> Value:
    build: Conversion = (first if isinstance(first, Value) else second).build
    return build.binary("FLOOR_DIV", first, second)


# Arithmetic of sizes that are left open: of values, as of numbers.
_SIZES: dict[Any, Callable[..., Any]] = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.floordiv: _divided,
}


def _owner(record: ConverterRecord) -> str:
    return f"{record.function.__module__}.{getattr(record.function, '__qualname__', '')}"


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        made = [_map(part, function) for part in value]
        return tuple(made) if isinstance(value, tuple) and not hasattr(value, "_fields") else made
    if isinstance(value, dict):
        return {name: _map(part, function) for name, part in value.items()}
    return function(value)
