"""What plugins offer under names, and how a name finds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fxplug.errors import ConfigError, FxplugError, PluginConflictError, PluginError, UnknownNameError, shown
from fxplug.plugins.records import (
    BackendRecord,
    CommandRecord,
    DeviceRecord,
    PassRecord,
    ReportSectionRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "CORE",
    "BackendOffer",
    "CommandOffer",
    "DeviceOffer",
    "Offer",
    "OfferTable",
    "PassOffer",
    "ReportSectionOffer",
]

CORE = "core"
"""The namespace of what fxplug itself offers; its full names go without."""

RecordT = TypeVar("RecordT", PassRecord, BackendRecord, CommandRecord, DeviceRecord, ReportSectionRecord)


@dataclass(frozen=True)
class Offer(Generic[RecordT]):
    """A record together with its full name and where it comes from."""

    name: str
    """Full name: ``"quant:static-int8"``; what fxplug itself offers has no namespace: ``"dead-code"``."""
    record: RecordT
    plugin: str
    """The plugin that offers it."""
    distribution: str
    version: str
    alias: str | None = None
    """The short name, which may be used instead; None when another plugin or fxplug itself offers it too."""

    @property
    def provider(self) -> str:
        """Distribution and version, for people."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def shown_name(self) -> str:
        """The shortest name by which it is found."""
        return self.alias or self.name

    def create(self, **options: Any) -> Any:
        """Make what is offered.

        Args:
            options: Validated options of the record.

        Raises:
            FxplugError: What the factory itself reports, for example a `BackendError`.
            PluginError: The factory failed otherwise; the message names the distribution.
        """
        record = self.record
        if isinstance(record, DeviceRecord):
            return record  # It describes; there is nothing to make.
        factory: Callable[..., Any] = record.factory
        try:
            return factory(**options)
        except FxplugError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"Cannot make {self.name!r} of plugin {self.plugin!r} ({self.provider}): its factory raised "
                f"{type(error).__name__}: {error}. Report it to the authors of {self.distribution}."
            ) from error


PassOffer = Offer[PassRecord]
BackendOffer = Offer[BackendRecord]
CommandOffer = Offer[CommandRecord]
DeviceOffer = Offer[DeviceRecord]
ReportSectionOffer = Offer[ReportSectionRecord]


class OfferTable(Generic[RecordT]):
    """All offers of one kind.

    Args:
        kind: What they are, for errors: ``"pass"``.
        offers: In the order of the plugins; their aliases are set here.
        note: Ends the error for an unknown name: which plugins are installed but not active.
    """

    def __init__(self, kind: str, offers: Iterable[Offer[RecordT]], note: str = "") -> None:
        self._kind = kind
        self._note = note
        self._by_short_name: dict[str, list[Offer[RecordT]]] = {}
        listed = list(offers)
        for offer in listed:
            self._by_short_name.setdefault(offer.record.name, []).append(offer)
        self._by_name: dict[str, Offer[RecordT]] = {}
        for offer in listed:
            is_alone = len(self._by_short_name[offer.record.name]) == 1
            alias = offer.record.name if is_alone or offer.plugin == CORE else None
            self._by_name[offer.name] = Offer(
                offer.name, offer.record, offer.plugin, offer.distribution, offer.version, alias
            )

    @property
    def by_name(self) -> Mapping[str, Offer[RecordT]]:
        """Full name -> offer, in the order of the plugins: what others offer has no influence on it."""
        return self._by_name

    def find(self, name: str, where: str = "") -> Offer[RecordT]:
        """Return the offer with a full name, or with a short name that is unique.

        What fxplug itself offers is found by its short name whatever plugins offer, so that installing one
        never changes what a name means.

        Args:
            name: A full or short name.
            where: Where the name stands, for errors.

        Raises:
            ConfigError: The name is no text.
            UnknownNameError: There is none.
            PluginConflictError: Several plugins offer the short name.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"Cannot find a {self._kind} by {shown(name)}: give its name, a text.")
        offer = self._by_name.get(name.removeprefix(f"{CORE}:"))
        if offer is not None and (offer.plugin == CORE or not name.startswith(f"{CORE}:")):
            return offer
        same_name = self._by_short_name.get(name, [])
        if len(same_name) == 1:
            return self._by_name[same_name[0].name]
        if same_name:
            raise self._conflict(name, same_name, where)
        known = [offer.name if ":" in name else offer.shown_name for offer in self._by_name.values()]
        place = f"The name stands at {where}." if where else ""
        raise UnknownNameError(self._kind, name, known, note=" ".join(filter(None, (place, self._note))))

    def _conflict(self, name: str, offers: list[Offer[RecordT]], where: str) -> PluginConflictError:
        claims = " and ".join(f"{offer.name!r} ({offer.provider})" for offer in offers)
        place = f" (at {where})" if where else ""
        return PluginConflictError(
            f"The {self._kind} name {name!r}{place} is claimed by several plugins: {claims}. Write one of "
            f"the full names, or switch a plugin off: "
            f'disable = ["{offers[-1].plugin}"] in the table [tool.fxplug.plugins].'
        )
