"""Running passes in order, each of them as a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fxplug.passes.base import PassContext, PassEvent
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
    """

    def __init__(
        self, name: str, steps: Sequence[PipelineStep], on_error: Literal["raise", "rollback"] = "raise"
    ) -> None:
        self.name = name
        self.steps = tuple(steps)
        self.on_error = on_error

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
        context = PassContext(example_inputs, self.name, module)
        return [self._run_step(index, module, context, observers) for index in range(len(self.steps))]

    def _run_step(
        self,
        index: int,
        module: GraphModule,
        context: PassContext,
        observers: Sequence[Callable[[PassEvent], None]],
    ) -> PassReport:
        step, total = self.steps[index], len(self.steps)
        event = PassEvent(step.name, self.name, index, total, module, len(module.graph.nodes))
        for observer in observers:
            observer(event)
        run = StepRun(step, module, context)
        result = run.run()
        event = run.event(self.name, index, total, result)
        for observer in observers:
            observer(event)
        failure = run.error()
        if failure is not None and (self.on_error == "raise" or not isinstance(failure, Exception)):
            raise failure
        return run.report(result)
