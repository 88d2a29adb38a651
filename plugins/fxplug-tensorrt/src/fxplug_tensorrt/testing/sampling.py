"""Layers of TensorRT that read tensors at other places, in PyTorch. Part of the test tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812 - the name everybody knows it by

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["resized", "sampled", "sliced"]


def sliced(
    x: torch.Tensor,
    starts: Sequence[int],
    sizes: Sequence[int],
    steps: Sequence[int],
    mode: str,
    fill: torch.Tensor | None,
) -> torch.Tensor:
    """Return a part of a tensor; the mode says what is outside of it."""
    outside = torch.zeros(tuple(sizes), dtype=torch.bool)
    made = x
    for dim, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        length = x.shape[dim]
        places = start + torch.arange(size) * step
        wrong = (places < 0) | (places >= length)
        outside |= wrong.reshape([-1 if number == dim else 1 for number in range(x.dim())])
        made = made.index_select(dim, _inside(places, length, mode))
    if mode == "STRICT_BOUNDS" and bool(outside.any()):
        raise AssertionError(
            f"a slice reads outside of its tensor: {starts} {sizes} {steps} of {tuple(x.shape)}"
        )
    if mode == "FILL":
        return torch.where(outside, torch.zeros((), dtype=x.dtype) if fill is None else fill, made)
    return made


def _inside(places: torch.Tensor, length: int, mode: str) -> torch.Tensor:
    if mode == "REFLECT" and length > 1:
        period = 2 * (length - 1)
        places = places % period
        return torch.where(places >= length, period - places, places)
    if mode == "WRAP":
        return places % length
    return places.clamp(0, length - 1)


def resized(x: torch.Tensor, sizes: Sequence[int], layer: Any) -> torch.Tensor:
    """Return a tensor in other sizes, one dimension after the other."""
    for dim, (have, want) in enumerate(zip(x.shape, sizes, strict=True)):
        if have != want:
            x = _along(x, dim, _coordinates(have, want, layer.coordinate_transformation), layer)
    return x


def _coordinates(have: int, want: int, kind: str) -> torch.Tensor:
    places = torch.arange(want, dtype=torch.float64)
    if kind == "ALIGN_CORNERS":
        return places * ((have - 1) / (want - 1)) if want > 1 else places * 0
    if kind == "HALF_PIXEL":
        return (places + 0.5) * (have / want) - 0.5
    return places * (have / want)


def _along(x: torch.Tensor, dim: int, places: torch.Tensor, layer: Any) -> torch.Tensor:
    length = x.shape[dim]

    def at(index: torch.Tensor) -> torch.Tensor:
        return x.index_select(dim, index.long().clamp(0, length - 1))

    def weight(values: torch.Tensor) -> torch.Tensor:
        return values.to(x.dtype).reshape([-1 if number == dim else 1 for number in range(x.dim())])

    if layer.resize_mode == "NEAREST":
        if layer.nearest_rounding not in {"FLOOR", "HALF_UP"}:
            raise NotImplementedError(f"it rounds by {layer.nearest_rounding}")
        return at((places + (0.5 if layer.nearest_rounding == "HALF_UP" else 0.0)).floor())
    floor = places.floor()
    apart = places - floor
    if layer.resize_mode == "LINEAR":
        places = places.clamp(0, length - 1)
        floor = places.floor()
        apart = places - floor
        return at(floor) * weight(1 - apart) + at(floor + 1) * weight(apart)
    parts = [at(floor + step) * weight(_cubic(apart - step, layer.cubic_coeff)) for step in (-1, 0, 1, 2)]
    return torch.stack(parts).sum(0)


def _cubic(apart: torch.Tensor, a: float) -> torch.Tensor:
    size = apart.abs()
    near = ((a + 2) * size - (a + 3)) * size * size + 1
    far = ((size - 5) * size + 8) * size * a - 4 * a
    return torch.where(size <= 1, near, torch.where(size < 2, far, torch.zeros_like(size)))


def sampled(
    x: torch.Tensor, grid: torch.Tensor, interpolation: str, outside: str, *, align: bool
) -> torch.Tensor:
    """Return an image at the places of a grid."""
    modes = {"LINEAR": "bilinear", "NEAREST": "nearest", "CUBIC": "bicubic"}
    paddings = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}
    return F.grid_sample(x, grid, modes[interpolation], paddings[outside], align)
