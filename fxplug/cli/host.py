"""The plugin manager that a command works with. It needs PyTorch, so it is loaded late: help does without."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

import click

from fxplug.cli.options import config_option
from fxplug.plugins import PluginWarning, discover, load_config
from fxplug.plugins.call_log import CALL_LOG_VARIABLE
from fxplug.plugins.config import STRICT_VARIABLE, flag_from_environment
from fxplug.plugins.requirements import check_required
from fxplug.plugins.selection import Selection

if TYPE_CHECKING:
    from pathlib import Path

    from fxplug.plugins import PluginInfo, PluginManager

__all__ = ["config_option", "manager_for", "plugin_infos"]


def manager_for(config: Path | None) -> PluginManager:
    """Return the manager for a configuration file, by default that of the process.

    Raises:
        ConfigError: The configuration cannot be used.
        PluginError: A plugin failed that has to work.
    """
    from fxplug.plugins import PluginManager, default_manager  # noqa: PLC0415
    from fxplug.plugins.effects import apply_effects  # noqa: PLC0415

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


def plugin_infos(config: Path | None) -> list[PluginInfo]:
    """Return what became of every installed plugin, sorted by name; where there is none, PyTorch is not loaded.

    Args:
        config: A configuration file, by default the one that is found.

    Raises:
        ConfigError: The configuration cannot be used.
        UnknownNameError: The selection, or the configuration, names a plugin that is not installed.
        PluginError: A plugin failed that has to work.
    """
    if discover():
        return manager_for(config).plugin_infos()
    # What is wrong with the selection of plugins is wrong without any, too, and a manager would say it.
    warnings.simplefilter("always", PluginWarning)
    settings = load_config(config)
    for variable in (STRICT_VARIABLE, CALL_LOG_VARIABLE):
        flag_from_environment(os.environ, variable)
    Selection(settings, os.environ).check_names(())
    check_required(settings, ())
    return []
