"""The OpenVINO runtime: the only module that may import it. So far it is only asked for; nothing imports it."""

from __future__ import annotations

import importlib.metadata
import importlib.util

__all__ = ["find_engine"]


def find_engine() -> str | None:
    """Return the version of the installed runtime, None when there is none; nothing is imported."""
    if importlib.util.find_spec("openvino") is None:
        return None
    try:
        return importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
