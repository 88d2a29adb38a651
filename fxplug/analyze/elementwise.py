"""What calls cost that work element by element, and those that only move data."""

from __future__ import annotations

from numbers import Integral
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from fxplug.analyze.cost import CallCost, OperatorCall, bytes_of, tensors_in
from fxplug.analyze.shapes import TensorMetadata
from fxplug.ir import Node

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "adaptive_average_pool",
    "average_pool",
    "batch_norm",
    "contiguous",
    "conversion",
    "dropout",
    "embedding",
    "index_put",
    "interpolation",
    "item",
    "lookup",
    "no_arithmetic",
    "no_work",
    "once_per_element",
    "once_per_input",
    "rearranged",
    "scatter",
    "scattered_sum",
    "taps",
    "thrice_per_input",
    "transfer",
]


def no_arithmetic(_: OperatorCall) -> int:
    """Count a call that only compares or copies."""
    return 0


def no_work(_: OperatorCall) -> CallCost:
    """Count a call that only looks at its arguments in another way."""
    return CallCost(0, 0, 0)


def once_per_element(call: OperatorCall) -> int:
    """Count one for each element of the result."""
    return call.elements()


def once_per_input(call: OperatorCall) -> int | None:
    """Count one for each element of the first argument."""
    given = call.shape(0, "input", "self")
    return None if given is None else given.numel()


def thrice_per_input(call: OperatorCall) -> int | None:
    """Count two passes to find statistics, one to apply them."""
    once = once_per_input(call)
    return None if once is None else 3 * once


def _flag(call: OperatorCall, position: int, *names: str, default: bool) -> bool | None:
    """Return whether a call is in training mode; None when the program computes it."""
    if call.module is not None:
        return call.module.training
    given = next((call.kwargs[name] for name in names if name in call.kwargs), default)
    value = call.args[position] if position < len(call.args) else given
    return None if isinstance(value, Node) else bool(value)


def batch_norm(call: OperatorCall) -> int | None:
    """Count scale and shift as one multiply-add; statistics of the batch need mean and variance besides."""
    by_batch = _flag(call, 5, "training", default=False)
    if call.module is not None and getattr(call.module, "running_mean", None) is None:
        by_batch = True
    return None if by_batch is None else (3 if by_batch else 1) * call.elements()


def dropout(call: OperatorCall) -> int | CallCost | None:
    """Count one for each element in training; otherwise the argument itself comes back."""
    drops = _flag(call, 2, "training", "train", default=True)
    if drops is None:
        return None
    return call.elements() if drops else CallCost(0, 0, 0)


# -- windows


def average_pool(rank: int) -> Callable[[OperatorCall], int | None]:
    """Return the formula for averages over windows of `rank` dimensions; windows at the edge count in whole."""

    def formula(call: OperatorCall) -> int | None:
        kernel: Any = (
            call.argument(1, "kernel_size")
            if call.module is None
            else getattr(call.module, "kernel_size", None)
        )
        sizes = kernel if isinstance(kernel, (list, tuple)) else (kernel,)
        if not all(isinstance(size, int) for size in sizes):
            return None
        return call.elements() * torch.Size(sizes if len(sizes) == rank else tuple(sizes) * rank).numel()

    return formula


def adaptive_average_pool(rank: int) -> Callable[[OperatorCall], int | None]:
    """Return the formula for averages over windows that divide `rank` dimensions, and overlap where they must."""

    def formula(call: OperatorCall) -> int | None:
        return _windows_added_up(call, rank)

    return formula


