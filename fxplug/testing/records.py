"""Checking what a plugin says about calls and values: decompositions, formulas, constants and names in files."""

from __future__ import annotations

import functools
import inspect
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.analyze import builtin_formulas, propagate_shapes
from fxplug.analyze.cost import cost_table
from fxplug.analyze.isolation import copy_values, tensors_in
from fxplug.api import Tolerance
from fxplug.execute import fetch_path
from fxplug.rewrite import BUILTIN_DECOMPOSITIONS, decompose
from fxplug.semantics.internals import OpOverload
from fxplug.testing.behaviour import differences
from fxplug.testing.state import plain_text
from fxplug.testing.subject import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug.analyze.cost import CostTable
    from fxplug.execute import GraphModule
    from fxplug.ir import Node
    from fxplug.plugins import ConstantRecord, DecompositionRecord, FlopFormulaRecord
    from fxplug.testing.models import Sample
    from fxplug.testing.report import Findings
    from fxplug.testing.subject import Subject

__all__ = ["check_records"]

_NOT_CALLED = "no model calls it; give one that does: check_plugin(..., models=...)"

_UNSAFE = ("torch.serialization", "torch.hub", "torch.jit", "torch.package", "torch.utils.cpp_extension")
"""Parts of torch whose functions read files or run what they are handed."""

_HARMLESS = frozenset({"cmath", "math", "operator", "_operator", "statistics"})
"""Parts of Python's library whose functions only compute."""


def check_records(subject: Subject, findings: Findings) -> None:
    """Check the records of a plugin that are about calls and values."""
    for record in subject.manager.decompositions():
        if record not in BUILTIN_DECOMPOSITIONS:
            _check_decomposition(subject, record, findings)
    known = frozenset(builtin_formulas())
    for record in subject.manager.flop_formulas():
        if record not in known:
            _check_formula(subject, record, findings)
    for record in subject.manager.constants():
        _check_constant(subject, record, findings)
    for offer in subject.manager.provisions().targets:
        findings.verdict(
            "storage-target-own",
            f"storage target {offer.record.name!r}",
            _not_own(offer.record.target),
            "Name functions that only compute, of the plugin's own or of the library that it is for: a file may call "
            "them with any arguments.",
        )


# -- calls ---------------------------------------------------------------------------------------------------


def _check_decomposition(subject: Subject, record: DecompositionRecord, findings: Findings) -> None:
    title = f"decomposition of {_text(record.target)}"
    called, problems = _try_calls(
        subject, record.target, lambda sample, module: _decomposition_problem(record, sample, module)
    )
    if not called:
        findings.skipped("decomposition-same-values", title, _NOT_CALLED)
        return
    findings.verdict(
        "decomposition-same-values",
        title,
        problems,
        "Compute what the call computes, by calls that do not lead back to it; return NotImplemented for calls that "
        "the function leaves alone.",
        f"on the models {', '.join(called)}",
    )


def _decomposition_problem(record: DecompositionRecord, sample: Sample, module: GraphModule) -> str:
    different = differences(decompose(module, [record]), sample.model, sample.inputs, Tolerance())
    return f"{different[0].path} differs: {different[0].reason}" if different else ""


def _check_formula(subject: Subject, record: FlopFormulaRecord, findings: Findings) -> None:
    title = f"formula for {_text(record.target)}"
    called, problems = _try_calls(
        subject, record.target, lambda sample, module: _formula_problem(record, sample, module)
    )
    if not called:
        findings.skipped("formula-number", title, _NOT_CALLED)
        return
    findings.verdict(
        "formula-number",
        title,
        problems,
        "Return the multiply-adds, a whole number that is not negative, or a CallCost of such, or None.",
        f"on the models {', '.join(called)}",
    )


def _formula_problem(record: FlopFormulaRecord, sample: Sample, module: GraphModule) -> str:
    propagate_shapes(module, *sample.own_inputs())
    return _odd_number(cost_table(module, [record]))


def _odd_number(table: CostTable) -> str:
    for node in table.nodes:
        figures: tuple[Any, ...] = (node.multiply_adds or 0, node.bytes_read, node.bytes_written)
        for figure in figures:
            if isinstance(figure, bool) or not isinstance(figure, int) or figure < 0:
                return f"for the call {node.name!r} it answers with {figure!r}"
    return ""


