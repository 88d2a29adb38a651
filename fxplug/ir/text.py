"""Values as text for people: nested arguments at any depth, annotations, and what tensors are like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from fxplug.ir.arguments import immutable_dict, immutable_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["argument_text_with", "plain_text", "printable", "tensor_text", "type_text", "value_text"]


class _Piece(str):
    """Text that is finished, between values that are not."""

    __slots__ = ()


def argument_text_with(argument: Any, leaf_text: Callable[[Any], str]) -> str:
    """Return the text of a nested argument as ``str(graph)`` shows it.

    Args:
        argument: Leaves in tuples, lists, dicts, slices and namedtuples, nested to any depth.
        leaf_text: Gives the text of a leaf.
    """
    return _write(argument, _open_argument, leaf_text)


def plain_text(value: Any) -> str:
    """Return what ``repr`` gives, for containers nested to any depth."""
    return _write(value, _open_plain, repr)


def value_text(value: Any) -> str:
    """Return what ``str`` gives, for containers nested to any depth."""
    return _write(value, _open_plain, repr) if isinstance(value, (tuple, list, dict, slice)) else str(value)


def _write(
    value: Any, open_container: Callable[[Any], list[Any] | None], leaf_text: Callable[[Any], str]
) -> str:
    parts: list[str] = []
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if type(item) is _Piece:
            parts.append(item)
            continue
        pieces = open_container(item)
        if pieces is None:
            parts.append(leaf_text(item))
        else:
            stack.extend(reversed(pieces))
    return "".join(parts)


def _joined(opening: str, pairs: Iterable[tuple[str | None, Any]], closing: str) -> list[Any]:
    pieces: list[Any] = [_Piece(opening)]
    separator = ""
    for label, element in pairs:
        pieces.append(_Piece(separator if label is None else separator + label))
        pieces.append(element)
        separator = ", "
    pieces.append(_Piece(closing))
    return pieces


def _sequence(opening: str, value: Iterable[Any], closing: str) -> list[Any]:
    return _joined(opening, [(None, element) for element in value], closing)


def _open_argument(value: Any) -> list[Any] | None:
    if isinstance(value, tuple):
        elements = cast("tuple[Any, ...]", value)
        if hasattr(elements, "_fields"):
            fields = [f"{key}=" for key in cast("Any", elements)._fields]
            return _joined(f"{type(elements).__name__}(", zip(fields, elements, strict=True), ")")
        return _sequence("(", elements, ",)" if len(elements) == 1 else ")")
    if isinstance(value, list):
        return _sequence("[", cast("list[Any]", value), "]")
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return _joined("{", [(f"{key}: ", element) for key, element in items], "}")
    if isinstance(value, slice):
        return _sequence("slice(", (value.start, value.stop, value.step), ")")
    return None


def _open_plain(value: Any) -> list[Any] | None:
    kind = type(value)
    if kind is tuple:
        return _sequence("(", value, ",)" if len(value) == 1 else ")")
    if kind is list or kind is immutable_list:
        return _sequence("[", value, "]")
    if kind is dict or kind is immutable_dict:
        return _joined("{", [(f"{key!r}: ", element) for key, element in value.items()], "}")
    if kind is slice:
        return _sequence("slice(", (value.start, value.stop, value.step), ")")
    return None


def type_text(annotation: Any) -> str:
    """Return a readable form of an annotation."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        module = annotation.__module__
        return annotation.__name__ if module == "builtins" else f"{module}.{annotation.__name__}"
    return str(annotation)


_DTYPE = re.compile(r"(bfloat|float|complex|uint|int|bool|bits)(\d*)(\w*)")
_LETTERS = {"bfloat": "bf", "float": "f", "complex": "c", "uint": "u", "int": "i", "bool": "b8", "bits": "b"}


def _dtype_text(dtype: object) -> str:
    name = str(dtype).rpartition(".")[2]
    found = _DTYPE.fullmatch(name)
    if found is None:
        return name
    kind, width, variant = found.groups()
    return f"{_LETTERS[kind]}{width}{variant.replace('_', '')}"


def tensor_text(value: Any, *, stride: bool = False, device: bool = False) -> str:
    """Return element type and sizes of a tensor, or of what describes one: ``"f32[2, 3]"``; empty for anything else.

    Args:
        value: Whatever has ``dtype`` and ``shape``, or tuples, lists and dicts of such.
        stride: Whether strides follow, where they are known.
        device: Whether the device follows, where it is known.
    """
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and shape is not None:
        text = f"{_dtype_text(dtype)}{_sizes(shape)}"
        if stride:
            strides: Any = getattr(value, "stride", None)
            strides = strides() if callable(strides) else strides
            text += _sizes(strides) if strides is not None else ""
        return f"{text}{getattr(value, 'device', '')}" if device else text
    if isinstance(value, (tuple, list)):
        parts = [tensor_text(part, stride=stride, device=device) for part in cast("Iterable[Any]", value)]
        return f"({', '.join(parts)})" if any(parts) else ""
    return ""


def _sizes(sizes: Iterable[Any]) -> str:
    return f"[{', '.join([str(size) for size in sizes])}]"


def printable(text: str) -> str:
    """Return text in one line: what ends a line, or does not show, is escaped."""
    if text.isprintable():
        return text
    return "".join([letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text])
