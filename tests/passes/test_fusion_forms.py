"""Batch norms behind every kind of convolution and linear layer, as modules, as functions, and as both."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.ir import RegionEntry
from fxplug.passes import BUILTIN_PASSES, FuseConvBN, PassContext, Pipeline, PipelineStep, fold_batch_norm

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
RECORD = next(record for record in BUILTIN_PASSES if record.name == "fuse-conv-bn")
FORMS = ["module", "function", "conv as function", "norm as function", "torch.batch_norm"]


def lively(root, seed=0):
    """Give every batch norm statistics and weights that matter, and switch to evaluation."""
    generator = torch.Generator().manual_seed(seed)
    for part in root.modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            for name, low, high in (
                ("weight", -2, 2),
                ("bias", -1, 1),
                ("running_mean", -1, 1),
                ("running_var", 0.5, 3),
            ):
                value = getattr(part, name)
                if value is not None:
                    value.data.uniform_(low, high, generator=generator)
    return root.eval()


def call_function(conv, x):
    """Compute what a module does by the function of the same operator."""
    if isinstance(conv, nn.Linear):
        return F.linear(x, conv.weight, conv.bias)
    rank = len(conv.kernel_size)
    if conv.transposed:
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
        return function(
            x,
            conv.weight,
            conv.bias,
            conv.stride,
            conv.padding,
            conv.output_padding,
            conv.groups,
            conv.dilation,
        )
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return function(
        x, conv.weight, bias=conv.bias, stride=conv.stride, padding=conv.padding,
        dilation=conv.dilation, groups=conv.groups,
    )  # fmt: skip


def call_norm(norm, x, form):
    if form in {"function", "norm as function"}:
        return F.batch_norm(
            x, norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.training, 0.1, norm.eps
        )
    if form == "torch.batch_norm":
        return torch.batch_norm(
            x, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.training, 0.1, norm.eps, True
        )
    return norm(x)


class Pair(nn.Module):
    """A layer and a batch norm, called in one of the forms."""

    def __init__(self, layer, norm, form="module"):
        super().__init__()
        self.layer, self.norm, self.form = layer, norm, form

    def forward(self, x):
        by_function = self.form in {"function", "conv as function"}
        y = call_function(self.layer, x) if by_function else self.layer(x)
        return call_norm(self.norm, y, self.form)


def fused(model, *inputs, verify="numeric"):
    """Fuse a capture of `model` in a pipeline, with the inputs as examples, and check all that always holds."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    module = fxplug.symbolic_trace(model)
    (report,) = Pipeline("test", [PipelineStep("fuse-conv-bn", RECORD)], verify=verify).run(module, inputs)
    module.graph.lint()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    again = FuseConvBN().run(module, PassContext(inputs, module=module))
    assert not again.modified
    assert report.result.modified is (report.result.details["folded"] > 0)
    return module, report.result


def norms_left(module):
    norms = (F.batch_norm, torch.batch_norm)
    kept = [node for node in module.graph.nodes if any(node.target is function for function in norms)]
    return kept + [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]


def random_layer(rng, kind, rank):
    """Return a layer of random settings and an input for it."""
    if kind == "linear":
        wide, narrow = rng.randint(1, 7), rng.randint(1, 7)
        return nn.Linear(wide, narrow, bias=rng.random() < 0.5), torch.randn(rng.randint(1, 4), wide)
    groups = rng.choice([1, 1, 2, 3])
    channels, wide = groups * rng.randint(1, 3), groups * rng.randint(1, 3)
    stride = rng.choice([1, 2, 3])
    settings = {
        "kernel_size": tuple(rng.randint(1, 3) for _ in range(rank)),
        "stride": stride,
        "dilation": rng.choice([1, 2]),
        "padding": rng.choice([0, 1]),
        "groups": groups,
        "bias": rng.random() < 0.5,
    }
    if kind == "transposed":
        settings["output_padding"] = rng.randint(0, stride - 1)
        return TRANSPOSED[rank](channels, wide, **settings), torch.randn(2, channels, *[6] * rank)
    if rng.random() < 0.3:
        settings["padding_mode"] = rng.choice(["reflect", "replicate", "circular"])
    return CONVS[rank](channels, wide, **settings), torch.randn(2, channels, *[8] * rank)


