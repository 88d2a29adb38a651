"""``fxplug bisect``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fxplug.api import bisect as search
from fxplug.api.reproduction import FILES, FORMAT
from fxplug.cli.compare import finite
from fxplug.cli.data import json_option, plain_data, print_json
from fxplug.cli.examples import prepared_mode_option
from fxplug.cli.failures import FAILED, traceback_option, warn
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.models import input_options, models_and_inputs, tolerance_options
from fxplug.storage.folders import OutputFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug.api import BisectResult

__all__ = ["bisect"]


@dataclass(frozen=True)
class _Options:
    """The options of the command, but for the inputs."""

    model: str
    mode: str | None
    pipeline: str | None
    passes: tuple[str, ...]
    rtol: float | None
    atol: float | None
    slower_than: float | None
    out: Path | None
    quiet: bool
    as_json: bool
    config: Path | None


_OPTIONS = tuple(entry.name for entry in fields(_Options))

_HELP = """\
Find the pass, the rewrite in it and the node that make the result of a pipeline wrong.

MODEL is package.module:callable, path.py:callable, or a file that ends in .fxplug. It is put into evaluation mode (see
--training). Wrong is a result that differs from that of MODEL by more than is allowed, or an error; with --slower-than,
one that takes too long.

\b
With --out the folder holds
  README.md, report.json   what was found, for people and for programs
  before.*, after.*        the module before the pass and after it, with weights and to be read
  inputs.fxplug            inputs; expected.fxplug: the right result
  config.json              the passes with their options
  reproduce.py             shows the failure alone, in a fresh process
complete, or not at all.

Exit code 0: nothing is wrong; 1: something was found.
"""


@click.command(
    help=_HELP,
    short_help="Find the pass, the rewrite and the node that made a result wrong.",
    no_args_is_help=True,
)
@click.argument("model")
@input_options
@prepared_mode_option
@click.option(
    "--pipeline", metavar="NAME", help="The passes, by the name of a pipeline.  [default: inference]"
)
@click.option("--pass", "passes", multiple=True, metavar="NAME", help="A pass instead; repeatable.")
@tolerance_options
@click.option(
    "--slower-than",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATIO",
    help="Search for what makes the model take more than RATIO times as long as before the passes, by medians. "
    "Measured times are noisy: choose a RATIO well above 1.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder that shows the failure alone; an earlier one is replaced.",
)
@click.option("--quiet", is_flag=True, help="Do not tell what is tried.")
@json_option
@config_option
@traceback_option
@click.pass_context
def bisect(context: click.Context, **options: Any) -> None:
    """Search for what makes a result wrong; see `_HELP`."""
    wanted, given = _Options(**{name: options.pop(name) for name in _OPTIONS}), options
    if wanted.pipeline is not None and wanted.passes:
        raise click.UsageError("--pipeline and --pass exclude each other: name a pipeline, or its passes.")
    manager = manager_for(wanted.config)
    for name in wanted.passes:
        manager.find_pass(name)
    if wanted.out is not None:
        OutputFolder(wanted.out, FILES, FORMAT).check()
    (module,), inputs = models_and_inputs(context, (wanted.model,), manager=manager, **given)
    found = search(
        module,
        inputs,
        pipeline=wanted.pipeline,
        passes=wanted.passes or None,
        rtol=wanted.rtol,
        atol=wanted.atol,
        slower_than=wanted.slower_than,
        mode=wanted.mode,
        manager=manager,
        observer=None if wanted.quiet else _teller(),
    )
    if wanted.as_json:
        print_json(finite({"format": FORMAT, "version": 1, "found": found.found, **_as_data(found)}))
    else:
        for label, text in _facts(found):
            click.echo(f"{label:<9}{text}".rstrip())
    if not found.found:
        return
    if wanted.out is not None:
        for left_out in found.write(wanted.out, allow=given["allow"], manager=manager):
            warn(left_out)
        script = wanted.out / "reproduce.py"
        click.echo(f"written  {wanted.out}; python {script} shows it again", err=wanted.as_json)
    context.exit(FAILED)


def _teller() -> Callable[[str], None]:
    """Return what prints numbered lines on standard error."""
    numbers = itertools.count(1)
    return lambda what: click.echo(f"run {next(numbers)}: {what}", err=True)


def _as_data(found: BisectResult) -> dict[str, Any]:
    data = plain_data(replace(found, failure=None))
    del data["failure"]
    return data


def _facts(found: BisectResult) -> Iterator[tuple[str, str]]:
    """Yield label and text; a label that is empty continues the one above."""
    culprit, rewrite, node = found.culprit, found.rewrite, found.node
    if culprit is None:
        yield "result", "nothing is wrong"
        yield "runs", str(found.runs)
        return
    yield "result", f"{found.judgement.kind}: {found.judgement.text}"
    yield "pass", f"{culprit.name} of {culprit.provider}, {culprit.position + 1} of {culprit.total}"
    if culprit.needs:
        yield "", f"right by itself, wrong after {', '.join(culprit.needs)}"
    if rewrite is not None:
        yield "rewrite", f"{rewrite.what} {rewrite.node}, {rewrite.position + 1} of {rewrite.total}"
        if rewrite.line:
            yield "", f"from {rewrite.line}"
        if not rewrite.is_bad_alone:
            yield "", "right by itself, wrong after those before it"
    if node is not None:
        yield "node", f"{node.name}, a {node.opcode} of {node.target}"
        for text in (
            f"from {node.line}" if node.line else "",
            f"inside {node.module_path}" if node.module_path else "",
            f"computed from new nodes: {', '.join(node.new_inputs)}" if node.new_inputs else "",
            node.reason,
        ):
            if text:
                yield "", text
    for note in found.notes:
        yield "note", note
    yield "runs", str(found.runs)
