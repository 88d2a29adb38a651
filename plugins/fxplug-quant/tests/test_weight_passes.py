"""Passes that make a float module easier to quantize: equalisation, smoothing, bias correction."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxplug
import fxplug_quant
from fxplug.errors import ConfigError
from fxplug.passes import PassContext
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_quant import CorrectBias, Equalize, Smooth, plugin


@pytest.fixture
def manager() -> PluginManager:
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "quant")], environ={})


def run(step, model, inputs, manager):
    """Return what a pass makes of a model, run in a pipeline, and its result."""
    captured = fxplug.symbolic_trace(model, manager=manager)
    pipeline = manager.resolve_pipeline([step] if isinstance(step, str) else step)
    reports = pipeline.run(captured, None if inputs is None else (inputs,))
    return captured, reports[-1].result


def outputs(module, inputs):
    with torch.no_grad():
        return module(inputs)


def error_of(model, reference, inputs, config):
    """Return the relative error after quantization."""
    prepared = fxplug_quant.prepare(model, config, inputs).calibrate([inputs])
    expected = outputs(reference, inputs)
    found = outputs(fxplug_quant.convert(prepared), inputs)
    return float((found - expected).norm() / expected.norm())


# -- equalisation -----------------------------------------------------------------------------------------------


class Cnn(nn.Module):
    """Convolutions, one of them depthwise, and a head behind a flattening."""

    def __init__(self):
        super().__init__()
        self.first, self.depthwise = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3, groups=8, bias=False)
        self.grouped, self.pool = nn.Conv2d(16, 6, 1, groups=2), nn.MaxPool2d(2)
        self.head, self.last = nn.Linear(54, 12), nn.Linear(12, 4)

    def forward(self, x):
        x = torch.relu(self.depthwise(functional.relu(self.first(x))))
        x = self.pool(self.grouped(x).relu())
        return self.last(functional.relu(self.head(torch.flatten(x, 1)), inplace=True))


def uneven(model: nn.Module) -> nn.Module:
    """Return a model whose channels differ a thousandfold in one layer, which the next one makes up for."""
    torch.manual_seed(1)
    with torch.no_grad():
        for first, second, spread in (
            (model.first, model.depthwise, 1),
            (model.grouped, model.head, 9),
            (model.head, model.last, 1),
        ):
            factors = torch.exp(torch.randn(len(first.weight)) * 2.5)
            first.weight.mul_(factors.reshape(-1, *(1,) * (first.weight.dim() - 1)))
            first.bias.mul_(factors)
            if second is model.depthwise:
                second.weight.div_(factors.repeat_interleave(2).reshape(-1, 1, 1, 1))
            else:
                second.weight.div_(factors.repeat_interleave(spread))
    return model.eval()


@pytest.fixture
def cnn() -> nn.Module:
    torch.manual_seed(0)
    return uneven(Cnn())


def test_equalisation_changes_no_number_and_halves_the_error_of_int8(cnn, manager):
    inputs = torch.randn(16, 3, 10, 10)
    before = copy.deepcopy(cnn.state_dict())

    equal, result = run("equalize", cnn, inputs, manager)

    assert result.summary == "equalised 4 pairs of layers"
    assert result.details == {"pairs": 4, "layers": 5}
    assert torch.equal(outputs(equal, inputs), outputs(cnn, inputs))
    assert all(torch.equal(value, before[name]) for name, value in cnn.state_dict().items())
    for per_channel in (False, True):
        config = {"per_channel": per_channel}
        assert error_of(equal, cnn, inputs, config) < 0.5 * error_of(cnn, cnn, inputs, config)


def test_channels_are_alike_after_equalisation(cnn, manager):
    equal, _ = run("equalize", cnn, torch.randn(2, 3, 10, 10), manager)

    first = equal.get_submodule("first").weight.abs().amax((1, 2, 3))
    second = equal.get_submodule("depthwise").weight.reshape(8, -1).abs().amax(1)
    assert bool(((first / second).log2().abs() <= 1).all())
    first = equal.get_submodule("grouped").weight.abs().amax((1, 2, 3))
    second = equal.get_submodule("head").weight.reshape(12, 6, 9).abs().amax((0, 2))
    assert bool(((first / second).log2().abs() <= 1).all())


def test_equalisation_twice_is_equalisation_once(cnn, manager):
    inputs = torch.randn(2, 3, 10, 10)
    equal, _ = run("equalize", cnn, inputs, manager)

    assert Equalize().run(equal, PassContext((inputs,))).modified is False


def test_new_weights_are_equalised_and_what_they_compute_stays(cnn, manager):
    inputs = torch.randn(4, 3, 10, 10)
    equal, _ = run("equalize", cnn, inputs, manager)
    torch.manual_seed(5)
    other = uneven(Cnn())

    fxplug.load_original_state_dict(equal, other.state_dict())

    assert torch.equal(outputs(equal, inputs), outputs(other, inputs))
    assert not torch.equal(equal.get_submodule("first").weight, other.first.weight)


class Mixed(nn.Module):
    """Pairs that must stay: each forward is a reason of its own."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.conv, self.after = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 2, 1)

    def forward(self, x):
        match self.kind:
            case "another user":
                y = self.first(x)
                return self.second(y.relu()) + y
            case "returned":
                y = self.first(x)
                return self.second(y), y
            case "sigmoid":
                return self.second(self.first(x).sigmoid())
            case "twice":
                return self.second(self.first(self.first(x)))
            case "weight is read":
                return self.second(self.first(x)) + self.second.weight.sum() + self.first.weight.sum()
            case "added":
                return self.second(self.first(x) + 1)
        return self.second(self.first(x).transpose(0, 1))


