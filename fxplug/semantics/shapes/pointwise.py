"""Shape functions of what computes each element by itself, or from those at the same place."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from fxplug.semantics.shapes.abstract import AbstractFlags, AbstractTensor
from fxplug.semantics.shapes.operands import (
    base_of,
    broadcast,
    given_sizes,
    is_number,
    new_tensor,
    of_numbers,
    order_like,
    place_of,
    require,
    tensor_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "activated",
    "bent",
    "bent_by_slope",
    "bent_softly",
    "bent_to_limit",
    "chosen",
    "clamped",
    "compared",
    "divided",
    "dropped",
    "elementwise",
    "filled",
    "gated",
    "in_place",
    "made_alike",
    "of_flags",
    "of_length_one",
    "of_tensor_first",
    "of_tensors",
    "of_three",
    "of_triangle",
    "of_two",
    "of_two_assigned",
    "of_two_in_place",
    "raised_to_power",
    "sizes_of_flags",
    "softened",
    "softened_in_any_dtype",
    "turned",
]


_LARGEST = torch.finfo(torch.float32).max


def elementwise(x: Any, /) -> AbstractTensor:
    """Return what a function gives that computes each element by itself, or copies it.

    It takes over how a tensor lies in memory.
    """
    x = tensor_of(x)
    return AbstractTensor(x.sizes, "dense" if x.order == "dense" else order_like(x), "own")


def in_place(x: Any, /) -> AbstractTensor:
    """Return the same tensor, to which a function has written that computes each element by itself."""
    x = tensor_of(x)
    # Nobody is to write to a weight, nor to an input without a run that puts it back.
    require(x.memory == "own" or (x.memory == "view" and x.base is not None))
    base = base_of(x)
    require(base is not None and not base.is_parted and not base.requires_gradient)
    return x


def made_alike(x: Any, /, *size: Any) -> AbstractTensor:
    """Return what `new_zeros` and the like give: a tensor of the same dtype."""
    tensor_of(x)
    sizes = given_sizes(size)
    require(sizes and min(sizes) > 0)
    return new_tensor(sizes, "contiguous")


def activated(x: Any, /, inplace: Any = False) -> AbstractTensor:
    """Return what an activation gives that may work in place."""
    require(type(inplace) is bool)
    return in_place(x) if inplace else elementwise(x)


def bent_by_slope(x: Any, /, negative_slope: Any = 0.01, inplace: Any = False) -> AbstractTensor:
    """Return what `torch.nn.functional.leaky_relu` gives."""
    require(is_number(negative_slope))
    return activated(x, inplace)


def bent_to_limit(x: Any, /, alpha: Any = 1.0, inplace: Any = False) -> AbstractTensor:
    """Return what `torch.nn.functional.elu` gives."""
    require(is_number(alpha))
    return activated(x, inplace)


def bent(x: Any, /, *, approximate: Any = "none") -> AbstractTensor:
    """Return what `torch.nn.functional.gelu` gives."""
    require(approximate in {"none", "tanh"})
    return elementwise(x)


def softened(x: Any, /, dim: Any) -> AbstractTensor:
    """Return what a softmax gives."""
    place_of(dim, len(tensor_of(x).sizes))
    return elementwise(x)


def softened_in_any_dtype(x: Any, /, dim: Any, _stacklevel: Any = 3, dtype: Any = None) -> AbstractTensor:
    """Return what `torch.nn.functional.softmax` gives."""
    require(dtype is None)
    return softened(x, dim)


def dropped(x: Any, /, p: Any = 0.5, training: Any = True, inplace: Any = False) -> AbstractTensor:
    """Return what a dropout gives outside of training: what it is given."""
    require(training is False and inplace is False and is_number(p) and 0 <= p <= 1)
    return tensor_of(x)


def clamped(x: Any, /, min: Any = None, max: Any = None) -> AbstractTensor:
    """Return what `torch.clamp` gives."""
    given = [one for one in (min, max) if one is not None]
    require(given and all(map(is_number, given)))
    return elementwise(x)


def of_length_one(x: Any, /, p: Any = 2.0, dim: Any = 1, eps: Any = 1e-12, out: Any = None) -> AbstractTensor:
    """Return what `torch.nn.functional.normalize` gives."""
    place_of(dim, len(tensor_of(x).sizes))
    require(p in {1, 2} and is_number(eps) and out is None)
    return elementwise(x)


def raised_to_power(x: Any, exponent: Any, /) -> Any:
    """Return what a power of a tensor gives; numbers alone are computed with."""
    if not (isinstance(x, AbstractTensor) or isinstance(exponent, AbstractTensor)):
        return of_numbers(operator.pow)(x, exponent)
    if is_number(x):
        return elementwise(exponent)
    require(is_number(exponent))
    return elementwise(x)


def of_two(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the shape function of an operator of tensors or numbers; numbers alone are computed with."""

    def apply(x: Any, y: Any, /) -> Any:
        if x.__class__ is not AbstractTensor:
            if y.__class__ is not AbstractTensor:
                return of_numbers(compute)(x, y)
            if x.__class__ is torch.Tensor:
                x = _of_integers(x)
            else:
                x, y = y, x
        if is_number(y):
            return elementwise(x)
        if y.__class__ is torch.Tensor:
            y = _of_integers(y)
        sizes = broadcast(x.sizes, tensor_of(y).sizes)
        is_whole = x.sizes == sizes or (y.sizes == sizes and order_like(y) == "contiguous")
        # Where strides of the first are the same for two dimensions, those of the other one count.
        is_whole = is_whole and (1 not in sizes or order_like(y) == "contiguous")
        return AbstractTensor(sizes, order_like(x) if is_whole else "unknown", "own")

    return apply


