"""``fxplug optimize``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch

import fxplug
from fxplug.analyze.comparison import describe
from fxplug.api import DEFAULT_PIPELINE, OptimizationResult
from fxplug.api import optimize as optimize_module
from fxplug.cli.examples import example_from_option, make_examples, prepared_mode_option, read_examples
from fxplug.cli.failures import traceback_option, warn
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.models import MODE_CHANGED, model_or_file, tolerance_options, training_option
from fxplug.cli.output import FILES, OutputFolder
from fxplug.cli.pipelines import check_overrides, command_overrides
from fxplug.cli.progress import View, make_view
from fxplug.cli.references import Reference, importable
from fxplug.cli.report import Job, stored_module, write_files
from fxplug.cli.sections import SectionObservers
from fxplug.cli.terminal import arrow
from fxplug.cli.wording import capture_text, error_text, latency_text, node_text, size_text, tolerance_text
from fxplug.lower.lowered import ON_MISMATCH
from fxplug.passes import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from fxplug.api import OptimizationEvent
    from fxplug.lower import OnMismatch
    from fxplug.passes import Level
    from fxplug.plugins import PluginManager

__all__ = ["optimize"]


_SHOWN_GUARDS = 6

_HELP = """\
Capture MODEL, run passes on it, check the result against eager PyTorch, measure both, and write it.

MODEL is package.module:callable or path.py:callable: a torch.nn.Module, or a function or class without arguments
that gives one; or a file that ends in .fxplug. It is put into evaluation mode (see --training).

It is captured so that it takes inputs of any size, where that is possible. Otherwise it runs on the inputs given here,
and the result has guards: it refuses inputs with which the program would go another way (see --mode).

\b
With --out the folder holds
  module.fxplug   the module with its weights, for fxplug.load
  module.py       the program as Python, to be read
  report.json     what was done and measured, for programs
  report.md       the same for people
