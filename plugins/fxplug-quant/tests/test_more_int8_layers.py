"""Static int8 beyond linear layers and convolutions: functions, transposed convolutions, tables, products, joins."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxplug
import fxplug_quant
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_quant import (
    Int8Cat,
    Int8ConvTranspose,
    Int8Embedding,
    Int8EmbeddingBag,
    Int8Linear,
    Int8Mul,
    plugin,
)


@pytest.fixture
def manager() -> PluginManager:
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "quant")], environ={})


def quantized(model: nn.Module, *batches: object, config: object = None) -> fxplug.GraphModule:
    prepared = fxplug_quant.prepare(model, config, batches[0])
    if prepared.observers:
        prepared.calibrate(batches)
    return fxplug_quant.convert(prepared)


def layers(module: nn.Module) -> list[str]:
    nodes = [node for node in module.graph.nodes if node.op == "call_module"]
    return [type(module.get_submodule(node.target)).__name__ for node in nodes]


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


# -- functions --------------------------------------------------------------------------------------------------


class Functional(nn.Module):
    """Weights are attributes: a parameter, a buffer, and one that two calls share."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(6, 3, 3, 3) / 5)
        self.shift = nn.Parameter(torch.randn(6))
        self.part = nn.Module()
        self.part.register_buffer("weight", torch.randn(16, 6) / 3)
        self.shared = nn.Parameter(torch.randn(16, 16) / 4)

    def forward(self, x):
        x = functional.conv2d(x, self.filters, self.shift, stride=2, padding=(1, 1)).relu()
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        x = functional.linear(x, self.part.weight).relu()
        return functional.linear(functional.linear(x, weight=self.shared), self.shared, self.shared[0])


def test_functions_with_weights_become_layers_and_the_float_weights_go():
    torch.manual_seed(0)
    model, inputs = Functional().eval(), torch.randn(16, 3, 9, 9)
    before = copy.deepcopy(model.state_dict())

    plan = fxplug_quant.plan(model, None, inputs)
    result = quantized(model, inputs)

    assert layers(result)[:2] == ["Quantize", "Int8Conv"]
    assert layers(result).count("Int8Linear") == 2
    assert plan.left_in_float() == {"linear_2": "a function whose bias is computed while the program runs"}
    assert plan.calls()["conv2d"].path == ""
    assert "filters" not in result.state_dict()
    assert "part.weight" not in result.state_dict()
    assert "shared" in result.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        assert relative_error(result(inputs), model(inputs)) < 0.04


@pytest.mark.parametrize("mode", ["dynamic-int8", "weight-int8", "weight-int4"])
def test_functions_of_linear_layers_have_all_modes(mode):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64) / 8)

        def forward(self, x):
            return functional.linear(functional.linear(x, self.weight).relu(), self.weight)

    torch.manual_seed(0)
    model, inputs = Twice().eval(), torch.randn(8, 64)

    result = quantized(model, inputs, config={"mode": mode})

    first, second = (
        result.get_submodule(node.target) for node in result.graph.nodes if node.op == "call_module"
    )
    assert first is second
    assert "weight" not in result.state_dict()
    with torch.no_grad():
        assert relative_error(result(inputs), model(inputs)) < (0.2 if mode == "weight-int4" else 0.03)


