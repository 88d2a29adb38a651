"""Questions that no traced value hears, found in the bytecode of the functions that a trace enters.

``mask is None`` asks nothing of ``mask``: Python compares two addresses. Where a function compares one of its
parameters so, with a constant or with another value, it is looked at with what it is called; what the comparison hangs
on is then known to be a traced value, or not. ``type(x)``, ``callable(x)`` and ``id(x)`` ask nothing of ``x`` either;
whether a function calls them is all that is found out here.
"""

from __future__ import annotations

import dis
import inspect
import weakref
from collections import ChainMap, UserDict, UserList, deque
from dataclasses import dataclass, replace
from functools import partial, singledispatchmethod
from itertools import islice
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch.nn.modules.container
import torch.nn.utils.rnn
from torch import nn

from fxplug.capture.attributes import attribute_of, can_be_asked
from fxplug.capture.bytecode import globals_read, read_once
from fxplug.capture.caches import CACHED
from fxplug.capture.containers import (
    PLAIN,
    attributes_and_slots,
    elements_of,
    is_foreign,
    is_object,
    is_of_library,
)
from fxplug.capture.identity import Comparison, Pair, Test, comparisons_in, pairs_in, tests_in, tests_values
from fxplug.capture.reached import calls_forwards, function_behind
from fxplug.capture.sources import is_of_other_library, is_standard, passes_calls_on
from fxplug.capture.texts import names_in_getters, names_in_texts
from fxplug.capture.unseen import finds_unseen
from fxplug.semantics.internals import every_module, modules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from fxplug.capture.sessions import Session

__all__ = [
    "ASKED_BY_NAME",
    "FILE_OF_CONTAINERS",
    "OF_SEQUENCES",
    "Scan",
    "arguments_under_test",
    "leads_astray",
    "reachable",
    "scan_of",
    "values_by_name",
]

FILE_OF_CONTAINERS = torch.nn.modules.container.__file__
"""Where all that is done with what a module is called with is to hand it on."""
_FILE_OF_SEQUENCES = torch.nn.utils.rnn.__file__
OF_SEQUENCES = {
    name: value
    for name, value in vars(torch.nn.utils.rnn).items()
    if isinstance(value, FunctionType) and value.__code__.co_filename == _FILE_OF_SEQUENCES
}
ASKED_BY_NAME = frozenset({"callable", "getattr", "hasattr", "id", "type"})
"""Functions of Python whose calls no traced value hears."""
_HEARD_BY_NAME = ASKED_BY_NAME | {"len"}
"""Those to be heard of by their names: where a tensor answers, Python takes nothing for its length but a number."""


@dataclass(frozen=True)
class Scan:
    """What the bytecode of a function says."""

    names: frozenset[str]
    """The names of globals and attributes that it, or a function in it, uses, by texts too."""
    globals: frozenset[str]
    """Those that may be of globals; an attribute of the same name says nothing of a global."""
    asks: frozenset[str]
    """Those of `ASKED_BY_NAME` among them, and ``len``."""
    tests: Mapping[str, Test]
    """Parameter -> the comparison of it with a constant."""
    pairs: tuple[Pair, ...]
    """The comparisons of parameters with other values."""
    comparisons: tuple[Comparison, ...]
    """The comparisons of any two values."""
    tests_values: bool
    """Whether it compares anything with a constant other than None by identity."""
    forwards: bool
    """Whether it, or a function in it, calls the forward of something that it finds."""
    codes: frozenset[int]
    """The ids of its code and of that of the functions in it."""
    is_blind: bool
    """Whether it looks for functions in ways that cannot be followed."""