complete, or not at all.
"""


@dataclass(frozen=True)
class _Options:
    """The options of the command."""

    model: str
    examples: tuple[str, ...]
    example_from: str | None
    mode: str | None
    pipeline: str | None
    passes: tuple[str, ...]
    backend: str | None
    out: Path | None
    config: Path | None
    rtol: float | None
    atol: float | None
    runs: int | None
    allow: tuple[str, ...]
    measure: bool
    training: bool
    strict: bool
    on_mismatch: OnMismatch
    verify: Level | None
    quiet: bool
    disable: tuple[str, ...]
    settings: tuple[str, ...]

    def check(self) -> None:
        """Refuse combinations that make no sense."""
        if self.pipeline is not None and self.passes:
            raise click.UsageError(
                "--pipeline and --pass exclude each other: name a pipeline, or its passes."
            )
        if self.on_mismatch != "error" and self.backend is None:
            raise click.UsageError("--on-mismatch is about partitions of a backend: name one with --backend.")
        if self.examples and self.example_from is not None:
            raise click.UsageError("--example and --example-from exclude each other.")
        if not self.examples and self.example_from is None:
            raise click.UsageError(
                "The model is run to check the result, so it needs inputs: --example 1x3x224x224 (once per input), or "
                "--example-from path.py:callable."
            )


@click.command(
    help=_HELP,
    short_help="Capture a model, transform it, check it, measure it, write it.",
    no_args_is_help=True,
)
@click.argument("model")
@click.option(
    "--example",
    "examples",
    multiple=True,
    metavar="SHAPE[:DTYPE[:BOUND]]",
    help="An input, as 1x3x224x224 or 1x16:int64; once per input, in order. Floats are drawn from the normal "
    "distribution, integers below BOUND (by default 2; for uint8 256), the same at every call.",
)
@example_from_option
@prepared_mode_option
@click.option(
    "--pipeline", metavar="NAME", help="The passes to run, by the name of a pipeline. [default: inference]"
)
@click.option("--pass", "passes", multiple=True, metavar="NAME", help="A pass to run instead; repeatable.")
@click.option(
    "--disable", multiple=True, metavar="PASS", help="A pass of the pipeline that does not run; repeatable."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PASS.OPTION=VALUE",
    help="An option of a pass, or its time_limit, for this run; VALUE as in TOML, or text; repeatable.",
)
@click.option("--backend", metavar="NAME", help="A backend that takes over the transformed model.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the module, readable Python and reports; an earlier result in it is replaced.",
)
@config_option
@tolerance_options
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    metavar="N",
    help="How often each version is measured. [default: 7 to 51]",
)
@click.option("--no-measure", "measure", flag_value=False, default=True, help="Do not measure latency.")
@click.option(
    "--allow",
    multiple=True,
    metavar="NAME",
    help="A function, as package.module:function, that the written module, or a file that is read, may name although "
    "fxplug does not know it; repeatable. Loading the module needs the same.",
)
@training_option
@click.option(
    "--strict", is_flag=True, help="Fail when the backend cannot take the model, instead of staying eager."
)
@click.option(
    "--on-mismatch",
    type=click.Choice(ON_MISMATCH),
    default="error",
    show_default=True,
    help="What partitions of the backend do with inputs of other sizes, dtypes or values than those here: an error, or "
    "PyTorch runs them.",
)
@click.option(
    "--verify",
    type=click.Choice(LEVELS),
    help="What is checked after each pass: the graph (structure), also shapes, values, gradients of the module on the "
    "inputs, and everything (paranoid). [default: what the pipeline says]",
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@traceback_option
@click.pass_context
def optimize(context: click.Context, **options: Any) -> None:
    """Optimise a model; see `_HELP`."""
    wanted = _Options(**options)
    wanted.check()
    view = make_view(quiet=wanted.quiet)
    override = command_overrides(wanted.disable, wanted.settings)
    try:
        with override:
            _run(context, wanted, view)
    finally:
        view.stop()


def _run(context: click.Context, wanted: _Options, view: View) -> None:
    manager = manager_for(wanted.config)
    _check_names(manager, wanted)
    folder = None if wanted.out is None else OutputFolder(wanted.out)
    if folder is not None:
        folder.check()
    model, inputs = _load(context, wanted, manager)
    changed_mode = model.training and not wanted.training
    if changed_mode:
        model.eval()
    job = Job(
        model=wanted.model,
        class_name=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        inputs=inputs,
        examples=tuple(describe(value) for value in inputs),
        backend=wanted.backend,
    )
    view.title(list(_title(job, changed_mode=changed_mode)))
    observers = None if folder is None else SectionObservers(manager)
    result = optimize_module(
        model,
        inputs,
        pipeline=wanted.pipeline,
        passes=wanted.passes or None,
        backend=wanted.backend,
        manager=manager,
        observer=view.hear if observers is None else _both(view.hear, observers.hear),
        rtol=wanted.rtol,
        atol=wanted.atol,
        measure=wanted.measure,
        runs=wanted.runs,
        strict=wanted.strict,
        on_mismatch=wanted.on_mismatch,
        verify=wanted.verify,
        mode=wanted.mode,
    )
    left_out: list[str] = []
    if folder is not None and observers is not None:
        with folder.writing() as place:
            left_out = write_files(place, job, result, wanted.allow, manager, observers)
    view.summary(list(_summary(job, result, wanted.out, wanted.allow)))
    if not wanted.quiet:
        for warning in [*_warnings(result, folder), *left_out]:
            warn(warning)


def _both(
    first: Callable[[OptimizationEvent], None], second: Callable[[OptimizationEvent], None]
) -> Callable[[OptimizationEvent], None]:
    def hear(event: OptimizationEvent) -> None:
        first(event)
        second(event)

    return hear


def _check_names(manager: PluginManager, wanted: _Options) -> None:
    """Refuse unknown names before the model is loaded, which may take long."""
    for name in wanted.passes:
        manager.find_pass(name)
    pipeline = manager.resolve_pipeline(list(wanted.passes) or wanted.pipeline or DEFAULT_PIPELINE)
    check_overrides(manager, pipeline, wanted.settings)
    if wanted.backend is not None:
        manager.backend_options(wanted.backend)


def _load(
    context: click.Context, wanted: _Options, manager: PluginManager
) -> tuple[nn.Module, tuple[Any, ...]]:
    inputs: tuple[Any, ...]
    if wanted.example_from is None:
        inputs = make_examples(wanted.examples)
        return model_or_file(context, wanted.model, wanted.allow, manager), inputs
    source = Reference.parse(wanted.example_from, "example")
    context.with_resource(importable(source.folder))
    model = model_or_file(context, wanted.model, wanted.allow, manager)
    return model, read_examples(source, model)


def _title(job: Job, *, changed_mode: bool) -> Iterator[str]:
    yield f"{job.model}: {job.class_name}, {job.parameters:,} parameters, with {', '.join(job.examples) or 'no input'}"
    yield f"fxplug {fxplug.__version__}, PyTorch {torch.__version__}, {torch.get_num_threads()} threads"
    if changed_mode:
        yield MODE_CHANGED


def _summary(
    job: Job, result: OptimizationResult, out: Path | None, allow: Sequence[str]
) -> Iterator[tuple[str, str]]:
    yield "captured", capture_text(result)
    for guard in result.guards[:_SHOWN_GUARDS]:
        yield "guard", guard.text
    if len(result.guards) > _SHOWN_GUARDS:
        where = "report.md lists them" if out is not None else "--out DIR writes a list"
        yield "", f"{len(result.guards) - _SHOWN_GUARDS} more guards; {where}"
    ran = [report for report in result.passes if report.result is not None]
    changed = [report.name for report in ran if report.result is not None and report.result.modified]
    yield (
        "passes",
        f"{len(ran)} ran, {len(changed)} changed the model" + (f": {', '.join(changed)}" if changed else ""),
    )
    for report in ran:
        if report.verified:
            yield "verified", f"{report.name}: {report.verified}"
    yield "nodes", node_text(result.traced_nodes, result.nodes, arrow())
    if result.lowering is not None:
        supported = len(result.lowering.nodes) - len(result.lowering.unsupported)
        outcome = _outcome(result)
        yield (
            "backend",
            f"{job.backend}: {supported} of {len(result.lowering.nodes)} calls supported, {outcome}",
        )
    yield "largest error", f"{error_text(result.check)}; allowed: {tolerance_text(result.check)}"
    yield "latency", "not measured" if result.latency is None else latency_text(result.latency, arrow())
    if out is None:
        yield "written", "nothing; --out DIR writes the module and reports"
        return
    others = sorted({entry.name for entry in out.iterdir()} - set(FILES))
    files = ", ".join(f"{name} ({size_text((out / name).stat().st_size)})" for name in (*FILES, *others))
    yield "written", f"{out}{os.sep}: {files}"
    allowed = f", allow={list(allow)}" if allow else ""
    yield "to use it", f"fxplug.load({str(out / FILES[0])!r}{allowed})"


def _outcome(result: OptimizationResult) -> str:
    if result.fallback or result.lowering is None:
        return "the module stays eager"
    if not result.lowering.eager:
        return "runs the module"
    built = [partition for partition in result.lowering.partitions if not partition.fallback]
    return f"runs {len(built)} partition{'' if len(built) == 1 else 's'}"


def _warnings(result: OptimizationResult, folder: OutputFolder | None) -> Iterator[str]:
    yield from result.warnings
    if folder is not None and result.module is not stored_module(result):
        yield (
            "module.fxplug holds the module before the backend took it over: what "
            f"{result.lowering.backend if result.lowering else 'it'!r} made of it cannot be stored."
        )
