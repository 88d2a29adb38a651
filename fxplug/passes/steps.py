"""One pass of a pipeline, run as a transaction."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fxplug.codegen import signature_of
from fxplug.errors import PassError, VerificationError
from fxplug.passes.base import PassContext, PassEvent, PassResult, PipelineStep
from fxplug.passes.changes import NO_CHANGES, NodeChanges, state_bytes
from fxplug.passes.handover import Handover
from fxplug.passes.running import run_pass
from fxplug.passes.settling import Settlement
from fxplug.passes.transaction import Snapshot
from fxplug.passes.verification import PassRun
from fxplug.passes.worker import run_in_worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fxplug.execute import GraphModule
    from fxplug.ir import Origin
    from fxplug.passes.verification import Verifier

__all__ = ["PassReport", "PipelineStep", "StepRun"]


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
    changes: NodeChanges = NO_CHANGES
    """How many nodes it changed; none when it was undone."""
    bytes_before: int = 0
    """Memory of parameters and buffers before the pass, each memory counted once."""
    bytes_after: int = 0
    """Memory of parameters and buffers behind it."""
    skipped: str = ""
    """Why the pass did not run at all; empty when it did."""
    verified: str = ""
    """What was compared; empty where the module did not have to be run."""


class StepRun:
    """One pass, run once on a module: exactly as before when it fails.

    Args:
        step: The pass.
        module: Transformed in place.
        context: What the pass may know besides.
        verifier: Checks what the module computes then.
        size: Bytes of the state of the module, where they are known.
    """

    def __init__(
        self,
        step: PipelineStep,
        module: GraphModule,
        context: PassContext,
        verifier: Verifier | None = None,
        size: int | None = None,
    ) -> None:
        self.step = step
        self.module = module
        self.context = context
        self.failure: BaseException | None = None
        """Why the pass failed; what it did is undone."""
        self.is_undone = True
        """Whether the module of a pass that failed is what it was before."""
        self.nodes_before = len(module.graph.nodes)
        self.bytes_before = self.bytes_after = state_bytes(module) if size is None else size
        self.changes = NO_CHANGES
        self.seconds = 0.0
        self._snapshot = Snapshot(module)
        self._handover = Handover(module)
        self._settlement = Settlement(module, context, step.record, step.name, step.provider)
        self._verifier = verifier
        self.verified = ""
        """What was compared."""
        if verifier is not None and verifier.saves_memory:
            self._snapshot.journal.save_all()

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
            self._undo(error)
        else:
            if result.modified:
                self.bytes_after = state_bytes(self.module)
        self._settlement.end(failed=result is None)
        self.seconds = time.perf_counter() - started
        return result

    def _undo(self, error: BaseException) -> None:
        """Make the module what it was before the pass."""
        self.changes = NO_CHANGES
        try:
            left = self._snapshot.restore()
        except KeyboardInterrupt as interrupt:
            self.failure = interrupt
            left = self._snapshot.restore()  # It may have come before the first one began.
        if left:
            self.is_undone = False
            if isinstance(error, Exception):
                self.failure = _not_undone(error, self.step, left)

    def _transform(self) -> PassResult:
        """Let the pass work, and check what it says of its work."""
        result, self.changes = self._run_limited(self.context, self._snapshot)
        _check(result, self.step.title, self.module, self._snapshot)
        return result

    def _run_limited(self, context: PassContext, snapshot: Snapshot) -> tuple[PassResult, NodeChanges]:
        run = run_pass if self.step.hard_time_limit is None else run_in_worker
        return run(self.step, self.module, context, snapshot)

    def _run_again(self, snapshot: Snapshot) -> PassResult:
        """Run the pass on its own result, with the limits that it has."""
        # What it says of tensors when it runs once more is no news.
        return self._run_limited(replace(self.context, derivations=[]), snapshot)[0]

    def _settle(self, result: PassResult) -> None:
        """Put in order what the pass need not care about."""
        self._settlement.settle(result, self._snapshot.journal)
        if result.modified:
            self._handover.settle(self.step.name, self.step.provider)

    def _verify(self, result: PassResult) -> None:
        """Check what the module computes now."""
        if self._verifier is not None:
            run = PassRun(self.step.title, self.step.record, result, self._run_again)
            self.verified = self._verifier.check(run, self.module, self.context, self._snapshot)

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
            self.changes,
            self.bytes_before,
            self.bytes_after,
            self.context.example_inputs,
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
            self.changes,
            self.bytes_before,
            self.bytes_after,
            verified=self.verified,
        )


def _check(result: Any, title: str, module: GraphModule, snapshot: Snapshot) -> None:
    """Check what a pass returned against what it did, and that the graph can run.

    Raises:
        PassError: It did not return a result, or says that it changed nothing and has changed something.
        FxplugError: The graph cannot run.
    """
    if not isinstance(result, PassResult):
        raise PassError(f"{title} returned a {type(result).__name__}. Return a PassResult.")
    modified: Any = result.modified
    if not isinstance(modified, bool):
        raise PassError(f"{title} returned PassResult(modified={modified!r:.60}). Say True or False.")
    if not result.modified:
        if snapshot.graph_changed(module):
            raise PassError(
                f"{title} says that it changed nothing, but the graph went from version {snapshot.version} to "
                f"{module.graph.version}. Return PassResult(modified=True)."
            )
        changed = snapshot.changes_of_state(module)
        if changed:
            listed = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            raise PassError(
                f"{title} says that it changed nothing, but {listed} changed. Return PassResult(modified=True)."
            )
    _check_graph(module, "")
    for path, part in snapshot.graphs_to_check(module).items():
        _check_graph(part, f" of {path}")


def _check_graph(module: GraphModule, whose: str) -> None:
    """Check that a graph can run; the error also says which line of the program a node stands for.

    Raises:
        FxplugError: It cannot.
    """
    graph = module.graph
    try:
        graph.lint()
    except VerificationError as error:
        origins = {node.name: next(iter(node.origins), None) for node in graph.nodes}
        findings = [_with_line(finding, origins) for finding in error.findings]
        listing = "\n  - ".join(findings)
        raise VerificationError(f"The graph{whose} is not well formed:\n  - {listing}", findings) from None
    graph.output_node()
    signature_of(graph.nodes)


def _with_line(finding: str, origins: Mapping[str, Origin | None]) -> str:
    named = re.search(r"node '([^']+)'", finding)
    origin = None if named is None else origins.get(named[1])
    line = None if origin is None else origin.source()
    return finding if line is None else f"{finding}; it stands for {line} ({line.text!r})"


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _not_undone(error: Exception, step: PipelineStep, left: Sequence[str]) -> PassError:
    failure = PassError(
        f"{step.title} failed: {_reason(error).rstrip('.')}. Not everything that it did "
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
    wrapped = PassError(f"{step.title} failed: {_reason(error).rstrip('.')}.{hint}")
    wrapped.__cause__ = error
    return wrapped
