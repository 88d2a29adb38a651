"""The operators by which graphs say where values are quantized, for every plugin and backend the same.

They are registered as ``torch.ops.fxplug`` when the semantics are imported, as they are with every graph module, so
that files can name them. All are made of operators of ATen, and have no effects.

A quantized value is ``clamp(round(x * (1 / scale)) + zero_point, quant_min, quant_max)``. Halves are rounded to the
even neighbour, and the reciprocal of the scale is taken first, as torch's own kernels do; values of lower precision are
made float32 before. What is no number has no quantized value: it may become any. Going back is
``(q - zero_point) * scale``, in float32, rounded once to the dtype that is asked for. Where values are stored as int32,
both are computed in float64, since float32 does not hold them all.

Values that are stored as floating-point numbers of eight bits are not made whole numbers: `clamp` keeps them within
`quant_min` and `quant_max`, so that what is too large becomes the largest and not infinite or no number, and they are
rounded once, to the nearest number of the dtype, ties to even.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["QUANTIZED_DTYPES", "quantization_decompositions"]

QUANTIZED_DTYPES = {
    torch.int8: (-128, 127),
    torch.uint8: (0, 255),
    torch.int16: (-32768, 32767),
    torch.int32: (-(2**31), 2**31 - 1),
    torch.float8_e4m3fn: (-448, 448),
    torch.float8_e5m2: (-57344, 57344),
}
"""What quantized values can be stored as -> the least and the greatest."""

_WIDE = (torch.float32, torch.float64)


def _check(
    name: str, values: torch.Tensor, bounds: tuple[int, int], dtype: torch.dtype, *, is_stored: bool
) -> None:
    """Check what does not depend on values.

    Raises:
        InvalidArgumentError: It does not fit.
    """
    if dtype not in QUANTIZED_DTYPES:
        known = ", ".join(map(str, QUANTIZED_DTYPES))
        raise InvalidArgumentError(
            f"Cannot {name} with {dtype}: quantized values are stored as one of {known}."
        )
    least, greatest = QUANTIZED_DTYPES[dtype]
    if not least <= bounds[0] <= bounds[1] <= greatest:
        raise InvalidArgumentError(
            f"Cannot {name} between {bounds[0]} and {bounds[1]}: {dtype} holds {least} to {greatest}, and the first "
            "bound is not above the second."
        )
    if is_stored and values.dtype != dtype:
        raise InvalidArgumentError(
            f"Cannot {name} a tensor of {values.dtype}: its values were to be stored as {dtype}."
        )
    if not is_stored and not values.is_floating_point():
        raise InvalidArgumentError(
            f"Cannot {name} a tensor of {values.dtype}: only floating-point values are quantized."
        )


def _check_scale(name: str, scale: float) -> None:
    if not 0 < scale < float("inf"):
        raise InvalidArgumentError(
            f"Cannot {name} with the scale {scale}: it has to be finite and above zero."
        )


def _check_single(name: str, **tensors: torch.Tensor) -> None:
    for argument, tensor in tensors.items():
        if tensor.numel() != 1:
            raise InvalidArgumentError(
                f"Cannot {name} with {argument} of shape {list(tensor.shape)}: there is one for all values. Use the "
                "operator per channel."
            )


def _along(name: str, axis: int, values: torch.Tensor, **tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return tensors with one value for each channel, so that they broadcast along the axis.

    Raises:
        InvalidArgumentError: There is no such axis, or another number of values.
    """
    rank = values.dim()
    if not -rank <= axis < rank:
        raise InvalidArgumentError(f"Cannot {name} along axis {axis}: the tensor has {rank} dimensions.")
    shape = [1] * rank
    shape[axis] = -1
    for argument, tensor in tensors.items():
        if tensor.dim() != 1 or tensor.shape[0] != values.shape[axis]:
            raise InvalidArgumentError(
                f"Cannot {name} along axis {axis} with {argument} of shape {list(tensor.shape)}: there are "
                f"{values.shape[axis]} channels, and there is one value for each."
            )
    return [tensor.reshape(shape) for tensor in tensors.values()]


