"""Shape functions of layers that take or give several values: attention, recurrent layers, transformers."""

from __future__ import annotations

from operator import is_
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.semantics.shapes.abstract import AbstractTensor, sizes_of_weight
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
    require(layer.training is False and _is_as_written(type(layer)))
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
    require(layer._qkv_same_embed_dim is True and layer.add_zero_attn is False)
    require(layer.bias_k is layer.bias_v is None and type(layer.batch_first) is bool)
    require(
        type(layer.num_heads) is type(layer.head_dim) is type(layer.embed_dim) is int and layer.num_heads > 0
    )
    require(_is_share(layer.dropout) and layer.training is False)
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


def _is_share(value: Any) -> bool:
    """Return whether a value says how much is to be dropped."""
    return type(value) in {float, int} and 0 <= value <= 1


def _recurrent(gates: int, *modes: str) -> Callable[..., tuple[Any, ...]]:
    """Return the shape function of recurrent layers with so many gates, of some modes; those with a cell have four."""
    with_cells = 4

    def apply(layer: Any, dtype: torch.dtype, x: Any, hx: Any = None) -> tuple[Any, ...]:
        first, second, width = tensor_of(x).sizes
        require(layer.mode in modes and _has_usual_settings(layer))
        batch, ways = first if layer.batch_first else second, 2 if layer.bidirectional else 1
        size, count = layer.hidden_size, layer.num_layers * ways
        require(width == layer.input_size)
        _require_recurrent_weights(layer, gates * size, ways, dtype)
        states = ((count, batch, size),) * (2 if gates == with_cells else 1)
        held = hx if gates == with_cells else (hx,)
        if hx is not None:
            require(type(held) is tuple and tuple([tensor_of(one).sizes for one in held]) == states)
        # Some of them are views, to which torch may refuse to write.
        after = tuple([AbstractTensor(sizes, "unknown", "part") for sizes in states])
        found = AbstractTensor((first, second, ways * size), "unknown", "part")
        return found, after if gates == with_cells else after[0]

    return apply


def _has_usual_settings(layer: Any) -> bool:
    """Return whether the settings of a recurrent layer are of the kinds that torch takes; projections make it warn."""
    are_flags = all(type(one) is bool for one in (layer.bias, layer.batch_first, layer.bidirectional))
    are_counts = all(type(one) is int and one > 0 for one in (layer.hidden_size, layer.num_layers))
    return are_flags and are_counts and _is_share(layer.dropout) and layer.proj_size == 0


def _require_recurrent_weights(layer: Any, size: int, ways: int, dtype: torch.dtype) -> None:
    """Look whether a recurrent layer has the weights that its settings say, computes with those, and has no others.

    Args:
        layer: The layer.
        size: How many rows each of them has.
        ways: In how many directions it reads.
        dtype: What all tensors of the program have.
    """
    expected: dict[str, tuple[int, ...]] = {}
    for number in range(layer.num_layers):
        width = layer.input_size if number == 0 else ways * layer.hidden_size
        for end in ("", "_reverse")[:ways]:
            place = f"l{number}{end}"
            expected |= {f"weight_ih_{place}": (size, width), f"weight_hh_{place}": (size, layer.hidden_size)}
            if layer.bias:
                expected |= {f"bias_ih_{place}": (size,), f"bias_hh_{place}": (size,)}
    own = layer.__dict__
    held, flat = own["_parameters"], own["_flat_weights"]
    require([*expected] == own["_flat_weights_names"] == [*held])
    require(len(flat) == len(own["_flat_weight_refs"]) == len(held))
    require(all(one is other for one, other in zip(held.values(), flat, strict=True)))
    for name, sizes in expected.items():
        require(sizes_of_weight(held[name], dtype) == sizes)


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
    norms, dropouts = (layer.norm1, layer.norm2), (layer.dropout, layer.dropout1, layer.dropout2)
    if layer.self_attn.in_proj_bias is not None:  # Torch looks at each of the weights then.
        weights = [weight for norm in norms for weight in (norm.weight, norm.bias)]
        require(all(weight is not None for weight in (*weights, layer.linear1.bias, layer.linear2.bias)))
    return _through(layer, dtype, src, norms, dropouts)


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
    norms = layer.norm1, layer.norm2, layer.norm3
    return _through(layer, dtype, tgt, norms, (layer.dropout, layer.dropout1, layer.dropout2, layer.dropout3))


