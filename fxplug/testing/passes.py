"""Checking the passes of a plugin on small models."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.analyze.comparison import compare
from fxplug.api import Tolerance
from fxplug.errors import FxplugError
from fxplug.passes import Pass, PassContext, PassResult
from fxplug.testing.behaviour import differences
from fxplug.testing.declarations import check_declarations
from fxplug.testing.interruption import OvertimeError, interrupted_after
from fxplug.testing.state import effects_besides, fingerprint, kept_process, notes_text
from fxplug.testing.subject import reason_of
from fxplug.testing.threads import run_at_once

if TYPE_CHECKING:
    from fxplug.execute import GraphModule
    from fxplug.ir import Node
    from fxplug.plugins import PassOffer
    from fxplug.testing.models import Sample
    from fxplug.testing.report import Findings
    from fxplug.testing.subject import Subject

__all__ = ["check_passes"]

_MARK = "fxplug.testing"
_THREADS = 4


@dataclass(frozen=True)
class _Run:
    """One run of a pass on one model."""

    sample: Sample
    module: GraphModule
    result: PassResult
    changed: bool
    """Whether the graph or the state of the module is another one."""
    damaged: tuple[str, ...]
    """Nodes that lost notes or origin, each as a clause."""
    effects: tuple[str, ...]
    """What the run did besides, each as a clause."""

    def outcome(self) -> tuple[Any, ...]:
        """Return what equal models become equally."""
        return (*fingerprint(self.module), notes_text(self.module.graph))


def check_passes(subject: Subject, findings: Findings) -> None:
    """Check every pass that the plugin offers."""
    for offer in subject.passes():
        title = f"pass {offer.name!r}"
        missing = subject.lacks_options(offer)
        if missing:
            reason = f"the option {missing} has no default; give it: check_plugin(..., options=...)"
            findings.skipped("pass-runs", title, reason)
            continue
        with kept_process():
            runs, problems = _run_all(subject, offer)
            problems = problems or _without_inputs(subject, offer)
        changed = sum(run.changed for run in runs)
        note = f"changes {changed} of {len(subject.samples)} models"
        if not changed and not problems:
            note += "; give one that it changes: check_plugin(..., models=...)"
        findings.verdict(
            "pass-runs",
            title,
            problems,
            "Leave alone what the pass does not understand, and return a PassResult. Do without example inputs, "
            "or raise a PassError.",
            note,
        )
        if problems:
            continue
        _check_runs(offer, title, runs, findings)
        _check_again(subject, offer, title, runs, findings)
        with kept_process():
            check_declarations(subject, offer, title, findings)


def _run_all(subject: Subject, offer: PassOffer, *, is_watched: bool = False) -> tuple[list[_Run], list[str]]:
    runs: list[_Run] = []
    problems: list[str] = []
    for sample in subject.samples:
        try:
            runs.append(_run(subject, offer, sample, is_watched=is_watched))
        except OvertimeError as error:
            problems.append(f"on the model {sample.name!r} {error}")
            break  # It would take as long on the others.
        except Exception as error:  # Whatever a plugin raises is a finding.
            problems.append(f"on the model {sample.name!r} it fails: {reason_of(error)}")
    return runs, problems


def _without_inputs(subject: Subject, offer: PassOffer) -> list[str]:
    """Return what is wrong with a run for which nobody gave example inputs; a pass may refuse it in a sentence."""
    for sample in subject.samples:
        try:
            module = sample.trace(subject.manager)
            with interrupted_after(subject.time_limit, "it"):
                _transform(subject, offer, module, None)
        except FxplugError:
            continue
        except Exception as error:  # Whatever a plugin raises is a finding.
            return [f"on the model {sample.name!r} it fails without example inputs: {reason_of(error)}"]
    return []


def _run(subject: Subject, offer: PassOffer, sample: Sample, *, is_watched: bool) -> _Run:
    module = sample.trace(subject.manager)
    for node in module.graph.nodes:
        node.meta[_MARK] = node.name
    before, version, graph = fingerprint(module), module.graph.version, module.graph
    names = {node: node.name for node in graph.nodes}
    inputs = sample.own_inputs()
    watching = effects_besides() if is_watched else nullcontext([])
    with interrupted_after(subject.time_limit, "it"), watching as effects:
        result = _transform(subject, offer, module, inputs)
    if not _are_equal(sample.inputs, inputs):
        effects.append("it changes the example inputs")
    edited = module.graph is not graph or module.graph.version != version or fingerprint(module) != before
    module.graph.lint()
    damages = _damages(module, names, same_graph=module.graph is graph)
    return _Run(sample, module, result, edited, tuple(damages), tuple(effects))


def _are_equal(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    return all(entry.passed for entry in compare(first, second, Tolerance(0, 0)))


def _transform(
    subject: Subject, offer: PassOffer, module: GraphModule, inputs: tuple[Any, ...] | None
) -> PassResult:
    made: Any = offer.create(**subject.options_of(offer))
    if not isinstance(made, Pass):
        raise TypeError(f"its factory returned a {type(made).__name__} instead of a Pass")
    result: Any = made.run(module, PassContext(inputs, "check", module))
    if not isinstance(result, PassResult):
        raise TypeError(f"run() returned a {type(result).__name__} instead of a PassResult")
    return result


def _damages(module: GraphModule, names: dict[Node, str], *, same_graph: bool) -> list[str]:
    """Return what became of the notes and origins of nodes that are still there, and of the origins of new ones."""
    kept = set(names.values())
    problems: list[str] = []
    for node in module.graph.nodes:
        # In another graph, a node may have the name that another one had before.
        allowed = {names[node]} if node in names else kept if node.name in kept and not same_graph else None
        if allowed is not None and _MARK not in node.meta:
            problems.append(f"node {node.name!r} lost its notes")
        elif allowed is not None and node.meta[_MARK] not in allowed:
            problems.append(f"node {node.name!r} has another value in a note that is not the plugin's own")
        elif not node.origins and node.op.startswith("call_"):
            lost = "lost its origin" if allowed is not None else "is new and has no origin"
            problems.append(f"node {node.name!r} {lost}")
    return problems


def _check_runs(offer: PassOffer, title: str, runs: list[_Run], findings: Findings) -> None:
    findings.verdict(
        "pass-modified",
        title,
        [
            f"on the model {run.sample.name!r} it says modified={run.result.modified}, but "
            f"{'something' if run.changed else 'nothing'} changed"
            for run in runs
            if run.result.modified != run.changed
        ],
        "Return PassResult(modified=True) when graph, parameters or submodules changed, and only then.",
    )
    findings.verdict(
        "pass-keeps-notes",
        title,
        [f"on the model {run.sample.name!r}, {damage}" for run in runs for damage in run.damaged],
        "Keep node.meta and node.origins of nodes that stay, and hand them on to new ones: "
        "old.replace_all_uses_with(new, propagate_meta=True), or new.origins = old.origins.",
    )
    share = offer.record.tolerance
    findings.verdict(
        "pass-same-values",
        title,
        [problem for run in runs if (problem := _difference(run, share))],
        "Correct the pass; if it is meant to round, say how far: PassRecord(tolerance=0.01).",
        f"within {share:g} of the largest output" if share else "",
    )


def _difference(run: _Run, share: float) -> str:
    where = f"on the model {run.sample.name!r}"
    inputs = run.sample.inputs
    try:
        tolerance = Tolerance(0.0, 0.0, share) if share else Tolerance()
        different = differences(run.module, run.sample.model, inputs, tolerance)
    except Exception as error:  # A broken graph fails in any way.
        return f"{where} the result does not run: {reason_of(error)}"
    if not different:
        return ""
    return f"{where} {different[0].path} differs: {different[0].reason}"


def _check_again(
    subject: Subject, offer: PassOffer, title: str, runs: list[_Run], findings: Findings
) -> None:
    expected = [run.outcome() for run in runs]
    # Behind what gives back: an effect that the first run had shows again.
    with kept_process():
        again, problems = _run_all(subject, offer, is_watched=True)
    if not problems:
        problems = _unlike(expected, again, "a second run on an equal model gives another result")
    findings.verdict(
        "pass-deterministic",
        title,
        problems,
        "Iterate in the order of the graph instead of over sets; use neither random numbers nor the time.",
    )
    findings.verdict(
        "pass-effects",
        title,
        # What the first runs import is imported by now.
        [f"on the model {run.sample.name!r} {effect}" for run in again for effect in run.effects],
        "Change the module and nothing else. Copy example inputs before they are used, draw random numbers in "
        "fxplug.semantics.kept_random_state(), and return what is to be said in the PassResult.",
    )
    _check_idempotent(subject, offer, title, again, findings)
    outcomes, failures = run_at_once(lambda: _run_all(subject, offer), _THREADS)
    problems = [reason_of(error) for error in failures]
    for threaded, raised in outcomes:
        problems += raised or _unlike(expected, threaded, "in several threads the result is another one")
    findings.verdict(
        "pass-threads",
        title,
        problems,
        "Keep what a run needs in local variables, not in the module or the class.",
        f"{_THREADS} threads",
    )


def _unlike(expected: list[Any], runs: list[_Run], text: str) -> list[str]:
    return [
        f"on the model {run.sample.name!r}, {text}"
        for run, right in zip(runs, expected, strict=True)
        if run.outcome() != right
    ]


def _check_idempotent(
    subject: Subject, offer: PassOffer, title: str, runs: list[_Run], findings: Findings
) -> None:
    if not offer.record.idempotent:
        findings.skipped("pass-idempotent", title, "it does not claim to be: PassRecord(idempotent=True)")
        return
    problems: list[str] = []
    for run in runs:
        before = fingerprint(run.module)
        where = f"on the model {run.sample.name!r}"
        try:
            with interrupted_after(subject.time_limit, "it"):
                result = _transform(subject, offer, run.module, run.sample.own_inputs())
        except Exception as error:  # Whatever a plugin raises is a finding.
            problems.append(f"{where} the second run fails: {reason_of(error)}")
            continue
        if result.modified or fingerprint(run.module) != before:
            problems.append(f"{where} a second run on its own result changes it again")
    findings.verdict(
        "pass-idempotent",
        title,
        problems,
        "Correct the pass, or do not claim it: PassRecord(idempotent=False).",
    )
