"""Values that are unpacked into names while nobody knows how many parts they have.

``a, b = x.shape`` asks for the number of parts, and Python raises an error where it is another one. A graph that reads
the parts one by one would go on with the first ones of many, so a check asks as Python does.
"""

# Each node of a network is looked at here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
import sys
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.capture.kinds import kind_of_node, module_at
from fxplug.capture.sources import place_in_program
from fxplug.ir import PURE, Graph, Node, effects
from fxplug.semantics.checks import CHECKS, check_length
from fxplug.semantics.internals import assert_function, has_hooks
from fxplug.semantics.kinds import count_of_results
from fxplug.semantics.modules import effects_of_layers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch.nn import Module

__all__ = ["PureCalls", "check_count", "note_writes", "parts_of_layer"]

_PAIRS = (nn.RNNBase, nn.LSTMCell, nn.MultiheadAttention)
"""Layers that always return two values."""


def check_count(tracer: Any, value: Any, count: int) -> None:
    """Record that a value must have as many parts as it is unpacked into, unless it cannot have more.

    Reading a part that is not there fails by itself, where the program goes on with it.

    Args:
        tracer: The trace.
        value: A proxy.
        count: How many names there are.
    """
    node = value.node
    # A program that is run as it was traced is to tell its own error from that of the captured one, which says more.
    is_alone = tracer.traces_plain_alone
    if not is_alone and _most_parts(node, tracer.root) == count:
        return
    text = "" if is_alone else f"{count} value{'' if count == 1 else 's'} to unpack{place_in_program(3)}"
    tracer.create_proxy("call_function", check_length, (value, count, text), {})
    tracer.has_checks = True


def note_writes(graph: Graph, pure: PureCalls) -> bool:
    """Let the checks of numbers of parts know, when all is recorded, whether something is written before them.

    Returns:
        Whether anything is written at all, as far as that is known.

    Args:
        graph: Of the whole program; a program that has been written to cannot be run instead of it.
        pure: Knows what writes.
    """
    written, layers, quiet = False, pure.layers, pure.quiet
    for node in graph.nodes.listed():
        if node._target is check_length:
            if written and len(node.args) == _WITHOUT_WRITES:
                node.args = (*node.args, False)
        elif not written and node._op != "output":
            # As in `PureCalls.has`, written out: each node of a network is asked about.
            is_module = node._op == "call_module"
            is_quiet = node._target in layers if is_module else id(node._target) in quiet and not node._kwargs
            written = not (is_quiet or pure.has(node))
    return written


class PureCalls:
    """Knows which calls in a graph write to nothing, draw no random numbers and tell nobody.

    Args:
        root: What the paths in the graph refer to.
        modules: Those below the root, with the root.
        paths: Id of each of them -> its path.
        are_plain: Whether it is known that none of them has hooks, or a forward of its own.
    """

    def __init__(
        self,
        root: Module | None,
        modules: Iterable[Module],
        paths: Mapping[int, str],
        *,
        are_plain: bool = False,
    ) -> None:
        if not are_plain:
            modules = [module for module in modules if not (has_hooks(module) or "forward" in vars(module))]
        self.layers: set[str] = set()
        """The paths of layers that do nothing but compute."""
        self.writing: set[str] = set()
        """The paths of layers that write to what they are given, and do nothing else."""
        for layer, effect in effects_of_layers(modules):
            (self.layers if effect is PURE else self.writing).add(paths[id(layer)])
        self.quiet = _quiet_targets()
        """Id of each target that was found to be pure whatever it is given -> the target: networks call the same again
        and again."""
        self._root = root

    def has(self, node: Node) -> bool:
        """Return whether a node is one of them, or a check."""
        op, target, kwargs = node._op, node._target, node._kwargs
        if op == "call_module" and target in self.writing:
            return False
        if target in self.layers if op == "call_module" else not kwargs and id(target) in self.quiet:
            return True
        effect = effects.effect_of(node, self._root)
        if effect is PURE or effect.is_pure:
            if not kwargs and type(target) in _LASTING and effects.is_settled(op, target):
                self._keep(target)
            return True
        return target in CHECKS or target is assert_function

    def _keep(self, target: Any) -> None:
        """Remember that a target is pure, if it is the one object that others will call, too."""
        is_one = type(target) is not str or sys.intern(target) is target
        if is_one and len(self.quiet) < _MOST_TARGETS:
            self.quiet[id(target)] = target


_LASTING = frozenset({BuiltinFunctionType, FunctionType, str})
_MOST_TARGETS = 4096


_quiet: tuple[object, dict[int, Any]] = (None, {})
"""What is known of targets, and those that are quiet then."""


def _quiet_targets() -> dict[int, Any]:
    """Return the targets that were found to be pure since somebody has last said anything of targets, by their ids."""
    global _quiet  # noqa: PLW0603 - both parts are exchanged at once
    known = effects.settled_targets()
    if _quiet[0] is not known:
        _quiet = known, {}
    return _quiet[1]


_WITHOUT_WRITES = 3
"""How many arguments a check has that is not told whether something was written before."""


def parts_of_layer(node: Node, root: Module | None) -> int | None:
    """Return how many parts what a layer of torch returns always has, or a part of it; None for other values.

    Args:
        node: Of a program.
        root: What its paths refer to.
    """
    target: Any = node.target
    if node.op == "call_module":
        return 2 if _gives_pair(module_at(root, str(target))) else None
    if target is operator.getitem and isinstance(whole := node.args[0], Node) and whole.op == "call_module":
        layer = module_at(root, str(whole.target))
        return 2 if node.args[1] == 1 and type(layer) is nn.LSTM and _gives_pair(layer) else None
    return None


def _most_parts(node: Node, root: Module | None) -> int | None:
    """Return how many parts a value can have at most, None where that is open."""
    if (count := parts_of_layer(node, root)) is not None:
        return count
    target: Any = node.target
    if node.op not in {"call_function", "call_method"} or target is getattr:
        return None
    # The kind last: it may hang on all that was recorded before.
    count = count_of_results(target, node.args, node.kwargs)
    if count is not None:
        return count
    kind = kind_of_node(node, root)
    return getattr(None if kind is None else kind.cls, "n_fields", None)


def _gives_pair(module: Any) -> bool:
    is_layer = str(type(module).__module__).startswith("torch.nn.modules.") and "forward" not in vars(module)
    return is_layer and (isinstance(module, _PAIRS) or getattr(module, "return_indices", False) is True)
