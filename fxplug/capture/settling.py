"""Finding out whether the next call of a program would answer by what this one has left behind.

What a program leaves in its modules, in globals and the like has no place in a graph. It is put back when the trace
ends; and where there is such, the program is traced a second time, from the state that the first trace has left. What
the first one has computed from its inputs, and left, is a value of its own to the second one: a program that uses it is
another one than it was. The second trace leaves no trace of its own.
"""

from __future__ import annotations

import copy
import operator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import nn

from fxplug.capture.arguments import iterate_parts
from fxplug.capture.callforms import written_arguments
from fxplug.capture.containers import Containers
from fxplug.capture.keeping import StateKeeper
from fxplug.capture.outside import OutsideChange
from fxplug.capture.policy import TraceContext
from fxplug.capture.proxy import Proxy
from fxplug.capture.quiet import quiet
from fxplug.capture.reached import codes_of, methods_named, reads_contents
from fxplug.capture.repeated import (
    Recording,
    StateComparison,
    same_recordings,
    values_in,
    with_all_before,
)
from fxplug.capture.sessions import active
from fxplug.capture.shared_arrays import shared_memory_refusal
from fxplug.capture.state import (
    ModuleChange,
    carried_over_error,
    changed_result_error,
    is_read_by_call,
    is_update,
    kept_draws_error,
    report_changes,
    report_outside,
)
from fxplug.capture.writes import is_read
from fxplug.execute.aliases import may_return_argument
from fxplug.ir import Graph, Node, effects
from fxplug.semantics.random_state import kept_random_state, set_random_states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextvars import ContextVar

    from fxplug.capture.caches import Result
    from fxplug.capture.gradients import Gradients
    from fxplug.capture.outside import OutsideState, Step
    from fxplug.capture.policy import TracePolicy
    from fxplug.capture.settings import Settings
    from fxplug.errors import TraceError

__all__ = ["StateSettler", "changing_nodes"]

AnyChange: TypeAlias = ModuleChange | OutsideChange


class _Left:
    """What a trace has left behind, for a second one.

    Args:
        changes: What the trace has changed.
        graph: What it has recorded.
        root: What the paths of the graph refer to.
    """

    def __init__(self, changes: Iterable[AnyChange], graph: Graph, root: nn.Module) -> None:
        self.values = list(values_in(step.found for change in changes for step in change.steps))
        """What is in it, at any depth."""
        self.changing = changing_nodes(graph, root)
        """The nodes of the trace that may have other values in another call."""
        self._returned = with_all_before({graph.output_node()})
        self.shared: list[Node] = []
        """The node, if there is one, that stands in the second trace for what the first one has computed."""
        self.own: list[Node] = []
        """The same for what has no part in the result of the first trace: whoever changes it changes nothing else."""
        self.constants: set[int] = set()
        """The ids of the tensors that every call would compute again."""
        self.variables: list[tuple[ContextVar[Any], Any]] = []
        """Context variables, and what they were given."""
        self.is_ambiguous = False
        """Whether something that was left cannot be told from an input of the second trace."""
        self.lent: list[tuple[Any, dict[str, Any]]] = []
        """Each stand-in for a value that belongs to the second trace for a while, and what it was."""

    def stand_in(self, node: Node, graph: Graph) -> Node:
        """Return the node that stands, in the graph of the second trace, for a value that the first one has computed.

        Args:
            node: Has computed it.
            graph: Of the second trace.
        """
        is_shared = node.op == "placeholder" or node in self._returned
        held = self.shared if is_shared else self.own
        if not held:
            held.append(graph.create_node("placeholder", "left"))
        return held[0]

    def lend(self, value: Any, **fields: Any) -> None:
        """Let a stand-in for a value be one of the second trace."""
        self.lent.append((value, {name: getattr(value, name) for name in fields}))
        for name, field in fields.items():
            object.__setattr__(value, name, field)

    def take_back(self) -> None:
        """Let all stand-ins be what they were."""
        for value, fields in self.lent:
            for name, field in fields.items():
                object.__setattr__(value, name, field)


