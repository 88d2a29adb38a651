"""Functionalisation: calls that work in place make a new value instead, where nobody can tell the difference."""

from __future__ import annotations

import copy
import inspect
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from fxplug.analyze import TensorMetadata
from fxplug.execute import set_path
from fxplug.execute.aliases import may_return_argument
from fxplug.ir import Node, effects, map_aggregate, writes
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.sharing import free_path, is_customised
from fxplug.rewrite.calls import value_at
from fxplug.semantics.internals import modules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fxplug.execute import GraphModule

__all__ = ["Functionalize"]

_OPERATORS: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.iand: operator.and_,
    operator.ifloordiv: operator.floordiv,
    operator.ilshift: operator.lshift,
    operator.imod: operator.mod,
    operator.imul: operator.mul,
    operator.ior: operator.or_,
    operator.ipow: operator.pow,
    operator.irshift: operator.rshift,
    operator.isub: operator.sub,
    operator.itruediv: operator.truediv,
    operator.ixor: operator.xor,
}
_NAMES = frozenset(
    [
        "abs",
        "add",
        "addcdiv",
        "addcmul",
        "atan",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "bitwise_xor",
        "ceil",
        "celu",
        "clamp",
        "clamp_max",
        "clamp_min",
        "cos",
        "div",
        "elu",
        "erf",
        "exp",
        "expm1",
        "floor",
        "floor_divide",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "index_add",
        "index_fill",
        "leaky_relu",
        "log",
        "log1p",
        "logical_and",
        "logical_not",
        "logical_or",
        "masked_fill",
        "mish",
        "mul",
        "neg",
        "pow",
        "reciprocal",
        "relu",
        "relu6",
        "remainder",
        "round",
        "rsqrt",
        "scatter",
        "scatter_add",
        "selu",
        "sigmoid",
        "sign",
        "silu",
        "sin",
        "sqrt",
        "sub",
        "tan",
        "tanh",
        "threshold",
        "tril",
        "triu",
        "true_divide",
        "trunc",
    ]
)
"""Operators whose form in place computes the same value and keeps it where it was; a closed list."""


_FIRST = writes(0).writes


class _Call(NamedTuple):
    """A call that makes a new value."""

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    function: Callable[..., Any]
    """Does the same with tensors."""


