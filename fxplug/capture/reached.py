"""The code that the forward of a module reaches: its own, and that of the methods and functions that it names in turn.

Reads of plain attributes happen without a word. What is in the code is all that can be known of them.
"""

from __future__ import annotations

import inspect
import weakref
from functools import cached_property, partialmethod
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from fxplug.capture.bytecode import read_once
from fxplug.capture.texts import names_in_texts
from fxplug.execute import GraphModule
from fxplug.ir.instructions import instructions_of
from fxplug.semantics.internals import DYNAMO_INLINE

if TYPE_CHECKING:
    import dis
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "FORWARDS",
    "asks_for_training",
    "calls_forwards",
    "codes_of",
    "flags_in",
    "flags_read_by",
    "function_behind",
    "methods_named",
    "reads_contents",
]

FORWARDS = frozenset({"_call_impl", "forward"})
"""Methods by which code runs a module past its call."""
_TRAINING = "training"
_NO_FLAGS: frozenset[str | None] = frozenset()
_ANY_FLAG: frozenset[str | None] = frozenset({None})
_OWN_FLAG: frozenset[str | None] = frozenset({""})
_ATTRIBUTE_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_known: dict[int, tuple[weakref.ref[type], Callable[[], Any], frozenset[str | None]]] = {}
"""Forward and answer, by the id of the class: a dict of weak references makes one for every question.

The forward is referred to weakly, too: it has the globals of a program, and the class in these.
"""


def flags_read_by(module: nn.Module) -> frozenset[str | None]:
    """Return of which modules the forward of a module may ask for ``training``.

    Returns:
        Their paths in it, an empty one for its own flag; None among them stands for any module in it.
    """
    if isinstance(module, GraphModule):
        return _OWN_FLAG if module.graph.captured_training is not None else _NO_FLAGS
    kind = type(module)
    if "forward" in vars(module):
        return _flags_in(_reached_by(module.forward, kind))
    key = id(kind)
    known = _known.get(key)
    forward = next((vars(base)["forward"] for base in kind.__mro__ if "forward" in vars(base)), None)
    if known is None or known[1]() is not forward:
        answer = _flags_in(_reached_by(forward, kind))
        if not isinstance(forward, FunctionType):
            return answer
        found = weakref.ref(forward)
        known = _known[key] = (weakref.ref(kind, lambda _, kept=_known: kept.pop(key, None)), found, answer)
    return known[2]


def asks_for_training(hook: Any) -> bool:
    """Return whether a hook of a module may ask for ``training``, as that of `torch.nn.utils.spectral_norm` does."""
    function = getattr(hook, "__func__", hook)
    if not isinstance(function, FunctionType):
        function = inspect.getattr_static(type(hook), "__call__", None)
    code = getattr(function, "__code__", None)
    return isinstance(code, CodeType) and any(
        _TRAINING in part.co_names for part, _ in _with_inner(code, is_method=False)
    )


@read_once
def flags_in(code: CodeType) -> frozenset[str | None]:
    """Return the same of a function that reads such a flag, of which its code is given.

    Where nothing in it says so, it is something it finds that reads one (`operator.attrgetter`).
    """
    codes = list(_with_inner(code, is_method=True))
    found = _flags_in(codes)
    return found if found or any(_TRAINING in part.co_names for part, _ in codes) else _ANY_FLAG


def _flags_in(codes: Iterable[tuple[CodeType, bool]]) -> frozenset[str | None]:
    """Return the paths from ``self`` whose ``training`` code reads; None where it reads that of something else.

    Args:
        codes: Each with whether what it calls ``self`` is the object of a method.
    """
    found: set[str | None] = set()
    for code, is_method in codes:
        if _TRAINING in names_in_texts(code):
            found.add(None)
        if _TRAINING not in code.co_names:
            continue
        found.update(_paths_in(code, "self" if is_method else None))
    return frozenset(found)


def _paths_in(code: CodeType, own: str | None) -> Iterator[str | None]:
    """Yield the paths from a variable whose ``training`` code reads; None where it reads that of something else."""
    steps: list[str] | None = None
    for entry in instructions_of(code):
        if entry.opname.startswith("STORE_") and entry.argval == own:
            yield None  # It is something else from then on.
        if entry.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            # Some load two variables at once.
            last = entry.argval[-1] if isinstance(entry.argval, tuple) else entry.argval
            steps = [] if last == own else None
        elif entry.opname in _ATTRIBUTE_READS:
            if entry.argval == _TRAINING:
                yield None if steps is None else ".".join(steps)
                steps = None
            elif steps is not None:
                steps.append(entry.argval)
        elif entry.opname not in _NOTHING:
            steps = None


def calls_forwards(code: CodeType) -> bool:
    """Return whether code calls the forward of what it finds by itself, other than as a module is called."""
    if FORWARDS.isdisjoint(code.co_names):
        return False
    former = ""
    for entry in instructions_of(code):
        if entry.opname in _NOTHING:
            continue
        # Behind a call it is most likely ``super().forward``, which is the module's own.
        is_own = former.startswith("CALL") and "super" in code.co_names
        if entry.opname in _ATTRIBUTE_READS and entry.argval in FORWARDS and not is_own:
            return True
        former = entry.opname
    return False


def codes_of(module: nn.Module) -> list[CodeType]:
    """Return the code that the forward of a module reaches."""
    return list(dict.fromkeys(_codes_of(module)))


