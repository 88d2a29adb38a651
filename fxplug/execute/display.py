"""The source of a graph module for people, with the graph modules inside it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from fxplug.codegen import as_identifier
from fxplug.ir import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["class_text", "nested_graph_modules"]


def nested_graph_modules(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield (path, module) of each graph module below `module`, but not of those inside one that was found."""
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if isinstance(getattr(child, "graph", None), Graph):
            yield path, child
        else:
            yield from nested_graph_modules(child, path)


def class_text(module: Any, name: str, style: dict[str, Any]) -> str:
    """Return the source of a graph module as a class, with a class inside it for each graph module that it holds.

    Args:
        module: A graph module.
        name: Any text; the class gets the nearest identifier.
        style: Arguments of `fxplug.Graph.python_code`.
    """
    parts = [module.graph.python_code("self", verbose=True, **style).src]
    parts += [class_text(child, path, style) for path, child in nested_graph_modules(module)]
    body = "\n".join(textwrap.indent(part, "    ", lambda line: bool(line.strip())) for part in parts)
    return f"class {as_identifier(name)}(torch.nn.Module):\n{body}"
