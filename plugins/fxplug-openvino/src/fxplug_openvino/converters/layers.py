"""Operators of layers: products, convolutions, norms, pools and attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug_openvino.conversion import Conversion, ConverterRecord, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["records"]

aten = torch.ops.aten
_LARGEST_PRODUCT = 2**22


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


# -- products


def _floating(build: Conversion, *values: Value) -> None:
    for value in values:
        if not value.dtype.is_floating_point:
            raise build.fail("OpenVINO multiplies matrices of floating-point numbers only")


def _matmul(build: Conversion, x: Value, other: Value) -> Any:
    if not x.dtype.is_floating_point:
        return _whole_product(build, x, other)
    return build.ops.matmul(x.output, other.output, False, False)


def _whole_product(build: Conversion, x: Value, other: Value) -> Any:
    """Return the product of matrices of integers: OpenVINO's own is for floating-point numbers, which round."""
    if x.like.numel() * other.like.shape[-1] > _LARGEST_PRODUCT:
        raise build.fail("OpenVINO multiplies large matrices of floating-point numbers only")
    ops = build.ops
    first = x.output if x.rank > 1 else ops.unsqueeze(x.output, build.ints([0]))
    second = other.output if other.rank > 1 else ops.unsqueeze(other.output, build.ints([1]))
    spread = ops.multiply(ops.unsqueeze(first, build.ints([-1])), ops.unsqueeze(second, build.ints([-3])))
    made = ops.reduce_sum(spread, build.ints([-2]), False)
    dropped = [*([-2] if x.rank == 1 else []), *([-1] if other.rank == 1 else [])]
    return ops.squeeze(made, build.ints(dropped)) if dropped else made


def _added(build: Conversion, product: Any, addend: Any, beta: Any, alpha: Any) -> Any:
    dtype = build.like.dtype
    scaled = product if alpha == 1 else build.ops.multiply(product, build.constant(alpha, dtype))
    if beta == 0:
        return scaled
    value = build.cast(addend, dtype)
    value = value if beta == 1 else build.ops.multiply(value, build.constant(beta, dtype))
    return build.ops.add(scaled, value)


def _addmm(build: Conversion, addend: Value, x: Value, other: Value, beta: Any = 1, alpha: Any = 1) -> Any:
    _floating(build, x, other)
    return _added(build, build.ops.matmul(x.output, other.output, False, False), addend, beta, alpha)


def _linear(build: Conversion, x: Value, weight: Value, bias: Value | None = None) -> Any:
    product = build.ops.matmul(x.output, weight.output, False, True)
    return product if bias is None else build.ops.add(product, bias.output)


# -- convolutions


