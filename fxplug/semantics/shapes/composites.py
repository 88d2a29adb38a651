"""Shape functions of layers that take or give several values: attention, recurrent layers, transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.semantics.shapes.abstract import AbstractTensor, UnknownShapeError, sizes_of_weight
from fxplug.semantics.shapes.layers import shape_of_layer
from fxplug.semantics.shapes.operands import require, tensor_of
from fxplug.semantics.shapes.pointwise import sizes_of_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

__all__ = ["COMPOSITES", "shape_of_call"]


def shape_of_call(
    layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype
) -> tuple[Any, ...] | AbstractTensor:
    """Return what a layer returns that takes several values, or gives several.

    Args:
        layer: A layer that has torch's own forward, and calls layers of torch alone.
        args: What is given to it by position.
        kwargs: The same by name.
        dtype: What all tensors of the program have.

    Raises:
        UnknownShapeError: Nothing is known of the layer.
        Exception: It cannot be told what it returns, or whether it raises an error.
    """
    if layer.training:
        raise UnknownShapeError
    return COMPOSITES[layer.__class__](layer, dtype, *args, **kwargs)


def _attention(
    layer: Any,
    dtype: torch.dtype,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any = None,
    need_weights: Any = True,
    attn_mask: Any = None,
    average_attn_weights: Any = True,
    is_causal: Any = False,
) -> tuple[AbstractTensor, AbstractTensor | None]:
    """Return what `torch.nn.MultiheadAttention` returns; of its masks one may be given, which has flags."""
    require(layer._qkv_same_embed_dim and not layer.add_zero_attn and layer.bias_k is layer.bias_v is None)
    require(type(need_weights) is bool and average_attn_weights is True and is_causal is False)
    first, second, width = tensor_of(query).sizes
    length, batch = (second, first) if layer.batch_first else (first, second)
    places = tensor_of(key).sizes[1] if layer.batch_first else key.sizes[0]
    expected = (batch, places, width) if layer.batch_first else (places, batch, width)
    require(width == layer.embed_dim == layer.head_dim * layer.num_heads)
    require(key.sizes == expected == tensor_of(value).sizes)
    _require_weights(
        dtype,
        (layer.in_proj_weight, (3 * width, width)),
        (layer.in_proj_bias, (3 * width,)),
        (layer.out_proj.weight, (width, width)),
        (layer.out_proj.bias, (width,)),
        are_biased=layer.in_proj_bias is not None,
    )
    require(key_padding_mask is None or attn_mask is None)
    _require_mask(key_padding_mask, (batch, places))
    _require_mask(attn_mask, (length, places))
    looks = AbstractTensor((batch, length, places), "unknown", "own") if need_weights else None
    return AbstractTensor(query.sizes, "unknown", "own"), looks


def _require_mask(mask: Any, sizes: tuple[int, ...]) -> None:
    require(mask is None or tuple(sizes_of_flags(mask)) == sizes)


def _require_weights(
    dtype: torch.dtype, *expected: tuple[Any, tuple[int, ...]], are_biased: bool = True
) -> None:
    """Look whether weights have the sizes that a layer relies on.

    Args:
        dtype: What they have to have.
        expected: Each with its sizes; every other one is a bias.
        are_biased: Whether there are biases.
    """
    for place, (weight, sizes) in enumerate(expected):
        if are_biased or place % 2 == 0:
            require(sizes_of_weight(weight, dtype) == sizes)
        else:
            require(weight is None)


def _recurrent(gates: int) -> Callable[..., tuple[Any, ...]]:
    """Return the shape function of recurrent layers with so many gates; those with a cell have four."""
    with_cells = 4

    def apply(layer: Any, dtype: torch.dtype, x: Any, hx: Any = None) -> tuple[Any, ...]:
        first, second, width = tensor_of(x).sizes
        batch, ways = first if layer.batch_first else second, 2 if layer.bidirectional else 1
        given = layer.proj_size or layer.hidden_size
        count = layer.num_layers * ways
        require(width == layer.input_size and _has_weights(layer, gates, ways, given, dtype))
        hidden, cells = (count, batch, given), (count, batch, layer.hidden_size)
        states = (hidden, cells) if gates == with_cells else (hidden,)
        held = hx if gates == with_cells else (hx,)
        if hx is not None:
            require(type(held) is tuple and tuple([tensor_of(one).sizes for one in held]) == states)
        # Some of them are views, to which torch may refuse to write.
        after = tuple([AbstractTensor(sizes, "unknown", "part") for sizes in states])
        found = AbstractTensor((first, second, ways * given), "unknown", "part")
        return found, after if gates == with_cells else after[0]

    return apply


def _has_weights(layer: Any, gates: int, ways: int, given: int, dtype: torch.dtype) -> bool:
    """Return whether a recurrent layer has the weights that its settings say, and computes with those."""
    own, flat = layer.__dict__, iter(layer.__dict__["_flat_weights"])
    size = gates * layer.hidden_size
    require(len(own["_flat_weights"]) == len(own["_flat_weights_names"]) == len(own["_parameters"]))
    for name in own["_flat_weights_names"]:
        require(own["_parameters"].get(name) is next(flat))
    for number in range(layer.num_layers):
        width = layer.input_size if number == 0 else ways * given
        for end in ("", "_reverse")[:ways]:
            place = f"l{number}{end}"
            expected = {f"weight_ih_{place}": (size, width), f"weight_hh_{place}": (size, given)}
            if layer.bias:
                expected |= {f"bias_ih_{place}": (size,), f"bias_hh_{place}": (size,)}
            if layer.proj_size:
                expected[f"weight_hr_{place}"] = (layer.proj_size, layer.hidden_size)
            for name, sizes in expected.items():
                require(sizes_of_weight(own["_parameters"][name], dtype) == sizes)
    return True


def _encoder_layer(
    layer: Any,
    dtype: torch.dtype,
    src: Any,
    src_mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: Any = False,
) -> AbstractTensor:
    require(src_mask is src_key_padding_mask is None and is_causal is False)
    _require_attention(layer.self_attn, dtype, src, src)
    return _through(src, dtype, layer.norm1, layer.linear1, layer.linear2, layer.norm2)


def _decoder_layer(
    layer: Any,
    dtype: torch.dtype,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: Any = False,
    memory_is_causal: Any = False,
) -> AbstractTensor:
    require(tgt_mask is memory_mask is tgt_key_padding_mask is memory_key_padding_mask is None)
    require(tgt_is_causal is memory_is_causal is False)
    _require_attention(layer.self_attn, dtype, tgt, tgt)
    _require_attention(layer.multihead_attn, dtype, tgt, memory)
    return _through(tgt, dtype, layer.norm1, layer.norm2, layer.linear1, layer.linear2, layer.norm3)


def _require_attention(attention: Any, dtype: torch.dtype, x: Any, memory: Any) -> None:
    require(type(attention) is nn.MultiheadAttention)
    _attention(attention, dtype, x, memory, memory, need_weights=False)


def _through(x: Any, dtype: torch.dtype, *layers: nn.Module) -> AbstractTensor:
    """Return what is the sum of an input and of what layers make of it one after the other, which has its sizes."""
    found = tensor_of(x)
    for layer in layers:
        found = shape_of_layer(layer, found, dtype)
    require(found.sizes == x.sizes)
    return AbstractTensor(x.sizes, "unknown", "own")


def _stack(take: Callable[..., AbstractTensor], kind: type[nn.Module]) -> Callable[..., AbstractTensor]:
    """Return the shape function of layers of one class behind one another.

    Args:
        take: That of each of them.
        kind: The class.
    """

    def apply(layer: Any, dtype: torch.dtype, x: Any, *memory: Any) -> AbstractTensor:
        for inner in layer.layers:
            require(type(inner) is kind)
            x = take(inner, dtype, x, *memory)
        return x if layer.norm is None else shape_of_layer(layer.norm, x, dtype)

    return apply


COMPOSITES: dict[type[nn.Module], Callable[..., tuple[Any, ...] | AbstractTensor]] = {
    nn.GRU: _recurrent(3),
    nn.LSTM: _recurrent(4),
    nn.MultiheadAttention: _attention,
    nn.RNN: _recurrent(1),
    nn.TransformerDecoder: _stack(_decoder_layer, nn.TransformerDecoderLayer),
    nn.TransformerDecoderLayer: _decoder_layer,
    nn.TransformerEncoder: _stack(_encoder_layer, nn.TransformerEncoderLayer),
    nn.TransformerEncoderLayer: _encoder_layer,
}
"""Class of layers -> the shape function of their forwards: it takes a layer, the dtype, and what that is given."""
