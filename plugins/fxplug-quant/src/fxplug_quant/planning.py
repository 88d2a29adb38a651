"""Making a plan: the module is captured, batch norms are folded, calls are decided one by one, values follow."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import fxplug
from fxplug.errors import ConfigError, TraceError
from fxplug.passes import FuseConvBN, PassContext, RemoveIdentities
from fxplug_quant.attention import OpenAttention, explained
from fxplug_quant.calls import (
    COMBINING,
    TABLES,
    TRANSPOSED,
    WEIGHTED,
    Call,
    place_of,
    read_calls,
)
from fxplug_quant.config import QuantConfig
from fxplug_quant.containers import manager_that_opens
from fxplug_quant.edges import AsIntegers
from fxplug_quant.engine import activation_levels, check_engine, has_fbgemm
from fxplug_quant.errors import QuantizationError
from fxplug_quant.flow import Flow, Seen
from fxplug_quant.int4 import reason_against_int4
from fxplug_quant.packing import PackingModule
from fxplug_quant.plan import Plan, PlanEntry, checksum_of, fixed_columns
from fxplug_quant.tables import Int8Embedding
from fxplug_quant.watching import see

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fxplug import GraphModule, Node

__all__ = ["Draft", "as_inputs", "capture", "draft", "plan"]


def plan(
    module: nn.Module,
    config: QuantConfig | Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | torch.Tensor = (),
) -> Plan:
    """Return what would become of every call, weight and value of a module; the module stays as it is.

    Args:
        module: In evaluation mode; captured already, or not.
        config: What is wished; a mapping has the fields of `QuantConfig`.
        example_inputs: Positional inputs of one call, or a single tensor.

    Raises:
        QuantizationError: The module cannot be quantized, or this machine lacks the engine.
        UnknownNameError: A rule matches nothing.
    """
    inputs = as_inputs(example_inputs)
    return draft(capture(module, inputs), QuantConfig.of(config), inputs).plan


def as_inputs(example_inputs: Sequence[Any] | torch.Tensor) -> tuple[Any, ...]:
    """Return inputs as a tuple."""
    return (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)


def capture(module: nn.Module, inputs: tuple[Any, ...]) -> GraphModule:
    """Return a module as a graph with its batch norms folded; the given one stays as it is.

    Raises:
        QuantizationError: It is in training mode, or quantized already.
    """
    if module.training:
        raise QuantizationError(
            f"Cannot quantize {type(module).__name__}: it is in training mode. Call eval() first.",
            code="FXP-Q004",
        )
    for path, part in module.named_modules():
        if isinstance(part, (PackingModule, Int8Embedding, AsIntegers)) or _is_of_ao(part):
            raise QuantizationError(
                f"Cannot quantize {type(module).__name__}: {path or 'it'} is a {type(part).__name__}, so it is "
                f"quantized already. Start from the float model.",
                code="FXP-Q005",
            )
    if isinstance(module, fxplug.GraphModule):
        captured = copy.deepcopy(module)
    else:
        manager = manager_that_opens(module)
        try:
            captured = fxplug.trace(
                module, inputs, mode="symbolic", on_error="raise", autowrap=False, manager=manager
            )
        except TraceError:
            captured = fxplug.trace(module, inputs, manager=manager)
    context = PassContext(inputs, module=captured)
    for step in (FuseConvBN(), RemoveIdentities(), OpenAttention()):
        step.run(captured, context)
    return captured


def _is_of_ao(part: nn.Module) -> bool:
    """Return whether a module is one of torch.ao's quantized ones, whose weights are no float tensors."""
    home = type(part).__module__
    return home.startswith("torch.ao.nn.") and "quantized" in home.split(".")


@dataclass(frozen=True)
class Draft:
    """A plan, and what it was made from."""

    plan: Plan
    flow: Flow
    levels: int
    """The greatest step of an activation."""


