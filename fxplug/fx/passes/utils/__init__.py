"""What passes of torch.fx use."""

from __future__ import annotations

import importlib
from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name in {"fuser_utils", "matcher_utils"}:
        return importlib.import_module(f"fxplug.fx.passes.utils.{name}")
    raise AttributeError(f"module 'fxplug.fx.passes.utils' has no attribute {name!r}")
