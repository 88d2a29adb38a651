"""What an optimisation tells those who watch it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fxplug.passes import NodeChanges, PassEvent

__all__ = ["OptimizationEvent", "Stage", "StageReporter"]

Stage = Literal["run", "trace", "pass", "lower", "check", "measure"]
"""The stages of an optimisation, in their order; there is one ``"pass"`` stage per pass."""


@dataclass(frozen=True)
class OptimizationEvent:
    """A stage starts, goes on, or ends; a record handed to the observer of `fxplug.optimize`."""

    stage: Stage
    state: Literal["started", "progress", "finished", "failed"]
    subject: str = ""
    """What the stage is about: the name of the pass or of the backend."""
    summary: str = ""
    """What came of it, in one line; why it failed."""
    nodes: tuple[int, int] | None = None
    """Nodes before and after, once they are known."""
    seconds: float = 0.0
    """How long the stage took; 0 until it ends."""
    steps: tuple[int, int] = (0, 0)
    """How many steps of how many are done, where a stage has steps."""
    changes: NodeChanges | None = None
    """How many nodes a pass changed, once it has ended."""
    bytes: tuple[int, int] | None = None
    """Memory of parameters and buffers before and after a pass, once it has ended."""
    pass_event: PassEvent | None = None
    """What observers of passes are told, where the stage is a pass: with the module as it is at that moment."""


class StageReporter:
    """Tells an observer about one stage.

    Args:
        observer: Who is told.
        stage: The stage.
        subject: What it is about.
    """

    def __init__(
        self, observer: Callable[[OptimizationEvent], None] | None, stage: Stage, subject: str = ""
    ) -> None:
        self._observer = observer
        self._stage: Stage = stage
        self._subject = subject
        self.summary = ""
        """Set by the stage, before it ends."""
        self.nodes: tuple[int, int] | None = None
        """Set by the stage, where it concerns nodes."""
        self.seconds = 0.0
        """How long it took, as the observer is told; known when it has ended."""

    def progress(self, done: int, total: int) -> None:
        """Tell that `done` of `total` steps are done."""
        self._tell(OptimizationEvent(self._stage, "progress", self._subject, steps=(done, total)))

    @contextmanager
    def running(self) -> Generator[StageReporter]:
        """Tell that the stage starts, and when the context is left that it has ended or failed."""
        self._tell(OptimizationEvent(self._stage, "started", self._subject))
        started = time.perf_counter()
        try:
            yield self
        except BaseException as error:
            self.seconds = time.perf_counter() - started
            name = type(error).__name__
            self._tell(OptimizationEvent(self._stage, "failed", self._subject, name, seconds=self.seconds))
            raise
        self.seconds = time.perf_counter() - started
        self._tell(
            OptimizationEvent(self._stage, "finished", self._subject, self.summary, self.nodes, self.seconds)
        )

    def _tell(self, event: OptimizationEvent) -> None:
        if self._observer is not None:
            self._observer(event)


def pass_observer(observer: Callable[[OptimizationEvent], None]) -> Callable[[PassEvent], None]:
    """Return an observer of passes that hands on what it hears."""

    def hear(event: PassEvent) -> None:
        if event.error is not None:
            told = OptimizationEvent(
                "pass",
                "failed",
                event.name,
                f"{type(event.error).__name__}: {event.error}",
                seconds=event.seconds,
                pass_event=event,
            )
        elif event.result is None:
            told = OptimizationEvent("pass", "started", event.name, pass_event=event)
        else:
            nodes = (event.nodes_before, event.nodes_after)
            summary = event.result.summary or ("changed" if event.result.modified else "nothing to do")
            told = OptimizationEvent(
                "pass",
                "finished",
                event.name,
                summary,
                nodes,
                event.seconds,
                changes=event.changes,
                bytes=(event.bytes_before, event.bytes_after),
                pass_event=event,
            )
        observer(told)

    return hear
