"""Checking what a plugin offers: names, options and factories."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fxplug.errors import FxplugError
from fxplug.lower import Backend
from fxplug.passes import Pass
from fxplug.plugins.discovery import canonical
from fxplug.plugins.pipelines import validated_options
from fxplug.testing.subject import reason_of

if TYPE_CHECKING:
    from fxplug.plugins import BackendOffer, PassOffer
    from fxplug.testing.report import Findings
    from fxplug.testing.subject import Subject

__all__ = ["check_factories", "check_names", "check_options", "check_range"]

_NONSENSE: tuple[Any, ...] = ([[["nonsense"]]], {"nonsense": {"nonsense": 0.5}})
"""Values that no option is meant to take, of two kinds, because a list or a table may be allowed."""


def check_names(subject: Subject, findings: Findings) -> None:
    """Check that the plugin is called as its distribution, and that what it offers can be told apart."""
    owner = subject.candidate
    problems: list[str] = []
    if canonical(owner.distribution) != f"fxplug-{canonical(owner.name)}":
        problems.append(f"the distribution {owner.distribution!r} is not called 'fxplug-{owner.name}'")
    problems += [
        f"the summary of {offer.name!r} is not one line of text"
        for offer in [*subject.passes(), *subject.backends(), *subject.commands()]
        if not offer.record.summary.strip() or "\n" in offer.record.summary
    ]
    findings.verdict(
        "names",
        "the plugin",
        problems,
        "Name the distribution 'fxplug-' and the entry point; give every record a summary of one line.",
    )


def check_range(subject: Subject, findings: Findings, *, has_metadata: bool) -> None:
    """Check that the distribution says which releases of fxplug it was made for."""
    owner = subject.candidate
    if not has_metadata:
        findings.skipped("range", "the distribution", "it was given as a module, which has no metadata")
        return
    ranges = [text for text in owner.requires if re.match(r"fxplug\b(?!-)", canonical(text))]
    problems = [] if ranges else ["it does not require fxplug"]
    problems += [f"{text!r} has no upper bound" for text in ranges if not re.search(r"<|==|~=", text)]
    findings.verdict(
        "range",
        "the distribution",
        problems,
        "State both ends of the range under 'dependencies', such as fxplug>=0.1,<0.2.",
        "; ".join(ranges),
    )


def check_options(subject: Subject, findings: Findings) -> None:
    """Check that options can be written in a configuration, and that bad ones are refused."""
    for offer in [*subject.passes(), *subject.backends()]:
        if offer.record.options is None:
            continue
        title = f"options of {offer.name!r}"
        missing = subject.lacks_options(offer)
        if missing:
            reason = f"the option {missing} has no default; give it: check_plugin(..., options=...)"
            findings.skipped("options-plain", title, reason)
            continue
        findings.verdict(
            "options-plain",
            title,
            _not_plain(subject, offer),
            "Give options types that TOML has: text, numbers, booleans, lists and tables; turn them into others in "
            "the factory.",
        )
        findings.verdict(
            "options-checked",
            title,
            _unchecked(subject, offer),
            "Annotate the option with what it takes, such as str, int or Literal['a', 'b'], instead of Any or object.",
        )


def _not_plain(subject: Subject, offer: PassOffer | BackendOffer) -> list[str]:
    try:
        values = subject.options_of(offer)
    except FxplugError as error:
        return [reason_of(error)]
    problems: list[str] = []
    # TOML has no null: an option that is None is left out.
    for name, value in values.items():
        if value is None:
            continue
        try:
            written = json.loads(json.dumps(value, allow_nan=False))
            read = validated_options(offer.record.options, {**values, name: written}, repr(offer.name), None)[
                name
            ]
        except (TypeError, ValueError) as error:  # A ConfigError is a ValueError.
            problems.append(f"{name!r} = {value!r} cannot be written and read again: {reason_of(error)}")
            continue
        if read != value:
            problems.append(f"{name!r} = {value!r} is {read!r} when it is written and read again")
    return problems


def _unchecked(subject: Subject, offer: PassOffer | BackendOffer) -> list[str]:
    options = offer.record.options
    assert options is not None  # Only records with options are asked.
    problems: list[str] = []
    for option in fields(options):
        taken = [value for value in _NONSENSE if option.init and _takes(subject, offer, option.name, value)]
        if len(taken) == len(_NONSENSE):
            problems.append(f"{option.name!r} takes any value, even {taken[0]!r}")
    return problems


def _takes(subject: Subject, offer: PassOffer | BackendOffer, name: str, value: Any) -> bool:
    given = {**subject.given_to(offer), name: value}
    try:
        validated_options(offer.record.options, given, repr(offer.name), None)
    except Exception:  # A dataclass that refuses by whatever error refuses all the same.
        return False
    return True


def check_factories(subject: Subject, findings: Findings) -> None:
    """Check that everything that is offered can be made."""
    for kind, wanted, offers in (
        ("pass", Pass, subject.passes()),
        ("backend", Backend, subject.backends()),
    ):
        for offer in offers:
            title = f"{kind} {offer.name!r}"
            missing = subject.lacks_options(offer)
            if missing:
                reason = f"the option {missing} has no default; give it: check_plugin(..., options=...)"
                findings.skipped("factory", title, reason)
                continue
            _check_factory(
                lambda offer=offer: offer.create(**subject.options_of(offer)), wanted, title, findings
            )
    for offer in subject.commands():
        _check_factory(offer.create, None, f"command {offer.name!r}", findings)


def _check_factory(make: Any, wanted: type[Any] | None, title: str, findings: Findings) -> None:
    problems: list[str] = []
    try:
        made = make()
    except Exception as error:  # Whatever a plugin raises is a finding.
        problems.append(f"it cannot be made: {reason_of(error)}")
    else:
        # Commands belong to the library of the command line, which is unknown here.
        fits = callable(getattr(made, "main", None)) if wanted is None else isinstance(made, wanted)
        if not fits:
            name = "click command" if wanted is None else wanted.__name__
            problems.append(f"its factory returned a {type(made).__name__} instead of a {name}")
    findings.verdict(
        "factory",
        title,
        problems,
        "Let the factory take the options as keyword arguments and return what the record promises.",
    )