class StateSettler(StateKeeper):
    """A tracer that finds out whether the next call of a program would answer by what this one has left."""

    policy: TracePolicy
    on_mutation: str
    problems: list[TraceError] | None
    _module_changes: list[ModuleChange]
    _modes_outside: dict[int, tuple[nn.Module, bool]]
    """By id: the modules that the root does not have and the program switches, and whether they were in training."""
    _outside_changes: list[OutsideChange]
    _ended: bool
    _is_repeated: bool
    _arrays: list[Any]
    """The arrays of NumPy that the program holds, once it has run."""
    _is_plain: bool
    _results_kept: list[tuple[Any, list[Any]]]
    """Functions that have kept results while the program ran (`functools.lru_cache`), with these."""
    _results_returned: list[Result]
    """What such functions have returned, and had kept before."""
    _left: _Left | None
    """What an earlier trace has left; None for the first one."""
    _random: dict[torch.Generator, torch.Tensor] | None = None
    """The random state of torch when the program began, where the program draws from it while it is traced."""

    def settle(self, root: Any, concrete_args: Any) -> None:
        """Refuse a program of which the next call would answer by what this one has left.

        Args:
            root: What was traced.
            concrete_args: With what it was traced.

        Raises:
            TraceError: It would; or the program has changed something, and `on_mutation` is ``"error"``.
        """
        changes: list[AnyChange] = [*self._module_changes, *self._outside_changes]
        culprit = next((change for change in changes if change.how == "iterator"), None)
        culprit = culprit or self._changed_leaf() or self._carried_over(changes, root, concrete_args)
        outside, warns = cast("OutsideState", self._outside), self.on_mutation == "keep"
        if culprit is not None:
            self._note_left(values_in(step.found for change in changes for step in change.steps))
        if isinstance(culprit, ModuleChange):
            raise carried_over_error(culprit, outside.codes())
        if culprit is None:
            # That modules outside are left in another mode changes nothing for what was captured.
            others = self._modes_outside
            told = [
                one for one in self._module_changes if one.name != "training" or id(one.module) not in others
            ]
            report_changes(told, warns=warns)
        report_outside(self._outside_changes, culprit, outside, warns=warns)

    def refuse_shared_arrays(self) -> None:
        """Refuse a program that changes an array of NumPy that has the memory of a tensor, or such a tensor.

        Raises:
            TraceError: It does.
        """
        arrays, self._arrays = self._arrays, []
        if arrays:
            changed = self._states.changed() | cast("OutsideState", self._outside).changed()
            written = _with_shared_memory(_written_nodes(self.graph.nodes, self.root)[0], self.root)
            error = shared_memory_refusal(self.graph, self.root, arrays, changed, written)
            if error is not None:
                raise error

    def _note_results_kept(self) -> None:
        """Take note, while the trace still runs, of what functions have kept (`functools.lru_cache`)."""
        if self._is_plain:  # It calls none.
            return
        session = active.get()
        self._results_kept = [] if session is None else session.caches.filled()
        self._results_returned = [] if session is None else session.caches.returned()

    def refuse_kept_draws(self) -> None:
        """Refuse a program that draws random numbers once and keeps them (`functools.lru_cache`).

        Raises:
            TraceError: It does: the graph would draw them in every call.
        """
        kept, self._results_kept = self._results_kept, []
        for function, results in kept:
            nodes = with_all_before(filter(None, map(self._node_kept, values_in(results))))
            if nodes and _is_drawn(nodes, self.graph, self.root):
                raise kept_draws_error(function)

    def refuse_changed_results(self) -> None:
        """Refuse a program that changes what a function returns to all of its callers (`functools.lru_cache`).

        Raises:
            TraceError: It does: its next call would be given what it has changed.
        """
        returned, self._results_returned = self._results_returned, []
        changed = [result for result in returned if result.is_changed(cast("Any", self).writes_to)]
        # A traced value knows nothing of what is written to it.
        traced = [
            (result, {one.node for one in values_in([result.value]) if isinstance(one, Proxy)})
            for result in returned
        ]
        changed += _written_later(
            [(result, nodes) for result, nodes in traced if nodes], self.graph, self.root
        )
        if changed:
            raise changed_result_error(changed[0].function)

    def _node_kept(self, value: Any) -> Node | None:
        """Return the node of a traced value that a function has kept."""
        is_own = isinstance(value, Proxy) and cast("Any", value.tracer) is self
        return value.node if is_own else self.node_of(value)

    def putting_back_outside(self) -> Callable[[], None]:
        """Return what puts back what is outside of the modules once more, after the program has run on its own."""
        modes = list(self._modes_outside.values())
        return partial(_put_back, self._outside, self._settings, self._states.gradients, modes)

    def _changed_leaf(self) -> AnyChange | None:
        """Return the first change that makes a module that stays a call another one; its node would be the same."""
        paths = {cast("str", node.target) for node in self.graph.nodes if node.op == "call_module"}
        for path in paths if self._module_changes else ():
            leaf = self.root.get_submodule(path)
            parts = set(map(id, leaf.modules()))
            for change in self._module_changes:
                if id(change.module) in parts and is_read_by_call(leaf, change):
                    return change
        return None

    def _carried_over(self, changes: list[AnyChange], root: Any, concrete_args: Any) -> AnyChange | None:
        """Return the change by which the program is another one at its next call, None where it is the same."""
        first = self._recording()
        left = _Left(changes, self.graph, self.root)
        outside = cast("OutsideState", self._outside)
        left.variables, outside.left_in_context = outside.left_in_context, []
        other = self._successor(root, left)
        self._exchange(as_left=True)
        self._ended = True  # What was not found among what it has left must not be recorded by it any more.
        try:
            if left.is_ambiguous or not self._leads_to(other, root, concrete_args):
                return self._likely(changes)
            second = other._recording()
            # All that this trace has asked is guarded. A call that finds what it looks for asks less.
            if not (self._is_same(first, second) and self._asks_as(other)):
                return self._likely(changes)
            return self._first_that_goes_on(other, StateComparison(self, other, (first, second)))
        finally:
            self._ended = False
            self._exchange(as_left=False)
            left.take_back()

    def _exchange(self, *, as_left: bool) -> None:
        """Put everywhere what the program has left there, or again what was there before."""
        cast("OutsideState", self._outside).exchange(as_left=as_left)
        self._states.exchange(as_left=as_left)

    def _likely(self, changes: list[AnyChange]) -> AnyChange:
        """Return the first change of something that the program reads."""
        for change in changes:
            if any(self._is_read(change, step) for step in change.steps):
                return change
        return changes[0]

    def _first_that_goes_on(self, other: StateSettler, comparison: StateComparison) -> AnyChange | None:
        """Return the first change by which the state goes on from call to call, and which the program reads."""
        for change in (*other._module_changes, *other._outside_changes):
            if change.how == "iterator":
                return change
            for step in change.steps:
                if not comparison.is_same(step.former, step.found) and self._is_read(change, step):
                    return change
        return None

    def _is_read(self, change: AnyChange, step: Step) -> bool:
        """Return whether the program does something else with what has changed than to change it."""
        codes = cast("OutsideState", self._outside).codes()
        if isinstance(change, ModuleChange):
            own = codes_of(change.module)
            if step.contents:
                codes = [code for code in codes if code not in own]
                if reads_contents(change.module, step.name):
                    return True
            else:
                codes += own
            if step.holder is not None:
                codes += methods_named(step.holder, {name for code in own for name in code.co_names})
        return is_read(codes, step.name, step.kind, contents=step.contents)

    # -- the second trace

    def _successor(self, root: Any, left: _Left) -> StateSettler:
        """Return a tracer that is to trace the program once more."""
        other = copy.copy(self)
        other._reset()
        other._is_repeated, other._left = True, left
        other.policy = replace(self.policy, node_created=None)  # It was asked about these nodes.
        other.context, other.graph = TraceContext(root), Graph(tracer_cls=cast("Any", type(self)))
        other._take_after(self, left)
        return other

    def _leads_to(self, other: StateSettler, root: Any, concrete_args: Any) -> bool:
        """Let another tracer trace the program from the state that this one has left; return whether it can."""
        # What a subclass keeps for itself is about the first trace.
        kept = Containers()
        if not str(type(self).__module__).startswith("fxplug."):
            kept.remember("", vars(self))
        try:
            with quiet(), kept_random_state():
                if self._random is not None:
                    set_random_states(self._random)
                other._trace_again(root, concrete_args)
        except (Exception, SystemExit):
            return False
        finally:
            other._end_again()
            kept.restore()
        return True

    def _reset(self) -> None:
        """Forget what was traced."""
        raise NotImplementedError

    def _trace_again(self, root: Any, concrete_args: Any) -> None:
        """Trace a program and tell nobody of it."""
        raise NotImplementedError

    def _end_again(self) -> None:
        """Let go of what was needed to trace."""
        raise NotImplementedError

    def _take_after(self, other: Any, left: _Left) -> None:
        """Trace as another tracer has traced, which is in the middle of it, and know what it has left."""
        self.problems = None if other.problems is None else []
        copies: dict[Node, Node] = {}
        for value in left.values:
            if isinstance(value, Proxy) and value.tracer is other:
                node = value.node
                is_changing = node in left.changing
                again = left.stand_in(node, self.graph) if is_changing else self._copy_constant(node, copies)
                left.lend(value, node=again, tracer=self)
            elif isinstance(value, torch.Tensor):
                left.constants.add(id(value))

    def _copy_constant(self, node: Node, copies: dict[Node, Node]) -> Node:
        """Return a node that computes what a node of the first trace has computed from constants."""
        if node not in copies:
            inner = {used: self._copy_constant(used, copies) for used in node.all_input_nodes}
            lifted = cast("Graph", node.graph).lifted
            value = lifted.get(cast("str", node.target)) if node.op == "get_attr" else None
            if value is None:
                copies[node] = self.graph.node_copy(node, inner.__getitem__)
            else:
                copies[node] = self._lift_left(value)
        return copies[node]

    def _lift_left(self, value: Any) -> Node:
        """Return a read of a constant that the first trace has made."""
        path = cast("Any", self).get_fresh_qualname("_left")
        self.graph.lifted[path] = value
        return self.graph.create_node("get_attr", path)

    # -- comparing

    def _recording(self) -> Recording:
        """Return what was recorded."""
        values, asked, left = self._values_of_constants(), self._asked(), self._left
        if left is None:
            return Recording(self.graph, self.root, values, asked)
        return Recording(self.graph, self.root, values, asked, left)

    def _is_same(self, first: Recording, second: Recording) -> bool:
        """Return whether a second trace is the same as one, but for questions that it need not ask."""
        for asked in self._asked_again(first, second):
            first.select(asked)
            if same_recordings(first, second):
                return True
        return False

    def _asked_again(self, first: Recording, second: Recording) -> Iterator[Sequence[Node]]:
        """Yield what a second trace may have asked of the questions of a trace, and has nothing else to ask."""
        yield [*first.asked, *first.checks]

    def _note_left(self, values: Iterable[Any]) -> None:
        """Hear what a program has left by which its next call would answer."""

    def _values_of_constants(self) -> dict[Node, torch.Tensor]:
        """Return the tensors that nodes had for values, as far as they are known."""
        return {}

    def node_of(self, value: Any) -> Node | None:
        """Return the node that a tensor is the value of, None where that is not known."""
        return None

    def _asked(self) -> list[Node]:
        """Return the nodes that say what the inputs were asked."""
        return []

    def _asks_as(self, other: Any) -> bool:
        """Return whether two traces have asked alike, as far as no node says."""
        return self.graph.captured_training == other.graph.captured_training