def reads_contents(module: nn.Module, name: str) -> bool:
    """Return whether the code that the forward of a module reaches looks into what an attribute holds.

    Changing it in place is no such look: ``self.counts["calls"] += 1``, ``self.seen.append(x)``; nor is the only
    read, if nothing but a call follows it.
    """
    is_read_again = _count_reads(module, name) > 1
    for code in _codes_of(module):
        if name not in code.co_names:
            continue
        entries = [entry for entry in instructions_of(code) if entry.opname not in _NOTHING]
        for index, entry in enumerate(entries):
            if entry.opname != "LOAD_ATTR" or entry.argval != name:
                continue
            following = entries[index + 1]
            if following.opname == "STORE_FAST":
                if _is_looked_at(entries, following.argval):
                    return True
            elif is_read_again and _is_look(entries, index + 1):
                return True
    return False


def _count_reads(module: nn.Module, name: str) -> int:
    return sum(
        entry.argval == name and entry.opname in {"LOAD_ATTR", "LOAD_METHOD"}
        for code in _codes_of(module)
        if name in code.co_names
        for entry in instructions_of(code)
    )


_NOTHING = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL"})
_CHANGING = frozenset({"COPY", "DELETE_SUBSCR", "DUP_TOP_TWO", "STORE_ATTR", "STORE_SUBSCR"})
_ADDING = frozenset({"add", "append", "appendleft", "clear", "extend", "insert", "update"})
_ON_THE_WAY = ("BINARY_SUBSCR", "LOAD_ATTR", "LOAD_CONST", "LOAD_FAST", "LOAD_SMALL_INT")


def _is_looked_at(entries: list[dis.Instruction], variable: str) -> bool:
    """Return whether what a variable holds is looked into."""
    return any(
        entry.opname.startswith("LOAD_FAST") and entry.argval == variable and _is_look(entries, index + 1)
        for index, entry in enumerate(entries)
    )


def _is_look(entries: list[dis.Instruction], index: int) -> bool:
    """Return whether what stands on the stack is read by the instructions from an index on."""
    for entry in entries[index:]:
        if entry.opname in _CHANGING:
            return False
        if entry.opname in {"LOAD_ATTR", "LOAD_METHOD"} and entry.argval in _ADDING:
            return False
        if not entry.opname.startswith(_ON_THE_WAY):
            return True
    return False


def _codes_of(module: nn.Module) -> Iterator[CodeType]:
    kind = type(module)
    forward = module.forward if "forward" in vars(module) else inspect.getattr_static(kind, "forward")
    return (code for code, _ in _reached_by(forward, kind))


def function_behind(value: Any) -> Any:
    """Return the function behind a method, or behind what makes one in a class; anything else as it is."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, (cached_property, partialmethod)):
        return value.func
    return value.__func__ if isinstance(value, (MethodType, staticmethod, classmethod)) else value


def methods_named(kind: type, names: set[str]) -> Iterator[CodeType]:
    """Yield the code of those methods and properties of a class that have one of some names, or are called without."""
    for base in kind.__mro__:
        for name, value in vars(base).items():
            function = function_behind(value)
            is_called = name in names or (name.startswith("__") and name != "__init__")
            if is_called and isinstance(function, FunctionType):
                yield from (code for code, _ in _with_inner(function.__code__, is_method=True))


def _reached_by(function: Any, kind: type[nn.Module]) -> Iterator[tuple[CodeType, bool]]:
    """Yield all code that a function of a module may run, except that of torch itself.

    Each comes with whether what it calls ``self`` is the module. What stands around a function (`functools.wraps`)
    runs, too.
    """
    pending: list[tuple[Any, bool]] = [(function, True)]
    seen: set[CodeType] = set()
    while pending:
        found, is_method = pending.pop()
        if not isinstance(found, (FunctionType, MethodType, staticmethod, classmethod)):
            continue
        found = getattr(found, "__func__", cast("Any", found))
        pending.append((getattr(found, "__wrapped__", None), is_method))
        # While a trace runs, a function that compares its parameters has other code.
        found = getattr(found, DYNAMO_INLINE, found)
        code = getattr(found, "__code__", None)
        if not isinstance(code, CodeType) or code in seen or _is_around(found):
            continue
        seen.add(code)
        codes = list(_with_inner(code, is_method=is_method))
        yield from codes
        pending.extend(_named_by(found, {name for code, _ in codes for name in code.co_names}, kind))


def _is_around(function: Any) -> bool:
    """Return whether a function is one that torch puts around others (`torch.no_grad`)."""
    is_torchs = str(function.__globals__.get("__name__")).startswith("torch.")
    return is_torchs and hasattr(function, "__wrapped__")


def _with_inner(code: CodeType, *, is_method: bool) -> Iterator[tuple[CodeType, bool]]:
    yield code, is_method
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant, is_method=is_method and "self" in constant.co_freevars)


def _named_by(function: FunctionType, names: set[str], kind: type[nn.Module]) -> Iterator[tuple[Any, bool]]:
    """Yield the functions that code may call: methods of the class, globals, functions in modules and closures.

    Each comes with whether it is a method of the class.
    """
    namespace = function.__globals__
    modules = [value for name in names if issubclass(type(value := namespace.get(name)), ModuleType)]
    for name in names:
        if not hasattr(nn.Module, name):
            method = inspect.getattr_static(kind, name, None)
            yield function_behind(method), True
        yield from (
            (value, False)
            for holder in (namespace, *map(vars, modules))
            if _is_own(value := holder.get(name))
        )
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents, False
        except ValueError:  # Not filled yet.
            continue


def _is_own(value: Any) -> bool:
    return type(value) is FunctionType and not str(value.__module__).startswith("torch.")
