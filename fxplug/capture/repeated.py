"""Whether a program that leaves something behind would be the same program at its next call.

What is left is put back. Where something was, the program is traced once more from the state that it had left (see
`fxplug.capture.settling`): if that gives the same graph, and leaves the same state again, so does every further call,
and the state has no say in it.
"""

from __future__ import annotations

import weakref
from array import array
from collections import Counter
from collections.abc import Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch.distributions import Distribution, Transform

from fxplug.capture.containers import PLAIN, copy_of, is_array, is_container, is_object, is_same_array
from fxplug.capture.proxy import Proxy
from fxplug.capture.state import is_update
from fxplug.ir import Node, effects
from fxplug.semantics.checks import CHECKS
from fxplug.semantics.internals import is_fake

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from torch import nn

    from fxplug.ir import Graph

__all__ = [
    "Recording",
    "StateComparison",
    "checked_by_both",
    "same_recordings",
    "values_in",
    "with_all_before",
]

_DEEPEST = 6
"""Values that are made anew by each call are compared to this depth."""
_TRAITS = frozenset(
    {"is_complex", "is_floating_point", "ndimension", "nelement"}
    | {"device", "dim", "dtype", "layout", "ndim", "numel", "shape", "size"}
)
"""What is asked of tensors, and answered without a look at their values."""
_MOST_COMPARED = 100
"""Constants with more elements are told apart by their identity alone, where checks are found again."""
_MOST = 20_000
"""So many values are looked at, at most."""


class Left(Protocol):
    """What an earlier trace has left."""

    shared: list[Node]
    """The nodes that stand for what it has computed."""
    own: list[Node]
    """The same for what has no part in its result."""
    constants: set[int]
    """The ids of the tensors that every call would compute again."""


class Tracing(Protocol):
    """One of the two tracers."""

    def holds_traced_values(self, value: Any) -> bool:
        """Return whether a value is, or holds, one that another call may find to be another one."""
        ...

    def node_of(self, value: Any) -> Node | None:
        """Return the node that a tensor is the value of, None where that is not known."""
        ...


class Recording:
    """What one trace has recorded.

    Args:
        graph: The graph, with the nodes that only answer questions.
        root: What its paths refer to.
        values: The tensors that nodes had for values, where that is known.
        asked: The nodes that answer what the inputs are asked.
        left: What an earlier trace has left; None for the first one.
    """

    def __init__(
        self,
        graph: Graph,
        root: nn.Module,
        values: Mapping[Node, torch.Tensor],
        asked: Sequence[Node] = (),
        left: Left | None = None,
    ) -> None:
        self.graph = graph
        self._values = values
        self._fixed: Container[int] = () if left is None else left.constants
        self._held: dict[Node, Any] = {}
        self._state: set[Node] = set()
        own = set[Node]() if left is None else set(left.own)
        varying = set[Node]() if left is None else {*left.own, *left.shared}
        given = frozenset(varying)
        self.asked = asked
        """The nodes that answer what the inputs are asked."""
        self.checks: list[Node] = []
        """Those that check what other values are."""
        self._traits = set[Node]()
        """What hangs on the traits alone of tensors that every call computes again, and on constants."""
        self._kept = kept = set[Node]()
        for node in graph.nodes:
            if node.op == "get_attr":
                self._note_attribute(node, root)
                continue
            if self._is_trait(node):
                self._traits.add(node)
            if not self._state.isdisjoint(node.all_input_nodes):
                self._state.add(node)
            is_kept = node.op != "placeholder" and _is_kept(node, root, own)
            if node.op == "placeholder" or is_kept or not varying.isdisjoint(node.all_input_nodes):
                varying.add(node)
            if is_kept and node.target in CHECKS:
                inputs = node.all_input_nodes
                if not inputs or not self._traits.issuperset(inputs):
                    self.checks.append(node)
            elif is_kept or (node.op == "placeholder" and node not in given):
                kept.add(node)
        self._varying = varying
        self.select([*asked, *self.checks])

    def select(self, asked: Iterable[Node]) -> None:
        """Let the nodes be those that have a say in what is computed, and in what the inputs are asked.

        Args:
            asked: Those of the nodes that answer what they are asked which count.
        """
        live = with_all_before({*asked, *self._kept})
        self.nodes = [node for node in self.graph.nodes if node in self._varying and node in live]
        """Those that have a say, and are no constants: what is computed from nothing may be at hand the next time."""
        self.places = {node: place for place, node in enumerate(self.nodes)}

    def _note_attribute(self, node: Node, root: nn.Module) -> None:
        """Take note of what a module has now; it may have something else later."""
        if node.target not in self.graph.lifted:
            value = self._held[node] = _found_at(root, cast("str", node.target))
            if id(value) not in self._fixed:
                self._state.add(node)

    def _is_trait(self, node: Node) -> bool:
        """Return whether the value of a node hangs on the traits of tensors that every call computes again."""
        inputs = node.all_input_nodes
        if not inputs or node.op == "call_module":
            return False
        if self._traits.issuperset(inputs):
            return True
        name = node.args[1] if node.target is getattr and len(node.args) == 2 else node.target
        (used, *others) = inputs
        return not others and name in _TRAITS and id(self._held.get(used)) in self._fixed

    def is_varying(self, node: Node) -> bool:
        """Return whether the value of a node may be another one in another call."""
        return node in self._varying

    def constant(self, node: Node) -> Any:
        """Return what a node that is a constant stands for, None where that is not known."""
        if node.op == "get_attr":
            return self._held[node] if node in self._held else self.graph.lifted[cast("str", node.target)]
        return self._values.get(node)

    def is_own(self, node: Node) -> bool:
        """Return whether a constant is the program's own, and does not hang on what the modules have held before."""
        return node not in self._state


