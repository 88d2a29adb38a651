"""Stand-ins for Python numbers and sizes that hang on the inputs of a program.

They have a value, so that every question is answered as it would be without a trace; what was asked becomes a guard.
Arithmetic is recorded, and so stays right for other inputs.
"""

from __future__ import annotations

import copy
import math
import operator
import sys
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, cast

import torch

from fxplug.capture.callsites import (
    called_name,
    expects_sizes,
    fills_told_text,
    is_told_only,
    makes_sizes,
    takes_from_sizes,
)
from fxplug.capture.sessions import active

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from typing_extensions import Self

    from fxplug.ir import Argument, Node

__all__ = ["FloatProxy", "IntProxy", "NumberProxy", "NumberRecorder", "Part", "SizeProxy"]


class NumberRecorder(Protocol):
    """Who records what is done with numbers."""

    opens_sizes: bool
    """Whether a ``torch.Size`` that the program makes holds the stand-ins themselves."""

    def note_size_made(self, number: NumberProxy) -> None:
        """Hear that the program makes a ``torch.Size`` of a number, which has asked for the very number."""
        ...

    def record_call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Record a call, make it, and return what stands for its result."""
        ...

    def fix(self, number: NumberProxy, function: Callable[[Any], Any] | None = None) -> None:
        """Take it that a number, or what a function makes of it, is what it is now."""
        ...

    def tell_kind(self, number: NumberProxy) -> None:
        """Hear that a number is compared with something else: what another call is given there may be that."""
        ...

    def exact(self, result: Any) -> Any:
        """Return the very number for a result that may stand for one."""
        ...

    def note_index(self, number: NumberProxy, name: str) -> None:
        """Hear that a call of the function or method `name` has read a number."""
        ...

    def node_of_part(self, part: Part) -> Node:
        """Return the node for a part of a value."""
        ...


class Part:
    """A part of a node's value, for which a node is made when it is used."""

    __slots__ = ("key", "node", "whole")

    def __init__(self, whole: Node | Part, key: Any) -> None:
        self.whole = whole
        self.key = key
        self.node: Node | None = None