@pytest.mark.parametrize(
    ("call", "shape", "size"),
    [
        (functional.conv2d, (4, 3, 3, 3), {"stride": [2], "padding": [1, 2]}),
        (functional.conv2d, (4, 1, 3, 3), {"dilation": (2,)}),
        (functional.conv1d, (4, 3, 2), {"stride": (2,)}),
        (functional.conv_transpose2d, (3, 4, 2, 2), {"stride": 2, "output_padding": [1], "dilation": 2}),
        (functional.conv3d, (2, 3, 1, 2, 1), {"padding": 1}),
    ],
    ids=["lists", "dilation", "one dimension", "transposed", "three dimensions"],
)
def test_functions_of_convolutions_take_their_numbers_in_all_forms(call, shape, size):
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(shape))

        def forward(self, x):
            return call(x, self.weight, None, **size)

    torch.manual_seed(0)
    channels = shape[0] if call is functional.conv_transpose2d else shape[1]
    model, inputs = Calls().eval(), torch.randn(2, channels, *(7,) * (len(shape) - 2))

    result = quantized(model, inputs)

    assert any(name.startswith("Int8Conv") for name in layers(result))
    with torch.no_grad():
        assert relative_error(result(inputs), model(inputs)) < 0.04


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (torch.randn(4).as_subclass(Subclass), "weights that are not plain float32 on the CPU"),
        (torch.randn(4), "a function whose weights do not have the usual dimensions"),
        (torch.randn(2, 4, dtype=torch.float64), "weights that are not plain float32 on the CPU"),
        (torch.randn(0, 4), "a function whose weights do not have the usual dimensions"),
        (torch.full((2, 4), float("nan")), "weights that are not finite"),
    ],
    ids=["subclass", "vector", "double", "empty", "nan"],
)
def test_weights_of_functions_that_cannot_be_rounded_are_named(weight, reason):
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", weight)

        def forward(self, x):
            return functional.linear(x.to(self.weight.dtype), self.weight)

    plan = fxplug_quant.plan(Calls().eval(), None, torch.randn(3, 4))

    assert plan.left_in_float() == {"linear": reason}


def test_a_rule_selects_a_function_with_weights():
    torch.manual_seed(0)
    model, inputs = Functional().eval(), torch.randn(4, 3, 9, 9)

    plan = fxplug_quant.plan(model, {"rules": [{"function": "conv2d", "mode": "float"}]}, inputs)

    assert plan.left_in_float()["conv2d"] == "Rule(function='conv2d', mode='float')"


def test_weights_that_a_program_writes_stay_float():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            x = functional.linear(x, self.weight)
            self.weight.view(-1).mul_(0.5)
            return functional.linear(x, self.weight)

    torch.manual_seed(0)
    with torch.no_grad():
        model, inputs = Writes().eval(), torch.randn(4, 8)
        plan = fxplug_quant.plan(model, None, inputs)

        assert plan.left_in_float() == dict.fromkeys(
            ("linear", "linear_1"), "a function whose weights the program writes in place"
        )
        expected = copy.deepcopy(model)(inputs)
        torch.testing.assert_close(quantized(model, inputs)(inputs), expected)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            lambda x, w: functional.linear(x, w * 2),
            "a function whose weight is computed while the program runs",
        ),
        (lambda x, w: functional.conv1d(x[:, :, None], w[:, :, None]), "computed while the program runs"),
        (torch.matmul, "a product of two values, of which neither is a weight"),
    ],
)
def test_functions_that_stay_float_are_listed_with_a_reason(call, reason):
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return call(x, self.weight)

    (found,) = fxplug_quant.plan(Calls().eval(), None, torch.randn(4, 8)).left_in_float().values()

    assert reason in found


# -- transposed convolutions --------------------------------------------------------------------------------------


TRANSPOSED = [
    (nn.ConvTranspose1d(4, 6, 3, stride=2), (3, 4, 9)),
    (nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1), (2, 4, 5, 6)),
    (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2, bias=False), (2, 4, 5, 6)),
    (nn.ConvTranspose2d(4, 6, 3, dilation=2), (4, 5, 6)),
    (nn.ConvTranspose3d(2, 4, 2, stride=2), (2, 2, 3, 4, 3)),
]


@pytest.mark.parametrize(("layer", "shape"), TRANSPOSED)
@pytest.mark.parametrize("rectified", [False, True])
def test_transposed_convolutions_stay_near_and_give_floats_at_the_end(layer, shape, rectified):
    torch.manual_seed(0)
    model = nn.Sequential(layer, nn.ReLU()).eval() if rectified else nn.Sequential(layer).eval()
    inputs = torch.randn(shape) + 0.5

    result = quantized(model, inputs)

    assert "Int8ConvTranspose" in layers(result)
    assert "Dequantize" in layers(result)
    with torch.no_grad():
        assert result(inputs).dtype is torch.float32
        assert relative_error(result(inputs), model(inputs)) < 0.03


