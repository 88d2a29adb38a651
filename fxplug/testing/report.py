"""What a check of a plugin found, for programs and for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fxplug.plugins import PluginCandidate

__all__ = ["Finding", "Findings", "Outcome", "Report"]

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """The outcome of one check of one thing that a plugin brings."""

    check: str
    """Which check it is: ``"pass-deterministic"``."""
    subject: str
    """What was looked at: ``"pass 'quant:dynamic-int8'"``."""
    outcome: Outcome
    reason: str
    """What was found, or why nothing was looked for."""
    remedy: str
    """What the author of the plugin can do; empty unless the check failed."""
    plugin: str
    distribution: str
    version: str

    def __str__(self) -> str:
        """Return a sentence with everything that its author needs."""
        owner = f"plugin {self.plugin!r} ({self.distribution} {self.version})"
        text = f"{self.check} of {self.subject}, {owner} {self.outcome}"
        text = f"{text}: {self.reason}" if self.reason else text
        return f"{text if text.endswith(('.', '?')) else f'{text}.'} {self.remedy}".rstrip()


@dataclass(frozen=True)
class Report:
    """Everything that `check_plugin` found of one plugin."""

    plugin: str
    distribution: str
    version: str
    findings: tuple[Finding, ...]
    """In the order in which the checks ran."""

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Finding, ...]:
        """What failed."""
        return tuple(finding for finding in self.findings if finding.outcome == "failed")

    @property
    def skipped(self) -> tuple[Finding, ...]:
        """What could not be looked at."""
        return tuple(finding for finding in self.findings if finding.outcome == "skipped")

    def raise_failures(self) -> None:
        """Do nothing if the report is clean.

        Raises:
            AssertionError: A check failed; the message holds every failure, with what to do.
        """
        if self.passed:
            return
        lines = "\n  - ".join(str(finding) for finding in self.failures)
        raise AssertionError(
            f"Plugin {self.plugin!r} ({self.distribution} {self.version}) fails "
            f"{len(self.failures)} of {len(self.findings)} checks:\n  - {lines}"
        )

    def to_data(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "plugin": self.plugin,
            "distribution": self.distribution,
            "version": self.version,
            "passed": self.passed,
            "findings": [
                {
                    "check": finding.check,
                    "subject": finding.subject,
                    "outcome": finding.outcome,
                    "reason": finding.reason,
                    "remedy": finding.remedy,
                }
                for finding in self.findings
            ],
        }


@dataclass
class Findings:
    """Collects what the checks of one plugin find."""

    candidate: PluginCandidate
    entries: list[Finding] = field(default_factory=list[Finding])

    def passed(self, check: str, subject: str, note: str = "") -> None:
        """Note that a check found nothing wrong."""
        self._add(check, subject, "passed", note, "")

    def failed(self, check: str, subject: str, reason: str, remedy: str) -> None:
        """Note what is wrong, and what to do about it."""
        self._add(check, subject, "failed", reason, remedy)

    def skipped(self, check: str, subject: str, reason: str) -> None:
        """Note why a check could not look."""
        self._add(check, subject, "skipped", reason, "")

    def verdict(self, check: str, subject: str, problems: list[str], remedy: str, note: str = "") -> None:
        """Note every problem in one finding, or that there is none."""
        if problems:
            self.failed(check, subject, "; ".join(dict.fromkeys(problems)), remedy)
        else:
            self.passed(check, subject, note)

    def _add(self, check: str, subject: str, outcome: Outcome, reason: str, remedy: str) -> None:
        owner = self.candidate
        self.entries.append(
            Finding(check, subject, outcome, reason, remedy, owner.name, owner.distribution, owner.version)
        )

    def report(self) -> Report:
        """Return all findings."""
        owner = self.candidate
        return Report(owner.name, owner.distribution, owner.version, tuple(self.entries))
