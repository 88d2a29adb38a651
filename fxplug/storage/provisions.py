"""What plugins bring to files: functions under names of their own, and types whose values files keep.

A name that a plugin brings is written ``"@plugin:name"``, so that it can never be one of the closed table. The file
notes which distribution brought it, in which version; without that plugin it does not load, and the error names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fxplug.errors import FxplugError
from fxplug.storage.faults import Codes, Refusal, checked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fxplug.capture import ConstantRecord

__all__ = ["ProvidedConstant", "ProvidedTarget", "Provision", "Provisions", "StorageTargetRecord"]

_NAME = re.compile(r"@([a-z0-9]+(?:-[a-z0-9]+)*):[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)
_DISTRIBUTION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{0,60}", re.ASCII)


@dataclass(frozen=True)
class StorageTargetRecord:
    """Gives a function, or a class of modules, a name by which files refer to it, so that nobody needs ``allow=``."""

    name: str
    """Lower-case words joined by hyphens, e.g. ``"resample"``. It must mean the same in all later versions."""
    target: Callable[..., Any]
    """The function: a file may call it with any arguments, so it must not read files or run what it is given. Or a
    class of modules, whose instances files hold: parameters, buffers, submodules and plain attributes are kept, and
    given to an instance that was made without its constructor, as pickle does. A file cannot call the class."""
    summary: str = ""
    """One line for people."""
    python: Callable[[], Mapping[str, str]] | None = None
    """Returns a Python package in which the target has its own name and which needs torch alone: file name -> text,
    with an ``__init__.py``. `fxplug.export_python` puts it beside a program that uses the target, under the name of
    the plugin. None: an exported program imports the target from where it is defined."""


@dataclass(frozen=True)
class ProvidedTarget:
    """A function that a plugin has named."""

    record: StorageTargetRecord
    plugin: str
    distribution: str
    version: str


@dataclass(frozen=True)
class ProvidedConstant:
    """A type whose values a plugin has declared to be constants."""

    record: ConstantRecord
    plugin: str
    distribution: str
    version: str


@dataclass(frozen=True)
class Provisions:
    """Everything that the active plugins bring to files."""

    targets: tuple[ProvidedTarget, ...] = ()
    constants: tuple[ProvidedConstant, ...] = ()
    plugins: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name of an active plugin -> its distribution and version."""


