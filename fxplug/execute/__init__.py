"""Running graphs: `GraphModule` and `Interpreter`."""

from __future__ import annotations

import fxplug.semantics  # noqa: F401 # pyright: ignore[reportUnusedImport] - tells what torch calls mean
from fxplug.execute.graph_module import RESERVED_ATTRIBUTES, GraphModule
from fxplug.execute.guards import POLICIES, GuardSet
from fxplug.execute.interpreter import Interpreter
from fxplug.execute.paths import Holders, delete_path, fetch_path, has_path, set_path

__all__ = [
    "POLICIES",
    "RESERVED_ATTRIBUTES",
    "GraphModule",
    "GuardSet",
    "Holders",
    "Interpreter",
    "delete_path",
    "fetch_path",
    "has_path",
    "set_path",
]