def _quantized(
    values: torch.Tensor, scale: Any, zero_point: Any, bounds: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    if dtype is torch.int32:
        wide = values.to(torch.float64)
    else:
        wide = values if values.dtype in _WIDE else values.to(torch.float32)
    reciprocal = 1.0 / (scale.to(torch.float32) if isinstance(scale, torch.Tensor) else scale)
    steps = wide * reciprocal
    if dtype.is_floating_point:  # Which could have gradients, and quantized values have none.
        return torch.clamp(steps + zero_point, *bounds).to(dtype).detach()
    return torch.clamp(torch.round(steps) + zero_point, *bounds).to(dtype)


def _restored(values: torch.Tensor, scale: Any, zero_point: Any, out_dtype: torch.dtype) -> torch.Tensor:
    wide = torch.float64 if torch.float64 is out_dtype or values.dtype == torch.int32 else torch.float32
    return ((values.to(wide) - zero_point) * scale).to(out_dtype)


def _quantize_per_tensor(
    values: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    _check("quantize", values, (quant_min, quant_max), dtype, is_stored=False)
    _check_scale("quantize", scale)
    return _quantized(values, scale, zero_point, (quant_min, quant_max), dtype)


def _quantize_per_tensor_tensor(
    values: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    _check("quantize", values, (quant_min, quant_max), dtype, is_stored=False)
    _check_single("quantize", scale=scale, zero_point=zero_point)
    return _quantized(values, scale.reshape(()), zero_point.reshape(()), (quant_min, quant_max), dtype)


def _quantize_per_channel(
    values: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    _check("quantize", values, (quant_min, quant_max), dtype, is_stored=False)
    wide, zeros = _along("quantize", axis, values, scales=scales, zero_points=zero_points)
    return _quantized(values, wide, zeros, (quant_min, quant_max), dtype)


def _dequantize_per_tensor(
    values: torch.Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    _check("dequantize", values, (quant_min, quant_max), dtype, is_stored=True)
    return _restored(values, scale, zero_point, out_dtype or torch.float32)


def _dequantize_per_tensor_tensor(
    values: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    _check("dequantize", values, (quant_min, quant_max), dtype, is_stored=True)
    _check_single("dequantize", scale=scale, zero_point=zero_point)
    return _restored(values, scale.reshape(()), zero_point.reshape(()), out_dtype or torch.float32)


def _dequantize_per_channel(  # noqa: PLR0913
    values: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    _check("dequantize", values, (quant_min, quant_max), dtype, is_stored=True)
    wide, zeros = _along("dequantize", axis, values, scales=scales, zero_points=zero_points)
    return _restored(values, wide, zeros, out_dtype or torch.float32)


_OUT = "ScalarType? out_dtype=None"
_BOUNDS = "int quant_min, int quant_max, ScalarType dtype"
_OPERATORS: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "quantize_per_tensor": (
        f"(Tensor input, float scale, int zero_point, {_BOUNDS}) -> Tensor",
        _quantize_per_tensor,
    ),
    "quantize_per_tensor.tensor": (
        f"(Tensor input, Tensor scale, Tensor zero_point, {_BOUNDS}) -> Tensor",
        _quantize_per_tensor_tensor,
    ),
    "quantize_per_channel": (
        f"(Tensor input, Tensor scales, Tensor zero_points, int axis, {_BOUNDS}) -> Tensor",
        _quantize_per_channel,
    ),
    "dequantize_per_tensor": (
        f"(Tensor input, float scale, int zero_point, {_BOUNDS}, *, {_OUT}) -> Tensor",
        _dequantize_per_tensor,
    ),
    "dequantize_per_tensor.tensor": (
        f"(Tensor input, Tensor scale, Tensor zero_point, {_BOUNDS}, *, {_OUT}) -> Tensor",
        _dequantize_per_tensor_tensor,
    ),
    "dequantize_per_channel": (
        f"(Tensor input, Tensor scales, Tensor zero_points, int axis, {_BOUNDS}, *, {_OUT}) -> Tensor",
        _dequantize_per_channel,
    ),
}
"""Name and overload -> schema, and what computes it."""


def _remember(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    values, scale, zero_point, *more = inputs
    ctx.save_for_backward(values, scale, zero_point)
    ctx.axis = more[0] if len(more) > 3 else None


def _gradient_of_scale(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    values, scale, zero_point = ctx.saved_tensors
    if ctx.axis is None:
        steps = values.to(torch.float32) - zero_point.reshape(())
        found = (gradient * steps).sum().reshape(scale.shape)
        return None, found.to(scale.dtype), None, None, None, None
    (zeros,) = _along("dequantize", ctx.axis, values, zero_points=zero_point)
    others = [at for at in range(values.dim()) if at != ctx.axis % values.dim()]
    found = gradient * (values.to(torch.float32) - zeros)
    found = found.sum(others) if others else found
    return None, found.to(scale.dtype), None, None, None, None, None


def _without_data(name: str) -> Callable[..., torch.Tensor]:
    """Return what tells size, dtype and layout of a result; what does not fit is refused as with data."""
    verb = name.partition("_")[0]
    is_stored = verb == "dequantize"

    def describe(
        values: torch.Tensor, scale: Any, zero_point: Any, *more: Any, out_dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        *axis, quant_min, quant_max, dtype = more
        _check(verb, values, (quant_min, quant_max), dtype, is_stored=is_stored)
        if axis:
            _along(verb, axis[0], values, scales=scale, zero_points=zero_point)
        elif isinstance(scale, torch.Tensor):
            _check_single(verb, scale=scale, zero_point=zero_point)
        return torch.empty_like(values, dtype=(out_dtype or torch.float32) if is_stored else dtype)

    return describe


def _register() -> torch.library.Library:
    library = torch.library.Library("fxplug", "FRAGMENT")
    if hasattr(torch.ops.fxplug, "quantize_per_tensor"):
        # This module was imported before. What registered the operators takes them away when it ends.
        former: torch.library.Library | None = globals().get("LIBRARY")
        return library if former is None else former
    for name, (schema, function) in _OPERATORS.items():
        library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
        # Made of operators that every device has.
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"fxplug::{name}", _without_data(name), lib=library)
    for name in ("dequantize_per_tensor.tensor", "dequantize_per_channel"):
        torch.library.register_autograd(
            f"fxplug::{name}", _gradient_of_scale, setup_context=_remember, lib=library
        )
    return library


LIBRARY = _register()
"""Keeps the operators registered."""


def quantization_decompositions() -> dict[Any, Callable[..., torch.Tensor]]:
    """Return operator overload -> the function that computes the same by operators of ATen.

    A table for ``fxplug.decompose(..., table=...)``, where a backend knows no quantization.
    """
    found: dict[Any, Callable[..., torch.Tensor]] = {}
    for name, (_, function) in _OPERATORS.items():
        packet, _, overload = name.partition(".")
        found[getattr(getattr(torch.ops.fxplug, packet), overload or "default")] = function
    return found