def features_of(layer):
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kind", "rank"), [("linear", 1), *[(k, r) for k in ("conv", "transposed") for r in (1, 2, 3)]]
)
def test_random_layers_compute_the_same(kind, rank, form):
    for seed in range(3):
        rng = random.Random(f"{seed} {kind} {rank}")
        torch.manual_seed(seed)
        layer, x = random_layer(rng, kind, rank)
        if form in {"function", "conv as function"} and getattr(layer, "padding_mode", "zeros") != "zeros":
            layer.padding_mode = "zeros"
        norm = NORMS[rank](features_of(layer), affine=rng.random() < 0.7, eps=rng.choice([1e-5, 0.3]))
        model = lively(Pair(layer, norm, form), seed).double()
        x = x.double()

        module, result = fused(model, x, verify="numeric" if seed else "paranoid")

        assert result.details == {"folded": 1, "in_training": 0}, seed
        assert not norms_left(module)
        torch.testing.assert_close(module(x), model(x), rtol=1e-10, atol=1e-10)
        model.float()
        single = fxplug.symbolic_trace(model)
        assert FuseConvBN().run(single, PassContext((x.float(),), module=single)).modified
        torch.testing.assert_close(single(x.float()), model(x.float()), rtol=1e-5, atol=1e-5)


class Stack(nn.Module):
    """A random chain of layers, batch norms and activations, some of them used twice."""

    def __init__(self, rng):
        super().__init__()
        self.steps = []
        channels = 4
        for number in range(rng.randint(3, 7)):
            kind = rng.choice(["conv", "conv", "transposed", "linear"])
            wide = rng.choice([2, 4])
            if kind == "linear":
                layer = nn.Linear(channels, wide)
            else:
                layer = {"conv": nn.Conv1d, "transposed": nn.ConvTranspose1d}[kind](
                    channels, wide, 3, padding=1, groups=rng.choice([1, 2]), bias=rng.random() < 0.5
                )
            setattr(self, f"layer{number}", layer)
            setattr(self, f"norm{number}", nn.BatchNorm1d(wide))
            between = rng.choice(["", "", "", "relu", "twice"])
            self.steps.append((kind, number, rng.choice(FORMS), between))
            channels = wide

    def forward(self, x):
        for kind, number, form, between in self.steps:
            layer, norm = getattr(self, f"layer{number}"), getattr(self, f"norm{number}")
            if kind == "linear":
                x = x.mean(2)
            by_function = form in {"function", "conv as function"}
            y = call_function(layer, x) if by_function else layer(x)
            z = torch.relu(y) if between == "relu" else y
            z = call_norm(norm, z, form)
            x = z + y if between == "twice" else z
            if kind == "linear":
                x = x.unsqueeze(2).expand(-1, -1, 5)
        return x


@pytest.mark.parametrize("seed", range(20))
def test_random_stacks_compute_the_same(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model = lively(Stack(rng), seed).double()
    x = torch.randn(3, 4, 5, dtype=torch.float64)

    module, result = fused(model, x)

    assert result.details["folded"] == sum(between == "" for *_, between in model.steps)
    torch.testing.assert_close(module(x), model(x), rtol=1e-10, atol=1e-10)


# -- the same thing against torch's own helpers


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["conv", "transposed"])
def test_weights_are_those_of_torch(kind, rank):
    layer = {"conv": CONVS, "transposed": TRANSPOSED}[kind][rank](4, 6, 3)
    root = lively(Pair(layer, NORMS[rank](6)))
    ours = fold_batch_norm(root.layer, root.norm)
    theirs = torch.nn.utils.fusion.fuse_conv_bn_eval(
        copy.deepcopy(root.layer), copy.deepcopy(root.norm), transpose=kind == "transposed"
    )
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)


