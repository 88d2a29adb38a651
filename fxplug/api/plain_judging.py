"""Whether what was traced of a plain program is all that there is to say of it, and what its checks are to say.

A program that was listened to on examples has guards: what it asks is a constant of the captured program. Of a program
that was traced without them it is known what it asks from the nodes alone.
"""

# Each node of a network is looked at here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
import operator
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol, cast

from fxplug.capture.examples.asking import INSIDE, changes_rank, is_settled_index
from fxplug.capture.examples.guarding import expression, guard_at
from fxplug.capture.plain_functions import function_may_stay, method_may_stay
from fxplug.capture.unpacking import parts_of_layer
from fxplug.ir import Node, effects, immutable_list, writes
from fxplug.semantics.checks import (
    check_equal,
    check_length,
    check_true,
    check_unchanged,
    same_value,
    the_same,
)
from fxplug.semantics.kinds import count_of_results, tells_of_tensor
from fxplug.semantics.libraries import what_does

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from torch import nn

    from fxplug.capture import Tracer
    from fxplug.ir import Graph
    from fxplug.ir.guards import Guard

__all__ = [
    "Answers",
    "checks_of_counts",
    "do_more",
    "first_asked",
    "settle_checks",
    "writes_in_place",
]


def checks_of_counts(nodes: Iterable[Node]) -> list[Node]:
    """Return the checks of how many parts values have that are unpacked."""
    return [node for node in nodes if node._target is check_length]


def first_asked(nodes: Iterable[Node]) -> Guard | None:
    """Return where a program first asks how many dimensions a tensor has, None where it does not."""
    for node in nodes:
        target = node._target
        if (target is getattr or target == "size") and _is_shape(node):
            return _asked_at(node)
    return None


def _is_shape(node: Node) -> bool:
    """Return whether a node reads all sizes of a tensor, which says how many dimensions it has."""
    if node._op == "call_method":
        return node._target == "size" and len(node._args) == 1 and not node._kwargs
    return node._target is getattr and node._args[1] == "shape"


def _asked_at(node: Node) -> Guard:
    return guard_at(next(iter(node.origins), None), "")


# -- checks


def settle_checks(graph: Graph, checks: Iterable[Node], root: nn.Module) -> None:
    """Take away the checks that follow from how many dimensions inputs have, and say of others what they ask.

    What is unpacked and not used is not read.

    Args:
        graph: Of a program.
        checks: Those in it of how many parts values have.
        root: What its paths refer to.
    """
    places: dict[tuple[Any, int], Guard] = {}  # The blocks of a network run the same lines.
    for check in checks:
        value, count = cast("tuple[Node, int]", check._args[:2])
        for part in _parts(check, value, count):
            if not part.users:
                graph.erase_node(part)
        if _follows_from_inputs(value) or _count_of(value, root) == count:
            graph.erase_node(check)
            if _is_shape(value) and not value.users:
                graph.erase_node(value)
            continue
        origin = next(iter(check.origins), None)
        place = (None, 0) if origin is None else (origin.code, origin.offset)
        guard = places.get(place)
        if guard is None:
            guard = places[place] = guard_at(origin, "")
        text = f"len({expression(value, INSIDE)}) == {count} (asked at {guard.line}: {guard.source!r})"
        check.args = (value, count, text)


def _follows_from_inputs(value: Node) -> bool:
    """Return whether a value is all sizes of a tensor that is no weight: how many follows from those of inputs."""
    tensor = value._args[0] if value._args else None
    return _is_shape(value) and isinstance(tensor, Node) and tensor._op != "get_attr"


def _parts(check: Node, value: Node, count: int) -> list[Node]:
    """Return the nodes behind a check that read the parts which are unpacked."""
    parts: list[Node] = []
    node = check._next
    while len(parts) < count and node._target is operator.getitem and node._args == (value, len(parts)):
        parts.append(node)
        node = node._next
    return parts


def _count_of(value: Node, root: nn.Module) -> int | None:
    """Return how many parts a value always has; None where it may be fewer, or another number."""
    if (count := parts_of_layer(value, root)) is not None:
        return count
    name = _name_of(value)
    return None if name in _PARTED else count_of_results(value._target, value._args, value._kwargs)


def _name_of(node: Node) -> str:
    target: Any = node._target
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


_PARTED = frozenset(
    {
        *("chunk", "split", "split_with_sizes", "tensor_split", "unbind", "unsafe_chunk", "unsafe_split"),
        *("unsafe_split_with_sizes", "broadcast_tensors", "meshgrid"),
    }
)
"""Functions and methods that return as many parts as their arguments or the sizes of these say."""


# -- what a program does


