"""NVIDIA's TensorRT: the only module that may import it. So far it is only asked for; nothing imports it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import NamedTuple

__all__ = ["Engine", "find_engine"]

# Module and name for people. The one that this plugin's extra installs comes first.
_EDITIONS = (("tensorrt_rtx", "TensorRT for RTX"), ("tensorrt", "TensorRT"))


class Engine(NamedTuple):
    """An installed edition of TensorRT."""

    module: str
    title: str
    """Name and version for people."""


def find_engine() -> Engine | None:
    """Return the installed edition, None when there is none; nothing is imported."""
    for module, title in _EDITIONS:
        if importlib.util.find_spec(module) is None:
            continue
        try:
            version = importlib.metadata.version(module)
        except importlib.metadata.PackageNotFoundError:
            version = "of unknown version"
        return Engine(module, f"{title} {version}")
    return None