def test_weights_of_a_linear_layer_are_those_of_torch():
    root = lively(Pair(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    ours = fold_batch_norm(root.layer, root.norm)
    theirs = torch.nn.utils.fusion.fuse_linear_bn_eval(copy.deepcopy(root.layer), copy.deepcopy(root.norm))
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)


# -- how many dimensions there are


def square_linear():
    return lively(Pair(nn.Linear(4, 4), nn.BatchNorm1d(4)))


def test_a_batch_norm_over_sequences_is_not_folded_into_a_linear_layer():
    model, x = square_linear(), torch.randn(2, 4, 4)
    module, result = fused(model, x)

    assert result.details["folded"] == 0
    torch.testing.assert_close(module(x), model(x), rtol=0, atol=0)


def test_linear_layers_are_left_alone_where_nothing_tells_how_many_dimensions_there_are():
    module = fxplug.symbolic_trace(square_linear())
    result = FuseConvBN().run(module, PassContext())

    assert result.details == {"folded": 0, "in_training": 0, "of_unknown_rank": 1}
    assert result.summary == (
        "no pair to fold; 1 behind linear layers left alone, since it is not known whether their input has two "
        "dimensions (give example inputs)"
    )
    x = torch.randn(2, 4, 4)
    torch.testing.assert_close(module(x), square_linear_like(module)(x))


def square_linear_like(module):
    return lambda x: module.norm(module.layer(x))


MATRICES = {
    "flatten": lambda x: x.flatten(1),
    "torch.flatten": lambda x: torch.flatten(x, 1),
    "view": lambda x: x.view(x.size(0), -1),
    "view of a tuple": lambda x: x.view((2, -1)),
    "reshape": lambda x: torch.reshape(x, (x.shape[0], 12)),
    "Flatten": nn.Flatten(),
    "activations": lambda x: F.dropout(torch.relu(x.flatten(1)).sigmoid(), 0.5, False),
}
OTHERS = {
    "nothing": lambda x: x,
    "flattened in part": lambda x: x.flatten(2),
    "flattened up to there": lambda x: x.flatten(1, 2),
    "view of another": lambda x: x.view(2, 3, 4),
    "sum": lambda x: x.sum(1),
}


class Shaped(Pair):
    def __init__(self, shape, width):
        super().__init__(nn.Linear(width, 5), nn.BatchNorm1d(5))
        self.shape = shape

    def forward(self, x):
        return super().forward(self.shape(x))


@pytest.mark.parametrize("name", [*MATRICES, *OTHERS])
def test_a_program_that_makes_a_matrix_needs_no_example(name):
    shape = {**MATRICES, **OTHERS}[name]
    model = lively(Shaped(shape, 12 if name in MATRICES else 4))
    module = fxplug.symbolic_trace(model)
    result = FuseConvBN().run(module, PassContext())

    assert result.details["folded"] == (name in MATRICES)
    if name in MATRICES:
        x = torch.randn(2, 3, 4)
        torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)


def test_notes_on_nodes_tell_how_many_dimensions_there_are():
    for x, folded in ((torch.randn(3, 4), 1), (torch.randn(3, 4, 4), 0)):
        module = fxplug.symbolic_trace(square_linear())
        fxplug.analyze.propagate_shapes(module, x)
        assert FuseConvBN().run(module, PassContext()).details["folded"] == folded


@pytest.mark.parametrize("form", ["module", "function", "norm as function"])
def test_an_input_without_a_batch_is_seen_where_there_is_an_example(form):
    model = lively(Pair(nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6), form))
    x = torch.randn(3, 8)  # What comes out has six channels, and is six long.
    module, result = fused(model, x)

    assert result.details["folded"] == 0
    torch.testing.assert_close(module(x), model(x), rtol=0, atol=0)


def test_an_example_on_which_the_program_fails_tells_nothing():
    model = square_linear()
    module = fxplug.symbolic_trace(model)
    context = PassContext((torch.randn(2, 9),), module=module)
    assert FuseConvBN().run(module, context).details["folded"] == 0


# -- batch norms of other kinds


def test_synchronised_batch_norm_in_evaluation_is_folded():
    model = lively(Pair(nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4)))
    x = torch.randn(2, 3, 6, 6)
    module, result = fused(model, x)

    assert result.details["folded"] == 1
    torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)


def test_lazy_modules_are_left_alone_until_they_have_weights():
    model = Pair(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()).eval()
    module = fxplug.symbolic_trace(model)
    assert FuseConvBN().run(module, PassContext()).details["folded"] == 0
    x = torch.randn(2, 3, 6, 6)
    model(x)
    lively(model)
    module, result = fused(model, x)
    assert result.details["folded"] == 1


