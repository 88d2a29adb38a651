"""Comparing two graph modules layer by layer: both run side by side, and pairs of values are judged as they come up."""

from __future__ import annotations

import math
import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.alignment import AlignedBy, Alignment, align
from fxplug.analyze.comparison import Comparison, Tolerance, compare, describe
from fxplug.analyze.dataflow import sources_of, written_nodes
from fxplug.analyze.isolation import (
    SavedState,
    copy_module,
    copy_values,
    forked_random_state,
    tensors_in,
    tensors_of,
)
from fxplug.capture.sources import line_of_program
from fxplug.errors import AnalysisError
from fxplug.execute import GraphModule, Interpreter
from fxplug.execute.guards import check_guards
from fxplug.ir import Node, effects, qualified_name
from fxplug.semantics.random_state import random_states, set_random_states

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "LayerComparison",
    "ModuleComparison",
    "RunFailure",
    "compare_layers",
    "failing_node",
    "failure_at",
    "line_of",
]

_UNJUDGED = frozenset({"placeholder", "output"})


@dataclass(frozen=True)
class LayerComparison:
    """The values of two nodes that are aligned, compared."""

    name: str
    """The node of the module that is judged."""
    reference: str
    """The node of the reference."""
    aligned_by: AlignedBy
    """Why the two are taken to compute the same value."""
    opcode: str
    target: str
    line: str
    """``"FILE:LINE in FUNCTION"``; empty where none is known."""
    module_path: str
    """The module whose forward was running."""
    history: tuple[str, ...]
    """What made or changed the node since it was captured, oldest first."""
    expected: str
    """Dtype and shape in the reference."""
    actual: str
    """Dtype and shape in the module that is judged."""
    max_abs_error: float
    """Largest difference of an element."""
    max_rel_error: float
    """Largest difference, as a share of the largest expected magnitude."""
    sqnr: float
    """Signal-to-quantisation-noise ratio in dB: ``10 * log10(sum(expected**2) / sum((actual - expected)**2))``."""
    cosine: float
    """Cosine similarity of the two values as vectors."""
    reason: str
    """Why it does not pass; empty when it does."""
    inputs_agree: bool
    """Whether the nearest aligned values that it is computed from pass."""
    new_inputs: tuple[str, ...]
    """Nodes without a partner between those values and this one, in order: what differs may lie in them."""
    reaches_output: bool
    """Whether it differs and so do the values that are computed from it, up to an output that differs."""

    @property
    def passed(self) -> bool:
        """Whether the two agree."""
        return not self.reason


@dataclass(frozen=True)
class ModuleComparison:
    """Two modules compared on the same inputs, from the same random state."""

    layers: tuple[LayerComparison, ...]
    """Aligned nodes, in the order of the module that is judged; the output is the last one."""
    outputs: tuple[Comparison, ...]
    """Every value that the modules return."""
    only_in_reference: tuple[str, ...]
    """Nodes of the reference that nothing is aligned with."""
    only_in_module: tuple[str, ...]
    """Nodes of the module that is judged that nothing is aligned with."""

    @property
    def passed(self) -> bool:
        """Whether the outputs agree. Values inside may differ all the same."""
        return all(output.passed for output in self.outputs)

    @property
    def differences(self) -> tuple[LayerComparison, ...]:
        """The layers that do not agree, in order."""
        return tuple(layer for layer in self.layers if not layer.passed)

    @property
    def worst(self) -> LayerComparison | None:
        """The layer with the largest error as a share of the magnitude; None when no layer has an error."""
        layers = [layer for layer in self.layers if layer.max_rel_error > 0]
        return max(layers, key=lambda layer: layer.max_rel_error, default=None)

    @property
    def first_difference(self) -> LayerComparison | None:
        """The first layer that differs although its inputs agree; None when every layer agrees.

        Where outputs differ, only layers whose difference reaches one of them are considered.
        """
        origins = [layer for layer in self.differences if layer.inputs_agree]
        reaching = [layer for layer in origins if layer.reaches_output]
        return next(iter(reaching or origins), None)


class RunFailure(AnalysisError):  # noqa: N818 - an error like others, but named after what it tells of
    """A module fails while it is run node by node; `node` says where."""

    def __init__(self, message: str, node: Node | None) -> None:
        super().__init__(message)
        self.node = node


