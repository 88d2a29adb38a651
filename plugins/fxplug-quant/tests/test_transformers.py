"""Transformers of torch: their layers are opened, and int8 stays near float."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
import fxplug_quant
from fxplug_quant import DynamicInt8Linear, Int8Linear, WeightInt8Linear


def encoder(*, layers: int = 2, features: int = 64, norm_first: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        features, 4, 4 * features, batch_first=True, norm_first=norm_first, dropout=0.1
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def quantized(model, inputs, mode):
    prepared = fxplug_quant.prepare(model, {"mode": mode}, inputs)
    if prepared.observers:
        generator = torch.Generator().manual_seed(1)
        prepared.calibrate([inputs, *(torch.randn(inputs.shape, generator=generator) for _ in range(7))])
    return fxplug_quant.convert(prepared), prepared.plan


def relative_error(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    ("mode", "kind"),
    [("dynamic-int8", DynamicInt8Linear), ("static-int8", Int8Linear), ("weight-int8", WeightInt8Linear)],
)
def test_all_linear_layers_of_an_encoder_are_quantized_and_the_products_of_attention_are_listed(
    norm_first, mode, kind
):
    model = encoder(norm_first=norm_first)
    inputs = torch.randn(4, 16, 64)

    result, plan = quantized(model, inputs, mode)

    for layer in ("layers.0", "layers.1"):
        for name in ("linear1", "linear2", "self_attn.in_proj", "self_attn.out_proj"):
            assert type(result.get_submodule(f"{layer}.{name}")) is kind
        assert type(model.get_submodule(f"{layer}.linear1")) is nn.Linear
        assert type(model.get_submodule(f"{layer}.self_attn")) is nn.MultiheadAttention
    reason = "a product of two values, of which neither is a weight"
    products = dict.fromkeys(("scaled_dot_product_attention", "scaled_dot_product_attention_1"), reason)
    assert plan.left_in_float() == products
    fresh = torch.randn(3, 9, 64)
    with torch.no_grad():
        assert 0 < relative_error(result(fresh), model(fresh)) < 0.02


def test_six_layers_of_512_in_dynamic_int8_are_within_two_percent():
    model = encoder(layers=6, features=512)

    result, plan = quantized(model, torch.randn(2, 8, 512), "dynamic-int8")

    assert sum(entry.mode == "dynamic-int8" for entry in plan.calls().values()) == 24
    inputs = torch.randn(2, 12, 512)
    with torch.no_grad():
        assert 0 < relative_error(result(inputs), model(inputs)) < 0.02


def test_a_decoder_is_opened_too():
    torch.manual_seed(0)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 1).eval()
    inputs = (torch.randn(2, 5, 32), torch.randn(2, 7, 32))

    plan = fxplug_quant.plan(model, {"mode": "dynamic-int8"}, inputs)

    assert [name for name, entry in plan.calls().items() if entry.mode == "dynamic-int8"] == [
        "layers_0_self_attn_in_proj",
        "layers_0_self_attn_out_proj",
        "layers_0_multihead_attn_q_proj",
        "layers_0_multihead_attn_kv_proj",
        "layers_0_multihead_attn_out_proj",
        "layers_0_linear1",
        "layers_0_linear2",
    ]


def test_a_module_that_stays_one_call_and_holds_layers_is_listed():
    class Opaque(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.layer = nn.Linear(32, 32)

        def forward(self, x):
            return self.layer(self.inner(x))

    captured = fxplug.symbolic_trace(Opaque().eval())

    plan = fxplug_quant.plan(captured, None, torch.randn(2, 5, 32))

    assert plan.calls()["layer"].mode == "static-int8"
    assert plan.left_in_float() == {
        "inner": "it is one call here, and the 3 layers in it are not seen: name its class under through_modules in "
        "the table trace of the configuration"
    }


def test_sensitivity_and_autotune_take_transformers():
    model, inputs = encoder(norm_first=True), torch.randn(2, 6, 64)

    table = fxplug_quant.sensitivity(
        model, {"mode": "dynamic-int8"}, [(inputs, "label")], example_inputs=inputs
    )
    plan = fxplug_quant.autotune(model, {"mode": "dynamic-int8"}, [inputs], budget=1e-9)

    assert [layer.path for layer in table.layers] == [
        f"layers.{index}.{name}"
        for index in (0, 1)
        for name in ("self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2")
    ]
    assert {entry.mode for entry in plan.calls().values()} == {"float"}


@pytest.mark.parametrize(("norm_first", "norms"), [(True, 4), (False, 3)])
def test_smoothing_reaches_the_norms_of_an_encoder(norm_first, norms):
    model, inputs = encoder(norm_first=norm_first), torch.randn(2, 6, 64)
    with torch.no_grad():
        for layer in model.layers:
            (layer.norm2 if norm_first else layer.norm1).weight[3] *= 100
            layer.linear1.weight[:, 3] /= 100
    captured = fxplug_quant.prepare(model, {"mode": "float"}, inputs).module

    def error(module):
        found = quantized(module, inputs, "dynamic-int8")[0](inputs)
        # The channel that is huge in the outputs, too, would hide all others.
        return relative_error(found[..., 4:], model(inputs)[..., 4:])

    with torch.no_grad():
        before, former = captured(inputs), error(captured)

        result = fxplug_quant.Smooth().run(captured, fxplug.PassContext((inputs,)))

        # The last norm of a post-norm encoder has no linear layer behind it.
        assert result.details == {"norms": norms}
        assert torch.equal(captured(inputs), before)
        torch.testing.assert_close(before, model(inputs), atol=1e-5, rtol=1e-4)
        assert error(captured) < 0.6 * former
