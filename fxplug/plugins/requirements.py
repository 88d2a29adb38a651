"""Plugins without which nothing is to be done: ``plugins.require`` in the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.errors import ConfigError, PluginError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxplug.plugins.loading import LoadedPlugin
    from fxplug.plugins.settings import Config

__all__ = ["check_required"]


def check_required(config: Config, plugins: Sequence[LoadedPlugin]) -> None:
    """Make sure that every required plugin is active, in a version that is wanted.

    Args:
        config: Holds the requirements, such as ``"quant>=0.1"``.
        plugins: Every installed plugin.

    Raises:
        ConfigError: A requirement is malformed.
        UnknownNameError: A required plugin is not installed.
        PluginError: It is not active, or has another version.
    """
    if not config.plugins.require:
        return
    # Only who requires plugins pays for the parser.
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415

    where = config.place_of("plugins.require")
    for text in config.plugins.require:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise ConfigError(
                f"Cannot read {text!r} in {where}: {error}. Write for example 'quant>=0.1'."
            ) from error
        matching = [plugin for plugin in plugins if plugin.candidate.is_called(requirement.name)]
        if not matching:
            known = [
                name for plugin in plugins for name in (plugin.candidate.name, plugin.candidate.distribution)
            ]
            raise UnknownNameError(
                "plugin", requirement.name, known, note=f"It is required by {where}; install it."
            )
        for plugin in matching:
            if not plugin.is_active:
                raise PluginError(
                    f"Plugin {plugin.title} is required by {where}, but it is {plugin.status}: "
                    f"{plugin.explanation}"
                ) from plugin.error
            if not requirement.specifier.contains(plugin.candidate.version, prereleases=True):
                raise PluginError(
                    f"Plugin {plugin.title} does not fit {text!r} in {where}. Install a version that does: "
                    f"pip install '{plugin.candidate.distribution}{requirement.specifier}'."
                )
