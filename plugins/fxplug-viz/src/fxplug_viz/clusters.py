"""Frames around the nodes of each module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.ir import Node

__all__ = ["Cluster", "cluster_tree", "modules_around"]

_DEEPEST = 40


@dataclass
class Cluster:
    """A module, with the nodes that lie in it and the modules inside it."""

    path: str = ""
    kind: str = ""
    nodes: list[Node] = field(default_factory=list)
    """Those that lie in no module inside it."""
    children: dict[str, Cluster] = field(default_factory=dict)
    """By path, in the order of their first nodes."""

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
        for path, kind in modules_around(node)[:_DEEPEST]:
            place = place.children.setdefault(path, Cluster(path, kind))
        place.nodes.append(node)
    _simplify(root)
    return root


def modules_around(node: Node) -> list[tuple[str, str]]:
    """Return path and class of every module that a node lies in, without the root and what the node itself calls."""
    scope = next((origin.module for origin in node.origins if origin.module is not None), None)
    if scope is None:
        return []
    entries = [
        (path, kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__)
        for path, kind in scope.stack().values()
        if path
    ]
    if node.op == "call_module" and entries and entries[-1][0] == node.target:
        entries.pop()
    return entries


def _simplify(cluster: Cluster) -> None:
    for path, child in list(cluster.children.items()):
        _simplify(child)
        if len(child.nodes) == 1 and not child.children:
            del cluster.children[path]
            cluster.nodes.append(child.nodes[0])
        elif not child.nodes and len(child.children) == 1:
            (only,) = child.children.values()
            cluster.children = {
                (only.path if key == path else key): (only if key == path else other)
                for key, other in cluster.children.items()
            }
