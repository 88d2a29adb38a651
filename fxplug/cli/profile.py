"""``fxplug profile``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import torch

from fxplug.analyze.profiling import PROFILE_COLUMNS
from fxplug.api import profile as measure
from fxplug.cli.data import plain_data, print_json
from fxplug.cli.host import manager_for
from fxplug.cli.models import mode_text, models_and_inputs
from fxplug.cli.tables import (
    TABLE_OPTIONS,
    check_csv,
    name_text,
    place_text,
    print_rows,
    table_command,
    write_csv,
)
from fxplug.cli.wording import size_text, time_text

if TYPE_CHECKING:
    from pathlib import Path

    from fxplug.analyze.profiling import Profile, ProfileRow

__all__ = ["profile"]

_HELP = """\
Measure the time and the memory that every node of MODEL takes on the example inputs.

MODEL is package.module:callable, path.py:callable, or a file that ends in .fxplug. Shown are medians over several runs
behind a warm-up, half the range of the middle half of the runs, and how far the sum of the nodes is from the time of
the whole model. A model is put into evaluation mode (see --training); gradients are not computed.
"""

_COLUMNS = ("seconds", "share", "spread", "calls", "allocated_bytes", "peak_bytes")


@click.command(help=_HELP, short_help="Measure the time and memory of every node.", no_args_is_help=True)
@click.option("--runs", type=int, default=10, show_default=True, help="Runs that are measured.")
@click.option("--warm-up", type=int, default=3, show_default=True, help="Runs before.")
@click.option(
    "--threads", type=click.IntRange(min=1), help="Threads of PyTorch.  [default: as PyTorch chooses]"
)
@table_command(_COLUMNS, "seconds")
def profile(context: click.Context, reference: str, config: Path | None, **options: Any) -> None:
    """Profile a model; see `_HELP`."""
    manager = manager_for(config)
    by, sort, top, csv_file = (options.pop(name) for name in TABLE_OPTIONS)
    chosen = {name: options.pop(name) for name in ("runs", "warm_up", "mode")}
    threads, as_json = (options.pop(name) for name in ("threads", "as_json"))
    check_csv(csv_file)
    if threads is not None:
        former = torch.get_num_threads()
        context.call_on_close(lambda: torch.set_num_threads(former))
        torch.set_num_threads(threads)
    (model,), inputs = models_and_inputs(context, (reference,), manager=manager, **options)
    measured = measure(model, inputs, manager=manager, **chosen)
    rows = measured.rows(by, None if sort == "program" else sort)
    if csv_file is not None:
        write_csv(csv_file, rows, PROFILE_COLUMNS)
    if as_json:
        print_json({**_as_data(measured, rows, by), "training": model.training})
    else:
        _show(measured, rows, by, top, mode_text(model))


def _as_data(measured: Profile, rows: list[ProfileRow], by: str) -> dict[str, Any]:
    return {
        "format": "fxplug-profile",
        "version": 1,
        "by": by,
        "device": measured.device,
        "threads": measured.threads,
        "runs": measured.runs,
        "warm_up": measured.warm_up,
        "whole_seconds": measured.whole_seconds,
        "whole_spread": measured.whole_spread,
        "sum_seconds": measured.sum_seconds,
        "overhead_seconds": measured.overhead_seconds,
        "covered": measured.covered,
        "peak_bytes": measured.peak_bytes,
        "rows": plain_data(rows),
    }


def _show(measured: Profile, rows: list[ProfileRow], by: str, top: int | None, mode: str) -> None:
    header = ("name", "kind", "calls", "time", "±", "%", "result", "peak", "line")
    print_rows(
        header,
        [
            (
                name_text(row.name, by),
                row.kind,
                str(row.calls),
                time_text(row.seconds),
                f"{row.spread:.0%}",
                f"{row.share:.1%}",
                size_text(row.allocated_bytes),
                size_text(row.peak_bytes),
                place_text(row.line),
            )
            for row in rows
        ],
        top,
    )
    count = len(measured.nodes)
    threads = ""
    if "cpu" in measured.device:
        threads = f", {measured.threads} thread{'' if measured.threads == 1 else 's'}"
    click.echo(
        f"whole model  {time_text(measured.whole_seconds)} ±{measured.whole_spread:.0%}, with nothing measured inside"
    )
    click.echo(f"sum of nodes {time_text(measured.sum_seconds)}, of {count} calls")
    click.echo(
        f"measuring    {time_text(measured.overhead_seconds)} for each call, in the figures above; without it the sum "
        f"is {measured.covered:.0%} of the whole"
    )
    click.echo(f"memory       {size_text(measured.peak_bytes)} of tensors at the most")
    click.echo(
        f"measured     medians of {measured.runs} runs behind {measured.warm_up}, on {measured.device}{threads}"
    )
    click.echo(f"model        in {mode}")
