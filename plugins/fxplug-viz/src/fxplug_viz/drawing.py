"""Drawing a graph into a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fxplug_viz.dot import dot_text
from fxplug_viz.errors import DrawingError
from fxplug_viz.rendering import format_of, render, write_bytes

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from fxplug.execute import GraphModule
    from fxplug.ir import Graph
    from fxplug_viz.options import DrawSettings
    from fxplug_viz.rendering import Format

__all__ = ["draw", "write_picture"]


def draw(
    module_or_graph: GraphModule | Graph,
    path: str | os.PathLike[str],
    format: Format | None = None,  # noqa: A002 - as in hooks
    **settings: Unpack[DrawSettings],
) -> Path:
    """Draw a graph into a file: DOT text, or a picture that Graphviz makes of it.

    Args:
        module_or_graph: What is drawn. It is not changed.
        path: An older file is replaced.
        format: ``"dot"``, ``"svg"``, ``"png"`` or ``"pdf"``; by default what the path ends in.
        **settings: See `DrawOptions`.

    Returns:
        The path.

    Raises:
        InvalidArgumentError: Something else than a graph was given.
        ConfigError: A setting or a format makes no sense.
        StorageError: The file cannot be written.
        DrawingError: Graphviz is missing or failed. The DOT text was written then, beside the path.

    Example:
        ::

            fxplug_viz.draw(fxplug.symbolic_trace(model), "model.svg", color_by="dtype", hide=["get_attr"])
    """
    kind = format_of(path, format)
    return write_picture(dot_text(module_or_graph, **settings), Path(path), kind)


def write_picture(text: str, path: Path, format: Format) -> Path:  # noqa: A002 - as in hooks
    """Write a picture of DOT text.

    Raises:
        StorageError: The file cannot be written.
        DrawingError: Graphviz is missing or failed. The text was written then, to a file whose name ends in ``.dot``.
    """
    try:
        data = render(text, format)
    except DrawingError as error:
        beside = path.with_suffix(".dot")
        write_bytes(beside, text.encode("utf-8"))
        raise DrawingError(
            f"{error.message} The DOT text was written to {str(beside)!r}.", code=error.code
        ) from error
    write_bytes(path, data)
    return path