def _convolution(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    spatial = weight.rank - 2
    if x.rank != weight.rank:
        batched = Value(build.out(build.ops.unsqueeze(x.output, build.ints([0]))), x.like.unsqueeze(0))
        made = _convolution(
            build, batched, weight, bias, stride, padding, dilation, transposed, output_padding, groups
        )
        return build.ops.squeeze(made, build.ints([0]))
    steps, pads, apart = (_each(values, spatial) for values in (stride, padding, dilation))
    kernel: Any = weight.output
    if groups > 1:
        sizes = list(weight.like.shape)
        kernel = build.ops.reshape(kernel, build.ints([groups, sizes[0] // groups, *sizes[1:]]), False)
    prefix = "group_convolution" if groups > 1 else "convolution"
    if transposed:
        made = getattr(build.ops, f"{prefix}_backprop_data")(
            x.output,
            kernel,
            strides=steps,
            pads_begin=pads,
            pads_end=pads,
            dilations=apart,
            output_padding=_each(output_padding, spatial),
        )
    else:
        made = getattr(build.ops, prefix)(
            x.output, kernel, strides=steps, pads_begin=pads, pads_end=pads, dilations=apart
        )
    if bias is None:
        return build.out(made)
    shape = build.ints([1, -1, *[1] * spatial])
    return build.out(build.ops.add(made, build.ops.reshape(bias.output, shape, False)))


def _each(values: Any, count: int) -> list[int]:
    given = [values] if isinstance(values, int) else list(values)
    return given * count if len(given) == 1 else given


# -- norms


def _batch_norm(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Any, None, None]:
    size = int(mean.like.shape[0])
    gamma = build.tensor(torch.ones(size, dtype=mean.dtype)) if weight is None else weight.output
    beta = build.tensor(torch.zeros(size, dtype=mean.dtype)) if bias is None else bias.output
    made = build.ops.batch_norm_inference(x.output, gamma, beta, mean.output, variance.output, eps)
    return build.out(made), None, None


def _layer_norm(
    build: Conversion, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Any, None, None]:
    axes = build.ints(list(range(x.rank - len(shape), x.rank)))
    made = build.ops.mvn(x.output, axes, True, eps, "inside_sqrt")
    made = made if weight is None else build.ops.multiply(made, weight.output)
    made = build.out(made if bias is None else build.ops.add(made, bias.output))
    mean = build.ops.reduce_mean(x.output, axes, True)
    apart = build.ops.subtract(x.output, mean)
    variance = build.ops.reduce_mean(build.ops.multiply(apart, apart), axes, True)
    one = build.constant(1.0, x.dtype)
    steep = build.ops.divide(one, build.ops.sqrt(build.ops.add(variance, build.constant(eps, x.dtype))))
    return made, build.out(mean), build.out(steep)


def _group_norm(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: Any,
    channels: int,
    area: Any,
    groups: int,
    eps: float,
) -> tuple[Any, None, None]:
    # OpenVINO has the operation for these alone, and for what has more than channels.
    dtype = x.dtype if x.dtype is torch.float16 else torch.float32
    gamma = build.tensor(torch.ones(channels, dtype=dtype)) if weight is None else build.cast(weight, dtype)
    beta = build.tensor(torch.zeros(channels, dtype=dtype)) if bias is None else build.cast(bias, dtype)
    value, axis = build.cast(x, dtype), build.ints([-1])
    given = value if x.rank > 2 else build.ops.unsqueeze(value, axis)
    made = build.ops.group_normalization(given, gamma, beta, groups, eps)
    made = made if x.rank > 2 else build.ops.squeeze(made, axis)
    return (
        build.out(made if dtype is x.dtype else build.ops.convert(made, build.type_of(x.dtype))),
        None,
        None,
    )


def _batch_norm_of_batch(
    build: Conversion,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,  # noqa: FBT001
    momentum: float,
    eps: float,
) -> tuple[Any, None, None]:
    axes = build.ints([0, *range(2, x.rank)])
    shape = build.ints([1, -1, *[1] * (x.rank - 2)])
    made = build.ops.mvn(x.output, axes, True, eps, "inside_sqrt")
    if weight is not None:
        made = build.ops.multiply(made, build.ops.reshape(weight.output, shape, False))
    if bias is not None:
        made = build.ops.add(made, build.ops.reshape(bias.output, shape, False))
    return build.out(made), None, None


# -- pools


def _batched(function: Callable[..., Any], spatial: int) -> Callable[..., Any]:
    """Return a converter that also takes values without a batch."""

    def convert(build: Conversion, x: Value, *args: Any, **kwargs: Any) -> Any:
        if x.rank == spatial + 2:
            return function(build, x, spatial, *args, **kwargs)
        inner = Value(build.out(build.ops.unsqueeze(x.output, build.ints([0]))), x.like.unsqueeze(0))
        made = function(build, inner, spatial, *args, **kwargs)
        parts = made if isinstance(made, tuple) else (made,)
        outer = tuple(build.out(build.ops.squeeze(part, build.ints([0]))) for part in parts)
        return outer if isinstance(made, tuple) else outer[0]

    return convert


def _max_pool(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    spatial: int,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,  # noqa: FBT001, FBT002
) -> tuple[Any, Any]:
    size, pads = _each(kernel, spatial), _each(padding, spatial)
    made = build.ops.max_pool(
        x.output,
        _each(stride, spatial) if stride else size,
        _each(dilation, spatial),
        pads,
        pads,
        size,
        "ceil_torch" if ceil_mode else "floor",
        "explicit",
        "i64",
        2,
    )
    return made.output(0), made.output(1)


def _values_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def convert(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)[0]

    return convert


def _avg_pool(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    spatial: int,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,  # noqa: FBT001, FBT002
    count_include_pad: bool = True,  # noqa: FBT001, FBT002
    divisor_override: int | None = None,
) -> Any:
    if divisor_override is not None and ceil_mode:
        raise build.fail("it divides by a number of its own, also at the edge")
    size, pads = _each(kernel, spatial), _each(padding, spatial)
    counts_padding = count_include_pad or divisor_override is not None
    value = x.output
    if ceil_mode and counts_padding:
        # What lies beyond the padding does not count, which OpenVINO does not tell from the padding.
        around = build.ints([0, 0, *pads])
        value = build.ops.pad(value, around, around, "constant", build.constant(0.0, x.dtype))
        pads, counts_padding = [0] * spatial, False
    made = build.ops.avg_pool(
        value,
        _each(stride, spatial) if stride else size,
        pads,
        pads,
        size,
        not counts_padding,
        "ceil_torch" if ceil_mode else "floor",
        "explicit",
    )
    if divisor_override is None:
        return made
    return build.ops.multiply(made, build.constant(math.prod(size) / divisor_override, x.dtype))


def _adaptive_avg_pool(build: Conversion, x: Value, spatial: int, size: Any) -> Any:
    wanted = _each(size, spatial)
    if all(part == 1 for part in wanted):
        return build.ops.reduce_mean(x.output, build.ints(list(range(2, x.rank))), True)
    return build.ops.adaptive_avg_pool(x.output, build.ints(wanted))


def _adaptive_max_pool(build: Conversion, x: Value, spatial: int, size: Any) -> tuple[Any, Any]:
    made = build.ops.adaptive_max_pool(x.output, build.ints(_each(size, spatial)), "i32")
    return made.output(0), build.out(build.ops.convert(made.output(1), "i64"))


# -- softmax and attention


def _softmax(build: Conversion, x: Value, dim: int, half_to_float: bool = False) -> Any:  # noqa: FBT001, FBT002
    return build.ops.softmax(build.cast(x, build.like.dtype), x.axis(dim))


def _log_softmax(build: Conversion, x: Value, dim: int, half_to_float: bool = False) -> Any:  # noqa: FBT001, FBT002
    return build.ops.log_softmax(build.cast(x, build.like.dtype), x.axis(dim))


def _safe_softmax(build: Conversion, x: Value, dim: int, dtype: Any = None) -> Any:
    """Return the softmax, and zeros where everything is masked."""
    value = build.cast(x, build.like.dtype)
    axis = x.axis(dim)
    top = build.ops.reduce_max(value, build.ints([axis]), True)
    lowest = build.constant(-math.inf, build.like.dtype)
    return build.ops.select(
        build.ops.equal(top, lowest), build.constant(0, build.like.dtype), build.ops.softmax(value, axis)
    )


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
    if dropout_p:
        raise build.fail("it draws random numbers; call eval() on the model before it is captured")
    factor = 1 / math.sqrt(query.like.shape[-1]) if scale is None else scale
    scaled = build.ops.multiply(query.output, build.constant(factor, query.dtype))
    scores = build.ops.matmul(scaled, key.output, False, True)
    dtype = query.dtype
    if is_causal:
        sizes = (query.like.shape[-2], key.like.shape[-2])
        mask = torch.zeros(sizes, dtype=dtype).masked_fill(torch.ones(sizes).triu(1).bool(), -math.inf)
        scores = build.ops.add(scores, build.tensor(mask))
    if attn_mask is not None:
        scores = build.ops.add(scores, build.cast(attn_mask, dtype))
    weights = build.ops.softmax(scores, -1)
    made = build.out(build.ops.matmul(weights, value.output, False, False))
    return (made, *[None] * (len(build.like) - 1))


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
) -> tuple[Any, Any]:
    ops, dtype = build.ops, query.dtype
    weights = ops.variadic_split(qkv_weight.output, build.constant(0), build.ints([width] * 3))
    biases = ops.variadic_split(qkv_bias.output, build.constant(0), build.ints([width] * 3))
    shape, order = build.ints([0, 0, heads, width // heads]), build.ints([0, 2, 1, 3])

    def split(source: Value, number: int) -> Any:
        made = ops.add(ops.matmul(source.output, weights.output(number), False, True), biases.output(number))
        return ops.transpose(ops.reshape(made, shape, True), order)

    scaled = ops.multiply(split(query, 0), build.constant(1 / math.sqrt(width // heads), dtype))
    scores = ops.matmul(scaled, split(key, 1), False, True)
    if mask is not None:
        scores = _masked(build, scores, mask, mask_type, dtype)
    found = ops.softmax(scores, -1)
    joined = ops.reshape(
        ops.transpose(ops.matmul(found, split(value, 2), False, False), order),
        build.ints([0, 0, width]),
        True,
    )
    made = ops.add(ops.matmul(joined, proj_weight.output, False, True), proj_bias.output)
    if not need_weights:
        return build.out(made), None
    return build.out(made), build.out(
        ops.reduce_mean(found, build.ints([1]), False) if average_attn_weights else found
    )


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
) -> Any:
    weight_1, bias_1, weight_2, bias_2, inner, inner_bias, outer, outer_bias, *masks = rest
    ops = build.ops

    def norm(value: Value, weight: Value, bias: Value) -> Value:
        return Value(_layer_norm(build, value, [width], weight, bias, eps)[0], x.like)

    def added(value: Value, other: Any) -> Value:
        return Value(build.out(ops.add(value.output, other)), x.like)

    def attend(value: Value) -> Any:
        parts = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        mask, kind = masks[0] if masks else None, masks[1] if len(masks) > 1 else None
        return _multi_head_attention(
            build, value, value, value, width, heads, *parts, mask, False, True, kind
        )[0]

    def feed(value: Value) -> Any:
        wide = ops.add(ops.matmul(value.output, inner.output, False, True), inner_bias.output)
        active = ops.gelu(wide, "erf") if use_gelu else ops.relu(wide)
        return ops.add(ops.matmul(active, outer.output, False, True), outer_bias.output)

    if norm_first:
        x = added(x, attend(norm(x, weight_1, bias_1)))
        return added(x, feed(norm(x, weight_2, bias_2))).output
    x = norm(added(x, attend(x)), weight_1, bias_1)
    return norm(added(x, feed(x)), weight_2, bias_2).output


def _masked(build: Conversion, scores: Any, mask: Value, mask_type: int | None, dtype: torch.dtype) -> Any:
    if mask.dtype is not torch.bool:
        return build.ops.add(scores, build.cast(mask, dtype))
    hidden = mask.output
    if mask_type == 1:  # Of keys: batch x length.
        hidden = build.ops.unsqueeze(hidden, build.ints([1, 2]))
    return build.ops.select(hidden, build.constant(-math.inf, dtype), scores)


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.mm.default, _matmul),
    (aten.bmm.default, _matmul),
    (aten.mv.default, _matmul),
    (aten.dot.default, _matmul),
    (aten.matmul.default, _matmul),
    (aten.addmm.default, _addmm),
    (aten.baddbmm.default, _addmm),
    (aten.addmv.default, _addmm),
    (aten.linear.default, _linear),
    (aten.convolution.default, _convolution),
    (aten._native_batch_norm_legit_no_training.default, _batch_norm),
    (aten._native_batch_norm_legit.no_stats, _batch_norm_of_batch),
    (aten._transformer_encoder_layer_fwd.default, _encoder_layer),
    (aten.native_layer_norm.default, _layer_norm),
    (aten.native_group_norm.default, _group_norm),
    (aten.max_pool2d_with_indices.default, _batched(_max_pool, 2)),
    (aten.max_pool3d_with_indices.default, _batched(_max_pool, 3)),
    (aten.max_pool2d.default, _values_of(_batched(_max_pool, 2))),
    (aten.avg_pool1d.default, _batched(_avg_pool, 1)),
    (aten.avg_pool2d.default, _batched(_avg_pool, 2)),
    (aten.avg_pool3d.default, _batched(_avg_pool, 3)),
    (aten._adaptive_avg_pool2d.default, _batched(_adaptive_avg_pool, 2)),
    (aten._adaptive_avg_pool3d.default, _batched(_adaptive_avg_pool, 3)),
    (aten.adaptive_max_pool2d.default, _batched(_adaptive_max_pool, 2)),
    (aten.adaptive_max_pool3d.default, _batched(_adaptive_max_pool, 3)),
    (aten._softmax.default, _softmax),
    (aten._log_softmax.default, _log_softmax),
    (aten._safe_softmax.default, _safe_softmax),
    (aten._scaled_dot_product_flash_attention_for_cpu.default, _attention),
    (aten._native_multi_head_attention.default, _multi_head_attention),
]
