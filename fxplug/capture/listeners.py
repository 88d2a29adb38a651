"""How Python tells of calls beside others who listen to them: profilers, debuggers, tools that measure coverage."""

from __future__ import annotations

import sys
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["FunctionCallsPatch", "Listener", "Untold", "can_be_passed_to", "stop_telling", "tell_again"]


def can_be_passed_to(listener: Any) -> bool:
    """Return whether what Python tells can be passed on to a listener: one that is written in C takes it otherwise."""
    if listener is None or isinstance(listener, (FunctionType, MethodType)):
        return True
    return isinstance(getattr(type(listener), "__call__", None), FunctionType)  # noqa: B004 - which one matters


class Listener:
    """Whom Python tells of calls, and who passes it on to whoever listened before."""

    _former: Any = None

    @property
    def is_alone(self) -> bool:
        """Whether nobody listened before."""
        return self._former is None

    def pass_on_to(self, hear: Any) -> None:
        """Let somebody else be told, too."""
        self._former = hear


class Untold:
    """Lets Python tell no trace of calls while the context lasts: whoever looks through a program makes a million."""

    def __init__(self) -> None:
        self._listening: list[Any] = []

    def __enter__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Let whoever has begun to listen meanwhile be told of nothing, either."""
        found = sys.getprofile()
        if isinstance(getattr(found, "__self__", None), Listener):
            self._listening.append(found)
            sys.setprofile(None)

    def __exit__(self, *error: object) -> None:
        self.renew()
        before: Any = None
        for hear in self._listening:
            if before is not None:
                hear.__self__._former = before
            before = hear
        if before is not None:
            sys.setprofile(before)


def stop_telling() -> Any:
    """Let Python tell no trace of calls, if nobody else listens, and return whom it has told; None for nobody.

    While torch makes a call for a trace, or a trace looks at what it has recorded, nothing of the program is called
    that is to be heard of, and dozens of functions of others are.
    """
    found = sys.getprofile()
    if found is None:
        return None
    listener = getattr(found, "__self__", None)
    if not (isinstance(listener, Listener) and listener.is_alone):
        return None
    sys.setprofile(None)
    return found


def tell_again(hear: Any) -> None:
    """Let Python tell again whom it has told before; whoever listens meanwhile passes it on."""
    if hear is None:
        return
    found = sys.getprofile()
    if found is None:
        sys.setprofile(hear)
        return
    listener = getattr(found, "__self__", None)
    if isinstance(listener, Listener) and listener.is_alone:
        listener.pass_on_to(hear)


class FunctionCallsPatch(Listener):
    """Lets Python tell of every call of a function that this thread makes.

    Who listens to calls already still hears of all. Where that is a profiler that is written in C, Python tells as it
    tells debuggers; beside one of these that is written in C, too, nobody else is told.
    """

    def __init__(self) -> None:
        self._former: Any = None
        self._is_profiler = self._is_debugger = False
        self._has_raised = False

    def install(self) -> None:
        """Listen."""
        profiler, debugger = sys.getprofile(), sys.gettrace()
        if can_be_passed_to(profiler):
            self._is_profiler, self._former = True, profiler
            sys.setprofile(self._hear)
        elif can_be_passed_to(debugger):
            self._is_debugger, self._former = True, debugger
            sys.settrace(self._hear_as_debugger)

    def remove(self) -> None:
        """Listen no more, unless somebody else does now."""
        # Python tells nobody any more who has raised an error.
        if self._is_profiler and sys.getprofile() == (None if self._has_raised else self._hear):
            sys.setprofile(self._former)
        if self._is_debugger and sys.gettrace() == (None if self._has_raised else self._hear_as_debugger):
            sys.settrace(self._former)

    def on_call(self, frame: FrameType) -> None:
        """Hear of the call of a function, or of a generator that goes on."""
        raise NotImplementedError

    def _hear(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._hear_call(frame)
        if self._former is not None:
            self._former(frame, event, argument)

    def _hear_as_debugger(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Hear of a call; return who is to be told of the lines of the function."""
        self._hear_call(frame)
        return None if self._former is None else self._former(frame, event, argument)

    def _hear_call(self, frame: FrameType) -> None:
        try:
            self.on_call(frame)
        except BaseException:
            self._has_raised = True
            raise
