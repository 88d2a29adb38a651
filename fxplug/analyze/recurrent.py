"""What recurrent layers and their cells cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import nn

if TYPE_CHECKING:
    from fxplug.analyze.cost import OperatorCall

__all__ = ["recurrent_cell", "recurrent_layers"]


class _Kind(NamedTuple):
    gates: int
    """Products of the input and of the state with a matrix of their own."""
    element_wise: int
    """Additions, multiplications and functions for each feature of the state, as PyTorch computes them."""


_KINDS = {
    # gates = x-part + h-part (4); c = sigmoid(f) * c + sigmoid(i) * tanh(g) (6); h = sigmoid(o) * tanh(c) (3)
    "LSTM": _Kind(4, 13),
    # r, z = sigmoid(x-part + h-part) (4); n = tanh(x-part + r * h-part) (3); h = n + z * (h - n) (3)
    "GRU": _Kind(3, 10),
    "RNN_TANH": _Kind(1, 2),
    "RNN_RELU": _Kind(1, 1),
}


def recurrent_layers(call: OperatorCall) -> int | None:
    """Count ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN``; not for packed sequences."""
    module, given = call.module, call.shape(0, "input")
    if not isinstance(module, nn.RNNBase) or given is None:
        return None
    rows = given[:-1].numel() * (2 if module.bidirectional else 1)
    hidden, result = module.hidden_size, module.proj_size or module.hidden_size
    between = result * (2 if module.bidirectional else 1)
    kind = _KINDS[module.mode]
    total = 0
    for layer in range(module.num_layers):
        total += rows * _step(kind, between if layer else module.input_size, hidden, result)
    if module.proj_size:
        total += module.num_layers * rows * hidden * result
    if module.training and module.dropout:
        total += (module.num_layers - 1) * rows * result
    return total


def recurrent_cell(call: OperatorCall) -> int | None:
    """Count one step of ``nn.LSTMCell``, ``nn.GRUCell`` or ``nn.RNNCell``."""
    module, given = call.module, call.shape(0, "input")
    if not isinstance(module, nn.RNNCellBase) or given is None:
        return None
    mode = (
        f"RNN_{module.nonlinearity.upper()}" if isinstance(module, nn.RNNCell) else type(module).__name__[:-4]
    )
    return given[:-1].numel() * _step(_KINDS[mode], module.input_size, module.hidden_size, module.hidden_size)


def _step(kind: _Kind, given: int, hidden: int, state: int) -> int:
    return kind.gates * hidden * (given + state) + kind.element_wise * hidden
