"""Taking the result of a call apart, and putting it together again."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

from fxplug.ir import Node
from fxplug.semantics.effects import operator_name

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["has_fixed_length", "rebuilt"]

_VARIABLE = frozenset(
    [
        "chunk",
        "unsafe_chunk",
        "split",
        "unsafe_split",
        "tensor_split",
        "unbind",
        "hsplit",
        "vsplit",
        "dsplit",
        "nonzero",
        "stride",
        "dim_order",
        "gradient",
        "histogramdd",
        "tolist",
        "where",
    ]
)
"""Operators whose result has as many parts as the sizes of their arguments say."""
_BY_SECTIONS = frozenset({"split", "unsafe_split", "tensor_split", "hsplit", "vsplit", "dsplit", "where"})


def has_fixed_length(node: Node, value: Any, is_torch_module: Callable[[str], bool]) -> bool:
    """Return whether a call gives as many parts for all inputs.

    Args:
        node: The call.
        value: Its result, a tuple or list.
        is_torch_module: Tells of a path whether torch.nn ships the module.
    """
    if hasattr(value, "_fields") or hasattr(type(value), "n_sequence_fields"):
        return True
    if node.op == "call_module":
        return is_torch_module(node.target)
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]  # A part of something whose parts may be of any number.
    name = node.target if node.op == "call_method" else operator_name(node.target)
    if name is None:
        return getattr(node.target, "__module__", None) in {"builtins", "_operator", "math"}
    if name not in _VARIABLE:
        return True
    if name == "where":
        return len(node.args) + len(node.kwargs) > 1
    # A list of sections says how many there are.
    sections = node.args[1] if len(node.args) > 1 else next(iter(node.kwargs.values()), None)
    return name in _BY_SECTIONS and isinstance(sections, (tuple, list))


def rebuilt(value: Any, convert: Callable[[Any, Any], Any]) -> Any:
    """Return a tuple, list or dict with each part replaced by what stands for it; the same one if nothing changes.

    Args:
        value: The container.
        convert: Called with (part, its index or key).
    """
    if isinstance(value, dict):
        given = cast("dict[Any, Any]", value)
        parts = {key: convert(part, key) for key, part in given.items()}
        if all(parts[key] is part for key, part in given.items()):
            return given
        for key, part in parts.items():
            given[key] = part
        return given
    elements = cast("tuple[Any, ...] | list[Any]", value)
    changed = [convert(part, index) for index, part in enumerate(elements)]
    if all(new is old for new, old in zip(changed, elements, strict=True)):
        return elements
    if isinstance(elements, list):
        elements[:] = changed
        return elements
    kind: Any = type(elements)
    if hasattr(kind, "_fields"):
        return kind(*changed)
    return kind(changed)
