"""The viewer: a graph as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fxplug.ir import printable
from fxplug_viz.viewer_data import graph_data
from fxplug_viz.viewer_overlays import overlays_of
from fxplug_viz.viewer_page import asset, embedded_json, page, write_page

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from fxplug import Graph, GraphModule

__all__ = ["graph_with_overlays", "view", "viewer_html"]


def view(
    module_or_graph: GraphModule | Graph,
    path: str | os.PathLike[str],
    overlays: Mapping[str, Any] | None = None,
    *,
    title: str | None = None,
) -> Path:
    """Write a page that shows a graph, to be opened in a browser.

    The page is one file that loads nothing: it can be sent to somebody. It shows the graph folded by modules, repeated
    blocks as one, with search, details of each node, and overlays. ``#node=NAME`` behind its address leads to a node.
    Names, targets and constants are shown as they are, whatever signs they hold.

    Args:
        module_or_graph: What is shown.
        path: Where the page goes; an older file is replaced.
        overlays: Tables by title, each laid over the picture; see `overlays_of` for what is one.
        title: Stands above the picture; by default the class of the module.

    Returns:
        The path.

    Raises:
        InvalidArgumentError: Something else than a graph was given, or an overlay is no table of its nodes.
        ConfigError: The path has the name of a picture.
        StorageError: The file cannot be written.

    Example:
        ::

            module = fxplug.trace(model, inputs)
            view(module, "model.html", {"cost": fxplug.cost(module, inputs)})
    """
    data = graph_with_overlays(module_or_graph, overlays, title=title)
    target = Path(path)
    write_page(target, viewer_html([data], title=data["title"]))
    return target


def graph_with_overlays(
    module_or_graph: GraphModule | Graph,
    overlays: Mapping[str, Any] | None = None,
    *,
    key: str = "graph",
    title: str | None = None,
) -> dict[str, Any]:
    """Return what a page holds of one graph, overlays included; see `graph_data` and `view`."""
    data = graph_data(module_or_graph, key=key, title=title)
    positions = {node["n"]: position for position, node in enumerate(data["nodes"])}
    data["overlays"] = [overlay.to_data(positions) for overlay in overlays_of(overlays or {}, positions)]
    return data


def viewer_html(
    graphs: Sequence[Mapping[str, Any]], *, title: str, steps: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Return a page that shows graphs, one at a time.

    Args:
        graphs: What `graph_with_overlays` returned, each with a key of its own.
        title: The page's title.
        steps: What a slider goes through: mappings of title, key of the graph, kind and note. Empty: there is none.
    """
    scripts = {
        "vendor": asset("vendor/vendor.min.js"),
        "viewer": "\n".join(
            asset(f"viewer-{part}.js") for part in ("model", "layout", "picture", "panes", "main")
        ),
    }
    worker = {"script": asset("vendor/dagre.min.js") + "\n" + asset("viewer-worker.js")}
    title = printable(title)
    data = {
        "format": "fxplug-view",
        "version": 1,
        "title": title,
        "graphs": list(graphs),
        "steps": list(steps),
    }
    return page(
        "viewer.html.j2",
        scripts=scripts,
        style=asset("viewer.css"),
        title=title,
        data=embedded_json(data),
        worker=embedded_json(worker),
    )
