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

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fxplug.plugins.discovery import PluginCandidate
    from fxplug.plugins.settings import Config

__all__ = ["Selection"]

LOAD_VARIABLE = "FXPLUG_LOAD_PLUGINS"
DISABLE_VARIABLE = "FXPLUG_DISABLE_PLUGINS"
EVERY = "*"


@dataclass(frozen=True)
class _Rule:
    source: str
    names: tuple[str, ...]
    loads: bool
    """Whether the names are all that is loaded, or what is not loaded."""

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
            rules.append(_Rule(LOAD_VARIABLE, _split(wanted), loads=True))
        rules.append(_Rule(DISABLE_VARIABLE, _split(environ.get(DISABLE_VARIABLE, "")), loads=False))
        rules.append(_Rule(config.place_of("plugins.disable"), config.plugins.disable, loads=False))
        self._rules = tuple(rules)

    def check_names(self, candidates: Sequence[PluginCandidate]) -> None:
        """Refuse names that mean no plugin.

        Raises:
            UnknownNameError: The message says where the name stands and offers the nearest ones.
        """
        known = {name for candidate in candidates for name in (candidate.name, candidate.distribution)}
        for rule in self._rules:
            for name in rule.names:
                if name != EVERY and not any(candidate.is_called(name) for candidate in candidates):
                    raise UnknownNameError("plugin", name, known, note=f"The name stands in {rule.source}.")

    def reason_against(self, candidate: PluginCandidate) -> str:
        """Return why a plugin is not loaded, an empty text when it is."""
        for rule in self._rules:
            named = rule.names_plugin(candidate)
            if rule.loads:
                return "" if named else f"it is not among those that {rule.source} lists"
            if named:
                return f"disabled by {rule.source}"
        return ""


def _split(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)
