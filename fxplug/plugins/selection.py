"""Which plugins may take part, and who decided it.

Strongest first: the argument ``load`` or ``disable``; ``FXPLUG_LOAD_PLUGINS``, a list of all that are loaded
(empty = none); ``FXPLUG_DISABLE_PLUGINS`` (``*`` = all); ``plugins.disable`` in the configuration. The first
that has something to say about a plugin decides. A plugin may be called by its own name or by that of its
distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fxplug.errors import UnknownNameError
from fxplug.plugins.settings import ConfigSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fxplug.plugins.discovery import PluginCandidate
    from fxplug.plugins.settings import Config

__all__ = ["DISABLE_VARIABLE", "LOAD_VARIABLE", "Selection"]

LOAD_VARIABLE = "FXPLUG_LOAD_PLUGINS"
DISABLE_VARIABLE = "FXPLUG_DISABLE_PLUGINS"
EVERY = "*"


@dataclass(frozen=True)
class _Rule:
    source: str
    names: tuple[str, ...]
    loads: bool
    """Whether the names are all that is loaded, or what is not loaded."""
    places: tuple[ConfigSource, ...] = ()
    """Where each of the names stands; empty for those of an argument."""

    def names_plugin(self, candidate: PluginCandidate) -> bool:
        return any(name == EVERY or candidate.is_called(name) for name in self.names)


class Selection:
    """Says of each plugin whether it is loaded.

    Args:
        config: The configuration.
        environ: Environment variables.
        load: The plugins that are loaded, and no others; None leaves that to the other sources.
        disable: Plugins that are not loaded.
    """

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        load: Iterable[str] | None = None,
        disable: Iterable[str] = (),
    ) -> None:
        rules = [_Rule("the argument 'disable'", tuple(disable), loads=False)]
        if load is not None:
            rules.append(_Rule("the argument 'load'", tuple(load), loads=True))
        wanted = environ.get(LOAD_VARIABLE)
        if wanted is not None:
            rules.append(_of_variable(LOAD_VARIABLE, wanted, loads=True))
        rules.append(_of_variable(DISABLE_VARIABLE, environ.get(DISABLE_VARIABLE, ""), loads=False))
        disabled = config.plugins.disable
        places = tuple(config.source_of(f"plugins.disable.{position}") for position in range(len(disabled)))
        rules.append(_Rule(config.place_of("plugins.disable"), disabled, loads=False, places=places))
        self._rules = tuple(rules)

    def check_names(self, candidates: Sequence[PluginCandidate]) -> None:
        """Refuse names that mean no plugin.

        Raises:
            UnknownNameError: The message says where the name stands and offers the nearest ones.
        """
        for _, error in self.unknown_names(candidates):
            raise error

    def unknown_names(
        self, candidates: Sequence[PluginCandidate]
    ) -> Iterator[tuple[ConfigSource, UnknownNameError]]:
        """Yield where each name stands that means no plugin, and the error that `check_names` raises for it."""
        known = {name for candidate in candidates for name in (candidate.name, candidate.distribution)}
        for rule in self._rules:
            for position, name in enumerate(rule.names):
                if name != EVERY and not any(candidate.is_called(name) for candidate in candidates):
                    source = rule.places[position] if rule.places else ConfigSource()
                    place = rule.source if source.file is None else f"plugins.disable at {source}"
                    yield source, UnknownNameError("plugin", name, known, note=f"The name stands in {place}.")

    def reason_against(self, candidate: PluginCandidate) -> str:
        """Return why a plugin is not loaded, an empty text when it is."""
        for rule in self._rules:
            named = rule.names_plugin(candidate)
            if rule.loads:
                return "" if named else f"it is not among those that {rule.source} lists"
            if named:
                return f"switched off by {rule.source}"
        return ""


def _of_variable(variable: str, text: str, *, loads: bool) -> _Rule:
    names = _split(text)
    return _Rule(variable, names, loads, (ConfigSource(variable=variable),) * len(names))


def _split(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)