class NumberProxy:
    """A Python number that hangs on the inputs.

    It is no subclass of `int` or `float`, whose values Python reads without asking; but it says that it is an instance
    of one.

    Args:
        source: The node whose value this is, or which part of another one's.
        recorder: Who records.
        value: What it is for the example inputs.
    """

    __slots__ = ("__dict__", "__weakref__", "is_exact", "is_fixed", "recorder", "source", "value")

    stands_for_number = True
    """Tells those who are asked for its class to give that of the number."""

    def __init__(self, source: Node | Part, recorder: NumberRecorder, value: Any) -> None:
        self.source = source
        self.recorder = recorder
        self.value = value
        self.is_fixed = self.is_exact = False
        """Whether a guard says that it, or what a function makes of it, is what it is; whether it itself is."""

    @property
    def node(self) -> Node:
        """The node whose value this is."""
        source = self.source
        return self.recorder.node_of_part(source) if isinstance(source, Part) else source

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - nobody assigns it
        return type(self.value)

    def __fx_create_arg__(self, _: Any) -> Argument:
        """Return the argument that stands for it in a graph."""
        return self.node

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Never called while a trace runs, which hears of every call first: it lets torch accept the value."""
        return NotImplemented

    # -- what needs the very number

    def _fixed(self) -> Any:
        self.recorder.fix(self)
        return self.value

    def __bool__(self) -> bool:
        return cast("bool", self.recorder.record_call(operator.truth, (self,)))

    def __index__(self) -> int:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        name = called_name(frame)
        session = active.get()
        if name is None or session is None:
            if session is not None and makes_sizes(frame):
                self.recorder.note_size_made(self)
            return operator.index(self._fixed())
        # Torch may want a number only to find out that it was given sizes. It will be heard what of.
        if expects_sizes(frame):
            session.probe(self, None)
        self.recorder.note_index(self, name)
        return cast("int", self.value)

    def __int__(self) -> int:
        if not fills_told_text(sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]
            self.recorder.fix(self, int)
        return int(self.value)

    def __float__(self) -> float:
        is_told = fills_told_text(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return float(self.value if is_told else self._fixed())

    def __complex__(self) -> complex:
        return complex(self._fixed())

    def __hash__(self) -> int:
        return hash(self._fixed())

    def __str__(self) -> str:
        return str(self._shown(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]

    def __repr__(self) -> str:
        return repr(self._shown(sys._getframe(1)))  # pyright: ignore[reportPrivateUsage]

    def __format__(self, spec: str) -> str:
        return format(self._shown(sys._getframe(1)), spec)  # pyright: ignore[reportPrivateUsage]

    def _shown(self, frame: FrameType) -> Any:
        """Return the number for a text that `frame` makes; where people alone read it, any other would do as well."""
        return self.value if is_told_only(frame, strictly=True) else self._fixed()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"{type(self.value).__name__!r} object has no attribute {name!r}")
        return getattr(self._fixed(), name)

    def __copy__(self) -> NumberProxy:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NumberProxy:
        return self

    def __reduce__(self) -> Any:
        value = self._fixed()
        return type(value), (value,)

    # -- what is recorded

    def __round__(self, digits: int | None = None) -> Any:
        return self.recorder.record_call(round, (self,) if digits is None else (self, digits))

    def __floor__(self) -> Any:
        return self.recorder.record_call(math.floor, (self,))

    def __ceil__(self) -> Any:
        return self.recorder.record_call(math.ceil, (self,))

    def __trunc__(self) -> Any:
        return self.recorder.record_call(math.trunc, (self,))

    def __divmod__(self, other: Any) -> Any:
        return self.recorder.record_call(divmod, (self, other))

    def __rdivmod__(self, other: Any) -> Any:
        return self.recorder.record_call(divmod, (other, self))


class IntProxy(NumberProxy):
    """An `int` that hangs on the inputs, most often a size."""

    @property
    def __class__(self) -> Any:
        # A torch.Size asks each of its elements for the very number, but for those that are numbers of a compiler.
        if self.recorder.opens_sizes and takes_from_sizes(sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]
            return torch.SymInt
        return type(self.value)


class FloatProxy(NumberProxy):
    """A `float` that hangs on the inputs."""

    __index__: Any = None

    def is_integer(self) -> bool:
        """Return whether it has no fraction."""
        return cast("bool", self._fixed().is_integer())


def _both_ways(function: Callable[..., Any]) -> tuple[Any, Any]:
    def forward(self: NumberProxy, other: Any, *modulo: Any) -> Any:
        if modulo:  # Of pow().
            return pow(self.recorder.exact(self), other, *modulo)
        if isinstance(other, _OTHERS):
            return NotImplemented
        return self.recorder.record_call(function, (self, other))

    def reflected(self: NumberProxy, other: Any) -> Any:
        if isinstance(other, _OTHERS):
            return NotImplemented
        return self.recorder.record_call(function, (other, self))

    return forward, reflected


def _compared(function: Callable[..., Any]) -> Any:
    forward = _both_ways(function)[0]

    def method(self: NumberProxy, other: Any) -> Any:
        if isinstance(other, _OTHERS):
            self.recorder.tell_kind(self)
        return forward(self, other)

    return method


def _one_way(function: Callable[..., Any]) -> Any:
    def method(self: NumberProxy) -> Any:
        return self.recorder.record_call(function, (self,))

    return method


_OTHERS = (str, bytes, list, tuple, dict, set)
"""What Python knows best what to do with: ``[0] * number`` asks for the number."""


def _repeat(self: NumberProxy, other: Any) -> Any:
    if isinstance(other, _OTHERS):
        return cast("Any", other) * operator.index(self)
    return self.recorder.record_call(operator.mul, (other, self))


def _install_operators() -> None:
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
        forward, reflected = _both_ways(getattr(operator, name))
        setattr(NumberProxy, f"__{name}__", forward)
        setattr(NumberProxy, f"__r{name}__", reflected)
    for name in ("lshift", "rshift", "and", "or", "xor"):
        forward, reflected = _both_ways(getattr(operator, f"{name}_" if name in {"and", "or"} else name))
        setattr(IntProxy, f"__{name}__", forward)
        setattr(IntProxy, f"__r{name}__", reflected)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(NumberProxy, f"__{name}__", _compared(getattr(operator, name)))
    for name in ("neg", "pos", "abs"):
        setattr(NumberProxy, f"__{name}__", _one_way(getattr(operator, name)))
    for name, method in (("invert", _one_way(operator.invert)), ("rmul", _repeat)):
        setattr(IntProxy, f"__{name}__", method)


_install_operators()


class SizeProxy(tuple[Any, ...]):  # noqa: SLOT001 - has attributes of its own
    """The sizes of a tensor: a tuple of numbers, some of which hang on the inputs.

    Args:
        elements: The numbers.
        source: The node whose value this is, or which part of another one's; None for sizes that the program put
            together.
        recorder: Who records; None for these.
    """

    source: Node | Part | None
    recorder: NumberRecorder | None

    stands_for_number = True

    def __new__(
        cls,
        elements: Iterable[Any],
        source: Node | Part | None = None,
        recorder: NumberRecorder | None = None,
    ) -> Self:
        """Make one."""
        sizes = super().__new__(cls, elements)
        sizes.source, sizes.recorder = source, recorder
        return sizes

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - nobody assigns it
        return torch.Size

    def __fx_create_arg__(self, tracer: Any) -> Argument:
        """Return the argument that stands for it in a graph."""
        if self.source is None or self.recorder is None:
            elements = tuple([tracer.create_arg(element) for element in self])
            if not tracer.keeps_sizes:
                return elements
            return tracer.create_node("call_function", torch.Size, (elements,), {})
        return self.recorder.node_of_part(self.source) if isinstance(self.source, Part) else self.source

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        found = super().__getitem__(key)
        return SizeProxy(found) if isinstance(key, slice) else found

    def __add__(self, other: Any) -> Any:
        return SizeProxy(super().__add__(tuple(other))) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return SizeProxy((*other, *self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> SizeProxy:
        return SizeProxy(super().__mul__(count))

    __rmul__ = __mul__

    def numel(self) -> Any:
        """Return the product of the sizes."""
        product: Any = 1
        for element in self:
            product = product * element
        return product

    def __repr__(self) -> str:
        is_told = is_told_only(sys._getframe(1), strictly=True)  # pyright: ignore[reportPrivateUsage]
        shown = [
            element.value if is_told and isinstance(element, NumberProxy) else element for element in self
        ]
        return f"torch.Size([{', '.join(map(repr, shown))}])"

    __str__ = __repr__

    def __copy__(self) -> SizeProxy:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SizeProxy:
        return self

    def __reduce__(self) -> Any:
        return torch.Size, (tuple(operator.index(copy.copy(element)) for element in self),)
