"""Arguments of nodes: immutable containers, and maps over nested structures.

An argument is a node, an immediate Python value, or a tuple, list, dict, slice or namedtuple of arguments.
Lists and dicts become `immutable_list` and `immutable_dict` when a node takes them in, so that the use-def
chains of the graph cannot be changed behind its back. Every walk here is iterative below the first level:
structures nested deeper than Python's recursion limit are handled.
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, NoReturn

from fxplug.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "EMPTY_DICT",
    "Argument",
    "immutable_dict",
    "immutable_list",
    "is_namedtuple",
    "iterate_containers",
    "iterate_leaves",
    "map_aggregate",
    "rebuild_children",
]

Argument = Any
"""What may stand in ``args`` and ``kwargs``: nodes, immediate values, and containers of them."""


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    kind = type(self).__name__
    raise InvalidArgumentError(
        f"Cannot change an argument of a node in place: {kind} is immutable, since the graph could not see "
        "the change. Assign a new value to node.args or node.kwargs instead."
    )


class immutable_list(list[Any]):  # noqa: N801 - the public name users of torch.fx know
    """A list that stands in the arguments of a node and refuses every mutation."""

    __slots__ = ()

    append = extend = insert = pop = remove = reverse = sort = clear = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(tuple(self))

    def __reduce__(self) -> tuple[type[immutable_list], tuple[list[Any]]]:
        return immutable_list, (list(self),)


class immutable_dict(dict[str, Any]):  # noqa: N801 - the public name users of torch.fx know
    """A dict that stands in the arguments of a node and refuses every mutation."""

    __slots__ = ()

    clear = pop = popitem = setdefault = update = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[immutable_dict], tuple[dict[str, Any]]]:
        return immutable_dict, (dict(self),)


EMPTY_DICT = immutable_dict()
"""The one empty kwargs, shared by every node without keyword arguments."""

CONTAINERS: frozenset[type] = frozenset({tuple, list, dict, slice, immutable_list, immutable_dict})
"""Exact types that are walked without a further test."""


def is_namedtuple(value: object) -> bool:
    """Return whether `value` is an instance of a namedtuple class."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _children(value: Any) -> list[Any] | None:
    """Return the direct elements of a container, None for an immediate value."""
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    return None


def rebuild_children(value: Any, elements: list[Any], *, frozen: bool = True) -> Any:
    """Return a container like `value` that holds `elements`; lists and dicts are immutable ones if `frozen`."""
    if isinstance(value, tuple):
        kind = type(value)
        if kind is tuple:
            return tuple(elements)
        return kind(*elements) if hasattr(kind, "_fields") else kind(elements)
    if isinstance(value, list):
        return immutable_list(elements) if frozen else elements
    if isinstance(value, dict):
        pairs = zip(value.keys(), elements, strict=True)
        return immutable_dict(pairs) if frozen else dict(pairs)
    return slice(*elements)


def map_aggregate(argument: Argument, function: Callable[[Any], Any], *, frozen: bool = True) -> Argument:
    """Apply `function` to every leaf of a nested argument, left to right.

    Containers are rebuilt with the same structure.

    Args:
        argument: A leaf, or tuples, lists, dicts, slices and namedtuples of leaves, nested to any depth.
        function: Called once for each leaf in order.
        frozen: Whether lists and dicts come back in their immutable forms, as arguments of nodes, or as plain ones.

    Returns:
        The structure with every leaf replaced.
    """
    elements = _children(argument)
    if elements is None:
        return function(argument)
    # Each frame: (container, its elements, results so far). A stack instead of recursion: depth is the
    # user's.
    stack: list[tuple[Any, list[Any], list[Any]]] = [(argument, elements, [])]
    while True:
        container, elements, results = stack[-1]
        if len(results) == len(elements):
            stack.pop()
            if frozen and isinstance(container, tuple) and all(map(is_, results, elements)):
                value = container  # A tuple of any class that did not change passes as it is.
            else:
                value = rebuild_children(container, results, frozen=frozen)
            if not stack:
                return value
            stack[-1][2].append(value)
            continue
        element = elements[len(results)]
        inner = _children(element)
        if inner is None:
            results.append(function(element))
        else:
            stack.append((element, inner, []))


def iterate_containers(argument: Argument) -> Iterator[Any]:
    """Yield every tuple, list, dict and slice in a nested argument, the outer one first."""
    stack = [argument]
    while stack:
        value = stack.pop()
        elements = _children(value)
        if elements is not None:
            yield value
            stack.extend(reversed(elements))


def iterate_leaves(argument: Argument) -> Iterator[Any]:
    """Yield the leaves of a nested argument, left to right."""
    stack = [argument]
    while stack:
        value = stack.pop()
        elements = _children(value)
        if elements is None:
            yield value
        else:
            stack.extend(reversed(elements))
