"""The int8 layer by itself: what it computes, what its state is, what it refuses."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from fxplug_quant import DynamicInt8Linear, QuantizationError, engine


@pytest.fixture
def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(40, 24).eval()


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(7, 40, generator=torch.Generator().manual_seed(1))


def integer_reference(layer: DynamicInt8Linear, inputs: torch.Tensor) -> torch.Tensor:
    """Compute the layer's output in 64-bit integers."""
    # QNNPACK adds each product in 32 bits, so its inputs have 8 bits on every CPU.
    levels = 255 if layer.engine == "qnnpack" else engine.activation_levels()
    low, high = min(inputs.min().item(), 0.0), max(inputs.max().item(), 0.0)
    scale = (high - low) / levels
    zero_point = round(-low / scale)
    steps = ((inputs / scale).round() + zero_point).clamp(0, levels).long()
    product = (steps - zero_point) @ layer.int_weight.long().t()
    result = product.double() * scale * layer.weight_scale.double()
    return (result if layer.bias is None else result + layer.bias.double()).float()


@pytest.mark.parametrize("shape", [(40,), (1, 40), (7, 40), (2, 3, 40)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_product_is_that_of_the_rounded_integers(shape, bias):
    torch.manual_seed(0)
    layer = DynamicInt8Linear.from_float(nn.Linear(40, 24, bias=bias))
    inputs = torch.randn(shape) + 0.5

    torch.testing.assert_close(layer(inputs), integer_reference(layer, inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("engine_name", ["x86", "fbgemm", "onednn", "qnnpack"])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_one_scale_for_all_weights(linear, engine_name, rows):
    if engine_name == "qnnpack" and "qnnpack" not in torch.backends.quantized.supported_engines:
        pytest.skip("this PyTorch has no QNNPACK")
    with torch.no_grad():
        linear.weight[0] *= 20  # Beside it, the steps of the others are coarse.
    layer = DynamicInt8Linear.from_float(linear, engine=engine_name, per_channel=False)
    inputs = torch.randn(rows, 40, generator=torch.Generator().manual_seed(1))

    assert layer.weight_scale.tolist() == [layer.weight_scale[0].item()] * 24
    torch.testing.assert_close(layer(inputs), integer_reference(layer, inputs), rtol=1e-5, atol=2e-2)
    assert "weight=int8 per tensor" in repr(layer)
    per_channel = DynamicInt8Linear.from_float(linear)
    errors = [(made(inputs) - linear(inputs))[:, 1:].abs().max() for made in (layer, per_channel)]
    assert errors[0] > 2 * errors[1]


@pytest.mark.parametrize(
    ("per_channel", "scheme"), [(True, "per_channel_affine"), (False, "per_tensor_affine")]
)
def test_fbgemm_reads_one_scale_as_one(linear, per_channel, scheme):
    layer = DynamicInt8Linear.from_float(linear, per_channel=per_channel)

    packed = engine.pack_fused_linear(layer.int_weight, layer.weight_scale, layer.bias)

    weight, _ = packed.unpack()
    assert str(weight.qscheme()) == f"torch.{scheme}"
    assert torch.equal(weight.int_repr(), layer.int_weight)


def test_an_input_that_is_not_contiguous_gives_the_same(linear, inputs):
    layer = DynamicInt8Linear.from_float(linear)
    strided = inputs.t().contiguous().t()

    assert not strided.is_contiguous()
    assert torch.equal(layer(strided), layer(inputs))


def test_the_weights_are_int8_with_one_scale_per_output_feature(linear):
    layer = DynamicInt8Linear.from_float(linear)

    assert layer.int_weight.dtype is torch.int8
    assert layer.int_weight.shape == linear.weight.shape
    assert layer.weight_scale.shape == (24,)
    assert layer.int_weight.abs().amax(dim=1).eq(127).all()
    step = layer.weight_scale[:, None]
    assert ((layer.dequantized_weight() - linear.weight).abs() <= 0.5001 * step).all()
    assert list(layer.parameters()) == []


def test_the_float_layer_is_left_as_it_is(linear):
    before = copy.deepcopy(linear.state_dict())

    DynamicInt8Linear.from_float(linear)

    assert all(torch.equal(value, before[name]) for name, value in linear.state_dict().items())


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 1e-35, 3e38])
def test_a_constant_input_keeps_its_value(value):
    linear = nn.Linear(8, 4)
    nn.init.constant_(linear.weight, 2.0**-9)
    nn.init.zeros_(linear.bias)
    inputs = torch.full((2, 8), value)

    torch.testing.assert_close(DynamicInt8Linear.from_float(linear)(inputs), linear(inputs).detach())


def test_a_row_of_zero_weights_gives_the_bias():
    linear = nn.Linear(8, 4)
    nn.init.zeros_(linear.weight)
    layer = DynamicInt8Linear.from_float(linear)

    assert torch.equal(layer(torch.randn(2, 8)), linear.bias.detach().expand(2, 4))


def test_an_empty_batch_gives_an_empty_result(linear):
    assert DynamicInt8Linear.from_float(linear)(torch.empty(0, 40)).shape == (0, 24)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_in_its_row(linear, inputs, value):
    layer = DynamicInt8Linear.from_float(linear)
    inputs[2, 5] = value

    result = layer(inputs)

    assert not result[2].isfinite().any()
    others = [row for row in range(7) if row != 2]
    expected = nn.functional.linear(inputs[others], layer.dequantized_weight(), linear.bias)
    torch.testing.assert_close(result[others], expected.detach())


# -- state ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))]
)
def test_a_copy_computes_the_same_also_after_a_run(linear, inputs, duplicate):
    layer = DynamicInt8Linear.from_float(linear)
    expected = layer(inputs)

    assert torch.equal(duplicate(layer)(inputs), expected)


def test_a_loaded_state_takes_effect_after_a_run(linear, inputs):
    torch.manual_seed(5)
    other = DynamicInt8Linear.from_float(nn.Linear(40, 24))
    layer = DynamicInt8Linear.from_float(linear)
    layer(inputs)

    layer.load_state_dict(other.state_dict())

    assert torch.equal(layer(inputs), other(inputs))


def test_a_replaced_weight_takes_effect_after_a_run(linear, inputs):
    layer = DynamicInt8Linear.from_float(linear)
    before = layer(inputs)

    layer.int_weight = -layer.int_weight
    layer.bias = -layer.bias

    assert not torch.equal(layer(inputs), before)
    torch.testing.assert_close(layer(inputs), -before)


def test_a_layer_made_in_inference_mode_can_be_loaded_into_outside(linear, inputs):
    torch.manual_seed(5)
    other = DynamicInt8Linear.from_float(nn.Linear(40, 24))
    with torch.inference_mode():
        layer = DynamicInt8Linear.from_float(linear)
        layer(inputs)

    layer.load_state_dict(other.state_dict())

    assert torch.equal(layer(inputs), other(inputs))


def test_the_weights_of_a_float_layer_cannot_be_loaded_by_accident(linear):
    layer = DynamicInt8Linear.from_float(linear)

    with pytest.raises(RuntimeError, match="int_weight"):
        layer.load_state_dict(linear.state_dict())


def test_the_text_of_a_layer_says_what_is_rounded(linear):
    assert repr(DynamicInt8Linear.from_float(linear)) == (
        "DynamicInt8Linear(in_features=40, out_features=24, bias=True, weight=int8 per channel, input=dynamic uint8)"
    )


# -- what it refuses --------------------------------------------------------------------------------------------


def test_an_input_of_another_dtype_is_refused(linear, inputs):
    layer = DynamicInt8Linear.from_float(linear)

    with pytest.raises(QuantizationError) as caught:
        layer(inputs.bfloat16())

    assert str(caught.value) == (
        "Cannot run DynamicInt8Linear(in_features=40, out_features=24, bias=True, weight=int8 per channel, "
        "input=dynamic uint8): its input is bfloat16 on cpu. Give it float32 on the CPU, or leave the "
        "pass out that made the layer. [FXP-Q002]"
    )


def test_an_input_that_needs_a_gradient_runs_and_the_backward_is_refused(linear, inputs):
    layer = DynamicInt8Linear.from_float(linear)
    expected = layer(inputs)

    result = layer(inputs.requires_grad_())

    assert torch.equal(result, expected)
    with pytest.raises(
        QuantizationError, match=r"Cannot compute a gradient through DynamicInt8Linear.*FXP-Q003"
    ):
        result.sum().backward()


def test_a_machine_without_the_operators_is_told_what_to_do(linear, monkeypatch):
    def missing(*_: object) -> torch.Tensor:
        raise AttributeError("'_OpNamespace' 'onednn' object has no attribute 'qlinear_prepack'")

    monkeypatch.setattr(engine, "pack_weight", missing)
    engine.activation_levels.cache_clear()

    with pytest.raises(QuantizationError) as caught:
        DynamicInt8Linear.from_float(linear)

    assert str(caught.value) == (
        f"Cannot compute in int8: PyTorch {torch.__version__} has no working int8 linear operator of oneDNN on this "
        f"machine ('_OpNamespace' 'onednn' object has no attribute 'qlinear_prepack'). Use a PyTorch build with "
        f"oneDNN, such as the ones for x86-64 CPUs, or leave the pass out. [FXP-Q001]"
    )


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_a_cpu_whose_sums_saturate_gets_coarser_inputs_and_right_results(isa):
    program = """
import torch
from fxplug_quant import DynamicInt8Linear, engine
torch.manual_seed(0)
linear = torch.nn.Linear(256, 64)
torch.nn.init.constant_(linear.weight, 0.01)
inputs = torch.rand(16, 256) + 3
error = (DynamicInt8Linear.from_float(linear)(inputs) - linear(inputs)).norm() / linear(inputs).norm()
print(engine.activation_levels(), error.item())
"""
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:Failed to initialize NumPy", "-c", program],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": isa},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert completed.returncode == 0, completed.stderr
    levels, error = completed.stdout.split()
    assert int(levels) in {127, 255}
    assert float(error) < 0.01