# -- what is left alone


def no_statistics(m, x):
    return F.batch_norm(F.conv2d(x, m.layer.weight), None, None, training=True)


def undecided(m, x):
    y = F.conv2d(x, m.layer.weight)
    return F.batch_norm(y, m.norm.running_mean, m.norm.running_var, training=x.sum() > 1e9)


def computed_weight(m, x):
    y = F.conv2d(x, m.layer.weight * 2)
    return F.batch_norm(y, m.norm.running_mean, m.norm.running_var)


def computed_gain(m, x):
    y = F.conv2d(x, m.layer.weight)
    return F.batch_norm(y, m.norm.running_mean, m.norm.running_var, m.norm.weight.abs())


def computed_bias(m, x):
    return m.norm(F.conv2d(x, m.layer.weight, m.layer.bias + 1))


def used_between(m, x):
    y = F.conv2d(x, m.layer.weight)
    return F.batch_norm(y, m.norm.running_mean, m.norm.running_var) + y


def written_between(m, x):
    y = F.conv2d(x, m.layer.weight)
    y.mul_(3)
    return m.norm(y)


def written_statistics(m, x):
    z = m.norm(m.layer(x))
    m.norm.running_mean.add_(1)
    return z


def written_under_another_name(m, x):
    z = m.norm(m.layer(x))
    m.tied.mul_(2)
    return z


def updated_by_another_batch_norm(m, x):
    return m.norm(m.layer(m.other(x)))


def updated_by_a_function(m, x):
    y = F.batch_norm(x, m.norm.running_mean, m.norm.running_var, training=True)
    return m.norm(m.layer(y))


def written_weight(m, x):
    z = F.conv2d(x, m.kernel)
    m.kernel.add_(1)
    return m.norm(z)


def regions(m, x):
    with torch.no_grad():
        y = m.layer(x)
    return m.norm(y)


LEFT = [
    no_statistics,
    computed_weight,
    computed_gain,
    computed_bias,
    used_between,
    written_between,
    written_statistics,
    written_under_another_name,
    updated_by_another_batch_norm,
    updated_by_a_function,
    written_weight,
    regions,
]


class Program(nn.Module):
    def __init__(self, program):
        super().__init__()
        self.program = program
        self.layer = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        self.other = nn.BatchNorm2d(3)
        self.register_buffer("tied", self.norm.running_var)
        self.register_buffer("kernel", torch.randn(3, 3, 1, 1))

    def forward(self, x):
        return self.program(self, x)


def make(program):
    torch.manual_seed(0)
    model = lively(Program(program))
    if program is updated_by_another_batch_norm:
        model.other.running_mean = model.norm.running_mean
        model.other.train()
    return model


@pytest.mark.parametrize("program", LEFT, ids=lambda program: program.__name__)
def test_what_cannot_be_folded_is_left_alone(program):
    model = make(program)
    expected = copy.deepcopy(model)
    module = fxplug.symbolic_trace(model)
    text = str(module.graph)
    x = torch.randn(2, 3, 4, 4)
    result = FuseConvBN().run(module, PassContext((x,), module=module))

    assert (result.modified, result.details["folded"], str(module.graph)) == (False, 0, text)
    for _ in range(2):
        torch.testing.assert_close(module(x), expected(x))


def test_a_program_that_decides_whether_it_trains_is_left_alone():
    graph = fxplug.Graph()
    x, flag = graph.placeholder("x"), graph.placeholder("flag")
    y = graph.call_module("layer", (x,))
    mean, variance = (graph.get_attr(f"norm.{name}") for name in ("running_mean", "running_var"))
    graph.output(graph.call_function(F.batch_norm, (y, mean, variance), {"training": flag}))
    module = fxplug.GraphModule(make(regions), graph)

    assert not FuseConvBN().run(module, PassContext()).modified


@pytest.mark.parametrize("form", FORMS)
def test_training_mode_is_refused_in_every_form(form):
    model = Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), form).train()
    module = fxplug.symbolic_trace(model)
    result = FuseConvBN().run(module, PassContext())

    assert not result.modified
    assert result.details == {"folded": 0, "in_training": 1}
    assert "left alone in training mode (call eval() first)" in result.summary


