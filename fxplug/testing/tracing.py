"""Checking what a plugin does to traces."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fxplug.analyze.isolation import copy_module
from fxplug.api import Tolerance
from fxplug.capture import Tracer
from fxplug.plugins import PluginWarning
from fxplug.testing.behaviour import differences
from fxplug.testing.state import Seen, notes_text
from fxplug.testing.subject import reason_of
from fxplug.testing.threads import run_at_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.capture import TracePolicy
    from fxplug.ir import Graph
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
_HOOKS = {
    "is_leaf_module": "fxplug_is_leaf_module",
    "create_argument": "fxplug_create_argument",
    "proxy_mixins": "fxplug_create_proxy",
    "mixins_of_kind": "fxplug_create_proxy",
    "node_created": "fxplug_node_created",
    "unwrap_module": "fxplug_unwrap_module",
    "trace_started": "fxplug_trace_started",
    "trace_finished": "fxplug_trace_finished",
}
"""Questions of a policy that are asked about nodes or modules -> the hook of each."""


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
        # Also behind a failure: who changes a module makes the trace speak of the model instead.
        _check_changes(subject, findings)
        if not problems:
            _check_threads(subject, findings)


def _value_problem(subject: Subject, sample: Sample) -> str:
    where = f"on the model {sample.name!r}"
    try:
        module = sample.trace(subject.manager)
        different = differences(module, sample.model, sample.inputs, Tolerance())
    except Exception as error:  # Whatever a plugin raises is a finding.
        return f"{where} the trace fails: {reason_of(error)}"
    return f"{where} {different[0].path} differs: {different[0].reason}" if different else ""


# -- what hooks leave as it is -------------------------------------------------------------------------------


def _check_changes(subject: Subject, findings: Findings) -> None:
    policy = subject.manager.trace_policy()
    watcher = _Watcher(f"{subject.candidate.name}.")
    for sample in subject.samples:
        # The finding on values says what failed.
        with suppress(Exception):
            Tracer(policy=watcher.watched(policy)).trace(copy_module(sample.model))
    findings.verdict(
        "node-unchanged",
        _TITLE,
        watcher.nodes,
        "Return notes from fxplug_node_created instead of changing the node.",
    )
    findings.verdict(
        "module-unchanged",
        _TITLE,
        watcher.modules,
        "Keep what the plugin knows of a module in a weakref.WeakKeyDictionary of its own.",
    )
    if policy.node_created is not None:
        findings.verdict(
            "note-names",
            "fxplug_node_created",
            watcher.names,
            f"Begin keys of notes with the plugin's name: '{subject.candidate.name}.…'.",
        )


class _Watcher:
    """Asks the plugin in the tracer's place, and sees what that does to nodes and modules."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.nodes: list[str] = []
        self.modules: list[str] = []
        self.names: list[str] = []

    def watched(self, policy: TracePolicy) -> TracePolicy:
        """Return a policy that answers the same."""
        asked = {name: getattr(policy, name) for name in _HOOKS}
        return replace(
            policy,
            **{
                name: None if function is None else self._watched(_HOOKS[name], function)
                for name, function in asked.items()
            },
        )

    def _watched(self, hook: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            before = Seen(arguments)
            try:
                answer = function(*arguments)
            finally:
                after = Seen(arguments)
                self.nodes += [f"{hook} changes the node {name!r}" for name in before.changed_nodes(after)]
                self.modules += [f"{hook} changes {text}" for text in before.changed_modules(after)]
            if hook == "fxplug_node_created":
                self.names += [
                    f"its note {key!r} could be anybody's"
                    for key in answer or ()
                    if not str(key).startswith(self._prefix)
                ]
            return answer

        return ask


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
    return f"{graph}\n{notes_text(graph)}"
