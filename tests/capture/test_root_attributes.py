"""Parameters, buffers, constants and submodules of the root."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxplug.capture import Tracer


def reads(module):
    return [node.target for node in module.graph.find_nodes(op="get_attr")]


def calls(module):
    return [node.target for node in module.graph.find_nodes(op="call_module")]


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("offset", torch.full((3,), 5.0))

    def forward(self, x):
        return (x + self.offset) * self.scale + self.offset * self.scale


def test_parameters_and_buffers_are_read_once(capture):
    module = capture(Scaled())

    assert reads(module) == ["offset", "scale"]
    assert module(torch.zeros(3)).tolist() == [20.0, 20.0, 20.0]


def test_parameters_and_buffers_of_children_are_read_once(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Scaled()

        def forward(self, x):
            return self.child(self.child(x)) + self.child.scale

    assert reads(capture(Root())) == ["child.offset", "child.scale"]


def test_captured_module_holds_the_very_parameters(capture):
    root = Scaled()
    module = capture(root)

    assert module.scale is root.scale
    assert module.offset is root.offset


def test_in_place_update_of_a_buffer_is_in_the_graph(capture):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return x * self.count

    root = Counter()
    module = capture(root)
    assert root.count.item() == 0
    assert [module(torch.ones(1)).item() for _ in range(3)] == [1, 2, 3]


def test_item_assignment_into_a_buffer_is_in_the_graph(capture):
    class Memory(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.zeros(2))

        def forward(self, x):
            self.last[0] = x.sum()
            return self.last * 1

    root = Memory()
    module = capture(root)
    assert root.last.tolist() == [0, 0]
    assert module(torch.ones(3)).tolist() == [3, 0]
    assert root.last.tolist() == [3, 0]


@pytest.mark.parametrize(
    "update",
    [lambda tensor: tensor.add_(1), lambda tensor: tensor.__setitem__(0, 1.0)],
    ids=["method", "item"],
)
def test_update_of_a_plain_tensor_attribute_is_in_the_graph(capture, update):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = torch.zeros(1)

        def forward(self, x):
            update(self.plain)
            return x + self.plain

    root = Root()
    module = capture(root)
    assert root.plain.item() == 0
    module(torch.ones(1))
    assert root.plain.item() == 1


def test_sum_over_parameters_follows_them(capture):
    class Regularised(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x + sum(parameter.sum() for parameter in self.parameters())

    root = Regularised()
    module = capture(root)
    with torch.no_grad():
        root.weight.fill_(2)
    assert module(torch.zeros(1)).item() == 6


def test_parameter_from_its_table_is_a_read_of_the_root(capture):
    class Root(Scaled):
        def forward(self, x):
            return x * self._parameters["scale"]

    assert reads(capture(Root())) == ["scale"]


def test_plain_tensor_attribute_is_a_read_of_the_root(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = torch.ones(3)

        def forward(self, x):
            return x + self.plain

    root = Root()
    module = capture(root)
    assert reads(module) == ["plain"]
    assert module.graph.lifted == {}
    assert module.plain is root.plain
    assert list(module.state_dict()) == []


# -- constants


class WithConstant(nn.Module):
    def forward(self, x):
        return x + torch.ones(3)


def test_constant_is_lifted_into_the_graph(capture):
    root = WithConstant()
    before = dict(vars(root)), dict(root._buffers), dict(root._parameters)
    module = capture(root)

    assert reads(module) == ["_tensor_constant0"]
    assert list(module.graph.lifted) == ["_tensor_constant0"]
    assert module(torch.zeros(3)).tolist() == [1, 1, 1]
    assert (dict(vars(root)), dict(root._buffers), dict(root._parameters)) == before


def test_constants_are_lifted_once_each(capture):
    shared = torch.ones(3)

    def program(x):
        return (x + shared) * shared + torch.zeros(3)

    assert reads(capture(program)) == ["_tensor_constant0", "_tensor_constant0", "_tensor_constant1"]


@pytest.mark.parametrize("held", [torch.zeros(3), nn.Linear(3, 3), "text"], ids=["buffer", "module", "text"])
def test_constants_avoid_the_names_of_the_root(capture, held):
    class Root(WithConstant):
        def __init__(self):
            super().__init__()
            self._tensor_constant0 = held

    module = capture(Root())
    assert reads(module) == ["_tensor_constant1"]
    assert module(torch.zeros(3)).tolist() == [1, 1, 1]


def test_constants_survive_a_second_capture(capture):
    module = capture(capture(WithConstant()))

    assert reads(module) == ["_tensor_constant0"]
    assert module(torch.zeros(3)).tolist() == [1, 1, 1]


def test_parameter_from_outside_stays_trainable(capture):
    outside = nn.Parameter(torch.ones(3))
    module = capture(lambda x: x * outside)

    assert [parameter is outside for parameter in module.parameters()] == [True]


def test_constants_are_no_part_of_the_state(capture):
    assert list(capture(WithConstant()).state_dict()) == []


@pytest.mark.parametrize("write", ["augmented", "item", "method"])
def test_tensor_made_in_forward_is_fresh_in_every_call(capture, write):
    def program(x):
        total = torch.zeros(2)
        if write == "augmented":
            total += x
        elif write == "item":
            total[0] = total[1] + x[0]
            total[1] = x[1]
        else:
            total.add_(x)
        return total

    module = capture(program)
    first = module(torch.ones(2))
    second = module(torch.ones(2))
    assert second.tolist() == program(torch.ones(2)).tolist()
    assert first is not second


# -- shared and unusual modules


def test_module_under_two_names_is_called_by_its_first(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = self.first

        def forward(self, x):
            return self.second(self.first(x))

    root = Root()
    module = capture(root)
    assert calls(module) == ["first", "first"]
    assert len(list(module.parameters())) == 2


def test_shared_parameters_stay_shared(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return F.linear(x, self.first.weight) + F.linear(x, self.second.weight) + self.second(x)

    module = capture(Root())
    assert module.first.weight is module.second.weight
    assert len(list(module.parameters())) == 2


def test_module_called_twice_is_two_nodes(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(self.linear(x))

    assert [node.name for node in capture(Root()).graph.find_nodes(op="call_module")] == [
        "linear",
        "linear_1",
    ]


def test_unregistered_module_is_refused_where_it_must_have_a_path(capture):
    class WithPaths(Tracer):
        def path_of_module(self, mod):
            return super().path_of_module(mod)

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = [nn.Linear(3, 3)]

        def forward(self, x):
            return self.hidden[0](x)

    with pytest.raises(
        ValueError, match=r"not registered below the root.*ModuleList.*\[FXP-T007\]"
    ) as caught:
        capture(Root(), tracer=WithPaths())
    assert __file__ in str(caught.value)


def test_attribute_that_does_not_exist_is_pythons_own_error(capture):
    class Root(nn.Module):
        def forward(self, x):
            return x * self.missing

    with pytest.raises(AttributeError, match="'Root' object has no attribute 'missing'"):
        capture(Root())


def test_own_getattr_of_a_module_is_respected(capture):
    class Delegating(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return F.linear(x, self.weight, self.bias)

    assert reads(capture(Delegating())) == ["inner.weight", "inner.bias"]


def test_own_call_of_a_child_is_respected(capture):
    class Tenfold(nn.Module):
        def __call__(self, x):
            return super().__call__(x) * 10

        def forward(self, x):
            return x + 1

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Tenfold()

        def forward(self, x):
            return self.child(x)

    assert capture(Root())(torch.zeros(1)).item() == 10


def test_hooks_of_an_entered_child_are_recorded(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Scaled()
            self.child.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
            self.child.register_forward_hook(lambda module, args, result: result - 1)

        def forward(self, x):
            return self.child(x)

    root = Root()
    x = torch.randn(3)
    torch.testing.assert_close(capture(root)(x), root(x))


def test_parametrised_weight_is_computed_by_the_graph(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))

        def forward(self, x):
            return x @ self.linear.weight

    root = Root()
    module = capture(root)
    with torch.no_grad():
        root.linear.parametrizations.weight.original0.mul_(3)
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), root(x))


def test_shapes_of_parameters_may_be_constants(capture):
    class Root(Scaled):
        def forward(self, x):
            return x if self.scale.shape[0] == 3 else -x

    assert capture(Root(), tracer=Tracer(param_shapes_constant=True))(torch.ones(1)).item() == 1


def test_autowrapped_function_stays_a_call(capture):
    def helper(x):
        return x + 1

    def program(x):
        return helper(x)

    module = capture(program, tracer=Tracer(autowrap_functions=(helper,)))
    assert [node.target for node in module.graph.find_nodes(op="call_function")] == [helper]
