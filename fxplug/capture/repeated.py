"""Whether a program that leaves something outside of its modules would be the same program at its next call.

What is left is put back. Where something was, the program is traced once more from the state that it had left: if
that gives the same graph, and leaves the same state again, so does every further call, and the state has no say in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.capture.containers import KINDS, PLAIN, copy_of, is_object
from fxplug.capture.writes import is_read
from fxplug.ir import Node, effects
from fxplug.semantics.internals import is_fake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import CodeType

    from torch import nn

    from fxplug.capture.outside import OutsideChange
    from fxplug.ir import Graph

__all__ = ["Recording", "first_carried_over", "same_recordings"]

_DEEPEST = 6
"""Values that are made anew by each call are compared to this depth."""


class Recording:
    """What one trace has recorded.

    Args:
        graph: The graph, with the nodes that only answer questions.
        root: What its paths refer to.
        values: The tensors that nodes had for values, where that is known.
    """

    def __init__(self, graph: Graph, root: nn.Module, values: Mapping[Node, torch.Tensor]) -> None:
        self.graph = graph
        self._values = values
        varying: set[Node] = set()
        for node in graph.nodes:
            if node.op == "get_attr" and node.target in graph.lifted:
                continue
            is_varying = node.op in {"placeholder", "output"} or not effects.effect_of(node, root).is_pure
            if is_varying or not varying.isdisjoint(node.all_input_nodes):
                varying.add(node)
        self.nodes = [node for node in graph.nodes if node in varying]
        """Those that are no constants: what is computed from nothing may be at hand the next time."""
        self.places = {node: place for place, node in enumerate(self.nodes)}

    def constant(self, node: Node) -> Any:
        """Return what a node that is a constant stands for, None where that is not known."""
        if node.op == "get_attr" and node.target in self.graph.lifted:
            return self.graph.lifted[cast("str", node.target)]
        return self._values.get(node)


def same_recordings(first: Recording, second: Recording) -> bool:
    """Return whether two traces have recorded the same program, up to constants that are computed or at hand."""
    if len(first.nodes) != len(second.nodes):
        return False
    return all(
        one.op == other.op
        and (one.op in {"placeholder", "output"} or _same_target(one.target, other.target))
        and one.region == other.region
        and _same_argument(one.args, other.args, first, second)
        and _same_argument(one.kwargs, other.kwargs, first, second)
        for one, other in zip(first.nodes, second.nodes, strict=True)
    )


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
    if (
        mine is not None
        and theirs is not None
        and (mine is theirs or (_has_data(mine) and _has_data(theirs)))
    ):
        return _same_plain(mine, theirs)
    return (
        one.op == other.op
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


def first_carried_over(
    changes: Iterable[OutsideChange],
    codes: Sequence[CodeType],
    was_traced: Callable[[Any], bool],
    is_traced: Callable[[Any], bool],
) -> OutsideChange | None:
    """Return the first change by which the state goes on from call to call, and which the program reads.

    Args:
        changes: What the second trace has changed in what the first one had left.
        codes: Of the functions of the program.
        was_traced: Whether the first trace has recorded a value, and another call may have another one.
        is_traced: The same for the second one.
    """

    def is_same(former: Any, found: Any, depth: int = 0) -> bool:
        if type(former) in PLAIN or type(found) in PLAIN or depth > _DEEPEST:
            return (was_traced(former) and is_traced(found)) or _same_plain(former, found)
        if former is found or (was_traced(former) and is_traced(found) and not _holds_others(former)):
            return True
        if type(former) is not type(found) or not _holds_others(former):
            return _same_plain(former, found)
        mine, theirs = copy_of(former), copy_of(found)
        return len(mine) == len(theirs) and all(
            is_same(one, other, depth + 1) for one, other in zip(mine, theirs, strict=True)
        )

    for change in changes:
        known = change.known
        contents = change.how == "contents"
        if change.how == "iterator" or (
            not is_same(change.former, change.found)
            and is_read(codes, known.name, known.kind, contents=contents)
        ):
            return change
    return None


def _holds_others(value: Any) -> bool:
    return isinstance(value, (*KINDS, tuple)) or is_object(value)
