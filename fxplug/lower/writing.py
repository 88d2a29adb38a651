"""Writing a program of ATen operators for an engine, node by node."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.errors import BackendError, NotConvertibleError
from fxplug.ir import Node, iterate_leaves, map_aggregate
from fxplug.lower.backend import LoweringContext
from fxplug.lower.converters import Conversion, describe_converter
from fxplug.lower.results import Slot
from fxplug.semantics.internals import OpOverload, schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fxplug.execute import GraphModule
    from fxplug.lower.converters import ConverterRecord

__all__ = ["AtenProgram", "Place", "Written", "write_program"]

_OF_SIZES = frozenset({operator.add, operator.sub, operator.mul, operator.floordiv})

_NUMBERS = frozenset({int, float, bool, complex})


@dataclass(frozen=True)
class AtenProgram:
    """A program of ATen operators, ready to be written for an engine."""

    module: GraphModule
    """Made by ``fxplug.decompose(..., to="aten")``."""
    inputs: tuple[Any, ...]
    """Examples."""
    open_dimensions: tuple[int, ...] = ()
    """Dimensions of inputs whose size is left open."""
    returns: type[Any] | None = None
    """Which of PyTorch's named tuples the program returns; None for a plain result."""
    fixed_inputs: frozenset[int] = frozenset()
    """Positions of inputs all of whose sizes are those of the examples."""


@dataclass(frozen=True)
class Place:
    """Where an input of an engine comes from."""

    name: str
    position: int
    """In the arguments."""
    inner: int | None
    """In the tuple that is given there, if one is."""
    dtype: torch.dtype

    def tensor(self, inputs: Sequence[Any]) -> torch.Tensor:
        """Return the tensor at this place of the arguments of a call, with its elements in order."""
        given = inputs[self.position] if self.inner is None else inputs[self.position][self.inner]
        return given.detach().contiguous()


@dataclass(frozen=True)
class Written:
    """How what an engine takes and gives is arranged."""

    inputs: tuple[Place, ...]
    results: Any
    """What the program returns, with a `Slot` in the place of each tensor; see `fill_results`."""
    outputs: tuple[tuple[str, torch.dtype], ...]
    """Name and dtype in PyTorch of each result."""


def write_program(
    program: AtenProgram, conversion: Conversion, converters: Mapping[Any, ConverterRecord]
) -> Written:
    """Write a program for an engine; what is written is in `conversion`.

    Args:
        program: Not changed.
        conversion: Fresh.
        converters: Operator -> how its calls are written.

    Raises:
        NotConvertibleError: Something in it cannot be written; the message says what.
    """
    return _Writer(program, conversion, converters).write()