def test_a_frozen_norm_inside_a_model_that_trains_is_left_alone():
    """Its weights would be trained as one, which is something else."""
    model = Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), "function").eval()
    module = fxplug.symbolic_trace(model).train()
    assert FuseConvBN().run(module, PassContext()).details == {"folded": 0, "in_training": 1}


@pytest.mark.parametrize("statistics", [2, 1], ids=["two", "one"])
def test_another_number_of_channels_stays_an_error(statistics):
    model = Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(statistics)).eval()
    module = fxplug.symbolic_trace(model)
    assert not FuseConvBN().run(module, PassContext()).modified
    with pytest.raises(RuntimeError):
        module(torch.ones(1, 3, 2, 2))


# -- dtypes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("statistics", ["same", "single"])
def test_narrow_dtypes_are_kept(dtype, statistics):
    model = lively(Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))).to(dtype)
    if statistics == "single":
        model.norm.float()
    x = torch.randn(2, 3, 4, 4).to(dtype)
    module = fxplug.symbolic_trace(model)

    assert FuseConvBN().run(module, PassContext()).modified
    assert module.layer.weight.dtype == module.layer.bias.dtype == dtype
    torch.testing.assert_close(module(x), model(x), rtol=0.05, atol=0.05)


def test_weights_that_would_not_fit_into_half_precision_are_left_alone():
    model = lively(Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))).half()
    model.norm.weight.data.fill_(6e4)
    model.norm.running_var.fill_(0.0)
    module = fxplug.symbolic_trace(model)
    assert not FuseConvBN().run(module, PassContext()).modified


@pytest.mark.parametrize("change", ["norm to half", "norm to double", "conv to complex"])
def test_mixtures_that_torch_refuses_are_left_alone(change):
    model = lively(Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)))
    if change == "conv to complex":
        model.layer.weight = nn.Parameter(model.layer.weight.detach().to(torch.complex64))
    else:
        model.norm.to(torch.half if "half" in change else torch.double)
    module = fxplug.symbolic_trace(model)
    assert not FuseConvBN().run(module, PassContext()).modified


class Tagged(torch.Tensor):
    """A class of tensors that may compute something else."""


def test_weights_of_a_class_of_their_own_are_left_alone():
    model = lively(Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), "function"))
    del model.layer.weight
    model.layer.weight = torch.randn(4, 3, 1, 1).as_subclass(Tagged)
    module = fxplug.symbolic_trace(model)
    assert not FuseConvBN().run(module, PassContext()).modified


def test_a_model_without_data_is_folded_without_data():
    with torch.device("meta"):
        model = Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
    module = fxplug.symbolic_trace(model)
    assert FuseConvBN().run(module, PassContext()).modified
    assert module.layer.weight.is_meta


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 3, 1, 1)])
def test_batches_of_no_image(shape):
    model, x = lively(Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))), torch.randn(shape)
    module, _ = fused(model, x)
    torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)


# -- sharing, parameters and buffers


class Twice(Pair):
    """One weight, two batch norms."""

    def __init__(self, form):
        super().__init__(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), form)
        self.second = nn.BatchNorm2d(3)

    def forward(self, x):
        y = super().forward(x)
        weight = self.layer.weight.sum()
        by_function = self.form in {"function", "conv as function"}
        z = call_function(self.layer, y) if by_function else self.layer(y)
        return call_norm(self.second, z, self.form) * weight