def failure_at(what: str, node: Node | None, error: Exception) -> RunFailure:
    """Return the error for a module that raises `error` while a node runs; None: before the first one.

    Args:
        what: Name of the module in the message.
        node: Where.
        error: What was raised.
    """
    text = str(error).strip().rstrip(".")
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    where = ""
    if node is not None:
        line = line_of(node)
        where = f" at node {node.name!r}" + (f" ({line})" if line else "")
    return RunFailure(f"{what} fails{where}: {reason}.", node)


def line_of(node: Node) -> str:
    """Return the innermost line of the program outside torch that a node came from; empty where none is known."""
    for origin in node.origins:
        source = line_of_program(origin.frames()) or origin.source()
        if source is not None:
            return str(source)
    return ""


def compare_layers(
    reference: GraphModule,
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    tolerance: Tolerance | None = None,
    same_dtype: bool = True,
) -> ModuleComparison:
    """Run two graph modules side by side and compare what their nodes compute.

    Both run on copies of the inputs, from the same random state and without gradients; what a run does to a module is
    undone. Of the values, only those are kept that wait for their partner.

    Args:
        reference: The module that is right.
        module: The module that is judged.
        inputs: The positional arguments of one call.
        tolerance: What is close enough; by default according to dtype.
        same_dtype: Whether values have to have the dtype that they have in the reference.

    Raises:
        AnalysisError: The modules do not take the same inputs, or one of them fails; the message says which, and where.
    """
    _check_inputs(reference, module)
    if _share_buffers(reference, module):
        module = copy_module(module)
    aligned = align(reference.graph, module.graph)
    sources = sources_of(module.graph, module)
    judge = _Judge(aligned, sources, tolerance or Tolerance(), same_dtype=same_dtype)
    saved = [_saved(part) for part in (reference, module)]
    try:
        with forked_random_state(), torch.no_grad():
            first = _Walk(reference, inputs, "The reference")
            second = _Walk(module, inputs, "The module")
            _run_side_by_side(first, second, aligned, judge)
    finally:
        for state in saved:
            state.restore()
    return judge.result()


def failing_node(module: GraphModule, inputs: Sequence[Any]) -> RunFailure | None:
    """Run a module node by node; return the failure that tells at which node it fails, None when it does not."""
    saved = _saved(module)
    try:
        with forked_random_state(), torch.no_grad():
            walk = _Walk(module, inputs, "The module")
            while walk.advance() is not None:
                pass
    except RunFailure as failure:
        return failure
    finally:
        saved.restore()
    return None


def _check_inputs(reference: GraphModule, module: GraphModule) -> None:
    ours, theirs = (
        [str(node.target) for node in part.graph.find_nodes(op="placeholder")] for part in (reference, module)
    )
    if len(ours) != len(theirs):
        raise AnalysisError(
            f"Cannot compare the modules: the reference takes ({', '.join(ours)}), and the other one takes "
            f"({', '.join(theirs)}). Compare modules that can be called with the same inputs."
        )


def _share_buffers(first: GraphModule, second: GraphModule) -> bool:
    """Return whether what a run of one module writes could reach the other."""
    mine = {id(tensor) for _, tensor in tensors_of(first)}
    return any(id(tensor) in mine for _, tensor in tensors_of(second))


def _saved(module: GraphModule) -> SavedState:
    """Return a module as it is; parameters are copied only where some call may write to them."""
    found = (effects.effect_of(node, module) for node in module.graph.nodes)
    return SavedState(module, buffers_only=not any(effect.unknown or effect.writes for effect in found))


# -- running ---------------------------------------------------------------------------------------------------------


class _Stepper(Interpreter):
    """Runs a graph and stops behind every node."""

    def steps(self, args: tuple[Any, ...]) -> Iterator[tuple[Node, Any]]:
        """Yield every node that is about to run with None, and again with its value in a tuple."""
        nodes, freed = self._schedule()
        self.args_iter, self.env = iter(self.graph.process_inputs(*args)), {}
        for node in nodes:
            yield node, None
            value = self._enter(node, 0) if node.region else self.run_node(node)
            self.env[node] = value
            yield node, (self._written(node) if value is None else value,)
            del value
            for ended in freed.get(node, ()):
                self.env.pop(ended, None)

    def _written(self, node: Node) -> Any:
        """Return what a call wrote to, which is what there is to see of one that returns nothing."""
        written = written_nodes(node, self.module)
        return self.env.get(written[0]) if len(written) == 1 else None


