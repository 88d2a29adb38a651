"""``fxplug compare``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from fxplug.api import compare as compare_modules
from fxplug.cli.data import json_option, plain_data, print_json
from fxplug.cli.examples import prepared_mode_option
from fxplug.cli.failures import FAILED, traceback_option
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.models import input_options, models_and_inputs, tolerance_options
from fxplug.cli.terminal import print_table

if TYPE_CHECKING:
    from pathlib import Path

    from fxplug.api import LayerComparison, ModuleComparison

__all__ = ["compare", "finite"]

_SHOWN = 20

_HELP = """\
Run REFERENCE and MODEL on the same inputs and compare, layer by layer, what they compute.

Each of the two is package.module:callable, path.py:callable, or a file that ends in .fxplug. What belongs together is
found by where in the program it comes from, so a model can be compared with what a pipeline made of it. Models are put
into evaluation mode (see --training).

Shown are the layers that differ by more than is allowed, in the order in which they run (--all shows every layer), and
the first one that differs although its inputs agree. Exit code 0: the outputs agree; 1: they do not.
"""


@click.command(
    help=_HELP, short_help="Compare two models layer by layer, on the same inputs.", no_args_is_help=True
)
@click.argument("reference")
@click.argument("model")
@input_options
@prepared_mode_option
@tolerance_options
@click.option("--any-dtype", is_flag=True, help="Let values have another dtype than in REFERENCE.")
@click.option("--all", "everything", is_flag=True, help="Show every layer.")
@json_option
@config_option
@traceback_option
@click.pass_context
def compare(context: click.Context, reference: str, model: str, config: Path | None, **options: Any) -> None:
    """Compare two models; see `_HELP`."""
    manager = manager_for(config)
    tolerance = {name: options.pop(name) for name in ("rtol", "atol")}
    mode, any_dtype, everything, as_json = (
        options.pop(name) for name in ("mode", "any_dtype", "everything", "as_json")
    )
    (right, judged), inputs = models_and_inputs(context, (reference, model), manager=manager, **options)
    found = compare_modules(
        right, judged, inputs, same_dtype=not any_dtype, mode=mode, manager=manager, **tolerance
    )
    if as_json:
        print_json(_as_data(found))
    else:
        _show(found, everything=everything)
    if not found.passed:
        context.exit(FAILED)


def finite(value: Any) -> Any:
    """Return plain data in which numbers that JSON does not have are None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, list) else value


def _as_data(found: ModuleComparison) -> dict[str, Any]:
    first, worst = found.first_difference, found.worst
    return {
        "format": "fxplug-comparison",
        "version": 1,
        "passed": found.passed,
        "first_difference": None if first is None else first.name,
        "worst": None if worst is None else worst.name,
        **finite(plain_data(found)),
    }


def _show(found: ModuleComparison, *, everything: bool) -> None:
    rows = list(found.layers if everything else found.differences)
    shown = rows if everything else rows[:_SHOWN]
    if shown:
        header = ("node", "in the reference", "target", "max error", "relative", "SQNR dB", "cosine", "")
        print_table(header, [_row(layer) for layer in shown], {"differs": "bold red", "ok": "green"})
        if len(rows) > len(shown):
            click.echo(f"{len(rows) - len(shown)} more differ; --all shows every layer.")
        click.echo()
    differing = len(found.differences)
    click.echo(f"layers            {len(found.layers)} compared, {differing} differ")
    for label, names in (
        ("only in reference", found.only_in_reference),
        ("only in model", found.only_in_module),
    ):
        click.echo(f"{label:<18}{', '.join(names) or 'none'}")
    if found.worst is not None:
        click.echo(
            f"worst             {found.worst.name}: {found.worst.max_rel_error:.2g} of the largest magnitude"
        )
    first = found.first_difference
    click.echo(f"first difference  {'none' if first is None else first.name}")
    if first is not None:
        _show_first(first)
    verdict = "agree" if found.passed else "do not agree"
    inside = "; what differs inside does not reach them" if found.passed and differing else ""
    click.echo(f"outputs           {verdict}{inside}")


def _show_first(first: LayerComparison) -> None:
    indent = " " * 18
    for label, text in (
        ("", first.reason),
        ("", f"from {first.line}" if first.line else ""),
        ("made by ", ", ".join(first.history)),
        ("computed from what only this model has: ", ", ".join(first.new_inputs)),
    ):
        if text:
            click.echo(f"{indent}{label}{text}")


def _row(layer: LayerComparison) -> tuple[str, ...]:
    return (
        layer.name,
        layer.reference,
        layer.target,
        f"{layer.max_abs_error:.2g}",
        f"{layer.max_rel_error:.2g}",
        f"{layer.sqnr:.1f}",
        f"{layer.cosine:.6f}",
        "ok" if layer.passed else "differs",
    )
