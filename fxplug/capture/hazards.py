"""Questions that no traced value hears, found in the bytecode of the functions that a trace enters.

``mask is None`` asks nothing of ``mask``: Python compares two addresses. Where a function compares one of its
parameters so, with a constant or with another value, it is looked at with what it is called; what the comparison hangs
on is then known to be a traced value, or not. ``type(x)``, ``callable(x)`` and ``id(x)`` ask nothing of ``x`` either;
whether a function calls them is all that is found out here.
"""

from __future__ import annotations

import inspect
import weakref
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch.nn.modules.container
from torch import nn

from fxplug.capture.caches import CACHED
from fxplug.capture.containers import PLAIN, is_object
from fxplug.capture.identity import Pair, Test, pairs_in, tests_in
from fxplug.capture.sources import is_standard, passes_calls_on
from fxplug.semantics.internals import every_module, modules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from fxplug.capture.caches import Caches

__all__ = ["ASKED_BY_NAME", "Scan", "arguments_under_test", "reachable", "scan_of", "values_by_name"]

_FILE_OF_CONTAINERS = torch.nn.modules.container.__file__
"""Where all that is done with what a module is called with is to hand it on."""
ASKED_BY_NAME = frozenset({"callable", "getattr", "hasattr", "id", "type"})
"""Functions of Python whose calls no traced value hears."""


@dataclass(frozen=True)
class Scan:
    """What the bytecode of a function says."""

    names: frozenset[str]
    """The names of globals and attributes that it, or a function in it, uses."""
    asks: frozenset[str]
    """Those of `ASKED_BY_NAME` among them."""
    tests: Mapping[str, Test]
    """Parameter -> the comparison of it with a constant."""
    pairs: tuple[Pair, ...]
    """The comparisons of parameters with other values."""


_scans: dict[int, tuple[weakref.ref[CodeType], Scan]] = {}
"""By id, because code compares and hashes by all that it holds."""


def scan_of(code: CodeType) -> Scan:
    """Return what the bytecode of a function says; it is read once."""
    key = id(code)
    known = _scans.get(key)
    if known is None:
        inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        names = frozenset(code.co_names).union(*(scan_of(part).names for part in inner))
        scan = Scan(names, names & ASKED_BY_NAME, tests_in(code), pairs_in(code))
        known = _scans[key] = (weakref.ref(code, lambda _: _scans.pop(key, None)), scan)
    return known[1]


def arguments_under_test(
    function: FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Any, str, Test]]:
    """Yield each value that a function is called with and compares, the name of its parameter, and the comparison."""
    tests = scan_of(function.__code__).tests
    for name, value in values_by_name(function, args, kwargs):
        if name in tests:
            yield value, name, tests[name]


