"""Submodules, parameters and constants of a replacement, and those that it makes superfluous."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fxplug.ir import Graph
from fxplug.rewrite import replace_pattern, replace_pattern_with_filters

X = torch.linspace(-2, 2, 6).reshape(2, 3)


def relu(x):
    return torch.relu(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.linear(x)) + 1


class Act(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(x)


class OwnLinear(nn.Module):
    """Has a linear layer of its own, under a name that the model uses for another one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x)


def test_submodules_of_the_replacement_come_along(capture, calls):
    model, replacement = Model(), OwnLinear()
    module = capture(model)

    replace_pattern(module, Act(), replacement)

    module.graph.lint()
    assert calls(module) == ["linear", "linear_1", "add"]
    torch.testing.assert_close(module(X), replacement.linear(model.linear(X)) + 1)
    assert sorted(module.state_dict()) == ["linear.bias", "linear.weight", "linear_1.bias", "linear_1.weight"]


def test_nothing_that_the_module_has_is_overwritten(capture):
    model = Model()
    before = copy.deepcopy(model.state_dict())
    module = capture(model)

    replace_pattern(module, Act(), OwnLinear())

    assert module.linear is model.linear
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_submodules_of_the_replacement_are_copied(capture):
    replacement = OwnLinear()
    module = capture(Model())
    replace_pattern(module, Act(), replacement)
    expected = module(X)

    with torch.no_grad():
        replacement.linear.weight.zero_()

    assert torch.equal(module(X), expected)


def test_all_places_share_one_copy(capture, calls):
    class Twice(Model):
        def forward(self, x):
            return self.act(self.linear(self.act(x)))

    module = capture(Twice())

    assert len(replace_pattern(module, Act(), OwnLinear())) == 2
    assert calls(module) == ["linear_1", "linear", "linear_1"]


def test_a_second_rewrite_gets_a_path_of_its_own(capture, calls):
    class TwoActs(Model):
        def __init__(self):
            super().__init__()
            self.other = nn.ReLU()

        def forward(self, x):
            return self.other(self.act(x))

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.other = nn.ReLU()

        def forward(self, x):
            return self.other(x)

    module = capture(TwoActs())

    replace_pattern(module, Act(), OwnLinear())
    replace_pattern(module, Other(), OwnLinear())

    assert calls(module) == ["linear", "linear_1"]
    assert module.linear is not module.linear_1


def test_a_path_that_the_pattern_names_is_that_of_the_module(capture, calls):
    class LinearAct(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(self.linear(x))

    class LinearTanh(LinearAct):
        def forward(self, x):
            return torch.tanh(self.linear(x))

    model = Model()
    module = capture(model)

    assert len(replace_pattern(module, LinearAct(), LinearTanh())) == 1

    assert calls(module) == ["linear", "tanh", "add"]
    torch.testing.assert_close(module(X), torch.tanh(model.linear(X)) + 1)


def test_submodules_that_only_replaced_nodes_used_go_away(capture):
    model = Model()
    module = capture(model)

    replace_pattern(module, Act(), OwnLinear())

    assert not hasattr(module, "act")
    assert hasattr(model, "act")


def test_submodules_stay_when_others_use_them_or_the_replacement_is_no_module(capture):
    class Twice(Model):
        def forward(self, x):
            return self.act(self.linear(x)), self.act(x) + 2

    class ActThenAdd(Act):
        def forward(self, x):
            return self.act(x) + 2

    used_elsewhere = capture(Twice())
    replace_pattern(used_elsewhere, ActThenAdd(), OwnLinear())
    by_function = capture(Model())
    replace_pattern(by_function, Act(), relu)

    assert hasattr(used_elsewhere, "act")
    assert hasattr(by_function, "act")


def test_submodules_that_nobody_used_before_are_left_alone(capture):
    module = capture(Model())
    module.add_submodule("spare", nn.ReLU())

    replace_pattern(module, Act(), OwnLinear())

    assert hasattr(module, "spare")


def test_a_module_of_the_users_loses_none_of_its_children(capture):
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.ReLU(), nn.Tanh())

        def forward(self, x):
            return self.block[0](x)

    model = Nested()
    module = capture(model)
    module.add_submodule("block", model.block)  # As it is when a node has called all of it.

    assert len(replace_pattern(module, Nested(), OwnLinear())) == 1
    assert len(model.block) == 2


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.scale = nn.Parameter(torch.tensor(3.0))
        self.inner.register_buffer("shift", torch.tensor(1.0))
        self.inner.register_buffer("temporary", torch.tensor(2.0), persistent=False)
        self.plain = torch.tensor(4.0)

    def forward(self, x):
        return x * self.inner.scale + self.inner.shift + self.inner.temporary + self.plain


