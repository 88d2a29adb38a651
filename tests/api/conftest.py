"""Plugins made of plain modules, and managers that find nothing else."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import pytest

from fxplug.plugins import Config, PluginCandidate, PluginManager, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable


def make_plugin(name: str, **hooks: Callable[..., Any]) -> PluginCandidate:
    """A plugin whose entry module has these hook implementations."""
    module = types.ModuleType(f"{name}_plugin")
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return PluginCandidate.of_module(module, name)


@pytest.fixture
def manager_with() -> Callable[..., PluginManager]:
    """Makes a manager that knows one plugin called ``sample`` with the given hooks, and nothing that is installed."""

    def make(config: Config | None = None, **hooks: Callable[..., Any]) -> PluginManager:
        candidates = [make_plugin("sample", **hooks)] if hooks else []
        return PluginManager(config=config or Config(), candidates=candidates, environ={}, version="0.1.0")

    return make


@pytest.fixture
def manager(manager_with: Callable[..., PluginManager]) -> PluginManager:
    """A manager without any plugin."""
    return manager_with()
