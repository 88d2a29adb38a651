"""Calls that make a tensor like another one: of its dtype and device, or of its sizes, whatever values it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.ir import Node, map_arg
from fxplug.semantics.internals import is_fake

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["MAKES_LIKE", "empty_like", "is_like_for", "nodes_besides", "place_of_like", "traits_of"]

_NEW = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
_LIKE = ("empty_like", "full_like", "ones_like", "zeros_like")
_PLACES: dict[str, tuple[int, str]] = {
    **dict.fromkeys(_NEW, (0, "self")),
    **dict.fromkeys(_LIKE, (0, "input")),
    "to": (1, "tensor"),
    "type_as": (1, "other"),
}
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_HOMES = (torch, torch.Tensor)
MAKES_LIKE = frozenset(_PLACES)
"""The names of such functions and methods."""


def place_of_like(name: str, args: Iterable[Any], kwargs: Mapping[str, Any], kind: type) -> int | str | None:
    """Return where among the arguments of a call that stands of which the result takes no values.

    Args:
        name: Of the function or method.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        kind: The class of arguments that stand for tensors: other ones say of themselves what is to be made.

    Returns:
        A place or a name; None where there is nothing such.
    """
    found = _PLACES.get(name)
    if found is None:
        return None
    place, keyword = found
    given = [*args]
    if len(given) > place:
        return place if isinstance(given[place], kind) else None
    return keyword if isinstance(kwargs.get(keyword), kind) else None


def nodes_besides(node: Node) -> tuple[list[Node], Node | None, bool]:
    """Return the nodes by whose values a node computes its own, and the one of which it takes none, if any.

    The flag says whether it takes the sizes of that.
    """
    target: Any = node.target
    name = target if node.op == "call_method" else getattr(target, "__name__", "")
    is_own = node.op == "call_method" or any(getattr(home, name, None) is target for home in _HOMES)
    place = place_of_like(name, node.args, node.kwargs, Node) if is_own else None
    if place is None:
        return node.all_input_nodes, None, False
    args = [value for one, value in enumerate(node.args) if one != place]
    named = [value for one, value in node.kwargs.items() if one != place]
    found: list[Node] = []
    map_arg([*args, *named], found.append)
    like: Any = node.args[place] if isinstance(place, int) else node.kwargs[place]
    return found, like, name in _LIKE


def is_like_for(tensor: torch.Tensor) -> bool:
    """Return whether an empty tensor can take the place of one of which no values are taken."""
    is_plain = type(tensor) in _PLAIN or is_fake(tensor)  # Of another class, what is made may be, too.
    return is_plain and tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def traits_of(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    """Return what a call takes of a tensor: attributes and methods of it, and what they give.

    Args:
        name: Of the function or method.
        tensor: The tensor.
    """
    traits: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
    if name in _LIKE:
        traits |= {"shape": tuple(tensor.size()), "stride": tensor.stride()}
    return traits


def empty_like(traits: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the call that makes a tensor with these traits, and no values: a function and its arguments."""
    options = {name: traits[name] for name in ("dtype", "device")}
    if "shape" in traits:
        return torch.empty_strided, (traits["shape"], traits["stride"]), options
    return torch.empty, ((0,),), options
