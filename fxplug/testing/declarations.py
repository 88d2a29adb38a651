"""Checking what the record of a pass declares: analyses that it preserves, parameters that it keeps, weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.analyze.isolation import copy_module
from fxplug.api import Tolerance
from fxplug.errors import FxplugError, PassError
from fxplug.passes import Pipeline, PipelineStep, check_preserved, known_facts, load_original_state_dict
from fxplug.testing.behaviour import differences
from fxplug.testing.subject import reason_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.plugins import PassOffer
    from fxplug.testing.models import Sample
    from fxplug.testing.report import Findings
    from fxplug.testing.subject import Subject

__all__ = ["check_declarations"]

_UNDECLARED = "FXP-P023"
_WITHOUT_RECIPE = "FXP-P031"


def check_declarations(subject: Subject, offer: PassOffer, title: str, findings: Findings) -> None:
    """Check what a pass declares, in a pipeline of its own on every model."""
    lies: list[str] = []
    replaced: list[str] = []
    wrong: list[str] = []
    unknown: list[str] = []
    for sample in subject.samples:
        where = f"on the model {sample.name!r}"
        try:
            module, found = _run(subject, offer, sample)
            lies += [f"{where}, {lie}" for lie in found]
        except PassError as error:
            if error.code == _UNDECLARED:
                replaced.append(f"{where}: {error.message}")
            continue
        except FxplugError:
            continue  # What a pass refuses is judged where it runs.
        try:
            wrong += [f"{where} {problem}" for problem in _load(module, sample, offer.record.tolerance)]
        except PassError as error:
            (unknown if error.code == _WITHOUT_RECIPE else wrong).append(f"{where}: {error.message}")
        except Exception as error:  # A module that does not run raises anything.
            wrong.append(f"{where} the result does not run: {reason_of(error)}")
    _report(offer, title, findings, lies, replaced)
    if unknown and not wrong:
        findings.skipped("pass-weights", title, f"{unknown[0]} See context.derive")
        return
    findings.verdict(
        "pass-weights",
        title,
        wrong,
        "Say with context.derive how each tensor really comes from the ones before, and put nothing that depends on "
        "weights into the graph itself.",
    )


def _report(offer: PassOffer, title: str, findings: Findings, lies: list[str], replaced: list[str]) -> None:
    if offer.record.preserves:
        findings.verdict(
            "pass-preserves",
            title,
            lies,
            "Correct the pass, or declare less: PassRecord(preserves=...) names what stays true of every node that "
            "stays.",
        )
    else:
        findings.skipped("pass-preserves", title, "it does not claim to preserve anything")
    findings.verdict(
        "pass-parameters",
        title,
        replaced,
        "Write values in place, or declare it: PassRecord(replaces_parameters=True).",
    )


def _run(subject: Subject, offer: PassOffer, sample: Sample) -> tuple[GraphModule, list[str]]:
    module, inputs = sample.trace(subject.manager), sample.own_inputs()
    before = known_facts(offer.record.preserves, module, inputs)
    step = PipelineStep(offer.name, offer.record, subject.options_of(offer), offer.provider)
    Pipeline("check", [step]).run(module, inputs)
    return module, check_preserved(before, module, inputs)


def _load(module: GraphModule, sample: Sample, share: float) -> list[str]:
    """Load other weights into a transformed module; return in what it differs from the model that has them."""
    if _different(module, sample.model, sample.inputs, share):
        return []  # Wrong with any weights, which another check says.
    other = copy_module(sample.model)
    other.load_state_dict({key: _other(value) for key, value in other.state_dict().items()})
    load_original_state_dict(module, other.state_dict(), strict=False)
    found = _different(module, other, sample.inputs, share)
    return [f"{path} is wrong once other weights are loaded" for path in found[:1]]


def _other(value: torch.Tensor) -> torch.Tensor:
    # Positive figures stay positive: some are variances.
    return value * 0.75 if value.is_floating_point() else value.clone()


def _different(module: nn.Module, other: nn.Module, inputs: tuple[Any, ...], share: float) -> list[str]:
    tolerance = Tolerance(0.0, 0.0, share) if share else Tolerance()
    return [entry.path for entry in differences(module, other, inputs, tolerance)]
