"""Stopping a pass that takes too long where it edits or computes."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fxplug.capture.sources import line_of_program
from fxplug.errors import ConfigError, PassTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from fxplug.ir import Graph, Node
    from fxplug.semantics.storages import StorageJournal

__all__ = ["checked_limit", "seconds_text", "time_limit", "timeout_error"]

_EVENTS = {"created": "made", "erased": "erased", "changed": "edited", "moved": "moved"}
UNDONE = "Graph, submodules and parameters are those from before this pass."


class _TimeUp(BaseException):
    """Goes through a pass that goes on after any error.

    Args:
        limit: The limit that was reached: a pass may run others that have limits of their own.
    """

    def __init__(self, limit: _Limit) -> None:
        super().__init__()
        self.limit = limit


class _Limit:
    """Counts the time of one pass, and remembers what it did last."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._started = time.perf_counter()
        self._deadline = self._started + seconds
        self._event = ""
        self._subject: Any = None

    def edited(self, event: str, node: Node) -> None:
        """Hear of an edit of a graph."""
        self._event, self._subject = event, node
        if time.perf_counter() > self._deadline:
            raise _TimeUp(self)

    def ran(self, operator: Callable[..., Any]) -> None:
        """Hear of an operator that is about to run."""
        self._event, self._subject = "ran", operator
        if time.perf_counter() > self._deadline:
            raise _TimeUp(self)

    @property
    def elapsed(self) -> float:
        """How long the pass has been running."""
        return time.perf_counter() - self._started

    @property
    def is_over(self) -> bool:
        """Whether the pass has run too long."""
        return time.perf_counter() > self._deadline

    def last(self) -> str:
        """Return what the pass did last, as a clause."""
        if not self._event:
            return "it had neither edited the graph nor run an operator"
        if self._event == "ran":
            return f"last it ran the operator {self._subject}"
        node: Node = self._subject
        line = line_of_program(node.origins[0].frames()) if node.origins else None
        return f"last it {_EVENTS[self._event]} node {node.name!r}" + (f" (from {line})" if line else "")


@contextmanager
def time_limit(
    seconds: float | None, subject: str, graphs: Sequence[Graph], journal: StorageJournal
) -> Generator[None]:
    """Stop what runs inside at the first edit or operator after a time, and refuse it when it ends too late.

    What neither edits the graphs nor runs an operator cannot be stopped by this.

    Args:
        seconds: None for no limit, which costs nothing.
        subject: What runs, for the error: ``"Pass 'p' of fxplug 1.0"``.
        graphs: Edits of these are heard.
        journal: Hears of operators.

    Raises:
        PassTimeoutError: It took longer.
    """
    if seconds is None:
        yield
        return
    limit = _Limit(seconds)
    for graph in graphs:
        graph.observers.append(limit.edited)
    journal.listener = limit.ran
    try:
        yield
    except _TimeUp as error:
        if error.limit is not limit:
            raise
        raise timeout_error(subject, limit.elapsed, seconds, limit.last()) from None
    except Exception as error:
        if not limit.is_over:
            raise
        raise timeout_error(subject, limit.elapsed, seconds, limit.last()) from error
    else:
        if limit.is_over:
            raise timeout_error(subject, limit.elapsed, seconds, limit.last())
    finally:
        journal.listener = None
        for graph in graphs:
            graph.observers[:] = [hear for hear in graph.observers if hear != limit.edited]


def timeout_error(
    subject: str, elapsed: float, seconds: float, last: str, name: str = "time_limit"
) -> PassTimeoutError:
    """Return the error for a pass that took longer than it may."""
    return PassTimeoutError(
        f"{subject} was stopped after {seconds_text(elapsed)}: its {name} is {seconds_text(seconds)}; {last}. {UNDONE} "
        f"Give it a higher {name}, or leave it out."
    )


def seconds_text(seconds: float) -> str:
    """Return a time in seconds, with three digits."""
    return f"{seconds:.3g} s"


def checked_limit(seconds: Any, name: str) -> float | None:
    """Return a limit, None for no limit.

    Raises:
        ConfigError: It is no number of seconds above zero.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ConfigError(f"Cannot use {seconds!r} as {name}: give a number of seconds above 0.")
    return float(seconds)
