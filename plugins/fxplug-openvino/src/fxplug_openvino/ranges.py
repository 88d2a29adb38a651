"""How large whole numbers may be: OpenVINO computes those of 64 bits with 32 on processors."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from fxplug import LoweringContext, Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fxplug import GraphModule

__all__ = ["LIMIT", "input_limit", "is_within"]

LIMIT = 2**31 - 1
"""The largest number that OpenVINO computes with; the smallest is about its negative."""
_LEAST = 1024
"""A program that takes no larger numbers than this is not worth running elsewhere."""

_aten = torch.ops.aten
_SUMS = {
    *(
        _aten.add.Tensor,
        _aten.add.Scalar,
        _aten.sub.Tensor,
        _aten.sub.Scalar,
        _aten.rsub.Scalar,
        _aten.rsub.Tensor,
    ),
    *(_aten.bitwise_or.Tensor, _aten.bitwise_or.Scalar, _aten.bitwise_xor.Tensor, _aten.bitwise_xor.Scalar),
}
_PRODUCTS = {_aten.mul.Tensor, _aten.mul.Scalar}
_TOTALS = {_aten.sum.default, _aten.sum.dim_IntList, _aten.cumsum.default}
_MATRICES = {_aten.mm.default, _aten.bmm.default, _aten.addmm.default, _aten.mv.default, _aten.dot.default}
_UNBOUNDED = {
    *(
        _aten.pow.Tensor_Tensor,
        _aten.pow.Scalar,
        _aten.prod.default,
        _aten.prod.dim_int,
        _aten.cumprod.default,
    ),
    *(_aten.bitwise_left_shift.Tensor, _aten.bitwise_left_shift.Tensor_Scalar),
}


def is_within(tensor: torch.Tensor, limit: int) -> bool:
    """Return whether no number of a tensor is further from zero than `limit`."""
    if not tensor.numel():
        return True
    least, most = torch.aminmax(tensor)
    return -limit <= int(least) and int(most) <= limit


def input_limit(program: GraphModule, inputs: Sequence[Any]) -> int | None:
    """Return how far from zero whole numbers may be that go into a program, so that none in it needs 64 bits.

    None where numbers may need them whatever goes in. Numbers that are made of floating point are not looked at.

    Args:
        program: Of ATen operators.
        inputs: Examples.
    """
    constants = {node: _constant(program, node) for node in program.graph.nodes if node.op == "get_attr"}
    takes_wide = any(map(_is_wide, inputs))
    likes = LoweringContext(program, tuple(inputs)).values
    if not takes_wide and not any(map(_is_wide, likes.values())):
        return LIMIT
    largest = {node: _largest(value) for node, value in constants.items()}
    limit = LIMIT
    while limit >= _LEAST:
        if _fits(program, likes, largest, limit):
            return limit
        limit >>= 1
    return None


def _constant(program: GraphModule, node: Node) -> Any:
    value: Any = program.graph.lifted.get(str(node.target), program)
    if value is program:
        for name in str(node.target).split("."):
            value = getattr(value, name)
    return value


def _largest(value: Any) -> int:
    """Return how far from zero the whole numbers of a constant are."""
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point or not value.numel():
        return 0
    if value.dtype is torch.bool or value.dtype.is_complex:
        return 1
    least, most = torch.aminmax(value)
    return max(-int(least), int(most))


def _fits(program: GraphModule, likes: Mapping[Node, Any], constants: Mapping[Node, int], limit: int) -> bool:
    """Return whether no number gets too large when those that go in are within a limit."""
    found: dict[Node, int] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            found[node] = limit
        elif node.op == "get_attr":
            found[node] = constants[node]
        elif node.op == "call_function":
            found[node] = _bound(node, found, likes) if _is_whole(likes.get(node)) else 1
        if found.get(node, 0) > LIMIT:
            return False
    return True


def _bound(node: Node, found: Mapping[Node, int], likes: Mapping[Node, Any]) -> int:
    """Return how far from zero what a call returns can be."""
    terms = [_term(value, found, likes) for value in _flat([*node.args, *node.kwargs.values()])]
    given = [term for term in terms if term is not None]
    first = [term for term in (_term(value, found, likes) for value in node.args[:2]) if term is not None]
    most = max(given, default=0)
    if node.target in _UNBOUNDED:
        return LIMIT + 1 if most > 1 else 1
    if node.target in _SUMS:
        scale = node.kwargs.get("alpha", 1)
        return sum(first) * (max(1, abs(scale)) if isinstance(scale, int) else 1)
    if node.target in _PRODUCTS:
        return first[0] * first[1] if len(first) == 2 else LIMIT + 1
    if node.target is _aten.pow.Tensor_Scalar:
        power = node.args[1]
        return first[0] ** power if isinstance(power, int) and 0 <= power <= 64 else LIMIT + 1
    size = _sizes(likes.get(node.args[0])) if node.args and isinstance(node.args[0], Node) else 1
    if node.target in _TOTALS:
        return first[0] * max(size, 1) if first else 0
    if node.target in _MATRICES:
        return most * most * max(size, 1) + most
    if node.target is operator.getitem:
        return most
    # What only moves, chooses or counts: numbers that are there, or places.
    return max(most, size, _sizes(likes.get(node)), 1)


def _term(value: Any, found: Mapping[Node, int], likes: Mapping[Node, Any]) -> int | None:
    if isinstance(value, Node):
        like = likes.get(value)
        is_whole = isinstance(like, torch.Tensor) and not like.dtype.is_floating_point
        if isinstance(like, torch.Tensor) and like.dtype is torch.bool:
            return 1
        return found.get(value, 0) if is_whole or not isinstance(like, torch.Tensor) else 0
    # The largest number of all stands for "to the end" of a dimension.
    if type(value) is int:
        return 0 if value == torch.iinfo(torch.int64).max else abs(value)
    return None


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [part for entry in value for part in _flat(entry)]
    return [value]


def _is_whole(value: Any) -> bool:
    """Return whether a value holds whole numbers."""
    return any(
        not isinstance(leaf, torch.Tensor)
        or not (leaf.dtype.is_floating_point or leaf.dtype.is_complex or leaf.dtype is torch.bool)
        for leaf in _flat([value])
    )


def _is_wide(value: Any) -> bool:
    return any(leaf.dtype is torch.int64 for leaf in _flat([value]) if isinstance(leaf, torch.Tensor))


def _sizes(value: Any) -> int:
    """Return how many elements there are, which no place among them exceeds."""
    return max((leaf.numel() for leaf in _flat([value]) if isinstance(leaf, torch.Tensor)), default=0)
