"""Files of older versions, brought up to date when they are read.

A version stays readable for ever: each has a function here that makes of its documents what the next version would have
written, and a golden file in the tests. A function works on JSON that nobody has checked yet, so it refuses what is not
as it should be, or leaves it alone: the checks that follow refuse it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fxplug.storage.graphs import MODULE_STACK, NODE_COLUMNS, STACK_OF_ORIGIN
from fxplug.storage.version_2 import to_rows

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMAT_VERSION", "MIGRATIONS", "migrate"]

FORMAT_VERSION = 5
"""Version of the container that this fxplug writes, and the newest that it reads."""


def _from_1(manifest: dict[str, Any], graphs: Any, _modules: Any) -> None:
    """Version 2 says in the manifest which plugins a file needs; version 1 said it beside the graphs."""
    providers = graphs.pop("providers", {}) if isinstance(graphs, dict) else {}
    manifest["plugins"] = providers


def _from_3(_manifest: dict[str, Any], _graphs: Any, _modules: Any) -> None:
    """Version 4 states other checksums, and documents are migrated when theirs have been verified."""


def _from_4(_manifest: dict[str, Any], graphs: Any, _modules: Any) -> None:
    """Version 5 tells nodes without notes from those that nobody has asked, and says where a module stack is.

    Version 4 left out a stack that says what the origin says. Nearly every node with notes has one.
    """
    place = NODE_COLUMNS.index("meta")
    for graph in _lists_in(graphs, "graphs"):
        for row in _lists_in(graph, "nodes"):
            notes = cast("list[Any]", row)[place] if isinstance(row, list) and len(row) > place else None
            if notes == {}:
                row[place] = None
            elif isinstance(notes, dict):
                row[place] = {MODULE_STACK: STACK_OF_ORIGIN, **notes}


def _lists_in(data: Any, name: str) -> list[Any]:
    found = cast("dict[str, Any]", data).get(name) if isinstance(data, dict) else None
    return found if isinstance(found, list) else []


MIGRATIONS: dict[int, Callable[[dict[str, Any], Any, Any], None]] = {
    1: _from_1,
    2: to_rows,
    3: _from_3,
    4: _from_4,
}
"""Version -> what changes manifest, graphs and modules of that version into those of the next one, in place."""


def migrate(version: int, manifest: dict[str, Any], graphs: Any, modules: Any) -> None:
    """Bring the documents of a file up to date, in place.

    Args:
        version: Of the file; from 1 to `FORMAT_VERSION`.
        manifest: The manifest.
        graphs: What ``graph.json`` holds.
        modules: What ``modules.json`` holds.

    Raises:
        Refusal: They are damaged.
    """
    for number in range(version, FORMAT_VERSION):
        MIGRATIONS[number](manifest, graphs, modules)
