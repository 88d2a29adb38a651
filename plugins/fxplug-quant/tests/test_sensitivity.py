"""What each layer costs, and a plan that leaves the costly ones in float."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from torch import nn

import fxplug_quant
from fxplug.errors import ConfigError, UnknownNameError
from fxplug_quant import Plan, QuantizationError


def spoilt(index: int) -> nn.Sequential:
    """Return four layers, of which one has to tell values from one another beside which another one is huge."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, 16) for _ in range(4)]
    with torch.no_grad():
        for layer in layers:
            nn.init.orthogonal_(layer.weight)
        # One feature of its input becomes 500 times as large, and what it is multiplied by as much smaller.
        layers[index - 1].weight[3] *= 500
        layers[index - 1].bias[3] *= 500
        layers[index].weight[:, 3] /= 500
    parts = [part for layer in layers for part in (layer, nn.LeakyReLU(0.5))]
    return nn.Sequential(*parts[:-1]).eval()


@pytest.fixture
def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(32, 16, generator=generator) for _ in range(2)]


@pytest.fixture
def model() -> nn.Sequential:
    return spoilt(2)


# -- sensitivity ------------------------------------------------------------------------------------------------


def test_each_layer_is_measured_alone_and_with_those_before_it(model, batches):
    counts = []

    table = fxplug_quant.sensitivity(
        model, None, batches, progress=lambda done, total: counts.append((done, total))
    )

    assert [layer.node for layer in table.layers] == ["_0", "_2", "_4", "_6"]
    assert [layer.path for layer in table.layers] == ["0", "2", "4", "6"]
    assert counts == [(done, 8) for done in range(1, 9)]
    first, last = table.layers[0], table.layers[-1]
    assert first.isolated == first.cumulative
    assert last.cumulative == table.total
    assert table.total.sqnr < first.isolated.sqnr


def test_what_is_so_far_is_of_a_layer_and_all_before_it(batches):
    torch.manual_seed(0)
    layers = [nn.Linear(16, 16) for _ in range(4)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.LeakyReLU(0.5)))).eval()
    plan = fxplug_quant.plan(model, None, batches[0])
    table = fxplug_quant.sensitivity(model, plan, batches)

    for index, later in ((1, ("_4", "_6")), (2, ("_6",))):
        wished = plan
        for name in later:
            wished = wished.with_mode(name, "float")
        converted = fxplug_quant.convert(fxplug_quant.prepare(model, wished, batches[0]).calibrate(batches))
        with torch.no_grad():
            expected, found = (torch.cat([run(batch) for batch in batches]) for run in (model, converted))
        layer = table.layers[index]
        assert layer.cumulative.max_error == float((found.double() - expected).abs().max())
        assert layer.cumulative.max_error != layer.isolated.max_error


@pytest.mark.parametrize("mode", ["static-int8", "dynamic-int8", "weight-int8"])
def test_the_errors_are_those_of_what_convert_makes(model, batches, mode):
    plan = fxplug_quant.plan(model, {"mode": mode}, batches[0])
    table = fxplug_quant.sensitivity(model, plan, batches)
    only = plan
    for name in ("_0", "_2", "_6"):
        only = only.with_mode(name, "float")

    for wished, found in ((plan, table.total), (only, table.layers[2].isolated)):
        converted = fxplug_quant.convert(fxplug_quant.prepare(model, wished, batches[0]).calibrate(batches))
        with torch.no_grad():
            expected = torch.cat([model(batch) for batch in batches]).double()
            error = torch.cat([converted(batch) for batch in batches]) - expected
        assert found.max_error == float(error.abs().max())
        assert found.sqnr == pytest.approx(
            10 * math.log10(float(expected.square().sum() / error.square().sum()))
        )
        assert found.relative_error == pytest.approx(float(error.norm() / expected.norm()))


def test_the_layer_that_an_outlier_spoils_is_the_worst(batches):
    for index in (1, 2, 3):
        table = fxplug_quant.sensitivity(spoilt(index), None, batches, cumulative=False)
        assert table.sorted_by("sqnr").layers[0].node == f"_{2 * index}"
        assert table.sorted_by("max-error").layers[0].node == f"_{2 * index}"
        assert table.layers[0].cumulative is None


def test_the_table_is_text_and_json_and_can_be_sorted(model, batches):
    table = fxplug_quant.sensitivity(model, None, batches)

    lines = str(table.sorted_by("cosine")).splitlines()
    assert lines[0].split() == [
        "node", "operation", "mode", "SQNR", "dB", "cosine", "max", "error", "so", "far:", "SQNR", "dB", "line"
    ]  # fmt: skip
    assert lines[1].startswith("_4 ")
    assert lines[-1].startswith("all ")
    data = json.loads(table.to_json())
    assert [row["node"] for row in data["layers"]] == ["_0", "_2", "_4", "_6"]
    assert data["total"]["sqnr"] == table.total.sqnr
    assert table.sorted_by("order") is table
    worst = max(table.layers, key=lambda layer: -layer.cumulative.sqnr)
    assert table.sorted_by("sqnr", cumulative=True).layers[0] is worst
    with pytest.raises(UnknownNameError, match="no key to sort layers by named 'snr'"):
        table.sorted_by("snr")


