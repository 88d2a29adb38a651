"""Which calls which backend runs, in which partitions: found out before anything is built."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze import builtin_formulas, cost_table, described_copy
from fxplug.errors import ConfigError, did_you_mean
from fxplug.ir import Node, iterate_leaves
from fxplug.lower.autograd_functions import only_computes
from fxplug.lower.backend import Backend, LoweringContext, Support
from fxplug.lower.containers import container_calls, without_container_reads
from fxplug.lower.report import LoweringReport, MissingSupport, NodeSupport, PartitionReport
from fxplug.lower.settled import ASKS, NOT_SETTLED, UNKNOWN, Settled, settle
from fxplug.lower.sharing import sharing_sets
from fxplug.passes import group_nodes_by_kind, order_partitions, requirements
from fxplug.passes.parts import Part, find_borders
from fxplug.semantics.checks import CHECKS, is_check

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from fxplug.execute import GraphModule

__all__ = ["EAGER_PIN", "Choices", "Plan", "is_compute", "make_plan"]

EAGER_PIN = ""
"""Pins a node to PyTorch."""
_LISTED = 20
_RESHAPES = frozenset(
    {
        "view",
        "reshape",
        "flatten",
        "permute",
        "transpose",
        "t",
        "squeeze",
        "unsqueeze",
        "contiguous",
        "detach",
    }
    | {"expand", "expand_as", "view_as"}
)
_READS = frozenset({"size", "dim", "ndimension", "numel", "__getitem__"})
_FUNCTIONS: tuple[Any, ...] = (
    *(operator.getitem, getattr, torch.reshape, torch.flatten, torch.permute, torch.transpose, torch.t),
    *(torch.squeeze, torch.unsqueeze),
)


@dataclass(frozen=True)
class Choices:
    """What a user decides about partitions."""

    min_block_size: int = 1
    """A partition with fewer calls that compute stays in PyTorch."""
    together: tuple[tuple[str, ...], ...] = ()
    """Names of nodes that come into one partition or into none."""
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name of a node -> name of the backend that alone may run it; ``""`` for PyTorch."""
    max_transfer: float | None = None
    """How many bytes may go in and out of a partition for each operation in it, an operation being a multiply-add, or
    an element of a result where there are more of these. A partition that is not worth its transfers is left to the
    next backend, where its calls may join others, and to PyTorch at last. None for any number; needs example
    inputs."""


@dataclass(frozen=True)
class Plan:
    """Which parts run where."""

    module: GraphModule
    """The module that is split: the one that was given, or one that does the same without taking containers apart."""
    parts: tuple[Part, ...]
    """All calls, in an order in which they can run; those with a name become submodules."""
    backends: Mapping[str, str]
    """Name of a part -> name of its backend."""
    report: LoweringReport


def is_compute(node: Node) -> bool:
    """Return whether a call computes, instead of reading or checking sizes, taking apart or reshaping."""
    if node.op == "call_method":
        return node.target not in _RESHAPES | _READS
    return node.op == "call_module" or not any(node.target is known for known in (*_FUNCTIONS, *CHECKS))


def make_plan(
    module: GraphModule,
    backends: Sequence[tuple[str, Backend]],
    example_inputs: tuple[Any, ...] | None,
    choices: Choices,
) -> Plan:
    """Ask backends about every call of a module, and find the partitions.

    Args:
        module: Not changed.
        backends: Names and backends; where several support a call, the first of them runs it.
        example_inputs: Of the module, where they are known.
        choices: Of the user.

    Raises:
        ConfigError: `choices` names a node or backend that is not there, or a size that is none.
    """
    _check_choices(choices, _calls_of(module), [name for name, _ in backends])
    if choices.max_transfer is not None and example_inputs is None:
        raise ConfigError(
            "Cannot weigh transfers (max_transfer) without example inputs, which say how large tensors are: give them."
        )
    context = LoweringContext(module, example_inputs)
    named = {*choices.pins, *(name for names in choices.together for name in names)}
    simpler = without_container_reads(module, context, named)
    if simpler is not module:
        context = LoweringContext(simpler, example_inputs)
    return _Planner(simpler, backends, context, choices).plan()


def _calls_of(module: GraphModule) -> dict[str, Node]:
    return {node.name: node for node in module.graph.nodes if node.op.startswith("call_")}