class _Writer:
    def __init__(
        self, program: AtenProgram, build: Conversion, converters: Mapping[Any, ConverterRecord]
    ) -> None:
        self._program = program
        self._module = program.module
        self._build = build
        self._converters = converters
        self._likes = LoweringContext(program.module, tuple(program.inputs)).values
        self._values: dict[Node, Any] = {}
        self._places: list[Place] = []
        self._outputs: list[tuple[str, torch.dtype]] = []

    def write(self) -> Written:
        results: Any = None
        position = 0
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = self._input(node, position)
                position += 1
            elif node.op == "get_attr":
                self._values[node] = self._attribute(node)
            elif node.op == "output":
                results = map_aggregate(node.args[0], self._result, frozen=False)
            else:
                self._values[node] = self._located(node)
        if not self._outputs:
            raise NotConvertibleError("it returns no tensor")
        kind = self._program.returns
        return Written(tuple(self._places), results if kind is None else kind(results), tuple(self._outputs))

    # -- what goes in and out

    def _input(self, node: Node, position: int) -> Any:
        inputs = self._program.inputs
        if position >= len(inputs) and not node.args:
            raise NotConvertibleError(f"there is no example of the input {node.name!r}")
        given = inputs[position] if position < len(inputs) else node.args[0]
        if isinstance(given, (tuple, list)):
            parts = cast("Sequence[Any]", given)
            return tuple(self._parameter(part, position, inner) for inner, part in enumerate(parts))
        return self._parameter(given, position, None)

    def _parameter(self, given: Any, position: int, inner: int | None) -> Any:
        if not isinstance(given, torch.Tensor):
            if any(isinstance(leaf, torch.Tensor) for leaf in iterate_leaves(given)):
                raise NotConvertibleError(
                    "an input holds tensors in a container inside of another, or in a dict"
                )
            return given
        if given.layout is not torch.strided:
            raise NotConvertibleError(f"an input has layout {given.layout}")
        name = f"input_{len(self._places)}"
        program = self._program
        opened = () if position in program.fixed_inputs else program.open_dimensions
        sizes = [-1 if number in opened else size for number, size in enumerate(given.shape)]
        value = self._build.add_input(name, given, sizes)
        self._places.append(Place(name, position, inner, given.dtype))
        return value

    def _attribute(self, node: Node) -> Any:
        lifted = self._module.graph.lifted
        name = str(node.target)
        value = lifted[name] if name in lifted else operator.attrgetter(name)(self._module)
        if not isinstance(value, torch.Tensor):
            raise NotConvertibleError(f"it reads {node.target!r}, which is no tensor")
        return self._build.add_constant(value)

    def _result(self, leaf: Any) -> Any:
        found = self._values[leaf] if isinstance(leaf, Node) else leaf
        return map_aggregate(found, self._slot, frozen=False)

    def _slot(self, value: Any) -> Any:
        if not self._build.is_value(value):
            return value
        name = f"output_{len(self._outputs)}"
        self._build.add_result(name, value)
        self._outputs.append((name, value.dtype))
        return Slot(len(self._outputs) - 1)

    # -- calls

    def _located(self, node: Node) -> Any:
        try:
            return self._call(node)
        except NotConvertibleError as error:
            if not error.node:
                frame = node.origins[0].source() if node.origins else None
                error.node, error.source = node.name, "" if frame is None else str(frame)
            raise

    def _call(self, node: Node) -> Any:
        args: tuple[Any, ...] = map_aggregate(node.args, self._argument, frozen=False)
        kwargs: dict[str, Any] = map_aggregate(node.kwargs, self._argument, frozen=False)
        if node.target is operator.getitem:
            return self._part(node, *args)
        is_known = not any(map(self._build.is_value, iterate_leaves((args, kwargs))))
        if node.target in _OF_SIZES:
            return node.target(*args) if is_known else self._build.size_of(node.target, *args)
        record = self._converters.get(node.target)
        if record is None or (is_known and self._build.computes_known and _is_of_aten(node.target)):
            return self._computed(node, args, kwargs, is_known=is_known)
        args, kwargs = _arranged(node.target, args, kwargs)
        like = self._like_of(node)
        self._build.like = like
        return self._values_of(node, self._converted(record, args, kwargs), like)

    def _argument(self, leaf: Any) -> Any:
        return self._values[leaf] if isinstance(leaf, Node) else leaf

    def _like_of(self, node: Node) -> Any:
        """Return what a call returns, without data; the engine knows all of it."""
        like = self._likes.get(node)
        if like is None:
            raise NotConvertibleError(f"what {node.target} returns is not known without running it")
        for leaf in iterate_leaves(like):
            if isinstance(leaf, torch.Tensor):
                self._build.check_tensor(leaf)
        return like

    def _converted(self, record: ConverterRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a converter returns.

        Raises:
            NotConvertibleError: It refuses the call, or fails, in whatever way.
        """
        try:
            reason = "" if record.check is None else record.check(self._build, *args, **kwargs)
            if not reason:
                return record.function(self._build, *args, **kwargs)
        except BackendError:
            raise
        except Exception as error:  # A converter fails in any way, and so does the engine.
            text = str(error).strip().splitlines()
            raise NotConvertibleError(
                f"the converter of {record.target} fails ({describe_converter(record, self._converters)}): "
                f"{type(error).__name__}: {text[-1] if text else ''}"
            ) from error
        raise NotConvertibleError(str(reason))

    def _part(self, node: Node, value: Any, index: Any) -> Any:
        found = value[index]
        like = self._likes.get(node)
        if found is None and isinstance(like, torch.Tensor) and node.users and like.numel():
            raise NotConvertibleError(
                f"result {index} of {node.args[0]!r} is not computed by {self._build.engine}"
            )
        return found

    def _computed(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_known: bool) -> Any:
        """Return the value of a call that takes nothing of the engine: it is computed now."""
        if not is_known or node.op != "call_function":
            raise NotConvertibleError(f"there is no converter for {node.target}")
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotConvertibleError(f"{node.target} draws random numbers")
        with torch.no_grad():
            value = node.target(*args, **kwargs)
        return map_aggregate(value, self._held, frozen=False)

    def _held(self, leaf: Any) -> Any:
        return self._build.add_constant(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def _values_of(self, node: Node, made: Any, like: Any) -> Any:
        """Return what a converter returned as values of the engine."""
        title = f"the converter of {node.target}"
        if isinstance(like, (tuple, list)):
            wanted = cast("Sequence[Any]", like)
            parts = list(cast("Sequence[Any]", made)) if isinstance(made, (tuple, list)) else [made]
            if len(parts) > len(wanted):
                raise NotConvertibleError(f"{title} returns {len(parts)} results, and PyTorch {len(wanted)}")
            parts += [None] * (len(wanted) - len(parts))
            pairs = zip(parts, wanted, strict=True)
            return tuple(None if part is None else self._values_of(node, part, one) for part, one in pairs)
        if not isinstance(like, torch.Tensor):
            if not self._build.is_value(made) and type(made) not in _NUMBERS:
                raise NotConvertibleError(
                    f"{title} returns a {type(made).__name__} instead of a number or a value"
                )
            return made
        if made is None or isinstance(made, (tuple, list)):
            raise NotConvertibleError(f"{title} returns a {type(made).__name__} instead of a value")
        return self._build.value_of(made, like, node.target)


def _is_of_aten(target: Any) -> bool:
    return getattr(target, "namespace", "") == "aten"


def _arranged(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with those by position that the operator takes so, whichever way they are given."""
    if not kwargs or not isinstance(target, OpOverload):
        return args, kwargs
    given = dict(kwargs)
    placed = list(args)
    missing: list[Any] = []
    for entry in schema_of(target).arguments[len(args) :]:
        if entry.kwarg_only:
            break
        if entry.name in given:
            placed += [*missing, given.pop(entry.name)]
            missing = []
        else:
            missing.append(entry.default_value)
    return tuple(placed), given
