"""What a program asks of the world around it: the time, random numbers that the system makes, and modes of torch.

None of these can be recorded, and no state tells afterwards that they were asked for. So the names by which the
functions of a program find them are lent a stand-in for the time of the trace. Where a program keeps one of them
elsewhere, in an attribute, a default, a closure or a container, or asks a class (``datetime.now``), there is no name to
lend. Then, and only then, Python tells of every call that the tracing thread makes.
"""

from __future__ import annotations

import builtins
import dis
import os
import random
import sys
import threading
import time
import uuid
from collections import deque
from contextlib import suppress
from datetime import date
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.autograd.graph import Node, register_multi_grad_hook

from fxplug.capture.attributes import attribute_of, can_be_asked
from fxplug.capture.containers import PLAIN, copy_of, elements_of, is_foreign, is_object, is_of_library
from fxplug.capture.hazards import ASKED_BY_NAME, scan_of
from fxplug.capture.identity import IDENTITY
from fxplug.capture.listeners import FunctionCallsPatch, Listener, can_be_passed_to
from fxplug.capture.originals import original_of
from fxplug.capture.sessions import active_interceptor
from fxplug.capture.sources import is_installed, passes_calls_on
from fxplug.semantics.random_sources import GLOBAL_GENERATOR, draws_for_everybody
from fxplug.semantics.surroundings import MODES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import CodeType, FrameType

__all__ = [
    "MODES_IN_C",
    "CallsPatch",
    "FramesPatch",
    "PartialPatch",
    "asked_of_world",
    "draws_of_python",
    "functions_in",
    "imports_questions",
    "imports_world",
    "is_question",
    "may_draw_of_numpy",
    "mode_asked",
    "modes_named",
    "world_found_by",
    "world_kept_by",
]

_CLOCKS = (
    "asctime",
    "clock_gettime",
    "clock_gettime_ns",
    "ctime",
    "gmtime",
    "localtime",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "strftime",
    "thread_time",
    "thread_time_ns",
    "time",
    "time_ns",
)
_WITH_A_TIME = {"asctime": 0, "ctime": 0, "gmtime": 0, "localtime": 0, "strftime": 1}
"""Name of a clock -> which of its arguments is a time, which it does not ask for if it is given one."""
_NOWS = frozenset({"now", "today", "utcnow"})
"""Methods of `datetime.date` and the classes derived from it."""
_DRAWS = frozenset({"getrandbits", "random"})
"""Methods of `random.Random` that are written in C."""
_NUMBERS = frozenset({"get_bit_generator", "mtrand", "random"})
"""Names by which code reaches what draws of the generator of NumPy that all threads share."""
_STATES = frozenset({"clone_state", "get_offset", "get_state", "initial_seed", "manual_seed", "seed"}) | {
    "set_offset",
    "set_state",
}
"""Methods of generators of torch that set where they are, or tell of it."""
_MADE_BY_CHANCE = frozenset({"Generator", "seed"})
"""What a function names that makes a generator of torch, and lets the system say what it draws."""
_HOOKING = frozenset({"register_hook", "register_multi_grad_hook", "register_prehook"})
_GRADIENT_FUNCTIONS = frozenset(
    {"get_gradient_edge", "grad_fn", "next_functions", "register_multi_grad_hook"}
)
"""Names by which a program reaches the functions that compute gradients, on which it may put hooks."""
_METHODS_HEARD = _NOWS | _DRAWS | _STATES | _HOOKING
_ENTROPY = {os: ("getrandom", "urandom"), uuid: ("uuid1", "uuid4")}

_MODE_NAMES = frozenset(
    {*MODES, "get_autocast_cpu_dtype", "get_autocast_gpu_dtype", "is_autocast_cpu_enabled"}
)

_asked: dict[int, tuple[str, str]] = {
    **{id(vars(time)[name]): ("clock", f"time.{name}") for name in _CLOCKS if name in vars(time)},
    id(os.times): ("clock", "os.times"),
    **{
        id(vars(module)[name]): ("entropy", f"{module.__name__}.{name}")
        for module, names in _ENTROPY.items()
        for name in names
        if name in vars(module)  # Not every system has all.
    },
}
"""Id of a function -> (what it asks for, how messages call it)."""
_modes = {id(getattr(torch, name)): name for name in sorted(_MODE_NAMES)}
"""Id of a function that tells of a mode -> the name that torch has for it."""
MODES_IN_C = {
    name: function
    for name in sorted(_MODE_NAMES)
    if not isinstance(function := getattr(torch, name), FunctionType)
}
"""Those of these functions that are not written in Python, by name."""
_questions: dict[int, Any] = {
    id(function): function for function in (*(getattr(builtins, name) for name in ASKED_BY_NAME), *IDENTITY)
}
"""Id -> function of Python that no value hears of when it is asked about it."""
_MODULES = frozenset(map(id, (builtins, time, *_ENTROPY)))
_NAMES = frozenset({"times", *ASKED_BY_NAME, *_CLOCKS}.union(*_ENTROPY.values()))