def _check_choices(choices: Choices, calls: Mapping[str, Node], backends: Collection[str]) -> None:
    if choices.min_block_size < 1:
        raise ConfigError(
            f"Cannot use min_block_size={choices.min_block_size!r}: give a positive whole number."
        )
    if choices.max_transfer is not None and not choices.max_transfer >= 0:
        raise ConfigError(
            f"Cannot use max_transfer={choices.max_transfer!r}: give a number of bytes that is not negative."
        )
    for name in (*choices.pins, *(name for names in choices.together for name in names)):
        if name not in calls:
            raise ConfigError(
                f"Cannot decide where node {name!r} runs: the module has no call of this name. "
                f"{did_you_mean(name, calls)}"
            )
    for name, backend in choices.pins.items():
        if backend != EAGER_PIN and backend not in backends:
            raise ConfigError(
                f"Cannot pin node {name!r} to {backend!r}: it is none of the backends that were given. "
                f"{did_you_mean(backend, backends)}"
            )


def _refuse_pinned(choices: Choices, containers: Collection[str]) -> None:
    for name, backend in choices.pins.items():
        if name in containers and backend != EAGER_PIN:
            raise ConfigError(
                f"Cannot pin node {name!r} to {backend!r}: it only puts values into a container, which needs no "
                "engine. Leave the pin out."
            )