def values_by_name(
    function: FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that a call gives a value, with their values, those behind stars left out."""
    code = function.__code__
    yield from zip(code.co_varnames[: code.co_argcount], args, strict=False)
    yield from kwargs.items()


# -- what a function can reach


def reachable(
    function: Callable[..., Any],
    receiver: Any,
    seen: dict[int, Any],
    body_of: Callable[[Any], Any],
    caches: Caches,
) -> Iterator[tuple[FunctionType, Any, Scan]]:
    """Yield a function of a program, and those that it may call by a name that its module, object or closure has.

    With each comes the object whose method it is, None for a function.

    Args:
        function: A function or bound method.
        receiver: The object whose method it is; None for a function.
        seen: Id -> function, of those that are known; those that are found are added.
        body_of: Returns a function with its own code for one whose code is exchanged.
        caches: Told of functions whose results are kept (``functools.lru_cache``).
    """
    waiting: list[tuple[Any, Any]] = [(_plain(function), receiver)]
    while waiting:
        current, owner = waiting.pop()
        if isinstance(current, CACHED):
            current = caches.add(current)
        if not isinstance(current, FunctionType) or id(current) in seen:
            continue
        seen[id(current)] = current
        code = body_of(current).__code__
        if _is_foreign(code.co_filename):
            # One that only passes calls on: ``contextlib.contextmanager`` keeps what it is about in a closure.
            waiting.extend((value, owner) for value in _closed_over(current))
            continue
        scan = scan_of(code)
        yield current, owner, scan
        waiting.extend((value, owner) for value in _closed_over(current))
        for value in _found_by(current, scan.names):
            if type(value) not in PLAIN:
                waiting.extend(_called_through(value, scan.names))
        # A function without an object of its own may be given this one.
        held_by = receiver if owner is None else owner
        if held_by is not None:
            waiting.extend(_methods(held_by, scan.names))


def _plain(value: Any) -> Any:
    """Return the function behind a method, or behind what makes one in a class."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, (MethodType, staticmethod, classmethod)) else value


def _closed_over(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # It has no value yet.
            continue


def _is_foreign(filename: str) -> bool:
    """Return whether code is of fxplug, of torch beneath its modules or in its containers, or of Python itself."""
    return passes_calls_on(filename) or is_standard(filename) or filename == _FILE_OF_CONTAINERS


def _found_by(function: FunctionType, names: frozenset[str]) -> Iterator[Any]:
    """Yield what a function finds among globals, in its closure, and in its defaults."""
    namespace = function.__globals__
    for name in namespace.keys() & names:
        yield namespace.get(name)
    if function.__closure__:
        yield from (value for value in _closed_over(function) if not isinstance(value, type))
    if function.__defaults__:
        yield from function.__defaults__
    if function.__kwdefaults__:
        yield from function.__kwdefaults__.values()


def _called_through(value: Any, names: frozenset[str]) -> Iterator[tuple[Any, Any]]:
    """Yield the functions that are called where something is called that a function finds, with their objects."""
    if isinstance(value, _FUNCTIONS):
        yield value, None
    elif isinstance(value, ModuleType):
        if not str(value.__name__).startswith(_LIBRARIES):
            held = vars(value)
            yield from ((held[name], None) for name in held.keys() & names)
    elif isinstance(value, type):
        if not value.__module__.startswith(_LIBRARIES):
            held = vars(value)
            yield from ((_plain(held[name]), None) for name in (*names, *_IMPLIED) if name in held)
    else:
        yield from _called_through_object(value, names)


def _called_through_object(value: Any, names: frozenset[str]) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, MethodType):
        yield value.__func__, value.__self__
    elif isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield _plain(part), getattr(part, "__self__", None)
    elif isinstance(value, _CONTAINERS):
        yield from _called_in(value, names, _DEEPEST)
    elif is_object(value):
        wanted = names | _BY_OPERATORS
        for base in type(value).__mro__[:-1]:
            held = vars(base)
            yield from ((_plain(held[name]), value) for name in held.keys() & wanted)


def _called_in(container: Any, names: frozenset[str], steps: int) -> Iterator[tuple[Any, Any]]:
    """Yield the functions in a container, and those methods of the objects in it that have one of some names."""
    kinds: set[type] = set()
    for part in _parts_of(container):
        kind = type(part)
        if isinstance(part, (*_FUNCTIONS, MethodType)):
            yield _plain(part), getattr(part, "__self__", None)
        elif isinstance(part, _CONTAINERS) and steps:
            yield from _called_in(part, names, steps - 1)
        elif kind not in kinds:
            kinds.add(kind)
            if not kind.__module__.startswith(_LIBRARIES):
                yield from _methods_of(part, names)


def _parts_of(container: Any) -> Collection[Any]:
    if isinstance(container, nn.Module):
        parts: Collection[Any] = modules_of(container).values()
    else:
        parts = cast("dict[Any, Any]", container).values() if isinstance(container, dict) else container
    return parts if len(parts) <= _MOST else ()


def _methods_of(value: Any, names: frozenset[str]) -> Iterator[tuple[Any, Any]]:
    """Yield the methods of an object that have one of some names; all, where names are worked out (``getattr``)."""
    is_any = "getattr" in names and type(value) is not type
    for base in inspect.getmro(type(value))[:-1]:
        if base is nn.Module:
            break
        held: Mapping[str, Any] = vars(base)
        wanted = held.keys() - _NEVER_ASKED_FOR if is_any else held.keys() & {"__call__", *names}
        yield from ((_plain(held[name]), value) for name in wanted)


_FUNCTIONS = (FunctionType, CACHED)
_CONTAINERS = (dict, list, tuple, nn.ModuleList, nn.ModuleDict, nn.Sequential)
_DEEPEST = 2
_MOST = 100
"""Functions are looked for in containers of at most so many elements, and so many of them in one another."""
_WALKS = frozenset({"_modules", "children", "get_submodule", "modules", "named_children", "named_modules"})
"""Names by which code finds modules that it does not name."""
_NEVER_ASKED_FOR = frozenset({"__init__", "__new__", "__del__", "__repr__", "extra_repr"})
_BY_OPERATORS = frozenset(
    {
        *(
            "__add__",
            "__bool__",
            "__call__",
            "__contains__",
            "__enter__",
            "__exit__",
            "__float__",
            "__format__",
        ),
        *(
            "__getattr__",
            "__getitem__",
            "__iadd__",
            "__index__",
            "__int__",
            "__iter__",
            "__len__",
            "__missing__",
        ),
        *("__mul__", "__next__", "__radd__", "__rmul__", "__setitem__", "__str__"),
    }
)
"""Methods of objects that are called without being named."""
_LIBRARIES = ("builtins", "fxplug", "numpy", "torch")
_IMPLIED = ("__call__", "__enter__", "__exit__", "__init__", "forward")
"""Methods that are called without being named."""


def _methods(owner: Any, names: frozenset[str]) -> Iterator[tuple[Any, Any]]:
    """Yield the functions with one of some names that an object has, or that the objects in its attributes have."""
    wanted = names if isinstance(owner, nn.Module) else names | _BY_OPERATORS
    for base in type(owner).__mro__:
        if base is nn.Module or base is object:
            break
        held = vars(base)
        for name in held.keys() & wanted:
            yield _plain(held[name]), owner
    if isinstance(owner, nn.Module) and not names.isdisjoint(_WALKS):
        # Any module below may come by, and have its methods called.
        yield from _called_in(list({type(part): part for part in every_module(owner)}.values()), names, 0)
    own: Mapping[str, Any] = getattr(owner, "__dict__", {})
    modules: Mapping[str, Any] = own.get("_modules", {})
    kinds: dict[type, bool] = {}  # Many attributes are of few classes.
    for name in {*(own.keys() & names), *(modules.keys() & names)}:
        value = own.get(name, modules.get(name))
        kind = type(value)
        is_foreign = kinds.get(kind)
        if is_foreign is None:
            is_foreign = kinds[kind] = value is None or kind.__module__.startswith(_LIBRARIES)
        if isinstance(value, (FunctionType, MethodType)):
            yield _plain(value), getattr(value, "__self__", None)
            continue
        if not is_foreign:
            yield from _methods_of(value, names)
        if isinstance(value, _CONTAINERS):
            yield from _called_in(value, names, _DEEPEST)
