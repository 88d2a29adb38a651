"""Hooks of layers that a program registers and removes itself, and features that it takes by them."""

import copy

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceWarning

MODES = ["symbolic", "shape", "value"]
X = torch.randn(3, 4)


def captured_in(mode, model, *inputs):
    return fxplug.symbolic_trace(model) if mode == "symbolic" else fxplug.trace(model, inputs, mode=mode)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu())


class Changing(nn.Module):
    """Changes what layers are given and return."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        before = self.net.first.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        after = self.net.first.register_forward_hook(
            lambda module, args, kwargs, result: result * args[0].shape[0], with_kwargs=True
        )
        y = self.net(x)
        before.remove()
        after.remove()
        return y - self.net(x)


class Extracting(nn.Module):
    """Takes the results of all layers."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        features = {}

        def keeping(name):
            def keep(module, args, result):
                features[name] = result.detach()

            return keep

        handles = [part.register_forward_hook(keeping(name)) for name, part in self.net.named_children()]
        try:
            y = self.net(x)
        finally:
            for handle in handles:
                handle.remove()
        return y, features, sum(feature.mean() for feature in features.values())


class Beside(nn.Module):
    """A hook from before stays and one for a while comes after it."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        self.net.first.register_forward_hook(lambda module, args, result: result + 1)

    def forward(self, x):
        with_it = self.net.first.register_forward_hook(lambda module, args, result: result * 2)
        y = self.net(x)
        with_it.remove()
        return y


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [Changing, Extracting, Beside])
def test_hooks_for_the_time_of_a_call_are_recorded(kind, mode, training):
    model = kind().train(training)
    if kind is Extracting and mode == "symbolic":  # Batch norm asks how many dimensions its input has.
        with pytest.raises(fxplug.TraceError, match=r"its hooks, .*\[FXP-T010\]$"):
            captured_in(mode, model)
        return
    captured = captured_in(mode, copy.deepcopy(model), X)
    reference = copy.deepcopy(model)
    for made in (copy.deepcopy(captured), captured):
        wanted = copy.deepcopy(reference)
        for rows in (3, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(made(x), wanted(x))
            torch.testing.assert_close(made.net.norm.running_mean, wanted.net.norm.running_mean)
    assert not model.net.second._forward_hooks


@pytest.mark.parametrize("mode", MODES)
def test_a_hook_that_stays_is_refused(mode):
    class Staying(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def forward(self, x):
            self.net.first.register_forward_hook(lambda module, args, result: result * 2)
            return self.net(x)

    model = Staying()
    with pytest.raises(fxplug.TraceError) as caught:
        captured_in(mode, model, X)
    assert caught.value.code == "FXP-T055"
    assert not model.net.first._forward_hooks


@pytest.mark.parametrize("mode", MODES)
def test_features_that_an_attribute_holds_for_the_call_are_graph_values(mode):
    class Holding(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net().eval()
            self.features = {}
            self.net.first.register_forward_hook(self.keep)
            self.net.second.register_forward_hook(self.keep)

        def keep(self, module, args, result):
            self.features[len(self.features)] = result.detach().mean(0)

        def forward(self, x):
            self.features.clear()
            y = self.net(x)
            return y, self.features[0], torch.stack(list(self.features.values()))

    model = Holding()
    with pytest.warns(TraceWarning, match="features"):
        captured = captured_in(mode, model, X)
    assert model.features == {}
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(captured(x), model(x))


@pytest.mark.parametrize("mode", MODES)
def test_a_hook_whose_results_nobody_reads_runs_with_the_captured_module(mode):
    seen = []
    net = Net().eval()
    net.first.register_forward_hook(lambda module, args, result: seen.append(result.detach()))
    captured = captured_in(mode, net, X)
    seen.clear()
    captured(X)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], nn.functional.linear(X, net.first.weight, net.first.bias))


def test_what_is_said_of_hooks_is_said_where_the_layer_cannot_be_entered():
    class Entered(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 1, 4).eval()
            self.features = []
            self.layer.register_forward_hook(lambda module, args, result: self.features.append(result * 2))

        def forward(self, x):
            self.features.clear()
            self.layer(x)
            return self.features[0]

    with pytest.raises(fxplug.TraceError, match=r"a hook of the layer 'layer', .*\[FXP-T010\]$"):
        fxplug.symbolic_trace(Entered())
    model, x = Entered(), torch.randn(2, 3, 4)
    with pytest.warns(TraceWarning, match="features"):
        captured = fxplug.trace(model, (x,))
    torch.testing.assert_close(captured(x), model(x))
