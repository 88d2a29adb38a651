# ruff: noqa: FBT001, FBT002 - ATen's signatures
"""Operators that make one value of several."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug_openvino.conversion import Conversion, ConverterRecord, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["records"]

aten = torch.ops.aten
_OF_TRUTHS = {"reduce_max": "reduce_logical_or", "reduce_min": "reduce_logical_and"}


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


def axes_of(build: Conversion, x: Value, dims: Any) -> Any:
    """Return the dimensions that are reduced; all where none is given."""
    given = (
        list(range(x.rank))
        if dims is None or dims == []
        else ([dims] if isinstance(dims, int) else list(dims))
    )
    return build.ints([x.axis(dim) for dim in given]) if x.rank else None


def _reduced(build: Conversion, operation: str, x: Value, dims: Any, keep: bool, dtype: torch.dtype) -> Any:
    value = build.cast(x, dtype)
    axes = axes_of(build, x, dims)
    return value if axes is None else build.out(getattr(build.ops, operation)(value, axes, keep))


def _reduction(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, dims: Any = None, keep: bool = False, **_: Any) -> Any:
        dtype = build.like.dtype
        name = _OF_TRUTHS.get(operation, operation) if dtype is torch.bool else operation
        return _reduced(build, name, x, dims, keep, dtype)

    return convert


def _logical(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, dims: Any = None, keep: bool = False) -> Any:
        found = _reduced(build, operation, x, dims, keep, torch.bool)
        return build.ops.convert(found, build.type_of(build.like.dtype))

    return convert


def _extreme(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, dim: int, keep: bool = False) -> Any:
        values = _reduced(build, operation, x, dim, keep, x.dtype)
        return values, _position(build, x, dim, keep, operation.removeprefix("reduce_"))

    return convert


def _position(build: Conversion, x: Value, dim: int, keep: bool, mode: str) -> Any:
    if not x.rank:
        return build.constant(0)
    found = build.ops.topk(x.output, build.constant(1), x.axis(dim), mode, "value", "i64", True).output(1)
    return found if keep else build.ops.squeeze(found, build.ints([x.axis(dim)]))


def _arg(mode: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, dim: int | None = None, keep: bool = False) -> Any:
        if dim is not None:
            return _position(build, x, dim, keep, mode)
        if keep:
            raise build.fail("it keeps the dimensions of a place in the whole tensor")
        flat = build.ops.reshape(x.output, build.ints([-1]), False)
        found = build.ops.topk(flat, build.constant(1), 0, mode, "value", "i64", True).output(1)
        return build.ops.squeeze(found, build.ints([0]))

    return convert


def _topk(
    build: Conversion, x: Value, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> Any:
    made = build.ops.topk(
        x.output, build.constant(k), x.axis(dim), "max" if largest else "min", "value", "i64", True
    )
    return made.output(0), made.output(1)


def _cumsum(build: Conversion, x: Value, dim: int, **_: Any) -> Any:
    value = build.cast(x, build.like.dtype)
    return build.ops.cum_sum(value, build.constant(x.axis(dim))) if x.rank else value


def moments(build: Conversion, x: Value, dims: Any, correction: Any, keep: bool) -> tuple[Any, Any]:
    """Return variance and mean."""
    axes = axes_of(build, x, dims)
    if axes is None:
        raise build.fail("it asks for the variance of a single number")
    given = range(x.rank) if dims is None or dims == [] else ([dims] if isinstance(dims, int) else dims)
    mean = build.ops.reduce_mean(x.output, axes, True)
    apart = build.ops.subtract(x.output, mean)
    total = build.ops.reduce_sum(build.ops.multiply(apart, apart), axes, keep)
    places = build.ints([x.axis(dim) for dim in given])
    sizes = build.ops.gather(build.shape_of(x), places, build.constant(0))
    count = build.ops.convert(build.ops.reduce_prod(sizes, build.ints([0]), False), "f32")
    taken = build.constant(1.0 if correction is None else float(correction), torch.float32)
    divisor = build.ops.maximum(build.ops.subtract(count, taken), build.constant(0.0, torch.float32))
    variance = build.ops.divide(total, build.ops.convert(divisor, build.type_of(x.dtype)))
    return build.out(variance), build.out(mean if keep else build.ops.squeeze(mean, axes))


def _var(build: Conversion, x: Value, dims: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    return moments(build, x, dims, correction, keepdim)[0]


def _std(build: Conversion, x: Value, dims: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    return build.ops.sqrt(moments(build, x, dims, correction, keepdim)[0])


def _var_mean(
    build: Conversion, x: Value, dims: Any = None, correction: Any = None, keepdim: bool = False
) -> Any:
    return moments(build, x, dims, correction, keepdim)


def _logsumexp(build: Conversion, x: Value, dims: Any, keep: bool = False) -> Any:
    axes = axes_of(build, x, dims)
    if axes is None:
        return x.output
    top = build.ops.reduce_max(x.output, axes, True)
    total = build.ops.reduce_sum(build.ops.exp(build.ops.subtract(x.output, top)), axes, keep)
    return build.ops.add(build.ops.log(total), top if keep else build.ops.squeeze(top, axes))


def _norm(build: Conversion, x: Value, order: Any = 2, dims: Any = None, keep: bool = False, **_: Any) -> Any:
    axes = axes_of(build, x, dims)
    if axes is None:
        raise build.fail("it asks for the norm of a single number")
    ops, dtype = build.ops, build.like.dtype
    value = build.cast(x, dtype)
    if order in (1, 2):
        return getattr(ops, f"reduce_l{int(order)}")(value, axes, keep)
    if order in (math.inf, -math.inf):
        return (ops.reduce_max if order > 0 else ops.reduce_min)(ops.abs(value), axes, keep)
    if order == 0:
        counted = ops.convert(ops.not_equal(value, build.constant(0, dtype)), build.type_of(dtype))
        return ops.reduce_sum(counted, axes, keep)
    total = ops.reduce_sum(ops.power(ops.abs(value), build.constant(order, dtype)), axes, keep)
    return ops.power(total, build.constant(1 / order, dtype))


def _norm_of(build: Conversion, x: Value, order: Any, dims: Any, keep: bool = False, **_: Any) -> Any:
    return _norm(build, x, 2 if order is None else order, dims, keep)


def _sort(build: Conversion, x: Value, dim: int = -1, falling: bool = False) -> Any:
    return _sort_stable(build, x, stable=None, dim=dim, descending=falling)


def _sort_stable(
    build: Conversion, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    if not x.rank or x.dtype is torch.bool:
        raise build.fail("it sorts truth values, or a single number")
    axis = x.axis(dim)
    size = build.ops.gather(build.shape_of(x), build.constant(axis), build.constant(0))
    mode = "max" if descending else "min"
    made = build.ops.topk(x.output, size, axis, mode, "value", "i64", True)
    return made.output(0), made.output(1)


def _aminmax(build: Conversion, x: Value, *, dim: int | None = None, keepdim: bool = False) -> Any:
    parts = (_reduced(build, f"reduce_{name}", x, dim, keepdim, x.dtype) for name in ("min", "max"))
    return tuple(parts)


def _count_nonzero(build: Conversion, x: Value, dims: Any = None) -> Any:
    truths = Value(build.cast(x, torch.bool), x.like.to(torch.bool))
    return _reduced(build, "reduce_sum", truths, dims, False, torch.int64)


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.sum.default, _reduction("reduce_sum")),
    (aten.sum.dim_IntList, _reduction("reduce_sum")),
    (aten.mean.default, _reduction("reduce_mean")),
    (aten.mean.dim, _reduction("reduce_mean")),
    (aten.amax.default, _reduction("reduce_max")),
    (aten.amin.default, _reduction("reduce_min")),
    (aten.max.default, _reduction("reduce_max")),
    (aten.min.default, _reduction("reduce_min")),
    (aten.prod.default, _reduction("reduce_prod")),
    (aten.prod.dim_int, _reduction("reduce_prod")),
    (aten.max.dim, _extreme("reduce_max")),
    (aten.min.dim, _extreme("reduce_min")),
    (aten.any.default, _logical("reduce_logical_or")),
    (aten.any.dim, _logical("reduce_logical_or")),
    (aten.all.default, _logical("reduce_logical_and")),
    (aten.all.dim, _logical("reduce_logical_and")),
    (aten.argmax.default, _arg("max")),
    (aten.argmin.default, _arg("min")),
    (aten.topk.default, _topk),
    (aten.cumsum.default, _cumsum),
    (aten.var.correction, _var),
    (aten.std.correction, _std),
    (aten.var_mean.correction, _var_mean),
    (aten.logsumexp.default, _logsumexp),
    (aten.linalg_vector_norm.default, _norm),
    (aten.norm.ScalarOpt_dim, _norm_of),
    (aten.sort.default, _sort),
    (aten.sort.stable, _sort_stable),
    (aten.aminmax.default, _aminmax),
    (aten.count_nonzero.dim_IntList, _count_nonzero),
    (aten.any.dims, _logical("reduce_logical_or")),
    (aten.all.dims, _logical("reduce_logical_and")),
]
