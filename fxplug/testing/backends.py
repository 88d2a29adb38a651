"""Checking the backends of a plugin on small models."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from fxplug.analyze.isolation import copy_module, copy_values
from fxplug.api import Tolerance
from fxplug.errors import BackendError, LoweringError
from fxplug.lower import Backend, Profile, Support, lower
from fxplug.lower.backend import LoweringContext
from fxplug.testing.behaviour import differences
from fxplug.testing.partitions import single_calls
from fxplug.testing.subject import reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.ir import Node
    from fxplug.plugins import BackendOffer
    from fxplug.testing.models import Sample
    from fxplug.testing.report import Findings
    from fxplug.testing.subject import Subject

__all__ = ["check_backends"]


def check_backends(subject: Subject, findings: Findings) -> None:
    """Check every backend that the plugin offers."""
    for offer in subject.backends():
        title = f"backend {offer.name!r}"
        missing = subject.lacks_options(offer)
        if missing:
            reason = f"the option {missing} has no default; give it: check_plugin(..., options=...)"
            findings.skipped("backend-partition", title, reason)
            continue
        try:
            backend: Any = offer.create(**subject.options_of(offer))
        except Exception:
            continue
        if not isinstance(backend, Backend):
            continue
        problems = [problem for sample in subject.samples for problem in _partition(subject, backend, sample)]
        findings.verdict(
            "backend-partition",
            title,
            problems,
            "supports() returns a Support, with a reason where it says no, the same each time, and changes nothing.",
        )
        if not problems:
            _check_values(subject, offer, backend, title, findings)


def _partition(subject: Subject, backend: Backend, sample: Sample) -> list[str]:
    module = sample.trace(subject.manager)
    before = (str(module.graph), module.graph.version)
    where = f"on the model {sample.name!r}"
    try:
        problems = _wrong_answers(backend, module, sample)
    except Exception as error:  # Whatever a plugin raises is a finding.
        return [f"{where} supports() fails: {reason_of(error)}"]
    if (str(module.graph), module.graph.version) != before:
        problems.append("supports() changes the graph")
    return [f"{where} {problem}" for problem in problems]


def _wrong_answers(backend: Backend, module: GraphModule, sample: Sample) -> list[str]:
    context = LoweringContext(module, sample.own_inputs())
    problems: list[str] = []
    for node in list(module.graph.nodes):
        if not node.op.startswith("call_"):
            continue
        answer: Any = backend.supports(node, context)
        if not isinstance(answer, Support):
            problems.append(f"supports() answers {answer!r} for node {node.name!r}, which is no Support")
        elif not answer.ok and not answer.reason:
            problems.append(f"supports() refuses node {node.name!r} without a reason")
        elif backend.supports(node, context) != answer:
            problems.append(f"supports() answers differently for node {node.name!r} when it is asked again")
    return problems


def _check_values(
    subject: Subject, offer: BackendOffer, backend: Backend, title: str, findings: Findings
) -> None:
    absent = [name for name in offer.record.requires if not _is_installed(name)]
    if absent:
        findings.skipped("backend-same-values", title, f"its engine is missing: {', '.join(absent)}")
        return
    problems: list[str] = []
    reasons: list[str] = []
    parts = 0
    for sample in subject.samples:
        module = sample.trace(subject.manager)
        whole = _Part(f"on the model {sample.name!r}", module, sample.model, sample.inputs)
        for part in [whole, *_calls(backend, module, sample)]:
            problem, reason = _values(subject, offer, backend, part)
            problems += [problem] if problem else []
            reasons += [reason] if reason else []
            parts += 1
    if not problems and len(reasons) == parts:
        findings.skipped("backend-same-values", title, f"it ran nothing: {reasons[-1]}")
        return
    findings.verdict(
        "backend-same-values",
        title,
        problems,
        "compile() returns a module that computes what the subgraph computes; what the engine cannot run, supports() "
        "refuses.",
        f"ran {parts - len(reasons)} of {parts} whole models and single calls",
    )


@dataclass(frozen=True)
class _Part:
    """What a backend is handed: a whole model, or one call that it says it supports."""

    where: str
    module: GraphModule
    expected: nn.Module
    inputs: tuple[Any, ...]


def _calls(backend: Backend, module: GraphModule, sample: Sample) -> list[_Part]:
    context = LoweringContext(module, sample.own_inputs())
    return [
        _Part(f"for the call {name!r} of the model {sample.name!r}", part, copy_module(part), inputs)
        for name, part, inputs in single_calls(
            module, sample.inputs, lambda node: bool(backend.supports(node, context))
        )
    ]


class _Watched(Backend):
    """A backend, of which is noted whether it changes what it is given: that runs where the engine cannot."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.changed = False

    def supports(self, node: Node, context: LoweringContext) -> Support:
        return self._backend.supports(node, context)

    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> nn.Module:
        before = (str(subgraph.graph), subgraph.graph.version)
        made = self._backend.compile(subgraph, example_inputs, options)
        self.changed |= (str(subgraph.graph), subgraph.graph.version) != before
        return made

    def profile(self, example_inputs: tuple[Any, ...]) -> Profile | None:
        return self._backend.profile(example_inputs)


def _values(subject: Subject, offer: BackendOffer, backend: Backend, part: _Part) -> tuple[str, str]:
    """Return what is wrong with something that the backend runs, or why it does not run it."""
    watched = _Watched(backend)
    inputs, options = copy_values(part.inputs), subject.options_of(offer)
    try:
        lowered = lower(part.module, watched, inputs, name=offer.name, options=options, strict=True)
    except LoweringError as error:
        if error.__cause__ is None or isinstance(error.__cause__, BackendError):
            return "", reason_of(error.__cause__ or error)
        return f"{part.where} {reason_of(error)}", ""
    if watched.changed:
        return f"{part.where} compile() changes the graph that it is given", ""
    try:
        different = differences(lowered.module, part.expected, part.inputs, Tolerance())
    except Exception as error:  # An engine fails in any way.
        return f"{part.where} the compiled module does not run: {reason_of(error)}", ""
    return (f"{part.where} {different[0].path} differs: {different[0].reason}" if different else ""), ""


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
