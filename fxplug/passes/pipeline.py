"""Running passes in order, each of them as a transaction."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from fxplug.analyze.comparison import Tolerance
from fxplug.errors import ConfigError, did_you_mean, shown
from fxplug.passes.base import PassContext, PassEvent
from fxplug.passes.changes import state_bytes
from fxplug.passes.fingerprints import pipeline_fingerprint
from fxplug.passes.limits import checked_limit
from fxplug.passes.steps import PassReport, PipelineStep, StepRun
from fxplug.passes.verification import Level, Verification, Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fxplug.execute import GraphModule

__all__ = ["OnError", "PassReport", "Pipeline", "PipelineStep"]

OnError = Literal["raise", "rollback", "stop"]
"""What follows when a pass has failed and was undone."""

_ON_ERROR: tuple[str, ...] = get_args(OnError)


class Pipeline:
    """A sequence of passes, in the order in which they run.

    Args:
        name: Shown in reports.
        steps: The passes, ordered (see `fxplug.passes.order_passes`).
        on_error: ``"raise"``: a failing pass is undone and its error raised; ``"rollback"``: it is undone and
            the others still run; ``"stop"``: it is undone and the others do not run.
        time_limit: Seconds that each pass may take; one that takes longer is stopped where it edits or computes.
            Steps may have limits of their own.
        hard_time_limit: Seconds after which a pass is ended in any case: each pass runs in a process of its own.
        verify: What is checked after each pass: ``"structure"``, the graph and what the pass says; ``"shape"``, also
            shapes and dtypes of what the module returns; ``"numeric"``, values; ``"gradient"``, gradients;
            ``"paranoid"``, other inputs, writes past the operators of torch, and what the pass claims.
        rtol: How far passes may move a number, relative to it; None: by dtype, 1e-4 for float32.
        atol: The same, absolute.

    Raises:
        ConfigError: `on_error`, `verify`, a limit or a tolerance is none that there is, or one of the steps is none.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each setting
        self,
        name: str,
        steps: Sequence[PipelineStep],
        on_error: OnError = "raise",
        *,
        time_limit: float | None = None,
        hard_time_limit: float | None = None,
        verify: Level = "structure",
        rtol: float | None = None,
        atol: float | None = None,
    ) -> None:
        if on_error not in _ON_ERROR:
            raise ConfigError(
                f"Cannot use on_error={on_error!r} for pipeline {name!r}. "
                f"{did_you_mean(str(on_error), _ON_ERROR)}"
            )
        self.name = name
        self.steps = _checked_steps(name, steps)
        self.on_error: OnError = on_error
        self.time_limit = checked_limit(time_limit, "time_limit")
        self.hard_time_limit = checked_limit(hard_time_limit, "hard_time_limit")
        verification = Verification(verify, Tolerance(rtol, atol))
        self.verify: Level = verification.level
        self.rtol = verification.tolerance.rtol
        self.atol = verification.tolerance.atol

    @property
    def verification(self) -> Verification:
        """How passes are verified."""
        return Verification(self.verify, Tolerance(self.rtol, self.atol))

    def verified(self, verify: Level, rtol: float | None = None, atol: float | None = None) -> Pipeline:
        """Return the same pipeline with another level of verification.

        Args:
            verify: The level.
            rtol: None: as now.
            atol: None: as now.
        """
        other = copy.copy(self)
        other.rtol = self.rtol if rtol is None else rtol
        other.atol = self.atol if atol is None else atol
        other.verify = Verification(verify, Tolerance(other.rtol, other.atol)).level
        return other

    def without(self, *names: str) -> Pipeline:
        """Return the same pipeline without some of its passes."""
        other = copy.copy(self)
        other.steps = tuple(step for step in self.steps if step.name not in names)
        return other

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
        *,
        reference_inputs: Sequence[tuple[Any, ...]] = (),
    ) -> list[PassReport]:
        """Run the passes on `module`, in place.

        Args:
            module: Transformed in place; a pass that fails leaves it as it was before that pass.
            example_inputs: Handed to the passes; the module is verified on them, too.
            observers: Called with an event when a pass starts and when it ends.
            reference_inputs: More inputs that the module is verified on, positional arguments of one call each.

        Returns:
            One report per pass, in order.

        Raises:
            PassError: A pass failed and `on_error` is ``"raise"``.
            UnverifiableError: The level of verification asks for runs that say nothing; no pass has run.
        """
        context = PassContext(example_inputs, self.name, module)
        verifier = Verifier(
            self.verification,
            self.name,
            module,
            [*(() if example_inputs is None else (example_inputs,)), *reference_inputs],
        )
        reports: list[PassReport] = []
        for index in range(len(self.steps)):
            size = reports[-1].bytes_after if reports else state_bytes(module)
            if reports and self.on_error == "stop" and (reports[-1].error or reports[-1].skipped):
                reports.append(self._skipped(index, module, reports[-1]))
            else:
                reports.append(self._run_step(index, module, context, observers, verifier, size))
        return reports

    def _skipped(self, index: int, module: GraphModule, before: PassReport) -> PassReport:
        """Return the report of a pass that does not run, as an earlier one failed."""
        step, nodes, size = self.steps[index], len(module.graph.nodes), before.bytes_after
        reason = before.skipped or f"pass {before.name!r} failed"
        return PassReport(
            step.name,
            step.provider,
            None,
            nodes,
            nodes,
            0.0,
            bytes_before=size,
            bytes_after=size,
            skipped=reason,
        )

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
        verifier: Verifier,
        size: int,
    ) -> PassReport:
        step, total = self._limited(self.steps[index]), len(self.steps)
        nodes = len(module.graph.nodes)
        inputs = context.example_inputs
        event = PassEvent(
            step.name, self.name, index, total, module, nodes, bytes_before=size, example_inputs=inputs
        )
        for observer in observers:
            observer(event)
        run = StepRun(step, module, context, verifier, size)
        result = run.run()
        failure = run.error()
        try:
            for observer in observers:
                observer(run.event(self.name, index, total, result))
        except Exception as error:
            if failure is None or isinstance(failure, Exception):
                raise
            raise failure from error  # Nobody may keep an interrupt back.
        # Nothing can go on with a module of which nobody knows what it is.
        if failure is not None and (
            self.on_error == "raise" or not isinstance(failure, Exception) or not run.is_undone
        ):
            raise failure
        return run.report(result)


def _checked_steps(name: str, steps: Any) -> tuple[PipelineStep, ...]:
    """Return the steps of a pipeline as a tuple.

    Raises:
        ConfigError: One of them is none.
    """
    is_list = isinstance(steps, Iterable) and not isinstance(steps, str)
    listed: tuple[Any, ...] = tuple(cast("Iterable[Any]", steps)) if is_list else (steps,)
    for step in listed:
        if not isinstance(step, PipelineStep):
            raise ConfigError(
                f"Cannot make pipeline {name!r}: {shown(step)} is no step. Give fxplug.passes.PipelineStep objects in "
                "a list, or let the plugins find passes by name: "
                "fxplug.plugins.default_manager().resolve_pipeline(['dead-code'])."
            )
    return listed
