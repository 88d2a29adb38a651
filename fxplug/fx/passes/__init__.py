"""The passes of torch.fx that have a counterpart in fxplug."""

from __future__ import annotations

import importlib
from typing import Any

_SUBMODULES = frozenset({"graph_drawer", "shape_prop", "split_module", "split_utils", "utils"})

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"fxplug.fx.passes.{name}")
    raise AttributeError(f"module 'fxplug.fx.passes' has no attribute {name!r}")
