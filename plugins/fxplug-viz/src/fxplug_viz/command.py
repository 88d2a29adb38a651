"""The command ``fxplug draw``. Imported when it is called, since it needs click."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.console import Console

from fxplug.cli import capture_options, captured_module, config_option, manager_for, traceback_option
from fxplug_viz.drawing import draw as draw_picture
from fxplug_viz.labels import counted
from fxplug_viz.options import COLOURINGS, Direction, DrawOptions, Hidden
from fxplug_viz.rendering import Format, format_of
from fxplug_viz.tree import rich_tree, tree_text

if TYPE_CHECKING:
    from fxplug import GraphModule

__all__ = ["draw", "picture_options", "settings_of"]

_HELP = """\
Draw the graph of MODEL: as DOT text, as a picture that Graphviz makes of it, or as text.

MODEL is package.module:callable, path.py:callable, or a file that ends in .fxplug, such as fxplug.save and
fxplug optimize write. With an example, nodes show dtype and shape.
"""


def picture_options(function: Any) -> Any:
    """Give a command the options that say where and how a picture is made."""
    for option in (
        click.option("--title", help="Stands above the picture."),
        click.option(
            "--direction",
            type=click.Choice(get_args(Direction)),
            default="TB",
            show_default=True,
            help="From top to bottom, or from left to right.",
        ),
        click.option(
            "--clusters/--no-clusters", default=True, help="Draw a frame around each module, or none."
        ),
        click.option("--legend/--no-legend", default=True, help="Explain the colours, or not."),
        click.option(
            "--wrap/--no-wrap",
            default=None,
            help="Break a long graph into columns, or never.  [default: from 100 nodes]",
        ),
        click.option(
            "--detail",
            type=click.Choice(["auto", "full", "brief"]),
            default="auto",
            show_default=True,
            help="What a node shows.",
        ),
        click.option(
            "--longest",
            type=click.IntRange(min=1),
            default=80,
            show_default=True,
            help="Cut texts of more characters.",
        ),
        click.option(
            "--format",
            type=click.Choice(get_args(Format)),
            help="What is written.  [default: what the name of the file ends in]",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Where the picture goes, e.g. model.svg; an older file is replaced.",
        ),
    ):
        function = option(function)
    return function


def settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """Take the drawing options out of the options of a command."""
    return {name: options.pop(name) for name in DrawOptions.__dataclass_fields__ if name in options}


@click.command(help=_HELP, short_help="Draw the graph of a model.", no_args_is_help=True)
@click.argument("model")
@picture_options
@click.option(
    "--color-by",
    type=click.Choice(COLOURINGS),
    default="op",
    show_default=True,
    help="What colours tell: the opcode, who made a node, its partition, its dtype.",
)
@click.option(
    "--hide",
    type=click.Choice(get_args(Hidden)),
    multiple=True,
    help="Leave these nodes out; repeatable. constants: also the values among the arguments.",
)
@click.option(
    "--unfold",
    is_flag=True,
    help="Also draw the nodes inside graph modules that are called, such as partitions.",
)
@click.option("--text", is_flag=True, help="Print a tree of modules and nodes instead.")
@capture_options
@config_option
@traceback_option
@click.pass_context
def draw(context: click.Context, model: str, config: Path | None, **options: Any) -> None:
    """Draw a model; see `_HELP`."""
    settings = settings_of(options)
    out, kind, as_text = (options.pop(name) for name in ("out", "format", "text"))
    if as_text == (out is not None):
        raise click.UsageError("Say either where the picture goes, with --out FILE, or --text.")
    if out is not None:
        kind = format_of(out, kind)
    module = captured_module(context, model, manager=manager_for(config), **options)
    if as_text:
        _print_tree(module, settings)
        return
    draw_picture(module, out, kind, **settings)
    edges = sum(len(node.all_input_nodes) for node in module.graph.nodes)
    what = "as DOT text" if kind == "dot" else f"as {kind.upper()}"
    click.echo(f"Wrote {out}: {counted(len(module.graph.nodes), 'node')}, {counted(edges, 'edge')}, {what}.")


def _print_tree(module: GraphModule, settings: dict[str, Any]) -> None:
    screen = Console(markup=False, highlight=False, emoji=False)
    if screen.is_terminal:
        screen.print(rich_tree(module, **settings))
    else:
        click.echo(tree_text(module, **settings))
