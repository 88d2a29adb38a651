"""What nodes of constants and of the tensors of modules compute, where a trace computes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.examples.values import node_behind
from fxplug.capture.repeated import with_all_before
from fxplug.capture.settling import changing_nodes
from fxplug.ir import Node, map_arg
from fxplug.semantics.internals import is_fake, is_real_tensor, with_data

if TYPE_CHECKING:
    from torch import nn

    from fxplug.capture.examples.known import KnownTensors
    from fxplug.ir import Graph

__all__ = ["UNKNOWN_VALUE", "evaluated", "with_any_filling"]

UNKNOWN_VALUE: Any = object()
"""A value that hangs on the inputs, or on what is written."""
_GRAD_MODES = (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.set_grad_enabled)
_FILLED: dict[Any, int] = {torch.full: 1, torch.full_like: 1, torch.Tensor.new_full: 2}
"""Functions that fill a tensor with a number -> where among their arguments that stands."""


def with_any_filling(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a call that fills a tensor, with a plain number in the place of the tensor that says it.

    What comes of that has the same traits, whatever the number is. None for any other call.
    """
    place = _FILLED.get(function)
    if place is None:
        return None
    number = args[place] if len(args) > place else kwargs.get("fill_value")
    if not isinstance(number, torch.Tensor):
        return None
    plain = False if number.dtype is torch.bool else 0
    plain = 0.0 if number.dtype.is_floating_point else 0j if number.dtype.is_complex else plain
    if len(args) > place:
        return (*args[:place], plain, *args[place + 1 :]), kwargs
    return args, {**kwargs, "fill_value": plain}


def evaluated(node: Node, graph: Graph, root: nn.Module, known: KnownTensors) -> Any:
    """Return the value of a node that hangs on no input, and on nothing that is written or drawn.

    Args:
        node: The node.
        graph: Where it stands.
        root: What paths refer to.
        known: The tensors of the program: those that were there before have their data.

    Returns:
        The value, with data; `UNKNOWN_VALUE` where it is not known.
    """
    needed = with_all_before({node})
    if not all(map(_can_be_computed, needed)) or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        return UNKNOWN_VALUE
    if not changing_nodes(graph, root).isdisjoint(needed):
        return UNKNOWN_VALUE
    held = {
        node_behind(source): tensor
        for tensor, source in known.living()
        if node_behind(source).op == "get_attr"
        and is_real_tensor(tensor)
        and not (tensor.is_meta or is_fake(tensor))
    }
    values: dict[Node, Any] = {}
    try:
        with with_data(), torch.no_grad():
            for one in graph.nodes:
                if one in needed:
                    values[one] = held[one] if one.op == "get_attr" else _computed(one, values)
    except Exception:  # It has no data after all, or the call fails: torch says so where it is made.
        return UNKNOWN_VALUE
    return values[node]


def _can_be_computed(node: Node) -> bool:
    is_call = node.op in {"call_function", "call_method"}
    modes = [entry.context for entry in node.region]
    return (is_call or node.op == "get_attr") and all(mode in _GRAD_MODES for mode in modes)


def _computed(node: Node, values: dict[Node, Any]) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "call_function":
        return node.target(*args, **kwargs)
    return getattr(args[0], node.target)(*args[1:], **kwargs)
