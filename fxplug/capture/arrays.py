"""Arrays and numbers of NumPy that a program hands to torch: no graph holds them, but tensors and numbers like them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "as_index",
    "call_without_array",
    "holds_array",
    "index_by_numbers",
    "is_array",
    "is_exact_number",
    "is_number",
    "is_number_of_python",
]


def is_array(value: Any) -> bool:
    """Return whether a value is an array of NumPy."""
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def is_number(value: Any) -> bool:
    """Return whether a value is a number of NumPy, which torch takes for the number of Python that it is."""
    return type(value).__module__ == "numpy" and hasattr(value, "item") and not hasattr(value, "__len__")


def is_exact_number(value: Any) -> bool:
    """Return whether a value is a number of NumPy with which numbers of Python are computed as with one of theirs.

    With one of fewer bits, the result has as few.
    """
    return type(value).__module__ == "numpy" and type(value).__name__ in {"bool", "bool_", "int64"}


def is_number_of_python(value: Any) -> bool:
    """Return whether a value is a number of NumPy that numbers of Python give with an exact one, and as they do."""
    return is_exact_number(value) or (type(value).__module__ == "numpy" and type(value).__name__ == "float64")


def holds_array(value: Any) -> bool:
    """Return whether a value is an array of NumPy, or a list or tuple with one in it."""
    if isinstance(value, (list, tuple)):
        return any(map(holds_array, cast("Iterable[Any]", value)))
    return is_array(value)


def as_index(key: Any) -> Any:
    """Return an index with tensors in place of its arrays, which select the same; the index itself if it has none."""
    if type(key) is tuple:
        parts = tuple(map(_index_tensor, cast("tuple[Any, ...]", key)))
        return parts if any(part is not former for part, former in zip(parts, key, strict=True)) else key
    return _index_tensor(key)


def _index_tensor(part: Any) -> Any:
    if not is_array(part) or part.dtype.kind not in "biu":
        return part
    values = (
        part if part.dtype.name in {"bool", "uint8"} else part.astype("int64")
    )  # The others torch converts.
    return torch.from_numpy(values.copy())


def index_by_numbers(key: Any) -> Any:
    """Return an index that selects by numbers what another one selects by masks, without any data of the tensor."""
    parts: list[Any] = []
    for part in cast("tuple[Any, ...]", key) if type(key) is tuple else (key,):
        is_mask = isinstance(part, torch.Tensor) and part.dtype is torch.bool and part.dim() > 0
        parts += part.nonzero(as_tuple=True) if is_mask else [part]
    return tuple(parts)


_FACTORIES: dict[Any, Callable[..., Any]] = {
    torch.as_tensor: torch.as_tensor,
    torch.asarray: torch.as_tensor,
    torch.tensor: torch.tensor,
}


def call_without_array(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """Return how a tensor is made of an array where the dtype or the device that it is to have is a traced value.

    Returns:
        What makes the tensor of the array alone, and what is to be handed to its method ``to``; None for other calls.
    """
    make = _FACTORIES.get(function)
    if make is None or len(args) != 1 or not is_array(args[0]) or not kwargs.keys() <= {"dtype", "device"}:
        return None
    return make, {name: value for name, value in kwargs.items() if value is not None}