@pytest.mark.parametrize(
    "kind", ["another user", "returned", "sigmoid", "twice", "weight is read", "added", "transposed"]
)
def test_pairs_whose_channels_others_see_are_left_alone(kind, manager):
    torch.manual_seed(0)
    model = Mixed(kind).eval()
    with torch.no_grad():
        model.first.weight[0] *= 1000

    captured, result = run("equalize", model, torch.randn(6, 6), manager)

    assert result.modified is False
    assert result.summary == "no pair of layers to equalise"
    assert captured.get_submodule("first").weight is model.first.weight


def test_a_head_is_not_equalised_where_the_shape_is_not_known_or_has_no_batch(manager):
    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.flatten, self.head = nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 3)

        def forward(self, x):
            return self.head(self.flatten(self.conv(x)))

    torch.manual_seed(0)
    model = Headed().eval()
    with torch.no_grad():
        model.conv.weight[0] *= 1000
    single = torch.randn(1, 6, 6)  # Without a batch: the flattening mixes other dimensions.

    assert run("equalize", model, None, manager)[1].modified is False
    unbatched, result = run("equalize", model, single, manager)
    assert result.modified is False
    assert torch.equal(outputs(unbatched, single), outputs(model, single))
    batched = torch.randn(2, 1, 4, 4)
    equal, result = run("equalize", model, batched, manager)
    assert result.modified is True
    assert torch.equal(outputs(equal, batched), outputs(model, batched))


def test_layers_that_are_zero_or_tied_or_hooked_are_no_trouble(manager):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 6)).eval()
    with torch.no_grad():
        model[0].weight[0] *= 1000
        model[0].weight[1] = 0
        model[2].weight[:, 2] = 0
        model[2].weight[:, 3] = 1e-40
    model[3].weight = model[0].weight
    inputs = torch.randn(5, 6)

    equal, result = run("equalize", model, inputs, manager)

    assert result.modified is True
    assert torch.equal(outputs(equal, inputs), outputs(model, inputs))
    assert all(bool(tensor.isfinite().all()) for tensor in equal.parameters())
    model[2].register_forward_hook(lambda module, args, output: output)
    assert run("equalize", model, inputs, manager)[1].modified is False


def test_training_and_parameters_that_do_not_train(manager):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    with torch.no_grad():
        model[0].weight[0] *= 1000
    model[1].weight.requires_grad_(False)

    assert run("equalize", model, torch.randn(2, 6), manager)[1].modified is False
    equal, _ = run("equalize", model.eval(), torch.randn(2, 6), manager)
    assert equal.get_submodule("0").weight.requires_grad
    assert not equal.get_submodule("1").weight.requires_grad


# -- smoothing --------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A Transformer block whose norms come first."""

    def __init__(self, norm):
        super().__init__()
        self.norm1, self.norm2 = norm(32), norm(32)
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.out(functional.scaled_dot_product_attention(self.query(y), self.key(y), self.value(y)))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


@pytest.fixture(params=[nn.LayerNorm, nn.RMSNorm])
def block(request) -> nn.Module:
    """Return a block with a few channels that are a hundred times as large, as in large language models."""
    torch.manual_seed(0)
    model = Block(request.param).eval()
    with torch.no_grad():
        for norm, layers in (
            (model.norm1, (model.query, model.key, model.value)),
            (model.norm2, (model.up,)),
        ):
            norm.weight[[3, 17]] *= 100
            for layer in layers:
                layer.weight[:, [3, 17]] /= 100
    return model


