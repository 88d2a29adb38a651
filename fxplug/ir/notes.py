"""Copying the notes of nodes: containers anew, values shared, nodes replaced by their copies."""

from __future__ import annotations

from copy import copy
from operator import is_
from typing import TYPE_CHECKING, Any, cast

from fxplug.ir.arguments import immutable_dict, immutable_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["RESULTS_OF_ANALYSES", "map_notes"]

RESULTS_OF_ANALYSES = frozenset({"example_value", "tensor_meta", "type", "val"})
"""Notes that are facts about a value: not known of what takes its place, nor once what it is computed from changed."""


def map_notes(notes: Mapping[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    """Return notes that can be edited without touching the original.

    Args:
        notes: What ``node.meta`` holds.
        function: Called for each value that is no container. It returns what takes the value's place; for a node, None
            says that nothing does, and entries under such a key are left out.

    Returns:
        Notes in which plain dicts, lists, tuples and sets are new. A container of another class keeps its class, and is
        shared as long as nothing in it is replaced.
    """
    return {key: _map(value, function) for key, value in notes.items()}


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if kind is dict:
        return dict(_items(value, function))
    if kind is list:
        return [_map(element, function) for element in value]
    if kind is tuple:
        return tuple([_map(element, function) for element in value])
    if kind is set or kind is frozenset:
        return kind([function(element) for element in value])
    if isinstance(value, dict):
        return _map_dict(cast("dict[Any, Any]", value), function)
    if isinstance(value, (list, tuple)):
        elements = cast("Iterable[Any]", value)
        mapped = [_map(element, function) for element in elements]
        return value if all(map(is_, mapped, elements)) else _like(cast("Any", value), mapped)
    return function(value)


def _items(value: dict[Any, Any], function: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
    items = [(key, function(key), _map(element, function)) for key, element in value.items()]
    return [(mapped, element) for key, mapped, element in items if mapped is not None or key is None]


def _map_dict(value: dict[Any, Any], function: Callable[[Any], Any]) -> Any:
    items = _items(value, function)
    if len(items) == len(value) and all(
        key is mapped and element is value[key] for key, (mapped, element) in zip(value, items, strict=True)
    ):
        return value
    if isinstance(value, immutable_dict):
        return immutable_dict(items)
    other = copy(value)
    other.clear()
    other.update(items)
    return other


def _like(value: Any, elements: list[Any]) -> Any:
    """Return a list or tuple of the class of `value` with other elements, without asking its constructor."""
    kind: Any = type(value)
    if kind is immutable_list:
        return immutable_list(elements)
    if isinstance(value, list):
        other = cast("list[Any]", copy(cast("Any", value)))
        other[:] = elements
        return other
    if hasattr(kind, "_make"):
        return kind._make(elements)
    try:
        rebuilt = cast("Any", tuple).__new__(kind, elements)
    except TypeError:  # A structure of the interpreter's own; its constructor takes the elements.
        return kind(elements)
    vars(rebuilt).update(vars(value))
    return rebuilt
