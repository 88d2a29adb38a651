"""Attention is taken apart into linear layers, computes what it did, and its projections are quantized."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import fxplug
import fxplug_quant
from fxplug.passes import PassContext
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_quant import (
    DynamicInt8Linear,
    Int8Linear,
    OpenAttention,
    WeightInt4Linear,
    WeightInt8Linear,
    plugin,
)
from fxplug_quant.errors import QuantizationError
from fxplug_quant.masks import AttentionMask


class Attends(nn.Module):
    """Calls an attention; `same` says which of its inputs are one value."""

    def __init__(self, same: str = "qkv", *, weights: bool = False, **options):
        super().__init__()
        torch.manual_seed(0)
        options = {"batch_first": True, **options}
        self.attention, self.same = nn.MultiheadAttention(32, 4, **options), same
        self.call = {"need_weights": weights}
        for bias in (self.attention.in_proj_bias, self.attention.out_proj.bias):
            if bias is not None:
                nn.init.normal_(bias)

    def forward(self, x, y, z, attn_mask=None, key_padding_mask=None):
        query, key, value = {"qkv": (x, x, x), "kv": (x, y, y), "qk": (x, x, y), "": (x, y, z)}[self.same]
        masks = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask}
        return self.attention(query, key, value, **masks, **self.call)[0]


def opened(model: nn.Module, inputs: tuple) -> fxplug.GraphModule:
    """Return a model whose attentions were taken apart, all of them."""
    module = fxplug.trace(model.eval(), inputs)
    result = OpenAttention().run(module, PassContext(inputs, module=module))
    assert result.modified
    assert result.details["left"] == {}
    calls = [module.get_submodule(node.target) for node in module.graph.nodes if node.op == "call_module"]
    assert not any(isinstance(called, nn.MultiheadAttention) for called in calls)
    return module


def values(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("same", "options"),
    [
        ("qkv", {}),
        ("qkv", {"bias": False}),
        ("kv", {}),
        ("kv", {"kdim": 24, "vdim": 24}),
        ("qk", {}),
        ("qk", {"vdim": 40}),
        ("", {}),
        ("", {"kdim": 24, "vdim": 40, "bias": False}),
    ],
    ids=str,
)
def test_what_is_opened_computes_the_same(same, options, batch_first):
    key, value = options.get("kdim", 32), options.get("vdim", 32)
    # What has the name of its own in `same` goes to the value of the second input, or of the third.
    sizes = {"qkv": (32, 32, 32), "kv": (32, key, key), "qk": (32, value, value), "": (32, key, value)}[same]
    length = 5 if same == "qk" else 7
    shapes = [(2, 5, sizes[0]), (2, length, sizes[1]), (2, length, sizes[2])]
    inputs = values(*(shape if batch_first else (shape[1], shape[0], shape[2]) for shape in shapes))
    model = Attends(same, batch_first=batch_first, **options).eval()

    module = opened(model, inputs)

    fresh = tuple(tensor[:1] if batch_first else tensor[:, :1] for tensor in inputs)
    with torch.no_grad():
        for given in (inputs, fresh):
            torch.testing.assert_close(module(*given), model(*given), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
def test_inputs_without_a_batch_are_opened(batch_first):
    inputs = values((5, 32), (5, 32), (5, 32))
    model = Attends(batch_first=batch_first).eval()

    with torch.no_grad():
        torch.testing.assert_close(opened(model, inputs)(*inputs), model(*inputs), atol=2e-6, rtol=1e-5)


MASKS = {
    "bool": (torch.ones(5, 5).triu(1).bool(), None),
    "float": (torch.linspace(-2, 2, 25).view(5, 5), None),
    "for-each-head": (torch.linspace(-2, 2, 8 * 25).view(8, 5, 5), None),
    "padding": (None, torch.tensor([[False] * 5, [False, False, False, True, True]])),
    "float-padding": (None, torch.tensor([[0.0] * 5, [0.0, -1.0, 0.0, -math.inf, -math.inf]])),
    "both": (torch.ones(5, 5).triu(1).bool(), torch.tensor([[False] * 5, [False, False, True, True, True]])),
    "both-kinds": (torch.linspace(-2, 2, 25).view(5, 5), torch.tensor([[False] * 5, [False] * 4 + [True]])),
    "for-each-head-and-padding": (
        torch.ones(8, 5, 5).triu(1).bool(),
        torch.tensor([[False] * 5, [False] * 4 + [True]]),
    ),
}


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask:UserWarning")
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_masks_are_what_they_were(masks, batch_first):
    shape = (2, 5, 32) if batch_first else (5, 2, 32)
    inputs = (*values(shape, shape, shape), *masks)
    model = Attends(batch_first=batch_first).eval()

    module = opened(model, inputs)

    with torch.no_grad():
        torch.testing.assert_close(module(*inputs), model(*inputs), atol=2e-6, rtol=1e-5)
        # The mask is looked at when the module runs: its dtype is free.
        other = tuple(
            mask
            if mask is None or mask.dtype is not torch.bool
            else torch.zeros(mask.shape).masked_fill(mask, -9.0)
            for mask in masks
        )
        given = (*inputs[:3], *other)
        torch.testing.assert_close(module(*given), model(*given), atol=2e-6, rtol=1e-5)


def test_masks_of_integers_and_causal_ones_that_are_missing_are_refused():
    layer = AttentionMask(4, is_causal=True)
    query = torch.randn(2, 4, 5, 8)

    with pytest.raises(
        fxplug_quant.QuantizationError, match=r"a mask is int64\. Give bool or floating.*\[FXP-Q002\]"
    ):
        layer(query, torch.ones(5, 5, dtype=torch.int64))
    with pytest.raises(fxplug_quant.QuantizationError, match=r"is_causal is set, and attn_mask is None"):
        layer(query, None)


def hooked(model: nn.Module) -> None:
    model.attention.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("model", "change", "reason"),
    [
        (lambda: Attends(add_bias_kv=True), None, "add_bias_kv or add_zero_attn"),
        (lambda: Attends(add_zero_attn=True), None, "add_bias_kv or add_zero_attn"),
        (Attends, hooked, "hooks or a forward of its own"),
    ],
    ids=["bias-kv", "zero-attn", "hooks"],
)
def test_what_stays_one_call_is_listed_with_its_reason(model, change, reason):
    model = model().eval()
    if change is not None:
        change(model)
    inputs = values((2, 5, 32), (2, 5, 32), (2, 5, 32))
    before = model(*inputs)

    prepared = fxplug_quant.prepare(model, {"mode": "dynamic-int8"}, inputs)

    assert prepared.plan.left_in_float() == {"attention": f"attention that is one call: {reason}"}
    with torch.no_grad():
        torch.testing.assert_close(fxplug_quant.convert(prepared)(*inputs), before)


def test_attention_weights_that_are_used_and_training_keep_one_call():
    class Both(nn.Module):
        def __init__(self, *, whole: bool):
            super().__init__()
            self.attention, self.whole = nn.MultiheadAttention(32, 4, batch_first=True), whole

        def forward(self, x):
            result = self.attention(x, x, x)
            if self.whole:
                return result
            return result[0], result[1]

    inputs = values((2, 5, 32))
    for whole, reason in (
        (True, "its two results are used as one"),
        (False, "its attention weights are used"),
    ):
        plan = fxplug_quant.plan(Both(whole=whole).eval(), {"mode": "dynamic-int8"}, inputs)
        assert plan.left_in_float() == {"attention": f"attention that is one call: {reason}"}

    module = fxplug.symbolic_trace(Both(whole=False).eval())
    module.attention.train()
    result = OpenAttention().run(module, PassContext(inputs, module=module))
    assert not result.modified
    assert result.summary == "opened 0 attentions; 1 left as one call: training mode (call eval() first)"


KINDS = {
    "dynamic-int8": DynamicInt8Linear,
    "static-int8": Int8Linear,
    "weight-int8": WeightInt8Linear,
    "weight-int4": WeightInt4Linear,
}


@pytest.mark.parametrize("same", ["qkv", "kv", ""])
@pytest.mark.parametrize(("mode", "kind"), KINDS.items())
def test_projections_are_quantized_in_every_mode_and_the_float_weights_go(mode, kind, same):
    inputs = values((2, 5, 32), (2, 7, 32), (2, 7, 32))
    model = Attends(same).eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    prepared = fxplug_quant.prepare(model, {"mode": mode, "group_size": 32}, inputs)
    result = fxplug_quant.convert(prepared.calibrate([inputs]) if prepared.observers else prepared)

    names = {"qkv": ("in_proj",), "kv": ("q_proj", "kv_proj"), "": ("q_proj", "k_proj", "v_proj")}[same]
    assert {path: type(part) for path, part in result.attention.named_children()} == dict.fromkeys(
        (*names, "out_proj"), kind
    )
    assert list(prepared.plan.left_in_float()) == ["scaled_dot_product_attention"]
    assert not list(result.parameters())
    with torch.no_grad():
        error = (result(*inputs) - model(*inputs)).norm() / model(*inputs).norm()
    assert 0 < error < (0.15 if mode == "weight-int4" else 0.03)
    assert type(model.attention) is nn.MultiheadAttention
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_rules_select_a_projection():
    inputs = values((2, 5, 32), (2, 5, 32), (2, 5, 32))
    rules = [{"path": "attention.out_proj", "mode": "float"}]

    plan = fxplug_quant.plan(Attends().eval(), {"mode": "dynamic-int8", "rules": rules}, inputs)

    modes = {entry.path: entry.mode for entry in plan.calls().values() if entry.path}
    assert modes == {"attention.in_proj": "dynamic-int8", "attention.out_proj": "float"}


def test_an_attention_that_is_called_twice_and_by_two_names_has_its_weights_once():
    class Shares(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.MultiheadAttention(32, 4, batch_first=True)
            self.second = self.first

        def forward(self, x, y):
            x = self.first(x, x, x, need_weights=False)[0]
            x = self.second(x, x, x, need_weights=False)[0]
            return self.first(x, y, y, need_weights=False)[0] + self.first.out_proj.bias

    torch.manual_seed(0)
    model, inputs = Shares().eval(), values((2, 5, 32), (2, 6, 32))

    module = opened(model, inputs)
    result = fxplug_quant.convert(fxplug_quant.prepare(model, {"mode": "dynamic-int8"}, inputs))

    with torch.no_grad():
        torch.testing.assert_close(module(*inputs), model(*inputs), atol=2e-6, rtol=1e-5)
        assert (result(*inputs) - model(*inputs)).norm() < 0.02 * model(*inputs).norm()
    layers = [part for part in result.modules() if isinstance(part, DynamicInt8Linear)]
    assert len(layers) == 4  # in_proj, q_proj, kv_proj, out_proj.


def test_the_pass_runs_in_a_pipeline_is_saved_and_takes_new_weights(tmp_path):
    manager = PluginManager(candidates=[PluginCandidate.of_module(plugin, "quant")], environ={})
    inputs = (*values((2, 5, 32), (2, 6, 32), (2, 6, 32)), torch.ones(5, 6).triu(1).bool())
    model = Attends("").eval()

    result = fxplug.optimize(model, inputs, passes=["quant:open-attention"], manager=manager)
    fxplug.save(result.graph_module, tmp_path / "opened.fxplug", manager=manager)
    loaded = fxplug.load(tmp_path / "opened.fxplug", manager=manager)
    other = Attends("").eval()
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.copy_(torch.randn(tensor.shape) / 5)
    fxplug.load_original_state_dict(result.graph_module, other.state_dict())

    with torch.no_grad():
        torch.testing.assert_close(loaded(*inputs), model(*inputs), atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(result.graph_module(*inputs), other(*inputs), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("key_padding_mask", (1, 5)),
        ("attn_mask", (1, 5)),
        ("attn_mask", (1, 5, 5)),
        ("attn_mask", (12, 1, 5)),
        ("attn_mask", (5,)),
    ],
)
def test_a_mask_of_another_shape_is_not_broadcast(name, shape):
    query = torch.randn(3, 4, 5, 2)  # Batch, heads, positions, features.
    mask = AttentionMask(4)
    with pytest.raises(
        QuantizationError, match=rf"{name} has the shape .* Give one of the shape \("
    ) as caught:
        mask(query, **{name: torch.zeros(shape)})
    assert caught.value.code == "FXP-Q002"


@pytest.mark.parametrize(
    ("name", "shape"), [("key_padding_mask", (3, 7)), ("attn_mask", (5, 7)), ("attn_mask", (12, 5, 7))]
)
def test_a_mask_of_the_right_shape_is_taken(name, shape):
    assert AttentionMask(4)(torch.randn(3, 4, 5, 2), **{name: torch.zeros(shape)}).shape[-1] == 7
