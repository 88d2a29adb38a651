"""Whether two values of a graph may be one object, as far as that can be known without values."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from fxplug.capture.kinds import held_value, kind_of_node, module_at
from fxplug.capture.sources import place_in_program
from fxplug.codegen import AUGMENTED
from fxplug.ir import effects
from fxplug.semantics.checks import check_true, is_check
from fxplug.semantics.internals import computes_by_itself, has_forward_hooks

if TYPE_CHECKING:
    from torch import nn

    from fxplug.ir import Node

__all__ = ["are_one_object", "is_identity", "may_be_one_object", "passes_on", "tell_alike", "tell_apart"]

_INPUT = "input"
"""Stands for anything that a caller may hand over: two inputs may be one tensor, and that one a parameter."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PASSING = _words(
    """
    bfloat16 bool byte cdouble cfloat chalf char double float half int long short to type type_as
    alpha_dropout dropout dropout1d dropout2d dropout3d feature_alpha_dropout feature_dropout
    asarray as_tensor cartesian_prod coalesce contiguous cpu cuda dequantize pin_memory to_dense
    atleast_1d atleast_2d atleast_3d broadcast_tensors flatten ravel sum_to_size
    __pos__ __reversed__ adjoint conj conj_physical pos positive real resolve_conj resolve_neg
    lift_fresh _autocast_to_full_precision _autocast_to_reduced_precision
    get getattr pop setdefault values
    """
)
"""Functions and methods that return what they are given where nothing is to be done."""
_LAYERS = "torch.nn.modules."
_DROPOUTS = frozenset(
    {functional.alpha_dropout, functional.dropout, functional.dropout2d, functional.feature_alpha_dropout}
)
"""Those that return inputs of any number of dimensions as they are where nothing is trained."""


def are_one_object(one: Node, other: Node, root: nn.Module | None) -> bool:
    """Return whether two nodes read the same object of the root, under one path or two."""
    if one.op != "get_attr" or other.op != "get_attr":
        return False
    held = held_value(one, root)
    return held is not None and held is held_value(other, root)


def may_be_one_object(one: Node, other: Node, root: nn.Module | None) -> bool:
    """Return whether the values of two nodes may be the same object."""
    return not _sources(one, root).isdisjoint(_sources(other, root))


def tell_apart(tracer: Any, one: Any, other: Any, place: str) -> None:
    """Record that two values must not be the same object, unless they cannot be.

    Args:
        tracer: The trace.
        one: A proxy.
        other: Another one.
        place: Where the program asks, for the message.
    """
    nodes = (one.node, other.node)
    if nodes in tracer.told_apart or not may_be_one_object(*nodes, tracer.root):
        return
    tracer.told_apart.update((nodes, nodes[::-1]))
    differ = tracer.create_proxy("call_function", operator.is_not, (one, other), {})
    nothing_written = all(effects.effect_of(node, tracer.root).is_pure for node in tracer.graph.nodes)
    text = f"{one.node.name} is not {other.node.name}{place}"
    tracer.create_proxy("call_function", check_true, (differ, text, nothing_written), {})


def tell_alike(tracer: Any, one: Any, other: Any) -> None:
    """Record that two weights that the root holds under two paths are one object, as they are while it is traced.

    Args:
        tracer: The trace.
        one: A proxy.
        other: Another one.
    """
    alike = tracer.create_proxy("call_function", operator.is_, (one, other), {})
    text = f"{one.node.target} is {other.node.target}{place_in_program()}"
    tracer.create_proxy("call_function", check_true, (alike, text), {})


def _sources(node: Node, root: nn.Module | None) -> set[Any]:
    """Return the nodes that have made what the value of a node may be; `_INPUT` for what comes from outside."""
    found: set[Any] = set()
    waiting, seen = [node], {node}
    while waiting:
        current = waiting.pop()
        if current.op in {"placeholder", "get_attr"}:
            found.add(_INPUT)
        if current.op == "placeholder" or not passes_on(current, root):
            found.add(current)
            continue
        found.add(current)
        waiting.extend(used for used in current.all_input_nodes if used not in seen)
        seen.update(current.all_input_nodes)
    return found


def passes_on(node: Node, root: nn.Module | None) -> bool:
    """Return whether a call may return one of its arguments, or a part of one."""
    target: Any = node.target
    if node.op == "call_module":
        return _is_passing_layer(module_at(root, str(target)))
    if node.op not in {"call_function", "call_method"}:
        return False
    if target is operator.getitem or target is getattr:
        kind = kind_of_node(node.all_input_nodes[0], root)
        return kind is None or not issubclass(kind.cls, torch.Tensor) or target is getattr
    if is_check(node) or target is operator.is_ or target is operator.is_not:
        return False
    name = target if isinstance(target, str) else str(getattr(target, "__name__", "")).partition(".")[0]
    is_known = hasattr(torch.Tensor, name) if node.op == "call_method" else computes_by_itself(target)
    is_told_to_write = node.kwargs.get("out") is not None or node.kwargs.get("inplace", False) is not False
    writes = name.endswith("_") or target in AUGMENTED or is_told_to_write
    return not is_known or node.has_note("is_wrapped") or writes or name in _PASSING


def is_identity(node: Node, root: nn.Module | None) -> bool:
    """Return whether a call returns what it is given, whatever that is: ``Identity``, or dropout without training."""
    if node.op == "call_function":
        return node.target in _DROPOUTS and node.kwargs.get("training") is False
    if node.op != "call_module":
        return False
    module = module_at(root, str(node.target))
    plain = "forward" not in vars(module) and not has_forward_hooks(module) if module is not None else False
    return plain and type(module) is torch.nn.Identity


def _is_passing_layer(module: Any) -> bool:
    kind = type(module)
    is_sound = str(kind.__module__).startswith(_LAYERS) and not any(module.children())
    if not is_sound or "forward" in vars(module) or has_forward_hooks(module):
        return True
    is_passing = kind.__name__ in {"Identity", "Flatten"} or "Dropout" in kind.__name__
    return is_passing or bool(getattr(module, "inplace", False))
