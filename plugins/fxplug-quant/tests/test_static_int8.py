"""Static int8 from a plan to a module: what it computes, how near it stays, what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxplug
import fxplug_quant
from fxplug.passes import PassContext
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_quant import Dequantize, Int8Add, Int8Conv, Int8Linear, QuantizationError, plugin
from fxplug_quant.static import StaticInt8


def quantized(model: nn.Module, *batches: torch.Tensor, config: object = None) -> fxplug.GraphModule:
    prepared = fxplug_quant.prepare(model, config, batches[0])
    if prepared.observers:
        prepared.calibrate(batches)
    return fxplug_quant.convert(prepared)


def kinds(module: nn.Module) -> list[str]:
    return [
        type(module.get_submodule(node.target)).__name__
        for node in module.graph.nodes
        if node.op == "call_module"
    ]


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def steps(values: torch.Tensor, layer: nn.Module, name: str) -> torch.Tensor:
    scale, zero = getattr(layer, f"{name}_scale").double(), getattr(layer, f"{name}_zero_point")
    return ((values.double() / scale).round() + zero).clamp(0, 255)


# -- numerics ---------------------------------------------------------------------------------------------------

CONVOLUTIONS = [
    (nn.Conv1d(4, 6, 3, stride=2, padding=1), (3, 4, 17)),
    (nn.Conv2d(4, 6, 3, padding=1, bias=False), (2, 4, 9, 8)),
    (nn.Conv2d(8, 8, 3, groups=4, dilation=2), (2, 8, 9, 9)),
    (nn.Conv2d(8, 8, (3, 1), groups=8, padding=(1, 0)), (1, 8, 6, 5)),
    (nn.Conv3d(2, 4, 3, padding=1), (2, 2, 5, 6, 7)),
]


@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize(
    ("layer", "shape"), [*CONVOLUTIONS, (nn.Linear(24, 10), (5, 24)), (nn.Linear(24, 10), (2, 3, 24))]
)
def test_outputs_are_within_one_step_of_exact_arithmetic(layer, shape, rectified):
    """The layer in the middle gives steps; the reference computes in float64 with the same rounded numbers."""
    torch.manual_seed(0)
    inputs = torch.randn(shape)
    follower = copy.deepcopy(layer) if isinstance(layer, nn.Linear) else nn.Identity()
    if isinstance(layer, nn.Linear):
        follower = nn.Linear(10, 4)
    else:
        kind = type(layer)
        follower = kind(layer.out_channels, 3, 1)
    parts = [layer, nn.ReLU(), follower] if rectified else [layer, follower]
    model = quantized(nn.Sequential(*parts).eval(), inputs)
    first = next(part for part in model.modules() if isinstance(part, (Int8Linear, Int8Conv)))
    given = first.output_scale is not None
    assert given

    if isinstance(first, Int8Conv):
        found = model.get_submodule("input_steps")(inputs) if hasattr(model, "input_steps") else None
        found = first(steps(inputs, first, "input").to(torch.uint8)) if found is None else first(found)
    else:
        found = first(inputs)

    rounded = (steps(inputs, first, "input") - first.input_zero_point) * first.input_scale.double()
    wide = first.weight_scale.double().reshape(-1, *(1,) * (first.int_weight.dim() - 1))
    weight, bias = first.int_weight * wide, first.bias
    bias = None if bias is None else bias.double()
    if isinstance(layer, nn.Linear):
        exact = functional.linear(rounded, weight, bias)
    else:
        function = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}[len(shape)]
        exact = function(rounded, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
    exact = exact.relu() if rectified else exact
    assert found.dtype is torch.uint8
    assert (found - steps(exact, first, "output")).abs().max() <= 1


class Residual(nn.Module):
    """Blocks that add in several ways; `last` is used again after an addition that could overwrite it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.third, self.last = (nn.Conv2d(8, 8, 1) for _ in range(2))
        self.norm = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        y = functional.relu(self.second(x) + x)
        z = self.third(y) + y
        w = self.last(z) + y
        w = self.pool(w + z)
        return self.head(torch.flatten(functional.adaptive_avg_pool2d(w, 1), 1))


