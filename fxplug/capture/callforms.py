"""Calls of torch before they are recorded: which node they would be, and what they would do."""

from __future__ import annotations

import copy
import operator
from functools import lru_cache
from types import MethodWrapperType
from typing import TYPE_CHECKING, Any

import torch
import torch.overrides

from fxplug.ir import UNKNOWN, Effect, Graph, effects, writes
from fxplug.semantics.schemas import named_effect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.ir import Node

__all__ = [
    "attribute_asked",
    "call_effect",
    "call_form",
    "is_of_library",
    "is_query",
    "node_effect",
    "tells_sizes_apart",
    "written_arguments",
]

_is_method = lru_cache(maxsize=4096)(torch.overrides.is_tensor_method_or_property)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_QUERIES = _words(
    "size dim numel nelement stride storage_offset element_size is_contiguous is_floating_point "
    "is_complex is_signed ndimension get_device data_ptr is_shared is_pinned is_inference "
    "untyped_storage storage has_names is_set_to is_same_size is_conj is_neg is_tensor is_storage "
    "get_default_dtype result_type can_cast promote_types type dim_order __len__ __hash__ __repr__ "
    "__format__ __str__ __dir__ is_distributed is_coalesced sparse_dim dense_dim is_vulkan_available "
    "retain_grad register_hook"
)
"""What gives no tensor, and hangs on what a tensor is and not on its values."""
_VALUES = frozenset({"T", "H", "mT", "mH", "real", "imag", "data", "grad"})
"""Attributes of tensors that are tensors."""
_ITEM_CALLS = {
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
    "__delitem__": operator.delitem,
}


def is_query(function: Any) -> bool:
    """Return whether a call only asks what a tensor is like: its answer is a constant if the tensor is."""
    name = getattr(function, "__name__", "")
    if isinstance(function, MethodWrapperType):
        return name == "__get__" and getattr(function.__self__, "__name__", "") not in _VALUES
    return name in _QUERIES


_ATTRIBUTES = {
    **dict.fromkeys(("__len__", "dim", "ndim", "ndimension", "nelement", "numel", "shape", "size"), "shape"),
    **dict.fromkeys(
        ("dtype", "element_size", "is_complex", "is_floating_point", "is_signed", "itemsize", "type"), "dtype"
    ),
    **dict.fromkeys(("device", "get_device", "is_cpu", "is_cuda", "is_meta", "is_mps", "is_xpu"), "device"),
    **dict.fromkeys(("dim_order", "is_contiguous", "stride"), "stride"),
    **dict.fromkeys(("is_sparse", "layout"), "layout"),
    "requires_grad": "requires_grad",
}
"""Question about a tensor -> what the answer hangs on."""


def attribute_asked(function: Any) -> str | None:
    """Return what the answer to a question about a tensor hangs on; None for what it never changes, or hardly."""
    name = getattr(function, "__name__", "")
    if isinstance(function, MethodWrapperType):
        name = getattr(function.__self__, "__name__", "")
    return _ATTRIBUTES.get(name)


def call_form(function: Any, args: tuple[Any, ...]) -> tuple[str, Any, tuple[Any, ...]]:
    """Return opcode, target and positional arguments of the node for a call that torch tells of."""
    if isinstance(function, MethodWrapperType):
        return "call_function", getattr, (args[0], getattr(function.__self__, "__name__", ""))
    if _is_method(function):
        if function.__name__ == "__deepcopy__":
            return "call_function", copy.deepcopy, args[:1]
        if function.__name__ in _ITEM_CALLS:
            return "call_function", _ITEM_CALLS[function.__name__], args
        return "call_method", function.__name__, args
    return "call_function", function, args


def tells_sizes_apart(kind: str, target: Any) -> bool:
    """Return whether a call may do something else with a ``torch.Size`` than with a tuple of the same numbers.

    Torch's own functions and methods do not, but for ``Tensor.new``: it takes a size for one, and a tuple for values.
    """
    if kind == "call_function":
        return not is_of_library(target)
    return kind == "call_module" or (kind == "call_method" and target == "new")


def is_of_library(function: Any) -> bool:
    """Return whether a function is one of torch, or an operator of Python."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in _LIBRARIES


_LIBRARIES = frozenset({"_operator", "torch"})


def call_effect(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Effect:
    """Return what a call would do besides computing a value."""
    kind, target, args = call_form(function, args)
    graph = Graph()
    tensor = graph.placeholder("tensor")

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return tensor
        # What decides about effects are flags and numbers.
        return value if value is None or isinstance(value, (bool, int, float, str)) else ()

    named = {name: described(value) for name, value in kwargs.items()}
    return node_effect(graph.create_node(kind, target, tuple(map(described, args)), named))


def node_effect(node: Node) -> Effect:
    """Return what a node does; where torch does not say, what the underscore behind the name says."""
    effect = effects.effect_of(node)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if not effect.unknown:
        # The name alone says that `uniform_` writes; the operator says that it draws, too.
        said = named_effect(node, name) if effect.writes else None
        return effect if said is None else effect.join(said)
    is_writing = name in {"__setitem__", "__delitem__"} or (name.endswith("_") and not name.endswith("__"))
    return writes(0).join(UNKNOWN) if is_writing else effect


def written_arguments(effect: Effect, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Any]:
    """Yield the arguments of a call that it writes to."""
    for key in effect.writes:
        if isinstance(key, int):
            if key < len(args):
                yield args[key]
            elif key == 0 and kwargs:
                yield next(iter(kwargs.values()))
        elif key in kwargs:
            yield kwargs[key]
