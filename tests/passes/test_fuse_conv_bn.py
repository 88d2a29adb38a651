"""Folding batch norms into convolutions."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from fxplug.capture import Tracer
from fxplug.execute import GraphModule
from fxplug.ir import RegionEntry
from fxplug.passes import FuseConvBN, PassContext, fold_batch_norm

CONTEXT = PassContext()
IMAGE = torch.linspace(-2, 2, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8).sin()
INPUTS = {1: torch.linspace(-2, 2, 2 * 3 * 8).reshape(2, 3, 8), 2: IMAGE, 3: IMAGE.reshape(2, 3, 4, 4, 4)}


class Pair(nn.Module):
    def __init__(self, conv=None, norm=None):
        super().__init__()
        self.conv = conv if conv is not None else nn.Conv2d(3, 3, 3, padding=1)
        self.norm = norm if norm is not None else nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(self.conv(x))


def lively(root):
    """Give every batch norm statistics and weights that matter, and switch to evaluation."""
    generator = torch.Generator().manual_seed(0)
    for part in root.modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            for name, low, high in (
                ("weight", 0.5, 2),
                ("bias", -1, 1),
                ("running_mean", -1, 1),
                ("running_var", 0.5, 3),
            ):
                value = getattr(part, name)
                if value is not None:
                    value.data.uniform_(low, high, generator=generator)
    return root.eval()


def calls(module):
    return [node.target for node in module.graph.nodes if node.op == "call_module"]


def fuse(module):
    result = FuseConvBN().run(module, CONTEXT)
    module.graph.lint()
    return result.details["folded"]


def assert_folds(capture, root, x=IMAGE, *, folded, tracer=None, tolerance=1e-5):
    """Fold in a capture of `root`; result equal, root untouched."""
    state = {name: value.clone() for name, value in root.state_dict().items()}
    expected = root(x)
    module = capture(root, tracer)
    assert fuse(module) == folded
    torch.testing.assert_close(module(x), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(root(x), expected)
    for name, value in root.state_dict().items():
        assert torch.equal(value, state[name]), name
    return module


CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "not affine"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pair_is_folded(capture, rank, affine, bias):
    root = lively(Pair(CONVS[rank](3, 5, 3, bias=bias), NORMS[rank](5, affine=affine)))
    module = assert_folds(capture, root, INPUTS[rank], folded=1)

    assert calls(module) == ["conv"]
    assert list(module.state_dict()) == ["conv.weight", "conv.bias"]
    assert type(module.conv) is CONVS[rank]


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(3, 6, 3, groups=3),
        nn.Conv2d(3, 6, 3, stride=2, dilation=2),
        nn.Conv2d(3, 6, 3, padding="same", padding_mode="reflect"),
        nn.Conv2d(3, 6, (1, 3), padding=(0, 1)),
    ],
    ids=["groups", "stride", "reflection", "rectangle"],
)
def test_every_kind_of_convolution_is_folded(capture, conv):
    module = assert_folds(capture, lively(Pair(conv, nn.BatchNorm2d(6))), folded=1)

    assert (module.conv.stride, module.conv.padding, module.conv.groups) == (
        conv.stride,
        conv.padding,
        conv.groups,
    )


def test_cumulative_average_and_other_epsilon(capture):
    assert_folds(capture, lively(Pair(norm=nn.BatchNorm2d(3, momentum=None, eps=0.3))), folded=1)


def test_double_precision_is_kept(capture):
    root = lively(Pair()).double()
    module = assert_folds(capture, root, IMAGE.double(), folded=1, tolerance=1e-13)

    assert module.conv.weight.dtype == module.conv.bias.dtype == torch.float64


def test_convolution_in_half_precision_with_statistics_in_single(capture):
    root = lively(Pair())
    root.conv.bfloat16()
    folded = fold_batch_norm(root.conv, root.norm)

    assert folded.weight.dtype == folded.bias.dtype == torch.bfloat16


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_need_for_gradients_is_kept(capture, needs_gradient):
    module = capture(lively(Pair()).requires_grad_(needs_gradient))
    assert fuse(module) == 1

    assert [parameter.requires_grad for parameter in module.parameters()] == [needs_gradient] * 2


def test_trainable_bias_stays_trainable_when_the_weight_is_frozen(capture):
    root = lively(Pair())
    root.conv.weight.requires_grad_(False)
    module = capture(root)
    fuse(module)

    assert module.conv.bias.requires_grad


def test_gradient_reaches_the_input(capture):
    root = lively(Pair())
    module = capture(root)
    fuse(module)
    gradients = []
    for function in (root, module):
        x = IMAGE.clone().requires_grad_()
        gradients.append(torch.autograd.grad(function(x).square().sum(), x)[0])
    torch.testing.assert_close(*gradients)


# -- sharing


class SharedConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.first = nn.BatchNorm2d(3)
        self.second = nn.BatchNorm2d(3)


class TwoNorms(SharedConv):
    def forward(self, x):
        return self.second(self.conv(self.first(self.conv(x))))


class OneNorm(SharedConv):
    def forward(self, x):
        return self.conv(self.first(self.conv(x)))


class Aliased(SharedConv):
    def __init__(self):
        super().__init__()
        self.alias = self.conv
        self.block = nn.Sequential(self.conv, self.first)

    def forward(self, x):
        return self.alias(self.block(x))


class SharedNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(self.second(self.norm(self.first(x))))


class TiedWeight(SharedNorm):
    def __init__(self):
        super().__init__()
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.norm(self.first(x)))


class WeightRead(Pair):
    def forward(self, x):
        return super().forward(x) + self.conv.weight.sum() + self.conv.bias.mean()


class NormRead(Pair):
    def forward(self, x):
        return super().forward(x) * self.norm.weight.sum() + self.norm.running_mean.sum()


class TwoNormsInARow(Pair):
    def forward(self, x):
        return self.norm(super().forward(x))


class SharedNormAfterSomethingElse(SharedNorm):
    def forward(self, x):
        return self.norm(torch.relu(self.norm(self.first(x))))


@pytest.mark.parametrize(
    ("kind", "folded"),
    [
        (TwoNorms, 2),
        (OneNorm, 1),
        (Aliased, 1),
        (SharedNorm, 2),
        (TiedWeight, 1),
        (WeightRead, 1),
        (NormRead, 1),
        (TwoNormsInARow, 2),
        (SharedNormAfterSomethingElse, 1),
    ],
)
def test_what_is_shared_keeps_its_value(capture, kind, folded):
    assert_folds(capture, lively(kind()), folded=folded, tolerance=1e-4)


def test_convolution_inside_a_custom_leaf_keeps_its_value(capture):
    class Leaf(nn.Module):
        def __init__(self, conv):
            super().__init__()
            self.inner = conv

        def forward(self, x):
            return self.inner(x)

    class Root(Pair):
        def __init__(self):
            super().__init__()
            self.leaf = Leaf(self.conv)

        def forward(self, x):
            return self.leaf(super().forward(x))

    class Shallow(Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, Leaf) or super().is_leaf_module(m, module_qualified_name)

    assert_folds(capture, lively(Root()), folded=1, tracer=Shallow())


def test_free_name_is_found_for_a_new_module(capture):
    class Root(TwoNorms):
        def __init__(self):
            super().__init__()
            self.conv_folded = nn.Identity()

        def forward(self, x):
            return self.conv_folded(super().forward(x))

    module = assert_folds(capture, lively(Root()), folded=2)
    assert calls(module) == ["conv_folded_1", "conv", "conv_folded"]


# -- left alone


class ConvUsedTwice(Pair):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


class ConvReturned(Pair):
    def forward(self, x):
        y = self.conv(x)
        return torch.cat([self.norm(y), y])


class Doubling(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) * 2


class LeakyNorm(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x) * 2


class Square(nn.Module):
    def forward(self, x):
        return x.square()


def parametrised(part):
    root = Pair()
    parametrize.register_parametrization(getattr(root, part), "weight", Square())
    return root


def weight_normed():
    root = Pair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(root.conv)
    return root


def hooked(part):
    root = Pair()
    getattr(root, part).register_forward_hook(lambda module, args, result: result * 3)
    return root


def own_forward(part):
    root = Pair()
    former = getattr(root, part).forward
    getattr(root, part).forward = lambda x: former(x) * 3
    return root


class Deep(Tracer):
    """Leaves of torch.nn subclasses too."""

    def is_leaf_module(self, m, module_qualified_name):
        return not isinstance(m, nn.Sequential)


LEFT_ALONE = {
    "no statistics": lambda: Pair(norm=nn.BatchNorm2d(3, track_running_stats=False)),
    "instance norm": lambda: Pair(norm=nn.InstanceNorm2d(3, track_running_stats=True)),
    "group norm": lambda: Pair(norm=nn.GroupNorm(1, 3)),
    "value used twice": ConvUsedTwice,
    "value returned": ConvReturned,
    "subclass of the convolution": lambda: Pair(Doubling(3, 3, 3)),
    "subclass of the norm": lambda: Pair(norm=LeakyNorm(3)),
    "parametrised convolution": lambda: parametrised("conv"),
    "parametrised norm": lambda: parametrised("norm"),
    "weight norm by hooks": weight_normed,
    "hooked convolution": lambda: hooked("conv"),
    "hooked norm": lambda: hooked("norm"),
    "own forward of the convolution": lambda: own_forward("conv"),
    "own forward of the norm": lambda: own_forward("norm"),
    "something in between": lambda: Pair(nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU())),
    "no convolution": lambda: Pair(nn.Identity()),
}


@pytest.mark.parametrize("make", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_cannot_be_folded_is_left_alone(capture, make):
    root = lively(make())
    before = str(capture(root, Deep()).graph)
    module = assert_folds(capture, root, folded=0, tolerance=0, tracer=Deep())

    assert str(module.graph) == before


@pytest.mark.parametrize(
    "train",
    [lambda root: root.train(), lambda root: root.norm.train(), lambda root: root.conv.train()],
    ids=["all", "norm", "conv"],
)
def test_training_mode_is_refused_with_a_hint(capture, train):
    root = lively(Pair())
    train(root)
    module = capture(root)
    result = FuseConvBN().run(module, CONTEXT)

    assert not result.modified
    assert result.details == {"folded": 0, "in_training": 1}
    assert result.summary == "no pair to fold; 1 left alone in training mode (call eval() first)"
    assert calls(module) == ["conv", "norm"]


def test_pair_in_different_regions_is_left_alone(capture):
    module = capture(lively(Pair()))
    module.graph.find_nodes(op="call_module", target="norm")[0].region = (RegionEntry(torch.no_grad),)

    assert fuse(module) == 0


def test_pair_in_one_region_is_folded_and_stays_there(capture):
    module = capture(lively(Pair()))
    region = (RegionEntry(torch.no_grad),)
    for node in module.graph.find_nodes(op="call_module"):
        node.region = region

    assert fuse(module) == 1
    assert module.graph.find_nodes(op="call_module")[0].region == region


@pytest.mark.parametrize("part", ["conv", "norm"])
def test_weights_that_the_program_writes_are_not_folded(capture, part):
    class Root(Pair):
        def forward(self, x):
            getattr(self, part).weight.data.mul_(2)
            return super().forward(x)

    model = lively(Root())
    expected, module = copy.deepcopy(model), capture(model)
    assert fuse(module) == 0
    for _ in range(2):
        torch.testing.assert_close(module(IMAGE), expected(IMAGE))


@pytest.mark.xfail(
    strict=True, reason="without a batch dimension, a BatchNorm1d takes the channels for the batch"
)
def test_unbatched_input_of_a_square_convolution(capture):
    root = lively(Pair(nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6)))
    module = capture(root)
    fuse(module)
    x = torch.randn(3, 8)
    torch.testing.assert_close(module(x), root(x))


# -- the graph afterwards


def test_origins_of_both_are_kept(capture):
    module = capture(lively(Pair()))
    conv, norm = module.graph.find_nodes(op="call_module")
    expected = (*conv.origins, *norm.origins)
    fuse(module)

    assert module.graph.find_nodes(op="call_module")[0].origins == expected


def test_later_users_use_the_convolution(capture):
    class Root(Pair):
        def forward(self, x):
            y = super().forward(x)
            return torch.relu(y) + y

    module = assert_folds(capture, lively(Root()), folded=1)
    (conv,) = module.graph.find_nodes(op="call_module")
    assert len(conv.users) == 2


def test_second_run_changes_nothing(capture):
    module = capture(lively(Pair()))
    assert fuse(module) == 1
    text, version = str(module.graph), module.graph.version
    result = FuseConvBN().run(module, CONTEXT)

    assert (result.modified, result.summary) == (False, "no pair to fold")
    assert (str(module.graph), module.graph.version) == (text, version)


def test_module_without_any_pair_is_not_modified(capture):
    result = FuseConvBN().run(capture(nn.Sequential(nn.Linear(3, 3)).eval()), CONTEXT)

    assert not result.modified


def test_deep_model_is_folded_completely(capture):
    root = lively(
        nn.Sequential(
            *[
                nn.Sequential(
                    nn.Conv2d(3, 3, 3, padding=1, bias=index % 2 == 0), nn.BatchNorm2d(3), nn.ReLU()
                )
                for index in range(8)
            ]
        )
    )
    module = assert_folds(capture, root, folded=8, tolerance=1e-4)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in module.modules())


@pytest.mark.parametrize(
    "write", [lambda mean: mean[:2].add_(1.0), lambda mean: mean.data.add_(1.0)], ids=["slice", "data"]
)
def test_statistics_that_are_written_through_a_view_are_not_folded(write):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.norm(self.conv(x))
            write(self.norm.running_mean)
            return y

    root = Model().eval()
    module = GraphModule(root, Tracer().trace(root))
    result = FuseConvBN().run(module, PassContext())

    assert result.details["folded"] == 0
