"""Recurrent layers, as loops. PyTorch decides by the device whether they reach a backend as one operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug_tensorrt.conversion import ConverterRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fxplug_tensorrt.network import Conversion, Value

__all__ = ["records"]

aten = torch.ops.aten


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    yield ConverterRecord(aten.mkldnn_rnn_layer.default, _of_the_cpu)
    yield ConverterRecord(aten._cudnn_rnn.default, _of_the_gpu)


@dataclass(frozen=True)
class _Weights:
    """Of one layer in one direction."""

    given: Value
    """Of what the layer is given."""
    state: Value
    """Of the state that the step before left."""
    given_bias: Value | None = None
    state_bias: Value | None = None


def _of_the_cpu(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    w_ih: Value,
    w_hh: Value,
    b_ih: Value,
    b_hh: Value,
    hx: Value,
    cx: Value,
    reverse: bool,  # noqa: FBT001
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,  # noqa: FBT001
    *_: Any,
) -> tuple[Any, ...]:
    _check(build, batch_sizes, mode)
    if num_layers != 1:
        raise build.fail("it is several recurrent layers in one call")
    biases = (b_ih, b_hh) if has_biases else ()
    state = [_with_rank(value, 2) for value in (hx, cx)]
    outputs, last = _run(build, mode, x, state, _Weights(w_ih, w_hh, *biases), reverse=reverse)
    ends = [_with_rank(value, wanted.dim()) for value, wanted in zip(last, build.like[1:3], strict=True)]
    return (outputs, *ends, None)


def _of_the_gpu(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    weight: Sequence[Value],
    weight_stride0: int,
    weight_buf: Value | None,
    hx: Value,
    cx: Value | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,  # noqa: FBT001
    dropout: float,
    train: bool,  # noqa: FBT001
    bidirectional: bool,  # noqa: FBT001
    batch_sizes: Sequence[int],
    dropout_state: Value | None = None,
) -> tuple[Any, ...]:
    _check(build, batch_sizes, mode)
    if proj_size:
        raise build.fail("it projects its state")
    if train and dropout:
        raise build.fail("it draws random numbers; call eval() on the model before it is captured")
    value = x.permute([1, 0, 2]) if batch_first else x
    ends: list[list[Value]] = []
    directions = 2 if bidirectional else 1
    for layer in range(num_layers):
        made: list[Value] = []
        for direction in range(directions):
            number = layer * directions + direction
            weights = _Weights(*weight[number * weight_stride0 : (number + 1) * weight_stride0])
            state = [build.part(part, 0, number, 1).squeeze(0) for part in (hx, cx) if part is not None]
            outputs, last = _run(build, mode, value, state, weights, reverse=direction == 1)
            made.append(outputs)
            ends.append(last)
        value = build.concat(made, 2)
    stacked = [build.concat([part.unsqueeze(0) for part in parts], 0) for parts in zip(*ends, strict=True)]
    outputs = value.permute([1, 0, 2]) if batch_first else value
    return (outputs, stacked[0], stacked[1] if cx is not None else None, None, None)


def _check(build: Conversion, batch_sizes: Sequence[int], mode: int) -> None:
    if batch_sizes:
        raise build.fail("its sequences are packed")
    if mode not in _CELLS:
        raise build.fail(f"it is a recurrent layer of an unknown kind ({mode})")


def _with_rank(value: Value, rank: int) -> Value:
    """Return a value with sizes of one added or taken away at the front."""
    return (
        value.unsqueeze(*range(rank - value.rank))
        if value.rank < rank
        else value.squeeze(*range(value.rank - rank))
    )


def _run(
    build: Conversion, mode: int, x: Value, state: Sequence[Value], weights: _Weights, *, reverse: bool
) -> tuple[Value, list[Value]]:
    """Return the states of all steps, and what is left after the last: one direction of one layer.

    Args:
        build: The network.
        mode: The kind of the cell, as PyTorch counts them.
        x: Steps, batch, features.
        state: Batch, features; two for an LSTM.
        weights: Of the cell.
        reverse: Whether the last step comes first.
    """
    # What does not depend on the state is computed for all steps at once.
    parts = build.matmul(x, weights.given, transposed=True)
    parts = parts if weights.given_bias is None else parts + weights.given_bias
    trt = build.trt
    loop = build.net.add_loop()
    count = build.cast(x.size(0), torch.int64)
    steps = build.add("cast", count.output, trt.DataType.INT32).get_output(0)
    loop.add_trip_limit(steps, trt.TripLimit.COUNT)
    part = build.value(loop.add_iterator(parts.output, 0, reverse), x.dtype)
    layers = [loop.add_recurrence(value.output) for value in state]
    before = [build.value(layer, x.dtype) for layer in layers]
    recurrent = build.matmul(before[0], weights.state, transposed=True)
    recurrent = recurrent if weights.state_bias is None else recurrent + weights.state_bias
    after = _CELLS[mode](build, part, recurrent, before)
    for layer, value in zip(layers, after, strict=True):
        layer.set_input(1, value.output)
    order = trt.LoopOutput.REVERSE if reverse else trt.LoopOutput.CONCATENATE
    every = loop.add_loop_output(after[0].output, order, 0)
    every.set_input(1, steps)
    last = [loop.add_loop_output(value.output, trt.LoopOutput.LAST_VALUE, 0) for value in before]
    return build.value(every, x.dtype), [build.value(layer, x.dtype) for layer in last]


# -- one step of each kind


def _gates(build: Conversion, value: Value, count: int) -> list[Value]:
    width = value.known_size(1) // count
    return [build.part(value, 1, number * width, width) for number in range(count)]


def _lstm(build: Conversion, part: Value, recurrent: Value, before: Sequence[Value]) -> list[Value]:
    taken, kept, new, shown = _gates(build, part + recurrent, 4)
    cell = _sigmoid(kept) * before[1] + _sigmoid(taken) * build.activation("TANH", new)
    return [_sigmoid(shown) * build.activation("TANH", cell), cell]


def _gru(build: Conversion, part: Value, recurrent: Value, before: Sequence[Value]) -> list[Value]:
    reset, kept, new = zip(_gates(build, part, 3), _gates(build, recurrent, 3), strict=True)
    fresh = build.activation("TANH", new[0] + _sigmoid(reset[0] + reset[1]) * new[1])
    return [fresh + _sigmoid(kept[0] + kept[1]) * (before[0] - fresh)]


def _plain(kind: str) -> Callable[..., list[Value]]:
    def step(build: Conversion, part: Value, recurrent: Value, before: Sequence[Value]) -> list[Value]:
        return [build.activation(kind, part + recurrent)]

    return step


def _sigmoid(value: Value) -> Value:
    return value.build.activation("SIGMOID", value)


_CELLS: dict[int, Callable[[Conversion, Value, Value, Sequence[Value]], list[Value]]] = {
    0: _plain("RELU"),
    1: _plain("TANH"),
    2: _lstm,
    3: _gru,
}
