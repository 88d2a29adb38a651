"""Saying what stands against a match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fxplug.ir import Graph, Node, qualified_name
from fxplug.rewrite.calls import value_at
from fxplug.rewrite.elements import Element
from fxplug.rewrite.values import same_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.rewrite.elements import Const

__all__ = ["reason_against", "shown"]


def reason_against(
    wanted: Any, given: Any, found: Mapping[Node, Any], taken: set[Node], constraints: Mapping[Node, Const]
) -> str:
    """Return what the pattern wants and what the graph has, after one was found not to be the other."""
    if not isinstance(wanted, Node):
        return f"The pattern has {wanted!r} where the graph has {shown(given)}."
    if wanted.op == "placeholder":
        if wanted in found and found[wanted] is not given and not same_value(found[wanted], given):
            return (
                f"The parameter {wanted.name!r} stands for {shown(found[wanted])} in one place and for "
                f"{shown(given)} in another."
            )
        wish = constraints.get(wanted, "an input of the graph")
        return f"The parameter {wanted.name!r} must be {wish!r}, and the graph has {shown(given)}."
    if not isinstance(given, Node):
        return f"The pattern calls {_callee(wanted)} where the graph has {given!r}."
    if (wanted in found and found[wanted] is not given) or (wanted not in found and given in taken):
        return f"The node {given.name!r} would have to stand for two calls of the pattern."
    if wanted in found:
        return f"The node {given.name!r} calls {_callee(given)} with other arguments than the pattern does."
    verb = "calls" if given.op.startswith("call_") else "is"
    return f"The node {given.name!r} {verb} {_callee(given)}; the pattern calls {_callee(wanted)} there."


def shown(value: Any) -> str:
    """Return a value of a graph, for people."""
    return f"the node {value.name!r}" if isinstance(value, Node) else repr(value)


def _callee(node: Node) -> str:
    """Return what a node calls, or is, for people."""
    target = node.target
    if isinstance(target, Element):
        return repr(target)
    if node.op == "call_function":
        return qualified_name(target)
    if node.op == "call_module":
        module = value_at(cast("Graph", node.graph).owning_module, target)
        return f"the module {target!r}{'' if module is None else f' ({type(module).__name__})'}"
    what = {"call_method": "the method", "get_attr": "the attribute", "placeholder": "the input"}.get(node.op)
    return "the output" if what is None else f"{what} {target!r}"
