"""Expressing calls by simpler ones: the graph is run with proxies, and rules take the place of what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture import Proxy, Tracer, Transformer
from fxplug.errors import DecompositionError, FxplugError, PatternError
from fxplug.ir import MadeBy, Node, iterate_leaves
from fxplug.ir.clone import copy_meta
from fxplug.rewrite.edits import notes_of
from fxplug.rewrite.limits import allows_rewrite
from fxplug.semantics.internals import OpOverload, has_hooks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.execute import GraphModule

__all__ = ["DecompositionRecord", "decompose"]

_MOST_ROUNDS = 16


@dataclass(frozen=True)
class DecompositionRecord:
    """States how calls of one target are expressed by simpler calls."""

    target: Hashable
    """A callable, a method name, or a module class (the class itself, not those derived from it). For an operator of
    ``torch.ops``, all its overloads are meant."""
    function: Callable[..., Any]
    """Called with the arguments of the call; what it does with them takes the call's place. For a module class, the
    module stands in front, with traced values for its parameters and buffers; modules with hooks are left as they
    are. It returns NotImplemented to leave a call as it is."""
    summary: str = ""
    """One line for people."""


Rules = dict[Hashable, list[DecompositionRecord]]


def decompose(module: GraphModule, decompositions: Iterable[DecompositionRecord]) -> GraphModule:
    """Return a module in which the calls that rules speak of are expressed by other calls.

    A rule is run with proxies, as a program is traced: what it calls stands in the new graph in the region of the
    replaced node, with its origins and those of its notes that still hold. Calls that a rule makes are looked at too,
    until no rule has anything to say. A rule must return new values where the call that it stands for does: returning
    an argument itself is right only where nobody writes to either.

    Args:
        module: Not changed. Parameters and submodules are shared with the result.
        decompositions: For each target, the first rule that does not return NotImplemented counts.

    Raises:
        DecompositionError: A rule fails, or rules lead back to themselves. The message names the node and the rule.
    """
    rules: Rules = {}
    for record in decompositions:
        rules.setdefault(record.target, []).append(record)
    replaced: list[str] = []
    for _ in range(_MOST_ROUNDS):
        writer = _Decomposer(module, rules)
        module = writer.transform()
        replaced = writer.replaced
        if not replaced:
            return module
    raise DecompositionError(
        f"Cannot decompose the graph: after {_MOST_ROUNDS} rounds there still are calls of "
        f"{', '.join(sorted(set(replaced)))} to be replaced. Their decompositions lead back to them: leave one out."
    )


class ModuleView:
    """What a decomposition sees of a module: parameters and buffers are traced values, the rest is what it is.

    Args:
        module: The module.
        path: Where the root of the graph has it.
        tracer: Records reads and calls.
    """

    def __init__(self, module: nn.Module, path: str, tracer: Tracer) -> None:
        self._module, self._path, self._tracer = module, path, tracer

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        path = f"{self._path}.{name}"
        if isinstance(value, torch.Tensor):
            return self._tracer.create_proxy("get_attr", path, (), {})
        return ModuleView(value, path, self._tracer) if isinstance(value, nn.Module) else value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tracer.create_proxy("call_module", self._path, args, kwargs)


class _Decomposer(Transformer):
    """Writes a graph anew with rules in the place of what they stand for; a rule is not looked into."""

    def __init__(self, module: GraphModule, rules: Rules) -> None:
        super().__init__(module)
        self._rules = rules
        self._made_by: str | None = None
        self.replaced: list[str] = []
        """What was replaced, by the names of the targets."""

    def run_node(self, n: Node) -> Any:
        before = len(self.new_graph.nodes)
        self._made_by = None
        value = super().run_node(n)
        made = dict.fromkeys(self._since(before))
        values = {leaf.node for leaf in iterate_leaves((value,)) if isinstance(leaf, Proxy)}
        for node in made if self._made_by else ():
            entry = MadeBy("decompose", inside=node not in values)
            node.origins = tuple(origin.derived(entry) for origin in n.origins)
        for leaf in iterate_leaves((value,)):
            if isinstance(leaf, Proxy) and leaf.node in made:
                leaf.node.meta = notes_of(n) if self._made_by else copy_meta(n.meta)
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rules = list(self._rules_for(target))
        if isinstance(target, OpOverload):
            rules += self._rules_for(target.overloadpacket)
        value = self._apply(rules, target, args, kwargs)
        return super().call_function(target, args, kwargs) if value is NotImplemented else value

    def call_method(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = self._apply(self._rules_for(target), target, args, kwargs)
        return super().call_method(target, args, kwargs) if value is NotImplemented else value

    def call_module(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = self.fetch_attr(target)
        # Nobody would call the hooks of a module that is no longer called itself.
        rules = () if has_hooks(module) else self._rules_for(type(module))
        view = ModuleView(module, target, self.tracer)
        value = self._apply(rules, type(module), (view, *args), kwargs)
        return super().call_module(target, args, kwargs) if value is NotImplemented else value

    def _rules_for(self, target: Any) -> Iterable[DecompositionRecord]:
        return self._rules.get(target, ()) if isinstance(target, Hashable) else ()

    def _apply(
        self, rules: Iterable[DecompositionRecord], target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        asked: list[DecompositionRecord] = list(rules)
        if asked and self.tracer.current is not None and not allows_rewrite(self.tracer.current, "decompose"):
            return NotImplemented
        for record in asked:
            before = len(self.new_graph.nodes)
            try:
                value = record.function(*args, **kwargs)
            except Exception as error:
                raise self._failure(target, record, error) from error
            if value is None and self.tracer.current is not None and self.tracer.current.users:
                missing = PatternError("it returned nothing, but the value is used. Return the value")
                raise self._failure(target, record, missing)
            if value is not NotImplemented:
                self._made_by = _text(record.function)
                self.replaced.append(_text(target))
                return value
            for node in list(self._since(before)):
                self.new_graph.erase_node(node)
        return NotImplemented

    def _since(self, count: int) -> Iterable[Node]:
        """Return the nodes behind the first `count`, the last one first."""
        nodes = self.new_graph.nodes
        return islice(nodes.reversed(), len(nodes) - count)

    def _failure(self, target: Any, record: DecompositionRecord, error: Exception) -> DecompositionError:
        node = self.tracer.current
        text = error.message if isinstance(error, FxplugError) else f"{type(error).__name__}: {error}"
        return DecompositionError(
            f"Cannot decompose node {node.name if node is not None else '?'!r}, a call of {_text(target)}, by "
            f"{_text(record.function)}: {text}"
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__qualname__", None) or repr(value)
