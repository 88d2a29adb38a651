"""A graph as DOT text, the language of Graphviz. Nothing but text is made here: no other program, no other package."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, get_args

from fxplug.analyze import shape_text
from fxplug.errors import ConfigError, InvalidArgumentError
from fxplug.execute import GraphModule
from fxplug.ir import Graph, qualified_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.ir import Node

__all__ = ["COLOURS", "Direction", "dot_text"]

Direction = Literal["TB", "LR"]
"""Where the graph goes: from top to bottom, or from left to right."""

COLOURS = {
    "placeholder": "#cfe8fc",
    "get_attr": "#e6e0f3",
    "call_function": "#fdf0c8",
    "call_method": "#fbdcc4",
    "call_module": "#d5efd3",
    "output": "#f7cfd3",
}
"""Opcode -> background of its nodes; text on all of them is black."""

_LONGEST = 80
# What a record label gives a meaning to. Backslash is among them, and so is the ampersand, which begins an entity.
_MEANINGFUL = {**{sign: f"\\{sign}" for sign in '\\"{}|<>'}, "&": "&amp;"}
# Graphviz drops these: a space at an end of a field, and one that follows another.
_DROPPED_SPACE = re.compile(r"^ | $|(?<= ) ")


def dot_text(
    module_or_graph: GraphModule | Graph, *, title: str | None = None, direction: Direction = "TB"
) -> str:
    """Return a picture of a graph in the DOT language.

    Every node of the graph is one record with its opcode, name, target and, where shapes were propagated,
    dtype and shape; one edge goes from a node to each node that uses its value. Names and targets of any kind
    are shown as they are, never interpreted; what is longer than 80 characters is cut. The same graph always
    gives the same text.

    Args:
        module_or_graph: What is drawn. Only a module lets the picture name the classes of its submodules.
        title: Stands above the picture; by default the class of the module.
        direction: Where the graph goes.

    Returns:
        The text, ending in a newline.

    Raises:
        InvalidArgumentError: Something else than a graph was given.
        ConfigError: There is no such direction.

    Example:
        ::

            graph_module = fxplug.symbolic_trace(model)
            Path("model.dot").write_text(dot_text(graph_module), encoding="utf-8")
    """
    module, graph = _parts_of(module_or_graph)
    if direction not in get_args(Direction):
        raise ConfigError(f"Cannot draw the graph with direction {direction!r}. Use 'TB' or 'LR'.")
    if title is None:
        title = "graph" if module is None else repr(module).partition("(")[0]
    return "\n".join(_lines(graph, module, title, direction)) + "\n"


def _parts_of(module_or_graph: object) -> tuple[GraphModule | None, Graph]:
    if isinstance(module_or_graph, GraphModule):
        return module_or_graph, module_or_graph.graph
    if isinstance(module_or_graph, Graph):
        return None, module_or_graph
    raise InvalidArgumentError(
        f"Cannot draw a {type(module_or_graph).__name__}: only a GraphModule or a Graph has nodes to draw. Capture it "
        f"first: dot_text(fxplug.symbolic_trace(module))."
    )


def _lines(graph: Graph, module: GraphModule | None, title: str, direction: str) -> Iterator[str]:
    yield "digraph {"
    yield f'  graph [label={_quoted(title)}, labelloc="t", rankdir="{direction}", fontname="Helvetica"];'
    yield '  node [shape="record", style="filled,rounded", fontname="Helvetica", fontsize="10", color="#555555"];'
    yield '  edge [color="#555555"];'
    for node in graph.nodes:
        yield f'  "{node.name}" [label={_record(_fields(node, module))}, fillcolor="{COLOURS[node.op]}"];'
    for node in graph.nodes:
        for source in node.all_input_nodes:
            yield f'  "{source.name}" -> "{node.name}";'
    yield "}"


def _fields(node: Node, module: GraphModule | None) -> list[str]:
    target = node.target if isinstance(node.target, str) else qualified_name(node.target)
    if node.op == "call_module" and module is not None:
        target = f"{target} ({type(module.get_submodule(node.target)).__name__})"
    texts = [f"{node.op}: {node.name}", target, shape_text(node)]
    return [text for text in texts if text]


# -- escaping ---------------------------------------------------------------------------------------------------


def _record(fields: list[str]) -> str:
    """Return the fields below each other, as a label for a node whose shape is ``record``."""
    return '"{' + "|".join(_escape(_shortened(field)) for field in fields) + '}"'


def _quoted(text: str) -> str:
    """Return a quoted text that stands for itself where no record is meant."""
    visible = _visible(_shortened(text)).replace("&", "&amp;")
    return '"' + visible.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escape(text: str) -> str:
    literal = "".join(_MEANINGFUL.get(sign, sign) for sign in _visible(text))
    return _DROPPED_SPACE.sub(r"\\ ", literal)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _visible(text: str) -> str:
    """Return `text` with what a picture cannot show, line ends among it, in the form of Python's escapes."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
