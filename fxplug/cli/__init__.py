"""The command line, and what commands of plugins share with it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fxplug.cli.app import main

if TYPE_CHECKING:
    from fxplug.cli.captured import capture_options, captured_module
    from fxplug.cli.failures import traceback_option
    from fxplug.cli.host import config_option, manager_for

__all__ = ["capture_options", "captured_module", "config_option", "main", "manager_for", "traceback_option"]

# Help needs neither PyTorch nor plugins, so these are loaded when they are first used.
_HOMES = {
    "capture_options": "captured",
    "captured_module": "captured",
    "config_option": "host",
    "manager_for": "host",
    "traceback_option": "failures",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