def test_residuals_are_added_inside_of_layers_and_what_is_needed_later_is_not_overwritten():
    torch.manual_seed(0)
    model = Residual()
    model(torch.randn(64, 8, 12, 12))
    model.eval()
    inputs = torch.randn(16, 8, 12, 12)

    result = quantized(model, inputs)

    layers = [part for part in result.modules() if isinstance(part, Int8Conv)]
    assert kinds(result).count("BatchNorm2d") == 0
    assert sum(part.other_scale is not None for part in layers) == 3
    assert kinds(result).count("Int8Add") == 1
    assert [node.name for node in result.graph.nodes if node.name in {"head", "relu", "flatten"}] == [
        "relu",
        "flatten",
        "head",
    ]
    with torch.no_grad():
        assert relative_error(result(inputs), model(inputs)) < 0.02
        assert torch.equal(result(inputs), result(inputs))


def test_values_stay_steps_between_layers_and_one_that_is_returned_is_float():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            hidden = self.first(x).relu()
            return self.second(hidden.reshape(hidden.size(0), -1)), hidden

    torch.manual_seed(0)
    model, inputs = Two().eval(), torch.randn(32, 16)

    result = quantized(model, inputs)

    with torch.no_grad():
        found, hidden = result(inputs)
        expected, expected_hidden = model(inputs)
    assert kinds(result) == ["Int8Linear", "Int8Linear", "Dequantize"]
    assert hidden.dtype is torch.float32
    assert relative_error(found, expected) < 0.03
    assert relative_error(hidden, expected_hidden) < 0.02


def test_a_layer_that_is_called_twice_has_ranges_for_each_call_and_weights_once():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            return self.layer(100 * self.layer(x))

    torch.manual_seed(0)
    model, inputs = Shared().eval(), torch.randn(32, 16)

    result = quantized(model, inputs)

    first, second = (part for part in result.modules() if isinstance(part, Int8Linear))
    assert first.int_weight is second.int_weight
    assert second.input_scale > 10 * first.input_scale
    with torch.no_grad():
        assert relative_error(result(inputs), model(inputs)) < 0.03


def test_a_program_that_writes_in_place_keeps_its_values():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.first(x)
            z = self.second(y)
            y.add_(1)
            return torch.relu(z) + y

    torch.manual_seed(0)
    model, inputs = Writes().eval(), torch.randn(64, 8)
    plan = fxplug_quant.plan(model, None, inputs)

    result = quantized(model, inputs)

    assert "writes in place" in plan.edges()["second"].reason
    with torch.no_grad():
        assert relative_error(result(inputs), model(inputs)) < 0.05


def test_all_modes_stay_near_an_mlp():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.SELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    inputs = torch.randn(128, 64)
    for mode in ("static-int8", "dynamic-int8", "weight-int8"):
        for engine in ("x86", "onednn"):
            result = quantized(model, inputs, config={"mode": mode, "engine": engine})
            with torch.no_grad():
                assert 0 < relative_error(result(inputs), model(inputs)) < 0.04
                assert relative_error(result(inputs[:3]), model(inputs[:3])) < 0.04


# -- state ------------------------------------------------------------------------------------------------------


@pytest.fixture
def manager() -> PluginManager:
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "quant")], environ={})


def test_a_converted_module_is_copied_saved_and_loaded_after_a_run(tmp_path, manager):
    torch.manual_seed(0)
    model = Residual().eval()
    inputs = torch.randn(4, 8, 8, 8)
    result = quantized(model, inputs)
    with torch.no_grad():
        expected = result(inputs)

        fxplug.save(result, tmp_path / "module.fxplug", manager=manager)
        loaded = fxplug.load(tmp_path / "module.fxplug", manager=manager)
        other = quantized(Residual().eval(), inputs)
        other.load_state_dict(result.state_dict())

        assert torch.equal(loaded(inputs), expected)
        assert torch.equal(copy.deepcopy(result)(inputs), expected)
        assert torch.equal(other(inputs), expected)
    assert "weight=int8 per channel, input=uint8(" in repr(result)


def test_the_float_model_is_left_as_it_is():
    torch.manual_seed(0)
    model = Residual().eval()
    before, inputs = copy.deepcopy(model.state_dict()), torch.randn(4, 8, 8, 8)

    quantized(model, inputs)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not [
        part for part in model.modules() if isinstance(part, (Int8Conv, Int8Linear, Int8Add, Dequantize))
    ]