def test_parameters_and_buffers_stay_what_they_are(capture):
    module = capture(relu)

    replace_pattern(module, relu, Scale())

    assert sorted(name for name, _ in module.named_parameters()) == ["inner.scale"]
    assert sorted(name for name, _ in module.named_buffers()) == ["inner.shift", "inner.temporary", "plain"]
    assert sorted(module.state_dict()) == ["inner.scale", "inner.shift"]
    torch.testing.assert_close(module(X), X * 3 + 7)


def test_nothing_is_put_into_a_submodule_of_the_model(capture):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            return torch.relu(self.inner(x))

    model = Holder()
    module = capture(model)

    replace_pattern(module, relu, Scale())

    assert not hasattr(model.inner, "scale")
    assert module.inner_1.scale.item() == 3


def test_tied_parameters_of_the_replacement_stay_tied(capture):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    module = capture(relu)

    replace_pattern(module, relu, Tied())

    assert module.first.weight is module.second.weight


def test_the_modules_own_object_is_not_copied(capture):
    model = Model()
    module = capture(model)

    class SameLinear(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = model.linear

        def forward(self, x):
            return self.linear(x)

    replace_pattern(module, Act(), SameLinear())

    assert module.linear is model.linear
    assert not hasattr(module, "linear_1")


def test_constants_of_the_replacement_come_along(capture):
    module = capture(lambda x: torch.relu(x) + torch.tensor([1.0, 2.0, 3.0]))

    replace_pattern(module, relu, lambda x: x * torch.tensor([4.0, 5.0, 6.0]))

    torch.testing.assert_close(module(X), X * torch.tensor([4.0, 5.0, 6.0]) + torch.tensor([1.0, 2.0, 3.0]))
    assert module.state_dict() == {}
    assert torch.equal(copy.deepcopy(module)(X), module(X))
    assert len(module.graph.lifted) == 2


def test_a_constant_is_taken_once(capture):
    module = capture(lambda x: torch.relu(x) + torch.relu(x * 2))

    replace_pattern(module, relu, lambda x: x * torch.tensor([4.0, 5.0, 6.0]))

    assert len(module.graph.lifted) == 1


def test_a_reserved_name_is_avoided(capture):
    class Awkward(nn.Module):
        def __init__(self):
            super().__init__()
            self.graph = nn.ReLU()
            self.forward_2 = nn.ReLU()

        def forward(self, x):
            return self.graph(x)

    graph = Graph()
    graph.output(graph.call_module("graph", (graph.placeholder("x"),)))
    root = Awkward()
    graph.owning_module = root
    module = capture(relu)

    replace_pattern(module, relu, graph)

    assert isinstance(module.graph_1, nn.ReLU)
    assert torch.equal(module(X), torch.relu(X))


def test_a_graph_without_root_refers_to_the_module(capture, calls):
    graph = Graph()
    graph.output(graph.call_module("linear", (graph.placeholder("x"),)))
    module = capture(Model())

    replace_pattern(module, Act(), graph)

    assert calls(module) == ["linear", "linear", "add"]


def test_an_attribute_that_a_match_read_goes_away_with_its_last_user(capture, calls):
    module = capture(Scale())

    def multiply(self, x):
        return x * self.inner.scale

    class Multiply(Scale):
        forward = multiply

    replace_pattern(module, Multiply(), relu)

    assert calls(module)[0] == "relu"
    assert "inner.scale" not in calls(module)


def test_an_attribute_may_be_read_twice_in_the_pattern(capture, calls):
    graph = Graph()
    x, first, second = graph.placeholder("x"), graph.get_attr("inner.scale"), graph.get_attr("inner.scale")
    graph.output(graph.call_function(torch.sub, (graph.call_function(torch.mul, (x, first)), second)))

    class Reading(Scale):
        def forward(self, x):
            return torch.sub(torch.mul(x, self.inner.scale), self.inner.scale)

    module = capture(Reading())

    assert len(replace_pattern(module, graph, lambda x: torch.relu(x) * 2)) == 1
    assert calls(module) == ["relu", "mul"]


def test_an_attribute_alone_is_a_pattern(capture, calls):
    class Weight(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Module()
            self.inner.scale = nn.Parameter(torch.tensor(3.0))

        def forward(self):
            return self.inner.scale

    module = capture(Scale())

    class Quantized(Weight):
        def forward(self):
            return torch.round(self.inner.scale)

    assert len(replace_pattern(module, Weight(), Quantized())) == 1
    module.graph.lint()
    assert calls(module)[:3] == ["inner.scale", "round", "mul"]


def test_a_callback_may_return_modules(capture, calls):
    replacement = capture(OwnLinear())
    module = capture(lambda x: torch.relu(x) + torch.relu(x * 2))

    replace_pattern_with_filters(module, relu, replacement_callback=lambda *_: replacement)

    assert calls(module) == ["linear", "mul", "linear", "add"]
