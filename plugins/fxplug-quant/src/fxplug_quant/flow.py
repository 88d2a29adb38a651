"""Which values of a graph are steps, and which calls become one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fxplug.ir import Node
from fxplug_quant.activations import POST_OPERATIONS
from fxplug_quant.calls import (
    COMBINING,
    TRANSPOSED,
    WEIGHTED,
    Call,
    only_writes_first,
    writes_in_place,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug import GraphModule

__all__ = ["Flow", "Fused", "Seen"]

_SAME_STEPS = frozenset({"relu", "pool", "shape"})
"""Calls whose output has the steps of their input."""
_MERGES_SUM = frozenset({"linear", "conv2d"})
"""Layers whose operator can add a second input."""


@dataclass(frozen=True)
class Seen:
    """What a value was when the module ran on its example inputs."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Fused:
    """Calls that become one call of an int8 layer."""

    layer: Call
    tail: Node
    """The last of them, whose value is what the layer gives."""
    post: str = "none"
    """Key of `fxplug_quant.activations.POST_OPERATIONS`."""
    add: Node | None = None
    """The addition among them."""
    other: Node | None = None
    """What it adds to the layer's output."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All of them, in order."""
        found = dict.fromkeys((self.layer.node, *((self.add,) if self.add is not None else ()), self.tail))
        return tuple(found)