def draft(
    module: GraphModule, config: QuantConfig, inputs: tuple[Any, ...], edited: Plan | None = None
) -> Draft:
    """Decide everything.

    Args:
        module: From `capture`.
        config: What is wished.
        inputs: Example inputs.
        edited: A plan whose calls and observers prevail.

    Raises:
        QuantizationError: The edited plan is of another module, or has edits that cannot be followed.
        ConfigError: An edit of a mode cannot be, or a rule changes nothing.
        UnknownNameError: A rule matches nothing.
    """
    check_engine(config.engine)
    calls = read_calls(module)
    for rule in config.rules:
        rule.check(call for call in calls.values() if call.node.op not in {"get_attr", "output"})
    seen = see(module, inputs)
    calls = {node: explained(module, call) for node, call in calls.items()}
    rows = {node: _decide(call, config, seen) for node, call in calls.items()}
    if edited is not None:
        _follow(edited, rows, calls, config, seen)
    flow = _flow(module, calls, rows, seen, _only_steps(config))
    _leave_sums_of_floats(calls, rows, flow)
    if edited is not None:
        _check_sums(edited, rows)
    levels = activation_levels()
    observers = {} if edited is None else edited.edges()
    merged = _merged(flow)
    entries: list[PlanEntry] = []
    for node, call in calls.items():
        row = rows[node]
        if row is not None:
            entries += [row, *_weight_rows(call, row, config)]
        if node in seen and node.op != "output":
            together = [calls[other] for other in (*merged.get(node, ()), node)]
            entries.append(_edge(node, together, flow, seen[node], config, observers.get(node.name), levels))
    if edited is None:
        _check_effects(config, entries, calls, merged)
    elif edited.checksum != checksum_of(edited.entries):
        _check_columns(edited, entries, draft(module, config, inputs).plan.entries)
    return Draft(Plan(tuple(entries), config, checksum_of(entries)), flow, levels)


def _merged(flow: Flow) -> dict[Node, list[Node]]:
    """Return value that is made -> the calls that are done with the one that makes it, whose values are never made."""
    found = {entry.tail: [node for node in entry.nodes if node is not entry.tail] for entry in flow.fused}
    for last, first in (*flow.rectified.items(), *flow.activated.items()):
        found[last] = [*found.get(first, ()), first]
    return found


def _check_effects(
    config: QuantConfig,
    entries: Sequence[PlanEntry],
    calls: Mapping[Node, Call],
    merged: Mapping[Node, Sequence[Node]],
) -> None:
    """Check that each rule decides about something.

    Raises:
        ConfigError: One does not, although it matches.
    """
    decided = {entry.node for entry in entries if entry.what == "call"}
    observed = {entry.node for entry in entries if entry.what == "edge" and entry.observer}
    observed |= {other.name for node, others in merged.items() if node.name in observed for other in others}
    for number, rule in enumerate(config.rules):
        found = [call.node.name for call in calls.values() if rule.selects(call)]
        if rule.mode is not None and decided.isdisjoint(found):
            raise ConfigError(
                f"Cannot use {rule}, rule {number}: its mode changes nothing. What it selects ({', '.join(found)}) has "
                f"no mode of its own, and computes with what the calls around it give. Select the layers before or "
                f"behind it."
            )
        if rule.observer is not None and observed.isdisjoint(found):
            raise ConfigError(
                f"Cannot use {rule}, rule {number}: its observer changes nothing. No value that it selects "
                f"({', '.join(found)}) is observed; that are: {', '.join(sorted(observed)) or 'none'}."
            )


def _check_columns(edited: Plan, entries: Sequence[PlanEntry], unedited: Sequence[PlanEntry]) -> None:
    """Check that nothing was edited in a plan but what can be.

    Rows that follow from an edited mode may be as they were before.

    Raises:
        QuantizationError: Something was.
    """
    wanted = {(entry.what, entry.node): entry for entry in entries}
    former = {(entry.what, entry.node): entry for entry in unedited}
    found = {(entry.what, entry.node): entry for entry in edited.entries}
    for key, entry in found.items():
        possible = [fixed_columns(rows[key]) for rows in (wanted, former) if key in rows]
        columns = fixed_columns(entry)
        if not possible:
            raise _no_edit(
                f"it has an entry {entry.what} {entry.node!r}, and a plan for this module would have none"
            )
        if columns not in possible:
            name = next(name for name, value in columns.items() if value != possible[0][name])
            raise _no_edit(
                f"its entry {entry.what} {entry.node!r} has {name} = {getattr(entry, name)!r}, and a plan for this "
                f"module would say {getattr(wanted.get(key, former.get(key)), name)!r}"
            )
    for what, node in wanted:
        if (what, node) not in found:
            raise _no_edit(f"it has no entry {what} {node!r}, and a plan for this module would have one")
    if len(found) != len(edited.entries):
        raise _no_edit("it has several entries for the same call, weight or edge")