class Answers(Protocol):
    """What a program was answered while it was traced."""

    @property
    def constant(self) -> Collection[Node]:
        """Reads of attributes that are constants of what is captured, and are guarded."""
        ...

    @property
    def asked(self) -> Collection[Node]:
        """What was asked, and the numbers in it: these are no constants where they are used for nothing else."""
        ...

    @property
    def has_checks(self) -> bool:
        """Whether any answer is checked in the graph."""
        ...

    def note_writes(self, tracer: Tracer) -> None:
        """Take note of what writes, and refuse some of it."""
        ...


def do_more(
    nodes: Sequence[Node],
    tracer: Tracer,
    checks: Iterable[Node],
    answers: Answers,
    *,
    asks: bool,
) -> bool:
    """Return whether a program does more than what is the same for all inputs of as many dimensions.

    It makes constants, gives a list to an operator, which may be changed, too, or asks what a tensor is like but for
    the sizes of computed ones: that is a constant of the captured program, and makes a guard. Or it takes apart what is
    no tuple of torch's, or may write to something before it does.

    Args:
        nodes: What it does.
        tracer: Has traced it.
        checks: Of how many parts values have, among the nodes.
        answers: What it was answered.
        asks: Whether it hangs on how many dimensions its inputs have.

    Raises:
        MissedProgramError: It reads weights or checks something, and may write in ways that a run does not tell: behind
            a write to an input the program cannot be run instead, if a check fails.
    """
    if tracer.has_made_constants or not _are_settled(checks, tracer.root):
        return True
    seen: set[Any] = {*_SETTLED}
    asked = answers.asked
    for node in nodes:
        op, target = node._op, node._target
        if node in asked and _is_only_asked(node, asked):
            continue
        if op == "call_function" and target in _OPERATORS:
            if not _is_given_plainly(node):
                return True
        elif target is getattr and not (node._args[1] in _COMPUTED or node in answers.constant):
            return True
        elif target not in seen:  # What hangs on the numbers that a call is given is looked at in the end.
            seen.add(target)
            if not _may_stay(op, target) or (asks and changes_rank(node)):
                return True
    if answers.has_checks or _reads_weights(nodes, tracer) or _keeps_any(checks):
        answers.note_writes(tracer)
    return asks and _makes_ranks_of_sizes(nodes)


_SETTLED = (
    check_equal,
    check_length,
    check_true,
    check_unchanged,
    getattr,
    same_value,
    the_same,
    OrderedDict,
)
"""What a graph may call besides what is looked at: where a function changes a list that it is given, the run fails."""


def _is_only_asked(node: Node, asked: Collection[Node]) -> bool:
    """Return whether what was asked is used for nothing else."""
    return all(user in asked or user._target is check_true for user in node.users)


def _reads_weights(nodes: Sequence[Node], tracer: Tracer) -> bool:
    """Return whether a program reads weights itself, and not only its layers do."""
    return [node._op for node in nodes].count("get_attr") != len(tracer.weight_nodes)


def _are_settled(checks: Iterable[Node], root: nn.Module) -> bool:
    """Return whether checks of how many parts values have are all what listening would have recorded."""
    return all(_may_be_settled(cast("Node", check._args[0]), root) for check in checks)


def _keeps_any(checks: Iterable[Node]) -> bool:
    """Return whether any check of how many parts values have does not follow from those of inputs."""
    return any(not _follows_from_inputs(cast("Node", check._args[0])) for check in checks)


def _may_stay(op: str, target: Any) -> bool:
    """Return whether a call computes, and does not tell what a tensor is like: that is a constant on examples."""
    if op == "call_method":
        return method_may_stay(target) and (target in _READ_ANEW or not tells_of_tensor(target))
    if op != "call_function":
        return True
    return what_does(target) is not None or (function_may_stay(target) and target.__module__ != "builtins")


def _is_given_plainly(node: Node) -> bool:
    """Return whether there are no lists and no arrays among what an operator is given."""
    args = node._args
    if node._target is operator.getitem:
        return _is_index(args[1])
    return _OPERANDS.issuperset(map(type, args))


def writes_in_place(node: Node, root: nn.Module) -> bool:
    """Return whether a node writes to its first argument, of which it changes nothing but the elements.

    Args:
        node: Of a program.
        root: What its paths refer to.
    """
    target: Any = node._target
    name = target if isinstance(target, str) else str(getattr(target, "__name__", "_"))
    is_known = node._op == "call_module" or target in _IN_PLACE or not name.endswith("_") or name in _WRITING
    first = node._args[0] if node._args else None
    return is_known and isinstance(first, Node) and effects.effect_of(node, root) == writes(0)


_IN_PLACE = frozenset({operator.iadd, operator.imul, operator.isub, operator.itruediv})
_WRITING = frozenset(
    {
        *("add_", "celu_", "clamp_", "div_", "elu_", "hardtanh_", "leaky_relu_", "mul_", "relu_", "selu_"),
        *("sigmoid_", "sub_", "tanh_", "threshold_"),
    }
)
"""Functions and methods that write, and change nothing but elements."""


