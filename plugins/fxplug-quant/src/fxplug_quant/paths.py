"""Where in a module an int8 layer can stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["Kept", "free_path"]


class Kept:
    """The paths that nodes outside `chosen` refer to, so that what stands there must stay."""

    def __init__(self, module: GraphModule, chosen: set[Node]) -> None:
        self._paths = {
            str(node.target)
            for node in module.graph.nodes
            if node.op in {"call_module", "get_attr"} and node not in chosen
        }
        self._holders = {holder for path in self._paths for holder in _upwards(path)}

    def concerns(self, path: str) -> bool:
        """Return whether the module at `path` is, contains, or is part of something that must stay."""
        return path in self._holders or any(holder in self._paths for holder in _upwards(path))


def free_path(module: GraphModule, wish: str) -> str:
    """Return a path at the top, so that no module of the user's is added to."""
    wish = wish.replace(".", "_")
    path, number = wish, 0
    while hasattr(module, path):
        number += 1
        path = f"{wish}_{number}"
    return path


def _upwards(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
