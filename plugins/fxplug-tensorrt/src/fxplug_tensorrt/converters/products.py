"""Products of matrices, and attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug_tensorrt.conversion import ConverterRecord
from fxplug_tensorrt.converters.layers import layer_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug_tensorrt.network import Conversion, Value

__all__ = ["records"]

aten = torch.ops.aten


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


def _product(build: Conversion, x: Value, other: Value, *, transposed: bool = False) -> Value:
    """Return the product of two values with at least two dimensions."""
    if not x.is_floating:
        raise build.fail("TensorRT multiplies matrices of floating-point numbers only")
    return build.matmul(x, other, transposed=transposed)


def _matmul(build: Conversion, x: Value, other: Value) -> Value:
    """Multiply as ``torch.matmul`` does, where a vector is a row on the left, and a column on the right."""
    row, column = x.rank == 1, other.rank == 1
    made = _product(build, x.unsqueeze(0) if row else x, other.unsqueeze(1) if column else other)
    gone = ([-1] if column else []) + ([-2] if row else [])
    return made.squeeze(*gone)


def _added(build: Conversion, addend: Value, product: Value, beta: Any, alpha: Any) -> Value:
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:  # What is added may be NaN then.
        return scaled
    value = addend.to(build.like.dtype)
    return scaled + (value if beta == 1 else value * beta)


def _addmm(build: Conversion, addend: Value, x: Value, other: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    return _added(build, addend, _matmul(build, x, other), beta, alpha)


def _addbmm(build: Conversion, addend: Value, x: Value, other: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    return _added(build, addend, _product(build, x, other).reduce("SUM", [0]), beta, alpha)


def _addr(build: Conversion, addend: Value, x: Value, other: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    product = x.to(build.like.dtype).unsqueeze(1) * other.to(build.like.dtype).unsqueeze(0)
    return _added(build, addend, product, beta, alpha)


def _linear(build: Conversion, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if x.rank == 1:
        made = _product(build, x.unsqueeze(0), weight, transposed=True).squeeze(0)
    else:
        made = _product(build, x, weight, transposed=True)
    return made if bias is None else made + bias


def _cross(build: Conversion, x: Value, other: Value, *, dim: int = -1) -> Value:
    first, second = build.aligned(x, other)
    axis = first.axis(dim)

    def turned(value: Value, start: int) -> Value:
        return build.gather(value, build.constant([start % 3, (start + 1) % 3, (start + 2) % 3]), axis)

    return turned(first, 1) * turned(second, 2) - turned(first, 2) * turned(second, 1)


def _cdist(
    build: Conversion, x: Value, other: Value, p: float = 2.0, compute_mode: int | None = None
) -> Value:
    apart = (x.unsqueeze(x.rank - 1) - other.unsqueeze(other.rank - 2)).unary("ABS")
    if p == 1:
        return apart.reduce("SUM", [-1])
    if p != 2:
        raise build.fail(f"distances of order {p} are not supported")
    return (apart * apart).reduce("SUM", [-1]).unary("SQRT")


# -- attention


def _attention(  # noqa: PLR0913 - ATen's signature
    build: Conversion,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *_: Any,
    attn_mask: Value | None = None,
    scale: float | None = None,
    **__: Any,
) -> tuple[Any, ...]:
    made = _attended(build, (query, key, value), dropout_p, attn_mask, scale, is_causal=is_causal)
    return (made, *[None] * (len(build.like) - 1))


def _efficient_attention(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    compute_log_sumexp: bool,  # noqa: FBT001
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    made = _attended(build, (query, key, value), dropout_p, attn_bias, scale, is_causal=is_causal)
    return (made, *[None] * (len(build.like) - 1))


def _attended(
    build: Conversion,
    parts: tuple[Value, Value, Value],
    dropout_p: float,
    mask: Value | None,
    scale: float | None,
    *,
    is_causal: bool,
) -> Value:
    query, key, value = parts
    if dropout_p:
        raise build.fail("it draws random numbers; call eval() on the model before it is captured")
    factor = 1 / math.sqrt(query.known_size(-1)) if scale is None else scale
    scores = build.matmul(query * factor, key, transposed=True)
    if is_causal:
        sizes = (query.known_size(-2), key.known_size(-2))
        hidden = torch.ones(sizes, dtype=torch.bool).triu(1)
        scores = build.select(build.tensor(hidden), -math.inf, scores)
    if mask is not None:
        scores = (
            build.select(mask, scores, -math.inf)
            if mask.dtype is torch.bool
            else scores + mask.to(query.dtype)
        )
    return build.matmul(build.softmax(scores, -1), value)


def _multi_head_attention(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    query: Value,
    key: Value,
    value: Value,
    width: int,
    heads: int,
    qkv_weight: Value,
    qkv_bias: Value,
    proj_weight: Value,
    proj_bias: Value,
    mask: Value | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002
    average_attn_weights: bool = True,  # noqa: FBT001, FBT002
    mask_type: int | None = None,
) -> tuple[Value, Value | None]:
    deep = width // heads

    def split(source: Value, number: int) -> Value:
        weight = build.part(qkv_weight, 0, number * width, width)
        bias = build.part(qkv_bias, 0, number * width, width)
        made = build.matmul(source, weight, transposed=True) + bias
        return made.reshape([source.size(0), source.size(1), heads, deep]).permute([0, 2, 1, 3])

    scores = build.matmul(split(query, 0) * (1 / math.sqrt(deep)), split(key, 1), transposed=True)
    if mask is not None:
        scores = _masked(build, scores, mask, mask_type)
    found = build.softmax(scores, -1)
    joined = build.matmul(found, split(value, 2)).permute([0, 2, 1, 3])
    joined = joined.reshape([query.size(0), query.size(1), width])
    made = build.matmul(joined, proj_weight, transposed=True) + proj_bias
    if not need_weights:
        return made, None
    return made, found.reduce("AVG", [1]) if average_attn_weights else found


def _masked(build: Conversion, scores: Value, mask: Value, mask_type: int | None) -> Value:
    if mask.dtype is not torch.bool:
        return scores + mask.to(scores.dtype)
    hidden = mask.unsqueeze(1, 2) if mask_type == 1 else mask  # Of keys: batch x length.
    return build.select(hidden, -math.inf, scores)


def _encoder_layer(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    width: int,
    heads: int,
    qkv_weight: Value,
    qkv_bias: Value,
    proj_weight: Value,
    proj_bias: Value,
    use_gelu: bool,  # noqa: FBT001
    norm_first: bool,  # noqa: FBT001
    eps: float,
    *rest: Any,
) -> Value:
    weight_1, bias_1, weight_2, bias_2, inner, inner_bias, outer, outer_bias, *masks = rest
    mask, kind = masks[0] if masks else None, masks[1] if len(masks) > 1 else None

    def norm(value: Value, weight: Value, bias: Value) -> Value:
        return layer_norm(build, value, 1, weight, bias, eps)

    def attend(value: Value) -> Value:
        parts = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _multi_head_attention(
            build, value, value, value, width, heads, *parts, mask, False, True, kind
        )[0]

    def feed(value: Value) -> Value:
        wide = build.matmul(value, inner, transposed=True) + inner_bias
        active = build.activation("GELU_ERF" if use_gelu else "RELU", wide)
        return build.matmul(active, outer, transposed=True) + outer_bias

    if norm_first:
        x = x + attend(norm(x, weight_1, bias_1))
        return x + feed(norm(x, weight_2, bias_2))
    x = norm(x + attend(x), weight_1, bias_1)
    return norm(x + feed(x), weight_2, bias_2)


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.mm.default, _matmul),
    (aten.bmm.default, _matmul),
    (aten.mv.default, _matmul),
    (aten.dot.default, _matmul),
    (aten.vdot.default, _matmul),
    (aten.matmul.default, _matmul),
    (aten.linear.default, _linear),
    (aten.addmm.default, _addmm),
    (aten.baddbmm.default, _addmm),
    (aten.addmv.default, _addmm),
    (aten.addbmm.default, _addbmm),
    (aten.addr.default, _addr),
    (aten.linalg_cross.default, _cross),
    (aten._cdist_forward.default, _cdist),
    (aten._scaled_dot_product_flash_attention_for_cpu.default, _attention),
    (aten._scaled_dot_product_flash_attention.default, _attention),
    (aten._scaled_dot_product_efficient_attention.default, _efficient_attention),
    (aten._scaled_dot_product_cudnn_attention.default, _efficient_attention),
    (aten._native_multi_head_attention.default, _multi_head_attention),
    (aten._transformer_encoder_layer_fwd.default, _encoder_layer),
]