def _windows_added_up(call: OperatorCall, rank: int) -> int | None:
    given = call.shape(0, "input", "self")
    if given is None or not isinstance(call.result, TensorMetadata):
        return None
    total = given[:-rank].numel()
    for size, count in zip(given[-rank:], call.result.shape[-rank:], strict=True):
        total *= sum(-(-(place + 1) * size // count) - place * size // count for place in range(count))
    return total


_TAPS = {"nearest": 0, "nearest-exact": 0, "linear": 2, "bilinear": 4, "trilinear": 8, "bicubic": 16}


def taps(mode: str) -> Callable[[OperatorCall], int]:
    """Return the formula for interpolation in a mode: one for each value that goes into an element of the result."""
    return lambda call: _TAPS[mode] * call.elements()


def interpolation(call: OperatorCall) -> int | None:
    """Count ``interpolate``, whose mode is an argument; not with antialiasing, where weights depend on sizes."""
    mode: Any = (
        call.argument(3, "mode", "nearest") if call.module is None else getattr(call.module, "mode", None)
    )
    given = call.shape(0, "input")
    if mode == "area" and given is not None:
        return _windows_added_up(call, len(given) - 2)
    is_known = mode in _TAPS and not call.argument(6, "antialias")
    return taps(mode)(call) if is_known else None


# -- lookups


def _rows_read(call: OperatorCall, indices: Any) -> CallCost:
    return CallCost(0, bytes_of(tensors_in(call.result)) + bytes_of(tensors_in(indices)))


def lookup(position: int, *names: str) -> Callable[[OperatorCall], CallCost]:
    """Return the formula for a call that reads what the indices at a position ask for."""

    def formula(call: OperatorCall) -> CallCost:
        given = next((call.kwargs[name] for name in names if name in call.kwargs), None)
        return _rows_read(call, call.argument(position, "", given))

    return formula


def embedding(call: OperatorCall) -> CallCost | None:
    """Count the rows of a table that are read; ``torch.nn`` takes the indices first, the operator the table."""
    if call.module is not None:
        rescales = getattr(call.module, "max_norm", None) is not None
    else:
        rescales = call.node.target is functional.embedding and call.argument(3, "max_norm") is not None
    if rescales:
        return None
    indices_first = call.module is not None or call.node.target is functional.embedding
    return lookup(0, "input")(call) if indices_first else lookup(1, "indices")(call)


def item(call: OperatorCall) -> CallCost:
    """Count ``x[...]``: a view, unless tensors or lists say what to take."""
    source, place = call.args
    # A description of a tensor is a tuple, too.
    parts = place if type(place) is tuple else (place,)
    if isinstance(source, TensorMetadata) and not all(_is_view_index(part) for part in parts):
        return _rows_read(call, list(parts))
    return CallCost(0, 0, 0)


def _is_view_index(part: Any) -> bool:
    if isinstance(part, TensorMetadata):
        # A single number, which torch reads.
        return not part.shape and part.dtype not in {torch.bool, torch.uint8}
    if isinstance(part, bool):
        return False
    return part is None or isinstance(part, (Integral, slice, Node, EllipsisType))


# -- adding to some elements


def scattered_sum(position: int, name: str) -> Callable[[OperatorCall], CallCost | None]:
    """Return the formula for adding to some elements: one for each that the argument at a position holds.

    A call in place reads and writes only those; another one copies the rest, too.
    """

    def formula(call: OperatorCall) -> CallCost | None:
        parts = [call.argument(2, "index"), call.argument(3, "source", call.kwargs.get("src"))]
        count = call.shape(position, name)
        if count is None or not isinstance(call.result, TensorMetadata):
            return None
        if not str(getattr(call.node.target, "__name__", call.node.target)).partition(".")[0].endswith("_"):
            return CallCost(count.numel())
        touched = count.numel() * call.result.dtype.itemsize
        return CallCost(count.numel(), touched + bytes_of(tensors_in(parts)), touched)

    return formula


def scatter(call: OperatorCall) -> int | None:
    """Count ``scatter``, which only copies unless it is told to reduce."""
    return None if call.argument(4, "reduce") is not None else 0


def index_put(call: OperatorCall) -> int | None:
    """Count ``index_put``, which only copies unless it is told to accumulate."""
    return None if call.argument(3, "accumulate", default=False) is not False else 0


# -- views that may have to copy


def _without_data(tensor: TensorMetadata) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride, dtype=tensor.dtype, device="meta")


def rearranged(call: OperatorCall) -> CallCost:
    """Count ``reshape`` and its like: a view where strides allow it, else a copy."""
    source = call.argument(0, "input", call.kwargs.get("self"))
    if not isinstance(source, TensorMetadata) or not isinstance(call.result, TensorMetadata):
        return CallCost(0, 0, 0)
    try:
        _without_data(source).view(call.result.shape)
    except RuntimeError:
        return CallCost(0, bytes_of([source]))
    return CallCost(0, 0, 0)


def contiguous(call: OperatorCall) -> CallCost:
    """Count ``contiguous``, which copies what is not."""
    source = call.args[0]
    wanted = call.argument(1, "memory_format", torch.contiguous_format)
    if isinstance(source, TensorMetadata) and _without_data(source).is_contiguous(memory_format=wanted):
        return CallCost(0, 0, 0)
    return CallCost(0)


def conversion(call: OperatorCall) -> CallCost:
    """Count ``float`` and its like, which give back a tensor that is so already."""
    source, result = call.args[0], call.result
    if not isinstance(source, TensorMetadata) or not isinstance(result, TensorMetadata):
        return CallCost(0)
    return CallCost(0, 0, 0) if source.dtype == result.dtype else CallCost(0, bytes_of([source]))


def transfer(call: OperatorCall) -> CallCost:
    """Count ``to``, which may move a tensor to another device, unless it names a dtype alone."""
    named = [*call.args[1:], *(value for name, value in call.kwargs.items() if name == "dtype")]
    is_conversion = (
        len(named) == 1 and isinstance(named[0], torch.dtype) and not call.kwargs.keys() - {"dtype"}
    )
    return conversion(call) if is_conversion else CallCost(0)
