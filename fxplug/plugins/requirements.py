"""Plugins without which nothing is to be done: ``plugins.require`` in the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.errors import ConfigError, PluginError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from packaging.requirements import Requirement

    from fxplug.errors import FxplugError
    from fxplug.plugins.loading import LoadedPlugin
    from fxplug.plugins.settings import Config

__all__ = ["check_required", "requirement_errors"]


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
    for _, error in requirement_errors(config, plugins):
        raise error


def requirement_errors(config: Config, plugins: Sequence[LoadedPlugin]) -> Iterator[tuple[int, FxplugError]]:
    """Yield position and error of every required plugin that is not active in a version that is wanted.

    Args:
        config: Holds the requirements.
        plugins: Every installed plugin.
    """
    if not config.plugins.require:
        return
    # Only who requires plugins pays for the parser.
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415

    for position, text in enumerate(config.plugins.require):
        where = config.place_of("plugins.require", position)
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0]  # What follows is a drawing.
            malformed = ConfigError(
                f"Cannot read {text!r} in {where}: {reason}. Write for example 'quant>=0.1'."
            )
            malformed.__cause__ = error
            yield position, malformed
            continue
        extra = _beyond_a_version(requirement)
        if extra:
            yield (
                position,
                ConfigError(
                    f"Cannot use {text!r} in {where}: {extra} says nothing here. Write the name of a plugin, and a "
                    "version range where one is wanted: 'quant>=0.1'."
                ),
            )
            continue
        for failure in _unmet(requirement, f"{text!r} in {where}", where, plugins):
            yield position, failure


def _beyond_a_version(requirement: Requirement) -> str:
    """Return what a requirement has besides a name and a version range, empty for nothing."""
    if requirement.url is not None:
        return f"the address {requirement.url!r}"
    if requirement.extras:
        return f"the extra {sorted(requirement.extras)[0]!r}"
    return f"the condition {str(requirement.marker)!r}" if requirement.marker is not None else ""


def _unmet(
    requirement: Requirement, what: str, where: str, plugins: Sequence[LoadedPlugin]
) -> Iterator[FxplugError]:
    matching = [plugin for plugin in plugins if plugin.candidate.is_called(requirement.name)]
    if not matching:
        known = [
            name for plugin in plugins for name in (plugin.candidate.name, plugin.candidate.distribution)
        ]
        yield UnknownNameError(
            "plugin", requirement.name, known, note=f"It is required by {where}; install it."
        )
    for plugin in matching:
        if not plugin.is_active:
            error = PluginError(
                f"Plugin {plugin.title} is required by {where}, but it is {plugin.status}: {plugin.explanation}"
            )
            error.__cause__ = plugin.error
            yield error
        elif not requirement.specifier.contains(plugin.candidate.version, prereleases=True):
            yield PluginError(
                f"Plugin {plugin.title} does not fit {what}. Install a version that does: "
                f"pip install '{plugin.candidate.distribution}{requirement.specifier}'."
            )
