"""The plugin that is checked: found, loaded alone, and what it offers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from fxplug.errors import FxplugError, UnknownNameError
from fxplug.plugins import PluginCandidate, PluginInfo, PluginManager, PluginWarning, discover
from fxplug.plugins.pipelines import validated_options
from fxplug.testing.isolation import plugin_name

if TYPE_CHECKING:
    from types import ModuleType

    from fxplug.plugins import BackendOffer, CommandOffer, PassOffer
    from fxplug.testing.models import Sample

__all__ = ["GivenOptions", "Subject", "find_candidate", "load_alone", "reason_of"]

GivenOptions = Mapping[str, Mapping[str, Any]]
"""Full or short name of a pass or backend -> options with which it is checked."""


@dataclass(frozen=True)
class Subject:
    """A plugin that takes part, alone, with what it is checked on."""

    candidate: PluginCandidate
    manager: PluginManager
    info: PluginInfo
    samples: tuple[Sample, ...]
    given: GivenOptions
    time_limit: float = 60.0
    """Seconds that a pass may take on one model."""

    def passes(self) -> list[PassOffer]:
        """Return its passes."""
        return [offer for offer in self.manager.passes().values() if offer.plugin == self.candidate.name]

    def backends(self) -> list[BackendOffer]:
        """Return its backends."""
        return [offer for offer in self.manager.backends().values() if offer.plugin == self.candidate.name]

    def commands(self) -> list[CommandOffer]:
        """Return its commands."""
        return list(self.manager.commands().values())

    def given_to(self, offer: PassOffer | BackendOffer) -> Mapping[str, Any]:
        """Return the options with which something is checked, as far as somebody gave them."""
        return self.given.get(offer.name, self.given.get(offer.record.name, {}))

    def options_of(self, offer: PassOffer | BackendOffer) -> dict[str, Any]:
        """Return validated options: those given, over the defaults.

        Raises:
            FxplugError: One is missing or not allowed.
        """
        given = self.given_to(offer)
        return validated_options(offer.record.options, given, repr(offer.name), None)

    def lacks_options(self, offer: PassOffer | BackendOffer) -> str:
        """Return which options nobody gave and have no default; empty when there is none."""
        options = offer.record.options
        given = self.given_to(offer)
        if options is None:
            return ""
        return ", ".join(
            repr(option.name)
            for option in fields(options)
            if option.init and option.name not in given and _has_no_default(option)
        )


def _has_no_default(option: Any) -> bool:
    return option.default is MISSING and option.default_factory is MISSING


def find_candidate(plugin: str | ModuleType | PluginCandidate, name: str | None) -> PluginCandidate:
    """Return the plugin that an installed name or a module means.

    Args:
        plugin: The name of an installed plugin or its distribution, an entry module, or a candidate.
        name: The name of a plugin that is given as a module; by default that of the module, without
            ``fxplug_``.

    Raises:
        UnknownNameError: No installed plugin has the name.
    """
    if isinstance(plugin, PluginCandidate):
        return plugin
    if isinstance(plugin, str):
        installed = discover()
        for candidate in installed:
            if candidate.is_called(plugin):
                return candidate
        known = [text for candidate in installed for text in (candidate.name, candidate.distribution)]
        raise UnknownNameError("plugin", plugin, known, note="Install the plugin, or check its module.")
    return PluginCandidate.of_module(plugin, name or plugin_name(plugin))


def load_alone(candidate: PluginCandidate) -> tuple[PluginManager, PluginInfo]:
    """Return a manager that knows this plugin and no other, deaf to configuration and environment."""
    with warnings.catch_warnings():
        # The report says the same.
        warnings.simplefilter("ignore", PluginWarning)
        manager = PluginManager(candidates=[candidate], environ={}, strict=False)
    return manager, manager.plugin_info(candidate.name)


def reason_of(error: BaseException) -> str:
    """Return type and text of an error in one line; those of fxplug speak for themselves."""
    text = error.message if isinstance(error, FxplugError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split()).rstrip(".")
