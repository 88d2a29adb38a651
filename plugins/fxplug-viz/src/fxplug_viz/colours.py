"""Which colour a node has, and what the colour tells."""

from __future__ import annotations

import colorsys
import re
from typing import TYPE_CHECKING, cast

from fxplug.analyze import shape_text
from fxplug.execute import GraphModule, fetch_path, has_path
from fxplug_viz.unfolding import frames_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fxplug.ir import Node
    from fxplug_viz.options import ColorBy

__all__ = ["COLOURS", "Colouring"]

COLOURS = {
    "placeholder": "#cfe8fc",
    "get_attr": "#e6e0f3",
    "call_function": "#fdf0c8",
    "call_method": "#fbdcc4",
    "call_module": "#d5efd3",
    "output": "#f7cfd3",
}
"""Opcode -> background of its nodes; text on all of them is black."""

_NONE = "#f4f4f4"
_PALETTE = ("#cfe8fc", "#fdf0c8", "#d5efd3", "#fbdcc4", "#e6e0f3", "#f7cfd3", "#c9ece8", "#ead9c8", "#e3eab8")
_DTYPE = re.compile(r"(\w+)\[")


class Colouring:
    """The groups of nodes and their colours; the same graph always gets the same.

    Args:
        nodes: All that are drawn.
        module: What the graph belongs to.
        color_by: What tells the groups apart.
    """

    def __init__(self, nodes: Iterable[Node], module: GraphModule | None, color_by: ColorBy) -> None:
        group_of = _grouping(module, color_by)
        self._groups = {node: group_of(node) for node in nodes}
        found = dict.fromkeys(group for group in self._groups.values() if group is not None)
        if color_by == "op":
            colours = {opcode: colour for opcode, colour in COLOURS.items() if opcode in found}
        else:
            colours = {group: _nth_colour(index) for index, group in enumerate(found)}
        self.legend: dict[str, str] = colours
        """Group -> colour, of the groups that there are."""

    def group(self, node: Node) -> str | None:
        """Return the group that a node belongs to."""
        return self._groups[node]

    def colour(self, node: Node) -> str:
        """Return the background of a node."""
        group = self._groups[node]
        return _NONE if group is None else self.legend[group]


def _grouping(module: GraphModule | None, color_by: ColorBy) -> Callable[[Node], str | None]:
    if callable(color_by):
        return color_by
    if not isinstance(color_by, str):
        groups: Mapping[str, str] = color_by
        return lambda node: groups.get(node.name)
    if color_by == "partition":
        return lambda node: _partition(node, module)
    return cast(
        "dict[str, Callable[[Node], str | None]]",
        {"op": lambda node: node.op, "plugin": _maker, "dtype": _dtype},
    )[color_by]


def _maker(node: Node) -> str:
    history = node.history
    if not history:
        return "as captured"
    return history[-1].provider or history[-1].name


def _partition(node: Node, module: GraphModule | None) -> str | None:
    noted = node.meta.get("partition")
    if noted is not None:
        return str(noted)
    frames = frames_of(node)
    if frames:
        return frames[0][0]
    if node.op != "call_module" or module is None or not has_path(module, node.target):
        return None
    return str(node.target) if isinstance(fetch_path(module, node.target), GraphModule) else None


def _dtype(node: Node) -> str | None:
    return ", ".join(dict.fromkeys(_DTYPE.findall(shape_text(node)))) or None


def _nth_colour(index: int) -> str:
    if index < len(_PALETTE):
        return _PALETTE[index]
    # The golden ratio spreads the hues of any number of groups.
    parts = colorsys.hls_to_rgb(index * 0.618034 % 1, 0.8, 0.6)
    return "#" + "".join(f"{round(part * 255):02x}" for part in parts)
