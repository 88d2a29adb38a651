"""Which errors of a trace reached the program, so that it could catch them and go on; and which nobody will see."""

from __future__ import annotations

from traceback import walk_tb
from typing import TYPE_CHECKING

from fxplug.capture.sources import is_own
from fxplug.errors import FxplugError, trace_errors

if TYPE_CHECKING:
    from contextvars import Context

    from fxplug.errors import TraceError

__all__ = ["errors_made_in", "forget_frames", "was_caught"]


def errors_made_in(context: Context) -> list[TraceError]:
    """Return a list to which all errors of the kind are added that are made in a context from now on."""
    made: list[TraceError] = []
    context.run(trace_errors.set, made)
    return made


def was_caught(error: TraceError) -> bool:
    """Return whether an error, which did not end the trace, refuses the program, and went as far as its code.

    Torch finds out what it was given by trying, in C: such an error ends where it was raised. What fxplug catches
    itself ends in its own code. What a program raises itself refuses nothing, nor does a call of `fxplug.trace` in the
    program with arguments that do not fit.
    """
    if error.code == _WRONG_ARGUMENTS or error.__traceback__ is None:
        return False
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return not is_own(files[0]) and any(map(is_own, files))


def forget_frames(error: BaseException | None, handled: BaseException | None) -> None:
    """Let go of the frames that an error has come through, which nobody will see, with those behind it.

    They hold inputs and traces; where one of them holds the error, too, nothing but a collection would free them.

    Args:
        error: What a capture has avoided. Errors of others may be seen by these, and stay as they are.
        handled: What whoever captures was handling (``sys.exc_info()``) before: it stands behind all of them.
    """
    seen: set[int] = set()
    while isinstance(error, FxplugError) and error is not handled and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


_WRONG_ARGUMENTS = "FXP-T064"
