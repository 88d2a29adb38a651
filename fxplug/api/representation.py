"""Showing a module: as text, and as whatever plugins can make of it."""

from __future__ import annotations

from fxplug.errors import InvalidArgumentError, PluginError
from fxplug.execute import GraphModule, show_in_notebooks
from fxplug.plugins import PluginManager, default_manager

__all__ = ["represent"]

_NOTEBOOK_FORMATS = {"svg": "image/svg+xml", "html": "text/html"}
"""Formats that a notebook is offered, and what it calls them."""


def represent(
    module: GraphModule,
    format: str = "text",  # noqa: A002 - what the hook calls it
    *,
    manager: PluginManager | None = None,
) -> str | bytes:
    """Return a module in a format that people look at.

    fxplug itself knows ``"text"``, the program as source, and ``"html"``, the same for a page. Plugins add others, and
    may answer for these too (the hook ``fxplug_represent``). In a notebook, a module at the end of a cell is shown as
    ``"svg"`` or ``"html"`` if a plugin makes one.

    Args:
        module: Not changed.
        format: Name of the format: ``"text"``, ``"html"``, ``"dot"``, ``"svg"``, ...
        manager: The plugins that are asked; by default those that are installed and selected.

    Raises:
        InvalidArgumentError: `module` is no graph module.
        PluginError: Nobody knows the format, or a plugin failed.

    Example:
        ::

            print(fxplug.represent(fxplug.symbolic_trace(model)))
    """
    if not isinstance(module, GraphModule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(
            f"Cannot represent a {type(module).__module__}.{type(module).__qualname__}: pass a fxplug.GraphModule, "
            "such as fxplug.symbolic_trace(...) returns."
        )
    plugins = default_manager() if manager is None else manager
    answer = plugins.represent(module, format)
    if answer is None:
        raise PluginError(
            f"Cannot represent the module as {format!r}: no active plugin knows that format. fxplug itself knows "
            "'text' and 'html'; install a plugin that draws, such as fxplug-viz.",
            code="FXP-H005",
        )
    return answer


def _for_notebooks(module: GraphModule) -> dict[str, str | bytes]:
    """Return what plugins make of a module for a notebook; the text that fxplug has is what it shows anyway."""
    plugins = default_manager()
    if not plugins.represents():
        return {}
    shown = {mime: plugins.represent(module, name) for name, mime in _NOTEBOOK_FORMATS.items()}
    return {mime: answer for mime, answer in shown.items() if answer is not None}


show_in_notebooks(_for_notebooks)