def _no_edit(found: str) -> QuantizationError:
    return QuantizationError(
        f"Cannot follow the plan: {found}. The modes of calls and the observers of edges that have one can be edited; "
        f"all else follows from them. Take other edits back, or make the plan anew for this module.",
        code="FXP-Q006",
    )


def _flow(
    module: GraphModule,
    calls: Mapping[Node, Call],
    rows: dict[Node, PlanEntry | None],
    seen: Mapping[Node, Seen],
    only_steps: frozenset[str],
) -> Flow:
    """Return what follows from the rows of calls; where there are no steps, those that need them become float."""
    flow = Flow(module, calls, _modes(rows), seen, only_steps)
    if flow.writer is None:
        return flow
    for node, row in rows.items():
        if row is not None and row.mode == "static-int8" and calls[node].kind in only_steps:
            reason = f"{_writes(flow.writer)}; its result cannot"
            rows[node] = _row(calls[node], "call", mode="float", decided_by="program", reason=reason)
    return Flow(module, calls, _modes(rows), seen, only_steps)


def _only_steps(config: QuantConfig) -> frozenset[str]:
    """Return the kinds of layers whose operator gives steps and nothing else."""
    return TRANSPOSED | {"linear"} if config.engine == "qnnpack" else TRANSPOSED


def _leave_sums_of_floats(calls: Mapping[Node, Call], rows: dict[Node, PlanEntry | None], flow: Flow) -> None:
    """Say of sums, products and the like that could be computed with steps, and are not, that they stay float."""
    with_steps = {node for fused in flow.fused for node in fused.nodes}
    for node, row in rows.items():
        is_wished = row is not None and calls[node].kind in COMBINING and row.mode == "static-int8"
        if row is not None and is_wished and not flow.has_steps(node) and node not in with_steps:
            reason = "not all it takes are steps" if flow.writer is None else _writes(flow.writer)
            rows[node] = replace(row, mode="float", decided_by="flow", reason=reason)


def _modes(rows: Mapping[Node, PlanEntry | None]) -> dict[Node, str]:
    return {node: row.mode for node, row in rows.items() if row is not None}


def _follow(
    edited: Plan,
    rows: dict[Node, PlanEntry | None],
    calls: Mapping[Node, Call],
    config: QuantConfig,
    seen: Mapping[Node, Seen],
) -> None:
    """Take over what a plan says of calls.

    Raises:
        QuantizationError: The plan is of another module.
        ConfigError: An edited mode cannot be.
    """
    wanted = edited.calls()
    known = {node.name: node for node, row in rows.items() if row is not None}
    for name, entry in wanted.items():
        if name not in known:
            raise QuantizationError(
                f"Cannot follow the plan: it has a call {name!r} ({entry.operation}, {entry.line or 'line unknown'}), "
                f"and the module has none. Make the plan anew for this module.",
                code="FXP-Q006",
            )
        node = known[name]
        former = rows[node]
        if former is not None:
            _check_operation(entry, former)
            rows[node] = _followed(entry, former, calls[node], config, seen)
    for name, node in known.items():
        if name not in wanted:
            raise _no_edit(f"it has no entry call {name!r} ({calls[node].operation}), which the module has")


def _followed(
    entry: PlanEntry, former: PlanEntry, call: Call, config: QuantConfig, seen: Mapping[Node, Seen]
) -> PlanEntry:
    """Return the row of a call that has an entry in a plan, and a former row without the plan.

    Raises:
        ConfigError: The mode of the entry was edited, and cannot be.
    """
    if entry.mode != "float":
        # Where one of these decided, the mode was float: somebody edited the text, and changed nothing but the mode.
        if entry.decided_by in {"backend", "program"}:
            raise _impossible_edit(entry, former.reason if former.mode == "float" else entry.reason)
        if former.decided_by in {"backend", "program"}:
            if entry.decided_by == "edited":
                raise _impossible_edit(entry, former.reason)
            return former  # Where the plan was made, more was possible than here.
    # It follows anew from what other calls become; `_check_sums` looks at what was edited.
    if entry.decided_by == "flow" and entry.mode in {"float", former.mode}:
        return former
    impossible = _impossible(call, entry.mode, config, seen)
    if impossible is not None:
        raise _impossible_edit(entry, impossible.reason)
    return replace(former, mode=entry.mode, decided_by=entry.decided_by, reason=entry.reason)