def asked_of_world(function: Any, args: tuple[Any, ...] = ()) -> tuple[str, str] | None:
    """Return what a call asks for, and the name of the function; None for any other call.

    Args:
        function: What is called.
        args: With what, by position.

    Returns:
        ``"clock"`` or ``"entropy"``, and the name of the function.
    """
    asked = _asked.get(id(function))
    if asked is not None and args:
        place = _WITH_A_TIME.get(function.__name__)
        if place is not None and args[place : place + 1] not in {(), (None,)}:
            return None
    return asked


def is_question(function: Any) -> bool:
    """Return whether something is a function of Python that no value hears of, as ``type`` and ``operator.is_`` are."""
    return id(function) in _questions


def mode_asked(function: Any) -> str | None:
    """Return the name of a function of torch that tells of a mode; None for any other function."""
    return _modes.get(id(function))


def world_found_by(namespace: dict[str, Any], names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield the names by which a function finds one of these functions, or a module that has some, with what is there.

    Args:
        namespace: The globals of the function.
        names: Those of globals and attributes that it uses.
    """
    for name in namespace.keys() & names:
        value = original_of(namespace.get(name))  # Another trace may take its stand-in away meanwhile.
        is_asked = id(value) in _asked or id(value) in _modes or id(value) in _questions
        if is_asked or (id(value) in _MODULES and not _NAMES.isdisjoint(names)):
            yield name, value


def modes_named(names: frozenset[str] = _MODE_NAMES) -> Iterable[tuple[str, Any]]:
    """Return the functions of torch that tell of modes, with their names, that are among some names; by default all."""
    if _MODE_NAMES.isdisjoint(names):
        return ()
    return [(name, original_of(vars(torch)[name])) for name in sorted(_MODE_NAMES & names)]


def functions_in(module: ModuleType) -> dict[str, Any]:
    """Return these functions among those of a module, by name."""
    return {
        name: value for name, value in vars(module).items() if id(value) in _asked or id(value) in _questions
    }


# -- what is kept elsewhere than under a name

_MOST = 100
"""Containers are looked into if they hold at most so many elements."""
_DEEPEST = 4
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_IMPORTING = frozenset({"__import__", "import_module"})
_IMPORTED = frozenset({"datetime", "os", "time", "timeit", "uuid"})
_IMPORT = dis.opmap["IMPORT_NAME"]


_ASKING = _NAMES | _NOWS


def imports_world(code: CodeType, names: frozenset[str]) -> bool:
    """Return whether a function imports a module that has some of these functions, and names one of them.

    Args:
        code: Of the function.
        names: Those of globals, attributes and modules in it.
    """
    if names.isdisjoint(_ASKING) or names.isdisjoint(_IMPORTED | _IMPORTING):
        return False
    return not names.isdisjoint(_IMPORTING) or any(_IMPORT in part.co_code[::2] for part in _with_inner(code))


def imports_questions(code: CodeType, names: frozenset[str]) -> bool:
    """Return whether a function imports ``type`` and the like where it runs.

    Args:
        code: Of the function.
        names: Those of globals, attributes and modules in it.
    """
    if "builtins" not in names or ASKED_BY_NAME.isdisjoint(names):
        return False
    return any(_IMPORT in part.co_code[::2] for part in _with_inner(code))


def draws_of_python(namespace: Mapping[str, Any], code: CodeType, names: frozenset[str]) -> bool:
    """Return whether a function finds, by a name, what draws of the generator of Python that all threads share.

    Its state tells whether somebody has drawn, and not which thread has.

    Args:
        namespace: The globals of the function.
        code: Of the function.
        names: Those of globals, attributes and modules in it.
    """
    for name in namespace.keys() & names:
        value = namespace.get(name)  # Another trace may take its stand-in away meanwhile.
        if value is random or attribute_of(value, "__self__") is GLOBAL_GENERATOR:
            return True
    return "random" in names and any(_IMPORT in part.co_code[::2] for part in _with_inner(code))


def may_draw_of_numpy(function: FunctionType, names: frozenset[str]) -> bool:
    """Return whether a function may draw of the generator of NumPy that all threads share.

    Its functions are compiled in a way that lets Python tell nobody of their calls, and programs compare the module
    itself, so that no stand-in can be lent.

    Args:
        function: The function.
        names: Those of globals, attributes and modules that it uses.
    """
    if "numpy.random" not in sys.modules:
        return False
    if not names.isdisjoint(_NUMBERS) or any(name.startswith("numpy.random") for name in names):
        return True
    namespace = function.__globals__
    return any(draws_for_everybody(namespace.get(name)) for name in namespace.keys() & names)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _with_inner(constant)


def world_kept_by(function: FunctionType, receiver: Any, names: frozenset[str]) -> Iterator[Any]:
    """Yield what asks the world, where a function finds it elsewhere than under a name of its globals.

    Args:
        function: The function.
        receiver: The object whose method it is; None for a function.
        names: Those of globals and attributes that it uses.

    Yields:
        A function, a method of a generator of random numbers or of a class that knows the time, such a class, a
        generator of torch whose state the function may ask for or set, a function that hangs hooks on gradients, one
        that asks something that no value hears of (see `is_question`), a
        `functools.partial` of one of these, or a function in a container or object which finds one by a name.
    """
    if ("default_generator" in names and not names.isdisjoint(_STATES)) or names.issuperset(_MADE_BY_CHANCE):
        yield torch.default_generator
    if not names.isdisjoint(_HOOKING) and not names.isdisjoint(_GRADIENT_FUNCTIONS):
        yield Node.register_hook
    namespace = function.__globals__
    kept: list[Any] = [namespace.get(name) for name in namespace.keys() & names]
    kept += function.__defaults__ or ()
    kept += (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            kept.append(cell.cell_contents)
        except ValueError:  # It has no value yet.
            continue
    if receiver is not None:
        kept += _attributes(receiver, names)
    seen: set[int] = set()
    waiting = [(value, _DEEPEST) for value in kept if _may_ask(value)]
    while waiting:
        value, steps = waiting.pop()
        if _asks_world(value, names) or (steps < _DEEPEST and _names_world(value)):
            yield value
        elif steps and id(value) not in seen:
            seen.add(id(value))
            waiting.extend((part, steps - 1) for part in _parts(value, names) if _may_ask(part))


def _may_ask(value: Any) -> bool:
    return type(value) not in PLAIN and can_be_asked(value)


def _asks_world(value: Any, names: frozenset[str]) -> bool:
    if id(value) in _questions:
        return True
    if isinstance(value, (BuiltinFunctionType, MethodType)) and value.__self__ is GLOBAL_GENERATOR:
        return threading.active_count() > 1  # Otherwise the state of the generator tells.
    if draws_for_everybody(value):
        return threading.active_count() > 1
    if isinstance(value, (BuiltinFunctionType, FunctionType)):
        return id(value) in _asked or id(value) in _modes or _asked_by_method(value) is not None
    if isinstance(value, partial):
        return _asks_world(value.func, names)
    if isinstance(value, torch.Generator):
        return not names.isdisjoint(_STATES)
    return isinstance(value, type) and issubclass(value, date) and not names.isdisjoint(_NOWS)


def _names_world(value: Any) -> bool:
    """Return whether a value is a function of a program that finds one of these functions by a name."""
    if not isinstance(value, FunctionType) or is_installed(value.__code__.co_filename):
        return False
    names = scan_of(value.__code__).names
    found = world_found_by(value.__globals__, names)
    # What stands for ``type`` is among the globals of a function that was looked at, and hears of it.
    return imports_world(value.__code__, names) or any(
        not is_question(one) or one.__name__ != name for name, one in found
    )


def _asked_by_method(function: Any) -> tuple[str, str] | None:
    """Return what a method that is written in C asks for, and its name; None for any other function."""
    name = function.__name__
    if name in _NOWS:
        kind = getattr(function, "__self__", None)
        if isinstance(kind, type) and issubclass(kind, date):
            return "clock", f"{kind.__module__}.{kind.__qualname__}.{name}"
    elif name in _DRAWS:
        generator = getattr(function, "__self__", None)
        # The one that is behind the functions of the module has a state, which tells.
        if isinstance(generator, random.Random) and generator is not GLOBAL_GENERATOR:
            return "draw", name
    return None


def _attributes(owner: Any, names: frozenset[str]) -> Iterable[Any]:
    """Return what an object and its class have under some names."""
    held: dict[str, Any] = attribute_of(owner, "__dict__", {})
    found = [held.get(name) for name in held.keys() & names]
    for base in type(owner).__mro__:
        if is_foreign(base.__module__):
            break
        found += [vars(base)[name] for name in vars(base).keys() & names]
    return found


def _parts(value: Any, names: frozenset[str]) -> Iterable[Any]:
    if isinstance(value, _CONTAINERS):
        found = list(elements_of(value))
        return found if len(found) <= _MOST else ()
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        return (cast("Any", value).__func__,)
    if isinstance(value, ModuleType):
        # Those that have a stand-in are lent.
        # Most names of a program are found in libraries that have no clocks for it.
        is_passed = id(original_of(value)) in _MODULES or is_of_library(value.__name__)
        return () if is_passed else [vars(value)[name] for name in vars(value).keys() & names]
    if isinstance(value, type):
        return (
            () if is_foreign(value.__module__) else [vars(value)[name] for name in vars(value).keys() & names]
        )
    return _parts_of_object(value, names) if is_object(value) else ()


def _parts_of_object(value: Any, names: frozenset[str]) -> Iterable[Any]:
    methods = [part for part in _attributes(value, names) if isinstance(part, FunctionType)]
    wanted = names.union(*(scan_of(method.__code__).names for method in methods))
    in_slots = () if attribute_of(value, "__dict__") is not None else copy_of(value)
    return [*_attributes(value, wanted), *(part for name, part in in_slots if name in wanted)]


class CallsPatch(Listener):
    """Lets Python tell of every call that this thread makes, above all of C code.

    Who listens to them already, such as a debugger that is written in Python, still hears of all; beside a profiler
    that is written in C nobody can.
    """

    def __init__(self) -> None:
        self._former: Any = None

    def install(self) -> None:
        """Listen."""
        former = self._former = sys.getprofile()
        if can_be_passed_to(former):
            sys.setprofile(self._hear)

    def remove(self) -> None:
        """Listen no more, unless somebody else does now."""
        if sys.getprofile() == self._hear:
            sys.setprofile(self._former)

    def _hear(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            if getattr(function, "__self__", None) is GLOBAL_GENERATOR and function.__name__ != "getstate":
                _tell(("draw", function.__name__), function)
            mode = _modes.get(id(function))
            if mode is not None:
                _hear_of_mode(mode, frame)
            asked = _asked.get(id(function))
            if asked is None and function.__name__ in _METHODS_HEARD:
                asked = _asked_by_method(function) or _does_by_method(function, frame)
            if asked is not None:
                _tell(asked, function)
        elif event == "call" and frame.f_code is register_multi_grad_hook.__code__:
            _tell(("hook", frame.f_code.co_name), function)
        if self._former is not None:
            self._former(frame, event, function)


class FramesPatch(FunctionCallsPatch):
    """Lets Python tell of calls of some functions that this thread makes, which a program makes when it runs.

    Args:
        codes: Id -> code, of the functions.
        hear: Called with the frame of each call.
    """

    def __init__(self, codes: Mapping[int, CodeType], hear: Callable[[FrameType], None]) -> None:
        super().__init__()
        self._codes = codes
        self._tell = hear

    def on_call(self, frame: FrameType) -> None:
        """Hear of a call, if it is of one of these functions."""
        if id(frame.f_code) in self._codes:
            self._tell(frame)


def _does_by_method(function: Any, frame: FrameType) -> tuple[str, str] | None:
    """Return what a method of an object of torch does, and its name; None for any other function."""
    name = function.__name__
    if name in _HOOKING:
        return ("hook", name) if isinstance(function.__self__, Node) else None
    is_heard = isinstance(function.__self__, torch.Generator) and not passes_calls_on(
        frame.f_code.co_filename
    )
    return ("state", name) if is_heard else None


def _tell(asked: tuple[str, str], function: Any) -> None:
    """Tell whoever traces what is asked or done, and by which name."""
    interceptor = active_interceptor()
    if interceptor is None:
        return
    kind, name = asked
    if kind == "draw":
        interceptor.on_random("draw", function.__self__, (), {})
    elif kind == "hook":
        interceptor.on_gradient_hook(name)
    elif kind == "state":
        interceptor.on_generator_state(name, function.__self__)
    else:
        interceptor.on_world_asked(kind, name)


def _hear_of_mode(name: str, frame: FrameType) -> None:
    """Hear that a frame asks torch for a mode, nobody knows with which arguments."""
    interceptor = active_interceptor()
    if interceptor is None or passes_calls_on(frame.f_code.co_filename):
        return
    function = getattr(torch, name)
    for arguments in ((), ("cpu",), ("cuda",)):
        with suppress(TypeError):  # Some take no argument, and some want one.
            interceptor.on_mode_asked(name, arguments, original_of(function)(*arguments))


class PartialPatch:
    """Lets a `functools.partial` call another function; no call that it makes is told of.

    Args:
        held: The partial.
        function: What it calls.
    """

    def __init__(self, held: partial[Any], function: Callable[..., Any]) -> None:
        self._held = held
        self._function = function
        self._former = held.func

    def install(self) -> None:
        """Let it call the other function."""
        _exchange(self._held, self._former, self._function)

    def remove(self) -> None:
        """Let it call its own function again."""
        _exchange(self._held, self._function, self._former)


def _exchange(held: partial[Any], former: Any, function: Any) -> None:
    if held.func is former:
        cast("Any", held).__setstate__((function, held.args, held.keywords, vars(held)))