class _Walk:
    """A module on its way through its graph, with random numbers of its own.

    Args:
        module: The module.
        inputs: Copied.
        what: Its name in messages.
    """

    def __init__(self, module: GraphModule, inputs: Sequence[Any], what: str) -> None:
        self._module, self._what = module, what
        self._arguments = copy_values(tuple(inputs))
        self._node: Node | None = None
        self._random = _random_state()
        self._guarded(lambda: check_guards(module, self._arguments))
        self._steps = _Stepper(module).steps(self._arguments)

    def advance(self) -> tuple[Node, Any] | None:
        """Run one node; return it with its value, None behind the last one.

        Raises:
            RunFailure: It fails.
        """
        found: tuple[Node, Any] | None = None
        former = _random_state()
        _set_random_state(self._random)
        try:
            entry = self._guarded(lambda: next(self._steps, None))
            if entry is not None:
                node = self._node = entry[0]
                _, value = self._guarded(lambda: next(self._steps))
                found = node, value[0]
        finally:
            self._random = _random_state()
            _set_random_state(former)
        return found

    def _guarded(self, step: Any) -> Any:
        try:
            return step()
        except Exception as error:
            raise failure_at(self._what, self._node, error) from error


def _random_state() -> tuple[Any, ...]:
    return (
        random_states(),
        random.getstate(),
        None if (numpy := _numpy_random()) is None else numpy.get_state(),
    )


def _set_random_state(state: tuple[Any, ...]) -> None:
    set_random_states(state[0])
    random.setstate(state[1])
    numpy = _numpy_random()
    if numpy is not None and state[2] is not None:
        numpy.set_state(state[2])


def _numpy_random() -> Any:
    # NumPy is no dependency; a model that draws from it has imported it.
    return getattr(sys.modules.get("numpy"), "random", None)


def _run_side_by_side(first: _Walk, second: _Walk, aligned: Alignment, judge: _Judge) -> None:
    wanted = set(aligned.partner.values())
    waiting: dict[Node, Any] = {}
    while (step := second.advance()) is not None:
        node, value = step
        other = aligned.partner.get(node)
        if other is None:
            continue
        if other in waiting:
            judge.judge(node, waiting.pop(other), value)
            continue
        while (ahead := first.advance()) is not None:
            if ahead[0] is other:
                judge.judge(node, ahead[1], value)
                break
            if ahead[0] in wanted:
                # Somebody may write to it before its partner is there.
                waiting[ahead[0]] = _own(ahead[1])


def _own(value: Any) -> Any:
    try:
        return copy_values(value)
    except Exception:  # Something foreign, which is compared as it is then.
        return value


# -- judging ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Verdict:
    expected: str
    actual: str
    max_abs_error: float
    max_rel_error: float
    sqnr: float
    cosine: float
    reason: str