@read_once
def scan_of(code: CodeType) -> Scan:
    """Return what the bytecode of a function says."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    own = names_in_texts(code).union(code.co_names)
    names = own.union(*(scan_of(part).names for part in inner))
    found = _globals_in(code, names).union(*(scan_of(part).globals for part in inner))
    forwards = calls_forwards(code) or any(scan_of(part).forwards for part in inner)
    asks = names & _HEARD_BY_NAME
    codes = frozenset((id(code),)).union(*(scan_of(part).codes for part in inner))
    is_blind = finds_unseen(code, names)
    compared = tests_in(code), pairs_in(code), comparisons_in(code), tests_values(code)
    return Scan(names, found, asks, *compared, forwards, codes, is_blind)


def _globals_in(code: CodeType, names: frozenset[str]) -> frozenset[str]:
    """Return those of the names in a function, and in those inside of it, that may be of globals.

    One that gets hold of a module of Python by itself may mean its own, whose attributes are its globals.
    """
    finds_modules = not names.isdisjoint(_IMPORTING) or names >= _LOADED or _IMPORT in code.co_code[::2]
    return names if finds_modules else frozenset(globals_read(code) | names_in_texts(code))


_IMPORT = dis.opmap["IMPORT_NAME"]
_IMPORTING = frozenset({"__import__", "import_module"})
_LOADED = frozenset({"sys", "modules"})


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


def leads_astray(function: FunctionType, owner: Any, names: frozenset[str]) -> bool:
    """Return whether a function finds something in which others may be that is not looked into.

    Args:
        function: The function.
        owner: The object whose method it is; None for a function.
        names: Those of globals and attributes that it uses.
    """
    found = [*_found_by(function, names), *_held_under(owner, names)]
    held = [
        part
        for value in found
        if is_object(value) and type(value) not in _OPAQUE
        for part in _held_under(value, names)
    ]
    seen: set[int] = set()
    return any(_is_opaque(value, _DEEPEST, seen) for value in (*found, *held) if type(value) not in PLAIN)


def _is_opaque(value: Any, steps: int, seen: set[int]) -> bool:
    """Return whether functions may be in something, and are not looked for there; of each value at most once."""
    kind = type(value)
    if issubclass(kind, _OPAQUE):
        return True
    if id(value) in seen or not issubclass(kind, _PLAIN_CONTAINERS):
        return False
    seen.add(id(value))
    parts = elements_of(value)
    if len(parts) > _MOST or len(seen) > _MOST * 10:
        return any(type(part) not in PLAIN for part in islice(parts, _MOST * 10))
    inner = [part for part in parts if issubclass(type(part), (*_PLAIN_CONTAINERS, *_OPAQUE))]
    return bool(inner) and (steps == 0 or any(_is_opaque(part, steps - 1, seen) for part in inner))


# -- what a function can reach


def reachable(
    function: Callable[..., Any],
    receiver: Any,
    session: Session,
    body_of: Callable[[Any], Any],
) -> Iterator[tuple[FunctionType, Any, Scan]]:
    """Yield a function of a program, and those that it may call by a name that its module, object or closure has.

    With each comes the object whose method it is, None for a function.

    Args:
        function: A function or bound method.
        receiver: The object whose method it is; None for a function.
        session: Knows those that were found before, with an object that leads to the same ones; those that are found
            are added. Told of functions whose results are kept (``functools.lru_cache``).
        body_of: Returns a function with its own code for one whose code is exchanged.
    """
    seen, alike = session.reached, session.likenesses.of
    waiting: list[tuple[Any, Any]] = [(function_behind(function), receiver)]
    while waiting:
        current, owner = waiting.pop()
        if isinstance(current, CACHED):
            current = session.caches.add(current)
        if not isinstance(current, FunctionType):
            continue
        # A function without an object of its own may be given this one.
        held_by = receiver if owner is None else owner
        key = id(current), 0 if held_by is None else alike(held_by)
        if key in seen:
            continue
        seen[key] = current
        code = body_of(current).__code__
        if f"{current.__module__}.".startswith(_NOT_OF_PROGRAMS):
            continue
        if _is_foreign(code.co_filename):
            # One that only passes calls on: ``contextlib.contextmanager`` keeps what it is about in a closure.
            waiting.extend((value, owner) for value in _closed_over(current))
            waiting.extend((value, owner) for value in _registered_with(current))
            continue
        scan = scan_of(code)
        found = [
            value
            for value in _found_by(current, scan.globals)
            if type(value) not in PLAIN and can_be_asked(value)
        ]
        named = names_in_getters([*found, *_held_under(held_by, scan.names)])
        if named:
            scan = replace(scan, names=scan.names | named)
        is_deferred = _is_deferred(current, code, session)
        yield current, owner, scan
        if is_deferred:
            waiting = [entry for entry in waiting if not _is_of_other_library(entry[0])]
        waiting.extend((value, owner) for value in _closed_over(current))
        if is_deferred:
            continue
        waiting.extend(_led_to(found, held_by, scan, alike))
        waiting.extend(_named_elsewhere(found, session, scan.names))


def _is_deferred(function: FunctionType, code: CodeType, session: Session) -> bool:
    """Return whether what a function leads to is to be looked at when it is called, and not before.

    The model classes of some libraries lead to everything in these, and in the libraries that they use.
    """
    if not is_of_other_library(code.co_filename, function.__globals__):
        return False
    session.libraries += 1
    session.defers = session.defers or session.libraries > _MOST_OF_LIBRARIES
    return session.defers


def _is_of_other_library(value: Any) -> bool:
    return isinstance(value, FunctionType) and is_of_other_library(
        value.__code__.co_filename, value.__globals__
    )


def _named_elsewhere(found: list[Any], session: Session, names: frozenset[str]) -> Iterator[tuple[Any, Any]]:
    """Yield what a function names, of what others have found; and what others name, of what it finds."""
    likenesses, methods = session.likenesses, session.methods
    for value in found:
        likenesses.of(value)
    new = deque([methods.name(names)])  # A graph of objects may bring thousands.
    seen: dict[int, int] = {}
    while new:
        new += [methods.add_class(kind, owner) for kind, owner in likenesses.classes]
        new += [methods.add(name, value, None) for name, value in likenesses.held]
        likenesses.classes.clear()
        likenesses.held.clear()
        for value, owner in new.popleft():
            if not can_be_asked(value):
                continue
            if isinstance(value, _CONTAINERS):
                yield from _called_in(value, names, likenesses.of, _DEEPEST, seen)
            elif isinstance(value, (MethodType, partial)):
                yield from _called_through_object(value, names, likenesses.of)
            elif is_object(value):
                yield from methods.implied(type(value), value, _implied_by)
            else:
                yield from _behind(value, owner)


def _led_to(found: list[Any], held_by: Any, scan: Scan, alike: _Alike) -> Iterator[tuple[Any, Any]]:
    """Yield what may be called through what a function has found, and through the object that it was given."""
    for value in found:
        yield from _called_through(value, scan.names, alike)
    if held_by is not None:
        yield from _methods(held_by, scan.names, alike, _DEEPEST, {id(held_by): _DEEPEST})
        if scan.forwards:
            yield from _forwards_of(held_by, scan.names)


def _behind(value: Any, owner: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the functions that an attribute of the class of an object stands for, with the objects that they get."""
    if isinstance(value, property):
        yield from ((part, owner) for part in (value.fget, value.fset, value.fdel) if part is not None)
        return
    if isinstance(value, singledispatchmethod):
        registered = _registered_with(cast("Any", value).dispatcher)
        yield from ((function_behind(part), owner) for part in registered)
        return
    found = function_behind(value)
    yield found, owner
    kind = type(found)
    # What works like a property, of the program's own.
    if kind not in _OFTEN_IN_CLASSES and hasattr(kind, "__get__"):
        held = vars(kind)
        yield from ((held[name], found) for name in ("__get__", "__set__") if name in held)


