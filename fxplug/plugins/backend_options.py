"""The options of backends, from the configuration and from arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.errors import ConfigError, FxplugError
from fxplug.plugins.pipelines import validated_options
from fxplug.plugins.settings import ConfigFinding, ConfigSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fxplug.plugins.locations import Key
    from fxplug.plugins.offers import BackendOffer, OfferTable
    from fxplug.plugins.records import BackendRecord
    from fxplug.plugins.settings import Config

__all__ = ["backend_findings", "backend_key", "backend_options"]


def backend_options(
    name: str, given: Mapping[str, Any], table: OfferTable[BackendRecord], config: Config
) -> dict[str, Any]:
    """Return the validated options of a backend: those given, over those of the configuration.

    Args:
        name: Full or short name of the backend; the configuration may use either too.
        given: Options that prevail.
        table: The backends that are offered.
        config: May hold options.

    Raises:
        UnknownNameError: The backend does not exist.
        ConfigError: An option is unknown or has a bad value; the message names key, file and backend.
    """
    offer = table.find(name)
    key = backend_key(offer, config)
    values = {**config.backends.get(key, {}), **given}

    def locate(option: Key) -> ConfigSource:
        return ConfigSource() if option and option[0] in given else config.locate(("backends", key, *option))

    return validated_options(offer.record.options, values, f"backend {offer.name!r}", locate)


def backend_key(offer: BackendOffer, config: Config) -> str:
    """Return under which of its names the configuration has options of a backend.

    Raises:
        ConfigError: Under both.
    """
    keys = [key for key in (offer.name, offer.alias) if key is not None and key in config.backends]
    if offer.alias != offer.name and len(keys) > 1:
        raise ConfigError(
            f"Cannot choose the options of backend {offer.name!r}: the configuration has both "
            f"[backends.{keys[0]}] and [backends.{keys[1]}]. Keep one of them."
        )
    return keys[0] if keys else offer.shown_name


def backend_findings(table: OfferTable[BackendRecord], config: Config) -> Iterator[ConfigFinding]:
    """Yield everything that is wrong with what the configuration says about backends."""
    for name in config.backends:
        source = config.locate(("backends", name))
        try:
            table.find(name, str(source))
            backend_options(name, {}, table, config)
        except FxplugError as error:
            yield ConfigFinding("error", error.message, source)