class Functionalize(Pass):
    """Replaces calls that work in place by those that make a new value: ``x += y``, ``x.add_(y)``, ``relu(x, True)``.

    A call stays as it is where what it writes may be seen by another way: where it is an input, parameter or buffer, or
    shares memory with one, or with a value that is used later. It also stays where the new value would have another
    dtype, shape or layout (in place, these do not change), or where they are not known: shapes come from the example
    inputs. ``out=``, item assignment and other calls that write stay, too.
    """

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Functionalise what can be."""
        changed = 0
        left: dict[Node, str] = {}
        known = _known_shapes(module, context)
        for node in module.graph.nodes:
            effect = effects.effect_of(node, module)
            if not effect.writes - {"state"} or node.op == "output":
                continue
            call = _out_of_place(module, node) if effect.writes == _FIRST and not effect.unknown else None
            reason = (
                "no form out of place is known"
                if call is None
                else _reason_against(module, node, call, known)
            )
            if call is None or reason:
                left[node] = reason
            elif context.allows(node, "functionalize"):
                _rewrite(module, node, call)
                changed += 1
        text = f"rewrote {changed} call{'s' if changed != 1 else ''}" if changed else "nothing to rewrite"
        if left:
            first, reason = next(iter(left.items()))
            text += f"; {len(left)} left in place ({first.name!r}: {reason})"
        reasons = {node.name: reason for node, reason in left.items()}
        return PassResult(changed > 0, text, {"rewritten": changed, "left": reasons})


# -- the other form ------------------------------------------------------------------------------------------------


def _out_of_place(module: GraphModule, node: Node) -> _Call | None:
    target = node.target
    if node.op == "call_module":
        return _of_module(module, node)
    if node.op == "call_method":
        name = str(target).removesuffix("_")
        method = getattr(torch.Tensor, name, None)
        if name not in _NAMES or method is None:
            return None
        return _Call("call_method", name, node.args, node.kwargs, method)
    try:
        plain = _OPERATORS.get(target) or _function_without_underscore(target)
    except TypeError:  # An unhashable callable.
        return None
    if plain is not None:
        return (
            None
            if node.kwargs.get("out") is not None
            else _Call(node.op, plain, node.args, node.kwargs, plain)
        )
    return _with_flag_off(node)


def _function_without_underscore(target: Any) -> Any:
    name = getattr(target, "__name__", "")
    if not name.endswith("_") or name.removesuffix("_") not in _NAMES:
        return None
    for library in (torch, functional):
        if getattr(library, name, None) is target:
            return getattr(library, name.removesuffix("_"), None)
    return None


def _with_flag_off(node: Node) -> _Call | None:
    name = getattr(node.target, "__name__", "")
    if name not in _NAMES or getattr(functional, name, None) is not node.target:
        return None
    try:
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):
        return None
    if bound.arguments.get("inplace") is not True:
        return None
    bound.arguments["inplace"] = False
    return _Call(node.op, node.target, bound.args, bound.kwargs, node.target)


def _of_module(module: GraphModule, node: Node) -> _Call | None:
    called = value_at(module, str(node.target))
    kind = type(called)
    if not isinstance(called, nn.Module) or is_customised(called) or modules_of(called):
        return None
    is_known = kind.__module__ == "torch.nn.modules.activation" and kind is not nn.RReLU
    if not is_known or vars(called).get("inplace") is not True:
        return None
    other = copy.copy(called)
    vars(other)["inplace"] = False
    return _Call("call_module", node.target, node.args, node.kwargs, other)


# -- whether anybody can tell --------------------------------------------------------------------------------------


def _known_shapes(module: GraphModule, context: PassContext) -> dict[Node, Any]:
    if context.module is not module or context.example_inputs is None:
        return {}
    shapes = context.analysis("shapes")
    return {node: shapes[node] for node in module.graph.nodes}


def _reason_against(module: GraphModule, node: Node, call: _Call, known: Mapping[Node, Any]) -> str:
    """Return why a call has to stay, empty when it need not."""
    written = node.args[0] if node.args else None
    if not isinstance(written, Node):
        return "what it writes is not given first"
    if written.region != node.region or any(entry.context is torch.autocast for entry in node.region):
        return "it stands in another region than what it writes, or in one of autocast"
    reason = _seen_elsewhere(module, node, written)
    return reason or _changes_kind(node, written, call, known)


def _seen_elsewhere(module: GraphModule, node: Node, written: Node) -> str:
    """Return by which other way the write may be seen, empty when by none."""
    found = {written}
    waiting = [written]
    while waiting:
        value = waiting.pop()
        if value.op == "placeholder":
            return f"it writes the input {value.name!r}, or may do so"
        if value.op == "get_attr":
            return f"it writes {value.target!r}, which the module holds, or may do so"
        others = value.all_input_nodes if may_return_argument(value, module) else []
        for user in value.users:
            if user is node:
                continue
            if user > node and value is not written:
                return f"{value.name!r} may share its memory, and is used later"
            if user.op != "output" and user < node:
                if effects.effect_of(user, module).unknown:
                    return f"{user.name!r} has been given it, and may hold it"
                if may_return_argument(user, module):
                    others = [*others, user]
        waiting += [other for other in others if other not in found]
        found.update(others)
    return ""


def _changes_kind(node: Node, written: Node, call: _Call, known: Mapping[Node, Any]) -> str:
    """Return what about the new value would be other than in place, or that it is not known."""
    if not isinstance(known.get(written), TensorMetadata):
        return "its dtype and shape are not known (give example inputs)"
    shadows = {used: _shadow(known.get(used)) for used in node.all_input_nodes}
    if any(shadow is None for shadow in shadows.values()):
        return "not all of its arguments are tensors"

    def shadow_of(leaf: Any) -> Any:
        return shadows[leaf] if isinstance(leaf, Node) else leaf

    args: Any = map_aggregate(call.args, shadow_of, frozen=False)
    kwargs: Any = map_aggregate(dict(call.kwargs), shadow_of, frozen=False)
    try:
        value = call.function(*args, **kwargs)
    except Exception as error:  # Whatever torch says to arguments that do not fit.
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    before = shadows[written]
    assert before is not None
    for what in ("dtype", "shape"):
        if getattr(value, what) != getattr(before, what):
            return f"its {what} would be {getattr(value, what)} instead of {getattr(before, what)}"
    return "" if value.stride() == before.stride() else "its layout in memory would be another"


def _shadow(metadata: Any) -> torch.Tensor | None:
    """Return a tensor without memory that is like one of which that is known."""
    if not isinstance(metadata, TensorMetadata) or metadata.is_quantized:
        return None
    return torch.empty_strided(metadata.shape, metadata.stride, dtype=metadata.dtype, device="meta")


# -- rewriting -----------------------------------------------------------------------------------------------------


def _rewrite(module: GraphModule, node: Node, call: _Call) -> None:
    written: Any = node.args[0]
    later = [user for user in written.users if user > node]
    target = call.target
    if node.op == "call_module":
        path = str(target)
        if len(module.graph.find_nodes(op="call_module", target=path, sort=False)) > 1:
            path = free_path(module, f"{path}_out_of_place")
        set_path(module, path, call.function)
        target = path
    notes, annotation = dict(node.meta), node.type
    module.graph.replace_call(node, target, call.args, call.kwargs, op=call.op)
    node.meta.update(notes)
    node.type = annotation
    for user in later:
        user.replace_input_with(written, node)