class _Planner:
    """Finds partitions, and the reasons for what is in none. Containers of results are made in PyTorch: no work.

    Args:
        module: Not changed.
        backends: Names and backends, by priority.
        context: Knows the module.
        choices: Of the user.
    """

    def __init__(
        self,
        module: GraphModule,
        backends: Sequence[tuple[str, Backend]],
        context: LoweringContext,
        choices: Choices,
    ) -> None:
        self._module = module
        self._names = [name for name, _ in backends]
        self._context = context
        self._choices = choices
        calls, containers = _calls_of(module), container_calls(module, context.values)
        _refuse_pinned(choices, {node.name for node in containers})
        self._calls = {name: node for name, node in calls.items() if node not in containers}
        settled = {name: self._settled(backend) for name, backend in backends}
        self._answers: dict[Node, dict[str, Support]] = {}
        for node in self._calls.values():
            self._answers[node] = {
                name: self._answer(node, name, backend, settled[name]) for name, backend in backends
            }
        self._together = [[calls[name] for name in names] for names in choices.together]
        computing = {node for node in self._answers if only_computes(node, context.values)}
        self._together += sharing_sets(
            module, lambda node: any(self._answers[node].values()), containers, computing
        )
        self._left: dict[Node, str] = {}

    def _settled(self, backend: Backend) -> Settled:
        """Return what is known before an engine of a backend runs."""
        inputs = self._context.example_inputs
        profile = None if inputs is None else backend.profile(inputs)
        return settle(self._module, self._context, profile)

    def _answer(self, node: Node, name: str, backend: Backend, settled: Settled) -> Support:
        """Return what a backend says about a call; of checks, and of what takes results apart, it need not know."""
        if node in settled.checks:
            return Support(ok=True)
        if node in settled.unknown:
            return Support(ok=False, reason=UNKNOWN)
        if node in settled.asking:
            return Support(ok=False, reason=ASKS)
        taken_from = self._container(node)
        if taken_from in self._answers and self._answers[taken_from][name]:
            return Support(ok=True)
        answer = backend.supports(node, self._context)
        return Support(ok=False, reason=NOT_SETTLED) if not answer and is_check(node) else answer

    def _container(self, node: Node) -> Node | None:
        """Return what a call takes a part of, where this is a container of tensors and not a tensor."""
        if node.target is not operator.getitem or not isinstance(node.args[0], Node):
            return None
        value = self._context.values.get(node.args[0])
        return node.args[0] if isinstance(value, (tuple, list, dict)) and _bytes(value) else None

    def plan(self) -> Plan:
        """Return what runs where."""
        candidates = {node: self._candidates(node) for node in self._calls.values()}
        while True:
            groups = self._groups(candidates)
            small = [group for group in groups if not self._is_large_enough(group[1])]
            refused = [(backend, nodes, self._why_small(backend, nodes)) for backend, nodes in small]
            refused = self._takes_nested(groups) or refused
            # Those that are large enough are weighed last: what is too small joins others, which makes them larger.
            refused = refused or self._not_worth_it(groups)
            if not refused:
                break
            for backend, nodes, why in refused:
                for node in nodes:
                    candidates[node].remove(backend)
                    self._left[node] = why
        return self._written(groups, {node for node, names in candidates.items() if names})

    def _candidates(self, node: Node) -> list[str]:
        pin = self._choices.pins.get(node.name)
        found = [name for name in self._names if self._answers[node][name]]
        if pin is None:
            return found
        if pin not in found:
            self._left[node] = "it is pinned to PyTorch" if pin == EAGER_PIN else self._reason(node, pin)
        return [name for name in found if name == pin]

    def _groups(self, candidates: Mapping[Node, Sequence[str]]) -> list[tuple[str, list[Node]]]:
        """Return backend and calls of each group."""
        found = group_nodes_by_kind(
            self._module,
            lambda node: next(iter(candidates.get(node, ())), None),
            together=self._together,
        )
        return [(str(kind), nodes) for kind, nodes in found]

    def _takes_nested(self, groups: Sequence[tuple[str, list[Node]]]) -> list[tuple[str, list[Node], str]]:
        """Return calls that take apart what does not go into an engine: containers in containers, and dicts."""
        found: list[tuple[str, list[Node], str]] = []
        for backend, nodes in groups:
            inside = set(nodes)
            apart = [node for node in nodes if self._container(node) not in {None, *inside}]
            apart = [node for node in apart if _is_nested(self._context.values[node.all_input_nodes[0]])]
            if apart:
                why = "it takes apart a container of containers, or a dict, that PyTorch has made"
                found.append((backend, apart, why))
        return found

    def _is_large_enough(self, nodes: Sequence[Node]) -> bool:
        return sum(map(is_compute, nodes)) >= self._choices.min_block_size

    def _why_small(self, backend: str, nodes: Sequence[Node]) -> str:
        count = sum(map(is_compute, nodes))
        return (
            f"its partition for {backend!r} would have {count} call{'' if count == 1 else 's'} that compute, fewer "
            f"than min_block_size={self._choices.min_block_size}"
        )

    def _not_worth_it(self, groups: Sequence[tuple[str, list[Node]]]) -> list[tuple[str, list[Node], str]]:
        """Return groups that move too much for what they compute, each with the reason."""
        limit = self._choices.max_transfer
        if limit is None:
            return []
        found: list[tuple[str, list[Node], str]] = []
        for backend, nodes in groups:
            moved, work = self._transfer(nodes), sum(self._work[node] for node in nodes)
            if moved is not None and moved > limit * work:
                why = (
                    f"its partition for {backend!r} would move {moved} bytes for {work} operations, more than "
                    f"max_transfer={limit:g} allows"
                )
                found.append((backend, nodes, why))
        return found

    def _transfer(self, nodes: Sequence[Node]) -> int | None:
        """Return how many bytes go in and out of a group, None where that is not known."""
        inside = set(nodes)
        taken = {used for node in nodes for used in node.all_input_nodes if used not in inside}
        crossing = [used for used in taken if used.op != "get_attr"]
        crossing += [node for node in nodes if any(user not in inside for user in node.users)]
        values = self._context.values
        if any(node not in values for node in crossing):
            return None
        return sum(_bytes(values[node]) for node in crossing)

    @cached_property
    def _work(self) -> dict[Node, int]:
        """How many operations each call has."""
        try:
            described = described_copy(self._module, *(self._context.example_inputs or ()))
            table = cost_table(described, builtin_formulas(), state=self._module)
            counted = {cost.name: cost.multiply_adds or 0 for cost in table.nodes}
        except Exception:  # A program that does not run without data: elements alone are counted.
            counted = {}
        values = self._context.values
        return {
            node: max(counted.get(node.name, 0), _elements(values.get(node)) if is_compute(node) else 0)
            for node in self._calls.values()
        }

    def _reason(self, node: Node, backend: str) -> str:
        return self._answers[node][backend].reason or "no reason given"

    def _written(self, groups: Sequence[tuple[str, list[Node]]], wanted: Collection[Node]) -> Plan:
        place = {node: number for number, (_, nodes) in enumerate(groups) for node in nodes}
        for node in wanted:
            if node not in place:
                self._left[node] = "it shares memory or has to run together with a call that stays in PyTorch"
        before = requirements(self._module)
        partitions = [*(nodes for _, nodes in groups), *([node] for node in before if node not in place)]
        order = order_partitions(partitions, before, [f"group {number}" for number in range(len(partitions))])
        names = self._free_names()
        parts: list[Part] = []
        backends: dict[str, str] = {}
        for number in order:
            name = next(names) if number < len(groups) else None
            parts.append(Part(name, partitions[number]))
            if name is not None:
                backends[name] = groups[number][0]
        find_borders(self._module, parts, own=True)
        report = LoweringReport(
            ", ".join(self._names),
            tuple(self._entries(parts)),
            tuple(self._partition(part, backends[part.name]) for part in parts if part.name is not None),
            tuple(self._missing(wanted)),
        )
        # Borders are found anew when the module is split.
        return Plan(self._module, tuple(Part(part.name, part.nodes) for part in parts), backends, report)

    def _free_names(self) -> Iterator[str]:
        taken = {
            str(node.target).partition(".")[0]
            for node in self._module.graph.nodes
            if node.op != "call_function"
        }
        number = 0
        while True:
            if (name := f"submod_{number}") not in taken:
                yield name
            number += 1

    def _entries(self, parts: Sequence[Part]) -> Iterator[NodeSupport]:
        place = {node: part.name or "" for part in parts for node in part.nodes}
        for node in self._calls.values():
            answers = self._answers[node]
            ok = any(answers.values())
            reason = "" if place[node] else self._left.get(node, "") or self._why_not(answers)
            yield NodeSupport(node.name, _target_text(node), ok, reason, _source(node), place[node])

    def _why_not(self, answers: Mapping[str, Support]) -> str:
        if len(answers) == 1:
            return next(iter(answers.values())).reason
        return "; ".join(f"{name}: {answer.reason or 'no reason given'}" for name, answer in answers.items())

    def _partition(self, part: Part, backend: str) -> PartitionReport:
        values = self._context.values
        crossing = [values.get(node) for node in (*part.inputs, *part.outputs)]
        known = all(value is not None for value in crossing)
        size = sum(_bytes(value) for value in crossing) if known and crossing else None
        return PartitionReport(
            str(part.name),
            backend,
            tuple(node.name for node in part.nodes),
            sum(map(is_compute, part.nodes)),
            tuple(node.name for node in part.inputs),
            tuple(node.name for node in part.outputs),
            size,
        )

    def _missing(self, wanted: Collection[Node]) -> Iterator[MissingSupport]:
        """Yield what each kind of call that is not supported costs."""
        kinds: dict[Any, list[Node]] = {}
        for node in self._calls.values():
            if not any(self._answers[node].values()) and node.name not in self._choices.pins:
                kinds.setdefault(_kind(node, self._module), []).append(node)
        found: list[MissingSupport] = []
        for (_, text), nodes in list(kinds.items())[:_LISTED]:
            candidates = {node: [] for node in self._calls.values()} | {
                node: [name for name in self._names if self._answers[node][name]][:1] for node in wanted
            }
            candidates |= dict.fromkeys(nodes, self._names[:1])
            groups = [group for group in self._groups(candidates) if self._is_large_enough(group[1])]
            found.append(MissingSupport(text, tuple(node.name for node in nodes), len(groups)))
        yield from sorted(found, key=lambda entry: entry.partitions)


def _kind(node: Node, module: GraphModule) -> tuple[Any, str]:
    """Return what tells calls apart that one converter would be for, and its name for people."""
    if node.op == "call_module":
        kind = type(module.get_submodule(node.target))
        return kind, kind.__name__
    target: Any = node.target
    return (target if isinstance(target, str) else id(target)), _target_text(node)


def _target_text(node: Node) -> str:
    return (
        node.target if isinstance(node.target, str) else getattr(node.target, "__name__", repr(node.target))
    )


def _source(node: Node) -> str:
    frame = node.origins[0].source() if node.origins else None
    return f"{frame.filename}:{frame.line}" if frame is not None else ""


def _elements(value: Any) -> int:
    return sum(leaf.numel() for leaf in iterate_leaves(value) if isinstance(leaf, torch.Tensor))


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) or any(isinstance(part, (tuple, list, dict)) for part in value)


def _bytes(value: Any) -> int:
    return sum(
        leaf.numel() * leaf.element_size() for leaf in iterate_leaves(value) if isinstance(leaf, torch.Tensor)
    )