def _try_calls(
    subject: Subject, target: Any, find: Callable[[Sample, GraphModule], str]
) -> tuple[list[str], list[str]]:
    """Return the names of the models that call a target, and what is wrong on them."""
    called: list[str] = []
    problems: list[str] = []
    for sample in subject.samples:
        module = sample.trace(subject.manager)
        if not any(target in _targets_of(node, module) for node in module.graph.nodes):
            continue
        called.append(sample.name)
        try:
            problem = find(sample, module)
        except Exception as error:  # Whatever a plugin raises is a finding.
            problem = f"it fails: {reason_of(error)}"
        if problem:
            problems.append(f"on the model {sample.name!r} {problem}")
    return called, problems


def _targets_of(node: Node, module: GraphModule) -> list[Any]:
    """Return what a record may name to speak of a call."""
    target: Any = node.target
    if node.op == "call_module":
        return [type(fetch_path(module, target))]
    if not node.op.startswith("call_"):
        return []
    return [target, target.overloadpacket] if isinstance(target, OpOverload) else [target]


def _text(target: Any) -> str:
    return repr(getattr(target, "__qualname__", None) or str(target))


# -- constants -----------------------------------------------------------------------------------------------


def _check_constant(subject: Subject, record: ConstantRecord, findings: Findings) -> None:
    title = f"constant {record.name!r}"
    encode, decode = record.encode, record.decode
    if encode is None or decode is None:
        findings.skipped("constant-round-trip", title, "it says nothing of files: encode and decode")
        return
    examples = list(_examples_of(subject, record.type))
    if not examples:
        reason = f"there is no {record.type.__name__} to try; give a model that uses one: check_plugin(..., models=...)"
        findings.skipped("constant-round-trip", title, reason)
        return
    findings.verdict(
        "constant-round-trip",
        title,
        [problem for value in examples if (problem := _trip_problem(record, encode, decode, value))],
        "Let encode return plain values, tensors, and lists, tuples and dicts of them, and decode an equal value of "
        "the type.",
        f"{len(examples)} values",
    )


def _examples_of(subject: Subject, kind: type[Any]) -> Iterator[Any]:
    """Yield values of a type: those of the models, otherwise one that is made without arguments."""
    found = [
        value
        for sample in subject.samples
        for value in sample.trace(subject.manager).graph.lifted.values()
        if type(value) is kind
    ]
    if not found:
        with suppress(Exception):
            found.append(kind())
    yield from found


def _trip_problem(
    record: ConstantRecord, encode: Callable[[Any], Any], decode: Callable[[Any], Any], value: Any
) -> str:
    try:
        kept = encode(value)
        if (odd := _not_plain(kept)) is not None:
            return f"encode returns a {type(odd).__name__}, which no file holds"
        back = decode(copy_values(kept))
        if type(back) is not record.type:
            return f"decode returns a {type(back).__name__} instead of a {record.type.__name__}"
        again = encode(back)
    except Exception as error:  # Whatever a plugin raises is a finding.
        return f"it fails: {reason_of(error)}"
    pairs = zip(tensors_in(kept), tensors_in(again), strict=False)
    if plain_text(kept) != plain_text(again) or not all(torch.equal(one, other) for one, other in pairs):
        return "what was encoded and decoded is encoded to something else"
    return ""


def _not_plain(value: Any) -> Any:
    """Return the first part of a value that a file cannot hold, None when there is none."""
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value)
        return next(
            (odd for part in (*pairs, *pairs.values()) if (odd := _not_plain(part)) is not None), None
        )
    if isinstance(value, (list, tuple)):
        return next((odd for part in cast("list[Any]", value) if (odd := _not_plain(part)) is not None), None)
    return None if isinstance(value, torch.Tensor) or plain_text(value) != type(value).__name__ else value


# -- names in files ------------------------------------------------------------------------------------------


def _not_own(target: Any) -> list[str]:
    while isinstance(target, functools.partial):
        target = cast("Any", target).func
    if callable(target):
        target = inspect.unwrap(target)
    # What is written in C says where it belongs by the class that holds it, or by the module that it is bound to.
    holder = getattr(target, "__objclass__", None) or getattr(target, "__self__", None)
    home = getattr(target, "__module__", None) or getattr(holder, "__module__", None)
    home = home or getattr(holder, "__name__", "")
    top = str(home).partition(".")[0]
    is_library = top in sys.stdlib_module_names and top not in _HARMLESS
    is_unsafe = any(home == name or str(home).startswith(f"{name}.") for name in _UNSAFE)
    return [f"{_text(target)} belongs to {home}"] if is_library or is_unsafe else []
