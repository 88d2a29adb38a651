"""Layers that do what follows them, in one call of oneDNN."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import random
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import fxplug
from fxplug.execute import Interpreter, fused, packed
from fxplug.execute.fused import FusedConv1d, FusedConv2d, FusedConv3d
from fxplug.ir import RegionEntry, effects
from fxplug.passes import BUILTIN_PASSES, OneDnnFuse, PassContext, Pipeline, PipelineStep

pytestmark = pytest.mark.skipif(bool(fused.onednn_fault()), reason="oneDNN cannot be used here")


@pytest.fixture(autouse=True)
def _small_convolutions_take_part(monkeypatch):
    """Images of tests are small. Asked here is what oneDNN computes; test_onednn_gains.py asks when calling it pays."""

    def has_value(shape, weight, geometry, **_):
        return 0 not in shape and min(fused._convolved_shape(shape, weight, *geometry)[2:]) > 0

    monkeypatch.setattr(fused, "_is_worthwhile", has_value)


CONTEXT = PassContext()
RECORD = next(record for record in BUILTIN_PASSES if record.name == "onednn-fuse")


def wave(*shape, shift=0.0):
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.float32).mul(0.37).add(shift).sin().reshape(shape)


IMAGE = wave(2, 4, 9, 8)
INPUTS = {1: wave(2, 4, 19), 2: IMAGE, 3: wave(2, 4, 5, 6, 7)}
CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
ROWS = wave(64, 512)


class Model(nn.Module):
    """Parts by name, and a function of the module and the inputs that says what is done."""

    def __init__(self, program, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.program = program

    def forward(self, *inputs):
        return self.program(self, *inputs)


class OneInput(Model):
    def forward(self, x):
        return self.program(self, x)


class TwoInputs(Model):
    def forward(self, x, y):
        return self.program(self, x, y)


def settled(root, *, trains=False):
    """Return a module with the same weights in every run, in evaluation mode."""
    for number, parameter in enumerate(root.parameters()):
        parameter.data = wave(*parameter.shape, shift=number) / 2
    return root.eval().requires_grad_(trains)


def fuse(capture, root, **options):
    module = capture(root)
    result = OneDnnFuse(**options).run(module, CONTEXT)
    module.graph.lint()
    return module, result


def assert_same(module, root, *inputs):
    with torch.no_grad():
        expected = root(*(x.clone() for x in inputs))
        for _ in range(2):  # The first run packs.
            torch.testing.assert_close(module(*(x.clone() for x in inputs)), expected, rtol=1e-5, atol=1e-5)


def fused_parts(module):
    return [part for part in module.modules() if isinstance(part, fused.FusedLayer)]


def used_onednn(monkeypatch):
    """Return the list that grows by one with every call of an operator of oneDNN."""
    calls = []
    apply = fused.FusedLayer.apply_onednn

    def noted(self, *args):
        value = apply(self, *args)
        if value is not None:
            calls.append(type(self))
        return value

    monkeypatch.setattr(fused.FusedLayer, "apply_onednn", noted)
    return calls


# -- what is fused


SETTINGS = {
    "plain": {},
    "strided": {"stride": 2},
    "dilated": {"dilation": 2, "padding": 1},
    "grouped": {"groups": 2},
    "depthwise": {"groups": 4},
    "same": {"padding": "same"},
    "same, dilated": {"padding": "same", "dilation": 2},
    "valid": {"padding": "valid"},
    "without bias": {"bias": False},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution_and_relu_are_one_call(capture, monkeypatch, rank, settings):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=CONVS[rank](4, 8, 3, **settings)))
    calls = used_onednn(monkeypatch)
    module, result = fuse(capture, root)

    assert result.modified
    assert result.details == {"convolutions": 1, "linear": 0, "activations": 1, "sums": 0, "in_training": 0}
    assert [node.op for node in module.graph.nodes] == ["placeholder", "call_module", "output"]
    assert_same(module, root, INPUTS[rank])
    assert calls == [{1: FusedConv1d, 2: FusedConv2d, 3: FusedConv3d}[rank]] * 2


ACTIVATIONS = {
    "F.relu": lambda m, x: F.relu(x),
    "F.relu in place": lambda m, x: F.relu(x, inplace=True),
    "method": lambda m, x: x.relu(),
    "method in place": lambda m, x: x.relu_(),
    "sigmoid": lambda m, x: torch.sigmoid(x),
    "tanh": lambda m, x: x.tanh(),
    "silu": lambda m, x: F.silu(x),
    "gelu": lambda m, x: F.gelu(x),
    "gelu by tanh": lambda m, x: F.gelu(x, approximate="tanh"),
    "hardswish": lambda m, x: F.hardswish(x),
    "hardsigmoid": lambda m, x: F.hardsigmoid(x),
    "leaky_relu": lambda m, x: F.leaky_relu(x, 0.3),
    "leaky_relu by default": lambda m, x: F.leaky_relu(x),
    "relu6": lambda m, x: F.relu6(x),
    "hardtanh": lambda m, x: F.hardtanh(x, -0.25, 0.5),
    "hardtanh by default": lambda m, x: F.hardtanh(x),
}
MODULES = {
    "nn.ReLU": nn.ReLU,
    "nn.ReLU in place": lambda: nn.ReLU(inplace=True),
    "nn.ReLU6": nn.ReLU6,
    "nn.Hardtanh": lambda: nn.Hardtanh(-0.5, 0.1),
    "nn.GELU": nn.GELU,
    "nn.GELU by tanh": lambda: nn.GELU("tanh"),
    "nn.SiLU": nn.SiLU,
    "nn.Sigmoid": nn.Sigmoid,
    "nn.Tanh": nn.Tanh,
    "nn.Hardswish": nn.Hardswish,
    "nn.Hardsigmoid": nn.Hardsigmoid,
    "nn.LeakyReLU": lambda: nn.LeakyReLU(0.2),
}


@pytest.mark.parametrize("layer", ["conv", "linear"])
@pytest.mark.parametrize("name", [*ACTIVATIONS, *MODULES])
def test_every_activation_in_every_spelling(capture, monkeypatch, layer, name):
    part = nn.Conv2d(4, 6, 3) if layer == "conv" else nn.Linear(512, 256)
    if name in MODULES:
        root = settled(OneInput(lambda m, x: m.act(m.layer(x)), layer=part, act=MODULES[name]()))
    else:
        root = settled(OneInput(lambda m, x: ACTIVATIONS[name](m, m.layer(x)), layer=part))
    calls = used_onednn(monkeypatch)
    module, result = fuse(capture, root)

    assert result.details["activations"] == 1
    assert len(module.graph.nodes) == 3
    assert_same(module, root, IMAGE * 3 if layer == "conv" else ROWS)
    assert len(calls) == 2


SUMS = {
    "x + conv": lambda m, x, y: y + m.conv(x),
    "conv + x": lambda m, x, y: m.conv(x) + y,
    "torch.add": lambda m, x, y: torch.add(y, m.conv(x)),
    "method": lambda m, x, y: m.conv(x).add(y),
    "in place": lambda m, x, y: operator.iadd(m.conv(x), y),
    "method in place": lambda m, x, y: m.conv(x).add_(y),
    "alpha of one": lambda m, x, y: torch.add(m.conv(x), y, alpha=1),
}


@pytest.mark.parametrize("ends", [True, False], ids=["relu", "no relu"])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("program", SUMS.values(), ids=SUMS)
def test_the_sum_of_a_residual_block_is_part_of_the_call(capture, monkeypatch, program, rank, ends):
    def whole(m, x, y):
        value = program(m, x, y)
        return torch.relu(value) if ends else value

    root = settled(TwoInputs(whole, conv=CONVS[rank](4, 4, 3, padding=1)))
    calls = used_onednn(monkeypatch)
    module, result = fuse(capture, root)

    assert result.details["sums"] == 1
    assert [node.op for node in module.graph.nodes] == ["placeholder", "placeholder", "call_module", "output"]
    assert module.conv.add
    assert not module.conv.reuse  # An input belongs to the caller.
    x, y = INPUTS[rank], INPUTS[rank].flip(0)
    assert_same(module, root, x, y)
    before = y.clone()
    with torch.no_grad():
        module(x, y)
    assert torch.equal(y, before)
    assert len(calls) == 3


def test_a_sum_behind_a_linear_layer(capture, monkeypatch):
    root = settled(OneInput(lambda m, x: m.layer(x) + x, layer=nn.Linear(512, 512, bias=False)))
    calls = used_onednn(monkeypatch)
    module, result = fuse(capture, root)

    assert result.details["sums"] == 1
    assert_same(module, root, ROWS)
    assert_same(module, root, wave(4, 16, 512))
    assert_same(module, root, wave(512, 40).t())
    assert len(calls) == 6


def test_a_layer_that_nothing_follows_is_packed(capture):
    root = settled(OneInput(lambda m, x: m.conv(x).sum(1) + 1, conv=nn.Conv2d(4, 4, 3)))
    module, result = fuse(capture, root)

    assert type(module.conv) is FusedConv2d
    assert result.summary == "1 convolution and 0 linear layers for oneDNN, with 0 activations and 0 sums"
    assert_same(module, root, IMAGE)


def test_a_bare_convolution_of_rank_one_is_left_alone(capture):
    root = settled(OneInput(lambda m, x: m.conv(x), conv=nn.Conv1d(4, 4, 3)))

    assert not fuse(capture, root)[1].modified


def test_of_two_convolutions_that_are_added_one_takes_the_sum(capture):
    def program(m, x):
        value = m.one(x)
        value += m.two(x)
        return torch.relu(value)

    root = settled(OneInput(program, one=nn.Conv2d(4, 4, 3), two=nn.Conv2d(4, 4, 3)))
    module, result = fuse(capture, root)

    assert result.details["sums"] == 1
    assert module.one.add
    assert module.one.reuse
    assert not module.two.add
    assert_same(module, root, IMAGE)


def test_the_calls_may_have_any_number_of_inputs_by_name(capture):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(input=x)), conv=nn.Conv2d(4, 4, 3)))
    module, result = fuse(capture, root)

    assert result.modified
    assert_same(module, root, IMAGE)


# -- what is not


def conv(**settings):
    return nn.Conv2d(4, 4, 3, padding=1, **settings)


def both(m, x, y):
    value = m.conv(x)
    return torch.relu(value) + value.sum()


def relu_in_place_of_a_value_that_is_used(m, x, y):
    value = m.conv(x)
    return torch.relu_(value) * value


def writes_the_other(m, x, y):
    value = y.sin()
    value += m.conv(x)
    return value * 2


def writes_the_input_between(m, x, y):
    x = x.sin()
    value = m.conv(x)
    other = x.relu_()
    return value + other


REFUSED = {
    "several users": both,
    "in place, used elsewhere": relu_in_place_of_a_value_that_is_used,
    "written into the other": writes_the_other,
    "input written between": writes_the_input_between,
    "a number": lambda m, x, y: m.conv(x) + 3,
    "twice the other": lambda m, x, y: torch.add(m.conv(x), y, alpha=2),
    "to itself": lambda m, x, y: operator.add(*[m.conv(x)] * 2),
    "a bias of the model": lambda m, x, y: m.conv(x) + m.offset,
    "another activation": lambda m, x, y: F.softplus(m.conv(x)),
    "subtraction": lambda m, x, y: m.conv(x) - y,
}


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_what_follows_stays_a_call_of_its_own(capture, program):
    root = settled(TwoInputs(program, conv=conv(), offset=nn.Parameter(wave(4, 1, 1))))
    module, result = fuse(capture, root)

    assert (result.details["activations"], result.details["sums"]) == (0, 0)
    assert type(module.conv) is FusedConv2d
    assert_same(module, root, IMAGE, IMAGE.flip(0))


def test_sums_that_broadcast_are_right(capture):
    root = settled(TwoInputs(lambda m, x, y: torch.relu(m.conv(x) + y), conv=conv()))
    module, _ = fuse(capture, root)

    for other in (
        wave(4, 1, 1),
        wave(1, 4, 1, 1),
        wave(1, 4, 9, 8),
        wave(1),
        wave(3, 2, 4, 9, 8),
        wave(2, 1, 9, 8),
    ):
        assert_same(module, root, IMAGE, other)
    assert_same(module, root, IMAGE, IMAGE.double())
    assert_same(module, root, IMAGE, IMAGE.to(torch.int32))


def test_a_sum_in_place_keeps_dtype_and_shape_of_the_layer(capture):
    root = settled(TwoInputs(lambda m, x, y: torch.relu(m.conv(x).add_(y)), conv=conv()))
    module, _ = fuse(capture, root)

    assert_same(module, root, IMAGE, IMAGE.double())
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        module(IMAGE, wave(3, 2, 4, 9, 8))


LAYERS = {
    "training": lambda: conv().train(),
    "double": lambda: conv().double(),
    "on another device": lambda: conv().to("meta"),
    "reflection": lambda: conv(padding_mode="reflect"),
    "sides that differ": lambda: nn.Conv2d(4, 4, 2, padding="same"),
    "subclass": lambda: type("Other", (nn.Conv2d,), {})(4, 4, 3, padding=1),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 3, padding=1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_are_left_alone(name):
    root = OneInput(lambda m, x: torch.relu(m.layer(x)), layer=LAYERS[name]()).eval()
    root.layer.train(name == "training")
    tracer = fxplug.Tracer()
    tracer.is_leaf_module = lambda module, name: bool(name)
    graph = tracer.trace(root)
    module = fxplug.GraphModule(root, graph)
    result = OneDnnFuse().run(module, CONTEXT)

    assert not result.modified
    assert type(module.layer) is type(root.layer)


def test_layers_in_training_are_named(capture):
    root = OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv())
    _, result = fuse(capture, root)

    assert result.summary == "nothing to fuse; 1 left alone in training mode (call eval() first)"
    assert result.details["in_training"] == 1


def test_hooks_are_kept(capture):
    root = settled(OneInput(lambda m, x: m.act(m.conv(x)), conv=conv(), act=nn.ReLU()))
    root.conv.register_forward_hook(lambda *_: torch.zeros(1))
    assert not fuse(capture, root)[1].modified

    root = settled(OneInput(lambda m, x: m.act(m.conv(x)), conv=conv(), act=nn.ReLU()))
    root.act.register_forward_hook(lambda *_: torch.zeros(1))
    module, result = fuse(capture, root)
    assert result.details["activations"] == 0
    assert_same(module, root, IMAGE)


def test_regions_are_kept(capture):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv()))
    module = capture(root)
    module.graph.find_nodes(op="call_function")[0].region = (RegionEntry(torch.no_grad),)
    result = OneDnnFuse().run(module, CONTEXT)

    assert result.details["activations"] == 0


def test_weights_that_the_program_writes_are_left_alone(capture):
    def program(m, x):
        m.conv.weight.mul_(1.5)
        return torch.relu(m.conv(x))

    root = settled(OneInput(program, conv=conv()))

    assert not fuse(capture, root)[1].modified


def test_a_layer_that_another_module_calls_itself_is_left_alone(capture):
    block = nn.Sequential(conv())
    root = settled(OneInput(lambda m, x: m.block(x) + torch.relu(m.block[0](x)), block=block))
    tracer = fxplug.Tracer()
    tracer.is_leaf_module = lambda module, name: name in {"block", "block.0"}
    module = capture(root, tracer)
    result = OneDnnFuse().run(module, CONTEXT)

    assert not result.modified
    assert_same(module, root, IMAGE)


def test_a_layer_under_two_names_is_left_alone(capture):
    shared = conv()
    root = settled(OneInput(lambda m, x: torch.relu(m.one(x)) + m.two(x), one=shared, two=shared))
    module = capture(root)
    module.add_module("two", module.one)

    assert not OneDnnFuse().run(module, CONTEXT).modified


def test_calls_of_one_module_that_end_alike_are_fused(capture):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(torch.relu(m.conv(x)))), conv=conv()))
    module, result = fuse(capture, root)

    assert result.details["activations"] == 2
    assert len(fused_parts(module)) == 1
    assert_same(module, root, IMAGE)


def test_calls_of_one_module_that_end_differently_keep_what_follows(capture):
    root = settled(OneInput(lambda m, x: torch.tanh(m.conv(torch.relu(m.conv(x)))), conv=conv()))
    module, result = fuse(capture, root)

    assert result.details["activations"] == 0
    assert result.details["convolutions"] == 2
    assert_same(module, root, IMAGE)


def test_linear_layers_can_be_left_out(capture):
    root = settled(OneInput(lambda m, x: torch.relu(m.layer(x)), layer=nn.Linear(512, 256)))

    assert not fuse(capture, root, linear=False)[1].modified


# -- state


def test_parameters_and_keys_stay(capture):
    root = settled(OneInput(lambda m, x: m.act(m.conv(x)), conv=conv(), act=nn.ReLU()), trains=True)
    module = capture(root)
    parameters = dict(module.named_parameters())
    state = {key: value.shape for key, value in module.state_dict().items()}
    OneDnnFuse().run(module, CONTEXT)

    assert {key: value.shape for key, value in module.state_dict().items()} == state
    assert all(value is parameters[name] for name, value in module.named_parameters())
    assert type(root.conv) is nn.Conv2d  # What was captured is as it was.
    assert set(vars(module.conv)) == set(vars(FusedConv2d(root.conv)))


def test_nothing_packed_is_an_attribute(capture):
    module, _ = fuse(capture, settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv())))
    before = {name: repr(value) for name, value in vars(module.conv).items()}
    with torch.no_grad():
        module(IMAGE)

    assert {name: repr(value) for name, value in vars(module.conv).items()} == before
    assert module.conv in packed._packed


def test_what_is_packed_is_freed_with_the_module(capture):
    module, _ = fuse(capture, settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv())))
    count = len(packed._packed)
    with torch.no_grad():
        module(IMAGE)
    assert len(packed._packed) == count + 1
    del module
    gc.collect()

    assert len(packed._packed) == count


def write_in_place(part):
    with torch.no_grad():
        part.weight.mul_(2)


def assign_data(part):
    part.weight.data = part.weight.data * 2


def write_data(part):
    part.weight.data.mul_(2)


def write_numpy(part):
    pytest.importorskip("numpy")
    array = part.weight.detach().numpy()
    array *= 2


def new_parameter(part):
    part.weight = nn.Parameter(part.weight.detach() * 2, requires_grad=False)


def load(part):
    part.load_state_dict({key: value * 2 for key, value in part.state_dict().items()})


def load_by_assignment(part):
    part.load_state_dict({key: value * 2 for key, value in part.state_dict().items()}, assign=True)


def there_and_back(part):
    part.double()
    part.weight.data.mul_(2)
    part.float()


CHANGES = [
    write_in_place,
    assign_data,
    write_data,
    write_numpy,
    new_parameter,
    load,
    load_by_assignment,
    there_and_back,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layer", ["conv", "linear"])
def test_new_weights_are_seen(capture, monkeypatch, layer, change):
    part = conv() if layer == "conv" else nn.Linear(512, 256)
    root = settled(OneInput(lambda m, x: torch.relu(m.part(x)), part=part))
    x = IMAGE if layer == "conv" else ROWS
    module, _ = fuse(capture, copy.deepcopy(root))
    assert_same(module, root, x)
    change(root.part)
    change(module.part)
    calls = used_onednn(monkeypatch)

    assert_same(module, root, x)
    assert len(calls) == 2


def test_a_weight_is_packed_once(capture, monkeypatch):
    module, _ = fuse(capture, settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv())))
    times = []
    pack = FusedConv2d._pack
    monkeypatch.setattr(FusedConv2d, "_pack", lambda self, *args: times.append(1) or pack(self, *args))
    with torch.no_grad():
        for batch in (2, 1, 2):
            module(IMAGE[:batch])

    assert times == [1]


@pytest.mark.parametrize(
    "transfer",
    [copy.deepcopy, copy.copy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "copy", "pickle"],
)
def test_copies_have_a_cache_of_their_own(capture, transfer):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv()))
    module, _ = fuse(capture, root)
    assert_same(module, root, IMAGE)
    other = transfer(module.conv)
    assert other not in packed._packed
    other._parameters = dict(other._parameters)  # copy.copy leaves them with both.
    other.weight = nn.Parameter(other.weight.detach() * 3, requires_grad=False)
    with torch.no_grad():
        expected = torch.relu(F.conv2d(IMAGE, root.conv.weight * 3, root.conv.bias, padding=1))
        torch.testing.assert_close(other(IMAGE), expected, rtol=1e-5, atol=1e-5)

    assert_same(module, root, IMAGE)


def test_the_module_can_be_copied_traced_again_interpreted_and_stored(capture, tmp_path):
    def program(m, x):
        value = torch.relu(m.one(x))
        return torch.relu(m.two(value) + value)

    root = settled(OneInput(program, one=nn.Conv2d(4, 4, 3, padding=1), two=conv()))
    module, _ = fuse(capture, root)
    fxplug.save(module, tmp_path / "m.fxplug")
    module.to_folder(tmp_path / "folder", "Folder")
    loaded = fxplug.load(tmp_path / "m.fxplug")
    again = fxplug.symbolic_trace(module)

    assert repr(loaded.two) == repr(module.two)
    assert [node.op for node in again.graph.nodes] == [node.op for node in module.graph.nodes]
    for other in (
        loaded,
        again,
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        Interpreter(module).run,
    ):
        assert_same(other, root, IMAGE)


def test_threads_share_a_module(capture):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv()))
    module, _ = fuse(capture, root)
    with torch.no_grad():
        expected = root(IMAGE)
    results, barrier = [], threading.Barrier(8)

    def work():
        with torch.no_grad():
            barrier.wait()
            results.extend(module(IMAGE) for _ in range(5))

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert len(results) == 40
    for value in results:
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)


def test_repr_says_what_is_done(capture):
    root = settled(TwoInputs(lambda m, x, y: torch.relu(m.conv(x) + y), conv=conv()))
    module, _ = fuse(capture, root)

    assert repr(module.conv) == (
        "FusedConv2d(4, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, bias=True, "
        "activation='relu', add=True, layout='input')"
    )


def test_what_was_not_prepared_is_refused():
    with pytest.raises(fxplug.FxplugError, match=r"Cannot fuse 'rel' with a layer\. Did you mean 'relu'"):
        FusedConv2d(conv(), "rel")
    with pytest.raises(fxplug.FxplugError, match="with two arguments: it was made with add=False"):
        FusedConv2d(conv(), "relu")(IMAGE, IMAGE)
    with pytest.raises(fxplug.FxplugError, match="with one argument: it was made with add=True"):
        FusedConv2d(conv(), "relu", add=True)(IMAGE)


def test_multiply_adds_are_counted_as_those_of_the_layer(capture):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv()))
    module, _ = fuse(capture, root)

    found = fxplug.cost(module, (IMAGE,))

    assert found.multiply_adds == fxplug.cost(root, (IMAGE,)).multiply_adds > 0
    assert found.unknown == ()


# -- where oneDNN is not used


def autocast(module, x):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return module(x)


def vmapped(module, x):
    with torch.no_grad():
        return torch.vmap(module)(x[None])


def forward_mode(module, x):
    with torch.no_grad():
        return torch.func.jvp(module, (x,), (torch.ones_like(x),))


def traced_by_torchscript(module, x):
    with torch.no_grad():
        graph = torch.jit.trace(module, x, check_trace=False).inlined_graph
        return [
            node.kind() for node in graph.nodes() if "convolution" in node.kind() or "relu" in node.kind()
        ]


def without_onednn(module, x):
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        return module(x)


def in_double(module, x):
    with torch.no_grad():
        return copy.deepcopy(module).double()(x.double())


def of_no_images(module, x):
    with torch.no_grad():
        return module(x[:0])


def without_batch(module, x):
    with torch.no_grad():
        return module(x[0])


def of_a_subclass(module, x):
    class Other(torch.Tensor):
        pass

    with torch.no_grad():
        return module(x.as_subclass(Other)).as_subclass(torch.Tensor)


def on_fake_tensors(module, x):
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        return module(mode.from_tensor(x)).shape


ELSEWHERE = [
    *(autocast, vmapped, forward_mode, traced_by_torchscript, without_onednn, in_double, of_no_images),
    *(without_batch, of_a_subclass, on_fake_tensors),
]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:TF32 acceleration:UserWarning")
@pytest.mark.parametrize("run", ELSEWHERE)
def test_elsewhere_the_original_calls_are_made(capture, monkeypatch, run):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv()))
    module, _ = fuse(capture, root)
    calls = used_onednn(monkeypatch)

    expected, found = run(root, IMAGE), run(module, IMAGE)
    if isinstance(expected, list):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert calls == []


@pytest.mark.parametrize("of", ["input", "weight", "bias", "other"])
def test_gradients_are_those_of_the_original(capture, monkeypatch, of):
    root = settled(TwoInputs(lambda m, x, y: torch.relu(m.conv(x) + y), conv=conv()))
    module, _ = fuse(capture, copy.deepcopy(root))
    calls = used_onednn(monkeypatch)
    gradients = []
    for model in (root, module):
        x, y = IMAGE.clone(), IMAGE.flip(0)
        wanted = {"input": x, "other": y, "weight": model.conv.weight, "bias": model.conv.bias}[of]
        wanted.requires_grad_()
        model(x, y).square().sum().backward()
        gradients.append(wanted.grad)

    assert calls == []
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_parameters_that_train_are_no_obstacle_without_gradients(capture, monkeypatch, guard):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv()), trains=True)
    module, _ = fuse(capture, root)
    calls = used_onednn(monkeypatch)
    with guard():
        torch.testing.assert_close(module(IMAGE), root(IMAGE), rtol=1e-5, atol=1e-5)

    assert len(calls) == 1


def test_weights_whose_writes_torch_does_not_count_are_not_packed(capture, monkeypatch):
    with torch.inference_mode():
        root = OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv()).eval()
    module, _ = fuse(capture, root)
    calls = used_onednn(monkeypatch)
    for _ in range(2):
        with torch.inference_mode():
            torch.testing.assert_close(module(IMAGE), root(IMAGE))
            root.conv.weight.mul_(2)

    assert calls == []


@pytest.mark.parametrize("x", [wave(2, 3, 9, 8), wave(2, 4, 1, 1), wave(4, 9), IMAGE.double()], ids=str)
def test_inputs_that_do_not_fit_fail_as_they_would(capture, x):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=nn.Conv2d(4, 4, 3)))
    module, _ = fuse(capture, root)
    with torch.no_grad():
        with pytest.raises(RuntimeError) as expected:
            root(x)
        with pytest.raises(RuntimeError) as found:
            module(x)

    assert str(found.value) == str(expected.value)


def test_small_linear_layers_and_single_rows_are_left_to_the_original_calls(capture, monkeypatch):
    root = settled(OneInput(lambda m, x: torch.relu(m.layer(x)), layer=nn.Linear(512, 256)))
    module, _ = fuse(capture, root)
    calls = used_onednn(monkeypatch)
    for x in (ROWS[:1], ROWS[0], ROWS[:2], ROWS[:0], wave(2, 0, 512)):
        assert_same(module, root, x)

    assert calls == []


def test_without_usable_operators_nothing_is_done(capture, monkeypatch):
    monkeypatch.setattr(
        "fxplug.passes.onednn_fuse.onednn_fault", lambda: "what Conv2d with relu computes is wrong"
    )
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv()))
    module, result = fuse(capture, root)

    assert not result.modified
    assert result.summary == "nothing done: oneDNN cannot be used, what Conv2d with relu computes is wrong"
    assert type(module.conv) is nn.Conv2d


def test_operators_that_compute_something_else_are_found(monkeypatch):
    found = fused.onednn_operators()

    def spoilt(call):
        return lambda *args: call(*args) + 1e-3

    for name in found._fields[:5]:
        other = found._replace(**{name: spoilt(getattr(found, name))})
        with torch.no_grad():
            assert fused._wrong_operator(other), name

    def missing():
        raise AttributeError("no _convolution_pointwise")

    monkeypatch.setattr(fused, "onednn_operators", missing)
    assert fused.onednn_fault.__wrapped__() == "they fail here: no _convolution_pointwise"


# -- memory


def test_values_have_the_strides_that_a_view_needs(capture):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)).view(2, -1), conv=conv()))
    module, _ = fuse(capture, root)

    assert_same(module, root, IMAGE)
    with torch.no_grad():
        assert fuse(capture, settled(OneInput(lambda m, x: m.conv(x), conv=conv())))[0](IMAGE).is_contiguous()


def test_values_between_fused_calls_keep_their_channels_last(capture):
    def program(m, x):
        value = m.pool(torch.relu(m.one(x)))
        return F.avg_pool2d(torch.relu(m.two(value)), 2).view(2, -1)

    root = settled(OneInput(program, one=conv(), two=conv(), pool=nn.MaxPool2d(2)))
    module, _ = fuse(capture, root)

    assert (module.one.layout, module.two.layout) == ("any", "contiguous")
    assert_same(module, root, IMAGE)


def test_images_with_channels_last_stay_so(capture):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv()))
    module, _ = fuse(capture, root)
    with torch.no_grad():
        result = module(IMAGE.contiguous(memory_format=torch.channels_last))

    assert result.is_contiguous(memory_format=torch.channels_last)


ODD = {
    "transposed": IMAGE.transpose(2, 3),
    "expanded": wave(1, 4, 1, 8).expand(2, 4, 9, 8),
    "every other": wave(2, 8, 18, 8)[:, ::2, ::2],
    "at an offset": wave(3, 4, 9, 8)[1:],
    "one pixel": wave(2, 4, 1, 1),
    "not a number": torch.full((2, 4, 5, 5), float("inf")),
}


@pytest.mark.parametrize("x", ODD.values(), ids=ODD)
def test_odd_inputs(capture, x):
    root = settled(OneInput(lambda m, x: F.leaky_relu(m.conv(x)), conv=conv()))
    module, _ = fuse(capture, root)
    with torch.no_grad():
        torch.testing.assert_close(module(x), root(x), rtol=1e-5, atol=1e-5, equal_nan=True)


def significant(tensor):
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


@pytest.mark.parametrize("weight_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("x", ODD.values(), ids=ODD)
def test_values_have_the_strides_of_the_plain_call(capture, x, weight_format):
    inputs = [
        x,
        x.contiguous(memory_format=torch.channels_last),
        x.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1),
    ]
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv()))
    root.conv.to(memory_format=weight_format)
    module, _ = fuse(capture, root)
    with torch.no_grad():
        for given in (*inputs, inputs[1][:, :, :1]):
            assert significant(module(given)) == significant(root(given))


def written_through_a_copy_that_is_none(m, x):
    value = torch.relu(m.one(x.transpose(2, 3)))
    value.reshape(2, -1).add_(1)
    return value * 2


def written_behind_channels_last(m, x):
    value = m.two(torch.relu(m.one(x.contiguous(memory_format=torch.channels_last))))
    value.permute(0, 2, 3, 1).reshape(-1, 4).add_(1)
    return value * 2


def written_after_another_write(m, x):
    value = m.two(torch.relu(m.one(x.contiguous(memory_format=torch.channels_last)))).add_(1)
    value.permute(0, 2, 3, 1).reshape(-1, 4).add_(1)
    return value * 2


@pytest.mark.parametrize(
    "program",
    [written_through_a_copy_that_is_none, written_behind_channels_last, written_after_another_write],
)
def test_what_is_written_through_a_view_is_not_lost(capture, program):
    root = settled(OneInput(program, one=conv(), two=conv()))
    module, _ = fuse(capture, root)

    assert fused_parts(module)
    assert_same(module, root, IMAGE)


def test_what_hears_of_operators_hears_of_the_original_ones(capture):
    root = settled(OneInput(lambda m, x: torch.relu(m.conv(x)), conv=conv()))
    module, _ = fuse(capture, root)
    counts = []
    for called in (root, module):
        assert_same(module, root, IMAGE)  # The weight is packed.
        with torch.no_grad():
            graph = make_fx(called)(IMAGE).graph
            with FlopCounterMode(display=False) as counter:
                called(IMAGE)
        counts.append((counter.get_total_flops(), [str(node.target) for node in graph.nodes if node.args]))

    assert counts[0] == counts[1]
    assert counts[0][0] > 0


APART = {
    "pixels": lambda x: x.flatten(2).view(2, -1),
    "batch and channels": lambda x: x.flatten(0, 1).view(-1),
    "reshaped": lambda x: x.reshape(2, 4, -1).view(-1),
    "channels of one image": lambda x: x[:1].reshape(4, -1).view(-1),
    "pixels behind which more follows": lambda x: torch.relu(x.flatten(2)).view(-1),
    "a module": nn.Flatten(2),
}
TOGETHER = {
    "flatten": lambda x: x.flatten(1),
    "flatten all": lambda x: x.flatten(),
    "reshape all": lambda x: x.reshape(-1),
    "size of a dimension": lambda x: x.reshape(x.size(0), -1),
    "size": lambda x: x.reshape(x.size()[0], -1),
    "shape": lambda x: x.reshape(x.shape[0], -1),
}


@pytest.mark.parametrize("view", APART.values(), ids=APART)
def test_a_view_of_what_keeps_the_channels_apart_is_in_the_usual_order(capture, view):
    root = settled(OneInput(lambda m, x: view(torch.relu(m.conv(x))), conv=conv()))
    module, _ = fuse(capture, root)

    assert_same(module, root, IMAGE)
    with torch.no_grad():
        assert module(IMAGE).is_contiguous()


@pytest.mark.parametrize("rows", TOGETHER.values(), ids=TOGETHER)
def test_rows_of_an_image_are_made_of_any_order(capture, rows):
    root = settled(OneInput(lambda m, x: rows(torch.relu(m.conv(x))).view(-1), conv=conv()))
    module, _ = fuse(capture, root)

    assert module.conv.layout == "any"
    assert_same(module, root, IMAGE)


def residual(m, x):
    value = torch.relu(m.one(x))
    inner = torch.relu(m.two(value))
    return torch.relu(m.three(inner) + value) * 2


def test_a_value_that_is_read_for_the_last_time_is_written_over(capture):
    root = settled(OneInput(residual, one=conv(), two=conv(), three=conv()))
    module, _ = fuse(capture, root)
    node = module.graph.find_nodes(op="call_module", target="three")[0]

    assert module.three.reuse
    assert effects.effect_of(node, module).writes == {1}
    assert_same(module, root, IMAGE)
    module, _ = fuse(capture, root, reuse_memory=False)
    assert not module.three.reuse
    assert effects.effect_of(module.graph.find_nodes(op="call_module", target="three")[0], module).is_pure


def read_later(m, x):
    value = torch.relu(m.one(x))
    return torch.relu(m.two(value) + value) + value


def returned(m, x):
    value = torch.relu(m.one(x))
    return torch.relu(m.two(value) + value), value


def viewed(m, x):
    value = torch.relu(m.one(x))
    turned = value.transpose(2, 3)
    return torch.relu(m.two(value) + value).transpose(2, 3) + turned


def of_the_input(m, x):
    return torch.relu(m.two(m.one(x)) + x)


def a_view_of_the_input(m, x):
    return torch.relu(m.two(m.one(x)) + x.view(2, 4, 9, 8))


def what_may_be_the_same_value(m, x):
    value = m.one(x)
    return (
        torch.relu(m.two(value) + value) if False else m.two(m.one(value)) + F.dropout(value, training=False)
    )


@pytest.mark.parametrize(
    "program", [read_later, returned, viewed, of_the_input, a_view_of_the_input, what_may_be_the_same_value]
)
def test_what_is_read_elsewhere_is_not_written_over(capture, program):
    root = settled(OneInput(program, one=conv(), two=conv()))
    module, _ = fuse(capture, root)

    assert not module.two.reuse
    x = IMAGE.clone()
    assert_same(module, root, x)
    with torch.no_grad():
        module(x)
    assert torch.equal(x, IMAGE)


def test_a_layer_whose_own_input_is_added_writes_over_nothing(capture):
    def program(m, x):
        value = torch.relu(m.one(x))
        return torch.relu(m.two(value) + value)

    root = settled(OneInput(program, one=conv(), two=conv()))
    module, _ = fuse(capture, root)

    assert module.two.add
    assert not module.two.reuse
    assert_same(module, root, IMAGE)


def test_chains_of_blocks(capture):
    def program(m, x):
        value = torch.relu(m.stem(x))
        for one, two in ((m.a, m.b), (m.c, m.d), (m.e, m.f)):
            value = torch.relu(two(torch.relu(one(value))) + value)
        return value.mean((2, 3))

    root = settled(OneInput(program, stem=conv(), **{name: conv() for name in "abcdef"}))
    module, _ = fuse(capture, root)

    assert [getattr(module, name).reuse for name in "bdf"] == [True] * 3
    assert_same(module, root, IMAGE)


# -- as a pass of a pipeline


def pipeline(**settings):
    return Pipeline("trial", [PipelineStep("onednn-fuse", RECORD)], **settings)


def test_a_second_run_changes_nothing(capture):
    root = settled(OneInput(residual, one=conv(), two=conv(), three=conv()))
    module, result = fuse(capture, root)
    code, text = module.code, repr(module)

    assert result.modified
    again = OneDnnFuse().run(module, CONTEXT)
    assert not again.modified
    assert again.summary == "nothing to fuse"
    assert (module.code, repr(module)) == (code, text)


@pytest.mark.parametrize("level", ["numeric", "gradient", "paranoid"])
def test_the_pass_passes_every_verification(capture, level):
    root = settled(OneInput(residual, one=conv(), two=conv(), three=conv()), trains=True)
    (report,) = pipeline(verify=level).run(capture(root), (IMAGE,))

    assert report.result.modified
    assert report.verified.startswith(level)


def test_a_module_is_as_before_when_the_pass_is_undone(capture, monkeypatch):
    root = settled(OneInput(residual, one=conv(), two=conv(), three=conv()))
    module = capture(root)
    code, parts = module.code, dict(module.named_modules())
    monkeypatch.setattr(FusedConv2d, "compose", lambda self, x, other=None: x * 0)
    monkeypatch.setattr(FusedConv2d, "apply_onednn", lambda self, operators, x, other=None: x * 0)
    (report,) = pipeline(verify="numeric", on_error="rollback").run(module, (IMAGE,))

    assert report.error
    assert module.code == code
    assert dict(module.named_modules()) == parts
    assert type(module.one) is nn.Conv2d


def test_origins_of_all_calls_are_kept(capture):
    root = settled(TwoInputs(lambda m, x, y: torch.relu(m.conv(x) + y), conv=conv()))
    module = capture(root)
    expected = {
        id(origin) for node in module.graph.nodes if node.op.startswith("call_") for origin in node.origins
    }
    OneDnnFuse().run(module, CONTEXT)
    (node,) = module.graph.find_nodes(op="call_module")

    assert {id(origin) for origin in node.origins} == expected


def test_each_rewrite_can_be_refused(capture, monkeypatch):
    root = settled(OneInput(residual, one=conv(), two=conv(), three=conv()))
    module = capture(root)
    asked = []

    def allows(self, node, what):
        asked.append((str(node.target), what))
        return node.target != "two"

    monkeypatch.setattr(PassContext, "allows", allows)
    OneDnnFuse().run(module, CONTEXT)

    assert asked == [("one", "fuse"), ("two", "fuse"), ("three", "fuse")]
    assert [type(part) is FusedConv2d for part in (module.one, module.two, module.three)] == [
        True,
        False,
        True,
    ]
    assert_same(module, root, IMAGE)


def test_optimize_does_it_by_default_and_leaves_it_to_a_backend():
    root = settled(
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU(), nn.Flatten())
    )
    result = fxplug.optimize(root, (IMAGE,), measure=False, verify="numeric")

    assert [report.name for report in result.passes] == [
        *("dead-code", "remove-identities", "fuse-conv-bn", "onednn-fuse", "propagate-shapes"),
    ]
    assert [node.op for node in result.graph_module.graph.nodes] == [
        "placeholder",
        *["call_module"] * 2,
        "output",
    ]
    assert result.check.max_abs_error < 1e-5
    lowered = fxplug.optimize(root, (IMAGE,), backend="eager", measure=False)
    assert "onednn-fuse" not in [report.name for report in lowered.passes]
    named = fxplug.optimize(root, (IMAGE,), backend="eager", passes=["onednn-fuse"], measure=False)
    assert [report.name for report in named.passes] == ["onednn-fuse"]


def test_new_weights_of_the_original_are_loaded_into_the_fused_module():
    root = settled(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    module = fxplug.optimize(root, (IMAGE,), measure=False).graph_module
    with torch.no_grad():
        module(IMAGE)
    other = copy.deepcopy(root)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.25)
    fxplug.load_original_state_dict(module, other.state_dict())

    assert_same(module, other, IMAGE)


def test_random_networks(capture):
    chance = random.Random(7)
    for seed in range(40):
        root = settled(random_network(chance))
        module, _ = fuse(capture, root)
        given = IMAGE.clone()
        assert_same(module, root, given)
        with torch.no_grad():
            module(given)
        assert torch.equal(given, IMAGE), seed


def random_network(chance):
    """Return a network of convolutions, sums, activations, in place or not, and pooling, in random order."""
    steps = [chance.choice(STEPS) for _ in range(chance.randint(2, 9))]
    choices = [chance.random() for _ in range(3 * len(steps))]
    needs_order = chance.random() < 0.3
    parts = {f"conv{number}": conv(groups=chance.choice([1, 2, 4])) for number in range(4)}

    def program(m, x):
        numbers = iter(choices)
        pool = [x * 1]

        def pick(values):
            return values[int(next(numbers) * len(values))]

        for step in steps:
            pool.append(step(m, pick, pool))
        middle = pool[len(pool) // 2]
        return pool[-1].flatten(1), middle.view(2, -1) if needs_order else middle.flatten(1)

    return OneInput(program, **parts)


STEPS = [
    *(lambda m, pick, pool: getattr(m, f"conv{pick(range(4))}")(pick(pool)),) * 3,
    *(lambda m, pick, pool: torch.relu(getattr(m, f"conv{pick(range(4))}")(pool[-1]) + pick(pool)),) * 3,
    lambda m, pick, pool: torch.relu(pool[-1]),
    lambda m, pick, pool: torch.relu_(pool[-1]),
    lambda m, pick, pool: torch.relu_(pick(pool)),
    lambda m, pick, pool: pool[-1] + pick(pool),
    lambda m, pick, pool: pick(pool) + pool[-1],
    lambda m, pick, pool: operator.iadd(pool[-1], pick(pool)),
    lambda m, pick, pool: F.max_pool2d(pool[-1], 3, 1, 1),
    lambda m, pick, pool: pool[-1].flatten(1).view(2, 4, 9, 8),
    lambda m, pick, pool: F.hardswish(pool[-1]),
]


@pytest.mark.parametrize("name", ["stride", "padding", "dilation"])
def test_settings_that_are_lists_are_those_of_the_layer(name):
    conv = nn.Conv2d(4, 6, 3)
    setattr(conv, name, [2, 1])
    layer = FusedConv2d(conv, "relu").eval()

    with torch.no_grad():
        torch.testing.assert_close(layer(IMAGE), torch.relu(conv(IMAGE)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_left_to_the_original_calls():
    linear = nn.Linear(8, 4)
    rows = torch.nested.nested_tensor([wave(2, 8), wave(3, 8)])
    layer = fused.FusedLinear(linear, "relu").eval()

    with torch.no_grad():
        found, expected = layer(rows), torch.relu(linear(rows))
    for one, other in zip(found.unbind(), expected.unbind(), strict=True):
        torch.testing.assert_close(one, other)
