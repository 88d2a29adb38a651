"""Finding the pass of a pipeline, and the rewrite in it, that made a module bad.

Both are binary searches between a prefix that is good and one that is bad. They end at two neighbours, the first of
them good and the second bad, also where there are several culprits: then at one of them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from fxplug.analyze.isolation import copy_module, copy_values, forked_random_state
from fxplug.rewrite.limits import Rewrite, RewriteLimit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fxplug.execute import GraphModule
    from fxplug.ir import Node
    from fxplug.passes.pipeline import Pipeline
    from fxplug.passes.steps import PipelineStep

__all__ = ["FoundPass", "FoundRewrite", "Judgement", "Trial", "Trials", "find_pass", "find_rewrite"]


@dataclass(frozen=True)
class Judgement:
    """What a module is like, compared with what it should be."""

    kind: Literal["good", "differs", "fails", "slow"]
    """``"fails"``: a pass or the module raises an error."""
    text: str = ""
    """What was found, as a clause."""

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return self.kind == "good"


@dataclass(frozen=True)
class Trial:
    """Some passes, run on a copy of a module, and what came of it."""

    judgement: Judgement
    module: GraphModule | None
    """The transformed copy; None when a pass failed."""
    ran: int
    """How many passes ran, the one that failed included; those that a pipeline skips behind it did not."""
    limit: RewriteLimit
    """Heard of every rewrite."""


@dataclass(frozen=True)
class FoundPass:
    """The pass that made a module bad."""

    position: int
    """Among the steps of the pipeline, counted from 0."""
    step: PipelineStep
    before: GraphModule
    """The module as the pass found it: good."""
    trial: Trial
    """The pass alone, run on `before`."""
    is_bad_alone: bool
    """Whether the module is bad, too, when no other pass runs."""
    needs: tuple[str, ...]
    """Where it is not: the earlier passes that it is bad with."""
    is_good_without: bool
    """Whether the module is good when all passes but this one run."""


@dataclass(frozen=True)
class FoundRewrite:
    """The rewrite of a pass that made a module bad."""

    rewrite: Rewrite
    position: int
    """Among those that the pass does, counted from 0."""
    total: int
    """How many the pass does."""
    node: Node | None
    """The node, before it was rewritten."""
    is_bad_alone: bool
    """Whether the module is bad, too, when the pass does nothing else."""
    before: GraphModule | None
    """The module without the rewrite and with those before it, or none of the others where it is bad alone."""
    trial: Trial
    """The same with the rewrite: its judgement is bad."""


@dataclass
class Trials:
    """Runs passes on copies of modules and has the results judged."""

    pipeline: Pipeline
    inputs: tuple[Any, ...]
    judge: Callable[[GraphModule], Judgement]
    heard: Callable[[str], None] = field(default=lambda _: None)
    """Told what is about to be tried."""
    runs: int = 0
    """How many trials there were."""

    def run(
        self, module: GraphModule, steps: Sequence[PipelineStep], limit: RewriteLimit | None = None
    ) -> Trial:
        """Run steps on a copy of a module, from the same random state every time."""
        names = ", ".join(step.name for step in steps)
        self.heard(names if len(steps) < 4 else f"{steps[0].name} to {steps[-1].name}, {len(steps)} passes")
        self.runs += 1
        limit = RewriteLimit() if limit is None else limit
        changed, ran = copy_module(module), 0
        with forked_random_state():
            for number, step in enumerate(steps, start=1):
                try:
                    with limit.applied(), torch.no_grad():
                        (report,) = self._only(step).run(changed, copy_values(self.inputs))
                except (Exception, SystemExit) as error:
                    text = str(getattr(error, "message", error)) or type(error).__name__
                    return Trial(Judgement("fails", text.rstrip(".")), None, number, limit)
                ran = number
                if report.error and self.pipeline.on_error == "stop":
                    break  # The pipeline would skip the others.
        # From the same random state again, whatever the passes drew.
        return Trial(self.judge(changed), changed, ran, limit)

    def _only(self, step: PipelineStep) -> Pipeline:
        """Return a pipeline like the whole one, with all that it demands of passes, for one step."""
        pipeline = copy.copy(self.pipeline)
        pipeline.steps = (step,)
        return pipeline


def find_pass(start: GraphModule, trials: Trials) -> FoundPass | None:
    """Return the pass that makes a module bad; None when the whole pipeline does not.

    Args:
        start: The module before the first pass: good.
        trials: Has the pipeline.
    """
    steps = trials.pipeline.steps
    good, before = 0, start
    trial = trials.run(start, steps)
    if trial.judgement.is_good:
        return None
    bad = trial.ran
    while bad - good > 1:
        middle = (good + bad) // 2
        # What is known to be good need not run again.
        trial = trials.run(before, steps[good:middle])
        if trial.judgement.is_good and trial.module is not None:
            good, before = middle, trial.module
        else:
            bad = good + trial.ran
    culprit = steps[good]
    again = trials.run(before, [culprit])
    is_bad_alone, needs = _company(start, trials, good)
    others = [*steps[:good], *steps[good + 1 :]]
    without = trials.run(start, others).judgement.is_good if others else True
    return FoundPass(good, culprit, before, again, is_bad_alone, needs, without)


def _company(start: GraphModule, trials: Trials, position: int) -> tuple[bool, tuple[str, ...]]:
    """Return whether the pass at `position` is bad alone, and where it is not the earlier passes that it needs."""
    steps = trials.pipeline.steps
    if position == 0:
        return True, ()
    culprit = steps[position]
    if not trials.run(start, [culprit]).judgement.is_good:
        return True, ()
    bad, good = 0, position  # With all from `bad` on it is bad, with those from `good` on it is not.
    while good - bad > 1:
        middle = (good + bad) // 2
        if trials.run(start, steps[middle : position + 1]).judgement.is_good:
            good = middle
        else:
            bad = middle
    pair = trials.run(start, [steps[bad], culprit])
    needed = steps[bad:position] if pair.judgement.is_good else steps[bad : bad + 1]
    return False, tuple(step.name for step in needed)


def find_rewrite(found: FoundPass, trials: Trials) -> FoundRewrite | None:
    """Return the rewrite of a pass that makes a module bad.

    Returns:
        None when the pass does not ask before its rewrites (see `fxplug.PassContext.allows`), or is bad even when it
        does none of them.
    """
    step, total = [found.step], found.trial.limit.allowed
    if not total or found.trial.judgement.is_good:
        return None
    nothing = trials.run(found.before, step, RewriteLimit(first=0))
    if not nothing.judgement.is_good:
        return None
    good, bad = 0, total
    before, trial = nothing, found.trial
    while bad - good > 1:
        middle = (good + bad) // 2
        tried = trials.run(found.before, step, RewriteLimit(first=middle))
        if tried.judgement.is_good:
            good, before = middle, tried
        else:
            bad, trial = middle, tried
    rewrite = trial.limit.asked[bad - 1]
    node = _node_named(before.module, rewrite.node) or trial.limit.last_node
    alone = trials.run(found.before, step, RewriteLimit(only=rewrite))
    is_bad_alone = alone.limit.allowed == 1 and not alone.judgement.is_good
    if is_bad_alone:
        before, trial = nothing, alone
    return FoundRewrite(rewrite, bad - 1, total, node, is_bad_alone, before.module, trial)


def _node_named(module: GraphModule | None, name: str) -> Node | None:
    nodes = () if module is None else module.graph.nodes
    return next((node for node in nodes if node.name == name), None)