def _is_kept(node: Node, root: nn.Module, own: set[Node]) -> bool:
    """Return whether a node does something besides computing its value.

    Args:
        node: No input.
        root: What paths refer to.
        own: The nodes for what has no part in any result; updates of them are added.
    """
    if own and is_update(node) and isinstance(node.args[0], Node) and node.args[0] in own:
        own.add(node)
        return False
    return node.op == "output" or not effects.effect_of(node, root).is_pure


def with_all_before(nodes: Iterable[Node]) -> set[Node]:
    """Return nodes with all that they are computed from."""
    seen = set(nodes)
    pending = list(seen)
    while pending:
        for used in pending.pop().all_input_nodes:
            if used not in seen:
                seen.add(used)
                pending.append(used)
    return seen


def _found_at(root: nn.Module, path: str) -> Any:
    found: Any = root
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def checked_by_both(first: Recording, second: Recording) -> list[Node]:
    """Return those of the checks of a trace that a second one has made, too, and as often."""
    numbers: dict[Any, int] = {}
    again = Counter(map(_numbered(second, numbers).__getitem__, second.checks))
    found: list[Node] = []
    own = _numbered(first, numbers)
    for node in first.checks:
        if again[own[node]] > 0:
            again[own[node]] -= 1
            found.append(node)
    return found


def _numbered(recording: Recording, numbers: dict[Any, int]) -> dict[Node, int]:
    """Return a number for each node of a trace: that of all nodes that are computed alike.

    Args:
        recording: What the trace has recorded.
        numbers: What nodes compute -> its number; those of another trace are found, and new ones added.
    """
    found: dict[Node, int] = {}
    for node in recording.graph.nodes:
        constant = None if recording.is_varying(node) else recording.constant(node)
        held = ("held", id(constant))  # What one trace has computed, the other one may have found.
        if constant is not None and (held in numbers or node.op == "get_attr"):
            form: Any = held if held in numbers else _form_of_constant(constant)
            numbers.setdefault(held, numbers.setdefault(form, len(numbers)))
        elif node.op in {"placeholder", "get_attr"}:
            form = node.op, node.target
        else:
            target = node.target if isinstance(node.target, str) else _name_of(node.target)
            form = node.op, target, _form_of(_args_of(node), found), _form_of(node.kwargs, found)
        found[node] = numbers.setdefault(form, len(numbers))
    return found


