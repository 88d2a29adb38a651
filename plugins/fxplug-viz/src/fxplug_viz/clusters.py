"""Frames around the nodes of each module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fxplug_viz.escaping import quoted
from fxplug_viz.unfolding import frames_of, own_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fxplug.ir import Node

__all__ = ["Cluster", "cluster_lines", "cluster_tree", "modules_around"]

_DEEPEST = 40
_SHADES = ("#f8f8f8", "#f0f0f0", "#e8e8e8")


@dataclass
class Cluster:
    """A module, with the nodes that lie in it and the modules inside it."""

    path: str = ""
    kind: str = ""
    nodes: list[Node] = field(default_factory=list)
    """Those that lie in no module inside it."""
    children: dict[tuple[str, str], Cluster] = field(default_factory=dict)
    """By path and class, in the order of their first nodes."""

    @property
    def label(self) -> str:
        """Path and class."""
        return f"{self.path} ({self.kind})" if self.kind else self.path


def cluster_tree(nodes: Iterable[Node]) -> Cluster:
    """Return the modules that nodes lie in, the root first. A frame that says nothing is left out.

    That is one around a single node, and one around nothing but another frame.
    """
    root = Cluster()
    for node in nodes:
        place = root
        for frame in modules_around(node)[:_DEEPEST]:
            place = place.children.setdefault(frame, Cluster(*frame))
        place.nodes.append(node)
    _simplify(root)
    return root


def modules_around(node: Node) -> list[tuple[str, str]]:
    """Return path and class of every module that a node lies in, without the root and what the node itself calls."""
    frames = list(frames_of(node))
    scope = next((origin.module for origin in node.origins if origin.module is not None), None)
    if scope is None:
        return frames
    entries = [
        (path, kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__)
        for path, kind in scope.stack().values()
        if path
    ]
    if node.op == "call_module" and entries and entries[-1][0] == own_target(node):
        entries.pop()
    return frames + entries


def _simplify(cluster: Cluster) -> None:
    for path, child in list(cluster.children.items()):
        _simplify(child)
        if len(child.nodes) == 1 and not child.children:
            del cluster.children[path]
            cluster.nodes.append(child.nodes[0])
        elif not child.nodes and len(child.children) == 1:
            (only,) = child.children.values()
            cluster.children = {
                ((only.path, only.kind) if key == path else key): (only if key == path else other)
                for key, other in cluster.children.items()
            }


def cluster_lines(
    cluster: Cluster, statement: Callable[[Node], str], numbers: Iterator[int], longest: int, depth: int = 0
) -> Iterator[str]:
    """Yield the statements of nodes, with frames around them.

    Args:
        cluster: What `cluster_tree` returned.
        statement: Gives that of a node.
        numbers: One for each frame of the picture.
        longest: How many characters a label may have.
        depth: How many frames there are around these.
    """
    indent = "  " * (depth + 1)
    for node in cluster.nodes:
        yield indent + statement(node)
    for child in cluster.children.values():
        yield f'{indent}subgraph "cluster_{next(numbers)}" {{'
        yield (
            f'{indent}  graph [label={quoted(child.label, longest)}, labeljust="l", fontsize="10", '
            f'fontcolor="#666666", style="filled,rounded", color="#bbbbbb", '
            f'fillcolor="{_SHADES[depth % len(_SHADES)]}"];'
        )
        yield from cluster_lines(child, statement, numbers, longest, depth + 1)
        yield f"{indent}}}"
