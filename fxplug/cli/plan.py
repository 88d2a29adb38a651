"""``fxplug plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fxplug.api import plan as plan_lowering
from fxplug.cli.data import json_option, plain_data, print_json
from fxplug.cli.examples import prepared_mode_option
from fxplug.cli.failures import traceback_option
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.models import input_options, models_and_inputs
from fxplug.cli.tables import place_text
from fxplug.cli.terminal import print_table
from fxplug.cli.wording import size_text
from fxplug.lower import EAGER_PIN, Choices

if TYPE_CHECKING:
    from pathlib import Path

    from fxplug.lower import LoweringReport

__all__ = ["plan"]

_HELP = """\
Show what backends would run of MODEL, in which partitions, and why the rest would stay in PyTorch. Builds nothing.

MODEL is package.module:callable, path.py:callable, or a file that ends in .fxplug. It is captured and transformed as
'fxplug optimize' does it, and put into evaluation mode (see --training). Each call that stays behind is named with its
reason and its line, and with how many partitions there would be if calls of its kind were supported.
"""


@click.command(
    help=_HELP, short_help="What backends would run of a model, without building it.", no_args_is_help=True
)
@click.argument("reference", metavar="MODEL")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    required=True,
    metavar="NAME",
    help="A backend; repeatable: the first that supports a call runs it.",
)
@input_options
@prepared_mode_option
@click.option("--pipeline", metavar="NAME", help="The passes that run before. [default: inference]")
@click.option(
    "--min-block-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Partitions with fewer calls that compute stay in PyTorch.",
)
@click.option(
    "--max-transfer",
    type=click.FloatRange(min=0),
    metavar="BYTES",
    help="Partitions that move more bytes in and out for each multiply-add or element computed stay in PyTorch.",
)
@click.option(
    "--pin",
    "pins",
    multiple=True,
    metavar="NODE=BACKEND",
    help="The backend that alone may run a node; NODE= for PyTorch; repeatable.",
)
@click.option(
    "--together",
    multiple=True,
    metavar="NODE,NODE",
    help="Nodes that come into one partition or into none; repeatable.",
)
@json_option
@config_option
@traceback_option
@click.pass_context
def plan(  # noqa: PLR0913 - one for each option
    context: click.Context,
    reference: str,
    *,
    backends: tuple[str, ...],
    mode: str | None,
    pipeline: str | None,
    min_block_size: int,
    max_transfer: float | None,
    pins: tuple[str, ...],
    together: tuple[str, ...],
    as_json: bool,
    config: Path | None,
    **options: Any,
) -> None:
    """Plan a lowering; see `_HELP`."""
    manager = manager_for(config)
    for name in backends:  # Before the model is loaded, which may take long.
        manager.backend_options(name)
    choices = Choices(
        min_block_size=min_block_size,
        together=tuple(tuple(part.strip() for part in names.split(",")) for names in together),
        pins=dict(map(_pin, pins)),
        max_transfer=max_transfer,
    )
    (model,), inputs = models_and_inputs(context, (reference,), manager=manager, **options)
    report = plan_lowering(
        model, inputs, backend=backends, pipeline=pipeline, choices=choices, mode=mode, manager=manager
    )
    if as_json:
        print_json({"format": "fxplug-plan", "version": 1, **_as_data(report)})
    else:
        _show(report)


def _pin(text: str) -> tuple[str, str]:
    node, sign, backend = text.partition("=")
    if not node or not sign:
        raise click.BadParameter(f"{text!r} is not NODE=BACKEND, such as conv=openvino.", param_hint="--pin")
    return node.strip(), backend.strip() or EAGER_PIN


def _as_data(report: LoweringReport) -> dict[str, Any]:
    return {"coverage": report.coverage, **plain_data(report)}


def _show(report: LoweringReport) -> None:
    supported = len(report.nodes) - len(report.unsupported)
    click.echo(f"{supported} of {len(report.nodes)} calls are supported by {report.backend}")
    click.echo()
    if report.partitions:
        header = ("partition", "backend", "calls", "compute", "in and out")
        rows = [
            (
                part.name,
                part.backend,
                str(len(part.nodes)),
                str(part.compute_nodes),
                "unknown" if part.transfer_bytes is None else size_text(part.transfer_bytes),
            )
            for part in report.partitions
        ]
        print_table(header, rows)
    else:
        click.echo("There is no partition: all calls run in PyTorch.")
    stays = [node for node in report.nodes if not node.partition]
    if not stays:
        return
    merges = {name: entry.partitions for entry in report.missing for name in entry.nodes}
    click.echo()
    click.echo("1 call stays in PyTorch:" if len(stays) == 1 else f"{len(stays)} calls stay in PyTorch:")
    rows = [
        (
            node.name,
            node.target,
            place_text(node.source),
            node.reason or "no reason given",
            _partitions(merges.get(node.name)),
        )
        for node in stays
    ]
    print_table(("call", "target", "line", "reason", "if its kind was supported"), rows)


def _partitions(count: int | None) -> str:
    return "" if count is None else f"{count} partition{'' if count == 1 else 's'}"
