"""Normalisation: each call is written in one way, whichever of several its author chose."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.kinds import kind_of_node
from fxplug.ir import Node
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.sharing import is_customised
from fxplug.rewrite.calls import value_at
from fxplug.rewrite.values import same_value
from fxplug.semantics.canonical import canonical_name
from fxplug.semantics.internals import schema_of
from fxplug.semantics.kinds import TENSOR, TENSOR_MODULES, Kind
from fxplug.semantics.schemas import tensor_forms
from fxplug.semantics.spelling import Spelling, bound_spelling, is_python_operator, mirrored, usual_spelling

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = ["Normalize"]

_TENSORS = (torch.Tensor, nn.Parameter)
_NUMBERS = (bool, int, float, complex)


class Normalize(Pass):
    """Writes each call in one way: ``x + y``, ``x.add(y)`` and ``torch.add(x, other=y)`` become ``torch.add(x, y)``.

    Operators and methods of tensors become the function of torch, where there is one, else the method; operators in
    place become the method in place. Arguments that are needed come by position, others by keyword, and those are left
    out that repeat a default. Calls of other functions of torch and of modules keep their target.

    An operator or method is only rewritten where it is certain that the values are tensors and numbers: by annotations,
    by what made them, by a call that takes nothing else, or by the example inputs.
    """

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Normalise all calls."""
        kinds = _Kinds(module, context)
        changed = 0
        for node in module.graph.nodes:
            found = _usual(module, node, kinds) if node.op.startswith("call_") else None
            if found is None or _is_as(node, found) or not context.allows(node, "normalize"):
                continue
            _rewrite(module, node, found)
            changed += 1
        text = f"rewrote {changed} call{'s' if changed != 1 else ''}" if changed else "every call is normal"
        return PassResult(changed > 0, text, {"rewritten": changed})


def _is_as(node: Node, found: Spelling) -> bool:
    return (
        node.op == found.op
        and (node.target is found.target or (isinstance(found.target, str) and node.target == found.target))
        and list(node.kwargs) == list(found.kwargs)
        and same_value(tuple(node.args), found.args)
        and same_value(dict(node.kwargs), found.kwargs)
    )


def _rewrite(module: GraphModule, node: Node, found: Spelling) -> None:
    annotation, notes = node.type, dict(node.meta)
    module.graph.replace_call(node, found.target, found.args, found.kwargs, op=found.op)
    # The value is what it was, and so is all that is known of it.
    node.type = annotation
    node.meta.update(notes)


def _usual(module: GraphModule, node: Node, kinds: _Kinds) -> Spelling | None:
    if node.op == "call_module":
        return _usual_of_module(module, node)
    target, args = node.target, node.args
    if is_python_operator(node.op, target):
        if node.kwargs or len(args) > 2:
            return None  # It takes none, and no more.
        sorts = [kinds.sort(value) for value in args]
        if sorts == ["number", "tensor"]:
            turned = mirrored(target, args)
            if turned is None:
                return None
            target, args = turned
        elif sorts[:1] != ["tensor"] or None in sorts:
            return None
    elif node.op == "call_method" and (not args or kinds.sort(args[0]) != "tensor"):
        return None
    found = usual_spelling(node.op, target, args, node.kwargs)
    if found is not None or node.op == "call_method" or not _is_of_torch(target):
        return found
    bound = bound_spelling(target, args, node.kwargs, keep_defaults=False)
    return None if bound is None else Spelling(node.op, target, *bound)


def _is_of_torch(function: Any) -> bool:
    holder = getattr(function, "__module__", None)
    return (
        isinstance(function, types.FunctionType)
        and isinstance(holder, str)
        and holder.partition(".")[0] == "torch"
    )


def _usual_of_module(module: GraphModule, node: Node) -> Spelling | None:
    called = value_at(module, str(node.target))
    if (
        not isinstance(called, nn.Module)
        or is_customised(called)
        or type(called).__call__ is not nn.Module.__call__
    ):
        return None
    forward = type(called).forward
    if not isinstance(forward, types.FunctionType) or hasattr(forward, "__wrapped__"):
        return None
    is_torchs = str(forward.__module__).startswith("torch.nn.modules.")
    bound = bound_spelling(called.forward, node.args, node.kwargs, keep_defaults=not is_torchs)
    return None if bound is None else Spelling("call_module", node.target, *bound)


class _Kinds:
    """What is certain of the classes of values, before the first call is rewritten."""

    def __init__(self, module: GraphModule, context: PassContext) -> None:
        self._module = module
        self._known: dict[Node, Kind | None] = dict.fromkeys(_taken_as_tensors(module), TENSOR)
        inputs = [node for node in module.graph.find_nodes(op="placeholder") if node not in self._known]
        self._known |= {node: TENSOR for node in inputs if _is_tensor_by_notes(node)}
        if context.module is module and context.example_inputs is not None:
            shapes = context.analysis("shapes")
            self._known |= {node: TENSOR for node in inputs if hasattr(shapes[node], "dtype")}
        for node in module.graph.nodes:
            kind_of_node(node, module, self._known)

    def sort(self, value: Any) -> str | None:
        """Return ``"tensor"``, ``"number"``, or None for what is neither or not known."""
        kind = self._known.get(value) if isinstance(value, Node) else Kind(type(value))
        if kind is None:
            return None
        if kind.cls in _TENSORS:
            return "tensor"
        return "number" if kind.cls in _NUMBERS else None


def _is_tensor_by_notes(node: Node) -> bool:
    if not node.meta:
        return False
    return isinstance(node.meta.get("val"), torch.Tensor) or hasattr(node.meta.get("tensor_meta"), "dtype")


def _taken_as_tensors(module: GraphModule) -> set[Node]:
    """Return the inputs of the graph that some call would refuse if they were no tensors."""
    found: set[Node] = set()
    for node in module.graph.nodes:
        given = node.args[0] if node.args else None
        if not isinstance(given, Node) or given.op != "placeholder" or str(given.target).startswith("*"):
            continue
        if node.op == "call_module":
            called = value_at(module, str(node.target))
            takes = type(called) in TENSOR_MODULES and not is_customised(called)
        else:
            takes = node.op == "call_function" and _takes_a_tensor(node.target)
        if takes:
            found.add(given)
    return found


def _takes_a_tensor(function: Any) -> bool:
    """Return whether every form of a function of torch takes a tensor first."""
    if not isinstance(function, types.BuiltinFunctionType) or is_python_operator("call_function", function):
        return False
    name = canonical_name("call_function", function)
    forms = tensor_forms(name) if name is not None else ()
    firsts = [schema_of(form).arguments[:1] for form in forms]
    return bool(firsts) and all(first and str(first[0].type) == "Tensor" for first in firsts)