def test_calibration_is_deterministic_and_can_go_on_elsewhere():
    torch.manual_seed(0)
    model, batches = Residual().eval(), [torch.randn(4, 8, 8, 8) for _ in range(4)]
    counts = []
    whole = fxplug_quant.prepare(model, None, batches[0])
    whole.calibrate(batches, progress=lambda done, total: counts.append((done, total)))
    first = fxplug_quant.prepare(model, None, batches[0]).calibrate(batches[:2])
    second = fxplug_quant.prepare(model, None, batches[0])

    second.load_state_dict(first.state_dict())
    second.calibrate((batch, "label") for batch in batches[2:])

    assert counts == [(1, 4), (2, 4), (3, 4), (4, 4)]
    expected, found = (fxplug_quant.convert(prepared).state_dict() for prepared in (whole, second))
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


# -- passes -----------------------------------------------------------------------------------------------------


def test_the_pass_runs_behind_folding_and_takes_data_from_around_it(manager):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    inputs = torch.randn(2, 3, 10, 10)
    seen = []

    def loader():
        for seed in range(3):
            seen.append(seed)
            yield torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(seed)), seed

    with fxplug_quant.calibration(loader()):
        result = fxplug.optimize(
            model,
            inputs,
            passes=["quant:static-int8", "fuse-conv-bn"],
            manager=manager,
            atol=0.1,
            measure=False,
        )

    assert seen == [0, 1, 2]
    assert [report.name for report in result.passes] == ["fuse-conv-bn", "quant:static-int8"]
    assert kinds(result.graph_module) == ["Quantize", "Int8Conv", "Int8Conv"]
    assert result.passes[1].result.details == {"quantized": 2, "left": {}, "batches": 3}


def test_the_pass_needs_data():
    traced = fxplug.symbolic_trace(nn.Sequential(nn.Linear(4, 4)).eval())

    with pytest.raises(QuantizationError) as caught:
        StaticInt8().run(traced, PassContext())

    assert str(caught.value) == (
        "Cannot quantize: there is no calibration data. Give example inputs, or run inside of 'with "
        "fxplug_quant.calibration(loader):'. [FXP-Q007]"
    )


# -- bad input --------------------------------------------------------------------------------------------------


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(QuantizationError, match=r"Sequential: it is in training mode. Call eval\(\) first."):
        fxplug_quant.plan(nn.Sequential(nn.Linear(4, 4)), None, torch.randn(2, 4))


def test_a_quantized_model_is_refused():
    result = quantized(nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(2, 4))

    with pytest.raises(QuantizationError, match="0 is a Int8Linear, so it is quantized already"):
        fxplug_quant.prepare(result, None, torch.randn(2, 4))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_with_node_and_line(value):
    class Divides(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x * 2)

    prepared = fxplug_quant.prepare(Divides().eval(), None, torch.randn(2, 4))

    with pytest.raises(QuantizationError) as caught:
        prepared.calibrate([torch.randn(2, 4), torch.full((2, 4), value)])

    assert "the value of node 'mul', mul (line " in str(caught.value)
    assert "test_static_int8.py" in str(caught.value)
    assert "batch 1 gives values that are not finite" in str(caught.value)


def test_no_calibration_and_an_empty_loader_are_refused():
    prepared = fxplug_quant.prepare(nn.Sequential(nn.Linear(4, 4)).eval(), None, torch.randn(2, 4))

    with pytest.raises(QuantizationError, match="no calibration data was seen"):
        fxplug_quant.convert(prepared)
    with pytest.raises(QuantizationError, match="the loader gave no batch"):
        prepared.calibrate([])


def test_a_value_that_was_0_throughout_is_refused():
    prepared = fxplug_quant.prepare(nn.Sequential(nn.Linear(4, 4)).eval(), None, torch.randn(2, 4))
    prepared.calibrate([torch.zeros(2, 4)])

    with pytest.raises(QuantizationError, match=r"node 'input_1', placeholder.* 0 throughout calibration"):
        fxplug_quant.convert(prepared)


def test_integer_inputs_and_steps_of_others_are_refused():
    result = quantized(nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(2, 4))

    for dtype in (torch.int64, torch.uint8):
        with pytest.raises(QuantizationError, match=f"its input is {str(dtype)[6:]} on cpu"):
            result(torch.zeros(2, 4, dtype=dtype))


def test_an_engine_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", ["onednn"], raising=False)

    with pytest.raises(QuantizationError, match="Cannot compute with the engine 'fbgemm'"):
        fxplug_quant.plan(nn.Sequential(nn.Linear(4, 4)).eval(), {"engine": "fbgemm"}, torch.randn(2, 4))
