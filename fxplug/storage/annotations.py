"""Annotations as JSON. The caller leaves out an annotation that has no exact form here, and lists it."""

from __future__ import annotations

import functools
import operator
import types
import typing
from typing import TYPE_CHECKING, Any

from fxplug.storage.faults import Refusal, checked

if TYPE_CHECKING:
    from fxplug.storage.targets import TargetTable

__all__ = ["decode_annotation", "encode_annotation"]

_ORIGINS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "set": set,
    "Optional": typing.Union,
    "|": types.UnionType,
    # The generic aliases of the typing module are equal to none of the above, and print differently.
    **{
        f"typing.{name}": getattr(typing, name)
        for name in ("List", "Tuple", "Dict", "Set", "Sequence", "Iterable")
    },
}
_DEEPEST = 20
_MOST = 50
"""How many arguments a union may have: each is compared with all others."""
_KEEP_TEXTS: tuple[Any, ...] = (list, tuple, dict, set)
"""Origins that hold a text as it is; the typing module compiles it."""


def _subscribe(origin: Any, args: tuple[Any, ...]) -> Any:
    """Return what an origin makes of arguments.

    Raises:
        TypeError: It makes nothing of them, or would compile them, or they are too many.
    """
    if not any(origin is kind for kind in _KEEP_TEXTS) and any(
        isinstance(argument, str) for argument in args
    ):
        raise TypeError("a text would be compiled")
    if origin in _UNIONS and sum(map(_alternatives, args)) > _MOST:
        raise TypeError(f"a union has more than {_MOST} arguments")
    if origin is types.UnionType:
        return functools.reduce(operator.or_, args)
    return origin[args]


def _alternatives(argument: Any) -> int:
    """Return how many arguments of a union an argument becomes."""
    return len(typing.get_args(argument)) if typing.get_origin(argument) in _UNIONS else 1


_UNIONS = (typing.Union, types.UnionType)


def _matches(origin: Any, args: tuple[Any, ...], annotation: Any) -> bool:
    try:
        candidate = _subscribe(origin, args)
    except TypeError:
        return False
    return (
        type(candidate) is type(annotation)
        and candidate == annotation
        and repr(candidate) == repr(annotation)
    )


def encode_annotation(annotation: Any, targets: TargetTable, depth: int = 0) -> Any:
    """Return an annotation as JSON.

    Raises:
        Refusal: It has no exact form.
    """
    if annotation is None or type(annotation) is str:
        return annotation
    if annotation is Ellipsis:
        return {"$ellipsis": None}
    args = typing.get_args(annotation)
    if not args:
        return {"$name": targets.annotation_name(annotation)}
    for name, origin in _ORIGINS.items() if depth < _DEEPEST else ():
        if _matches(origin, args, annotation):
            return {
                "$generic": [name, [encode_annotation(argument, targets, depth + 1) for argument in args]]
            }
    raise Refusal(f"the annotation {annotation!r} cannot be stored.")


def decode_annotation(data: Any, targets: TargetTable, depth: int = 0) -> Any:
    """Return the annotation that `data` stands for.

    Raises:
        Refusal: `data` is nothing that `encode_annotation` writes.
    """
    if data is None or type(data) is str:
        return data
    if type(data) is not dict or len(data) != 1 or depth > _DEEPEST:
        raise Refusal(f"an annotation is written as {str(data)[:80]!r}. The file is damaged.")
    ((tag, content),) = data.items()
    if tag == "$name":
        return targets.resolve_annotation(content)
    if tag == "$ellipsis":
        return ...
    parts = checked(content, list, "An annotation") if tag == "$generic" else []
    origin = _ORIGINS.get(parts[0]) if len(parts) == 2 and isinstance(parts[0], str) else None
    if origin is None:
        raise Refusal(f"an annotation is written as {str(data)[:80]!r}. The file is damaged.")
    elements = checked(parts[1], list, "The arguments of an annotation")
    args = tuple(decode_annotation(element, targets, depth + 1) for element in elements)
    try:
        return _subscribe(origin, args)
    except TypeError as error:
        raise Refusal(f"an annotation cannot be made: {error}. The file is damaged.") from error
