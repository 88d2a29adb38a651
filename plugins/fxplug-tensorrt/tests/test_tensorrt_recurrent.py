"""Recurrent layers become loops, or one step after the other."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

import fxplug
from fxplug.lower import lower, plan_lowering
from fxplug_tensorrt import TensorRTBackend

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed"
)
KINDS = {
    "plain": {},
    "both directions, two layers": {"num_layers": 2, "bidirectional": True},
    "batch first, no biases": {"batch_first": True, "bias": False},
}
MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}


def numbers(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


class Both(nn.Module):
    """Returns what a recurrent layer makes of given states, and the states that are left."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, *states):
        given = () if not states else (states if len(states) == 2 else states[0],)
        made, left = self.layer(x, *given)
        return made, left


def layer_of(kind, **options):
    torch.manual_seed(0)
    return getattr(nn, kind)(4, 5, **options).eval()


def states_of(layer, batch):
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    return tuple(numbers(count, batch, 5, seed=number) for number in range(2 if layer.mode == "LSTM" else 1))


def kinds(converted):
    net = converted.build.net
    return [net.get_layer(number).type.name for number in range(net.num_layers)]


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_equals_eager_with_and_without_states(kind, options):
    from fxplug_tensorrt.testing import check_program

    layer = layer_of(kind, **options)
    x = numbers(3, 2, 4)
    batch = 3 if options.get("batch_first") else 2

    assert check_program(Both(layer), (x,)).plan
    checked = check_program(Both(layer), (x, *states_of(layer, batch)), engine=False)
    assert len(checked.found) == (3 if kind == "LSTM" else 2)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_a_cell_equals_eager(kind):
    from fxplug_tensorrt.testing import check_program

    assert check_program(nn.Sequential(layer_of(kind)), (numbers(2, 4),)).plan


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_lstm_in_half_precision_is_built(dtype):
    from fxplug_tensorrt.testing import check_program

    layer = layer_of("LSTM", bidirectional=True).to(dtype)

    assert check_program(Both(layer), (numbers(3, 2, 4).to(dtype),), tolerance=5e-2).plan


def test_an_lstm_is_a_loop_however_long_its_sequence_is():
    from fxplug_tensorrt.testing import check_program

    layer = layer_of("LSTM")
    short, long = (check_program(Both(layer), (numbers(count, 2, 4),), engine=False) for count in (2, 9))

    assert kinds(short.converted) == kinds(long.converted)
    assert "ITERATOR" in kinds(long.converted)


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("kind", MODES)
def test_the_operator_of_a_gpu_is_written_the_same(kind, options):
    """Eager has it on a GPU alone; the layer on the CPU says what is right."""
    from fxplug_tensorrt.conversion import Converted, Place
    from fxplug_tensorrt.converters import builtin_converters
    from fxplug_tensorrt.network import Conversion
    from fxplug_tensorrt.testing import evaluate

    name, _, nonlinearity = kind.partition("_")
    more = {"nonlinearity": nonlinearity.lower()} if nonlinearity else {}
    layer = layer_of(name, **options, **more)
    x = numbers(3, 2, 4)
    states = states_of(layer, 3 if layer.batch_first else 2)
    build = Conversion()
    given = [build.input(f"x{number}", value.dtype, value.shape) for number, value in enumerate((x, *states))]
    weights = [build.tensor(value) for value in layer._flat_weights]
    count = 4 if layer.bias else 2
    cell = given[2] if len(given) == 3 else None

    made = builtin_converters()[torch.ops.aten._cudnn_rnn.default].function(
        build, given[0], weights, count, None, given[1], cell, MODES[kind], 5, 0, layer.num_layers,
        layer.batch_first, 0.0, False, layer.bidirectional, [], None,
    )  # fmt: skip

    results = [value for value in made if value is not None]
    for number, value in enumerate(results):
        build.output(f"y{number}", value)
    places = tuple(Place(f"x{number}", number, None, torch.float32) for number in range(len(given)))
    outputs = tuple((f"y{number}", torch.float32) for number in range(len(results)))
    found = evaluate(Converted(build, places, None, outputs), (x, *states))
    with torch.no_grad():
        expected, left = layer(x, states if kind == "LSTM" else states[0])
    left = left if kind == "LSTM" else (left,)
    for one, other in zip(found, (expected, *left), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"proj_size": 3}, "it projects its state"),
        ({"dropout": 0.5, "train": True}, "it draws random numbers"),
        ({"batch_sizes": [2, 1]}, "its sequences are packed"),
        ({"mode": 9}, "it is a recurrent layer of an unknown kind"),
    ],
)
def test_what_the_operator_of_a_gpu_is_refused_for(change, reason):
    from fxplug_tensorrt import NotConvertibleError
    from fxplug_tensorrt.converters import builtin_converters
    from fxplug_tensorrt.network import Conversion

    build = Conversion()
    x, h = build.input("x", torch.float32, (3, 2, 4)), build.input("h", torch.float32, (1, 2, 5))
    options = {
        "mode": 3,
        "hidden_size": 5,
        "proj_size": 0,
        "num_layers": 1,
        "batch_first": False,
        "dropout": 0.0,
        "train": False,
        "bidirectional": False,
        "batch_sizes": [],
        "dropout_state": None,
    } | change

    with pytest.raises(NotConvertibleError, match=reason):
        builtin_converters()[torch.ops.aten._cudnn_rnn.default].function(
            build, x, [], 4, None, h, None, *options.values()
        )


def test_an_lstm_with_an_open_batch_is_lowered_as_a_whole():
    from fxplug_tensorrt.conversion import convert
    from fxplug_tensorrt.converters import builtin_converters
    from fxplug_tensorrt.testing import evaluate

    model = nn.Sequential(
        layer_of("LSTM", batch_first=True, bidirectional=True), Taken(), nn.Linear(10, 3)
    ).eval()
    x = numbers(2, 6, 4)
    backend = TensorRTBackend(targets=("SM86",), batch_sizes=(1, 2, 4))

    lowered = lower(fxplug.symbolic_trace(model), backend, (x,), name="tensorrt", strict=True)

    assert lowered.report.coverage == 1.0
    with torch.no_grad():
        written = fxplug.decompose(fxplug.symbolic_trace(model), (x,), to="aten", dynamic={0: {0: "batch"}})
        converted = convert(written, (x,), builtin_converters(), open_dimensions=(0,))
        for batch in (1, 4):
            given = numbers(batch, 6, 4, seed=batch)
            torch.testing.assert_close(evaluate(converted, (given,))[0], model(given), rtol=1e-5, atol=1e-6)


class Taken(nn.Module):
    def forward(self, made):
        return made[0][:, -1]


def test_a_recurrent_layer_that_is_trained_with_dropout_stays_in_pytorch():
    model = nn.Sequential(nn.LSTM(4, 5, num_layers=2, dropout=0.5).train())
    report = plan_lowering(fxplug.symbolic_trace(model), TensorRTBackend(), "tensorrt", (numbers(3, 2, 4),))

    assert any("draws random numbers" in node.reason for node in report.unsupported)
