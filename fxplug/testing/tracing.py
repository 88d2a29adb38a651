"""Checking what a plugin does to traces."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fxplug.api import Tolerance
from fxplug.capture import Tracer
from fxplug.plugins import PluginWarning
from fxplug.testing.behaviour import differences
from fxplug.testing.subject import reason_of
from fxplug.testing.threads import run_at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fxplug.capture import TraceContext
    from fxplug.ir import Graph, Node
    from fxplug.testing.models import Sample
    from fxplug.testing.report import Findings
    from fxplug.testing.subject import Subject

__all__ = ["check_traces"]

_THREADS = 4
_TITLE = "hooks of a trace"
_ASKED = frozenset(
    {
        "fxplug_create_argument",
        "fxplug_create_proxy",
        "fxplug_is_leaf_module",
        "fxplug_leaf_functions",
        "fxplug_node_created",
        "fxplug_trace_finished",
        "fxplug_trace_started",
        "fxplug_unwrap_module",
    }
)


def check_traces(subject: Subject, findings: Findings) -> None:
    """Check that traces work with the plugin, give the same values, and are the same in every thread."""
    if not _ASKED & set(subject.info.hooks):
        findings.skipped("trace-same-values", _TITLE, "it has none")
        return
    with warnings.catch_warnings():
        # An observer that fails is a warning otherwise, which nobody would count.
        warnings.simplefilter("error", PluginWarning)
        problems = [problem for sample in subject.samples if (problem := _value_problem(subject, sample))]
        findings.verdict(
            "trace-same-values",
            _TITLE,
            problems,
            "Answer with what the hook's page allows, and leave alone what the plugin does not know.",
        )
        if problems:
            return
        _check_notes(subject, findings)
        _check_threads(subject, findings)


def _value_problem(subject: Subject, sample: Sample) -> str:
    where = f"on the model {sample.name!r}"
    try:
        module = sample.trace(subject.manager)
        different = differences(module, sample.model, sample.inputs, Tolerance())
    except Exception as error:  # Whatever a plugin raises is a finding.
        return f"{where} the trace fails: {reason_of(error)}"
    return f"{where} {different[0].path} differs: {different[0].reason}" if different else ""


# -- notes ---------------------------------------------------------------------------------------------------


def _check_notes(subject: Subject, findings: Findings) -> None:
    policy = subject.manager.trace_policy()
    if policy.node_created is None:
        return
    watcher = _Watcher(policy.node_created, f"{subject.candidate.name}.")
    for sample in subject.samples:
        Tracer(policy=replace(policy, node_created=watcher)).trace(sample.model)
    findings.verdict(
        "node-unchanged",
        "fxplug_node_created",
        watcher.changes,
        "Return the notes instead of changing the node.",
    )
    findings.verdict(
        "note-names",
        "fxplug_node_created",
        watcher.names,
        f"Begin keys of notes with the plugin's name: '{subject.candidate.name}.…'.",
    )


class _Watcher:
    """Asks the plugin for notes, and sees what it does to the node."""

    def __init__(self, ask: Callable[[Node, TraceContext], Mapping[str, Any] | None], prefix: str) -> None:
        self._ask = ask
        self._prefix = prefix
        self.changes: list[str] = []
        self.names: list[str] = []

    def __call__(self, node: Node, context: TraceContext) -> Mapping[str, Any] | None:
        before = _state_of(node)
        notes = self._ask(node, context)
        if _state_of(node) != before:
            self.changes.append(f"it changes the node {node.name!r}")
        self.names += [
            f"its note {key!r} could be anybody's" for key in notes or () if not key.startswith(self._prefix)
        ]
        return notes


def _state_of(node: Node) -> tuple[Any, ...]:
    return (
        node.op,
        node.name,
        str(node.target),
        str(node.args),
        str(node.kwargs),
        sorted(node.meta),
        node.origins,
    )


# -- threads -------------------------------------------------------------------------------------------------


def _check_threads(subject: Subject, findings: Findings) -> None:
    def trace_all() -> list[str]:
        return [_text_of(sample.trace(subject.manager).graph) for sample in subject.samples]

    expected = trace_all()
    outcomes, errors = run_at_once(trace_all, _THREADS)
    problems = [reason_of(error) for error in errors]
    for outcome in outcomes:
        problems += [
            f"on the model {sample.name!r}, the graph or its notes are others in several threads"
            for sample, text, right in zip(subject.samples, outcome, expected, strict=True)
            if text != right
        ]
    findings.verdict(
        "trace-threads",
        _TITLE,
        problems,
        "Answer from the arguments of the hook alone, or keep state in a contextvars.ContextVar.",
        f"{_THREADS} threads",
    )


def _text_of(graph: Graph) -> str:
    notes = [{key: _plain(value) for key, value in node.meta.items()} for node in graph.nodes]
    return f"{graph}\n{notes}"


def _plain(value: Any) -> str:
    """Return the text of a plain value; that of others may hold an address."""
    return (
        repr(value) if isinstance(value, (str, int, float, bool, tuple, list, dict)) else type(value).__name__
    )