_READ_ANEW = frozenset({"dim", "ndim", "ndimension", "shape"})
"""Attributes and methods that are read anew in each run; others are constants of what is captured with examples."""
_COMPUTED = _READ_ANEW | {"T", "mT"}
"""Attributes that are sizes, or tensors."""


def _may_be_settled(value: Node, root: nn.Module) -> bool:
    """Return whether a check of how many parts a value has is what listening would have recorded.

    The value is what a function, method or layer of torch returns that returns several, or all sizes of a tensor.
    """
    if _is_shape(value) or parts_of_layer(value, root) is not None:
        return True
    is_call = value._op in {"call_function", "call_method"}
    if not is_call or value._target is operator.getitem:
        return False
    return (
        _name_of(value) in _PARTED or count_of_results(value._target, value._args, value._kwargs) is not None
    )


_OPERATORS = frozenset(value for value in vars(operator).values() if callable(value))
_OPERANDS = frozenset({Node, bool, complex, float, int})
_INDICES = frozenset({Node, int, type(None), type(Ellipsis)})


def _is_index(value: Any) -> bool:
    """Return whether a value is an index in which there are no lists but of integers, no masks and no arrays."""
    if type(value) in _INDICES:
        return True
    if type(value) is slice:
        value = value.start, value.stop, value.step
    if type(value) is immutable_list:
        return all(type(one) is int for one in value)
    return type(value) is tuple and all(map(_is_index, cast("tuple[Any, ...]", value)))


# -- how many dimensions results have


def _makes_ranks_of_sizes(nodes: Iterable[Node]) -> bool:
    """Return whether how many dimensions a result has may hang on sizes, and not only on those of inputs.

    Sizes are followed from where they are read: they may be computed with, be indices, and be given to functions to
    which they are sizes, too.
    """
    known: dict[Node, str] = {}
    used: set[Node] = set()
    for node in nodes:
        target = node._target
        if target is getattr and node._args[1] in _OF_ELEMENTS:
            continue
        if target is getattr or (target == "size" and node._op == "call_method"):
            kind = _SIZES if _is_shape(node) else _NUMBER
        elif target is operator.getitem and type(node._args[1]) is int:
            kind = _NUMBER if known.get(cast("Node", node._args[0])) == _SIZES else _OTHER
        elif node not in used and target is not operator.getitem:
            continue
        elif node._op == "call_function" and (target in _OPERATORS or target in _OF_NUMBERS):
            kind = _kind_of_result(node, known)
        elif node._op == "output" or target in _CHECKS or _name_of(node) in _SIZED:
            continue
        else:
            return True
        if not kind:
            return True
        if kind != _OTHER:
            known[node] = kind
            used.update(node.users)
    return False


def _kind_of_result(node: Node, known: dict[Node, str]) -> str:
    """Return what an operator gives: a number, sizes or something else; nothing where that cannot be said."""
    args: tuple[Any, ...] = node._args
    if node._target is not operator.getitem:
        given = [known.get(one) for one in node.all_input_nodes]
        if node._target in _EQUALITY and all(kind is not None for kind in given):
            return _NUMBER
        return "" if _SIZES in given else _NUMBER if all(kind == _NUMBER for kind in given) else _OTHER
    whole, key = args
    indices = list(_nodes_in(key))
    # An index that is no number may be a mask, as its class has it: it is another number of dimensions then.
    if not all(known.get(one) == _NUMBER or (one not in known and is_settled_index(one)) for one in indices):
        return ""
    if known.get(whole) != _SIZES:
        return _OTHER
    if isinstance(key, Node):
        return _NUMBER
    return "" if indices else _SIZES


def _nodes_in(key: Any) -> Iterator[Node]:
    """Yield the nodes in an index."""
    if isinstance(key, Node):
        yield key
    elif isinstance(key, slice):
        yield from _nodes_in((key.start, key.stop, key.step))
    elif isinstance(key, tuple):
        for part in cast("tuple[Any, ...]", key):
            yield from _nodes_in(part)


_EQUALITY = frozenset({operator.eq, operator.ne})
_CHECKS = frozenset({check_equal, check_length, check_true, same_value})
_OF_ELEMENTS = frozenset({"device", "dtype"})
_NUMBER, _SIZES, _OTHER = "number", "sizes", "other"
_OF_NUMBERS = frozenset(value for value in vars(math).values() if callable(value))
_NAMES = (
    "adaptive_avg_pool2d add arange chunk clamp div empty expand eye full group_norm interpolate layer_norm linspace "
    "masked_fill mul narrow new_empty new_full new_ones new_zeros ones pow rand randn repeat repeat_interleave reshape "
    "rms_norm roll scaled_dot_product_attention split sub tile tril triu view zeros pad fold unfold avg_pool1d "
    "avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d"
)
_SIZED = frozenset(_NAMES.split())
"""Functions and methods to which numbers are sizes, places or values, and do not say how many dimensions there are."""
