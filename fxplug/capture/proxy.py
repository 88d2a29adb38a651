"""Proxies: stand-ins for values that record what is done with them, and what every recorder has in common."""

from __future__ import annotations

import copy
import gc
import itertools
import operator
import sys
from collections import OrderedDict, abc
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
import torch.overrides
from torch import nn

from fxplug.capture.answers import (
    COMPARED_ATTRIBUTES,
    answer_for_directory,
    check_compared_attribute,
    check_hash,
    check_pickling,
    check_text,
    class_of,
    missing_attribute,
)
from fxplug.capture.arguments import (
    PLAIN_TYPES,
    attributes_apart,
    constructor_arguments,
    container_argument,
    is_constant,
    is_plain_subclass,
    iterate_parts,
    own_container,
)
from fxplug.capture.arrays import as_index, is_exact_number
from fxplug.capture.bytecode import find_assertion, unpacked_count
from fxplug.capture.callforms import tells_sizes_apart
from fxplug.capture.callsites import asks_for_length_of_pattern, called_by, expects_sizes
from fxplug.capture.mutation import refuse_writes
from fxplug.capture.originals import original_of
from fxplug.capture.questions import (
    no_assignment,
    no_condition,
    no_iteration,
    refuse_cycles,
    unknown_value,
)
from fxplug.capture.scopes import Scope
from fxplug.capture.sessions import active
from fxplug.capture.sources import place_in_program, user_line
from fxplug.codegen import AUGMENTED
from fxplug.errors import TraceError
from fxplug.execute.paths import set_path
from fxplug.semantics.constructors import object_with
from fxplug.semantics.internals import ScriptMethod, assert_function
from fxplug.semantics.kinds import TENSOR_METHODS, TENSOR_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

    from fxplug.ir import Argument, Graph, Node

__all__ = [
    "AS_A_RESULT",
    "Attribute",
    "GraphAppendingTracer",
    "Proxy",
    "ProxyFactory",
    "TracerBase",
    "is_proxy",
    "no_condition",
    "no_iteration",
    "traced_value",
    "unknown_value",
]

AS_A_RESULT = "as a result"
"""Where a value stands that the program has returned, in messages."""


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

    def unpack(self, obj: Proxy, count: int) -> None:
        """Hear that a value is about to be unpacked into a number of names."""
        ...

    def keys(self, obj: Proxy) -> Any:
        """Answer a call of ``keys`` on a value that is unpacked with two stars."""
        ...

    def create_index(self, key: Any) -> Any:
        """Return an index with tensors in place of arrays of NumPy; the index itself if it has none."""
        ...

    def note_read(self, read: Attribute) -> None:
        """Hear that an attribute was read that is no method of tensors."""
        ...

    def use_read(self, read: Attribute) -> None:
        """Hear that an attribute is about to be recorded."""
        ...

    def note_kept(self, function: Any) -> None:
        """Hear that a call of a function was recorded that stays one."""
        ...

    def tell(self, obj: Proxy, name: str) -> Any:
        """Return what an attribute says that is the same for all elements, where that is known; None otherwise."""
        ...