def _check_sums(edited: Plan, rows: Mapping[Node, PlanEntry | None]) -> None:
    """Check that sums and the like, which were float since what they take was, are as somebody edited them.

    Raises:
        ConfigError: They are float still.
    """
    wanted = edited.calls()
    for row in rows.values():
        if row is not None and row.mode == "float" and row.node in wanted:
            entry = wanted[row.node]
            if entry.mode != "float" and entry.decided_by == "flow":
                raise _impossible_edit(entry, row.reason)


def _check_operation(entry: PlanEntry, former: PlanEntry) -> None:
    """Check that an entry is of the same operation as the call of its name.

    Raises:
        QuantizationError: It is not, so that the plan is of another module.
    """
    for name in ("operation", "path"):
        found, wanted = getattr(entry, name), getattr(former, name)
        if found != wanted:
            raise QuantizationError(
                f"Cannot follow the plan: its call {entry.node!r} has {name} = {found!r}, and in the module that is "
                f"{wanted!r}. Make the plan anew for this module.",
                code="FXP-Q006",
            )


def _impossible_edit(entry: PlanEntry, reason: str) -> ConfigError:
    return ConfigError(
        f"Cannot make node {entry.node!r} {entry.mode}, as the plan says: {reason}. It stays float: write that."
    )


def _writes(writer: Node) -> str:
    return f"node {writer.name!r} writes in place, so that all values stay float"


def _row(call: Call, what: str, **columns: str) -> PlanEntry:
    return PlanEntry(call.node.name, what, call.operation, call.path, place_of(call.node), **columns)


def _decide(call: Call, config: QuantConfig, seen: Mapping[Node, Seen]) -> PlanEntry | None:
    """Return what becomes of a call; None where nothing could."""
    if call.kind not in {*WEIGHTED, *TABLES, *COMBINING}:
        if not call.reason:
            return None
        return _row(call, "call", mode="float", decided_by="backend", reason=call.reason)
    if call.reason:
        return _row(call, "call", mode="float", decided_by="program", reason=call.reason)
    mode, decided_by, reason = _wish(call, config)
    if call.kind in COMBINING and (mode not in {"static-int8", "float"} or not _all_float32(call, seen)):
        return None
    if call.kind in TABLES and mode not in {"weight-int8", "float"}:
        mode, reason = "weight-int8", f"{reason}; a table has only weights to round"
    impossible = _impossible(call, mode, config, seen)
    if impossible is not None:
        return impossible
    if mode.startswith("weight-") and call.kind in WEIGHTED and seen[call.inputs[0]].dtype is torch.float32:
        reason += (
            "; with float32 inputs PyTorch is slower than in float, with bfloat16 and few rows it is faster"
        )
    return _row(call, "call", mode=mode, decided_by=decided_by, reason=reason)


def _all_float32(call: Call, seen: Mapping[Node, Seen]) -> bool:
    return all(value in seen and seen[value].dtype is torch.float32 for value in call.inputs)


def _impossible(call: Call, mode: str, config: QuantConfig, seen: Mapping[Node, Seen]) -> PlanEntry | None:
    """Return the row of a call that stays float since nothing can do what is wished; None where something can."""
    if mode == "float":
        return None
    reason, decided_by = _reason_of_backend(call, mode, config), "backend"
    if not reason and call.kind in WEIGHTED:
        reason, decided_by = _reason_of_dtype(call, mode, seen), "program"
    return _row(call, "call", mode="float", decided_by=decided_by, reason=reason) if reason else None


def _reason_of_backend(call: Call, mode: str, config: QuantConfig) -> str:
    if call.kind in COMBINING:
        return "" if mode == "static-int8" else f"{mode} is for layers with weights"
    if call.kind in TABLES:
        return "" if mode == "weight-int8" else f"{mode} is not for embeddings; weight-int8 is"
    if call.kind != "linear" and mode != "static-int8":
        return f"{mode} is for linear layers alone"
    if call.kind in TRANSPOSED and not has_fbgemm():
        return "transposed convolutions are computed by FBGEMM, which this PyTorch lacks"
    return reason_against_int4(call.called, config.group_size) if mode == "weight-int4" else ""


def _reason_of_dtype(call: Call, mode: str, seen: Mapping[Node, Seen]) -> str:
    found = seen.get(call.inputs[0])
    name = "no tensor" if found is None else str(found.dtype).removeprefix("torch.")
    if mode.startswith("weight-"):
        fits = found is not None and found.dtype in {torch.float32, torch.bfloat16}
        return "" if fits else f"its input is {name}, and neither float32 nor bfloat16"
    if found is None or found.dtype is not torch.float32:
        return f"its input is {name}, and not float32"
    return (
        "" if call.called.weight.dtype is torch.float32 else "weights that are not plain float32 on the CPU"
    )