def _of_integers(y: torch.Tensor) -> AbstractTensor:
    """Return what is known of the elements of a tensor of integers as numbers of the dtype of the program."""
    require(y.dtype in {torch.int32, torch.int64})
    return AbstractTensor(y.shape, "unknown", "given")


def of_three(x: Any, y: Any, z: Any, /, *, value: Any = 1) -> AbstractTensor:
    """Return what `torch.addcmul` gives."""
    require(is_number(value))
    sizes = broadcast(tensor_of(x).sizes, broadcast(tensor_of(y).sizes, tensor_of(z).sizes))
    is_whole = x.sizes == sizes and (1 not in sizes or order_like(y) == order_like(z) == "contiguous")
    return new_tensor(sizes, order_like(x) if is_whole else "unknown")


def of_tensor_first(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], AbstractTensor]:
    """Return the shape function of a function or method of a tensor and a tensor or number."""
    apply = of_two(compute)
    return lambda x, y, /: apply(tensor_of(x), y)


def divided(x: Any, y: Any, /, *, rounding_mode: Any = None) -> AbstractTensor:
    """Return what `torch.div` gives."""
    require(rounding_mode in {None, "floor", "trunc"})
    return of_two(operator.truediv)(tensor_of(x), y)


def of_two_assigned(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the shape function of an operator such as ``*=``, which gives another number for a number."""
    numbers = of_numbers(compute)
    return lambda x, y, /: numbers(x, y) if type(x) in _NUMBERS else of_two_in_place(x, y)


_NUMBERS = frozenset({bool, float, int})


def of_two_in_place(x: Any, y: Any, /) -> AbstractTensor:
    """Return the first of two operands, to which an operator has written."""
    x = in_place(x)
    if y.__class__ is AbstractTensor:
        # Of the same memory it may be another part, which torch refuses.
        require((y is x or base_of(y) is not base_of(x)) and broadcast(x.sizes, y.sizes) == x.sizes)
    else:
        require(is_number(y))
    return x


def compared(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the shape function of a comparison of tensors or numbers; numbers alone are compared."""
    apply, numbers = of_two(compare), of_numbers(compare)

    def compared(x: Any, y: Any, /) -> Any:
        is_abstract = x.__class__ is AbstractTensor or y.__class__ is AbstractTensor
        return AbstractFlags(apply(x, y).sizes) if is_abstract else numbers(x, y)

    return compared


def sizes_of_flags(mask: Any) -> tuple[int, ...]:
    """Return the sizes of a mask."""
    if mask.__class__ is AbstractFlags:
        return mask.sizes
    require(isinstance(mask, torch.Tensor) and mask.dtype is torch.bool)
    return mask.shape


def of_flags(x: Any, y: Any, /) -> AbstractFlags:
    """Return what an operator of flags gives, such as ``&``."""
    return AbstractFlags(broadcast(sizes_of_flags(x), sizes_of_flags(y)))


def turned(x: Any, /) -> AbstractFlags:
    """Return what ``~`` gives of flags."""
    return AbstractFlags(sizes_of_flags(x))


def chosen(condition: Any, input: Any, other: Any, /) -> AbstractTensor:
    """Return what `torch.where` gives of flags, and of tensors or numbers, of which one is a tensor."""
    given = [one for one in (input, other) if not is_number(one)]
    require(given)
    sizes = sizes_of_flags(condition)
    for one in given:
        sizes = broadcast(sizes, tensor_of(one).sizes)
    return new_tensor(sizes)


def of_tensors(x: Any, y: Any, /) -> AbstractTensor:
    """Return what a function of two tensors gives that takes no numbers."""
    return new_tensor(broadcast(tensor_of(x).sizes, tensor_of(y).sizes))


def gated(x: Any, /, dim: Any = -1) -> AbstractTensor:
    """Return what `torch.nn.functional.glu` gives: half as much along a dimension."""
    sizes = list(tensor_of(x).sizes)
    place = place_of(dim, len(sizes))
    require(sizes[place] % 2 == 0)
    sizes[place] //= 2
    return new_tensor(sizes)


def bent_softly(x: Any, /, beta: Any = 1, threshold: Any = 20) -> AbstractTensor:
    """Return what `torch.nn.functional.softplus` gives."""
    require(is_number(beta) and is_number(threshold))
    return elementwise(x)


def of_triangle(x: Any, /, diagonal: Any = 0) -> AbstractTensor:
    """Return what `torch.tril` and `torch.triu` give."""
    require(len(tensor_of(x).sizes) > 1 and type(diagonal) is int and abs(diagonal) < _LARGEST_PLACE)
    return new_tensor(x.sizes)


_LARGEST_PLACE = 2**31


def filled(x: Any, /, mask: Any, value: Any) -> AbstractTensor:
    """Return what `masked_fill` gives."""
    require(is_number(value) or (type(value) is float and (math.isinf(value) or abs(value) <= _LARGEST)))
    require(broadcast(tensor_of(x).sizes, sizes_of_flags(mask)) == x.sizes)
    return elementwise(x)