class Proxy:
    """Stands for the value of a node of unknown kind. Everything done with it is recorded as a new node.

    Assigning an attribute could not be recorded, and is refused. A subclass may keep what it likes at its instances:
    whatever its own methods set, and every name that a tensor does not have.

    Args:
        node: The node whose value this is.
        tracer: Who records; by default one that appends plain nodes to the graph of `node`.
    """

    node: Node
    """The node whose value this is."""
    tracer: ProxyFactory
    """Who records."""

    def __init__(self, node: Node, tracer: ProxyFactory | None = None) -> None:
        own = self.__dict__  # Past __setattr__, which would double the time that this takes.
        own["node"] = node
        own["tracer"] = tracer if tracer is not None else GraphAppendingTracer(cast("Graph", node.graph))

    def __repr__(self) -> str:
        # Also where the text of what holds the value is made: str([x.ndim]).
        check_text(self, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return self._shown()

    def _shown(self) -> str:
        """Return how messages show the value."""
        return f"Proxy({self.node.name})"

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - nobody assigns it
        return class_of(self, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]

    def __str__(self) -> str:
        check_text(self, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return self._shown()

    def __format__(self, format_spec: str) -> str:
        check_text(self, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return self._shown()

    def __hash__(self) -> int:
        check_hash(self, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return object.__hash__(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record a call of the value itself."""
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        count = unpacked_count(frame.f_code, frame.f_lasti)
        if count is not None:
            self.tracer.unpack(self, count)
            return iter([self[index] for index in range(count)])
        return self.tracer.iter(self)

    def __bool__(self) -> bool:
        if getattr(self.tracer, "trace_asserts", False):
            answer = _record_assertion(self, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            if answer is not None:
                return answer
        return self.tracer.to_bool(self)

    def __getattr__(self, name: str) -> Any:
        if name in TENSOR_METHODS:
            return Attribute(self, name)
        if name not in TENSOR_NAMES:
            missing_attribute(self, name, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        if name in _TOLD and (told := self.tracer.tell(self, name)) is not None:
            return told
        read = Attribute(self, name)
        self.tracer.note_read(read)
        return read

    def __dir__(self) -> Any:
        names = answer_for_directory(self, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        return object.__dir__(self) if names is None else names

    def __setattr__(self, name: str, value: Any) -> None:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        if name in {"node", "tracer"} or _is_own(type(self), name, frame.f_code):
            object.__setattr__(self, name, value)
        elif not _is_update(self, name, value):
            raise no_assignment(repr(self), self.tracer, name)

    def __index__(self) -> int:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        session = active.get()
        if session is not None and expects_sizes(frame):
            session.probe(self, _no_number(self, "integer", is_probe=True))
            return 1
        callee = called_by(frame)
        if callee is range and (told := self.tracer.tell(self, "__index__")) is not None:
            return told
        # Torch tries whether it was given a number, and goes on when it was not.
        raise _no_number(self, "integer", is_probe=not any(callee is known for known in _NUMBER_CALLS))

    def __int__(self) -> int:
        raise _no_number(self)

    def __float__(self) -> float:
        raise _no_number(self)

    def __complex__(self) -> complex:
        raise _no_number(self)

    def __round__(self, ndigits: Any = None) -> Any:
        raise _no_number(self)

    def __trunc__(self) -> Any:
        raise _no_number(self)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise unknown_value(
            self,
            "an array of NumPy is needed, but the value of",
            "Use the functions of torch, or make the enclosing module a leaf.",
            "FXP-T002",
        )

    def __reversed__(self) -> Any:
        return self.tracer.create_proxy("call_function", reversed, (self,), {})

    def __len__(self) -> int:
        if (told := self.tracer.tell(self, "__len__")) is not None:
            return told
        what = "len() needs a Python integer, but the length of"
        if asks_for_length_of_pattern(sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]
            what = "a pattern asks how many elements there are, but the length of"
        raise unknown_value(
            self,
            what,
            "Use x.shape[0] or x.size(0), which can be recorded, or make the enclosing module a leaf.",
            "FXP-T003",
        )

    def record_check(self, check: Any, args: tuple[Any, ...]) -> None:
        """Record a check that a captured program makes, which is captured again."""
        self.tracer.create_proxy("call_function", check, args, {})

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
        try:
            return self.tracer.create_proxy("call_function", operator.getitem, (self, key), {})
        except TraceError as error:
            key = self._index_without_arrays(key, error)
            return self.tracer.create_proxy("call_function", operator.getitem, (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        try:
            self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})
        except TraceError as error:
            key = self._index_without_arrays(key, error)
            self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def _index_without_arrays(self, key: Any, error: TraceError) -> Any:
        """Return an index that no graph could hold with tensors in place of its arrays; raise the error for others."""
        converted = self.tracer.create_index(key) if error.code == "FXP-T006" else key
        if converted is key:
            raise error
        return converted

    def __delitem__(self, key: Any) -> None:
        self.tracer.create_proxy("call_function", operator.delitem, (self, key), {})

    def __copy__(self) -> Any:
        return self.tracer.create_proxy("call_function", copy.copy, (self,), {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo[id(self)] = self.tracer.create_proxy("call_function", copy.deepcopy, (self,), {})
        return copied

    def __getstate__(self) -> dict[str, Any]:
        check_pickling(self)
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tracer = _tracer_of(args, kwargs)
        is_check = function is assert_function and len(args) == _OF_ASSERTION
        if is_check and getattr(tracer, "answers_assertions", False):
            if not args[0]:
                raise AssertionError(args[1])
            return None
        if type(function) is ScriptMethod:  # First: torch does not know what to say of it.
            script: Any = function
            return tracer.create_proxy("call_method", script.name, (script.owner, *args), kwargs)
        if _is_method(function):
            return tracer.create_proxy("call_method", function.__name__, args, kwargs)
        return tracer.create_proxy("call_function", function, args, kwargs)


_OF_ASSERTION = 2
"""How many arguments it is given: the condition and the message."""


_TOLD = frozenset({"device", "ndim"})
"""Attributes of tensors that a tracer may tell, besides the dtype."""


class Attribute(Proxy):
    """An attribute of a traced value. It becomes a node only when it is used other than by being called."""

    root: Proxy
    """The traced value."""
    attr: str
    """Name of the attribute."""
    _node: Node | None

    def __init__(self, root: Proxy, attr: str) -> None:
        own = self.__dict__  # Past __setattr__; most calls of methods get here.
        own["_node"] = None
        own["root"] = root
        own["attr"] = attr
        own["tracer"] = root.tracer

    @property
    def node(self) -> Node:  # pyright: ignore[reportIncompatibleVariableOverride] - made when it is asked for
        """The node that reads the attribute, made when it is first asked for."""
        known = self._node
        if known is None:
            self.tracer.use_read(self)
            read: Proxy = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {})
            known = self.__dict__["_node"] = read.node
        return known

    def _shown(self) -> str:
        return f"Attribute({self.root!r}.{self.attr})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record a call of the method that the attribute names."""
        if self.attr not in TENSOR_METHODS:
            self._unread()
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)

    def _unread(self) -> None:
        """Take back that the attribute is read: it is a method."""
        self.tracer.use_read(self)
        known = self._node
        if known is not None and not known.users:  # Something was written before it was called.
            cast("Graph", known.graph).erase_node(known)
            self.__dict__["_node"] = None


_NUMBER_CALLS = (
    *(bin, bytes, chr, hex, int, float, complex, oct, operator.index, range, round, slice),
    *(itertools.islice, itertools.repeat),
)
"""What needs the very number, and does not try out what it was given."""


def _no_number(proxy: Proxy, what: str = "number", *, is_probe: bool = False) -> TraceError:
    return unknown_value(
        proxy,
        f"a Python {what} is needed, but the value of",
        "Trace with that input fixed (concrete_args), or make the enclosing module a leaf.",
        "FXP-T002",
        is_probe=is_probe,
    )


_is_method = lru_cache(maxsize=4096)(torch.overrides.is_tensor_method_or_property)


def _is_own(kind: type, name: str, setter: CodeType) -> bool:
    """Return whether an attribute of a proxy is one of its class, and none of the value that it stands for."""
    bases = kind.__mro__[: kind.__mro__.index(Proxy)]
    for base in bases:
        method = vars(base).get(setter.co_name)
        if name in vars(base) or getattr(method, "__code__", None) is setter:
            return True
    is_foreign = any(not str(base.__module__).startswith("fxplug.capture.") for base in bases)
    return is_foreign and not hasattr(torch.Tensor, name)


def _is_update(proxy: Proxy, name: str, value: Any) -> bool:
    """Return whether what is assigned is the attribute itself, updated in place: ``x.data += 1`` assigns, too."""
    if not isinstance(value, Proxy) or not hasattr(torch.Tensor, name):
        return False
    node = value.node
    while node.op == "call_function" and node.target in AUGMENTED:
        node = node.all_input_nodes[0]
    return node.op == "call_function" and node.target is getattr and node.args == (proxy.node, name)


def is_proxy(value: Any) -> bool:
    """Return whether an object is a proxy, whatever it says of itself."""
    return issubclass(type(value), Proxy)


def traced_value(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Proxy | None:
    """Return the first traced value among the arguments of a call, at any depth, None when there is none.

    The keys of dicts, the elements of sets and the fields of dataclasses are looked at, too: what a graph cannot hold
    is refused when the call is recorded.
    """
    for value in args:
        if isinstance(value, Proxy):
            return value
    for value in args:  # Where most of the others are.
        if type(value) in _SEQUENCES:
            for part in value:
                if isinstance(part, Proxy):
                    return part
    if PLAIN_TYPES.issuperset(map(type, args)) and PLAIN_TYPES.issuperset(map(type, kwargs.values())):
        return None
    for leaf in iterate_parts((args, kwargs)):
        if isinstance(leaf, Proxy):
            return leaf
    return None


_SEQUENCES = frozenset({list, tuple})


def _tracer_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ProxyFactory:
    proxy = traced_value(args, kwargs)
    if proxy is None:
        raise TraceError(
            "Cannot trace a call: none of its arguments is a traced value, though torch says that one is."
        )
    return proxy.tracer


def _record_assertion(proxy: Proxy, frame: FrameType) -> bool | None:
    """Record the assertion whose condition `proxy` stands for; None when `frame` asks for another reason."""
    assertion = find_assertion(frame.f_code, frame.f_lasti)
    if assertion is None:
        return None
    line = user_line()
    message = assertion.message
    if message is None:
        message = f"{line.text or 'assertion'} ({line})" if line is not None else "assertion"
    condition: Any = proxy
    if not assertion.passes_if:
        condition = proxy.tracer.create_proxy("call_function", operator.not_, (proxy,), {})
    proxy.tracer.create_proxy("call_function", assert_function, (condition, message), {})
    return assertion.passes_if


class TracerBase:
    """Turns what is done with proxies into nodes of a graph.

    `Tracer` captures whole programs; `GraphAppendingTracer` lets proxies made by hand write to a graph. A subclass
    with another purpose sets `graph` and overrides what it wants to do differently.
    """

    graph: Graph
    """The graph that is written to."""
    record_stack_traces: bool = True
    """Always so: every node of a trace knows its origin, and ``node.stack_trace`` is a view of it."""
    proxy_buffer_attributes: bool = True
    """Always so: what is done with buffers is part of the graph."""
    check_mutable_operations: bool = False
    """Whether a call of a function or method that changes one of its arguments is refused."""
    answers_assertions: bool = False
    """Whether a function of torch that checks a condition is told whether it holds, and makes no node."""
    trace_asserts: bool = False
    """Whether ``assert`` on a traced value is recorded instead of refused."""
    traced_func_name: str = "forward"
    """The method of a module that is traced."""
    keeps_sizes: bool = False
    """Whether a ``torch.Size`` stays one; where torch takes it, a tuple does as well."""

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        """Record one node; its arguments must be arguments of the graph already (see `create_arg`)."""
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        if self.check_mutable_operations:
            refuse_writes(node)
        return node

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
        proxy_factory_fn: Callable[[Node], Proxy] | None = None,
    ) -> Proxy:
        """Record one node from arguments that may hold proxies, and return the proxy that stands for it."""
        former = self.keeps_sizes
        self.keeps_sizes = former or tells_sizes_apart(kind, target)
        try:
            node_args = cast("tuple[Argument, ...]", self.create_arg(args))
            node_kwargs = cast("dict[str, Argument]", self.create_arg(kwargs))
        except RecursionError:
            refuse_cycles((args, kwargs))
            raise
        finally:
            self.keeps_sizes = former
        node = self.create_node(kind, target, node_args, node_kwargs, name, type_expr)
        return proxy_factory_fn(node) if proxy_factory_fn is not None else self.proxy(node)

    def proxy(self, node: Node) -> Proxy:
        """Return a new proxy that stands for `node`."""
        return Proxy(node, self)

    # -- arguments

    def create_arg(self, a: Any) -> Argument:
        """Turn a value of the program into an argument of the graph.

        Proxies become their nodes, tensors, parameters and modules become reads of the root, containers are
        converted element by element, a dataclass becomes a call of its class, plain values stay what they are. A
        value whose class has a method ``__fx_create_arg__(tracer)`` says itself what it becomes.

        Raises:
            TraceError: The value is of a kind that no graph can hold.
        """
        kind = type(a)
        if kind is Proxy:
            return a.node
        if kind in PLAIN_TYPES:
            return a
        if kind is list:
            return [self.create_arg(element) for element in a]
        if kind is tuple:
            return tuple([self.create_arg(element) for element in a])
        if isinstance(a, Proxy):
            return a.node
        if isinstance(a, torch.Tensor):
            return self._lift_tensor(a)
        if isinstance(a, nn.Module):
            return self.create_node("get_attr", self._path_of(a), (), {})
        if hasattr(kind, "__fx_create_arg__"):
            return a.__fx_create_arg__(self)
        converted = self._container(a, kind)
        if converted is not NotImplemented:
            return converted
        return self._foreign_argument(a)

    def _container(self, a: Any, kind: type) -> Argument:
        """Return the argument for a container, NotImplemented for anything else.

        One of a class of its own is made by a call, so that it is one when the graph runs.
        """
        if not isinstance(a, (tuple, list, dict)):
            return container_argument(a, self.create_arg)
        if kind is torch.Size and self.keeps_sizes:
            return self.create_node("call_function", kind, ([self.create_arg(size) for size in a],), {})
        named = constructor_arguments(a)
        if named is not None:
            given = {name: self.create_arg(part) for name, part in named.items()}
            return self.create_node("call_function", kind, (), given)
        parts = own_container(a)
        if parts is None:
            return container_argument(a, self.create_arg)
        return self.create_node("call_function", kind, tuple([self.create_arg(part) for part in parts]), {})

    def create_index(self, key: Any) -> Any:
        """Return an index with tensors in place of arrays of NumPy; the index itself if it has none."""
        return as_index(key)

    def _foreign_argument(self, a: Any) -> Argument:
        """Return the argument for a value that is neither plain nor a container of others."""
        if is_exact_number(a):
            return a.item()
        apart = attributes_apart(a)
        if apart is not None:
            held = {name: self.create_arg(part) for name, part in apart.items()}
            return self.create_node("call_function", object_with, (type(a),), held)
        parts = constructor_arguments(a)
        if parts is not None:
            named = {name: self.create_arg(part) for name, part in parts.items()}
            return self.create_node("call_function", type(a), (), named)
        if is_constant(a) or is_plain_subclass(a):
            return original_of(a)
        where = self._where()
        remedy = (
            "Return tensors and plain values (models of transformers do with use_cache=False), or tell torch its parts "
            "(torch.utils._pytree.register_pytree_node)."
            if where == AS_A_RESULT
            else "Convert it to tensors and plain values, or teach fxplug the type with the hook "
            "fxplug_create_argument."
        )
        raise TraceError(
            f"Cannot record a value of type {type(a).__module__}.{type(a).__qualname__} {where}. {remedy}",
            code="FXP-T006",
        )

    def _where(self) -> str:
        return f"as an argument at {user_line()}"

    def _lift_tensor(self, tensor: torch.Tensor) -> Node:
        """Record a read of the root that gives `tensor`, of a constant where the root does not hold it."""
        owner = self.graph.owning_module
        for known in (owner.named_parameters, owner.named_buffers) if isinstance(owner, nn.Module) else ():
            for path, value in known(remove_duplicate=False):
                if value is tensor:
                    return self.create_node("get_attr", path, (), {})
        return self._lift(tensor, "_tensor_constant")

    def _lift(self, value: Any, prefix: str) -> Node:
        path = self.get_fresh_qualname(prefix)
        self.graph.lifted[path] = value
        owner = self.graph.owning_module
        if isinstance(owner, nn.Module):
            # It took in what its graph needs when it was made; this came later.
            set_path(owner, path, value, persistent=False)
        return self.create_node("get_attr", path, (), {})

    def _path_of(self, module: nn.Module) -> str:
        owner = self.graph.owning_module
        if isinstance(owner, nn.Module):
            for path, known in owner.named_modules():
                if known is module:
                    return path
        raise TraceError(
            f"Cannot record a use of {type(module).__name__}{place_in_program()}: the module is no part of the module "
            "that the graph belongs to. Put it there first (graph_module.add_submodule(...)).",
            code="FXP-T007",
        )

    def get_fresh_qualname(self, prefix: str) -> str:
        """Return `prefix` with the first number that makes it a name which neither root nor graph has yet."""
        holder = self._holder()
        numbers: dict[str, int] = vars(self).setdefault("_fresh_numbers", {})
        number = numbers.get(prefix, 0)
        while f"{prefix}{number}" in self.graph.lifted or hasattr(holder, f"{prefix}{number}"):
            number += 1
        numbers[prefix] = number
        return f"{prefix}{number}"

    def _holder(self) -> Any:
        return self.graph.owning_module

    # -- questions that need a value

    problems: list[TraceError] | None = None
    """Where to keep questions that cannot be answered, for a trace that goes on to find them all; its graph is of no
    use then."""

    def to_bool(self, obj: Proxy) -> bool:
        """Answer whether a value is true. By default: it is not known."""
        return self._guessed(no_condition(obj), guess=False)

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """Answer a request to iterate. By default: it is not known how many elements there are."""
        return iter(self._guessed(no_iteration(obj), guess=(obj[0], obj[1])))

    def unpack(self, obj: Proxy, count: int) -> None:
        """Hear that a value is about to be unpacked into a number of names. By default it has so many parts."""

    def _guessed(self, error: TraceError, *, guess: Any) -> Any:
        """Raise an error, or keep it and go on with a guess."""
        if self.problems is None or len(self.problems) >= _MOST_PROBLEMS:
            raise error
        self.problems.append(error)
        return guess

    def keys(self, obj: Proxy) -> Any:
        """Answer a request for keys by recording it."""
        return Attribute(obj, "keys")()

    def note_read(self, read: Attribute) -> None:
        """Hear that an attribute was read that is no method of tensors. By default it is recorded where it is used."""

    def use_read(self, read: Attribute) -> None:
        """Hear that an attribute is about to be recorded."""

    def note_kept(self, function: Any) -> None:
        """Hear that a call of a function was recorded that stays one."""

    def tell(self, obj: Proxy, name: str) -> Any:
        """Return what an attribute says, a dtype or a device. By default it is not known, and None."""
        return None


_MOST_PROBLEMS = 100
"""A loop whose condition is guessed must end."""


class GraphAppendingTracer(TracerBase):
    """Lets proxies made by hand write to a graph, at its insertion point.

    Args:
        graph: The graph.

    Example:
        A rule written with operators on proxies, applied to a node::

            tracer = GraphAppendingTracer(graph)
            with graph.inserting_before(node):
                clipped = Proxy(node.args[0], tracer).clamp(min=0)
            node.replace_all_uses_with(clipped.node)
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.scope = Scope("", None)
        """No module: nodes made by hand belong to none."""
        self.module_stack: OrderedDict[str, tuple[str, Any]] = OrderedDict()
        """Always empty, for the same reason."""
        self.node_name_to_scope: dict[str, tuple[str, Any]] = {}
        """Always empty, for the same reason."""


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


def _power(self: Proxy, other: Any, modulo: Any = None) -> Any:
    if modulo is None:
        return self.tracer.create_proxy("call_function", operator.pow, (self, other), {})
    return self.tracer.create_proxy("call_function", pow, (self, other, modulo), {})


def _reflected(function: Any) -> Callable[[Proxy, Any], Any]:
    def method(self: Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (other, self), {})

    return method


def _unary(function: Any) -> Callable[[Proxy], Any]:
    def method(self: Proxy) -> Any:
        return self.tracer.create_proxy("call_function", function, (self,), {})

    return method


def _compared_attribute(name: str) -> Callable[[Proxy], Any]:
    def read(self: Proxy) -> Any:
        if name == "dtype" and (told := self.tracer.tell(self, name)) is not None:
            return told
        check_compared_attribute(self, name, sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        attribute = Attribute(self, name)
        self.tracer.note_read(attribute)
        return attribute

    return read


def _let_patterns_ask() -> None:
    """Make Python ask a proxy for its length when it is compared with a pattern such as ``[a, b]``.

    Python marks the classes that it asks when they are registered as sequences, and the mark stays when the class that
    they were registered with is gone: a proxy is no instance of ``collections.abc.Sequence`` then.
    """
    is_enabled = gc.isenabled()
    gc.disable()  # What is made and dropped at once stays among what is looked at first.

    class Marker(abc.Sequence[Any]):
        """Dropped at once."""

    cast("Any", Marker).register(Proxy)
    del Marker
    gc.collect(0)
    if issubclass(Proxy, abc.Sequence):
        gc.collect()
    if is_enabled:
        gc.enable()


def _install_operators() -> None:
    for name in _BINARY:
        setattr(Proxy, f"__{name}__", _power if name == "pow" else _forward(_operator(name)))
        setattr(Proxy, f"__r{name}__", _reflected(_operator(name)))
        setattr(Proxy, f"__i{name}__", _forward(getattr(operator, f"i{name}")))
    for name in _COMPARISONS:
        setattr(Proxy, f"__{name}__", _forward(_operator(name)))
    for name in _UNARY:
        setattr(Proxy, f"__{name}__", _unary(_operator(name)))
    for name in COMPARED_ATTRIBUTES:
        setattr(Proxy, name, property(_compared_attribute(name)))


_install_operators()
_let_patterns_ask()