def test_layers_in_float_are_not_measured_and_the_module_stays_as_it_is(model, batches):
    before = copy.deepcopy(model.state_dict())

    table = fxplug_quant.sensitivity(model, {"rules": [{"path": "2", "mode": "float"}]}, iter(batches))

    assert [layer.node for layer in table.layers] == ["_0", "_4", "_6"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [type(part) for part in model if isinstance(part, nn.Linear)] == [nn.Linear] * 4


def test_where_nothing_is_quantized_nothing_differs(model, batches):
    table = fxplug_quant.sensitivity(model, {"mode": "float"}, batches)

    assert table.layers == ()
    assert (table.total.sqnr, table.total.cosine, table.total.max_error) == (math.inf, 1.0, 0.0)
    assert json.loads(table.to_json())["total"] == {"sqnr": "inf", "cosine": 1.0, "max_error": 0.0}
    assert table.total.relative_error == 0


class Branches(nn.Module):
    """Shares a layer, adds, gives a dict, draws random numbers, and counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale=None):
        self.calls.add_(1)
        x = x if scale is None else x * scale
        y = self.first(x).relu()
        z = self.second(self.first(y)) + y
        return {"scores": z + torch.rand_like(z), "best": z.argmax(1), "masked": z.log()}


def test_shared_layers_labels_random_numbers_buffers_and_infinite_outputs_are_no_trouble():
    torch.manual_seed(0)
    model, state = Branches().eval(), torch.get_rng_state()
    loader = [(torch.rand(4, 8), torch.zeros(4)) for _ in range(2)]
    torch.set_rng_state(state)

    table = fxplug_quant.sensitivity(model, None, loader, example_inputs=loader[0][0])

    assert [layer.path for layer in table.layers] == ["first", "first", "second"]
    assert all(10 < layer.isolated.sqnr < math.inf for layer in table.layers)
    assert float(model.calls) == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_no_data_and_outputs_that_cannot_be_compared_are_refused(model, batches):
    with pytest.raises(QuantizationError, match=r"the loader gave no batch.*\[FXP-Q007\]"):
        fxplug_quant.sensitivity(model, None, [])

    class Best(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 4)

        def forward(self, x):
            return self.layer(x).argmax(1)

    with pytest.raises(QuantizationError, match=r"Best gives no floating-point tensor.*\[FXP-Q010\]"):
        fxplug_quant.sensitivity(Best().eval(), None, batches)


# -- autotune ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [1, 2, 3])
def test_autotune_finds_the_one_layer_that_an_outlier_spoils(index, batches):
    model = spoilt(index)
    before = fxplug_quant.sensitivity(model, None, batches, cumulative=False).total.relative_error

    plan = fxplug_quant.autotune(model, None, batches, budget=0.03)

    assert before > 0.05
    assert list(plan.left_in_float()) == [f"_{2 * index}"]
    entry = plan.calls()[f"_{2 * index}"]
    assert entry.decided_by == "autotune"
    assert entry.reason.startswith("quantized alone, it makes a relative error of 0.")
    assert entry.reason.endswith("; 0.03 is allowed")
    converted = fxplug_quant.convert(
        fxplug_quant.prepare(model, Plan.from_json(plan.to_json()), batches[0]).calibrate(batches)
    )
    assert type(converted.get_submodule(str(2 * index))) is nn.Linear
    with torch.no_grad():
        expected, found = (torch.cat([run(batch) for batch in batches]) for run in (model, converted))
    assert float((found - expected).norm() / expected.norm()) <= 0.03


def test_autotune_obeys_a_metric(batches):
    model = spoilt(2)
    fresh = torch.randn(500, 16, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        labels = model(fresh).argmax(1)
    scores, counts = [], []

    def accuracy(module):
        scores.append(float((module(fresh).argmax(1) == labels).float().mean()))
        return scores[-1]

    plan = fxplug_quant.autotune(
        model,
        None,
        batches,
        budget=0.05,
        metric=accuracy,
        progress=lambda done, total: counts.append((done, total)),
    )

    assert list(plan.left_in_float()) == ["_4"]
    assert plan.left_in_float()["_4"].endswith("; the metric may lose 0.05")
    assert scores[0] == 1
    assert scores[1] < 0.95 <= scores[2]
    assert counts == [(done, 12) for done in range(1, 7)]


def test_a_layer_that_was_left_in_float_in_vain_is_quantized_again(batches):
    def third_layer_is_float(module):
        return float(type(module.get_submodule("4")) is nn.Linear)

    # The second layer does the most harm alone, so that it is put back to float first, and the metric needs another.
    plan = fxplug_quant.autotune(spoilt(1), None, batches, budget=0.5, metric=third_layer_is_float)

    assert list(plan.left_in_float()) == ["_4"]
    assert plan.calls()["_2"].mode == "static-int8"


def test_a_plan_that_keeps_the_budget_is_returned_as_it_is(model, batches):
    plan = fxplug_quant.plan(model, {"mode": "weight-int8"}, batches[0])

    assert fxplug_quant.autotune(model, plan, batches, budget=1) == plan


def test_no_budget_at_all_leaves_everything_in_float(model, batches):
    plan = fxplug_quant.autotune(model, None, batches, budget=0)

    assert list(plan.left_in_float()) == ["_0", "_2", "_4", "_6"]
    assert {entry.decided_by for entry in plan.calls().values()} == {"autotune"}


def test_budgets_and_metrics_that_cannot_be_kept_are_refused(model, batches):
    for budget in (-0.1, math.nan, math.inf, "0.1", None, True):
        with pytest.raises(ConfigError, match="Cannot keep a budget of"):
            fxplug_quant.autotune(model, None, batches, budget=budget)
    with pytest.raises(QuantizationError, match=r"the metric returned nan.*\[FXP-Q011\]"):
        fxplug_quant.autotune(model, None, batches, budget=0.1, metric=lambda module: math.nan)
    worse = iter(range(0, -100, -1))
    with pytest.raises(QuantizationError, match="with all layers in float the loss is larger still"):
        fxplug_quant.autotune(model, None, batches, budget=0.1, metric=lambda module: next(worse))
