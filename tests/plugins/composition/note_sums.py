"""Behaviour for proxies that leaves notes, and notes on every node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug import hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug import Node

PLUGIN_BEFORE = ["keep-gate"]


class NotesSums:
    """Notes of which plugins a proxy has behaviour that is added to something."""

    def __add__(self, other: Any) -> Any:
        """Add, and say so."""
        total = super().__add__(other)  # type: ignore[misc]
        total.node.meta["note-sums.classes"] = [
            kind.__name__ for kind in type(self).__mro__ if kind.__module__.startswith("compose_")
        ]
        return total


@hookimpl
def fxplug_create_proxy() -> type:
    """Watch sums."""
    return NotesSums


@hookimpl
def fxplug_node_created(node: Node) -> Mapping[str, str]:
    """Claim a key that everybody wants; this plugin comes first."""
    return {"shared.first": "note-sums", "note-sums.name": node.name}
