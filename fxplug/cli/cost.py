"""``fxplug cost``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fxplug.analyze import CostRow, estimate_time
from fxplug.analyze.cost import COST_COLUMNS
from fxplug.api import cost as cost_of
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

    from fxplug.analyze import CostTable, Estimate

__all__ = ["cost"]

_HELP = """\
Count the multiply-adds of MODEL on the example inputs, the bytes that it moves, and the memory that it takes.

MODEL is package.module:callable, path.py:callable, or a file that ends in .fxplug. Nothing is computed: all is counted
from shapes. Models larger than memory are costed with --device meta, which makes them without weights. A model is put
into evaluation mode (see --training).
"""

_NAMED = {"name", "kind", "line"}
_COLUMNS = [name for name in COST_COLUMNS if name not in _NAMED]


@click.command(
    help=_HELP, short_help="Count multiply-adds, bytes and memory, node by node.", no_args_is_help=True
)
@click.option(
    "--device-name",
    metavar="NAME",
    help="Also estimate the least time on a device that fxplug or a plugin describes, e.g. nvidia-h200-sxm.",
)
@table_command(_COLUMNS, "multiply_adds")
def cost(context: click.Context, reference: str, config: Path | None, **options: Any) -> None:
    """Cost a model; see `_HELP`."""
    manager = manager_for(config)
    by, sort, top, csv_file = (options.pop(name) for name in TABLE_OPTIONS)
    mode, device_name, as_json = (options.pop(name) for name in ("mode", "device_name", "as_json"))
    record = None if device_name is None else manager.find_device(device_name).record
    check_csv(csv_file)
    (model,), inputs = models_and_inputs(context, (reference,), manager=manager, **options)
    table = cost_of(model, inputs, mode=mode, manager=manager)
    estimated = None if record is None else estimate_time(table, record)
    rows = table.rows(by, None if sort == "program" else sort)
    if csv_file is not None:
        write_csv(csv_file, rows, COST_COLUMNS)
    if as_json:
        print_json({**_as_data(table, rows, by, estimated), "training": model.training})
        return
    _show(table, rows, by, top)
    click.echo(f"model             in {mode_text(model)}")
    if estimated is not None:
        _show_estimate(table, estimated)


def _as_data(table: CostTable, rows: list[CostRow], by: str, estimated: Estimate | None) -> dict[str, Any]:
    peak = table.peak_node
    return {
        "format": "fxplug-cost",
        "version": 1,
        "by": by,
        "multiply_adds": table.multiply_adds,
        "bytes": table.bytes,
        "parameter_bytes": table.parameter_bytes,
        "buffer_bytes": table.buffer_bytes,
        "input_bytes": table.input_bytes,
        "peak_activation_bytes": table.peak_activation_bytes,
        "peak_bytes": table.peak_bytes,
        "peak_node": None if peak is None else peak.name,
        "unknown": [node.name for node in table.unknown],
        "estimate": None
        if estimated is None
        else {"device": estimated.device.name, "seconds": estimated.seconds},
        "rows": plain_data(rows),
    }


def _show(table: CostTable, rows: list[CostRow], by: str, top: int | None) -> None:
    header = ("name", "kind", "calls", "multiply-adds", "%", "moved", "parameters", "result", "peak", "line")
    total = table.multiply_adds or 1
    print_rows(
        header,
        [
            (
                name_text(row.name, by),
                row.kind,
                str(row.calls),
                _count_text(row),
                f"{row.multiply_adds / total:.1%}",
                size_text(row.bytes_read + row.bytes_written),
                size_text(row.parameter_bytes),
                _size_or_unknown(row.allocated_bytes),
                _size_or_unknown(row.peak_bytes),
                place_text(row.line),
            )
            for row in rows
        ],
        top,
    )
    peak = table.peak_node
    where = "" if peak is None else f", at {peak.name}" + (f" ({peak.line})" if peak.line else "")
    click.echo(f"calls             {len(table.nodes):,}")
    click.echo(f"multiply-adds     {table.multiply_adds:,}")
    click.echo(f"moved             {size_text(table.bytes)} read and written")
    click.echo(f"parameters        {size_text(table.parameter_bytes)} ({table.parameter_bytes:,} bytes)")
    click.echo(f"buffers           {size_text(table.buffer_bytes)}")
    click.echo(f"inputs            {size_text(table.input_bytes)}")
    if table.peak_activation_bytes is None or table.peak_bytes is None:
        click.echo("peak memory       unknown: the tensors of this program cannot be followed")
    else:
        click.echo(f"activations       {size_text(table.peak_activation_bytes)} at the most{where}")
        click.echo(f"peak memory       {size_text(table.peak_bytes)} ({table.peak_bytes:,} bytes)")
    names = [f"{node.name} ({node.target})" for node in table.unknown]
    click.echo(f"unknown calls     {', '.join(names) or 'none'}")


def _count_text(row: CostRow) -> str:
    if row.unknown == row.calls:
        return "unknown"
    return f"{row.multiply_adds:,}" + (" + unknown" if row.unknown else "")


def _size_or_unknown(size: int | None) -> str:
    return "" if size is None else size_text(size)


def _show_estimate(table: CostTable, estimated: Estimate) -> None:
    device, needed = estimated.device, table.peak_bytes
    click.echo(
        f"on {device.name}: at least {time_text(estimated.seconds)}, from data-sheet figures, not measured"
    )
    if needed is not None:
        fits = "fits into" if needed <= device.memory_bytes else "does not fit into"
        click.echo(f"                  {fits} its {size_text(device.memory_bytes)}")