def _form_of_constant(value: Any) -> Any:
    """Return a constant in a form that can be looked up: small tensors with data by what they hold."""
    is_small = isinstance(value, torch.Tensor) and value.numel() <= _MOST_COMPARED and _has_data(value)
    return ("values", value.dtype, repr(value.tolist())) if is_small else ("held", id(value))


def _name_of(target: Any) -> Any:
    """Return what tells a function from others; one that the program makes is made anew."""
    name = getattr(target, "__qualname__", None)
    return id(target) if name is None else (name, type(target))


def _form_of(value: Any, numbers: Mapping[Node, int]) -> Any:
    """Return an argument in a form that can be looked up, with the numbers of nodes in their places."""
    if isinstance(value, Node):
        return Node, numbers[value]
    if isinstance(value, (tuple, list)):
        return type(value), tuple([_form_of(part, numbers) for part in cast("Sequence[Any]", value)])
    if isinstance(value, Mapping):
        parts = cast("Mapping[Any, Any]", value)
        return dict, tuple([(key, _form_of(part, numbers)) for key, part in parts.items()])
    if isinstance(value, slice):
        return slice, _form_of((value.start, value.stop, value.step), numbers)
    return type(value), repr(value)


def same_recordings(first: Recording, second: Recording) -> bool:
    """Return whether two traces have recorded the same program, up to constants that are computed or at hand."""
    if len(first.nodes) != len(second.nodes):
        return False
    return all(
        one.op == other.op
        and (one.op in {"placeholder", "output"} or _same_target(one.target, other.target))
        and one.region == other.region
        and _same_argument(_args_of(one), _args_of(other), first, second)
        and _same_argument(one.kwargs, other.kwargs, first, second)
        for one, other in zip(first.nodes, second.nodes, strict=True)
    )


def _args_of(node: Node) -> tuple[Any, ...]:
    """Return the arguments of a node; of a check without its text, which calls nodes by their names."""
    if node.target in CHECKS:
        return tuple([value for value in node.args if not isinstance(value, str)])
    return node.args


def _same_target(one: Any, other: Any) -> bool:
    if one is other or isinstance(one, str) or isinstance(other, str):
        return one is other or one == other
    # A function that the program makes is made anew.
    name = getattr(one, "__qualname__", None)
    return name is not None and name == getattr(other, "__qualname__", None) and type(one) is type(other)


def _same_argument(one: Any, other: Any, first: Recording, second: Recording) -> bool:
    if isinstance(one, Node):
        return isinstance(other, Node) and _same_node(one, other, first, second)
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        theirs = cast("Sequence[Any]", other)
        return len(one) == len(theirs) and all(
            _same_argument(mine, its, first, second) for mine, its in zip(one, theirs, strict=True)
        )
    if isinstance(one, Mapping):
        given = cast("Mapping[Any, Any]", other)
        return list(one) == list(given) and all(
            _same_argument(value, given[key], first, second) for key, value in one.items()
        )
    if isinstance(one, slice):
        return _same_argument(
            (one.start, one.stop, one.step), (other.start, other.stop, other.step), first, second
        )
    return _same_plain(one, other) or _same_target(one, other)


def _same_node(one: Node, other: Node, first: Recording, second: Recording) -> bool:
    place = first.places.get(one)
    if place is not None or other in second.places:
        return place == second.places.get(other)
    mine, theirs = first.constant(one), second.constant(other)
    if mine is not None and mine is theirs:
        return True
    if mine is not None and theirs is not None and _has_data(mine) and _has_data(theirs):
        # Two parameters may have the same values, and others later.
        is_own = first.is_own(one) and second.is_own(other)
        is_same_place = one.op == other.op == "get_attr" and one.target == other.target
        if is_own or is_same_place:
            return _same_plain(mine, theirs)
    return (
        one.op == other.op != "get_attr"
        and _same_target(one.target, other.target)
        and _same_argument(one.args, other.args, first, second)
        and _same_argument(one.kwargs, other.kwargs, first, second)
    )


