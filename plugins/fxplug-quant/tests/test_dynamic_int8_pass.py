"""The pass: which layers it replaces, how good the result is, what it leaves alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug
import fxplug_quant
from fxplug.errors import ConfigError
from fxplug.passes import PassContext
from fxplug_quant import DynamicInt8, DynamicInt8Linear, QuantizationError, engine


def make_mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10))


def quantize(module: fxplug.GraphModule, **options: int) -> fxplug.PassResult:
    return DynamicInt8(**options).run(module, PassContext())


def int8_paths(module: nn.Module) -> list[str]:
    return [path for path, part in module.named_modules() if isinstance(part, DynamicInt8Linear)]


# -- results ----------------------------------------------------------------------------------------------------


def test_an_mlp_stays_close_to_float_and_is_not_float():
    model = make_mlp().eval()
    inputs = torch.randn(32, 64)
    expected = model(inputs).detach()
    traced = fxplug.symbolic_trace(model)

    result = quantize(traced)
    found = traced(inputs)

    assert result.modified
    assert result.summary == "quantized 3 linear layers to int8"
    assert int8_paths(traced) == ["0", "2", "4"]
    assert all(traced.get_submodule(path).int_weight.dtype is torch.int8 for path in int8_paths(traced))
    assert not torch.equal(found, expected)
    assert (found - expected).norm() / expected.norm() < 0.03


def test_a_trained_classifier_keeps_its_answers():
    torch.manual_seed(0)
    centres = 3 * torch.randn(10, 64)
    labels = torch.arange(10).repeat(40)
    inputs = centres[labels] + torch.randn(400, 64)
    model = make_mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    traced = fxplug.symbolic_trace(model.eval())

    quantize(traced)

    right = (model(inputs).argmax(dim=1) == labels).float().mean()
    kept = (traced(inputs).argmax(dim=1) == labels).float().mean()
    assert right > 0.98
    assert kept >= right - 0.01


def test_different_inputs_give_different_outputs():
    traced = fxplug.symbolic_trace(make_mlp().eval())
    quantize(traced)

    first, second = traced(torch.randn(2, 64))

    assert nn.functional.cosine_similarity(first, second, dim=0) < 0.9


def test_the_model_that_was_traced_stays_float():
    model = make_mlp().eval()
    before = copy.deepcopy(model.state_dict())
    inputs = torch.randn(4, 64)
    expected = model(inputs)

    quantize(fxplug.symbolic_trace(model))

    assert int8_paths(model) == []
    assert torch.equal(model(inputs), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_quantized_module_can_be_copied_and_runs_twice():
    traced = fxplug.symbolic_trace(make_mlp().eval())
    quantize(traced)
    inputs = torch.randn(4, 64)
    expected = traced(inputs)

    assert torch.equal(copy.deepcopy(traced)(inputs), expected)
    assert torch.equal(traced(inputs), expected)


def test_a_second_run_finds_nothing():
    traced = fxplug.symbolic_trace(make_mlp().eval())
    quantize(traced)

    again = quantize(traced)

    assert not again.modified
    assert again.summary == "no linear layer"


# -- shared layers ----------------------------------------------------------------------------------------------


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = self.first

    def forward(self, x):
        return self.second(self.first(self.first(x)))


def test_a_layer_that_is_called_three_times_by_two_names_becomes_one():
    model = Shared().eval()
    inputs = torch.randn(4, 16)
    expected = model(inputs).detach()
    traced = fxplug.symbolic_trace(model)

    result = quantize(traced)

    assert result.details["quantized"] == 1
    assert result.details["calls"] == 3
    targets = {node.target for node in traced.graph.find_nodes(op="call_module")}
    assert len({id(traced.get_submodule(target)) for target in targets}) == 1
    assert not [part for part in traced.modules() if type(part) is nn.Linear]
    assert (traced(inputs) - expected).norm() / expected.norm() < 0.05


class WeightRead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Module()
        self.block.fc = nn.Linear(16, 16)

    def forward(self, x):
        return self.block.fc(x) @ self.block.fc.weight


def test_a_weight_that_is_also_read_elsewhere_stays_readable():
    model = WeightRead().eval()
    inputs = torch.randn(4, 16)
    expected = model(inputs).detach()
    traced = fxplug.symbolic_trace(model)
    assert [node.target for node in traced.graph.find_nodes(op="get_attr")] == ["block.fc.weight"]

    quantize(traced)

    assert int8_paths(traced) == ["block_fc_int8"]
    assert (traced(inputs) - expected).norm() / expected.norm() < 0.05


def test_a_layer_inside_a_module_that_is_called_as_a_whole_stays_there():
    root = nn.Module()
    root.block = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    root.block_0_int8 = nn.Linear(16, 16)
    root.eval()
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    whole = graph.call_module("block", (x,))
    part = graph.call_module("block.0", (whole,))
    graph.output(graph.call_module("block_0_int8", (part,)))
    module = fxplug.GraphModule(root, graph)
    inputs = torch.randn(4, 16)
    expected = module(inputs).detach()

    result = quantize(module)

    assert type(root.block[0]) is nn.Linear
    assert type(root.block_0_int8) is nn.Linear
    assert result.details["quantized"] == 2
    assert int8_paths(module) == ["block_0_int8", "block_0_int8_1"]
    assert (module(inputs) - expected).norm() / expected.norm() < 0.05


# -- what it leaves alone ---------------------------------------------------------------------------------------


def test_a_layer_in_training_mode_is_left_alone_and_named():
    model = make_mlp().eval()
    model[2].train()
    traced = fxplug.symbolic_trace(model)

    result = quantize(traced)

    assert int8_paths(traced) == ["0", "4"]
    assert result.summary == (
        "quantized 2 linear layers to int8; 1 left in float: training mode (call eval() first)"
    )
    assert result.details["left"] == {"_2": "training mode (call eval() first)"}


def test_a_model_in_training_mode_is_not_changed():
    traced = fxplug.symbolic_trace(make_mlp().train())
    version = traced.graph.version

    result = quantize(traced)

    assert not result.modified
    assert traced.graph.version == version
    assert result.summary == (
        "quantized no linear layer to int8; 3 left in float: training mode (call eval() first)"
    )


def test_small_layers_stay_float_when_asked():
    traced = fxplug.symbolic_trace(make_mlp().eval())

    result = quantize(traced, min_features=20)

    assert int8_paths(traced) == ["0", "2"]
    assert list(result.details["left"].values()) == ["fewer than 20 features"]


@pytest.mark.parametrize("per_channel", [True, False])
def test_weights_have_scales_of_their_own_unless_one_is_asked_for(per_channel):
    traced = fxplug.symbolic_trace(make_mlp().eval())

    quantize(traced, per_channel=per_channel)

    scales = [
        module.weight_scale.unique().numel() for module in traced.modules() if hasattr(module, "weight_scale")
    ]
    assert [count > 1 for count in scales] == [per_channel] * 3


class Custom(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def test_a_subclass_is_left_alone():
    graph = fxplug.Graph()
    graph.output(graph.call_module("fc", (graph.placeholder("x"),)))
    module = fxplug.GraphModule({"fc": Custom(8, 8).eval()}, graph)

    assert not quantize(module).modified


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda linear: linear.register_forward_hook(lambda *_: None), "hooks or a forward of its own"),
        (lambda linear: linear.double(), "weights that are not plain float32 on the CPU"),
        (lambda linear: linear.to("meta"), "weights that are not plain float32 on the CPU"),
        (lambda linear: linear.weight.data[0, 0].fill_(float("nan")), "weights that are not finite"),
    ],
    ids=["hooked", "double", "meta", "nan"],
)
def test_a_layer_that_would_not_survive_is_left_alone(spoil, reason):
    linear = nn.Linear(8, 8).eval()
    spoil(linear)
    graph = fxplug.Graph()
    graph.output(graph.call_module("fc", (graph.placeholder("x"),)))
    module = fxplug.GraphModule({"fc": linear}, graph)

    result = quantize(module)

    assert not result.modified
    assert result.details["left"] == {"fc": reason}


def test_a_call_inside_autocast_is_left_alone():
    graph = fxplug.Graph()
    node = graph.call_module("fc", (graph.placeholder("x"),))
    node.region = (fxplug.ir.RegionEntry(torch.autocast, ("cpu",)),)
    graph.output(node)
    module = fxplug.GraphModule({"fc": nn.Linear(8, 8).eval()}, graph)

    assert quantize(module).details["left"] == {"fc": "inside autocast"}


# -- options and failures ---------------------------------------------------------------------------------------


def test_an_option_out_of_range_is_refused():
    with pytest.raises(ConfigError) as caught:
        DynamicInt8(min_features=0)

    assert str(caught.value) == (
        "Cannot quantize with min_features=0: every layer has at least 1 feature. Give 1 to quantize all layers, or a "
        "larger number to leave small ones in float. [FXP-F000]"
    )


def test_a_machine_without_int8_leaves_the_module_as_it_was(monkeypatch):
    def missing(*_: object) -> torch.Tensor:
        raise RuntimeError("no oneDNN here")

    monkeypatch.setattr(engine, "pack_weight", missing)
    engine.activation_levels.cache_clear()
    traced = fxplug.symbolic_trace(make_mlp().eval())

    with pytest.raises(QuantizationError, match=r"no oneDNN here.*leave the pass out"):
        quantize(traced)

    assert int8_paths(traced) == []


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.SELU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Sigmoid(), nn.Tanh()],
    ids=str,
)
@pytest.mark.parametrize("rows", [3, 200])
def test_an_activation_behind_a_layer_is_done_with_it(activation, rows):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 32), activation, nn.Linear(32, 16)).eval()
    inputs = torch.randn(rows, 48)
    prepared = fxplug_quant.prepare(model, {"mode": "dynamic-int8"}, inputs)

    result = fxplug_quant.convert(prepared)

    called = [node for node in result.graph.nodes if node.op == "call_module"]
    assert [type(result.get_submodule(node.target)) for node in called] == [DynamicInt8Linear] * 2
    assert called[0].name == "_1"
    assert prepared.plan.edges()["_0"].reason == "never made: the next call is in this one"
    layer = DynamicInt8Linear.from_float(model[0])
    with torch.no_grad():
        expected = activation(layer(inputs))
        torch.testing.assert_close(result.get_submodule("0")(inputs), expected, atol=1e-6, rtol=1e-5)
        empty = torch.full((2, 48), torch.nan)
        torch.testing.assert_close(result.get_submodule("0")(empty), activation(layer(empty)), equal_nan=True)


def test_outputs_that_others_read_and_layers_that_are_called_twice_keep_their_activation_apart():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.other, self.shared = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            y = self.layer(x)
            return torch.relu(y), y, torch.tanh(self.other(x)), torch.relu(self.shared(x)), self.shared(x + 1)

    torch.manual_seed(0)
    model, inputs = Reads().eval(), torch.randn(4, 8)

    result = fxplug_quant.convert(fxplug_quant.prepare(model, {"mode": "dynamic-int8"}, inputs))

    with torch.no_grad():
        for found, expected in zip(result(inputs), model(inputs), strict=True):
            torch.testing.assert_close(found, expected, atol=0.05, rtol=0)
    assert (result.layer.post, result.other.post, result.shared.post) == ("none", "tanh", "none")
    assert sum(isinstance(part, DynamicInt8Linear) for part in result.modules()) == 3