def test_a_decoder_keeps_steps_between_its_layers(manager, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 3, 3, padding=1),
    ).eval()
    inputs = torch.randn(4, 3, 8, 8)

    plan = fxplug_quant.plan(model, None, inputs)
    result = quantized(model, inputs)

    assert layers(result) == ["Quantize", "Int8Conv", "Int8ConvTranspose", "Int8Conv"]
    weight = next(row for row in plan.entries if row.node == "_2" and row.what == "weight")
    assert (weight.scheme, weight.decided_by) == ("per-tensor symmetric", "backend")
    fxplug.save(result, tmp_path / "decoder.fxplug", manager=manager)
    loaded = fxplug.load(tmp_path / "decoder.fxplug", manager=manager)
    with torch.no_grad():
        assert relative_error(result(inputs), model(inputs)) < 0.04
        assert torch.equal(loaded(inputs), result(inputs))
    (layer,) = (part for part in result.modules() if isinstance(part, Int8ConvTranspose))
    assert "weight=int8 per tensor" in repr(layer)


def test_a_transposed_convolution_stays_float_where_values_cannot_be_steps():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.ConvTranspose1d(2, 2, 2)

        def forward(self, x):
            y = x * 2
            z = self.layer(y)
            y.add_(1)
            return z, y

    plan = fxplug_quant.plan(Writes().eval(), None, torch.randn(1, 2, 4))

    assert plan.left_in_float() == {
        "layer": "node 'add_' writes in place, so that all values stay float; its result cannot"
    }


# -- tables -------------------------------------------------------------------------------------------------------


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32, padding_idx=0)
        self.bags = nn.EmbeddingBag(50, 32, mode="sum", include_last_offset=True)
        self.head = nn.Linear(64, 4)

    def forward(self, words, chosen, offsets):
        return self.head(torch.cat((self.words(words).sum(1), self.bags(chosen, offsets)), 1))