def _registered_with(function: Any) -> Iterable[Any]:
    """Return the functions among which one made by `functools.singledispatch` chooses; nothing for any other one."""
    registry = attribute_of(function, "registry")
    return registry.values() if isinstance(registry, MappingProxyType) else ()


def _closed_over(function: FunctionType) -> Iterator[Any]:
    return (value for value in _cells_of(function) if value is not None)


def _cells_of(function: FunctionType) -> Iterator[Any]:
    """Yield what a function closes over; None where that has no value yet."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield None


def _is_foreign(filename: str) -> bool:
    """Return whether code is of fxplug, of torch beneath its modules or in its containers, or of Python itself.

    What packs sequences is looked through as programs are: it asks its arguments, and torch tells nobody of its calls.
    """
    if filename == _FILE_OF_SEQUENCES:
        return False
    return passes_calls_on(filename) or is_standard(filename) or filename == FILE_OF_CONTAINERS


def _found_by(function: FunctionType, names: frozenset[str]) -> Iterator[Any]:
    """Yield what a function finds among globals, by their names, in its closure, and in its defaults."""
    namespace = function.__globals__
    for name in namespace.keys() & names:
        yield namespace.get(name)
    if function.__closure__:
        # The class itself, for the sake of ``super``, is in the closures of its methods.
        cells = zip(function.__code__.co_freevars, _cells_of(function), strict=True)
        yield from (value for name, value in cells if name != "__class__")
    if function.__defaults__:
        yield from function.__defaults__
    if function.__kwdefaults__:
        yield from function.__kwdefaults__.values()


def _called_through(value: Any, names: frozenset[str], alike: _Alike) -> Iterator[tuple[Any, Any]]:
    """Yield the functions that are called where something is called that a function finds, with their objects."""
    if isinstance(value, _FUNCTIONS):
        yield value, None
    elif isinstance(value, ModuleType):
        if not is_of_library(str(value.__name__)):
            yield from _called_in_module(value, names, alike, frozenset())
        elif not names.isdisjoint(OF_SEQUENCES):
            yield from ((OF_SEQUENCES[name], None) for name in OF_SEQUENCES.keys() & names)
    elif isinstance(value, type):
        yield from _called_through_class(value, names)
    else:
        yield from _called_through_object(value, names, alike)


def _called_in_module(
    module: ModuleType, names: frozenset[str], alike: _Alike, around: frozenset[int]
) -> Iterator[tuple[Any, Any]]:
    """Yield what is called through the values that a module of Python, or one in it, has under some names."""
    held, is_pythons = vars(module), is_foreign(str(module.__name__))
    around |= {id(module)}
    for name in held.keys() & names:
        value = held.get(name)  # Another trace may take its stand-in away meanwhile.
        if is_pythons:
            yield value, None
        elif isinstance(value, ModuleType):
            if id(value) not in around and not is_of_library(str(value.__name__)):
                yield from _called_in_module(value, names, alike, around)
        elif type(value) not in PLAIN:
            alike(value)
            yield from _called_through(value, names, alike)


def _called_through_class(kind: type, names: frozenset[str]) -> Iterator[tuple[Any, Any]]:
    """Yield the functions that make an object of a class, and those that are called where it is used as objects are."""
    for base in kind.__mro__:
        if is_of_library(base.__module__):
            continue
        for _, value in _named_in(base, names | _RUN_BY_CLASSES):
            yield from _behind(value, None)
    # What stands behind the call of a class, and what else is done with one; most classes leave that to Python.
    for base in inspect.getmro(type(kind)):
        if base is type:
            break
        for name, value in _named_in(base, names):
            if name not in _MAKING:
                yield from _behind(value, kind)


def _called_through_object(value: Any, names: frozenset[str], alike: _Alike) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, MethodType):
        yield value.__func__, value.__self__
    elif isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            if isinstance(part, type):
                yield from _called_through_class(part, names)
            else:
                yield function_behind(part), getattr(part, "__self__", None)
    elif isinstance(value, _CONTAINERS):
        yield from _called_in(value, names, alike, _DEEPEST, {})
        if not isinstance(value, nn.Module) and not is_of_library(type(value).__module__):
            yield from _implied_by(type(value), value)  # Such as ``__missing__``.
    elif is_object(value):
        yield from _methods(value, names, alike, _DEEPEST, {id(value): _DEEPEST})


def _called_in(
    container: Any, names: frozenset[str], alike: _Alike, steps: int, seen: dict[int, int]
) -> Iterator[tuple[Any, Any]]:
    """Yield the functions in a container, and those methods of the objects in it that have one of some names."""
    kinds: set[int] = set()
    for part in _parts_of(container):
        if type(part) in PLAIN or not can_be_asked(part):
            continue
        if isinstance(part, _FUNCTIONS):
            yield part, None
        elif isinstance(part, (MethodType, partial)):
            yield from _called_through_object(part, names, alike)
        elif isinstance(part, type):
            yield from _called_through_class(part, names)
        elif isinstance(part, _CONTAINERS) and steps:
            yield from _called_in(part, names, alike, steps - 1, seen)
        elif not is_of_library(type(part).__module__) and (number := alike(part)) not in kinds:
            kinds.add(number)
            yield from _methods_of(part, names, alike, steps, seen)


def _parts_of(container: Any) -> Collection[Any]:
    if isinstance(container, nn.Module):
        parts: Collection[Any] = modules_of(container).values()
    else:
        parts = elements_of(container)
    return parts if len(parts) <= _MOST else ()


def _methods_of(
    value: Any, names: frozenset[str], alike: _Alike, steps: int, seen: dict[int, int]
) -> Iterator[tuple[Any, Any]]:
    """Yield the methods of an object that have one of some names; all, where names are worked out (``getattr``).

    So do those of the objects in it, at some depth.
    """
    # Once more only from nearer by, from where one sees further.
    if seen.get(id(value), -1) >= steps:
        return
    seen[id(value)] = steps
    is_any = "getattr" in names and type(value) is not type
    for base in inspect.getmro(type(value))[:-1] if is_any else ():
        if base is nn.Module:
            break
        held: Mapping[str, Any] = vars(base)
        for name in held.keys() - _NEVER_ASKED_FOR:
            yield from _behind(held[name], value)
    yield from _methods(value, names, alike, steps, seen)


_NOT_OF_PROGRAMS = ("sympy.", "mpmath.", "_pytest.")
"""Libraries of thousands of functions that call one another: with the first ones, which come with it, torch computes
with sizes; the last one is what pytest makes of an ``assert``, and leads to all tests."""
_FUNCTIONS = (FunctionType, CACHED)
_CONTAINERS = (
    *(dict, list, tuple, set, frozenset, deque, MappingProxyType),
    *(nn.ModuleList, nn.ModuleDict, nn.Sequential),
)
_PLAIN_CONTAINERS = (dict, list, tuple, set, frozenset, deque, MappingProxyType)
_OPAQUE = (
    *(weakref.ref, weakref.ProxyType, weakref.CallableProxyType, weakref.WeakMethod),
    *(weakref.WeakKeyDictionary, weakref.WeakSet, weakref.WeakValueDictionary),
    *(ChainMap, UserDict, UserList),
)
"""Classes of what leads to other objects, and is not looked into for functions."""
_DEEPEST = 4
_MOST = 100
"""Functions are looked for in containers of at most so many elements, and so many of them in one another."""
_MOST_OF_LIBRARIES = 64
"""So many functions of installed libraries are looked at before they are called."""
_WALKS = frozenset({"_modules", "children", "get_submodule", "modules", "named_children", "named_modules"})
"""Names by which code finds modules that it does not name."""
_MAKING = frozenset({"__init__", "__init_subclass__", "__new__", "__post_init__", "__set_name__"})
"""Methods that run where an object or a class is made: for those that are there already, they have."""
_RUN_BY_CLASSES = frozenset({"__init__", "__new__", "forward"})
"""Methods that run where a class is called, or soon behind."""
_NEVER_ASKED_FOR = frozenset({"__init__", "__new__", "__del__", "__repr__", "extra_repr"})
_Alike: TypeAlias = "Callable[[Any], int]"
"""Returns one number for objects through which code finds the same functions."""
_OFTEN_IN_CLASSES = frozenset({FunctionType, type, *PLAIN, tuple, list, dict})


_implied: weakref.WeakKeyDictionary[type, tuple[int, list[str]]] = weakref.WeakKeyDictionary()
"""Class -> how much it holds, and the names of those of its methods that are called without being named."""


def _implied_in(base: type) -> list[str]:
    """Return the names of methods that are called without being named: by operators, ``with``, loops, formatting."""
    held = vars(base)
    known = _implied.get(base)
    if known is None or known[0] != len(held):
        names = [name for name in held if name[:2] == "__" == name[-2:] and name not in _NEVER_ASKED_FOR]
        known = _implied[base] = len(held), names
    return known[1]


def _implied_by(kind: type, owner: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the methods of an object that are called without being named."""
    for base in kind.__mro__:
        if base is object:
            break
        for name, value in _named_in(base, frozenset()):
            if name not in _MAKING:
                yield from _behind(value, owner)


