"""What ``fxplug doctor`` finds out about configuration, plugins and what they need."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from fxplug.cli.environment import installed_version
from fxplug.plugins.checking import examine_host
from fxplug.plugins.resolved import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from fxplug.cli.findings import Findings
    from fxplug.lower import BackendRecord
    from fxplug.plugins import ConfigFinding, Offer, PluginManager

__all__ = ["find_about_plugins"]


def find_about_plugins(config: Path | None, findings: Findings) -> None:
    """Add what there is to say about configuration, plugins, conflicts, backends and programs.

    Args:
        config: The configuration file, by default the one that is found.
        findings: Receives it.
    """
    host = examine_host(config)
    manager = host.manager
    for finding in [*host.findings, *manager.config_findings(host.config)]:
        (findings.problems if finding.severity == "error" else findings.notes).append(_text_of(finding))
    rows = [{"what": "file", "value": str(host.config.file or "none")}]
    rows += [{"what": name, "value": repr(os.environ[name])} for name in VARIABLES if name in os.environ]
    findings.sections["Configuration"] = rows
    _find_plugins(manager, findings)
    _find_conflicts(manager, findings)
    _find_engines(manager, findings)
    _find_programs(manager, findings)


def _text_of(finding: ConfigFinding) -> str:
    # An error about a value of a variable names it.
    return finding.message if finding.source.file is None else f"{finding.source}: {finding.message}"


def _find_plugins(manager: PluginManager, findings: Findings) -> None:
    infos = manager.plugin_infos()
    findings.sections["Plugins"] = [
        {
            "plugin": info.name,
            "distribution": f"{info.distribution} {info.version}",
            "status": info.status,
            "reason": info.reason,
        }
        for info in infos
    ]
    findings.problems += [
        f"Plugin {info.name!r} ({info.distribution} {info.version}) is {info.status}: {info.explanation}"
        for info in infos
        if info.status in {"failed", "incompatible"}
    ]


def _find_conflicts(manager: PluginManager, findings: Findings) -> None:
    rows: list[dict[str, Any]] = []
    kinds: tuple[tuple[str, Iterable[Offer[Any]]], ...] = (
        ("pass", manager.passes().values()),
        ("backend", manager.backends().values()),
        ("command", manager.commands().values()),
        ("device", manager.devices().values()),
        ("report section", manager.report_sections().values()),
    )
    for kind, offers in kinds:
        by_name: dict[str, list[Offer[Any]]] = {}
        for offer in offers:
            by_name.setdefault(offer.record.name, []).append(offer)
        for name, claims in by_name.items():
            if len(claims) > 1:
                rows.append(
                    {
                        "kind": kind,
                        "short name": name,
                        "claimed by": ", ".join(f"{claim.name} ({claim.provider})" for claim in claims),
                    }
                )
                findings.notes.append(
                    f"The {kind} name {name!r} is claimed by {' and '.join(claim.name for claim in claims)}. Write one "
                    f'of these full names, or switch a plugin off: disable = ["{claims[-1].plugin}"] in the table '
                    f"[tool.fxplug.plugins]."
                )
    findings.sections["Conflicts"] = rows


def _find_engines(manager: PluginManager, findings: Findings) -> None:
    rows: list[dict[str, Any]] = []
    for offer in manager.backends().values():
        missing = [name for name in offer.record.requires if installed_version(name) is None]
        found = [f"{name} {installed_version(name)}" for name in offer.record.requires if name not in missing]
        engine = ", ".join([*found, *(f"{name} is not installed" for name in missing)])
        rows.append({"backend": offer.shown_name, "engine": engine or "built in"})
        told = (
            f"{', '.join(missing)} is not installed. Run: pip install {' '.join(missing)}" if missing else ""
        )
        if reason := _problem_of(offer.record, told):
            findings.notes.append(f"Backend {offer.shown_name!r} cannot run here: {reason}")
    findings.sections["Backends"] = rows


def _problem_of(record: BackendRecord, otherwise: str) -> str:
    """Return why a backend does not run here, as it says itself if it can."""
    if record.problem is None:
        return otherwise
    try:
        return record.problem()
    except Exception as error:  # Code of a plugin; the other findings are wanted all the same.
        return f"asked why, it fails with {type(error).__name__}: {error}"


def _find_programs(manager: PluginManager, findings: Findings) -> None:
    rows: list[dict[str, Any]] = []
    for info in manager.plugin_infos():
        for program, purpose in info.programs.items():
            path = shutil.which(program)
            rows.append({"program": program, "plugin": info.name, "for": purpose, "found": path or "MISSING"})
            if path is None:
                findings.notes.append(
                    f"The program {program!r} is not on the path. Plugin {info.name!r} ({info.distribution} "
                    f"{info.version}) names it: {purpose}."
                )
    findings.sections["Programs"] = rows
