"""Finding out which pass, which rewrite and which node made the result of a pipeline wrong, or slow."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.analyze.comparison import MismatchError, Tolerance
from fxplug.analyze.isolation import SavedState, forked_random_state
from fxplug.analyze.layers import LayerComparison, compare_layers, failing_node, line_of
from fxplug.analyze.runs import Run, observe
from fxplug.api.judging import check_start, judge_by, judge_check, wrong_start
from fxplug.api.optimization import DEFAULT_PIPELINE, example_error
from fxplug.api.positions import as_inputs
from fxplug.api.preparing import Preparation, chosen_mode, own_copy
from fxplug.api.reproduction import FILES, FORMAT, Failure, write_reproduction
from fxplug.errors import AnalysisError, ConfigError
from fxplug.execute import GraphModule
from fxplug.ir import MadeBy, qualified_name
from fxplug.passes import PassRecord, Pipeline, PipelineStep
from fxplug.passes.bisection import FoundPass, FoundRewrite, Judgement, Trials, find_pass, find_rewrite
from fxplug.passes.references import seeded
from fxplug.plugins import PluginManager, default_manager
from fxplug.storage.folders import OutputFolder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

    from fxplug.ir import Node

__all__ = ["BisectResult", "NodeCulprit", "PassCulprit", "RewriteCulprit", "bisect"]


@dataclass(frozen=True)
class PassCulprit:
    """The pass that made the result wrong."""

    name: str
    provider: str
    """Distribution and version that it comes from."""
    position: int
    """Among the passes that run, counted from 0."""
    total: int
    """How many passes run."""
    is_bad_alone: bool
    """Whether the result is wrong, too, when no other pass runs."""
    needs: tuple[str, ...]
    """Where it is not: the earlier passes with which it is."""
    is_good_without: bool
    """Whether the result is right when all passes but this one run; otherwise there is another culprit."""


@dataclass(frozen=True)
class RewriteCulprit:
    """The rewrite that made the result wrong."""

    what: str
    """What the pass did, e.g. ``"fold"``."""
    node: str
    """The node that it rewrote."""
    line: str
    """``"FILE:LINE in FUNCTION"``; empty where none is known."""
    position: int
    """Among the rewrites of the pass, counted from 0."""
    total: int
    """How many rewrites the pass does."""
    is_bad_alone: bool
    """Whether the result is wrong, too, when the pass does nothing else."""


@dataclass(frozen=True)
class NodeCulprit:
    """The first node that computes something else although its inputs are right, or that fails."""

    name: str
    opcode: str
    target: str
    line: str
    """``"FILE:LINE in FUNCTION"``; empty where none is known."""
    module_path: str
    """The module whose forward was running when the node was captured."""
    history: tuple[str, ...]
    """What made or changed the node, oldest first."""
    new_inputs: tuple[str, ...]
    """Nodes that the rewrite brought and that this one is computed from: the fault may lie in them."""
    reason: str
    """What is wrong with its value."""


@dataclass(frozen=True)
class BisectResult:
    """What `bisect` found."""

    judgement: Judgement
    """What is wrong with the result; ``is_good`` when nothing is."""
    culprit: PassCulprit | None
    """The pass; None when nothing is wrong."""
    rewrite: RewriteCulprit | None
    """The rewrite in it; None where the pass does not ask before its rewrites, or is wrong without any."""
    node: NodeCulprit | None
    """The node; None where none could be made out, and for what is slow."""
    runs: int
    """How often passes were run and the result judged."""
    notes: tuple[str, ...]
    """What the user should know, in sentences."""
    failure: Failure | None = field(default=None, repr=False)
    """What the reproduction is made of."""

    @property
    def found(self) -> bool:
        """Whether something is wrong."""
        return self.culprit is not None

    def write(
        self,
        path: str | os.PathLike[str],
        *,
        allow: Iterable[str] = (),
        manager: PluginManager | None = None,
    ) -> tuple[str, ...]:
        """Write a folder that shows the failure alone: graphs, weights, inputs, configuration, and a script.

        The folder is complete, or not there; one that an earlier bisection wrote is replaced.

        Args:
            path: The folder.
            allow: Functions that the graphs call and that a file may not name by itself; see `fxplug.save`.
            manager: The plugins that take part; by default those that are installed and selected.

        Returns:
            What could not be written, in sentences.

        Raises:
            ConfigError: Nothing was found that could be written.
            StorageError: The module or the inputs hold something that a file cannot, or the folder cannot be written.
        """
        if self.failure is None:
            raise ConfigError("Cannot write a reproduction: nothing is wrong with the result.")
        plugins = default_manager() if manager is None else manager
        with OutputFolder(Path(path), FILES, FORMAT).writing() as folder:
            return write_reproduction(folder, self, self.failure, tuple(allow), plugins)


def bisect(  # noqa: PLR0913 - the front door: all that a user may choose, by keyword
    module: nn.Module,
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    pipeline: str | Pipeline | None = None,
    passes: Sequence[str | Mapping[str, Any] | PipelineStep | PassRecord] | None = None,
    check: Callable[[GraphModule], bool] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    slower_than: float | None = None,
    measure: Callable[[GraphModule, GraphModule, tuple[Any, ...]], float] | None = None,
    mode: str | None = None,
    manager: PluginManager | None = None,
    observer: Callable[[str], None] | None = None,
) -> BisectResult:
    """Find the pass, the rewrite in it and the node that make the result of a pipeline wrong.

    The module is captured as `optimize` captures it. A binary search over the passes finds one with which the result is
    wrong and without which, so far, it is right; a second one over what this pass rewrites finds the rewrite; and what
    the nodes compute before and after it is compared (see `compare`). Twenty passes take about five runs, five hundred
    rewrites about nine, and some more confirm what was found. Where several things are wrong, one of them is found:
    mend it and search again.

    Wrong is a result that differs from that of the module as it was given by more than is allowed, and a pass or a
    result that raises an error. Every run starts from the same random state, which is that of seed 0. The module, the
    inputs and the global random state stay as they are; memory for a few copies of the parameters is needed.

    Args:
        module: The model. A graph module is taken as it is, anything else is captured.
        example_inputs: The positional arguments of one call; a single tensor stands for itself.
        example_kwargs: Inputs by name, for parameters that take them by position, too.
        pipeline: Name of a pipeline, or a pipeline; by default ``"inference"``, unless passes are named.
        passes: Passes instead of a pipeline: names, mappings of ``name`` and options, or records and steps of passes
            that no plugin offers; with such a one among them they run in the order given.
        check: Called with a transformed module, returns whether it is right, or raises an error where it is not. Takes
            the place of the comparison.
        rtol: Allowed error relative to the expected value, element by element; by default according to dtype.
        atol: Allowed error beside it.
        slower_than: Search for what makes the module slow instead: wrong is a module that takes more than this many
            times as long as the captured one. Values are not compared then. Measured times are noisy: choose a ratio
            well above 1.
        measure: Called with the captured module, a transformed one and the inputs, returns how many times as long the
            second takes; by default the ratio of medians of calls that take turns.
        mode: How the module is captured, as for `optimize`.
        manager: Supplies passes and pipelines; by default the installed plugins.
        observer: Told before each run what is tried, as text.

    Returns:
        What was found; nothing when the result is right.

    Raises:
        UnknownNameError: A pipeline or pass does not exist.
        ConfigError: An argument cannot be used, or `check` says that the module is wrong before any pass has run.
        ExampleError: The module itself fails on the example inputs.
        TraceError: The module cannot be captured, computes something else once it is, or there is no such mode.

    Example:
        ::

            import fxplug as fx

            found = fx.bisect(model.eval(), (images,), pipeline="inference")
            if found.found:
                print(found.culprit.name, found.rewrite, found.node)
                found.write("failure")
    """
    _check_arguments(module, pipeline, passes, check, slower_than)
    inputs = as_inputs(example_inputs, example_kwargs, module)
    plugins = default_manager() if manager is None else manager
    steps = _pipeline(plugins, pipeline, passes)
    chosen = chosen_mode(mode, plugins)
    state, tolerance = SavedState(module), Tolerance(rtol, atol)
    preparation = Preparation(module, inputs, state, mode=chosen, manager=plugins)
    # From a state that is the same in every process, so that what is found can be shown in another one.
    with seeded():
        try:
            with forked_random_state():
                start, eager, notes = _start(module, inputs, state, preparation, tolerance)
        finally:
            state.restore()
        judge = judge_by(start, inputs, eager, check, tolerance, slower_than, measure)
        check_start(module, start, judge, slower_than)
        trials = Trials(steps, inputs, judge, observer or _ignore)
        by_function = check is not None or measure is not None
        failure = Failure(start, inputs, eager.output, tolerance, slower_than, by_function=by_function)
        found = _search(start, trials, failure)
        return replace(found, notes=(*notes, *found.notes))


def _ignore(_: str) -> None:
    """Hear nothing."""


# -- what is asked for -----------------------------------------------------------------------------------------------


def _check_arguments(module: Any, pipeline: Any, passes: Any, check: Any, slower_than: float | None) -> None:
    if not isinstance(module, nn.Module):
        raise ConfigError(f"Cannot bisect {module!r}: give a torch.nn.Module, not a {type(module).__name__}.")
    if pipeline is not None and passes is not None:
        raise ConfigError("Cannot choose between a pipeline and passes: give one of the two.")
    if isinstance(passes, (str, PassRecord, PipelineStep)):
        raise ConfigError("Cannot use a single pass as passes: give a list.")
    if slower_than is not None and check is not None:
        raise ConfigError(
            "Cannot search for what is slow and for what fails a check at once: give one of the two."
        )
    if slower_than is not None and not (math.isfinite(slower_than) and slower_than > 0):
        raise ConfigError(
            f"Cannot search for what is slower than {slower_than}: give a positive ratio, such as 1.5."
        )


def _pipeline(manager: PluginManager, pipeline: str | Pipeline | None, passes: Any) -> Pipeline:
    if isinstance(pipeline, Pipeline):
        return pipeline
    if passes is None:
        return manager.resolve_pipeline(pipeline or DEFAULT_PIPELINE)
    local = [isinstance(entry, (PassRecord, PipelineStep)) for entry in passes]
    if not any(local):
        return manager.resolve_pipeline(list(passes))
    steps: list[PipelineStep] = []
    for entry in passes:
        if isinstance(entry, PipelineStep):
            steps.append(entry)
        elif isinstance(entry, PassRecord):
            steps.append(PipelineStep(entry.name, entry, provider="this program"))
        else:
            steps += manager.resolve_pipeline([entry]).steps
    return Pipeline("", steps)


def _start(
    module: nn.Module,
    inputs: tuple[Any, ...],
    state: SavedState,
    preparation: Preparation,
    tolerance: Tolerance,
) -> tuple[GraphModule, Run, tuple[str, ...]]:
    """Return the module as a graph module of its own, what is right, and what the user should know."""
    try:
        eager = observe(module, inputs, state)
    except (Exception, SystemExit) as error:
        raise example_error(module, inputs, error) from error
    if isinstance(module, GraphModule):  # Also one with hooks: it runs as it is.
        return own_copy(module, type(module).__name__), eager, ()
    try:
        prepared = preparation.prepare(eager, tolerance)
    except MismatchError as error:
        raise wrong_start(module, judge_check(error.check).text) from error
    return own_copy(prepared.module, type(module).__name__), eager, prepared.warnings


# -- searching -------------------------------------------------------------------------------------------------------


def _search(start: GraphModule, trials: Trials, failure: Failure) -> BisectResult:
    steps = trials.pipeline.steps
    found = find_pass(start, trials) if steps else None
    if found is None:
        return BisectResult(Judgement("good"), None, None, None, trials.runs, ())
    notes: list[str] = []
    judgement = found.trial.judgement
    if judgement.is_good:
        notes.append(
            f"Pass {found.step.name!r} was bad in one run and good in the next: it, or what is measured, varies."
        )
    elif not found.is_good_without:
        notes.append(
            "Without this pass the result is wrong as well: there is another culprit. Mend this one first."
        )
    rewrite = find_rewrite(found, trials)
    if rewrite is None and not judgement.is_good:
        notes.append(
            f"Pass {found.step.name!r} does not ask before its rewrites (PassContext.allows), or is bad without any: "
            "which of them is to blame is not known."
        )
    node = _node(found, rewrite, trials, failure.tolerance, notes)
    culprit = PassCulprit(
        found.step.name,
        found.step.provider,
        found.position,
        len(steps),
        found.is_bad_alone,
        found.needs,
        found.is_good_without,
    )
    return BisectResult(
        judgement,
        culprit,
        None if rewrite is None else _rewrite_culprit(rewrite),
        node,
        trials.runs,
        tuple(notes),
        failure.of(trials.pipeline, found, rewrite),
    )


def _rewrite_culprit(found: FoundRewrite) -> RewriteCulprit:
    line = "" if found.node is None else line_of(found.node)
    return RewriteCulprit(
        found.rewrite.what, found.rewrite.node, line, found.position, found.total, found.is_bad_alone
    )


def _node(
    found: FoundPass,
    rewrite: FoundRewrite | None,
    trials: Trials,
    tolerance: Tolerance,
    notes: list[str],
) -> NodeCulprit | None:
    """Return the node that computes something else, or fails."""
    trial = found.trial if rewrite is None else rewrite.trial
    before = found.before if rewrite is None else rewrite.before
    if trial.module is None or before is None:  # The pass failed; it was at this node.
        node = trial.limit.last_node
        return None if node is None or rewrite is None else _culprit(node, trial.judgement.text)
    if trial.judgement.kind == "fails":
        failure = failing_node(trial.module, trials.inputs)
        if failure is not None and failure.node is not None:
            return _culprit(failure.node, failure.message.rstrip("."))
        return None
    if trial.judgement.kind != "differs":
        return None
    entry = str(MadeBy(found.step.name, found.step.provider))
    try:
        layer = compare_layers(before, trial.module, trials.inputs, tolerance=tolerance).first_difference
        if layer is not None and entry not in layer.history and not layer.new_inputs:
            layer = _where_it_arises(layer, before, trial.module, trials.inputs, notes)
    except AnalysisError as error:
        notes.append(f"What the nodes compute could not be compared: {error.message}")
        return None
    return None if layer is None else _culprit_of_layer(layer)


def _where_it_arises(
    layer: LayerComparison,
    before: GraphModule,
    after: GraphModule,
    inputs: tuple[Any, ...],
    notes: list[str],
) -> LayerComparison:
    """Return the first node that differs at all; the one that differs by too much was not touched by the pass."""
    exact = compare_layers(before, after, inputs, tolerance=Tolerance(0.0, 0.0)).first_difference
    if exact is None or exact.name == layer.name:
        return layer
    notes.append(
        f"The difference arises in node {exact.name!r}, where it is as small as is allowed, and grows on the way: it "
        f"is too large from node {layer.name!r} on."
    )
    return exact


def _culprit(node: Node, reason: str) -> NodeCulprit:
    scope = next((origin.module for origin in node.origins if origin.module is not None), None)
    return NodeCulprit(
        node.name,
        node.op,
        node.target if isinstance(node.target, str) else qualified_name(node.target),
        line_of(node),
        "" if scope is None else scope.path,
        tuple(map(str, node.history)),
        (),
        reason,
    )


def _culprit_of_layer(layer: LayerComparison) -> NodeCulprit:
    return NodeCulprit(
        layer.name,
        layer.opcode,
        layer.target,
        layer.line,
        layer.module_path,
        layer.history,
        layer.new_inputs,
        layer.reason,
    )
