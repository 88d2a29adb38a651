"""From an error to what the person at the terminal sees: one message, an exit code, a traceback only on demand."""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from fxplug.cli.wording import for_command_line
from fxplug.errors import ConfigError, FxplugError, TraceWarning, UnknownNameError, UnresolvedReferenceError

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = [
    "FAILED",
    "WRONG_USAGE",
    "Failure",
    "as_failure",
    "orderly_termination",
    "plain_warnings",
    "traceback_option",
    "warn",
]

FAILED = 1
"""Exit code: the work failed."""
WRONG_USAGE = 2
"""Exit code: what was asked for makes no sense."""

_USAGE_ERRORS = (ConfigError, UnknownNameError, UnresolvedReferenceError)
_WANTS_TRACEBACK = "fxplug.traceback"


class Failure(click.ClickException):
    """Ends the command with a message on standard error."""

    exit_code = FAILED
    shows_traceback = False
    """Whether the traceback of the cause comes before the message."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the message, after the traceback of what caused it where that was asked for."""
        stream = sys.stderr if file is None else file
        if self.__cause__ is not None and self.shows_traceback:
            click.echo("".join(traceback.format_exception(self.__cause__)), file=stream, nl=False)
        click.echo(click.style("Error: ", fg="red", bold=True) + self.format_message(), file=stream)


class _WrongUsage(Failure):
    exit_code = WRONG_USAGE


def as_failure(error: Exception, context: click.Context) -> Failure:
    """Return what ends the command after `error`."""
    failure = _describe(error)
    failure.shows_traceback = bool(context.meta.get(_WANTS_TRACEBACK))
    return failure


def _describe(error: Exception) -> Failure:
    if isinstance(error, FxplugError):
        kind = _WrongUsage if isinstance(error, _USAGE_ERRORS) else Failure
        return kind(for_command_line(str(error)))
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure(
        f"fxplug did not expect this error: {text}. Run the command again with --traceback to see where it comes from."
    )


def traceback_option(function: Any) -> Any:
    """Give a command the option ``--traceback``."""

    def remember(context: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click calls it
        if wanted:
            context.meta[_WANTS_TRACEBACK] = True

    return click.option(
        "--traceback",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=remember,
        help="Show Python's traceback of an error.",
    )(function)


def warn(message: str) -> None:
    """Write a warning on standard error."""
    click.echo(click.style("Warning: ", fg="yellow", bold=True) + for_command_line(message), err=True)


@contextmanager
def orderly_termination() -> Generator[None]:
    """Let the signal by which other programs end this one unwind it, so that unfinished files are removed."""

    def leave(number: int, _: Any) -> None:
        sys.exit(128 + number)

    try:
        former = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # Only the main thread may do so.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


@contextmanager
def plain_warnings() -> Generator[None]:
    """Show Python warnings as one line each, without source code."""

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
        ours = category.__module__.startswith("fxplug.")
        warn(str(message) if ours else f"{message} ({category.__name__}, {filename}:{lineno})")

    with warnings.catch_warnings():
        # PyTorch says so while it is imported; nothing here needs NumPy.
        warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
        warnings.simplefilter("always", TraceWarning)
        former, warnings.showwarning = warnings.showwarning, show
        try:
            yield
        finally:
            warnings.showwarning = former
