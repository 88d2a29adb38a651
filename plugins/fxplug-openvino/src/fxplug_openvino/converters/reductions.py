# ruff: noqa: FBT001, FBT002 - ATen's signatures
"""Operators that make one value of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug_openvino.conversion import Conversion, ConverterRecord, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["records"]

aten = torch.ops.aten


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
        return _reduced(build, operation, x, dims, keep, build.like.dtype)

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
    count = 1
    for dim in given:
        count *= x.like.shape[x.axis(dim)]
    mean = build.ops.reduce_mean(x.output, axes, True)
    apart = build.ops.subtract(x.output, mean)
    total = build.ops.reduce_sum(build.ops.multiply(apart, apart), axes, keep)
    divisor = max(count - (1 if correction is None else correction), 0)
    variance = build.ops.divide(total, build.constant(divisor, x.dtype))
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
    if axes is None or order not in (1, 2):
        raise build.fail(f"norms of order {order} are not supported")
    value = build.cast(x, build.like.dtype)
    return getattr(build.ops, f"reduce_l{int(order)}")(value, axes, keep)


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
]
