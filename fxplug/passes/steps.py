"""One pass of a pipeline, run as a transaction."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fxplug.codegen import signature_of
from fxplug.errors import PassError
from fxplug.passes.base import PassContext, PassEvent, PassRecord, PassResult
from fxplug.passes.settling import Settlement
from fxplug.passes.transaction import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fxplug.execute import GraphModule

__all__ = ["PassReport", "PipelineStep", "StepRun"]


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


class StepRun:
    """One pass, run once on a module: exactly as before when it fails.

    Args:
        step: The pass.
        module: Transformed in place.
        context: What the pass may know besides.
    """

    def __init__(self, step: PipelineStep, module: GraphModule, context: PassContext) -> None:
        self.step = step
        self.module = module
        self.context = context
        self.failure: BaseException | None = None
        """Why the pass failed; what it did is undone."""
        self.nodes_before = len(module.graph.nodes)
        self.seconds = 0.0
        self._snapshot = Snapshot(module)
        self._settlement = Settlement(module, context, step.record, step.name, step.provider)

    def run(self) -> PassResult | None:
        """Run the pass; return what it did, None when it failed and was undone."""
        started = time.perf_counter()
        result: PassResult | None = None
        self._settlement.begin()
        try:
            result = self._transform()
            self._settle(result)
            self._verify(result)
        except BaseException as error:
            self.failure, result = error, None
            left = self._snapshot.restore()
            if left and isinstance(error, Exception):
                self.failure = _not_undone(error, self.step, left)
        self._settlement.end(failed=result is None)
        self.seconds = time.perf_counter() - started
        return result

    def _transform(self) -> PassResult:
        """Let the pass work, and check what it says of its work."""
        with self._snapshot.watching():
            result = self.step.record.factory(**self.step.options).run(self.module, self.context)
        _check(result, self.step.name, self.module, self._snapshot)
        return result

    def _settle(self, result: PassResult) -> None:
        """Put in order what the pass need not care about."""
        self._settlement.settle(result, self._snapshot.journal)

    def _verify(self, result: PassResult) -> None:
        """Check what the module computes now."""

    def error(self) -> BaseException | None:
        """Return what is to be raised for the failure."""
        return None if self.failure is None else _as_pass_error(self.failure, self.step)

    def event(self, pipeline: str, index: int, total: int, result: PassResult | None) -> PassEvent:
        """Return what observers are told at the end."""
        return PassEvent(
            self.step.name,
            pipeline,
            index,
            total,
            self.module,
            self.nodes_before,
            len(self.module.graph.nodes),
            self.seconds,
            result,
            self.failure,
        )

    def report(self, result: PassResult | None) -> PassReport:
        """Return what is known about the run."""
        return PassReport(
            self.step.name,
            self.step.provider,
            result,
            self.nodes_before,
            len(self.module.graph.nodes),
            self.seconds,
            "" if self.failure is None else _reason(self.failure),
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