def _is_drawn(nodes: set[Node], graph: Graph, root: nn.Module) -> bool:
    """Return whether one of the nodes draws random numbers, or one of their values is filled with such."""
    for node in graph.nodes:
        is_drawing, is_filling = _draws(node, root)
        if is_drawing and (node in nodes or (is_filling and not nodes.isdisjoint(node.all_input_nodes))):
            return True
    return False


def _draws(node: Node, root: nn.Module) -> tuple[bool, bool]:
    """Return whether a node may draw random numbers, and whether it fills something with them."""
    if getattr(node.target, "__module__", None) == nn.init.__name__:
        return True, True
    effect = effects.effect_of(node, root)
    return effect.random, bool(effect.writes)


def changing_nodes(graph: Graph, root: nn.Module) -> set[Node]:
    """Return the nodes that may have other values in another call: by its inputs, by chance, or by what is written."""
    written, owners = _written_nodes(graph.nodes, root)
    written = _with_shared_memory(written, root)
    targets = {node.target for node in written if node.op == "get_attr"}
    changing: set[Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            is_own = node.target in targets or str(node.target).startswith(owners)
        else:
            is_own = node.op == "placeholder" or not effects.effect_of(node, root).is_pure
        if is_own or node in written or not changing.isdisjoint(node.all_input_nodes):
            changing.add(node)
    return changing


def _with_shared_memory(written: dict[Node, bool], root: nn.Module) -> set[Node]:
    """Return nodes with all whose memory they may share: what they are computed from, past what is computed anew.

    Args:
        written: The nodes -> whether each is a tensor for certain; a sum may be one of lists.
        root: What paths refer to.
    """
    seen = set(written.items())
    _spread(list(seen), seen, root)
    return {node for node, _ in seen}


def _spread(pending: list[tuple[Node, bool]], seen: set[tuple[Node, bool]], root: nn.Module) -> None:
    """Add to `seen` all whose memory those that are pending may share; they are in it already."""
    while pending:
        node, is_tensor = pending.pop()
        is_joined = node.target in _JOINING and not is_tensor
        if node.op.startswith("call_") and not is_joined and not may_return_argument(node, root):
            continue
        for used in node.all_input_nodes:
            entry = used, (is_tensor and is_update(node)) or _wants_tensor(node, used)
            if entry not in seen:
                seen.add(entry)
                pending.append(entry)


def _written_later(returned: list[tuple[Result, set[Node]]], graph: Graph, root: nn.Module) -> list[Result]:
    """Return the results that are written to after a function has returned them.

    Args:
        returned: The results, each with the nodes of its tensors.
        graph: What was recorded.
        root: What the paths of the graph refer to.
    """
    if not returned:
        return []
    nodes = list(graph.nodes)
    places: dict[Node | None, int] = {node: place for place, node in enumerate(nodes, 1)}
    places[None], end = 0, len(nodes)
    seen: set[tuple[Node, bool]] = set()
    found: list[Result] = []
    # From the last one to the first, so that each node is looked at once.
    for result, own in sorted(returned, key=lambda one: places[one[0].last], reverse=True):
        start = places[result.last]
        new = _written_nodes(nodes[start:end], root)[0].items() - seen
        seen |= new
        _spread(list(new), seen, root)
        end = start
        if any((node, is_tensor) in seen for node in own for is_tensor in (True, False)):
            found.append(result)
    return found[::-1]


_JOINING = (operator.add, operator.mul)
"""Operators that put the elements of lists into a new one."""
_CONTAINERS = (list, tuple, dict, set, str)


def _put_back(
    outside: OutsideState | None,
    settings: Settings,
    gradients: Gradients | None,
    modes: Iterable[tuple[nn.Module, bool]],
) -> None:
    for module, mode in modes:
        vars(module)["training"] = mode
    if outside is not None:
        outside.exchange(as_left=False)
    settings.restore()
    if gradients is not None:
        gradients.restore()


def _wants_tensor(node: Node, used: Node) -> bool:
    """Return whether what a call is given is a tensor for certain, as it is a method of tensors alone."""
    if node.op != "call_method" or node.args[:1] != (used,):
        return False
    return hasattr(torch.Tensor, node.target) and not any(hasattr(kind, node.target) for kind in _CONTAINERS)


def _written_nodes(nodes: Iterable[Node], root: nn.Module) -> tuple[dict[Node, bool], tuple[str, ...]]:
    """Return the nodes whose values others may write to, and the paths of the modules whose tensors they may.

    Each node has with it whether it is a tensor for certain.
    """
    written: dict[Node, bool] = {}
    owners: list[str] = []
    for node in nodes:
        effect = effects.effect_of(node, root)
        if effect.unknown:
            written.update(dict.fromkeys(node.all_input_nodes, False))
        elif effect.writes:
            for part in written_arguments(effect, node.args, node.kwargs):
                # Some write to each tensor in a list.
                is_tensor = isinstance(part, Node) and "foreach" not in str(node.target)
                for found in iterate_parts(part):
                    if isinstance(found, Node):
                        written.setdefault(found, is_tensor)
        if node.op == "call_module" and (effect.unknown or "state" in effect.writes):
            owners.append(f"{node.target}.")
    return written, tuple(owners)
