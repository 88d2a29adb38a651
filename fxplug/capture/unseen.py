"""Functions that a program calls and that no name leads to: ``getattr(module, "helper_" + kind)(x)``.

What such a function asks is not heard of, and what it changes is not taken note of. Where a program looks for functions
in ways that cannot be followed, Python tells of every call, and each function is looked at when it is first called.
Other programs pay nothing; where one runs such a function all the same, and records something in it, the program is
traced once more so.
"""

from __future__ import annotations

import dis
import gc
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from fxplug.capture.listeners import FunctionCallsPatch
from fxplug.capture.reached import function_behind
from fxplug.capture.sources import is_installed
from fxplug.errors import TraceError
from fxplug.ir import SourceLine

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

__all__ = ["CallsOfFunctionsPatch", "MissedFunctionError", "finds_unseen", "function_of", "missed_function"]

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
    entries = [entry for entry in dis.get_instructions(code) if entry.opname not in _SKIPPED]
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
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    for base in type(first).__mro__:
        found = function_behind(vars(base).get(code.co_name))
        if type(found) is FunctionType and found.__code__ is code:
            return MethodType(found, first)
    found = frame.f_globals.get(code.co_name)
    if type(found) is FunctionType and found.__code__ is code:
        return found
    # Nothing else tells; this takes some ten milliseconds, once for a function.
    referrers = (found for found in gc.get_referrers(code) if type(found) is FunctionType)
    return next((one for one in referrers if one.__globals__ is frame.f_globals), None)


class CallsOfFunctionsPatch(FunctionCallsPatch):
    """Lets Python tell of every call that this thread makes of a function that is none of an installed library.

    Args:
        hear: Called with the frame of each call.
    """

    def __init__(self, hear: Callable[[FrameType], None]) -> None:
        super().__init__()
        self._tell = hear
        self._is_busy = False

    def on_call(self, frame: FrameType) -> None:
        """Hear of a call, unless it is made by who hears of one."""
        if not self._is_busy and not is_installed(frame.f_code.co_filename):
            self._is_busy = True
            try:
                self._tell(frame)
            finally:
                self._is_busy = False
