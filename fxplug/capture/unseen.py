"""Functions that a program calls and that no name leads to: ``getattr(module, "helper_" + kind)(x)``.

What such a function asks is not heard of, and what it changes is not taken note of. Where a program looks for functions
in ways that cannot be followed, Python tells of every call, and each function is looked at when it is first called.
Other programs pay nothing; where one runs such a function all the same, and records something in it, the program is
traced once more so.
"""

from __future__ import annotations

import gc
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from fxplug.capture.listeners import FunctionCallsPatch
from fxplug.capture.reached import function_behind
from fxplug.capture.sources import is_installed, is_of_other_library
from fxplug.errors import TraceError
from fxplug.ir import SourceLine
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from fxplug.capture.sessions import Session

__all__ = [
    "CallsOfFunctionsPatch",
    "MissedFunctionError",
    "finds_unseen",
    "function_named_by",
    "function_of",
    "is_called_by_plugin",
    "missed_function",
]

_FINDING = frozenset(
    {
        *(
            "__dict__",
            "__getattribute__",
            "__import__",
            "eval",
            "exec",
            "getattr_static",
            "getmembers",
            "globals",
        ),
        *("import_module", "locals", "modules", "vars"),
    }
)
"""Names of what finds functions by texts that are worked out."""
_MAKING = frozenset({"attrgetter", "itemgetter", "methodcaller"})
"""Names of what makes something that finds functions."""
_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL"})
_PAIR = 2


class MissedFunctionError(TraceError):
    """A function runs in a trace that was not looked at, since no name leads to it."""


def missed_function(code: CodeType) -> MissedFunctionError:
    """Return the error for a function that runs, and that was not looked at."""
    line = SourceLine(code.co_filename, code.co_firstlineno, code.co_name)
    return MissedFunctionError(
        f"Cannot trace: {code.co_name} ({line}) is called, and no name in the program leads to it. Call it by its "
        "name.",
        code="FXP-T063",
    )


def finds_unseen(code: CodeType, names: frozenset[str]) -> bool:
    """Return whether a function looks for others in ways that cannot be followed.

    Args:
        code: Of the function.
        names: Those of globals, attributes and modules in it.
    """
    if not names.isdisjoint(_FINDING) or not names.isdisjoint(_MAKING):
        return True
    return "getattr" in names and _works_out_names(code)


def _works_out_names(code: CodeType) -> bool:
    """Return whether a function, or one inside of it, reads attributes by names that are not texts in its code."""
    if any(_works_out_names(part) for part in code.co_consts if hasattr(part, "co_code")):
        return True
    if "getattr" not in code.co_names:
        return False
    entries = [entry for entry in instructions_of(code) if entry.opname not in _SKIPPED]
    for index, entry in enumerate(entries):
        if entry.argval != "getattr" or not entry.opname.startswith("LOAD_"):
            continue
        call = next((at for at in range(index, len(entries)) if entries[at].opname.startswith("CALL")), index)
        # The name is the last argument, or the one in front of a default that is a constant.
        given = entries[max(index, call - _PAIR) : call]
        if not any(one.opname.startswith("LOAD_CONST") and isinstance(one.argval, str) for one in given):
            return True
    return False


def function_of(frame: FrameType) -> Any:
    """Return the function that a frame runs, bound to the object whose method it is; None where it is not found."""
    found = function_named_by(frame)
    if found is not None:
        return found
    code = frame.f_code
    known = _found.setdefault(code, WeakSet())
    function = next((one for one in list(known) if _is_run_by(one, frame)), None)
    if function is None:
        # Nothing else tells; this takes some ten milliseconds.
        referrers = [found for found in gc.get_referrers(code) if type(found) is FunctionType]
        near = [one for one in referrers if one.__globals__ is frame.f_globals]
        function = next((one for one in near if _is_run_by(one, frame)), near[0] if near else None)
        known.update(near)
    return function


_found: WeakKeyDictionary[CodeType, WeakSet[FunctionType]] = WeakKeyDictionary()
"""Code -> the functions that have it, of those to which no name leads."""


def function_named_by(frame: FrameType) -> Any:
    """Return the same where a name leads to the function: one of a class, or of a global; None where none does."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    for base in type(first).__mro__:
        found = function_behind(vars(base).get(code.co_name))
        if type(found) is FunctionType and found.__code__ is code:
            return MethodType(found, first)
    name = getattr(code, "co_qualname", code.co_name)
    outer = frame.f_globals.get(name.partition(".")[0])
    found = _inside(outer, frame, _DEEPEST)
    if found is not None:
        return found
    # What stands around a method, or inside of what does, has another name, or the class has something else there.
    for owner in dict.fromkeys(
        (*type(first).__mro__, *(kind for kind in (first, outer) if isinstance(kind, type)))
    ):
        for value in list(vars(owner).values()):
            found = _inside(function_behind(value), frame, _DEEPEST)
            if found is not None:
                return found if isinstance(first, type) or owner is outer else MethodType(found, first)
    return None


def _inside(value: Any, frame: FrameType, steps: int) -> FunctionType | None:
    """Return a function that a frame runs, where it is a value or one of those around which that stands."""
    if type(value) is not FunctionType:
        return None
    if _is_run_by(value, frame):
        return value
    if not steps:
        return None
    inner = (*_contents_of(value), value.__dict__.get("__wrapped__"))
    return next((found for one in inner if (found := _inside(one, frame, steps - 1)) is not None), None)


def _is_run_by(function: FunctionType, frame: FrameType) -> bool:
    """Return whether a frame runs a function: many have the same code, and something else around them."""
    code = frame.f_code
    if function.__code__ is not code or function.__globals__ is not frame.f_globals:
        return False
    held = frame.f_locals
    around = zip(code.co_freevars, _contents_of(function), strict=False)
    return all(held.get(name) is value for name, value in around)


def _contents_of(function: FunctionType) -> list[Any]:
    """Return what a function closes over; None where that has no value yet."""
    contents: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:
            contents.append(None)
    return contents


_DEEPEST = 4
"""So many functions may stand around another one."""


def is_called_by_plugin(frame: FrameType) -> bool:
    """Return whether a function answers a hook of the trace that runs, or is called by one that does."""
    walker = frame.f_back
    while walker is not None:
        name = str(walker.f_globals.get("__name__"))
        if name.startswith(_CALLING_PLUGINS):
            return True
        if name == _TRACING and walker.f_code.co_name == "_run":
            return False
        walker = walker.f_back
    return False


_CALLING_PLUGINS = ("pluggy.", "fxplug.plugins.")
_TRACING = "fxplug.capture.tracer"


class CallsOfFunctionsPatch(FunctionCallsPatch):
    """Lets Python tell of every call that this thread makes of a function that is none of an installed library.

    Args:
        session: The trace. If it defers those of libraries, their calls are told of, too, but for torch and Python.
        hear: Called with the frame of each call.
    """

    def __init__(self, session: Session, hear: Callable[[FrameType], None]) -> None:
        super().__init__()
        self._session = session
        self._tell = hear
        self._is_busy = False

    def on_call(self, frame: FrameType) -> None:
        """Hear of a call, unless it is made by who hears of one."""
        if not self._is_busy and self._is_wanted(frame):
            self._is_busy = True
            try:
                self._tell(frame)
            finally:
                self._is_busy = False

    def _is_wanted(self, frame: FrameType) -> bool:
        filename = frame.f_code.co_filename
        if not is_installed(filename):
            return True
        return self._session.defers and is_of_other_library(filename, frame.f_globals)
