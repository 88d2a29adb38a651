# ruff: noqa: FBT001, FBT002 - ATen's signatures
"""Operators that make one value of several."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug_tensorrt.conversion import ConverterRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug_tensorrt.network import Conversion, Value

__all__ = ["axes_of", "records"]

aten = torch.ops.aten


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


def axes_of(x: Value, dims: Any) -> list[int]:
    """Return the dimensions that are reduced; all where none is given."""
    given = range(x.rank) if dims is None or dims == [] else ([dims] if isinstance(dims, int) else dims)
    return sorted({x.axis(dim) for dim in given}) if x.rank else []


def _reduction(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, dims: Any = None, keep: bool = False, **_: Any) -> Value:
        return x.to(build.like.dtype).reduce(operation, axes_of(x, dims), keep=keep)

    return convert


def _extreme_of_all(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, dims: Any = None, keep: bool = False) -> Value:
        value = x.to(torch.int32) if x.dtype is torch.bool else x
        return value.reduce(operation, axes_of(x, dims), keep=keep).to(x.dtype)

    return convert


def _truth(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, dims: Any = None, keep: bool = False) -> Value:
        found = x.to(torch.bool).to(torch.int32).reduce(operation, axes_of(x, dims), keep=keep)
        return found.to(build.like.dtype)

    return convert


def _count_nonzero(build: Conversion, x: Value, dims: Any = None) -> Value:
    return x.to(torch.bool).to(torch.int64).reduce("SUM", axes_of(x, dims))


def _first(build: Conversion, x: Value, dim: int, keep: bool, *, largest: bool) -> tuple[Value, Value]:
    if not x.rank:
        return x, build.constant(0)
    axis = x.axis(dim)
    values, places = build.top(x, 1, axis, largest=largest)
    return (values, places) if keep else (values.squeeze(axis), places.squeeze(axis))


def _extreme(*, largest: bool) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, dim: int, keep: bool = False) -> tuple[Value, Value]:
        return _first(build, x, dim, keep, largest=largest)

    return convert


def _place(*, largest: bool) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, dim: int | None = None, keep: bool = False) -> Value:
        if dim is not None or not x.rank:
            return _first(build, x, dim or 0, keep, largest=largest)[1]
        place = _first(build, x.reshape([-1]), 0, False, largest=largest)[1]
        return place.reshape([1] * x.rank) if keep else place

    return convert


def _aminmax(
    build: Conversion, x: Value, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    axes = axes_of(x, dim)
    return x.reduce("MIN", axes, keep=keepdim), x.reduce("MAX", axes, keep=keepdim)


# -- moments and norms


def _moments(build: Conversion, x: Value, dims: Any, correction: Any, keep: bool) -> tuple[Value, Value]:
    axes = axes_of(x, dims)
    if not axes:
        raise build.fail("it asks for the variance of a single number")
    count: Any = math.prod(size for axis in axes if isinstance(size := x.size(axis), int))
    for axis in axes:
        if not isinstance(size := x.size(axis), int):
            count = size * count
    mean = x.reduce("AVG", axes, keep=True)
    apart = x - mean
    total = (apart * apart).reduce("SUM", axes, keep=keep)
    less = 1 if correction is None else correction
    mean = mean if keep else mean.squeeze(*axes)
    if not isinstance(count, int):
        return total / (build.cast(count, x.dtype) - less).maximum(0), mean
    if count - less <= 0:
        raise build.fail("it asks for the variance of too few numbers")
    return total * (1 / (count - less)), mean


def _var(
    build: Conversion, x: Value, dims: Any = None, correction: Any = None, keepdim: bool = False
) -> Value:
    return _moments(build, x, dims, correction, keepdim)[0]


def _std(
    build: Conversion, x: Value, dims: Any = None, correction: Any = None, keepdim: bool = False
) -> Value:
    return _moments(build, x, dims, correction, keepdim)[0].unary("SQRT")


def _var_mean(
    build: Conversion, x: Value, dims: Any = None, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return _moments(build, x, dims, correction, keepdim)


def _std_mean(
    build: Conversion, x: Value, dims: Any = None, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    variance, mean = _moments(build, x, dims, correction, keepdim)
    return variance.unary("SQRT"), mean


def _logsumexp(build: Conversion, x: Value, dims: Any, keep: bool = False) -> Value:
    axes = axes_of(x, dims)
    value = x.to(build.like.dtype)
    top = value.reduce("MAX", axes, keep=True)
    top = build.select(top.unary("ISINF"), 0.0, top)
    total = (value - top).unary("EXP").reduce("SUM", axes, keep=True).unary("LOG") + top
    return total if keep else total.squeeze(*axes)


def _norm(
    build: Conversion, x: Value, order: Any = 2, dims: Any = None, keep: bool = False, **_: Any
) -> Value:
    axes = axes_of(x, dims)
    size = x.to(build.like.dtype).unary("ABS")
    if order in (math.inf, -math.inf):
        return size.reduce("MAX" if order > 0 else "MIN", axes, keep=keep)
    if order == 0:
        return (~size.equals(0)).to(build.like.dtype).reduce("SUM", axes, keep=keep)
    if order == 1:
        return size.reduce("SUM", axes, keep=keep)
    if order == 2:
        return (size * size).reduce("SUM", axes, keep=keep).unary("SQRT")
    powers = build.binary("POW", size, build.constant(order, size.dtype)).reduce("SUM", axes, keep=keep)
    return build.binary("POW", powers, build.constant(1 / order, size.dtype))


def _norm_of_dims(build: Conversion, x: Value, order: Any, dims: Any, keep: bool = False, **_: Any) -> Value:
    return _norm(build, x, 2 if order is None else order, dims, keep)


def _dist(build: Conversion, x: Value, other: Value, order: Any = 2) -> Value:
    return _norm(build, x - other, order)


# -- along a dimension


def _cumsum(build: Conversion, x: Value, dim: int, **_: Any) -> Value:
    value = x.to(build.like.dtype)
    if not x.rank:
        return value
    place = build.constant(x.axis(dim), torch.int32)
    layer = build.add(
        "cumulative", value.output, place.output, build.trt.CumulativeOperation.SUM, False, False
    )
    return build.value(layer, value.dtype)


def _cumprod(build: Conversion, x: Value, dim: int, **_: Any) -> Value:
    """Multiply, for each place, what is up to it: as large as the square of the dimension."""
    value = x.to(build.like.dtype)
    if not x.rank:
        return value
    axis = x.axis(dim)
    count = x.known_size(axis)
    if count > _LONGEST_PRODUCT:
        raise build.fail(f"it multiplies along {count} elements, and {_LONGEST_PRODUCT} are the most")
    mask = torch.ones(count, count, dtype=torch.bool).tril()
    shape = [1] * (axis + 0) + [count, count] + [1] * (x.rank - axis - 1)
    wide = build.select(build.tensor(mask.reshape(shape)), value.unsqueeze(axis), 1)
    return wide.reduce("PROD", [axis + 1])


_LONGEST_PRODUCT = 512

_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.sum.default, _reduction("SUM")),
    (aten.sum.dim_IntList, _reduction("SUM")),
    (aten.mean.default, _reduction("AVG")),
    (aten.mean.dim, _reduction("AVG")),
    (aten.prod.default, _reduction("PROD")),
    (aten.prod.dim_int, _reduction("PROD")),
    (aten.amax.default, _extreme_of_all("MAX")),
    (aten.amin.default, _extreme_of_all("MIN")),
    (aten.max.default, _extreme_of_all("MAX")),
    (aten.min.default, _extreme_of_all("MIN")),
    (aten.max.dim, _extreme(largest=True)),
    (aten.min.dim, _extreme(largest=False)),
    (aten.aminmax.default, _aminmax),
    (aten.argmax.default, _place(largest=True)),
    (aten.argmin.default, _place(largest=False)),
    (aten.any.default, _truth("MAX")),
    (aten.any.dim, _truth("MAX")),
    (aten.any.dims, _truth("MAX")),
    (aten.all.default, _truth("MIN")),
    (aten.all.dim, _truth("MIN")),
    (aten.all.dims, _truth("MIN")),
    (aten.count_nonzero.default, _count_nonzero),
    (aten.count_nonzero.dim_IntList, _count_nonzero),
    (aten.var.correction, _var),
    (aten.std.correction, _std),
    (aten.var_mean.correction, _var_mean),
    (aten.std_mean.correction, _std_mean),
    (aten.logsumexp.default, _logsumexp),
    (aten.linalg_vector_norm.default, _norm),
    (aten.norm.Scalar, _norm),
    (aten.norm.ScalarOpt_dim, _norm_of_dims),
    (aten.dist.default, _dist),
    (aten.cumsum.default, _cumsum),
    (aten.cumprod.default, _cumprod),
]
