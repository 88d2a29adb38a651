"""What cannot be quantized, or cannot be given to what is: the error says which node, which line, and what to do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxplug
import fxplug_quant
from fxplug.errors import ConfigError
from fxplug.passes import PassContext
from fxplug_quant import QuantizationError, WeightInt4Linear, WeightInt8Linear
from fxplug_quant.static import StaticInt8


class Divides(nn.Module):
    """Divides by its input, so that a 0 becomes an infinity inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(torch.reciprocal(self.first(x)) * x)


def quantized(model: nn.Module, inputs: torch.Tensor, config: object = None) -> fxplug.GraphModule:
    prepared = fxplug_quant.prepare(model.eval(), config, inputs)
    return fxplug_quant.convert(prepared.calibrate([inputs]) if prepared.observers else prepared)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("engine", ["x86", "onednn"])
def test_values_that_are_not_finite_are_refused_at_run_time_with_node_and_line(value, engine):
    torch.manual_seed(0)
    inputs = torch.randn(6, 4)
    result = quantized(Divides(), inputs, {"engine": engine})
    bad = inputs.clone()
    bad[3, 2] = value

    with torch.no_grad(), pytest.raises(QuantizationError) as caught:
        result(bad)

    assert "it has values that are not finite (NaN or infinity), and no step stands for them" in str(
        caught.value
    )
    assert str(caught.value).endswith("[FXP-Q012]")
    notes = "\n".join(caught.value.__notes__)
    assert "While running node %first" in notes
    assert "test_bad_quant_input.py" in notes


def test_values_inside_of_the_program_that_are_not_finite_name_the_call_that_takes_them():
    torch.manual_seed(0)
    inputs = torch.randn(6, 4)
    result = quantized(Divides(), inputs)
    with torch.no_grad():
        result.first.weight_scale.zero_()
        result.first.bias.zero_()
        with pytest.raises(QuantizationError, match=r"Cannot round the input of Int8Linear") as caught:
            result(inputs)

    assert "second" in "\n".join(caught.value.__notes__)


def test_huge_values_whose_sum_is_infinite_are_no_error():
    torch.manual_seed(0)
    result = quantized(nn.Sequential(nn.Linear(4, 2)), torch.randn(6, 4))

    with torch.no_grad():
        assert bool(result(torch.full((2, 4), 3e38)).isfinite().all())


@pytest.mark.parametrize("value", [2.5, -0.001, 1e-20])
def test_a_value_that_is_always_the_same_keeps_it(value):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False)).eval()
    inputs = torch.full((2, 4), value)

    with torch.no_grad():
        torch.testing.assert_close(
            quantized(model, inputs)(inputs), model(inputs), rtol=0.02, atol=0.01 * abs(value)
        )


def test_an_observer_that_saw_nothing_is_named_with_its_node_and_line():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x[x[:, 0] > 0])

    prepared = fxplug_quant.prepare(Keeps().eval(), None, torch.ones(2, 4))
    prepared.calibrate([-torch.ones(3, 4)])

    with pytest.raises(
        QuantizationError, match=r"node 'getitem_1', getitem \(line .*test_bad_quant_input\.py"
    ):
        fxplug_quant.convert(prepared)
    with pytest.raises(
        QuantizationError, match=r"its observer saw nothing\. Calibrate with data that reaches it"
    ):
        fxplug_quant.convert(prepared)


@pytest.mark.parametrize("mode", ["static-int8", "dynamic-int8", "weight-int8", "weight-int4"])
def test_a_model_that_is_quantized_in_any_mode_is_refused(mode):
    result = quantized(nn.Sequential(nn.Linear(64, 16)), torch.randn(4, 64), {"mode": mode})

    with pytest.raises(QuantizationError, match=r"so it is quantized already\. Start from the float model"):
        fxplug_quant.plan(result, None, torch.randn(4, 64))


def test_tables_and_what_torch_ao_made_are_quantized_already():
    ao = pytest.importorskip("torch.ao.nn.quantized.dynamic")
    table = quantized(nn.Sequential(nn.Embedding(4, 8)), torch.tensor([1]), {"mode": "weight-int8"})

    with pytest.raises(QuantizationError, match="0 is a Int8Embedding, so it is quantized already"):
        fxplug_quant.plan(table, None, torch.tensor([1]))

    class Foreign(nn.Linear):
        __module__ = ao.Linear.__module__

    with pytest.raises(QuantizationError, match="0 is a Foreign, so it is quantized already"):
        fxplug_quant.plan(nn.Sequential(Foreign(4, 4)).eval(), None, torch.randn(2, 4))


def test_functions_in_a_model_that_trains_are_refused_or_left():
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return functional.linear(x, self.weight)

    inputs = torch.randn(2, 4)
    with pytest.raises(QuantizationError, match="it is in training mode"):
        fxplug_quant.plan(Calls(), None, inputs)
    traced = fxplug.symbolic_trace(Calls()).train()

    result = StaticInt8().run(traced, PassContext((inputs,)))

    assert not result.modified
    assert result.details["left"] == {"linear": "training mode (call eval() first)"}


@pytest.mark.parametrize("kind", [WeightInt8Linear, WeightInt4Linear])
def test_integer_inputs_of_layers_with_rounded_weights_are_refused(kind):
    layer = kind.from_float(nn.Linear(64, 16))

    with pytest.raises(QuantizationError, match=r"its input is int64 on cpu. Give it floating-point numbers"):
        layer(torch.ones(2, 64, dtype=torch.int64))


def test_group_sizes_that_do_not_fit_are_named():
    with pytest.raises(ConfigError, match="group_size=48: torch's operator knows groups of 32, 64, 128, 256"):
        fxplug_quant.QuantConfig(group_size=48)
    with pytest.raises(ConfigError, match="100 input features, which are no multiple of group_size = 64"):
        WeightInt4Linear.from_float(nn.Linear(100, 16))
    model = nn.Sequential(nn.Linear(100, 64), nn.Linear(64, 10)).eval()

    plan = fxplug_quant.plan(model, {"mode": "weight-int4"}, torch.randn(2, 100))

    assert plan.left_in_float() == {
        "_0": "100 input features, which are no multiple of group_size = 64",
        "_1": "10 output features, which are no multiple of 16",
    }