def _require_attention(attention: Any, dtype: torch.dtype, x: Any, memory: Any) -> None:
    require(type(attention) is nn.MultiheadAttention)
    _attention(attention, dtype, x, memory, memory, need_weights=False)


def _through(
    layer: Any, dtype: torch.dtype, x: Any, norms: tuple[Any, ...], dropouts: tuple[Any, ...]
) -> AbstractTensor:
    """Return what is the sum of an input and of what parts of a layer make of it, which has its sizes.

    Args:
        layer: The layer.
        dtype: What all tensors of the program have.
        x: The input.
        norms: Of the layer.
        dropouts: Of the layer.
    """
    require(type(layer.norm_first) is bool and any(layer.activation is one for one in _ACTIVATIONS))
    require(all(type(norm) is nn.LayerNorm for norm in norms))
    require(all(type(one) is nn.Dropout and one.training is False and _is_share(one.p) for one in dropouts))
    require(type(layer.linear1) is type(layer.linear2) is nn.Linear)
    for norm in norms:
        require(shape_of_layer(norm, x, dtype).sizes == x.sizes)
    inside = shape_of_layer(layer.linear1, x, dtype)
    require(shape_of_layer(layer.linear2, inside, dtype).sizes == x.sizes)
    return AbstractTensor(x.sizes, "unknown", "own")


_ACTIVATIONS = (nn.functional.relu, nn.functional.gelu)


def _stack(take: Callable[..., AbstractTensor], kind: type[nn.Module]) -> Callable[..., AbstractTensor]:
    """Return the shape function of layers of one class behind one another.

    Args:
        take: That of each of them.
        kind: The class.
    """

    def apply(layer: Any, dtype: torch.dtype, x: Any, *memory: Any) -> AbstractTensor:
        require(type(layer.layers) is nn.ModuleList and len(layer.layers))
        for inner in layer.layers:
            require(type(inner) is kind and inner.training is False)
            x = take(inner, dtype, x, *memory)
        require(layer.norm is None or type(layer.norm) is nn.LayerNorm)
        return x if layer.norm is None else shape_of_layer(layer.norm, x, dtype)

    return apply


COMPOSITES: dict[type[nn.Module], Callable[..., tuple[Any, ...] | AbstractTensor]] = {
    nn.GRU: _recurrent(3, "GRU"),
    nn.LSTM: _recurrent(4, "LSTM"),
    nn.MultiheadAttention: _attention,
    nn.RNN: _recurrent(1, "RNN_RELU", "RNN_TANH"),
    nn.TransformerDecoder: _stack(_decoder_layer, nn.TransformerDecoderLayer),
    nn.TransformerDecoderLayer: _decoder_layer,
    nn.TransformerEncoder: _stack(_encoder_layer, nn.TransformerEncoderLayer),
    nn.TransformerEncoderLayer: _encoder_layer,
}
"""Class of layers -> the shape function of their forwards: it takes a layer, the dtype, and what that is given."""


def _functions_of(kind: type) -> list[Any]:
    """Return the functions that a class of layers has, and their code."""
    bases = [base for base in kind.__mro__ if issubclass(base, nn.Module) and base is not nn.Module]
    found = [value for base in bases for value in vars(base).values() if type(value) is FunctionType]
    return [*found, *(one.__code__ for one in found)]


_WRITTEN = {kind: _functions_of(kind) for kind in COMPOSITES}


def _is_as_written(kind: type) -> bool:
    """Return whether nobody has put other functions into a class of layers."""
    known, found = _WRITTEN[kind], _functions_of(kind)
    return len(known) == len(found) and all(map(is_, known, found))