def _has_data(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or not (value.is_meta or is_fake(value))


def _same_plain(one: Any, other: Any) -> bool:
    """Return whether two values that hold no others are the same."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensor(one, other)
    try:
        return bool(one == other) or repr(one) == repr(other) == "nan"
    except Exception:  # The program's own way of comparing may raise anything.
        return False


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or one.device != other.device:
        return False
    try:
        return torch.equal(one, other)
    except (NotImplementedError, RuntimeError):  # It has no data, or is of a layout that is not compared.
        return False


# -- state


class StateComparison:
    """Compares what two traces have left behind.

    Args:
        first: The first tracer.
        second: The second one.
        recordings: What each of them has recorded.
    """

    def __init__(self, first: Tracing, second: Tracing, recordings: tuple[Recording, Recording]) -> None:
        self._first, self._second = first, second
        self._recordings = recordings
        self._under_way: set[tuple[int, int]] = set()
        """The ids of what is being compared: objects may hold what holds them."""

    def is_same(self, former: Any, found: Any, depth: int = 0) -> bool:
        """Return whether a further call would find the same in a place where something else was left again.

        Args:
            former: What the first trace has left there.
            found: What the second one has left there.
            depth: How deep inside a value that stands.
        """
        if former is found:
            return True
        if type(former) is not type(found) or depth > _DEEPEST:
            return False
        if not _holds_others(former) and self._both_traced(former, found):
            return True
        if hasattr(type(former), "stands_for_number") and not isinstance(former, tuple):
            return False
        if isinstance(former, Proxy):  # A constant; comparing proxies would be recorded.
            second = self._recordings[1]
            return _same_node(former.node, found.node, second, second)
        if is_array(former) or isinstance(former, bytearray | array):
            return is_same_array(former, found)
        if isinstance(former, torch.Tensor):
            return _same_plain(former, found) or self._same_by_nodes(former, found)
        if type(former) in PLAIN:
            return _same_plain(former, found)
        return self._same_parts(former, found, depth)

    def _same_parts(self, former: Any, found: Any, depth: int) -> bool:
        """Return whether two values hold the same, and are the same where they hold nothing."""
        mine, theirs = _parts_of(former), _parts_of(found)
        if mine is None or theirs is None:
            return _same_plain(former, found)
        pair = id(former), id(found)
        if pair in self._under_way:
            return True
        self._under_way.add(pair)
        try:
            return len(mine) == len(theirs) and all(
                self.is_same(one, other, depth + 1) for one, other in zip(mine, theirs, strict=True)
            )
        finally:
            self._under_way.discard(pair)

    def _both_traced(self, former: Any, found: Any) -> bool:
        return self._first.holds_traced_values(former) and self._second.holds_traced_values(found)

    def _same_by_nodes(self, former: Any, found: Any) -> bool:
        """Return whether two tensors, which may have no data, are computed alike."""
        one, other = self._first.node_of(former), self._second.node_of(found)
        return one is not None and other is not None and _same_node(one, other, *self._recordings)


def _parts_of(value: Any) -> list[Any] | None:
    """Return what a value holds that is made anew by each call, None for one that holds nothing."""
    if isinstance(value, FunctionType):
        cells = cast("tuple[CellType, ...]", value.__closure__ or ())
        held = [cell.cell_contents for cell in cells if cell != CellType()]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *held]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, (Distribution, Transform)):  # Objects of torch which hold what they are made of.
        return [tuple(vars(value)), *vars(value).values()]
    if type(value) is weakref.ref:  # Two whose objects are gone are told apart by nobody.
        return [value()]
    return list(copy_of(value)) if _holds_others(value) else None


def _holds_others(value: Any) -> bool:
    return is_container(value) or is_object(value)


def values_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yield what values hold, at any depth, and that holds nothing itself."""
    pending, seen = list(values), dict[int, Any]()
    while pending and len(seen) < _MOST:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        parts = None if type(value) in PLAIN else _parts_of(value)
        if parts is None or hasattr(type(value), "stands_for_number"):
            yield value
        pending.extend(parts or ())