def _named_in(base: type, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield what a class holds under some names, or under those of methods that are called without being named."""
    held = vars(base)
    wanted = held.keys() & names
    if not is_of_library(base.__module__):
        wanted.update(_implied_in(base))
    # What is implied was found before, and may be gone.
    return ((name, held[name]) for name in wanted if name in held)


def _methods(
    owner: Any, names: frozenset[str], alike: _Alike, steps: int, seen: dict[int, int]
) -> Iterator[tuple[Any, Any]]:
    """Yield the functions with one of some names that an object has, or that the objects in its attributes have."""
    for base in type(owner).__mro__:
        if base is nn.Module or base is object:
            break
        for name, value in _named_in(base, names):
            if name in _MAKING:
                continue
            if isinstance(value, type):
                yield from _called_through_class(value, names)
            else:
                yield from _behind(value, owner)
    if isinstance(owner, nn.Module) and not names.isdisjoint(_WALKS):
        # Any module below may come by, and have its methods called.
        yield from _called_in(
            list({alike(part): part for part in every_module(owner)}.values()), names, alike, 0, seen
        )
    if steps:
        yield from _methods_held(owner, names, alike, steps - 1, seen)


def _forwards_of(owner: Any, names: frozenset[str]) -> Iterator[tuple[Any, Any]]:
    """Yield the forwards of the layers of torch that a module holds, at any depth, under some names."""
    own: Mapping[str, Any] = modules_of(owner) if isinstance(owner, nn.Module) else {}
    for name in own.keys() & names:
        held = own[name]
        parts = every_module(held) if isinstance(held, nn.Module) else ()
        kinds = {
            type(part): part for part in parts if str(type(part).__module__).startswith("torch.nn.modules.")
        }
        yield from ((kind.forward, part) for kind, part in kinds.items())


def _held_under(owner: Any, names: frozenset[str]) -> Iterator[Any]:
    """Yield what an object holds under some names."""
    own = attributes_and_slots(owner)
    return (own[name] for name in own.keys() & names)


def _methods_held(
    owner: Any, names: frozenset[str], alike: _Alike, steps: int, seen: dict[int, int]
) -> Iterator[tuple[Any, Any]]:
    """Yield the same of what an object holds in attributes that have one of the names."""
    own = attributes_and_slots(owner)
    modules: Mapping[str, Any] = modules_of(owner) if isinstance(owner, nn.Module) else {}
    kinds: dict[type, bool] = {}  # Many attributes are of few classes.
    for name in {*(own.keys() & names), *(modules.keys() & names)}:
        value = own.get(name, modules.get(name))
        kind = type(value)
        is_foreign = kinds.get(kind)
        if is_foreign is None:
            is_foreign = kinds[kind] = value is None or is_of_library(kind.__module__)
        if kind in PLAIN or not can_be_asked(value):
            continue
        if isinstance(value, (*_FUNCTIONS, MethodType)):
            yield function_behind(value), getattr(value, "__self__", None)
            continue
        if isinstance(value, (ModuleType, type)):
            yield from _called_through(value, names, alike)
            continue
        if not is_foreign:
            yield from _methods_of(value, names, alike, steps, seen)
        elif type(value) is nn.Module and steps:
            yield from _methods_held(value, names, alike, steps - 1, seen)
        if isinstance(value, _CONTAINERS):
            yield from _called_in(value, names, alike, steps, seen)
