"""Proxies: stand-ins for values that record what is done with them."""

from __future__ import annotations

import copy
import dis
import operator
import sys
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.overrides

from fxplug.capture.sources import user_line
from fxplug.errors import TraceError
from fxplug.ir import Node, iterate_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["Attribute", "Proxy", "ProxyFactory", "no_condition", "no_iteration", "unknown_value"]


class ProxyFactory(Protocol):
    """What a proxy needs of the tracer that made it."""

    def create_proxy(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a node and return the proxy that stands for it."""
        ...

    def to_bool(self, obj: Proxy) -> bool:
        """Answer the question whether a value is true."""
        ...

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """Answer a request to iterate over a value."""
        ...

    def keys(self, obj: Proxy) -> Any:
        """Answer a call of ``keys`` on a value that is unpacked with two stars."""
        ...


def unknown_value(proxy: Proxy, what: str, remedy: str, code: str, *, is_probe: bool = False) -> TraceError:
    """Return the error for a question that cannot be answered while a value is unknown.

    Args:
        proxy: Stands for the value.
        what: What needs the answer.
        remedy: What to do.
        code: Of the error.
        is_probe: Whether the question may be one by which torch only finds out what it was given.
    """
    line = user_line(3)
    where = f" at {line} ({line.text!r})" if line is not None else ""
    error = TraceError(f"Cannot trace: {what} {proxy.node.name!r} is unknown{where}. {remedy}", code=code)
    # The program may catch it; the tracer must not believe then that all is well.
    note = getattr(proxy.tracer, "note_refusal", None)
    if note is not None and not is_probe:
        note(error)
    return error


class Proxy:
    """Stands for the value of a node of unknown kind. Everything done with it is recorded as a new node.

    Args:
        node: The node whose value this is.
        tracer: Who records; by default one that appends plain nodes to the graph of `node`.
    """

    def __init__(self, node: Node, tracer: ProxyFactory | None = None) -> None:
        self.node = node
        self.tracer: ProxyFactory = tracer if tracer is not None else _graph_appender(node)

    def __repr__(self) -> str:
        return f"Proxy({self.node.name})"

    def __getattr__(self, name: str) -> Attribute:
        return Attribute(self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record a call of the value itself."""
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        count = _unpacked_count(frame)
        if count is not None:
            return iter([self[index] for index in range(count)])
        return self.tracer.iter(self)

    def __bool__(self) -> bool:
        return self.tracer.to_bool(self)

    def __index__(self) -> int:
        raise unknown_value(
            self,
            "a Python integer is needed, but the value of",
            "Trace with that input fixed (concrete_args), or make the enclosing module a leaf.",
            "FXP-T002",
            is_probe=True,
        )

    def __len__(self) -> int:
        raise unknown_value(
            self,
            "len() needs a Python integer, but the length of",
            "Use x.shape[0] or x.size(0), which can be recorded, or make the enclosing module a leaf.",
            "FXP-T003",
        )

    def __contains__(self, item: object) -> bool:
        raise unknown_value(
            self,
            "'in' needs an answer, but what is in",
            "Make the enclosing module a leaf, or trace with that input fixed (concrete_args).",
            "FXP-T004",
        )

    def keys(self) -> Any:
        """Answer a request for the keys of a mapping, as ``f(**value)`` makes it."""
        return self.tracer.keys(self)

    def __getitem__(self, key: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.getitem, (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __delitem__(self, key: Any) -> None:
        self.tracer.create_proxy("call_function", operator.delitem, (self, key), {})

    def __copy__(self) -> Any:
        return self.tracer.create_proxy("call_function", copy.copy, (self,), {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo[id(self)] = self.tracer.create_proxy("call_function", copy.deepcopy, (self,), {})
        return copied

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tracer = _tracer_of(args, kwargs)
        if torch.overrides.is_tensor_method_or_property(function):
            return tracer.create_proxy("call_method", function.__name__, args, kwargs)
        return tracer.create_proxy("call_function", function, args, kwargs)


class Attribute(Proxy):
    """An attribute of a traced value. It becomes a node only when it is used other than by being called."""

    def __init__(self, root: Proxy, attr: str) -> None:
        self.root = root
        self.attr = attr
        self.tracer = root.tracer
        self._node: Node | None = None

    @property
    def node(self) -> Node:
        """The node that reads the attribute, made when it is first asked for."""
        made = self._node
        if made is None:
            made = self._node = self.tracer.create_proxy(
                "call_function", getattr, (self.root, self.attr), {}
            ).node
        return made

    def __repr__(self) -> str:
        return f"Attribute({self.root!r}.{self.attr})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record a call of the method that the attribute names."""
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


def _tracer_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ProxyFactory:
    for value in args:
        if isinstance(value, Proxy):
            return value.tracer
    for leaf in iterate_leaves((args, kwargs)):
        if isinstance(leaf, Proxy):
            return leaf.tracer
    raise TraceError(
        "Cannot trace a call: none of its arguments is a traced value, though torch says that one is."
    )


class _Appender:
    """Records plain nodes in the graph of the proxies it is used with."""

    def __init__(self, node: Node) -> None:
        self._graph: Any = node.graph

    def create_proxy(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Proxy:
        """Append a node."""
        node = self._graph.create_node(kind, target, _nodes_for(args), _nodes_for(kwargs))
        return Proxy(node, self)

    def to_bool(self, obj: Proxy) -> bool:
        raise no_condition(obj)

    def iter(self, obj: Proxy) -> Iterator[Any]:
        raise no_iteration(obj)

    def keys(self, obj: Proxy) -> Any:
        return self.create_proxy("call_method", "keys", (obj,), {})


def _graph_appender(node: Node) -> ProxyFactory:
    return _Appender(node)


def _nodes_for(value: Any) -> Any:
    return _map(value, _node_of)


def _node_of(leaf: Any) -> Any:
    return leaf.node if isinstance(leaf, Proxy) else leaf


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_map(element, function) for element in value)
    if isinstance(value, list):
        return [_map(element, function) for element in value]
    if isinstance(value, dict):
        return {key: _map(element, function) for key, element in value.items()}
    if isinstance(value, slice):
        return slice(_map(value.start, function), _map(value.stop, function), _map(value.step, function))
    return function(value)


def no_condition(proxy: Proxy) -> TraceError:
    """Return the error for a condition on a traced value."""
    return unknown_value(
        proxy,
        "a condition depends on a traced value;",
        "Trace with that branch fixed (concrete_args), rewrite it with torch.where, or make the enclosing "
        "module a leaf.",
        "FXP-T001",
    )


def no_iteration(proxy: Proxy) -> TraceError:
    """Return the error for iterating over a traced value."""
    return unknown_value(
        proxy,
        "iterating needs to know how many elements there are;",
        "Unpack it into a fixed number of names (a, b = value), index it, or make the enclosing module a "
        "leaf.",
        "FXP-T005",
    )


def _unpacked_count(frame: FrameType) -> int | None:
    """Return into how many names the calling instruction unpacks, None when it is another instruction."""
    raw = frame.f_code.co_code
    offset = frame.f_lasti
    if offset < 0 or dis.opname[raw[offset]] != "UNPACK_SEQUENCE":
        return None
    count, shift = raw[offset + 1], 8
    while offset >= 2 and dis.opname[raw[offset - 2]] == "EXTENDED_ARG":  # Numbers above 255 take several.
        offset -= 2
        count |= raw[offset + 1] << shift
        shift += 8
    return count


# -- operators

_BINARY = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "lshift",
    "rshift",
    "and",
    "or",
    "xor",
]
_COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]
_UNARY = ["neg", "pos", "invert", "abs"]


def _operator(name: str) -> Any:
    return getattr(operator, f"{name}_" if name in {"and", "or"} else name)


def _forward(function: Any) -> Callable[[Proxy, Any], Any]:
    def method(self: Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return method


def _reflected(function: Any) -> Callable[[Proxy, Any], Any]:
    def method(self: Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (other, self), {})

    return method


def _unary(function: Any) -> Callable[[Proxy], Any]:
    def method(self: Proxy) -> Any:
        return self.tracer.create_proxy("call_function", function, (self,), {})

    return method


def _install_operators() -> None:
    for name in _BINARY:
        setattr(Proxy, f"__{name}__", _forward(_operator(name)))
        setattr(Proxy, f"__r{name}__", _reflected(_operator(name)))
        setattr(Proxy, f"__i{name}__", _forward(getattr(operator, f"i{name}")))
    for name in _COMPARISONS:
        setattr(Proxy, f"__{name}__", _forward(_operator(name)))
    for name in _UNARY:
        setattr(Proxy, f"__{name}__", _unary(_operator(name)))


_install_operators()
