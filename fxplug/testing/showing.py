"""Checking what a plugin shows and hears: sections of a report, pictures, observers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from fxplug.capture import TraceContext, TraceEvent
from fxplug.errors import FxplugError, TraceError
from fxplug.passes import PassEvent, PassResult
from fxplug.plugins import PluginWarning, ReportContext
from fxplug.testing.state import Seen
from fxplug.testing.subject import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug.execute import GraphModule
    from fxplug.plugins import ReportSectionOffer
    from fxplug.testing.models import Sample
    from fxplug.testing.report import Findings
    from fxplug.testing.subject import Subject

__all__ = ["check_showing"]

_FORMATS = ("text", "html", "dot", "svg", "no-such-format")
_OBSERVERS = frozenset(
    {"fxplug_pass_finished", "fxplug_pass_started", "fxplug_trace_finished", "fxplug_trace_started"}
)


def check_showing(subject: Subject, findings: Findings) -> None:
    """Check that sections, pictures and observers work and change nothing."""
    for offer in subject.manager.report_sections().values():
        _check_section(subject, offer, findings)
    if "fxplug_represent" in subject.info.hooks:
        findings.verdict(
            "represent-runs",
            "fxplug_represent",
            _problems(subject, lambda sample, module: _represent(subject, module)),
            "Return text, bytes, or None for formats that the plugin does not know, and leave the module as it is.",
        )
    if _OBSERVERS & set(subject.info.hooks):
        is_sound = not any(
            finding.check == "trace-same-values" and finding.outcome == "failed"
            for finding in findings.entries
        )
        findings.verdict(
            "observers-run",
            "hooks that hear",
            _problems(subject, lambda sample, module: _tell(subject, sample, module, is_sound=is_sound)),
            "Only look at the event: a graph, a result and an error may each be None.",
        )


def _problems(subject: Subject, show: Callable[[Sample, GraphModule], Iterator[str]]) -> list[str]:
    """Return what is wrong on the models, and what was changed there."""
    problems: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        for sample in subject.samples:
            module = sample.trace(subject.manager)
            before = Seen((module,))
            found = list(show(sample, module))
            after = Seen((module,))
            found += [f"it changes the node {name!r}" for name in before.changed_nodes(after)]
            found += [f"it changes {text}" for text in before.changed_modules(after)]
            problems += [f"on the model {sample.name!r} {problem}" for problem in found]
    return problems


# -- sections ------------------------------------------------------------------------------------------------


class _NoReport(Mapping[str, Any]):
    """Stands for a report that was not made: only whoever optimises a model has one."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getitem__(self, key: str) -> Any:
        self.asked.append(key)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _check_section(subject: Subject, offer: ReportSectionOffer, findings: Findings) -> None:
    title = f"report section {offer.name!r}"
    data = _NoReport()

    def show(sample: Sample, module: GraphModule) -> Iterator[str]:
        try:
            answer: Any = offer.record.factory(ReportContext(module, sample.own_inputs(), data))
        except Exception as error:  # Whatever a plugin raises is a finding.
            yield f"it fails: {reason_of(error)}"
            return
        if not _is_section(answer):
            yield f"it returns {answer!r}"

    problems = _problems(subject, show)
    if problems and data.asked:
        reason = f"it reads {data.asked[0]!r} of a report, which only 'fxplug optimize' makes: {problems[0]}"
        findings.skipped("section-runs", title, reason)
        return
    findings.verdict(
        "section-runs",
        title,
        problems,
        "Return a text, or rows of one length with their head first, or None; leave the module as it is.",
    )


def _is_section(answer: Any) -> bool:
    if answer is None or isinstance(answer, str):
        return True
    if not isinstance(answer, Sequence) or isinstance(answer, bytes):
        return False
    rows = cast("Sequence[Any]", answer)
    if not all(isinstance(row, Sequence) and not isinstance(row, (str, bytes)) for row in rows):
        return False
    return len({len(row) for row in rows}) == 1


# -- pictures and events -------------------------------------------------------------------------------------


def _represent(subject: Subject, module: GraphModule) -> Iterator[str]:
    for name in _FORMATS:
        try:
            subject.manager.represent(module, name)
        except Exception as error:  # Whatever a plugin raises is a finding.
            # A sentence of fxplug's own kind says what the plugin lacks.
            if not isinstance(error.__cause__, FxplugError):
                yield f"the format {name!r} fails: {reason_of(error)}"


def _tell(subject: Subject, sample: Sample, module: GraphModule, *, is_sound: bool) -> Iterator[str]:
    policy, listeners = subject.manager.trace_policy(), subject.manager.pass_observers()
    error = TraceError("Cannot trace: this is a check.")
    failed = TraceEvent(TraceContext(sample.model), error=error, seconds=0.1)
    count, result = len(module.graph.nodes), PassResult(modified=False)
    pass_events = [
        PassEvent("check", "check", 0, 1, module, count),
        PassEvent("check", "check", 0, 1, module, count, count, 0.1, result),
        PassEvent("check", "check", 0, 1, module, count, count, 0.1, error=error),
    ]
    # Traces that end well were made before; here is one that does not.
    told: list[tuple[Any, Any]] = [(policy.trace_finished, failed)] if is_sound else []
    told += [(tell, event) for tell in listeners for event in pass_events]
    for tell, event in told:
        if tell is not None:
            yield from _heard(tell, event)


def _heard(tell: Callable[[Any], None], event: Any) -> Iterator[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PluginWarning)
        tell(event)
    for warning in caught:
        if issubclass(warning.category, PluginWarning):
            yield f"an observer fails: {warning.message}"
