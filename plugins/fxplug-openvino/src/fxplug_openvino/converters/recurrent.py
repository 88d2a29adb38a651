"""Operators that go through sequences and bags step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug_openvino.conversion import Conversion, ConverterRecord, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["records"]

aten = torch.ops.aten
_LSTM = 2
_GATES = (1, 0, 2, 3)
"""Where OpenVINO's gates (forget, input, cell, output) are among PyTorch's."""
_MEAN, _SUM = 1, 0
_MOST_STEPS = 256


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


def _lstm_layer(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    weight: Value,
    recurrence: Value,
    bias: Value,
    recurrent_bias: Value,
    hidden: Value,
    cell: Value,
    reverse: bool,  # noqa: FBT001 - as above
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,  # noqa: FBT001 - as above
    *_: Any,
) -> Any:
    if mode != _LSTM or num_layers != 1 or list(batch_sizes):
        raise build.fail("it runs something else than one layer of an LSTM on sequences of one length")
    ops, first = build.ops, build.ints([0])

    def gates(value: Value) -> Any:
        shape = build.ints([4, hidden_size, *value.like.shape[1:]])
        apart = ops.gather(ops.reshape(value.output, shape, False), build.ints(_GATES), build.constant(0))
        whole = ops.reshape(apart, build.ints([4 * hidden_size, *value.like.shape[1:]]), False)
        return ops.unsqueeze(whole, first)

    if has_biases:
        offsets = ops.add(gates(bias), gates(recurrent_bias))
    else:
        offsets = build.constant([[0.0] * (4 * hidden_size)], x.dtype)
    turned = build.ints([1, 0, 2])  # The batch comes first in OpenVINO.
    steps, batch = (ops.gather(build.shape_of(x), build.ints([axis]), build.constant(0)) for axis in (0, 1))
    made = ops.lstm_sequence(
        ops.transpose(x.output, turned),
        ops.transpose(hidden.output, turned),
        ops.transpose(cell.output, turned),
        ops.broadcast(steps, batch),
        gates(weight),
        gates(recurrence),
        offsets,
        hidden_size,
        "reverse" if reverse else "forward",
    )
    outputs = ops.transpose(ops.squeeze(made.output(0), build.ints([1])), turned)
    states = (ops.transpose(made.output(number), turned) for number in (1, 2))
    return (outputs, *states, None)


def _cumprod(build: Conversion, x: Value, dim: int, **_: Any) -> Any:
    value, axis = build.cast(x, build.like.dtype), x.axis(dim)
    count = int(x.like.shape[axis]) if x.rank else 1
    if count <= 1:
        return value
    if count > _MOST_STEPS:
        raise build.fail(f"it multiplies more than {_MOST_STEPS} numbers one after another")
    # In PyTorch's order: products of parts may be infinite where the whole is not.
    parts = build.ops.split(value, build.constant(axis), count)
    made = [parts.output(0)]
    for number in range(1, count):
        made.append(build.out(build.ops.multiply(made[-1], parts.output(number))))
    return build.ops.concat(made, axis)


def _embedding_bag(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale: bool = False,  # noqa: FBT001, FBT002 - as above
    mode: int = 0,
    sparse: bool = False,  # noqa: FBT001, FBT002 - as above
    factors: Any = None,
    last: bool = False,  # noqa: FBT001, FBT002 - as above
    padding: int | None = -1,
) -> Any:
    if mode not in {_SUM, _MEAN}:
        raise build.fail("it picks the largest of each bag")
    if padding not in {None, -1}:
        raise build.fail("it leaves out an index (padding_idx)")
    ops, begins = build.ops, build.cast(offsets, torch.int64)
    # A bag more, with an index of its own: OpenVINO refuses bags that begin where the indices end.
    more = [] if last else [build.shape_of(indices)]
    begins = ops.concat([begins, *more], 0)
    places = ops.concat([build.cast(indices, torch.int64), build.constant([0])], 0)
    if factors is not None:
        factors = ops.concat([factors.output, build.constant([0], weight.dtype)], 0)
    found = ops.embedding_bag_offsets(
        weight.output,
        places,
        begins,
        build.constant(-1),  # What an empty bag gets: zeros.
        factors,
        "sum" if mode == _SUM else "mean",
    )
    made = ops.slice(found, build.ints([0]), build.ints([-1]), build.ints([1]), build.ints([0]))
    return made, None, None, None


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.mkldnn_rnn_layer.default, _lstm_layer),
    (aten.cumprod.default, _cumprod),
    (aten.embedding_bag.default, _embedding_bag),
    (aten.embedding_bag.padding_idx, _embedding_bag),
    (aten._embedding_bag.default, _embedding_bag),
    (aten._embedding_bag_forward_only.default, _embedding_bag),
]
