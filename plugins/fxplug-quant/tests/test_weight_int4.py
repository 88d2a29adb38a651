"""Weights of 4 bits, and of 8 with bfloat16 activations: what is computed, what memory it takes, what the plan says."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug
import fxplug_quant
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_quant import WeightInt4Linear, WeightInt8Linear, int4, plugin


@pytest.fixture
def manager() -> PluginManager:
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "quant")], environ={})


def bytes_of(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


def linear(inputs: int = 256, outputs: int = 112, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias).eval()


@pytest.mark.parametrize("group_size", int4.GROUP_SIZES)
@pytest.mark.parametrize("outputs", [16, 64, 112, 192])
def test_weights_are_within_half_a_step_of_their_group(group_size, outputs):
    layer = linear(256, outputs)
    rounded = WeightInt4Linear.from_float(layer, group_size=group_size)

    groups = layer.weight.detach().view(outputs, -1, group_size)
    step = (groups.amax(2) - groups.amin(2)) / 15
    error = (rounded.dequantized_weight() - layer.weight).abs().view(outputs, -1, group_size).amax(2)

    # Scale and centre are bfloat16.
    assert (error <= 0.58 * step).all()
    assert (error > 0.3 * step).any()


@pytest.mark.parametrize("shape", [(256,), (1, 256), (3, 5, 256), (70, 256), (0, 256)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_those_of_the_rounded_weights(shape, bias, dtype):
    layer = WeightInt4Linear.from_float(linear(bias=bias), group_size=32)
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)

    found = layer(inputs)

    expected = nn.functional.linear(inputs.float(), layer.dequantized_weight(), layer.bias)
    assert found.dtype is dtype
    assert found.shape == expected.shape
    torch.testing.assert_close(
        found.float(), expected, atol=1e-5 if dtype is torch.float32 else 0.03, rtol=0.02
    )


def test_the_same_comes_out_where_the_cpu_reads_another_order(monkeypatch):
    layer, inputs = WeightInt4Linear.from_float(linear()), torch.randn(3, 256).bfloat16()
    expected = layer(inputs)
    monkeypatch.setattr(int4, "_reads_blocks", lambda: False)

    assert torch.equal(WeightInt4Linear.from_float(linear())(inputs), expected)
    packed = int4._pack(int4._steps_of(layer.int_weight))
    assert packed.shape == layer.int_weight.shape


@pytest.mark.parametrize("rows", [0, 16, 48, 64, 80, 128, 176])
def test_blocks_are_read_as_they_were_written(rows):
    steps = torch.randint(0, 16, (rows, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)

    assert torch.equal(int4._steps_of(int4._in_blocks(steps)), steps)


@pytest.mark.parametrize("group_size", int4.GROUP_SIZES)
def test_the_weights_take_a_sixth_of_the_memory_before_and_after_a_run(group_size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 512, bias=False)).eval()
    config = {"mode": "weight-int4", "group_size": group_size}
    result = fxplug_quant.convert(fxplug_quant.prepare(model, config, torch.randn(1, 512)))

    assert bytes_of(model) >= 6 * bytes_of(result)
    if int4._reads_blocks():
        result(torch.randn(1, 512).bfloat16())
        layer = result.get_submodule("0")
        assert layer._packed().data_ptr() == layer.int_weight.data_ptr()


def test_the_pass_quantizes_and_the_module_is_saved(manager, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 3)).eval()
    inputs = torch.randn(8, 128)

    result = fxplug.optimize(
        model,
        inputs,
        passes=[{"name": "quant:weight-int4", "group_size": 32}],
        manager=manager,
        atol=0.2,
        measure=False,
    )

    assert result.passes[0].result.details["left"] == {"_3": "3 output features, which are no multiple of 16"}
    assert [type(part) for part in result.module.children()][::2] == [WeightInt4Linear, WeightInt4Linear]
    fxplug.save(result.graph_module, tmp_path / "module.fxplug", manager=manager)
    loaded = fxplug.load(tmp_path / "module.fxplug", manager=manager)
    with torch.no_grad():
        found = result.module(inputs)
        assert torch.equal(loaded(inputs), found)
        assert torch.equal(copy.deepcopy(result.module)(inputs), found)
        assert 0 < float((found - model(inputs)).norm() / model(inputs).norm()) < 0.15


def test_a_loaded_state_takes_effect_after_a_run(monkeypatch):
    monkeypatch.setattr(int4, "_reads_blocks", lambda: False)
    torch.manual_seed(1)
    other, inputs = WeightInt4Linear.from_float(nn.Linear(256, 112)), torch.randn(2, 256).bfloat16()
    layer = WeightInt4Linear.from_float(linear())
    layer(inputs)

    layer.load_state_dict(other.state_dict())

    assert torch.equal(layer(inputs), other(inputs))


def test_groups_of_equal_weights_keep_them():
    layer = linear()
    nn.init.constant_(layer.weight, 0.25)

    assert torch.equal(WeightInt4Linear.from_float(layer).dequantized_weight(), layer.weight)


@pytest.mark.parametrize("mode", ["weight-int8", "weight-int4"])
def test_the_plan_says_where_rounded_weights_do_not_pay(mode):
    model, inputs = nn.Sequential(linear(256, 64)).eval(), torch.randn(1, 256)

    with_float = fxplug_quant.plan(model, {"mode": mode}, inputs).calls()["_0"]
    with_bfloat = fxplug_quant.plan(
        copy.deepcopy(model).bfloat16(), {"mode": mode}, inputs.bfloat16()
    ).calls()["_0"]

    assert (
        "with float32 inputs PyTorch is slower than in float, with bfloat16 and few rows it is"
        in with_float.reason
    )
    assert (with_bfloat.mode, with_bfloat.reason) == (mode, f"mode = {mode}")


@pytest.mark.parametrize(
    ("mode", "kind"), [("weight-int8", WeightInt8Linear), ("weight-int4", WeightInt4Linear)]
)
def test_models_of_bfloat16_get_rounded_weights(mode, kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 32)).eval().bfloat16()
    inputs = torch.randn(4, 64).bfloat16()

    result = fxplug_quant.convert(fxplug_quant.prepare(model, {"mode": mode}, inputs))

    assert isinstance(result.get_submodule("0"), kind)
    with torch.no_grad():
        found, expected = result(inputs), model(inputs)
    assert found.dtype is torch.bfloat16
    assert float((found - expected).float().norm() / expected.float().norm()) < 0.15


@pytest.mark.parametrize("mode", ["static-int8", "dynamic-int8"])
def test_models_of_bfloat16_stay_as_they_are_where_activations_would_be_rounded(mode):
    model = nn.Sequential(linear(64, 16)).eval().bfloat16()

    plan = fxplug_quant.plan(model, {"mode": mode}, torch.randn(1, 64).bfloat16())

    assert plan.left_in_float() == {"_0": "its input is bfloat16, and not float32"}


@pytest.mark.parametrize("kind", [WeightInt8Linear, WeightInt4Linear])
def test_inputs_that_are_not_contiguous_give_the_same(kind):
    layer = kind.from_float(linear())
    inputs = torch.randn(256, 3, generator=torch.Generator().manual_seed(1)).bfloat16().t()

    assert not inputs.is_contiguous()
    assert torch.equal(layer(inputs), layer(inputs.contiguous()))
