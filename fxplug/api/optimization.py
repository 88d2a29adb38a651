"""The main job: capture a module, transform it, hand it to a backend, and prove that it still computes the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fxplug.analyze.comparison import Check, Comparison, MismatchError, Tolerance, describe
from fxplug.analyze.isolation import (
    SavedState,
    copy_values,
    forked_random_state,
    tensors_in,
)
from fxplug.analyze.runs import Run, compare_runs, observe
from fxplug.api.events import OptimizationEvent, Stage, StageReporter, pass_observer
from fxplug.api.latency import Latency, measure_latency
from fxplug.api.positions import as_inputs
from fxplug.api.preparing import Preparation, chosen_mode, own_copy
from fxplug.api.user_errors import error_with_place
from fxplug.errors import ConfigError, FingerprintError, FxplugError, PassError
from fxplug.lower import Lowered, LoweringReport, OnMismatch, lower, lowered_partitions
from fxplug.lower.lowered import check_on_mismatch
from fxplug.passes.kept_state import saved_before_trial
from fxplug.plugins import BackendOffer, PluginManager, default_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fxplug.api.preparing import Prepared
    from fxplug.execute import GraphModule
    from fxplug.ir.guards import Guard
    from fxplug.passes import Level, PassReport, Pipeline

__all__ = [
    "DEFAULT_PIPELINE",
    "FOR_EAGER",
    "ExampleError",
    "OptimizationResult",
    "example_error",
    "optimize",
]

DEFAULT_PIPELINE = "inference"
"""The pipeline that runs where neither a pipeline nor passes are named."""
FOR_EAGER = ("onednn-fuse",)
"""Passes that choose how PyTorch itself runs calls; a backend knows what to do with the calls alone."""


class ExampleError(FxplugError, ValueError):
    """The module itself does not run on the example inputs."""

    code = "FXP-V001"


@dataclass(frozen=True)
class OptimizationResult:
    """What `optimize` made, and everything that is known about it."""

    module: nn.Module
    """What to use from now on. It shares no tensor with the original."""
    graph_module: GraphModule
    """The transformed module before a backend took it over; the same as `module` without one."""
    traced_nodes: int
    """Nodes in the graph as it was captured."""
    trace_seconds: float
    """How long it took to capture the module and to copy what was captured, as an observer of the stage is told; for a
    graph module, which is taken as it is, the copy alone."""
    pipeline: str
    """Name of the pipeline that ran; empty when passes were named."""
    passes: tuple[PassReport, ...]
    """What each pass did, in order."""
    lowering: LoweringReport | None
    """What the backend said about each call; None without a backend."""
    fallback: str
    """Why the whole module stayed eager although a backend was named; empty when it did not."""
    check: Check
    """The comparison with eager PyTorch."""
    latency: Latency | None
    """None when nothing was measured."""
    warnings: tuple[str, ...] = ()
    """What the user should know, in sentences."""
    fingerprint: str = ""
    """What ran, as a number (`Pipeline.fingerprint`); empty when an option of a pass has no canonical form."""
    mode: str = ""
    """The mode that the module was captured in, as of `fxplug.trace`; empty for a graph module, taken as it is."""

    @property
    def guards(self) -> tuple[Guard, ...]:
        """What calls of the module check, as the program asked for it when it was captured."""
        return self.graph_module.guards

    @property
    def restriction(self) -> str:
        """Which sizes of inputs the backend takes, for people; empty where it takes all, or runs nothing."""
        parts = [part for part in lowered_partitions(self.module).values() if part.profile is not None]
        if not parts:
            return ""
        names = " and ".join(dict.fromkeys(repr(part.backend) for part in parts))
        is_open = any(part.profile is not None and not part.profile.is_closed for part in parts)
        sizes = (
            "the sizes of the examples, but for open ones" if is_open else "the very sizes of the examples"
        )
        others = "; others run in PyTorch" if all(part.on_mismatch == "eager" for part in parts) else ""
        return f"lowered to {names} for {sizes}{others}"

    @property
    def nodes(self) -> int:
        """Nodes in the graph as it is now."""
        return len(self.graph_module.graph.nodes)


def optimize(  # noqa: PLR0913 - the front door: all that a user may choose, by keyword
    module: nn.Module,
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    pipeline: str | None = None,
    passes: Sequence[str | Mapping[str, Any]] | None = None,
    backend: str | None = None,
    manager: PluginManager | None = None,
    observer: Callable[[OptimizationEvent], None] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    measure: bool = True,
    runs: int | None = None,
    strict: bool = False,
    verify: Level | None = None,
    on_mismatch: OnMismatch = "error",
    mode: str | None = None,
) -> OptimizationResult:
    """Capture a module, run passes on it, lower it where a backend is named, and check it against eager.

    The module that is given stays as it is, and so do the example inputs and the global random state: the result has
    tensors of its own, and what a run changes is changed back. Memory for two more copies of the parameters is needed
    meanwhile. Mode is the caller's choice: call ``eval()`` first to optimise for inference.

    The check runs both on copies of the inputs, from the same random state and without gradients, and compares
    structure, dtypes, shapes and values of the outputs, and what the runs did to inputs and buffers.

    The model is captured symbolically, so that the result takes inputs of any size that the program takes. A model that
    cannot be captured so, or of which something else came than it computes on the examples, is run on them: the result
    has guards then, which every call checks, and a warning says why. `mode`, or ``mode`` under ``[tool.fxplug.trace]``,
    chooses one way; the other keys there count as for `fxplug.trace`. Guards stay through passes, backends, and files.

    Args:
        module: The model. A graph module is taken as it is, in whatever mode it was captured, with its guards.
        example_inputs: The positional arguments of one call; a single tensor stands for itself.
        example_kwargs: Inputs by name, for parameters that take them by position, too.
        pipeline: Name of a pipeline; by default ``"inference"``, unless passes are named.
        passes: Names of passes instead of a pipeline, or mappings of ``name`` and options; an empty sequence
            runs none. They run in the order that they declare, else in the order given.
        backend: Name of a backend that takes over the parts of the transformed module that it supports. A pipeline
            then leaves ``onednn-fuse`` out, which is about calls that PyTorch runs itself; name it in `passes` if it
            shall run.
        manager: Supplies passes, pipelines and backends; by default the installed plugins.
        observer: Told of every stage as it starts and ends.
        rtol: Allowed error relative to the expected value, element by element; by default according to dtype.
        atol: Allowed error beside it.
        measure: Whether latency is measured.
        runs: How often each of the two modules is measured; by default as often as a few seconds allow.
        strict: Whether it is an error when the backend cannot take the module as a whole.
        verify: What is checked after each pass, on the example inputs: ``"structure"``, ``"shape"``, ``"numeric"``,
            ``"gradient"`` or ``"paranoid"`` (see `fxplug.passes.Pipeline`); by default as the pipeline says. A pass
            that moves a value by more than `rtol` and `atol` allow, and it declares, is undone.
        on_mismatch: What partitions of the backend do with inputs of other sizes, dtypes or values than they were
            compiled for: ``"error"`` raises a `LoweringError`, ``"eager"`` runs them in PyTorch.
        mode: How the model is captured: ``"symbolic"``, ``"shape"`` or ``"value"``, as by `fxplug.trace`. By default as
            the configuration says, else symbolically where that is possible.

    Returns:
        The new module with its reports.

    Raises:
        UnknownNameError: A pipeline, pass or backend does not exist.
        ExampleError: The module itself fails on the example inputs.
        TraceError: The module cannot be captured, or there is no such mode.
        PassError: A pass failed, or its result was refused.
        UnverifiableError: Passes cannot be verified on this module at this level.
        LoweringError: The backend cannot take the module, and `strict` is set.
        MismatchError: The result, or what was captured, differs from eager by more than is allowed.

    Example:
        ::

            import fxplug as fx

            result = fx.optimize(model.eval(), (torch.randn(1, 3, 224, 224),))
            print(result.check.max_abs_error, result.latency.ratio)
            fx.save(result.module, "model.fxplug")
    """
    _check_arguments(module, pipeline, passes)
    inputs = as_inputs(example_inputs, example_kwargs, module)
    check_on_mismatch(on_mismatch)
    plugins = default_manager() if manager is None else manager
    chosen = plugins.resolve_pipeline(list(passes) if passes is not None else pipeline or DEFAULT_PIPELINE)
    if backend is not None and passes is None:
        chosen = chosen.without(*FOR_EAGER)
    plan = _Plan(
        pipeline=chosen.verified(verify or chosen.verification.level, rtol, atol),
        backend=None if backend is None else plugins.find_backend(backend),
        backend_options={} if backend is None else plugins.backend_options(backend),
        manager=plugins,
        tolerance=Tolerance(rtol, atol),
        strict=strict,
        on_mismatch=on_mismatch,
        observer=observer,
        mode=chosen_mode(mode, plugins),
    )
    job = _Job(module, inputs, plan)
    try:
        with forked_random_state():
            return job.run(measure=measure, runs=runs)
    finally:
        job.original.restore()


@dataclass(frozen=True)
class _Plan:
    """What is to be done, names resolved and options validated."""

    pipeline: Pipeline
    backend: BackendOffer | None
    backend_options: Mapping[str, Any]
    manager: PluginManager
    tolerance: Tolerance
    strict: bool
    on_mismatch: OnMismatch
    observer: Callable[[OptimizationEvent], None] | None
    mode: str | None
    """How the model is captured; None: symbolically where that is possible."""


class _Job:
    """One optimisation: its steps, in order, and the warnings that they collect."""

    def __init__(self, module: nn.Module, inputs: tuple[Any, ...], plan: _Plan) -> None:
        self._module = module
        self._inputs = inputs
        self._plan = plan
        self._warnings: list[str] = []
        self.original = SavedState(module)
        """The module as it was given."""
        self._preparation = Preparation(module, inputs, self.original, mode=plan.mode, manager=plan.manager)

    def run(self, *, measure: bool, runs: int | None) -> OptimizationResult:
        """Take all steps."""
        if self._module.training:
            self._warnings.append(
                "The model is in training mode: batch norms are not folded, and dropout stays active. Call eval() "
                "first to optimise for inference."
            )
        eager = self._run_eager()
        prepared, captured, trace_seconds = self._capture(eager)
        traced_nodes = len(captured.graph.nodes)
        reports = self._run_passes(captured)
        lowered = self._lower(captured)
        module = captured if lowered is None else lowered.module
        check = self._check(eager, module, captured)
        latency = self._measure(module, captured, runs) if measure else None
        return OptimizationResult(
            module=module,
            graph_module=captured,
            traced_nodes=traced_nodes,
            trace_seconds=trace_seconds,
            pipeline=self._plan.pipeline.name,
            passes=tuple(reports),
            lowering=None if lowered is None else lowered.report,
            fallback="" if lowered is None else lowered.fallback,
            check=check,
            latency=latency,
            warnings=tuple(self._warnings),
            fingerprint=_fingerprint(self._plan.pipeline),
            mode=prepared.mode,
        )

    def _stage(self, stage: Stage, subject: str = "") -> StageReporter:
        return StageReporter(self._plan.observer, stage, subject)

    def _run_eager(self) -> Run:
        with self._stage("run", type(self._module).__name__).running() as stage:
            try:
                run = observe(self._module, self._inputs, self.original)
            except (Exception, SystemExit) as error:
                raise example_error(self._module, self._inputs, error) from error
            stage.summary = _describe_all(run.output)
        return run

    def _capture(self, eager: Run) -> tuple[Prepared, GraphModule, float]:
        """Return how the model was captured, a copy of what was captured, for the passes, and the seconds of both."""
        name = type(self._module).__name__
        with self._stage("trace", name).running() as stage:
            prepared = self._preparation.prepare(eager, self._plan.tolerance)
            self._warnings += prepared.warnings
            nodes = len(prepared.module.graph.nodes)
            told = (
                ""
                if prepared.mode == "symbolic"
                else f", {prepared.mode} mode"
                if prepared.mode
                else ", as given"
            )
            stage.summary = f"{nodes} nodes{told}"
            captured = own_copy(prepared.module, name)
        return prepared, captured, stage.seconds

    def _run_passes(self, captured: GraphModule) -> list[PassReport]:
        observers = list(self._plan.manager.pass_observers())
        if self._plan.observer is not None:
            observers.append(pass_observer(self._plan.observer))
        with torch.no_grad():  # As the run that the result is compared with.
            try:
                reports = self._plan.pipeline.run(captured, copy_values(self._inputs), observers)
            except SystemExit as error:
                raise PassError(
                    "A pass tried to end the program; it was undone, and nothing was written."
                ) from error
        self._warnings += [
            f"Pass {report.name!r} failed and was undone: {report.error}."
            for report in reports
            if report.error
        ]
        skipped = [repr(report.name) for report in reports if report.skipped]
        if skipped:
            self._warnings.append(f"As a pass failed, these did not run: {', '.join(skipped)}.")
        return reports

    def _lower(self, captured: GraphModule) -> Lowered | None:
        offer = self._plan.backend
        if offer is None:
            return None
        with self._stage("lower", offer.shown_name).running() as stage:
            options = self._plan.backend_options
            lowered = lower(
                captured,
                offer.create(**options),
                copy_values(self._inputs),
                name=offer.shown_name,
                options=options,
                strict=self._plan.strict,
                on_mismatch=self._plan.on_mismatch,
                cache=self._plan.manager.config.artefact_cache(),
            )
            report = lowered.report
            supported = len(report.nodes) - len(report.unsupported)
            stage.summary = f"{supported} of {len(report.nodes)} calls supported"
            if lowered.fallback:
                stage.summary += ", stays eager"
                self._warnings.append(f"The module stays eager: {lowered.fallback}")
            else:
                self._warnings += _what_stays(report)
        return lowered

    def _check(self, eager: Run, module: nn.Module, captured: GraphModule) -> Check:
        with self._stage("check", type(self._module).__name__).running() as stage:
            saved = saved_before_trial(module, captured)
            try:
                run = observe(module, self._inputs, saved)
            except Exception as error:
                text = error_with_place(error)
                failure = Comparison(
                    "output",
                    describe(eager.output),
                    "an error",
                    math.inf,
                    math.inf,
                    reason=f"it raises {text}",
                )
                raise MismatchError(
                    f"The optimised {type(self._module).__name__} fails where the original does not: it raises "
                    f"{text}. A pass or the backend broke it: leave passes out until it runs.",
                    Check((failure,)),
                ) from error
            check = Check(tuple(compare_runs(self._inputs, eager, run, self._plan.tolerance)))
            if not check.passed:
                raise _mismatch(self._module, check)
            stage.summary = (
                f"largest error {check.max_abs_error:.2g}" if check.elements else "nothing to compare"
            )
            if not check.elements:
                self._warnings.append(
                    "Nothing was compared with eager PyTorch: what the model returns for these inputs has no elements, "
                    "or no data. Give other inputs to check what it computes."
                )
        return check

    def _measure(self, module: nn.Module, captured: GraphModule, runs: int | None) -> Latency:
        saved = saved_before_trial(module, captured)
        with self._stage("measure").running() as stage, torch.no_grad():
            try:
                latency = measure_latency(
                    self._module, module, self._inputs, runs=runs, progress=stage.progress
                )
            finally:
                saved.restore()
                self.original.restore()
            stage.summary = f"{latency.runs} runs each"
        return latency


def _fingerprint(pipeline: Pipeline) -> str:
    try:
        return pipeline.fingerprint()
    except FingerprintError:
        return ""


def _mismatch(module: nn.Module, check: Check) -> MismatchError:
    first = check.failures[0]
    others = len(check.failures) - 1
    more = f" {others} more of {len(check.comparisons)} values differ." if others else ""
    return MismatchError(
        f"The optimised {type(module).__name__} does not compute what eager PyTorch computes: in {first.path} "
        f"({first.expected}), {first.reason}.{more} Leave passes out to find the one that is wrong, or allow the error "
        f"(rtol, atol) if it is expected.",
        check,
    )


def example_error(module: nn.Module, inputs: tuple[Any, ...], error: BaseException) -> ExampleError:
    """Return the error for a model that itself raises `error` on its example inputs."""
    return ExampleError(
        f"Cannot run {type(module).__name__} on the example inputs ({_describe_all(inputs)}): the model raises "
        f"{error_with_place(error)}. Give inputs that the model accepts."
    )


def _describe_all(values: Any) -> str:
    return ", ".join(describe(value) for value in tensors_in(values)) or type(values).__name__


def _what_stays(report: LoweringReport) -> Iterator[str]:
    """Yield what the user should know of a module of which a backend runs a part."""
    for partition in report.partitions:
        if partition.fallback:
            yield f"The partition {partition.name!r} stays eager: {partition.fallback}"
    left = [node for node in report.nodes if not node.partition]
    if left:
        at = f" at {left[0].source}" if left[0].source else ""
        yield (
            f"{len(left)} of {len(report.nodes)} calls stay in PyTorch, the first is {left[0].name!r}{at}: "
            f"{left[0].reason or 'no reason given'}"
        )


# -- arguments -----------------------------------------------------------------------------------------------------


def _check_arguments(
    module: nn.Module, pipeline: str | None, passes: Sequence[str | Mapping[str, Any]] | None
) -> None:
    if not isinstance(module, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"Cannot optimise {module!r}: give a torch.nn.Module, not a {type(module).__name__}."
        )
    if pipeline is not None and passes is not None:
        raise ConfigError(
            f"Cannot choose between pipeline {pipeline!r} and the passes {list(passes)}: give one of the two."
        )
    if isinstance(passes, str):
        raise ConfigError(f"Cannot use the text {passes!r} as passes: give a list of names, [{passes!r}].")
    lazy = [name for name, value in module.named_parameters() if is_lazy(value)]
    if lazy:
        raise ConfigError(
            f"Cannot optimise {type(module).__name__}: its parameters {', '.join(lazy)} have no size yet. Run it once "
            f"on inputs first."
        )