class Provision:
    """The plugins' part in one file; plugins are loaded when something of theirs is first met.

    Args:
        load: Returns what they bring; None where no plugin takes part.
    """

    def __init__(self, load: Callable[[], Provisions] | None = None) -> None:
        self._load = load
        self._loaded: Provisions | None = None
        self.providers: dict[str, list[str]] = {}
        """Plugin -> distribution and version: of what was used when saving, of what the file noted when loading."""

    def _provisions(self) -> Provisions:
        if self._loaded is None:
            try:
                self._loaded = self._load() if self._load is not None else Provisions()
            except FxplugError as error:
                raise Refusal(f"the plugins cannot be asked: {error.message}") from error
        return self._loaded

    def read_providers(self, data: Any) -> None:
        """Take in what a file says about who brought its names.

        Raises:
            Refusal: It is damaged.
        """
        for plugin, entry in checked(data, dict, "The table of providers").items():
            texts = [checked(text, str, "A provider") for text in checked(entry, list, "A provider")]
            if len(texts) != 2 or not _DISTRIBUTION.fullmatch(texts[0]) or not _VERSION.fullmatch(texts[1]):
                raise Refusal("its table of providers is not what one can be. The file is damaged.")
            self.providers[plugin] = texts

    # -- functions

    def offer_of(self, target: Any) -> ProvidedTarget | None:
        """Return what a plugin has said of a function or class, None when none has."""
        return next((offer for offer in self._provisions().targets if offer.record.target is target), None)

    @staticmethod
    def is_name(name: str) -> bool:
        """Return whether a name is one that plugins bring."""
        return _NAME.fullmatch(name) is not None

    def name_of(self, target: Any) -> str | None:
        """Return the name that a plugin has given to a function, None when none has."""
        offer = self.offer_of(target)
        return None if offer is None else self._used(offer)

    def resolve(self, name: str) -> Any:
        """Return the function that a plugin has named so.

        Raises:
            Refusal: No active plugin has; the message names the distribution to install.
        """
        for offer in self._provisions().targets:
            if _name(offer) == name:
                return offer.record.target
        raise self._missing(name, "function")

    # -- constants

    def constant_for(self, value: Any) -> ProvidedConstant | None:
        """Return what is known of the type of a value, None when no plugin has declared it."""
        return next(
            (offer for offer in self._provisions().constants if offer.record.type is type(value)), None
        )

    def encode(self, offer: ProvidedConstant, value: Any) -> tuple[str, Any]:
        """Return the name of a constant's type, and what a file keeps of the value.

        Raises:
            Refusal: The type cannot be stored, or the plugin failed.
        """
        record = offer.record
        if record.encode is None or record.decode is None:
            raise Refusal(
                f"a value of type {record.type.__module__}.{record.type.__qualname__} cannot be stored: plugin "
                f"{offer.plugin!r} ({offer.distribution} {offer.version}) says that it is a constant, but not how a "
                "file keeps it (encode and decode of its ConstantRecord)."
            )
        try:
            content = record.encode(value)
        except Exception as error:
            raise _failed("encode", offer, error) from error
        return self._used(offer), content

    def decode(self, name: str, content: Any) -> Any:
        """Return the constant for what a file keeps.

        Raises:
            Refusal: No active plugin knows its type, or the plugin failed.
        """
        offer = next((offer for offer in self._provisions().constants if _name(offer) == name), None)
        if offer is None or offer.record.decode is None:
            raise self._missing(name, "constant")
        try:
            value = offer.record.decode(content)
        except Exception as error:
            raise _failed("decode", offer, error) from error
        if type(value) is not offer.record.type:
            raise Refusal(
                f"the constant {name!r} became a {type(value).__name__} instead of a {offer.record.type.__name__}. "
                f"Report it to the authors of {offer.distribution} {offer.version}."
            )
        return value

    # -- names

    def _used(self, offer: ProvidedTarget | ProvidedConstant) -> str:
        self.providers[offer.plugin] = [offer.distribution, offer.version]
        return _name(offer)

    def _missing(self, name: str, what: str) -> Refusal:
        match = _NAME.fullmatch(name)
        plugin = match[1] if match is not None else ""
        distribution, version = self.providers.get(plugin, ["", ""])
        brought = f"{distribution} {version}".strip()
        pinned = f"{distribution}=={version}" if version else distribution
        active = self._provisions().plugins.get(plugin)
        if active is not None:
            return Refusal(
                f"the {what} {name!r} is not among those that plugin {plugin!r} ({active}) brings. The file was "
                f"written with {brought or 'another version'}: install that version, or write the file anew.",
                Codes.PLUGIN,
            )
        if not brought:
            return Refusal(
                f"the {what} {name!r} was brought by a plugin, and the file does not say by which. It is damaged.",
                Codes.PLUGIN,
            )
        return Refusal(
            f"the {what} {name!r} was brought by the plugin {plugin!r} of {brought}, which takes no part here. Install "
            f"it (pip install {pinned}), or switch it on; 'fxplug plugins list --all' says what became of it.",
            Codes.PLUGIN,
        )


def _name(offer: ProvidedTarget | ProvidedConstant) -> str:
    return f"@{offer.plugin}:{offer.record.name}"


def _failed(step: str, offer: ProvidedConstant, error: Exception) -> Refusal:
    return Refusal(
        f"{step} of the constant {_name(offer)!r} raised {type(error).__name__}: {error}. Report it to the authors of "
        f"{offer.distribution} {offer.version}."
    )
