"""Running passes in order, each of them as a transaction."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fxplug.codegen import signature_of
from fxplug.errors import PassError
from fxplug.passes.base import PassContext, PassEvent, PassRecord, PassResult
from fxplug.passes.transaction import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fxplug.execute import GraphModule

__all__ = ["PassReport", "Pipeline", "PipelineStep"]


@dataclass(frozen=True)
class PipelineStep:
    """One pass of a pipeline with its options."""

    name: str
    """Full name of the pass."""
    record: PassRecord
    """What offers it."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Validated keyword arguments of the record's factory."""
    provider: str = "fxplug"
    """Distribution and version that the pass comes from."""


@dataclass(frozen=True)
class PassReport:
    """What one pass did in a run of a pipeline."""

    name: str
    provider: str
    result: PassResult | None
    """None when the pass failed and was undone."""
    nodes_before: int
    nodes_after: int
    seconds: float
    error: str = ""
    """Why the pass failed; empty when it did not."""


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
        context = PassContext(example_inputs, self.name)
        return [self._run_step(index, module, context, observers) for index in range(len(self.steps))]

    def _run_step(
        self,
        index: int,
        module: GraphModule,
        context: PassContext,
        observers: Sequence[Callable[[PassEvent], None]],
    ) -> PassReport:
        step = self.steps[index]
        before = len(module.graph.nodes)
        event = PassEvent(step.name, self.name, index, len(self.steps), module, before)
        for observer in observers:
            observer(event)
        snapshot = Snapshot(module)
        started = time.perf_counter()
        result: PassResult | None = None
        failure: BaseException | None = None
        try:
            with snapshot.watching():
                result = step.record.factory(**step.options).run(module, context)
            _check(result, step.name, module, snapshot)
        except BaseException as error:
            failure, result = error, None
            left = snapshot.restore()
            if left and isinstance(error, Exception):
                failure = _not_undone(error, step, left)
        seconds = time.perf_counter() - started
        after = len(module.graph.nodes)
        event = PassEvent(
            step.name, self.name, index, len(self.steps), module, before, after, seconds, result, failure
        )
        for observer in observers:
            observer(event)
        interrupted = failure is not None and not isinstance(failure, Exception)
        if failure is not None and (self.on_error == "raise" or interrupted):
            raise _as_pass_error(failure, step)
        return PassReport(
            step.name,
            step.provider,
            result,
            before,
            after,
            seconds,
            "" if failure is None else _reason(failure),
        )


def _check(result: Any, name: str, module: GraphModule, snapshot: Snapshot) -> None:
    """Check what a pass returned against what it did, and that the graph can run.

    Raises:
        PassError: It did not return a result, or says that it changed nothing and has changed something.
        FxplugError: The graph cannot run.
    """
    if not isinstance(result, PassResult):
        raise PassError(f"Pass {name!r} returned a {type(result).__name__}. Return a PassResult.")
    if not result.modified:
        if snapshot.graph_changed(module):
            raise PassError(
                f"Pass {name!r} says that it changed nothing, but the graph went from version {snapshot.version} to "
                f"{module.graph.version}. Return PassResult(modified=True)."
            )
        changed = snapshot.changes_of_state(module)
        if changed:
            listed = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            raise PassError(
                f"Pass {name!r} says that it changed nothing, but {listed} changed. Return PassResult(modified=True)."
            )
    module.graph.lint()
    module.graph.output_node()
    signature_of(module.graph.nodes)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _not_undone(error: Exception, step: PipelineStep, left: Sequence[str]) -> PassError:
    failure = PassError(
        f"Pass {step.name!r} of {step.provider} failed: {_reason(error).rstrip('.')}. Not everything that it did "
        f"could be undone ({left[0]}); capture the model again."
    )
    failure.__cause__ = error
    return failure


def _as_pass_error(error: BaseException, step: PipelineStep) -> BaseException:
    if not isinstance(error, Exception):
        return error  # KeyboardInterrupt and its like go through untouched.
    if isinstance(error, PassError):
        return error
    hint = " Graph, submodules and parameters are those from before this pass."
    wrapped = PassError(f"Pass {step.name!r} of {step.provider} failed: {_reason(error).rstrip('.')}.{hint}")
    wrapped.__cause__ = error
    return wrapped