class Flow:
    """What follows from the modes of calls.

    Args:
        module: The module.
        calls: What each node is.
        modes: What becomes of calls with weights and of additions; those that are missing stay float.
        seen: What values were; steps are possible for float32 alone.
        only_steps: Kinds of layers whose operator gives steps and nothing else.
    """

    def __init__(
        self,
        module: GraphModule,
        calls: Mapping[Node, Call],
        modes: Mapping[Node, str],
        seen: Mapping[Node, Seen],
        only_steps: frozenset[str] = TRANSPOSED,
    ) -> None:
        self._only_steps = only_steps
        self._module, self.calls, self._modes, self._seen = module, calls, modes, seen
        self._gives: set[Node] = set()
        self._wanted: set[Node] = set()
        self.writer = self._find_writer(module)
        """A call that writes in place, so that no value may become steps and nothing moves; None without one."""
        if self.writer is None:
            self._find_steps()
        self.fused = self._fuse()
        """The int8 layers, in order."""
        self.rectified = self._rectify()
        """ReLU -> the addition, product or the like of steps that it is done with."""
        self._tails.update(self.rectified)
        self.inner.update(self.rectified.values())
        self.activated = self._activate()
        """Activation -> the layer with dynamic steps that it is done with."""
        self.inner.update(self.activated.values())
        self.quantized_set = frozenset(self.quantized_values())
        """Float values that are rounded to steps."""

    def is_static(self, node: Node) -> bool:
        """Return whether a call computes with steps, if its inputs allow."""
        return self._modes.get(node) == "static-int8"

    def has_steps(self, node: Node) -> bool:
        """Return whether a value is passed on as uint8 steps."""
        return node in self._gives and node in self._wanted

    def takes_steps(self, node: Node, value: Node) -> bool:
        """Return whether a call computes with the steps of one of its inputs."""
        call = self.calls[node]
        if call.kind == "query":
            return True
        if value not in call.inputs or not self._may_be_steps(value):
            return False
        if call.kind in WEIGHTED:
            return self.is_static(node)
        return node in self._gives and node in self._wanted

    def root(self, value: Node) -> Node:
        """Return the value whose range decides what the steps of a value mean."""
        while self.calls[value].kind in _SAME_STEPS and self.has_steps(value) and value not in self._tails:
            value = self.calls[value].inputs[0]
        return value

    def quantized_values(self) -> list[Node]:
        """Return float values that are rounded to steps because somebody computes with them, in order."""
        found = [
            call.inputs[0]
            for node, call in self.calls.items()
            if call.kind in WEIGHTED and self.is_static(node) and not self.has_steps(call.inputs[0])
        ]
        return list(dict.fromkeys(found))

    def roots(self) -> list[Node]:
        """Return the values that have to be observed, in order."""
        wanted = {
            self.root(value) for value in self.calls if self.has_steps(value) and value not in self.inner
        }
        wanted.update(self.quantized_values())
        return [node for node in self.calls if node in wanted]

    # -- what it is made of ------------------------------------------------------------------------------------

    def _find_writer(self, module: GraphModule) -> Node | None:
        for node, call in self.calls.items():
            if node.op.startswith("call_") and writes_in_place(module, call) and not self._is_harmless(call):
                return node
        return None

    def _is_harmless(self, call: Call) -> bool:
        """Return whether a call writes what nobody else reads: the output of a layer that has no other user."""
        first = call.node.args[0] if call.node.args else None
        written = self.calls.get(first) if isinstance(first, Node) else None
        return (
            written is not None
            and written.kind in {*WEIGHTED, *COMBINING}
            and len(written.node.users) == 1
            and only_writes_first(self._module, call)
        )

    def _may_be_steps(self, value: Node) -> bool:
        seen = self._seen.get(value)
        return seen is not None and seen.dtype is torch.float32

    def _find_steps(self) -> None:
        for node, call in self.calls.items():
            if not self._may_be_steps(node):
                continue
            if call.kind in WEIGHTED:
                gives = self.is_static(node)
            elif call.kind in COMBINING:
                gives = self.is_static(node) and all(value in self._gives for value in call.inputs)
            else:
                gives = call.kind in _SAME_STEPS and call.inputs[0] in self._gives and self._can_pool(call)
            if gives:
                self._gives.add(node)
        for node in reversed(list(self.calls)):
            forced = self.calls[node].kind in self._only_steps and node in self._gives
            if forced or any(self._wants(user, node) for user in node.users):
                self._wanted.add(node)

    def _can_pool(self, call: Call) -> bool:
        return call.kind != "pool" or len(self._seen[call.inputs[0]].shape) == 4

    def _wants(self, user: Node, value: Node) -> bool:
        call = self.calls[user]
        if value not in call.inputs:
            return False
        if call.kind in WEIGHTED:
            return self.is_static(user)
        return call.kind in {*COMBINING, *_SAME_STEPS} and user in self._gives and user in self._wanted

    def _fuse(self) -> list[Fused]:
        sums = self._merged_sums()
        found = [
            self._extended(call, sums.get(node))
            for node, call in self.calls.items()
            if call.kind in WEIGHTED and self.is_static(node)
        ]
        self._tails = {entry.tail for entry in found}
        self.inner = {node for entry in found for node in entry.nodes if node is not entry.tail}
        """Values that are never made, since calls became one."""
        return found

    def _merged_sums(self) -> dict[Node, Node]:
        """Return layer -> the addition that its operator does."""
        found: dict[Node, Node] = {}
        for node, call in self.calls.items():
            if call.kind != "add" or not self.has_steps(node):
                continue
            layers = [value for value in call.inputs if self._can_add(value, node)]
            if layers:
                found[max(layers)] = node
        return found

    def _can_add(self, layer: Node, add: Node) -> bool:
        return (
            self.calls[layer].kind in _MERGES_SUM - self._only_steps
            and self.is_static(layer)
            and len(layer.users) == 1
            and layer.region == add.region
            and len({self._seen[value].shape for value in (layer, *self.calls[add].inputs)}) == 1
            and (self.calls[layer].kind == "linear" or len(self._seen[layer].shape) == 4)
        )

    def _extended(self, call: Call, add: Node | None) -> Fused:
        tail, other = call.node, None
        if add is not None:
            other = next(value for value in self.calls[add].inputs if value is not tail)
            tail = add
        follower = next(iter(tail.users), None)
        if self.writer is None and follower is not None and len(tail.users) == 1:
            kind = self.calls[follower].kind
            fits = follower.region == tail.region and self._may_be_steps(follower)
            if call.kind in self._only_steps:
                fits = fits and kind == "relu" and self.has_steps(follower)
            if fits and (kind == "relu" or (kind in POST_OPERATIONS and add is None)):
                return Fused(call, follower, kind, add, other)
        return Fused(call, tail, "none", add, other)

    def _rectify(self) -> dict[Node, Node]:
        found: dict[Node, Node] = {}
        for node, call in self.calls.items():
            follower = next(iter(node.users), None)
            is_alone = (
                call.kind in COMBINING and self.has_steps(node) and node not in self._tails | self.inner
            )
            if not is_alone or follower is None or len(node.users) > 1:
                continue
            fits = follower.region == node.region and self.has_steps(follower)
            if fits and self.calls[follower].kind == "relu":
                found[follower] = node
        return found

    def _activate(self) -> dict[Node, Node]:
        found: dict[Node, Node] = {}
        # A layer that is called in several places stays one, with its weights in memory once.
        uses = Counter(id(call.called) for call in self.calls.values() if call.kind == "linear")
        for node, call in self.calls.items():
            follower = next(iter(node.users), None)
            is_dynamic = call.kind == "linear" and self._modes.get(node) == "dynamic-int8"
            is_alone = is_dynamic and uses[id(call.called)] == 1
            if not is_alone or follower is None or len(node.users) > 1 or self.writer is not None:
                continue
            fits = follower.region == node.region and self._may_be_steps(follower)
            if fits and self.calls[follower].kind in POST_OPERATIONS:
                found[follower] = node
        return found
