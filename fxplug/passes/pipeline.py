"""Running passes in order, each of them as a transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from fxplug.passes.base import PassContext, PassEvent
from fxplug.passes.changes import state_bytes
from fxplug.passes.fingerprints import pipeline_fingerprint
from fxplug.passes.limits import checked_limit
from fxplug.passes.steps import PassReport, PipelineStep, StepRun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fxplug.execute import GraphModule

__all__ = ["PassReport", "Pipeline", "PipelineStep"]


class Pipeline:
    """A sequence of passes, in the order in which they run.

    Args:
        name: Shown in reports.
        steps: The passes, ordered (see `fxplug.passes.order_passes`).
        on_error: ``"raise"``: a failing pass is undone and its error raised; ``"rollback"``: it is undone and
            the others still run.
        time_limit: Seconds that each pass may take; one that takes longer is stopped where it edits or computes.
            Steps may have limits of their own.
        hard_time_limit: Seconds after which a pass is ended in any case: each pass runs in a process of its own.
    """

    def __init__(
        self,
        name: str,
        steps: Sequence[PipelineStep],
        on_error: Literal["raise", "rollback"] = "raise",
        *,
        time_limit: float | None = None,
        hard_time_limit: float | None = None,
    ) -> None:
        self.name = name
        self.steps = tuple(steps)
        self.on_error = on_error
        self.time_limit = checked_limit(time_limit, "time_limit")
        self.hard_time_limit = checked_limit(hard_time_limit, "hard_time_limit")

    def fingerprint(self) -> str:
        """Return 64 hexadecimal digits that are the same wherever the same passes would run with the same options.

        They depend on the passes and their order, the distribution and version that each one comes from, their options,
        the settings of the pipeline, and the version of fxplug; not on the process, the machine, or the order in which
        plugins were installed.

        Raises:
            FingerprintError: An option has a value that has no canonical form, such as a lambda.
        """
        settings = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return pipeline_fingerprint(settings, settings.pop("steps"))

    def run(
        self,
        module: GraphModule,
        example_inputs: tuple[Any, ...] | None = None,
        observers: Sequence[Callable[[PassEvent], None]] = (),
    ) -> list[PassReport]:
        """Run the passes on `module`, in place.

        Args:
            module: Transformed in place; a pass that fails leaves it as it was before that pass.
            example_inputs: Handed to the passes.
            observers: Called with an event when a pass starts and when it ends.

        Returns:
            One report per pass, in order.

        Raises:
            PassError: A pass failed and `on_error` is ``"raise"``.
        """
        context = PassContext(example_inputs, self.name)
        reports: list[PassReport] = []
        for index in range(len(self.steps)):
            size = reports[-1].bytes_after if reports else state_bytes(module)
            reports.append(self._run_step(index, module, context, observers, size))
        return reports

    def _limited(self, step: PipelineStep) -> PipelineStep:
        """Return a step with the limits that hold for it."""
        soft = self.time_limit if step.time_limit is None else step.time_limit
        hard = self.hard_time_limit if step.hard_time_limit is None else step.hard_time_limit
        return replace(step, time_limit=soft, hard_time_limit=hard)

    def _run_step(
        self,
        index: int,
        module: GraphModule,
        context: PassContext,
        observers: Sequence[Callable[[PassEvent], None]],
        size: int,
    ) -> PassReport:
        step, total = self._limited(self.steps[index]), len(self.steps)
        nodes = len(module.graph.nodes)
        event = PassEvent(step.name, self.name, index, total, module, nodes, bytes_before=size)
        for observer in observers:
            observer(event)
        run = StepRun(step, module, context, size)
        result = run.run()
        event = run.event(self.name, index, total, result)
        for observer in observers:
            observer(event)
        failure = run.error()
        if failure is not None and (self.on_error == "raise" or not isinstance(failure, Exception)):
            raise failure
        return run.report(result)
