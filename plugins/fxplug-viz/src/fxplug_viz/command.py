"""The command ``fxplug draw``. Imported when it is called, since it needs click."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast, get_args

import click

import fxplug
from fxplug.errors import StorageError
from fxplug_viz.dot import Direction, dot_text

__all__ = ["draw"]

_SUFFIXES = (".dot", ".gv")


def _check_suffix(_: click.Context, __: click.Parameter, path: Path) -> Path:
    if path.suffix.lower() not in _SUFFIXES:
        raise click.BadParameter(
            f"{str(path)!r} does not end in {' or '.join(_SUFFIXES)}, and only DOT text is written so far. Graphviz "
            f"makes a picture of it: dot -Tsvg graph.dot -o graph.svg"
        )
    return path


@click.command("draw", help="Draw the graph of MODULE, a file such as fxplug.save and fxplug optimize write.")
@click.argument("module", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    callback=_check_suffix,
    metavar="FILE.dot",
    help="Where the DOT text goes; an older file is replaced.",
)
@click.option(
    "--direction",
    type=click.Choice(get_args(Direction)),
    default="TB",
    show_default=True,
    help="From top to bottom, or from left to right.",
)
@click.option("--title", help="Stands above the picture; by default the class of the module.")
@click.option(
    "--allow",
    multiple=True,
    metavar="NAME",
    help="A function that the file may name, as package.module:function. Can be repeated.",
)
def draw(module: Path, out: Path, direction: str, title: str | None, allow: tuple[str, ...]) -> None:
    """Write the DOT text of a saved module."""
    loaded = fxplug.load(module, allow=allow)
    text = dot_text(loaded, title=title, direction=cast("Direction", direction))
    _write(out, text)
    edges = sum(len(node.all_input_nodes) for node in loaded.graph.nodes)
    click.echo(f"Wrote {out}: {len(loaded.graph.nodes)} nodes, {edges} edges, as DOT text.")


def _write(path: Path, text: str) -> None:
    """Write a file completely, or leave what was there."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_text(text, encoding="utf-8", newline="\n")
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise StorageError(
            f"Cannot write the picture to {str(path)!r}: {error.strerror or error}. Name a file in a folder that "
            f"exists and can be written to."
        ) from error
