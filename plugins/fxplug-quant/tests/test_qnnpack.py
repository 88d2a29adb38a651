"""The engine QNNPACK: whose operators give steps from steps, or find the range of a float input themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug_quant
from fxplug_quant import (
    Dequantize,
    DynamicInt8Linear,
    Int8Linear,
    QuantizationError,
    engine,
    linear,
    static_layers,
)
from fxplug_quant.affine import Affine, affine_of, quantize
from fxplug_quant.linear import state_of

pytestmark = pytest.mark.skipif(
    "qnnpack" not in torch.backends.quantized.supported_engines, reason="this PyTorch has no QNNPACK"
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What QNNPACK was asked for."""
    found: list[str] = []

    def listened(module, name):
        function = getattr(module, name)

        def call(*args, **kwargs):
            found.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    listened(static_layers, "run_qnnpack_linear")
    listened(linear, "run_qnnpack_dynamic")
    return found


def quantized(model: nn.Module, inputs: torch.Tensor, mode: str = "static-int8") -> nn.Module:
    prepared = fxplug_quant.prepare(model.eval(), {"mode": mode, "engine": "qnnpack"}, inputs)
    return fxplug_quant.convert(prepared.calibrate([inputs]) if prepared.observers else prepared)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("shape", [(33,), (1, 33), (7, 33), (2, 3, 33), (0, 33)])
def test_steps_are_within_one_of_exact_arithmetic(shape, per_channel, bias, relu, calls):
    torch.manual_seed(0)
    layer = nn.Linear(33, 18, bias=bias)
    inputs = torch.randn(shape)
    state, given = state_of(layer, per_channel=per_channel), affine_of(-3.0, 2.5, engine.activation_levels())
    output = affine_of(0.0 if relu else -2.0, 1.5, engine.activation_levels())
    post = "relu" if relu else "none"
    ours = Int8Linear(*state, input_affine=given, output_affine=output, post=post, engine="qnnpack")

    with torch.no_grad():
        found = ours(inputs)
        rounded = (
            quantize(inputs, given, engine.activation_levels()).double() - given.zero_point
        ) * given.scale
        exact = rounded @ (ours.int_weight * ours.weight_scale[:, None]).double().t()
        exact = exact + layer.bias.double() if bias else exact
        wanted = (exact / output.scale).round() + output.zero_point
        lowest = output.zero_point if relu else 0

    assert calls == ["run_qnnpack_linear"]
    assert found.dtype is torch.uint8
    assert found.shape == (*shape[:-1], 18)
    difference = found - wanted.clamp(lowest, engine.activation_levels())
    assert not found.numel() or difference.abs().max() <= 1


@pytest.mark.parametrize("post", ["none", "relu", "selu"])
@pytest.mark.parametrize("shape", [(33,), (1, 33), (7, 33), (2, 3, 33), (0, 33)])
def test_dynamic_outputs_are_those_of_the_other_engines(shape, post, calls):
    torch.manual_seed(0)
    layer, inputs = nn.Linear(33, 18), torch.randn(shape)
    ours, other = (
        DynamicInt8Linear.from_float(layer, engine=name, post=post) for name in ("qnnpack", "onednn")
    )

    with torch.no_grad():
        found, expected = ours(inputs), other(inputs)

    assert found.shape == expected.shape
    if found.numel():
        assert calls == ["run_qnnpack_dynamic"]
        # Both round halves of steps, each in its way. Where oneDNN's inputs have 7 bits, both round all of them, to
        # steps of different sizes.
        atol = 0.02 if engine.activation_levels() == 255 else 0.06
        torch.testing.assert_close(found, expected, rtol=0.01, atol=atol)


@pytest.mark.parametrize("size", [1e-20, 1e-6, 1e-3])
def test_values_that_need_finer_steps_than_qnnpack_has_are_computed_elsewhere(size, calls):
    torch.manual_seed(0)
    layer, inputs = nn.Linear(33, 18, bias=False), torch.randn(5, 33) * size
    with torch.no_grad():
        found = DynamicInt8Linear.from_float(layer, engine="qnnpack")(inputs)

        assert relative_error(found / size, layer(inputs) / size) < 0.02
    assert not calls


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.first, self.second, self.third = nn.Linear(288, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        x = torch.flatten(self.norm(self.conv(x)).relu(), 1)
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x) + x)
        return self.head(torch.selu(self.third(x)))


