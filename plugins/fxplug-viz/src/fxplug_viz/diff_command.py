"""The command ``fxplug diff``. Imported when it is called, since it needs click."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from fxplug.cli import capture_options, captured_module, config_option, manager_for, traceback_option
from fxplug_viz.command import picture_options, settings_of
from fxplug_viz.difference import diff as compare_graphs
from fxplug_viz.difference_picture import draw_diff
from fxplug_viz.escaping import visible
from fxplug_viz.pass_steps import view_diff
from fxplug_viz.rendering import format_of

if TYPE_CHECKING:
    from pathlib import Path

    from fxplug_viz.difference import GraphDifference

__all__ = ["diff"]

_HELP = """\
Show what became of the graph of BEFORE in AFTER: nodes that were added, removed, changed, moved or fused.

Each of the two is package.module:callable, path.py:callable, or a file that ends in .fxplug. Nodes belong together
where they come from the same lines and modules, so AFTER is best what passes made of BEFORE.

A FILE that ends in .html becomes a page that shows both, with a slider, for a browser.
"""


@click.command(help=_HELP, short_help="Show what became of a graph.", no_args_is_help=True)
@click.argument("before")
@click.argument("after")
@picture_options
@click.option("--json", "as_json", is_flag=True, help="Print data for programs.")
@capture_options
@config_option
@traceback_option
@click.pass_context
def diff(context: click.Context, before: str, after: str, config: Path | None, **options: Any) -> None:
    """Compare two graphs; see `_HELP`."""
    settings = settings_of(options)
    out, kind, as_json = (options.pop(name) for name in ("out", "format", "as_json"))
    is_page = out is not None and kind is None and out.suffix.lower() in {".html", ".htm"}
    if out is not None and not is_page:
        kind = format_of(out, kind, besides=".html")
    manager = manager_for(config)
    first, second = (captured_module(context, text, manager=manager, **options) for text in (before, after))
    difference = compare_graphs(first, second)
    if as_json:
        click.echo(json.dumps(_as_data(difference), indent=2))
    else:
        click.echo("\n".join(visible(line) for line in difference.text().splitlines()))
    if out is not None and is_page:
        view_diff(difference, out, title=settings.get("title"))
    elif out is not None:
        draw_diff(difference, out, kind, **settings)
    if out is not None:
        click.echo(f"Wrote {out}.", err=as_json)


def _as_data(difference: GraphDifference) -> dict[str, Any]:
    return {
        "format": "fxplug-diff",
        "version": 1,
        "counts": difference.counts(),
        "changes": [
            {
                "kind": change.kind,
                "before": [node.name for node in change.before],
                "after": None if change.after is None else change.after.name,
                "details": list(change.details),
            }
            for change in difference.changes
        ],
    }