class _Judge:
    """Compares values, and keeps what came of it."""

    def __init__(
        self,
        aligned: Alignment,
        sources: Mapping[Node, Sequence[Node]],
        tolerance: Tolerance,
        *,
        same_dtype: bool,
    ) -> None:
        self._sources = sources
        self._aligned, self._tolerance, self._same_dtype = aligned, tolerance, same_dtype
        self._verdicts: dict[Node, _Verdict] = {}
        self._outputs: tuple[Comparison, ...] = ()

    def judge(self, node: Node, expected: Any, actual: Any) -> None:
        """Compare the values of a node and its partner."""
        if node.op == "placeholder":
            return
        if not self._same_dtype:
            actual = _in_dtypes_of(expected, actual)
        found = tuple(
            compare(expected, actual, self._tolerance, "output" if node.op == "output" else node.name)
        )
        if node.op == "output":
            self._outputs = found
        reasons = [
            f"{entry.path}: {entry.reason}" if len(found) > 1 else entry.reason
            for entry in found
            if not entry.passed
        ]
        self._verdicts[node] = _Verdict(
            describe(expected),
            describe(actual),
            max((entry.max_abs_error for entry in found), default=0.0),
            max((entry.max_rel_error for entry in found), default=0.0),
            *_similarity(expected, actual),
            "; ".join(reasons),
        )

    def result(self) -> ModuleComparison:
        """Return what came of all comparisons."""
        guesses = [
            node
            for node, verdict in self._verdicts.items()
            # Lines and names are evidence, shapes are proof to the contrary.
            if self._aligned.by[node] in {"origin", "name"}
            and _shape(verdict.expected) != _shape(verdict.actual)
        ]
        for node in guesses:
            del self._verdicts[node]
        doubtful = {self._aligned.partner[node] for node in guesses}
        agrees = self._agreement()
        reaching = self._reaching()
        return ModuleComparison(
            tuple(
                self._layer(node, self._verdicts[node], agrees[node], is_reaching=node in reaching)
                for node in self._aligned.second.nodes
                if node in self._verdicts
            ),
            self._outputs,
            tuple(
                node.name
                for node in self._aligned.first.nodes
                if node.op not in _UNJUDGED and (node in doubtful or not self._aligned.is_taken(node))
            ),
            tuple(
                node.name
                for node in self._aligned.second.nodes
                if node.op not in _UNJUDGED and node not in self._verdicts
            ),
        )

    def _agreement(self) -> dict[Node, tuple[bool, tuple[str, ...]]]:
        """Return for each node whether the nearest judged values behind it pass, and which nodes lie between."""
        found: dict[Node, tuple[bool, tuple[str, ...]]] = {}
        for node in self._aligned.second.nodes:
            agree, between = True, dict[str, None]()
            for used in self._sources[node]:
                if used in self._verdicts:
                    agree = agree and not self._verdicts[used].reason
                elif used.op not in _UNJUDGED:
                    agree = agree and found[used][0]
                    between.update(dict.fromkeys((*found[used][1], used.name)))
            found[node] = agree, tuple(between)
        return found

    def _reaching(self) -> set[Node]:
        """Return the nodes from which differing and unknown values lead to an output that differs."""
        if all(output.passed for output in self._outputs):
            return set()
        reaching: set[Node] = set()
        read: set[Node] = set()
        for node in self._aligned.second.nodes.reversed():
            verdict = self._verdicts.get(node)
            if verdict is not None and not verdict.reason:
                continue
            if node.op == "output" or node in read:
                reaching.add(node)
                read.update(self._sources[node])
        return reaching

    def _layer(
        self, node: Node, verdict: _Verdict, agreement: tuple[bool, tuple[str, ...]], *, is_reaching: bool
    ) -> LayerComparison:
        scope = next((origin.module for origin in node.origins if origin.module is not None), None)
        return LayerComparison(
            name=node.name,
            reference=self._aligned.partner[node].name,
            aligned_by=self._aligned.by[node],
            opcode=node.op,
            target=node.target if isinstance(node.target, str) else qualified_name(node.target),
            line=line_of(node),
            module_path="" if scope is None else scope.path,
            history=tuple(map(str, node.history)),
            inputs_agree=agreement[0],
            new_inputs=agreement[1],
            reaches_output=is_reaching,
            **vars(verdict),
        )


def _shape(described: str) -> str:
    return described.partition("[")[2]


def _in_dtypes_of(expected: Any, actual: Any) -> Any:
    """Return `actual` with floating-point tensors in the dtypes that they have in `expected`."""
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        casts = expected.is_floating_point() and actual.is_floating_point()
        return actual.to(expected.dtype) if casts else actual
    if (
        isinstance(expected, (tuple, list))
        and type(expected) is type(actual)
        and len(expected) == len(actual)
    ):
        parts = [_in_dtypes_of(mine, other) for mine, other in zip(expected, actual, strict=True)]
        return type(actual)(*parts) if hasattr(actual, "_fields") else type(actual)(parts)
    if isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys():
        return type(actual)({key: _in_dtypes_of(expected[key], actual[key]) for key in actual})
    return actual


def _similarity(expected: Any, actual: Any) -> tuple[float, float]:
    """Return SQNR in dB and cosine similarity over all tensors of two values; not a number where there are none."""
    signal = noise = energy = product = 0.0
    count = 0
    for mine, other in zip(tensors_in(expected), tensors_in(actual), strict=False):
        if mine.shape != other.shape or mine.is_complex() or mine.is_quantized or other.is_quantized:
            return math.nan, math.nan
        if mine.is_meta or other.is_meta:
            return math.nan, math.nan
        left, right = (tensor.detach().to_dense().double().flatten().cpu() for tensor in (mine, other))
        count += left.numel()
        signal += float(left.dot(left))
        noise += float((right - left).dot(right - left))
        energy += float(right.dot(right))
        product += float(left.dot(right))
    if not count:
        return math.nan, math.nan
    length = math.sqrt(signal) * math.sqrt(energy)
    cosine = product / length if length else float(signal == energy)
    return _decibels(signal, noise), cosine


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    if signal == 0:
        return -math.inf
    return 10 * math.log10(signal / noise) if math.isfinite(signal) and math.isfinite(noise) else math.nan
