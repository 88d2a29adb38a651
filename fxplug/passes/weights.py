"""What calls weigh, and cutting a program into pieces of even weight."""

# What is asked of every node reads its slots, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.errors import InvalidArgumentError
from fxplug.passes.dependences import is_call
from fxplug.rewrite.calls import value_at
from fxplug.semantics.internals import flatten_tree, memory_of, storage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["Loads"]

_STEPS = 64
"""Bisections after which two weights that are no whole numbers count as equal."""


class Loads:
    """The calls of a program in order, with what each brings along.

    Args:
        module: Not changed.
        weigh: Returns the weight of a call; by default, weights are bytes of parameters and buffers, and memory that
            several calls of a piece use counts once.
    """

    def __init__(self, module: GraphModule, weigh: Callable[[Node], float] | None = None) -> None:
        self.nodes = [node for node in module.graph.nodes if is_call(node)]
        self._loads: list[dict[Hashable, float]] = []
        known: dict[str, dict[Hashable, float]] = {}
        for node in self.nodes:
            if weigh is not None:
                self._loads.append({node: _checked(weigh(node), node)})
                continue
            found: dict[Hashable, float] = {}
            for used in (node, *node._input_tuple()):
                if used._op == "get_attr" or (used is node and used._op == "call_module"):
                    path = used._target
                    if path not in known:
                        known[path] = _memory(value_at(module, path))
                    found.update(known[path])
            self._loads.append(found)
        self._of = dict(zip(self.nodes, self._loads, strict=True))

    def weight(self, nodes: Sequence[Node]) -> float:
        """Return what calls weigh together."""
        together: dict[Hashable, float] = {}
        for node in nodes:
            together.update(self._of[node])
        return sum(together.values())

    def cut_at(self, limit: float, at_least: int = 1) -> list[list[Node]]:
        """Return pieces that weigh `limit` at most, as few as possible; a call that is heavier is alone.

        Args:
            limit: Of the weight.
            at_least: How many pieces there have to be.
        """
        pieces: list[list[Node]] = []
        held: dict[Hashable, float] = {}
        total = 0.0
        for position, (node, load) in enumerate(zip(self.nodes, self._loads, strict=True)):
            more = sum(weight for key, weight in load.items() if key not in held)
            is_late = len(self.nodes) - position <= at_least - len(pieces)
            if not pieces or is_late or total + more > limit:
                pieces.append([])
                held, total = {}, 0.0
                more = sum(load.values())
            pieces[-1].append(node)
            held.update(load)
            total += more
        return pieces

    def cut_into(self, parts: int) -> list[list[Node]]:
        """Return so many pieces that the heaviest of them is as light as it can be."""
        low = max((sum(load.values()) for load in self._loads), default=0.0)
        high = max(self.weight(self.nodes), low)
        is_whole = all(float(weight).is_integer() for load in self._loads for weight in load.values())
        for _ in range(_STEPS):
            if low >= high:
                break
            middle = (low + high) // 2 if is_whole else (low + high) / 2
            if len(self.cut_at(middle)) <= parts:
                high = middle
            else:
                low = middle + 1 if is_whole else middle
        return self.cut_at(high, parts)


def _checked(weight: Any, node: Node) -> float:
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 <= weight < math.inf:
        raise InvalidArgumentError(
            f"Cannot split the module by size: node {node.name!r} would weigh {weight!r}. Let weigh return a number "
            "that is not negative."
        )
    return weight


def _memory(value: Any) -> dict[Hashable, float]:
    """Return the pieces of memory of an attribute with their bytes."""
    leaves = (
        [*value.parameters(), *value.buffers()] if isinstance(value, nn.Module) else flatten_tree(value)[0]
    )
    found: dict[Hashable, float] = {}
    for tensor in leaves:
        if not isinstance(tensor, torch.Tensor):
            continue
        plain = memory_of(tensor)
        if not plain:  # On the meta device, for one: there is nothing yet to tell memories apart by.
            found["tensor", id(tensor)] = _size(tensor)
        for part in plain:
            found["storage", storage_of(part)] = part.untyped_storage().nbytes()
    return found


def _size(tensor: torch.Tensor) -> int:
    try:
        return tensor.numel() * tensor.element_size()
    except ValueError:  # It has no size yet.
        return 0