@pytest.mark.parametrize("mode", ["static-int8", "dynamic-int8"])
def test_smoothing_changes_no_number_and_halves_the_error_of_int8(block, mode, manager):
    inputs = torch.randn(4, 10, 32)
    before = copy.deepcopy(block.state_dict())

    smooth, result = run("smooth", block, inputs, manager)

    assert result.summary == "smoothed what 2 norms give"
    assert result.details == {"norms": 2}
    assert torch.equal(outputs(smooth, inputs), outputs(block, inputs))
    assert all(torch.equal(value, before[name]) for name, value in block.state_dict().items())
    assert error_of(smooth, block, inputs, {"mode": mode}) < 0.5 * error_of(
        block, block, inputs, {"mode": mode}
    )


def test_strength_says_how_much_moves(block, manager):
    inputs = torch.randn(4, 10, 32)
    with torch.no_grad():
        for layer in (block.query, block.key, block.value):
            layer.weight[:, [3, 17]] *= 100
    spread = []
    for strength in (0.25, 0.5, 1.0):
        smooth, _ = run([{"name": "smooth", "strength": strength}], block, inputs, manager)
        largest = outputs(smooth.get_submodule("norm1"), inputs).abs().amax((0, 1))
        spread.append(float(largest.max() / largest.min()))

    assert spread[0] > spread[1] > spread[2]
    assert spread[2] <= 2


def test_new_weights_of_a_smoothed_module_compute_what_they_do(block, manager):
    inputs = torch.randn(4, 10, 32)
    smooth, _ = run("smooth", block, inputs, manager)
    torch.manual_seed(7)
    other = Block(type(block.norm1)).eval()

    fxplug.load_original_state_dict(smooth, other.state_dict())

    assert torch.equal(outputs(smooth, inputs), outputs(other, inputs))


