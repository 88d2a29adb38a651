"""Common subexpressions: calls that compute the same value are made once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from fxplug.execute.aliases import memory_of, returned_nodes
from fxplug.ir import Node, effects
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.sharing import acts_unseen, asks_for_identity, written_memory
from fxplug.rewrite.writes import WrittenMemory

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fxplug.execute import GraphModule
    from fxplug.ir import Effect

__all__ = ["CommonSubexpressions"]

_BY_VALUE = frozenset({int, bool, str, bytes, type(None), type(Ellipsis)})


class CommonSubexpressions(Pass):
    """Makes calls once that are made several times with the same arguments, and reads of the same attribute.

    Merged are calls in one region that do nothing besides computing their value (see `fxplug.ir.effects`), unless

    - what they take or give shares memory with something that is written: then one value can differ from the other;
    - something between them may change what they read: an update of a module's state, or a call of which nothing is
      known;
    - both values leave the program: the caller is given two tensors, not one of them twice;
    - somebody asks whether they are the same object.
    """

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Merge equal calls."""
        merger = _Merger(module, context)
        merged = sum(merger.merge(node) for node in module.graph.nodes)
        return PassResult(
            merged > 0,
            f"merged {merged} call{'s' if merged != 1 else ''}" if merged else "nothing to merge",
            {"merged": merged},
        )


class _Merger:
    """Walks over a graph once, in order."""

    def __init__(self, module: GraphModule, context: PassContext) -> None:
        self._module = module
        self._context = context
        self._graph = module.graph
        noisy = [node for node in self._graph.nodes if self._effect(node).must_be_kept]
        self._written = WrittenMemory(self._graph, module, noisy)
        self._returned = returned_nodes(self._graph, module)
        self._known: dict[Hashable, Node] = {}

    def _effect(self, node: Node) -> Effect:
        return effects.effect_of(node, self._module)

    def merge(self, node: Node) -> bool:
        """Let an earlier node take the place of `node` if one computes the same; return whether one does."""
        if node.op in {"placeholder", "output"}:
            return False
        effect = self._effect(node)
        if effect.must_be_kept:
            if self._may_change_what_is_read(node, effect):
                self._known.clear()
            return False
        key = _key_of(node)
        first = self._known.setdefault(key, node)
        if first is node or not (self._may_merge(first, node) and self._context.allows(node, "merge")):
            return False
        first.origins = tuple(dict.fromkeys((*first.origins, *node.origins)))
        node.replace_all_uses_with(first)
        self._graph.erase_node(node)
        if node in self._returned:
            self._returned.add(first)
        return True

    @staticmethod
    def _may_change_what_is_read(node: Node, effect: Effect) -> bool:
        return acts_unseen(node, effect) or "state" in effect.writes

    def _may_merge(self, first: Node, second: Node) -> bool:
        if first in self._returned and second in self._returned and first.op != "get_attr":
            return False
        if any(asks_for_identity(user) for node in (first, second) for user in node.users):
            return False
        if any(self._written.holds(value, ()) for value in (first, second, *second.all_input_nodes)):
            return False
        if second.op != "call_module":
            return True
        # The program may write weights of the module under paths of their own.
        called = memory_of(self._module.get_submodule(str(second.target)))
        return called.isdisjoint(self._state_that_is_written)

    @cached_property
    def _state_that_is_written(self) -> frozenset[Hashable]:
        return written_memory(self._module)


def _key_of(node: Node) -> Hashable:
    """Return what two nodes have in common that compute the same value, if nothing is written meanwhile."""
    try:
        hash(node.target)
        target: Hashable = node.target
    except TypeError:
        target = id(node.target)
    return node.op, target, _key(node.args), _key(dict(sorted(node.kwargs.items()))), node.region


def _key(value: Any) -> Hashable:
    """Return a key of an argument: ``1``, ``1.0`` and ``True`` have different ones, and so have the two zeros."""
    kind = cast("type[Any]", type(value))
    if kind is Node or kind in _BY_VALUE:
        return kind, value
    if isinstance(value, float):
        return kind, value.hex()
    if isinstance(value, complex):
        return kind, value.real.hex(), value.imag.hex()
    if isinstance(value, (tuple, list)):
        return kind, tuple(map(_key, cast("list[Any]", value)))
    if isinstance(value, dict):
        entries = cast("dict[Any, Any]", value)
        return kind, tuple([(_key(name), _key(element)) for name, element in entries.items()])
    if isinstance(value, slice):
        ends = cast("Any", value)
        return kind, _key(ends.start), _key(ends.stop), _key(ends.step)
    return kind, id(value)