@pytest.mark.parametrize("form", FORMS)
def test_weights_that_are_used_elsewhere_keep_their_values(form):
    model, x = lively(Twice(form)), torch.randn(2, 3, 4, 4)
    module, result = fused(model, x)

    assert result.details["folded"] == 2
    assert torch.equal(module.layer.weight, model.layer.weight)
    torch.testing.assert_close(module(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_module_inside_of_one_that_is_called_as_a_whole_keeps_its_weights():
    class Leaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return self.inner(x)

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.leaf, self.norm = Leaf(), nn.BatchNorm2d(3)

        def forward(self, x):
            return self.leaf(self.norm(self.leaf.inner(x)))

    class Shallow(fxplug.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, Leaf) or super().is_leaf_module(m, module_qualified_name)

    model, x = lively(Root()), torch.randn(2, 3, 4, 4)
    before = model(x)
    module = fxplug.GraphModule(model, Shallow().trace(model))
    assert FuseConvBN().run(module, PassContext()).details["folded"] == 1
    torch.testing.assert_close(module(x), before, rtol=1e-5, atol=1e-5)
    assert torch.equal(model(x), before)


def test_functions_get_weights_of_their_own_and_old_ones_go():
    model, x = (
        lively(Pair(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), "function")),
        torch.ones(1, 3, 2, 2),
    )
    module, _ = fused(model, x)

    assert list(module.state_dict()) == ["layer_folded.weight", "layer_folded.bias"]
    assert [type(value) for value in module.parameters()] == [nn.Parameter] * 2


class Flat(nn.Module):
    """Weights that lie in the root itself."""

    def __init__(self, *, trains):
        super().__init__()
        values = {"kernel": torch.randn(4, 3, 1, 1), "gain": torch.rand(4)}
        for name, value in values.items():
            if trains:
                setattr(self, name, nn.Parameter(value, requires_grad=name == "gain"))
            else:
                self.register_buffer(name, value)
        self.register_buffer("mean", torch.randn(4), persistent=False)
        self.register_buffer("variance", torch.rand(4))
        self.kernel_folded = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x):
        y = F.batch_norm(F.conv2d(x, self.kernel), self.mean, self.variance, weight=self.gain)
        return y * self.kernel_folded


@pytest.mark.parametrize("trains", [True, False])
def test_weights_in_the_root(trains):
    model, x = Flat(trains=trains).eval(), torch.randn(2, 3, 4, 4)
    module, _ = fused(model, x)

    torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)
    folded = [name for name, _ in module.named_parameters() if name.startswith("kernel_folded_1")]
    assert folded == (["kernel_folded_1.weight", "kernel_folded_1.bias"] if trains else [])
    assert all(parameter.requires_grad for parameter in module.parameters())
    names = {"kernel_folded", "kernel_folded_1.weight", "kernel_folded_1.bias"}
    assert set(module.state_dict()) == names
    assert not hasattr(module, "gain")
    assert hasattr(model, "gain")


@pytest.mark.parametrize("form", FORMS)
def test_new_weights_load_into_every_form(form):
    def build(seed):
        torch.manual_seed(seed)
        return lively(Pair(nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), form), seed)

    x = torch.randn(2, 4, 5, 5)
    module, _ = fused(build(1), x)
    trained = build(2)
    state = fxplug.symbolic_trace(trained).state_dict()
    assert len(state) == (7 if form in {"module", "conv as function"} else 6)
    fxplug.load_original_state_dict(module, state)
    torch.testing.assert_close(module(x), trained(x), rtol=1e-5, atol=1e-5)


def test_how_weights_are_made_can_be_stored(tmp_path):
    def build(seed):
        torch.manual_seed(seed)
        up, head = nn.ConvTranspose2d(4, 6, 3, groups=2), nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
        return lively(nn.Sequential(up, nn.BatchNorm2d(6), nn.AvgPool2d(7), nn.Flatten(), head), seed)

    x = torch.randn(2, 4, 5, 5)
    module = fxplug.symbolic_trace(build(1))
    steps = [
        PipelineStep(record.name, record)
        for record in BUILTIN_PASSES
        if record.name in {"fuse-conv-bn", "merge-linear"}
    ]
    reports = Pipeline("test", steps).run(module, (x,))
    assert all(report.result.modified for report in reports)
    fxplug.save(module, tmp_path / "model.fxplug")
    loaded, trained = fxplug.load(tmp_path / "model.fxplug"), build(2)
    torch.testing.assert_close(loaded(x), build(1)(x), rtol=1e-5, atol=1e-5)
    fxplug.load_original_state_dict(loaded, trained.state_dict())
    torch.testing.assert_close(loaded(x), trained(x), rtol=1e-5, atol=1e-5)


def test_arguments_may_come_by_keyword():
    class Named(Pair):
        def forward(self, x):
            return self.norm(input=self.layer(input=x, output_size=(8, 8)))

    model, x = (
        lively(Named(nn.ConvTranspose2d(3, 4, 3, stride=2), nn.BatchNorm2d(4))),
        torch.randn(2, 3, 3, 3),
    )
    module, result = fused(model, x)
    assert result.details["folded"] == 1
    torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)


