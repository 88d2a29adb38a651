"""What a module computes, in one number: equal modules have equal ones, in every process."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from fxplug.storage.container import WEIGHTS
from fxplug.storage.documents import to_json
from fxplug.storage.faults import Refusal
from fxplug.storage.graphs import NODE_COLUMNS, NODE_DEFAULTS
from fxplug.storage.module_file import describe
from fxplug.storage.origins import ORIGIN_TABLES
from fxplug.storage.targets import TargetTable

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = ["module_digest"]

_ABOUT = frozenset({*ORIGIN_TABLES, "meta"})
"""Fields of graphs and nodes that say where something came from, and not what is computed."""
_COMPUTING = [number for number, name in enumerate(NODE_COLUMNS) if name not in _ABOUT]


def module_digest(module: GraphModule) -> str | None:
    """Return the SHA-256 of graph, submodules and weights of a module, in hexadecimal digits.

    Where the program came from and notes on nodes take no part; the names of nodes do. None where the module holds
    what no file can hold, so that nothing can be said about it.

    Args:
        module: Not changed.
    """
    try:
        contents, _ = describe(module, TargetTable(()), None)
        digest = hashlib.sha256()
        for name in sorted(contents.keys() - {WEIGHTS}):
            text = to_json(_computing(contents[name]))
            digest.update(f"{name} {len(text)}\n".encode("ascii") + text)
        contents[WEIGHTS](digest.update)
    except (Refusal, RecursionError):
        return None
    return digest.hexdigest()


def _computing(value: Any) -> Any:
    """Return a document of a file without what is only told about a program."""
    if "graphs" in value:
        return {"graphs": list(map(_without, value["graphs"]))}
    return value


def _without(graph: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in graph.items() if name not in _ABOUT}
    rows = [row + NODE_DEFAULTS[len(row) :] for row in graph["nodes"]]
    return {**kept, "nodes": [[row[number] for number in _COMPUTING] for row in rows]}
