"""Operators of ATen by others, where torch has no table for them or one that does not serve gradients."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from fxplug.semantics.internals import FUNCTIONAL_BATCH_NORM, RRELU, TRAINED_BATCH_NORM, USED_BATCH_NORM
from fxplug.semantics.symbols import lies_as

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["aten_decompositions", "core_decompositions", "take_along_dim"]

aten = torch.ops.aten


def aten_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return what is expressed by others in every case: operators that stand for writes, and have no gradients."""
    return {aten.copy.default: _copy, RRELU: _rrelu}


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return operator -> a function that computes the same by core operators: torch's own table, and ours."""
    export: Any = importlib.import_module("torch.export")
    table: dict[Any, Callable[..., Any]] = dict(export.default_decompositions().materialize())
    # Written by `clone` in a region without gradients: alone, it would let gradients through.
    table.pop(aten.detach.default, None)
    table.update(
        {
            FUNCTIONAL_BATCH_NORM: _batch_norm,
            aten.max.default: _largest,
            aten.min.default: _smallest,
            aten.rand_like.default: _like(aten.rand.default),
            aten.randn_like.default: _like(aten.randn.default),
            aten.uniform.default: _uniform,
            aten.exponential.default: _exponential,
        }
    )
    return {**table, **aten_decompositions()}


def _copy(into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:  # noqa: FBT001, FBT002
    """Return what `into` holds once `source` is copied there."""
    value = source
    if source.dtype != into.dtype or source.device != into.device:
        value = value.to(device=into.device, dtype=into.dtype, non_blocking=non_blocking)
    if source.shape != into.shape:
        value = aten.expand.default(value, list(into.shape))
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    for memory_format in formats:
        if lies_as(into, memory_format):
            return aten.clone.default(value, memory_format=memory_format)
    return aten.clone.default(value)


def _rrelu(
    values: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,  # noqa: FBT001, FBT002
    generator: Any = None,
) -> Any:
    """Return a leaky relu with random slopes, and the slopes: torch's own takes its gradient from the empty `noise`."""
    if generator is not None:
        return NotImplemented
    if not training:
        return torch.where(values <= 0, values * ((lower + upper) / 2), values), noise
    drawn = aten.rand.default(list(values.shape), dtype=values.dtype, device=values.device)
    slopes = torch.where(values <= 0, drawn * (upper - lower) + lower, 1.0)
    return values * slopes, slopes


def _largest(values: torch.Tensor) -> Any:
    return aten.amax.default(values, [])


def _smallest(values: torch.Tensor) -> Any:
    return aten.amin.default(values, [])


def take_along_dim(values: torch.Tensor, indices: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Compute what `torch.take_along_dim` does, whose kernel asks for sizes as numbers, which open ones are not."""
    if dim is None:
        return torch.gather(values.reshape(-1), 0, indices.reshape(-1))
    if values.dim() != indices.dim() or not -values.dim() <= dim < values.dim():
        return torch.take_along_dim(values, indices, dim)  # Which says what is wrong.
    picked, whole = list(values.shape), list(indices.shape)
    picked[dim], whole[dim] = indices.shape[dim], values.shape[dim]
    return torch.gather(
        values.expand(torch.broadcast_shapes(values.shape, whole)),
        dim,
        indices.expand(torch.broadcast_shapes(indices.shape, picked)),
    )


def _like(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes a random tensor like another one."""

    def random_like(
        values: torch.Tensor,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        **others: Any,
    ) -> Any:
        if layout not in {None, torch.strided} or values.layout is not torch.strided:
            return NotImplemented
        others.pop("memory_format", None)
        return make(list(values.shape), dtype=dtype or values.dtype, device=device or values.device, **others)

    return random_like


def _uniform(values: torch.Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None:
        return NotImplemented
    return (
        aten.rand.default(list(values.shape), dtype=values.dtype, device=values.device) * (high - low) + low
    )


def _exponential(values: torch.Tensor, rate: float = 1.0, *, generator: Any = None) -> Any:
    if generator is not None:
        return NotImplemented
    # Numbers from 0 on and below 1, so that none of the logarithms is infinite.
    uniform = aten.rand.default(list(values.shape), dtype=values.dtype, device=values.device)
    return aten.neg.default(aten.log1p.default(aten.neg.default(uniform))) / rate


def _batch_norm(  # noqa: PLR0913, PLR0917 - the operator's parameters
    values: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,  # noqa: FBT001
    momentum: float,
    eps: float,
) -> Any:
    """Return the results of a batch norm and its new statistics."""
    if not training:
        found = USED_BATCH_NORM(values, weight, bias, running_mean, running_var, momentum, eps)
        return (*found, running_mean, running_var)
    found = TRAINED_BATCH_NORM(values, weight, bias, training, momentum, eps)
    with torch.no_grad():
        dims = [at for at in range(values.dim()) if at != 1]
        wide = values.to(running_var.dtype)
        mean, var = aten.mean.dim(wide, dims), aten.var.correction(wide, dims, correction=1)
        new_mean = mean * momentum + running_mean * (1 - momentum)
        new_var = var * momentum + running_var * (1 - momentum)
    return (*found, new_mean, new_var)
