"""Showing a module: as text, and as whatever plugins can make of it."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn

from fxplug.errors import FxplugError, InvalidArgumentError, PluginError
from fxplug.execute import GraphModule
from fxplug.ir import PATH_OPCODES, Graph, show_in_notebooks
from fxplug.plugins import PluginManager, default_manager

__all__ = ["represent"]

_NOTEBOOK_FORMATS = {"svg": "image/svg+xml", "html": "text/html"}
"""Formats that a notebook is offered, and what it calls them."""

_MOST_DRAWN = 2000
"""Nobody waits in a notebook for a picture of more nodes; a page can show them in other ways."""


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


def _for_notebooks(value: GraphModule | Graph) -> dict[str, str | bytes]:
    """Return what plugins make of a module for a notebook; the text that fxplug has is what it shows anyway."""
    plugins = default_manager()
    if not plugins.represents():
        return {}
    shown: dict[str, str | bytes] = {}
    try:
        module = _module_of(value) if isinstance(value, Graph) else value
        is_large = len(module.graph.nodes) > _MOST_DRAWN
        for name, mime in _NOTEBOOK_FORMATS.items():
            if is_large and name == "svg":
                continue
            answer = plugins.represent(module, name)
            if answer is not None:
                shown[mime] = answer
    except FxplugError as error:
        # The text is there all the same.
        warnings.warn(f"Shown as text: {error}", stacklevel=4)
    return shown


class Unknown(nn.Module):
    """Stands for a module that a graph names, and that nobody knows."""


def _module_of(graph: Graph) -> GraphModule:
    """Return the module that a graph belongs to, or one that has what the graph names."""
    owner = graph.owning_module
    if isinstance(owner, GraphModule):
        return owner
    values = {
        str(node.target): Unknown() if node.op == "call_module" else torch.empty(0)
        for node in graph.nodes
        if node.op in PATH_OPCODES
    }
    return GraphModule(values, copy.deepcopy(graph), "Graph")


show_in_notebooks(_for_notebooks)