def _wish(call: Call, config: QuantConfig) -> tuple[str, str, str]:
    """Return mode, who decided, and why."""
    found = [
        (number, rule)
        for number, rule in enumerate(config.rules)
        if rule.mode is not None and rule.selects(call)
    ]
    if not found:
        return config.mode, "default", f"mode = {config.mode}"
    number, rule = found[-1]
    mode = str(rule.mode)
    others = [f"rule {index}" for index, other in found[:-1] if other.mode != rule.mode]
    if others:
        return mode, "conflict", f"rule {number} is the last word over {', '.join(others)}"
    return mode, f"rule {number}", str(rule)


def _weight_rows(call: Call, row: PlanEntry, config: QuantConfig) -> list[PlanEntry]:
    if call.kind not in {*WEIGHTED, *TABLES}:
        return []
    if row.mode == "float":
        dtype = str(call.called.weight.dtype).removeprefix("torch.")
        return [_row(call, "weight", dtype=dtype, decided_by=row.decided_by, reason=row.reason)]
    dtype, scheme, decided_by, reason = _scheme(call, row, config)
    return [
        _row(
            call,
            "weight",
            dtype=dtype,
            scheme=scheme,
            observer="min-max",
            decided_by=decided_by,
            reason=reason,
        )
    ]


def _scheme(call: Call, row: PlanEntry, config: QuantConfig) -> tuple[str, str, str, str]:
    """Return dtype and scheme of a weight, who decided, and why."""
    if call.kind in TABLES:
        return "uint8", "per-row affine", "backend", "tables have a scale for each row"
    if call.kind in TRANSPOSED:
        return "int8", "per-tensor symmetric", "backend", "FBGEMM has one scale for transposed convolutions"
    if row.mode == "weight-int4":
        size = config.group_size
        return "int4", f"groups of {size}, affine", "default", f"group_size = {size}"
    per_channel = config.per_channel or row.mode == "weight-int8"
    scheme = "per-channel symmetric" if per_channel else "per-tensor symmetric"
    return "int8", scheme, "default", f"per_channel = {str(config.per_channel).lower()}"


def _edge(
    node: Node,
    together: Sequence[Call],
    flow: Flow,
    seen: Seen,
    config: QuantConfig,
    edited: PlanEntry | None,
    levels: int,
) -> PlanEntry:
    """Return the row of a value; `together` are the calls that become the one that gives it, itself at the end."""
    call = together[-1]
    dtype = str(seen.dtype).removeprefix("torch.")
    is_quantized = node in flow.quantized_set
    if node in flow.inner:
        return _row(
            call,
            "edge",
            dtype=dtype,
            decided_by="flow",
            reason="never made: the next call is in this one",
        )
    if not flow.has_steps(node) and not is_quantized:
        reason = "no int8 call takes steps of it"
        if flow.writer is not None:
            reason = _writes(flow.writer)
        return _row(call, "edge", dtype=dtype, decided_by="flow", reason=reason)
    scheme = "per-tensor affine" if levels == 255 else "per-tensor affine, 7 bits"
    root = flow.root(node)
    if root is not node and not is_quantized:
        return _row(
            call,
            "edge",
            dtype="uint8",
            scheme=scheme,
            decided_by="flow",
            reason=f"the steps of {root.name!r}",
        )
    observer, decided_by, reason = _observer(together, config)
    # A plan that was edited as text says nothing but another observer.
    if (
        edited is not None
        and edited.observer
        and (edited.decided_by == "edited" or edited.observer != observer)
    ):
        observer, decided_by, reason = edited.observer, "edited", "edited"
    if levels != 255:
        reason += "; 7 bits, since sums would overflow on this CPU"
    return _row(
        call, "edge", dtype="uint8", scheme=scheme, observer=observer, decided_by=decided_by, reason=reason
    )


def _observer(together: Sequence[Call], config: QuantConfig) -> tuple[str, str, str]:
    for number, rule in reversed(list(enumerate(config.rules))):
        if rule.observer is not None and any(map(rule.selects, together)):
            return rule.observer, f"rule {number}", str(rule)
    return config.observer, "default", f"observer = {config.observer}"