def test_constants_that_a_function_holds_are_folded():
    kernel, mean, variance = torch.randn(4, 3, 1, 1), torch.randn(4), torch.rand(4) + 0.5

    def program(x):
        return F.batch_norm(F.conv2d(x, kernel), mean, variance)

    x = torch.randn(2, 3, 4, 4)
    module = fxplug.symbolic_trace(program).eval()
    assert FuseConvBN().run(module, PassContext()).details["folded"] == 1
    for one in (module, copy.deepcopy(module), fxplug.GraphModule(module, module.graph)):
        torch.testing.assert_close(one(x), program(x), rtol=1e-5, atol=1e-5)
    assert not module.state_dict()


def test_weights_that_were_computed_from_others_are_left_alone():
    model = lively(Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), "function"))
    source = nn.Parameter(torch.randn(4, 3, 1, 1))
    del model.layer.weight
    model.layer.weight = source * 2  # As weight_norm keeps it: gradients go on to the source.
    module = fxplug.symbolic_trace(model)
    assert not FuseConvBN().run(module, PassContext()).modified


class Widening(nn.Linear):
    """Returns one dimension more than it is given."""

    def forward(self, x):
        return super().forward(x)[:, None].expand(-1, 5, -1)


def widening_hook(layer):
    layer.register_forward_hook(lambda module, given, value: value[:, None].expand(-1, 5, -1))
    return layer


@pytest.mark.parametrize(
    "make", [lambda: Widening(12, 5), lambda: widening_hook(nn.Linear(12, 5))], ids=["subclass", "hook"]
)
def test_a_layer_that_does_more_proves_nothing_about_dimensions(make):
    model = lively(nn.Sequential(nn.Flatten(), make(), nn.Linear(5, 5), nn.BatchNorm1d(5)))
    leaves = fxplug.Tracer()
    leaves.is_leaf_module = lambda module, name: name != ""
    module = fxplug.GraphModule(model, leaves.trace(model))
    x = torch.randn(2, 3, 4)
    assert not FuseConvBN().run(module, PassContext()).modified
    torch.testing.assert_close(module(x), model(x))


@pytest.mark.parametrize("form", FORMS)
def test_origins_of_both_calls_are_kept(form):
    module = fxplug.symbolic_trace(lively(Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), form)))
    calls = [node for node in module.graph.nodes if node.op in {"call_module", "call_function"}]
    expected = tuple(origin for node in calls for origin in node.origins)
    assert len(expected) == 2
    FuseConvBN().run(module, PassContext())

    (left,) = [node for node in module.graph.nodes if node.op in {"call_module", "call_function"}]
    assert left.origins == expected
    assert all(node.origins for node in module.graph.find_nodes(op="get_attr"))


def test_functions_in_a_region_stay_there():
    module = fxplug.symbolic_trace(lively(Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), "function")))
    region = (RegionEntry(torch.no_grad),)
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.region = region
    assert FuseConvBN().run(module, PassContext()).modified
    assert not module(torch.ones(1, 3, 2, 2)).requires_grad


@pytest.mark.parametrize("form", FORMS)
def test_a_pipeline_that_fails_later_leaves_the_module_as_it_was(form):
    class Failing(fxplug.Pass):
        def run(self, module, context):
            FuseConvBN().run(module, context)
            raise ValueError("on purpose")

    module = fxplug.symbolic_trace(lively(Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), form)))
    text, state = module.code, {name: id(value) for name, value in module.state_dict(keep_vars=True).items()}
    step = PipelineStep("failing", fxplug.PassRecord("failing", Failing, "Fails.", replaces_parameters=True))
    Pipeline("test", [step], on_error="rollback").run(module)

    assert module.code == text
    assert {name: id(value) for name, value in module.state_dict(keep_vars=True).items()} == state


def test_a_rewrite_that_is_not_allowed_is_left_out():
    class Forbidding(PassContext):
        def allows(self, node, what):
            return what != "fold"

    module = fxplug.symbolic_trace(lively(Pair(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))))
    assert not FuseConvBN().run(module, Forbidding()).modified