@pytest.mark.parametrize("mode", ["static-int8", "weight-int8"])
def test_tables_have_rows_of_8_bits(mode, manager, tmp_path):
    torch.manual_seed(0)
    model = Tables().eval()
    inputs = (torch.randint(0, 50, (6, 3)), torch.randint(0, 50, (11,)), torch.tensor([0, 2, 2, 5, 7, 9, 11]))

    result = quantized(model, inputs, config={"mode": mode})

    words, bags = result.get_submodule("words"), result.get_submodule("bags")
    assert (type(words), type(bags)) == (Int8Embedding, Int8EmbeddingBag)
    assert words.int_weight.dtype is torch.uint8
    step = words.weight_scale[:, None]
    assert ((words(torch.arange(50)) - model.words.weight).abs() <= 0.501 * step).all()
    fxplug.save(result, tmp_path / "tables.fxplug", manager=manager)
    with torch.no_grad():
        assert relative_error(result(*inputs), model(*inputs)) < 0.02
        assert torch.equal(fxplug.load(tmp_path / "tables.fxplug", manager=manager)(*inputs), result(*inputs))
    with pytest.raises(IndexError):
        words(torch.tensor([-1]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_all_modes_and_shapes(mode):
    torch.manual_seed(0)
    table = nn.EmbeddingBag(20, 8, mode=mode)
    rounded = Int8EmbeddingBag.from_float(table)
    chosen, offsets = torch.randint(0, 20, (4, 3)), torch.tensor([0, 4, 4, 12])
    weights = torch.rand(4, 3) if mode == "sum" else None

    torch.testing.assert_close(
        rounded(chosen, None, weights), table(chosen, None, weights), atol=0.05, rtol=0
    )
    torch.testing.assert_close(
        rounded(chosen.view(-1), offsets), table(chosen.view(-1), offsets), atol=0.05, rtol=0
    )
    assert rounded(torch.empty(0, dtype=torch.long), torch.tensor([0])).shape == (1, 8)


def test_tables_that_stay_float_say_why():
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.bounded = nn.Embedding(5, 8, max_norm=1.0)
            self.padded = nn.EmbeddingBag(5, 8, padding_idx=0)
            self.plain = nn.Embedding(5, 8)

        def forward(self, x):
            return self.bounded(x), self.padded(x), self.plain(x)

    model, inputs = Several().eval(), torch.zeros(2, 2, dtype=torch.long)
    plan = fxplug_quant.plan(model, {"mode": "weight-int8"}, inputs)
    edited = plan.with_mode("plain", "float", "it is small")

    assert plan.left_in_float() == {
        "bounded": "max_norm, which writes the weight",
        "padded": "padding_idx; bags with padding are not quantized",
    }
    assert type(fxplug_quant.convert(fxplug_quant.prepare(model, edited, inputs)).plain) is nn.Embedding


# -- values that are combined -------------------------------------------------------------------------------------


class Combines(nn.Module):
    """A product, a join and an addition of steps, with and without a ReLU behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 3, padding=1)
        self.third, self.fourth = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        a, b = self.first(x), self.second(x)
        joined = self.third(torch.cat([a, b], dim=1))
        gate = torch.sigmoid(a.mean())
        product = (joined * a).relu()
        return self.fourth(functional.relu(product + b)) * gate


def test_products_joins_and_additions_take_steps_and_their_relu_with_them():
    torch.manual_seed(0)
    model, inputs = Combines().eval(), torch.randn(8, 4, 6, 6)

    plan = fxplug_quant.plan(model, None, inputs)
    result = quantized(model, inputs)

    assert layers(result).count("Int8Cat") == 1
    assert layers(result).count("Int8Mul") == 1
    assert layers(result).count("Int8Add") == 1
    assert "ReluOfSteps" not in layers(result)
    assert [part.relu for part in result.modules() if isinstance(part, (Int8Mul, Int8Cat))] == [False, True]
    assert plan.edges()["mul"].reason == "never made: the next call is in this one"
    with torch.no_grad():
        assert relative_error(result(inputs), model(inputs)) < 0.05


@pytest.mark.parametrize("activation", [nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.SELU()])
def test_activations_between_int8_layers_are_float_and_done_with_the_layer(activation):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), activation, nn.Linear(32, 8)).eval()
    inputs = torch.randn(64, 32)

    result = quantized(model, inputs)

    assert layers(result) == ["Int8Linear", "Int8Linear"]
    first = next(part for part in result.modules() if isinstance(part, Int8Linear))
    assert first.output_scale is None
    assert first.post != "none"
    with torch.no_grad():
        assert relative_error(result(inputs), model(inputs)) < 0.03


def test_the_export_has_transposed_convolutions_and_functions(manager):
    pytest.importorskip("fxplug.semantics.quantization")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.ConvTranspose2d(3, 4, 2, stride=2)
            self.weight = nn.Parameter(torch.randn(5, 4, 1, 1))

        def forward(self, x):
            return functional.conv2d(self.up(x), self.weight)

    torch.manual_seed(0)
    model, inputs = Model().eval(), torch.randn(2, 3, 4, 4)

    exported = fxplug_quant.export_canonical(fxplug_quant.prepare(model, None, inputs).calibrate([inputs]))

    assert "weight" not in exported.state_dict()
    with torch.no_grad():
        torch.testing.assert_close(exported(inputs), quantized(model, inputs)(inputs), atol=0.05, rtol=0)


def test_costs_are_those_of_the_float_layers(manager):
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 4, stride=2, groups=2)).eval()
    tables = Tables().eval()
    chosen = (torch.randint(0, 50, (6, 3)), torch.randint(0, 50, (9,)), torch.tensor([0, 2, 2, 5, 6, 7, 9]))
    images = torch.randn(2, 3, 8, 8)
    rounding = images.numel() + decoder(images).numel()
    cases = [
        (decoder, (images,), "static-int8", rounding),
        (nn.Sequential(nn.Linear(64, 32)).eval(), (torch.randn(2, 64),), "weight-int4", 0),
        (tables, chosen, "weight-int8", 0),
    ]
    for model, inputs, mode, more in cases:
        before = fxplug.cost(model, inputs, manager=manager)
        prepared = fxplug_quant.prepare(model, {"mode": mode}, inputs)
        after = fxplug.cost(fxplug_quant.convert(prepared.calibrate([inputs])), inputs, manager=manager)

        assert after.unknown == ()
        assert after.multiply_adds == before.multiply_adds + more
