"""The command ``fxplug view``. Imported when it is called, since it needs click."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch

import fxplug
from fxplug.analyze import propagate_shapes
from fxplug.cli import captured_module, config_option, manager_for, traceback_option
from fxplug.cli.examples import check_examples, example_inputs, example_options
from fxplug.cli.references import load_model
from fxplug.errors import ConfigError, StorageError
from fxplug_viz.labels import counted
from fxplug_viz.pass_steps import PassSteps
from fxplug_viz.viewer import view as write_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxplug import GraphModule
    from fxplug.plugins import PluginManager

__all__ = ["view"]

_HELP = """\
Write a page that shows the graph of MODEL: one HTML file that a browser opens and that loads nothing.

MODEL is a file that ends in .fxplug, such as fxplug.save and fxplug optimize write, or package.module:callable or
path.py:callable, which is captured. With an example the page shows shapes and what each node costs.

With --pipeline or --pass the page shows what passes make of the graph: a slider goes through them, one step each.
"""


@click.command("view", help=_HELP, no_args_is_help=True)
@click.argument("reference", metavar="MODEL")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    help="Where the page goes; an older file is replaced.  [default: the name of MODEL, in the working directory]",
)
@click.option("--title", help="Stands above the picture; by default the class of the module.")
@click.option("--pipeline", metavar="NAME", help="Run this pipeline, and show the graph behind each pass.")
@click.option(
    "--pass",
    "passes",
    multiple=True,
    metavar="NAME",
    help="Run this pass, and show the graph behind it; repeatable.",
)
@click.option(
    "--profile", "measure", is_flag=True, help="Also measure the time of every node on the example."
)
@click.option(
    "--runs", type=click.IntRange(min=1), default=10, show_default=True, help="How often, with --profile."
)
@click.option(
    "--device-name",
    metavar="NAME",
    help="Also estimate the least time on a device that fxplug or a plugin describes, e.g. nvidia-h200-sxm.",
)
@click.option(
    "--table",
    "tables",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE.csv",
    help="Lay the columns of a table over the picture; its first column, or 'name', holds names of nodes. Repeatable.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="NAME",
    help="A function that the file may name, as package.module:function. Can be repeated.",
)
@example_options
@config_option
@traceback_option
@click.pass_context
def view(context: click.Context, reference: str, out: Path | None, title: str | None, **options: Any) -> None:
    """Write the page; see `_HELP`."""
    examples, example_from = options["examples"], options["example_from"]
    check_examples(examples, example_from)
    manager = manager_for(options["config"])
    if not examples and example_from is None and (options["measure"] or options["device_name"]):
        raise click.UsageError(
            "--profile and --device-name need inputs: --example 1x3x224x224 (once per input)."
        )
    _check_steps(options)
    module, inputs = _captured(context, reference, options, manager)
    target = _default_name(reference) if out is None else out
    if options["pipeline"] or options["passes"]:
        steps = _steps(module, inputs, options, manager)
        steps.view(target, title=title)
        click.echo(
            f"Wrote {target}: {counted(len(steps.steps) - 1, 'pass', 'passes')}, "
            f"{counted(len(module.graph.nodes), 'node')} behind the last one. Open it in a browser."
        )
        return
    overlays = {} if inputs is None else _numbers(module, inputs, options, manager)
    overlays.update({path.stem: _read_table(path) for path in options["tables"]})
    write_view(module, target, overlays, title=title)
    click.echo(f"Wrote {target}: {counted(len(module.graph.nodes), 'node')}. Open it in a browser.")


def _check_steps(options: dict[str, Any]) -> None:
    if options["pipeline"] and options["passes"]:
        raise click.UsageError("--pipeline and --pass exclude each other: name a pipeline, or its passes.")
    numbers = options["measure"] or options["device_name"] or options["tables"]
    if numbers and (options["pipeline"] or options["passes"]):
        raise click.UsageError(
            "--profile, --device-name and --table are about one graph, and passes make several. Write the result of "
            "the passes with 'fxplug optimize --out DIR', and view DIR/module.fxplug."
        )


def _steps(
    module: GraphModule, inputs: Sequence[Any] | None, options: dict[str, Any], manager: PluginManager
) -> PassSteps:
    """Run the passes and return what they made."""
    example = None if inputs is None else tuple(inputs)
    steps = PassSteps()
    pipeline = manager.resolve_pipeline(list(options["passes"]) or options["pipeline"])
    with torch.no_grad():
        pipeline.run(module, example, [steps])
    return steps


def _captured(
    context: click.Context,
    reference: str,
    options: dict[str, Any],
    manager: PluginManager,
) -> tuple[GraphModule, tuple[Any, ...] | None]:
    """Return the graph module that a reference names, and the inputs that the options give."""
    given = options["examples"], options["example_from"]
    if reference.endswith(".fxplug"):
        module = captured_module(context, reference, allow=options["allow"], manager=manager)
        inputs = example_inputs(context, *given, module)
    else:
        model = load_model(context, reference)
        model.eval()
        inputs = example_inputs(context, *given, model)
        module = fxplug.trace(model, inputs, mode=options["mode"], manager=manager)
    if inputs is not None:
        propagate_shapes(module, *inputs)
    return module, inputs


def _numbers(
    module: GraphModule, inputs: Sequence[Any], options: dict[str, Any], manager: PluginManager
) -> dict[str, Any]:
    name = options["device_name"]
    tables: dict[str, Any] = {"cost": fxplug.cost(module, tuple(inputs), manager=manager)}
    if name is not None:
        tables[name] = fxplug.estimate(module, tuple(inputs), name, manager=manager)
    if options["measure"]:
        tables["profile"] = fxplug.profile(module, tuple(inputs), runs=options["runs"], manager=manager)
    return tables


def _default_name(reference: str) -> Path:
    place, _, name = reference.partition(":")
    return Path(f"{name.replace('.', '-') or Path(place).stem}.html")


def _read_table(path: Path) -> dict[str, dict[str, float | str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StorageError(
            f"Cannot read the table {str(path)!r}: {error}. Name a file of comma-separated values."
        ) from error
    if len(head) < 2:
        raise ConfigError(
            f"Cannot lay the table {str(path)!r} over the graph: its first line names "
            f"{counted(len(head), 'column')}. It needs one for the names of nodes and one for each number or text: "
            "name,seconds."
        )
    at = head.index("name") if "name" in head else 0
    table: dict[str, dict[str, float | str]] = {}
    for row in rows:
        cells = {column: _cell(text) for column, text in zip(head, row, strict=False) if text}
        table[row[at] if at < len(row) else ""] = {
            key: cell for key, cell in cells.items() if key != head[at]
        }
    return table


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
