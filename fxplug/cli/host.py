"""The plugin manager that a command works with."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import click

from fxplug.cli.options import config_option
from fxplug.plugins import PluginManager, PluginWarning, default_manager, load_config
from fxplug.plugins.effects import apply_effects

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["config_option", "manager_for"]


def manager_for(config: Path | None) -> PluginManager:
    """Return the manager for a configuration file, by default that of the process.

    Raises:
        ConfigError: The configuration cannot be used.
        PluginError: A plugin failed that has to work.
    """
    # A plugin that is skipped is pointed out, whatever filters there are.
    warnings.simplefilter("always", PluginWarning)
    if config is None:
        return default_manager()
    manager = PluginManager(config=load_config(config))
    undo = apply_effects(manager.effect_records())
    context = click.get_current_context(silent=True)
    if context is not None:
        context.call_on_close(undo)
    return manager
