"""Checking a plugin against all that fxplug asks of plugins."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from fxplug.errors import UnknownNameError
from fxplug.plugins.default import default_manager_is
from fxplug.testing.backends import check_backends
from fxplug.testing.importing import check_import
from fxplug.testing.models import canned_samples
from fxplug.testing.offers import check_factories, check_names, check_options, check_range
from fxplug.testing.passes import check_passes
from fxplug.testing.records import check_records
from fxplug.testing.report import Findings, Report
from fxplug.testing.showing import check_showing
from fxplug.testing.state import kept_process
from fxplug.testing.subject import GivenOptions, Subject, find_candidate, load_alone
from fxplug.testing.tracing import check_traces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from fxplug.plugins import PluginCandidate

__all__ = ["check_plugin"]


def check_plugin(
    plugin: str | ModuleType | PluginCandidate,
    *,
    name: str | None = None,
    options: GivenOptions | None = None,
    models: Mapping[str, tuple[nn.Module, tuple[Any, ...]]] | None = None,
    time_limit: float = 60.0,
) -> Report:
    """Check a plugin: what the host asks of it, its import, options, factories, traces, passes, backends, records.

    The plugin is loaded alone, whatever else is installed, and without any configuration. Its passes and backends
    run on small models, and on those that are given. Its import is watched in a process of its own.

    Args:
        plugin: The name of an installed plugin or of its distribution, an entry module, or a candidate.
        name: The plugin's name where a module is given; by default the module's, without ``fxplug_``.
        options: Name of a pass or backend -> options with which it is checked; needed for those without defaults.
        models: Name -> (model, inputs) on which passes and backends are checked, too. Give one that a pass changes.
        time_limit: Seconds that a pass may take on one model; one that loops is stopped and is a finding.

    Returns:
        One finding per check and thing that was checked.

    Raises:
        UnknownNameError: The plugin is not installed, or `options` names what it does not offer.

    Example:
        ::

            def test_conformance():
                check_plugin("demo").raise_failures()
    """
    candidate = find_candidate(plugin, name)
    findings = Findings(candidate)
    manager, info = load_alone(candidate)
    if info.status != "active":
        remedy = "Correct the entry module: the page of each hook says what it takes and returns."
        findings.failed(
            "loads", "the plugin", info.reason, remedy if info.status == "failed" else info.remedy
        )
        return findings.report()
    findings.passed("loads", "the plugin", f"hooks {', '.join(info.hooks) or 'none'}")
    subject = Subject(candidate, manager, info, tuple(canned_samples(models)), options or {}, time_limit)
    _refuse_unknown(subject)
    check_names(subject, findings)
    check_range(subject, findings, has_metadata=not isinstance(plugin, ModuleType))
    check_import(subject, findings)
    check_options(subject, findings)
    check_factories(subject, findings)
    with default_manager_is(manager), kept_process():
        check_traces(subject, findings)
        check_passes(subject, findings)
        check_backends(subject, findings)
        check_records(subject, findings)
        check_showing(subject, findings)
    return findings.report()


def _refuse_unknown(subject: Subject) -> None:
    offers = [*subject.passes(), *subject.backends()]
    known = {text for offer in offers for text in (offer.name, offer.record.name)}
    for name in subject.given:
        if name not in known:
            raise UnknownNameError("pass or backend", name, known, note="The name stands in 'options'.")