class Normed(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.norm = nn.LayerNorm(8, elementwise_affine=kind != "no weights")
        self.layer, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.norm(x)
        match self.kind:
            case "residual":
                return self.layer(y) + y
            case "returned":
                return self.layer(y), y
            case "written":
                z = self.layer(y)
                y.mul_(2)
                return self.other(y) + z
            case "norm called twice":
                return self.layer(y) + self.other(self.norm(x + 1))
            case "layer called twice":
                return self.layer(y) + self.layer(x)
        return self.layer(y)


def spoilt(kind):
    torch.manual_seed(0)
    model = Normed(kind).eval()
    nn.init.uniform_(model.norm.weight, 0, 100)
    return model


@pytest.mark.parametrize("kind", ["residual", "returned", "norm called twice", "written"])
def test_norms_whose_output_others_see_stay_and_what_goes_to_layers_is_divided(kind, manager, tmp_path):
    model, inputs = spoilt(kind), torch.randn(4, 8)

    smooth, result = run("smooth", model, inputs, manager)
    quantized = fxplug_quant.convert(fxplug_quant.prepare(smooth, {"mode": "dynamic-int8"}, inputs))
    other = spoilt(kind)
    nn.init.normal_(other.layer.weight)

    assert result.details["norms"] == (2 if kind == "norm called twice" else 1)
    assert torch.equal(smooth.norm.weight, model.norm.weight)
    assert not torch.equal(smooth.layer.weight, model.layer.weight)
    for found, expected in zip(tensors_of(smooth(inputs)), tensors_of(model(inputs)), strict=True):
        assert torch.equal(found, expected)
    fxplug.save(quantized, tmp_path / "smooth.fxplug", manager=manager)
    loaded = fxplug.load(tmp_path / "smooth.fxplug", manager=manager)
    for found, expected in zip(tensors_of(loaded(inputs)), tensors_of(quantized(inputs)), strict=True):
        assert torch.equal(found, expected)
    fxplug.load_original_state_dict(smooth, other.state_dict(), strict=False)
    for found, expected in zip(tensors_of(smooth(inputs)), tensors_of(other(inputs)), strict=True):
        assert torch.equal(found, expected)


def tensors_of(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("kind", ["layer called twice", "no weights"])
def test_norms_that_cannot_be_smoothed_are_left_alone(kind, manager):
    torch.manual_seed(0)
    model = Normed(kind).eval()
    if kind != "no weights":
        nn.init.uniform_(model.norm.weight, 0, 100)

    _, result = run("smooth", model, torch.randn(4, 8), manager)

    assert result.modified is False
    assert result.summary == "no norm whose output goes to linear layers"


def test_smoothing_takes_data_from_around_it_and_options_are_checked(manager):
    torch.manual_seed(0)
    model = Normed("plain").eval()
    seen = []

    def loader():
        for seed in range(5):
            seen.append(seed)
            yield torch.randn(4, 8), "labels"

    with fxplug_quant.calibration(loader()):
        run([{"name": "smooth", "batches": 3}], model, torch.randn(4, 8), manager)

    assert seen == [0, 1, 2]
    with pytest.raises(ConfigError, match="Cannot smooth with strength=2"):
        Smooth(strength=2)
    with pytest.raises(ConfigError, match="Cannot use batches=-1"):
        Smooth(batches=-1)


# -- bias correction --------------------------------------------------------------------------------------------


class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.grouped = nn.Conv2d(4, 6, 3, bias=False), nn.Conv2d(6, 6, 1, groups=3)
        self.shared, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.grouped(self.conv(x).relu()).relu().mean((2, 3))
        return self.last(self.shared(self.shared(x)) + x)


@pytest.fixture
def biased() -> nn.Module:
    torch.manual_seed(0)
    return Biased().eval()


def test_the_mean_error_of_rounded_weights_is_gone(biased, manager):
    torch.manual_seed(2)
    inputs = torch.rand(64, 4, 6, 6) + 3  # Far from 0, so that rounding errors of weights do not cancel.
    before = copy.deepcopy(biased.state_dict())

    for per_channel in (True, False):
        corrected, result = run(
            [{"name": "correct-bias", "per_channel": per_channel}], biased, inputs, manager
        )
        assert result.summary == "corrected the bias of 4 layers"
        for path in ("conv", "grouped", "shared", "last"):
            assert not torch.equal(corrected.get_submodule(path).bias, torch.zeros(1))
        config = {"mode": "static-int8", "per_channel": per_channel, "observer": "min-max"}
        means = []
        for model in (biased, corrected):
            prepared = fxplug_quant.prepare(model, config, inputs).calibrate([inputs])
            error = outputs(fxplug_quant.convert(prepared), inputs) - outputs(biased, inputs)
            means.append(float(error.mean(0).abs().max()))
        assert means[1] < 0.7 * means[0]
    assert all(torch.equal(value, before[name]) for name, value in biased.state_dict().items())
    assert biased.conv.bias is None


def test_the_correction_is_the_mean_of_what_rounding_takes_away(manager):
    torch.manual_seed(0)
    layer, inputs = nn.Linear(8, 4), torch.randn(32, 8) + 2
    model = nn.Sequential(layer).eval()

    corrected, _ = run("correct-bias", model, inputs, manager)
    rounded = fxplug_quant.WeightInt8Linear.from_float(layer)

    found = corrected.get_submodule("0").bias - layer.bias
    expected = (outputs(layer, inputs) - outputs(rounded, inputs)).mean(0)
    assert torch.allclose(found, expected, atol=1e-6)
    assert float(expected.abs().max()) > 1e-4


def test_new_weights_are_corrected_for_their_own_rounding(biased, manager):
    inputs = torch.rand(16, 4, 6, 6) + 3
    corrected, _ = run("correct-bias", biased, inputs, manager)
    torch.manual_seed(9)
    other = Biased().eval()
    other.load_state_dict({**other.state_dict(), "last.bias": torch.zeros(3)})

    fxplug.load_original_state_dict(corrected, other.state_dict())

    assert torch.equal(corrected.get_submodule("last").weight, other.last.weight)
    assert 0 < float(corrected.get_submodule("last").bias.detach().abs().max()) < 0.1


def test_a_layer_that_is_called_twice_keeps_one_bias(biased, manager):
    corrected, _ = run("correct-bias", biased, torch.rand(8, 4, 6, 6), manager)

    assert [node.target for node in corrected.graph.nodes if node.op == "call_module"].count("shared") == 2


def test_bias_correction_needs_finite_data_and_layers(biased, manager):
    with pytest.raises(ConfigError, match="Cannot use batches=-2"):
        CorrectBias(batches=-2)
    assert run("correct-bias", nn.Sequential(nn.ReLU()), torch.ones(2), manager)[1].modified is False
    captured = fxplug.symbolic_trace(biased, manager=manager)
    with pytest.raises(fxplug_quant.QuantizationError, match="values that are not finite"):
        CorrectBias().run(captured, PassContext((torch.full((1, 4, 6, 6), float("nan")),)))


# -- together ---------------------------------------------------------------------------------------------------


def test_the_passes_run_in_their_order_before_rounding(manager, cnn):
    inputs = torch.randn(8, 3, 10, 10)
    steps = ["static-int8", "correct-bias", "smooth", "equalize", "fuse-conv-bn"]

    result = fxplug.optimize(cnn, inputs, passes=steps, manager=manager, atol=1e3, measure=False)

    names = [report.name.rpartition(":")[2] for report in result.passes]
    assert names == ["fuse-conv-bn", "equalize", "smooth", "correct-bias", "static-int8"]
    assert type(result.graph_module.get_submodule("first")) is fxplug_quant.Int8Conv