def test_a_model_gives_steps_between_layers_and_floats_where_something_else_is_next(calls):
    torch.manual_seed(0)
    model, inputs = Branches().eval(), torch.randn(64, 3, 8, 8)
    result = quantized(model, inputs)

    with torch.no_grad():
        assert relative_error(result(inputs), model(inputs)) < 0.05
    assert calls == ["run_qnnpack_linear"] * 4
    layers = [part for part in result.modules() if isinstance(part, Int8Linear)]
    assert all(part.output_scale is not None and part.other_scale is None for part in layers)
    assert sum(isinstance(part, Dequantize) for part in result.modules()) == 2


def test_the_plan_says_that_outputs_have_eight_bits():
    model, inputs = nn.Sequential(nn.Linear(8, 8)).eval(), torch.randn(4, 8)
    dtypes = {
        name: fxplug_quant.plan(model, {"engine": name}, inputs).edges()["_0"].dtype
        for name in ("x86", "qnnpack")
    }

    assert dtypes == {"x86": "float32", "qnnpack": "uint8"}


def test_where_values_have_to_stay_float_layers_do_as_well():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            y = self.layer(x)
            z = y * 2
            y.add_(1)
            return z + y

    plan = fxplug_quant.plan(Writes().eval(), {"engine": "qnnpack"}, torch.randn(2, 4))

    assert (
        "writes in place, so that all values stay float; its result cannot" in plan.left_in_float()["layer"]
    )


def test_a_model_in_dynamic_mode_stays_near_the_float_one(calls):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.SELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    inputs = torch.randn(32, 64)
    result = quantized(model, inputs, "dynamic-int8")

    with torch.no_grad():
        assert 0 < relative_error(result(inputs), model(inputs)) < 0.02
    assert calls == ["run_qnnpack_dynamic"] * 3


@pytest.mark.parametrize("mode", ["static-int8", "dynamic-int8"])
def test_a_module_runs_where_qnnpack_is_missing(mode, monkeypatch, calls):
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval(), torch.randn(32, 64)
    result = quantized(model, inputs, mode)
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", ["onednn"], raising=False)

    with torch.no_grad():
        assert relative_error(result(inputs), model(inputs)) < 0.03
    assert not calls


def test_torch_goes_on_with_its_own_engine(calls):
    before = torch.backends.quantized.engine
    inputs = torch.randn(4, 8)

    with torch.no_grad():
        quantized(nn.Sequential(nn.Linear(8, 8)), inputs)(inputs)

    assert calls
    assert torch.backends.quantized.engine == before


@pytest.mark.parametrize("levels", [127, 255])
def test_steps_for_readers_with_seven_bits_have_no_more(levels, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(engine, "activation_levels", lambda: levels)
    given, output = Affine(0.02, 60), Affine(0.001, 0)
    layer = Int8Linear(
        *state_of(nn.Linear(8, 8)),
        input_affine=given,
        output_affine=output,
        takes_steps=True,
        engine="qnnpack",
    )

    assert layer(torch.full((4, 8), 127, dtype=torch.uint8)).max() == levels


def test_an_engine_that_is_missing_is_named_with_those_that_are_there(monkeypatch):
    present = ["none", "onednn", "x86"]
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", present, raising=False)

    with pytest.raises(QuantizationError) as caught:
        fxplug_quant.plan(nn.Sequential(nn.Linear(4, 4)).eval(), {"engine": "qnnpack"}, torch.randn(2, 4))

    assert str(caught.value) == (
        f"Cannot compute with the engine 'qnnpack': PyTorch {torch.__version__} on this machine has only onednn, x86. "
        f'Choose engine = "x86", which takes what there is. [FXP-Q001]'
    )
