"""Whole programs are expressed by operators of ATen, and do what they did."""

from __future__ import annotations

import copy
import operator
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import fxplug
from fxplug.errors import DecompositionError, GuardError, InvalidArgumentError
from fxplug.plugins import PluginManager

NONE = PluginManager(candidates=[], environ={})
TARGETS = ("aten", "core-aten")


def trace(program, *inputs):
    return fxplug.trace(program, inputs or None, manager=NONE)


def decompose(module, *inputs, to="core-aten", **options):
    return fxplug.decompose(module, inputs, to=to, manager=NONE, **options)


def calls(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def outcome(module, inputs, *, gradients=True):
    """Return results, inputs and state after a call, and the gradients of parameters and inputs."""
    module, leaves = copy.deepcopy(module), copy.deepcopy(inputs)
    tracked = dict(module.named_parameters())
    for place, leaf in enumerate(pytree.tree_leaves(leaves)):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            tracked[f"input {place}"] = leaf.requires_grad_(gradients)
    tracked = {name: value for name, value in tracked.items() if value.requires_grad}
    # Writes to leaves that require gradients are refused by autograd.
    given = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf * 1 if leaf.requires_grad else leaf, leaves)
    torch.manual_seed(7)
    results = module(*given)
    flat = [value for value in pytree.tree_leaves(results) if isinstance(value, torch.Tensor)]
    ends = [value.float().square().sum() for value in flat if value.requires_grad]
    has_gradients = ends and tracked
    found = torch.autograd.grad(sum(ends), list(tracked.values()), allow_unused=True) if has_gradients else ()
    # The result holds constants besides.
    state = {name: value.detach() for name, value in module.state_dict().items() if "constant" not in name}
    return results, given, dict(sorted(state.items())), dict(zip(tracked, found, strict=False))


def assert_same(actual, expected):
    assert pytree.tree_structure(actual) == pytree.tree_structure(expected)
    for ours, theirs in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
            assert ours.requires_grad == theirs.requires_grad
        else:
            assert ours == theirs


def assert_decomposes(program, *inputs, training=False, same_numbers=True):
    """Check that both decompositions do what the program does, with the operators they should have."""
    module = trace(program, *copy.deepcopy(inputs))
    module.train(training)
    for to in TARGETS:
        found = decompose(module, *inputs, to=to)
        found.graph.lint()
        for target in calls(found):
            if target is operator.getitem:
                continue
            assert target.namespace == "aten"
            if to == "core-aten":
                assert torch.Tag.core in target.tags or target is torch.ops.aten.copy_.default
        assert found.state_dict().keys() == module.state_dict().keys()
        if same_numbers or to == "aten":
            for gradients in (True, False):
                assert_same(
                    outcome(found, inputs, gradients=gradients), outcome(module, inputs, gradients=gradients)
                )
    return found


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)), inplace=True)
        return self.head(x.mean((2, 3)))


IMAGES = torch.randn(3, 3, 5, 5)
PAIR = torch.randn(3, 4)


def rectified(x):
    return torch.relu(x)


# -- it computes the same


@pytest.mark.parametrize("training", [False, True])
def test_a_network_with_its_statistics(training):
    found = assert_decomposes(Net(), IMAGES, training=training)
    # Statistics that were written to are the buffer's afterwards.
    assert (torch.ops.aten.copy_.default in calls(found)) is training


def test_parameters_are_the_very_ones_under_their_names():
    module = trace(Net())
    found = decompose(module, IMAGES)
    for name, value in module.state_dict(keep_vars=True).items():
        assert found.state_dict(keep_vars=True)[name] is value
    assert {node.target for node in found.graph.nodes if node.op == "get_attr"} <= module.state_dict().keys()


def test_the_module_is_not_changed():
    module = trace(Net()).train()
    before, code = copy.deepcopy(module.state_dict()), module.code
    state = torch.get_rng_state()
    decompose(module, IMAGES)
    assert module.code == code
    assert_same(dict(module.state_dict()), dict(before))
    assert torch.equal(torch.get_rng_state(), state)


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.4)

    def forward(self, x):
        return self.drop(x) + F.dropout(x, 0.3, self.training) + torch.rand_like(x) + torch.randn(4)


def test_random_numbers_are_those_of_eager_and_stay_random():
    assert_decomposes(Dropping(), PAIR, training=True, same_numbers=False)
    found = decompose(trace(Dropping(), PAIR).train(), PAIR, to="core-aten")
    assert not torch.equal(found(PAIR), found(PAIR))


def writes_to_its_input(x, y):
    x[:, 0] = 0
    x.add_(y)
    y.mul_(2)
    return x * y


def swaps(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x - y


def writes_through_views(x):
    x = x * 1
    row = x[0]
    row.add_(1)
    x.view(-1)[3:5].zero_()
    return x, row


def returns_what_it_wrote(x):
    return x.add_(1), x


def returns_its_input(x, y):
    y.add_(x)
    return x, y.view(-1)


def without_gradients(x):
    with torch.no_grad():
        scale = x.abs().max()
    return x / scale, x.detach() * x, F.gumbel_softmax(x, hard=True)


def in_bfloat16(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.t()
        with torch.autocast("cpu", enabled=False):
            z = x @ x.t()
    return y.float() + z


def with_constants(x):
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(4) + torch.ones(3, 1)


def several_results(x):
    values, indices = torch.max(x, dim=1)
    first, second = x.chunk(2, 1)
    return {"max": (values, indices), "parts": [first, second], "plain": 3, "none": None}


def zero_sizes(x):
    return torch.cat([x[:0], x]), x[:0].sum()


def complex_numbers(x):
    return torch.view_as_real(torch.fft.fft(x) * 2)


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        (writes_to_its_input, (PAIR, PAIR + 1)),
        (swaps, (PAIR, PAIR + 1)),
        (writes_through_views, (PAIR,)),
        (returns_what_it_wrote, (PAIR,)),
        (returns_its_input, (PAIR, PAIR + 1)),
        (without_gradients, (PAIR,)),
        (in_bfloat16, (PAIR,)),
        (with_constants, (PAIR,)),
        (several_results, (PAIR,)),
        (zero_sizes, (PAIR,)),
    ],
)
def test_programs_that_write_and_return_in_many_ways(program, inputs):
    assert_decomposes(program, *inputs, same_numbers=program is not without_gradients)


def test_what_no_core_operator_does_is_left():
    module = trace(complex_numbers, PAIR)
    found = decompose(module, PAIR)
    torch.testing.assert_close(found(PAIR), complex_numbers(PAIR))
    assert any(torch.Tag.core not in target.tags for target in calls(found))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("steps", torch.zeros(()))
        self.plain = torch.ones(4)

    def forward(self, x, scale=2.0):
        self.steps.add_(1)
        return self.second(self.first(x)) * scale * self.steps + self.plain


def test_shared_parameters_counters_and_defaults():
    assert_decomposes(Tied(), PAIR)


def nested(pair, named):
    return pair[0] + named["x"] * pair[1][0]


def test_nested_inputs():
    assert_decomposes(nested, (PAIR, [PAIR + 1]), {"x": PAIR})
    inputs = (PAIR, [PAIR + 1]), {"x": PAIR}
    found = decompose(fxplug.symbolic_trace(nested, manager=NONE), *inputs)
    assert torch.equal(found(*inputs), nested(*inputs))
    with pytest.raises(GuardError, match=r"pair\[1\]\[0\]\.shape == \(3, 4\)"):
        found((PAIR, [PAIR[:1]]), {"x": PAIR})
    with pytest.raises(GuardError, match=r"len\(pair\[1\]\) == 1"):
        found((PAIR, [PAIR, PAIR]), {"x": PAIR})


def test_the_weights_that_torch_computes_in_hooks():
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(layer, nn.ReLU())
    found = decompose(fxplug.symbolic_trace(model, manager=NONE), PAIR)
    torch.testing.assert_close(found(PAIR), model(PAIR))
    assert found.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        layer.weight_g.mul_(2)
    torch.testing.assert_close(found(PAIR), model(PAIR))


class OutOfOrder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.shift = nn.Parameter(torch.zeros(4))
        self.register_buffer("count", torch.ones(4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.first(self.second(x) + self.shift) * self.scale) * self.count


@pytest.mark.parametrize("to", TARGETS)
def test_state_is_in_the_order_of_the_module(to):
    model = OutOfOrder()
    module = trace(model)
    found = decompose(module, PAIR, to=to)
    for kept in (module, found, fxplug.decompose(module, manager=NONE)):
        assert [name for name, _ in kept.named_parameters()] == [name for name, _ in model.named_parameters()]
        assert list(kept.state_dict()) == list(model.state_dict())


# -- which results have gradients


def detached(x):
    y = (x * 2).detach()
    return y, y + 1, y.view(12), x + 1


def data_of(x):
    return x.data, x.data * 2, x * 3


def detached_in_place(x):
    y = x * 2
    z = y
    y.detach_()
    return y, z * 3, x + 1


def detached_in_place_inside_of_a_result(x):
    largest = torch.sort(x * 2, 1)
    largest[0].detach_()
    return largest, largest[0] * 3, x + 1


def marked(x):
    y = (x * 2).detach().requires_grad_()
    return y, y + 1


def marked_by_assignment(x):
    y = torch.zeros(3, 4)
    y.requires_grad = True
    return x + y


def marked_when_made(x):
    return torch.ones(3, 4, requires_grad=True) * x


def input_is_marked(x):
    x.requires_grad_()
    return x * 2


def gradient_inside(x):
    y = x.detach().requires_grad_()
    energy = (y**2).sum()
    return energy, torch.autograd.grad(energy, y)[0]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize(
    "program",
    [
        detached,
        data_of,
        detached_in_place,
        detached_in_place_inside_of_a_result,
        marked,
        marked_by_assignment,
        marked_when_made,
        input_is_marked,
        gradient_inside,
    ],
)
def test_results_have_gradients_where_those_of_eager_have(program, to, gradients):
    found = decompose(trace(program, PAIR), PAIR, to=to)
    ours, theirs = (
        outcome(found, (PAIR,), gradients=gradients),
        outcome(program_of(program), (PAIR,), gradients=gradients),
    )
    assert_same(ours, theirs)
    leaves = [value.is_leaf for value in pytree.tree_leaves(ours[:2])]
    assert leaves == [value.is_leaf for value in pytree.tree_leaves(theirs[:2])]


def program_of(function):
    """Return a function as a module."""
    module = nn.Module()
    module.forward = function
    return module


def test_an_input_cannot_be_cut_off_from_its_gradient_in_place():
    with pytest.raises(DecompositionError, match=r"cuts off 'x' from its gradient in place.*Use detach\(\)"):
        decompose(fxplug.symbolic_trace(lambda x: x.detach_() * 2, manager=NONE), PAIR)


class Says(nn.Module):
    """Says of tensors whether they have gradients."""

    def __init__(self, say):
        super().__init__()
        self.say = say

    def forward(self, x):
        return self.say(x * 2)


def assigned(x):
    x = x.detach()
    x.requires_grad = True
    return x


class _LeavingSays(fxplug.Tracer):
    def is_leaf_module(self, m, module_qualified_name):
        return isinstance(m, Says) or super().is_leaf_module(m, module_qualified_name)


@pytest.mark.parametrize("as_function", [False, True])
@pytest.mark.parametrize(
    ("say", "name"),
    [
        (torch.Tensor.detach_, "detach_"),
        (lambda x: x.detach().requires_grad_(), "requires_grad_"),
        (assigned, "requires_grad"),
        (lambda x: torch.zeros(3, 4, requires_grad=True) + x.detach(), "requires_grad"),
    ],
    ids=["detach_", "requires_grad_", "assigned", "made"],
)
def test_what_is_said_of_gradients_inside_of_a_call_is_refused(say, name, as_function):
    model = Says(say)
    if as_function:
        graph = fxplug.Graph()
        graph.output(graph.call_function(lambda x: say(x * 2), (graph.placeholder("x"),)))
        module = fxplug.GraphModule(model, graph)
    else:
        outer = nn.Sequential(model)
        module = fxplug.GraphModule(outer, _LeavingSays().trace(outer))
    with pytest.raises(
        DecompositionError, match=f"inside of it, {name} says whether a tensor has a gradient"
    ):
        decompose(module, PAIR)
    with torch.no_grad():
        found = decompose(module, PAIR)
        assert torch.equal(found(PAIR), model(PAIR))


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_named_tuples_come_out():
    found = assert_decomposes(lambda x: Point(x + 1, x * 2), PAIR)
    assert type(found(PAIR)) is Point


# -- what is known of the new nodes


def test_nodes_say_where_they_come_from():
    module = trace(Net())
    found = decompose(module, IMAGES)
    convolution = next(n for n in found.graph.nodes if n.target is torch.ops.aten.convolution.default)
    (origin,) = convolution.origins
    assert "self.conv(x)" in origin.source().text
    assert [(entry.name, entry.inside) for entry in origin.history] == [("decompose", False)]
    assert convolution.meta["decomposed_from"] == "conv: conv"
    for node in found.graph.nodes:
        if node.op == "call_function":
            assert node.origins, node
            assert node.meta["decomposed_from"], node


def test_what_is_inside_of_a_call_says_so():
    found = decompose(trace(nn.Sequential(nn.Softplus(), nn.Linear(4, 2))), PAIR)
    insides = [node.origins[0].history[-1].inside for node in found.graph.nodes if node.op == "call_function"]
    assert True in insides
    assert insides[-1] is False


def test_regions_without_gradients_stay():
    found = decompose(trace(without_gradients, PAIR), PAIR)
    regions = {str(node.target): [entry.context for entry in node.region] for node in found.graph.nodes}
    assert regions["aten.amax.default"] == [torch.no_grad]
    assert regions["aten.clone.default"] == [torch.no_grad]
    assert regions["aten.mul.Tensor"] == []


def test_casts_of_autocast_are_in_the_graph():
    found = decompose(trace(in_bfloat16, PAIR), PAIR)
    assert all(not node.region for node in found.graph.nodes)
    assert calls(found).count(torch.ops.aten._to_copy.default) == 3


# -- what it relies on


def test_other_sizes_dtypes_and_modes_are_refused():
    found = decompose(trace(Net()).eval(), IMAGES)
    with pytest.raises(GuardError, match=r"x\.shape == \(3, 3, 5, 5\), the sizes of the example inputs"):
        found(IMAGES[:2])
    with pytest.raises(GuardError, match=r"x\.dtype == torch\.float32"):
        found(IMAGES.double())
    with pytest.raises(GuardError, match=r"self\.training is False"):
        found.train()(IMAGES)


def scaled(x, scale, mask=None):
    return x * scale if mask is None else x * mask


def test_other_plain_values_are_refused():
    found = decompose(trace(scaled, PAIR, 2), PAIR, 2)
    assert torch.equal(found(PAIR, 2), PAIR * 2)
    with pytest.raises(GuardError, match="scale is 2, as in the example"):
        found(PAIR, 3)
    with pytest.raises(GuardError, match="mask is None"):
        found(PAIR, 2, PAIR)


def test_what_the_program_relied_on_is_still_checked():
    def program(x, n):
        return x + 1 if n > 3 else x

    module = fxplug.trace(program, (PAIR, 5), manager=NONE, on_guard_failure="eager")
    found = decompose(module, PAIR, 5)
    assert len(found.guards) > len(module.guards)
    assert torch.equal(found(PAIR, 1), PAIR)


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(75, 2)

    def forward(self, x):
        x = self.norm(x)
        return self.head(x.reshape(x.shape[0], -1)) * x.shape[0] + torch.zeros(x.shape[0], 2)


@pytest.mark.parametrize("to", TARGETS)
def test_a_named_size_stays_open(to):
    module = trace(Flat()).eval()
    found = decompose(module, IMAGES, to=to, dynamic={"x": {0: "batch"}})
    for batch in (2, 3, 40):
        x = torch.randn(batch, 3, 5, 5)
        torch.testing.assert_close(found(x), module(x))
    assert torch.ops.aten.sym_size.int in calls(found)
    with pytest.raises(GuardError, match=r"x\.shape\[0\] >= 2"):
        found(IMAGES[:1])
    with pytest.raises(GuardError, match=r"x\.shape\[2\] == 5, as in the example"):
        found(torch.randn(3, 3, 6, 5))


def halves(x, y):
    return (x[: x.shape[0] // 2] + 1, x.sum(1) * y) if x.shape[0] > 3 else x


def test_one_name_is_one_size_and_questions_become_guards():
    module = fxplug.symbolic_trace(lambda x, y: (x[: x.shape[0] // 2] + 1, x.sum(1) * y), manager=NONE)
    inputs = torch.randn(6, 4), torch.randn(6)
    found = decompose(module, *inputs, dynamic={0: {0: "n"}, 1: {-1: "n"}})
    other = torch.randn(9, 4), torch.randn(9)
    for ours, theirs in zip(found(*other), module(*other), strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(GuardError, match=r"y\.shape\[0\] == n"):
        found(torch.randn(9, 4), torch.randn(8))


def test_a_size_that_must_be_what_it_is_cannot_stay_open():
    module = trace(nn.Linear(4, 2))
    with pytest.raises(DecompositionError, match=r"node 'linear'.*the size 'width' open.*needs it to be 4"):
        decompose(module, PAIR, dynamic={0: {1: "width"}})


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"z": {0: "n"}}, "sizes of input 'z' open: there is no such input"),
        ({0: {5: "n"}}, "dimension 5 of input 0 open: it has 2 dimensions"),
        ({0: {0: "a b"}}, "call a size 'a b'"),
        ({0: {0: "n", 1: "n"}}, "it stands for sizes 3 and 4"),
    ],
)
def test_wrong_names_of_sizes(dynamic, message):
    with pytest.raises(InvalidArgumentError, match=message):
        decompose(trace(nn.Linear(4, 2)), PAIR, dynamic=dynamic)


# -- tables and decompositions


def test_a_table_replaces_operators():
    table = {torch.ops.aten.relu.default: lambda x: torch.ops.aten.clamp_min.default(x, 0)}
    found = decompose(trace(rectified), PAIR, to="aten", table=table)
    assert calls(found) == [torch.ops.aten.clamp_min.default]
    assert torch.equal(found(PAIR), PAIR.relu())


def test_a_table_entry_may_leave_a_call():
    table = {torch.ops.aten.relu.default: lambda x: NotImplemented}
    assert calls(decompose(trace(rectified), PAIR, to="aten", table=table)) == [torch.ops.aten.relu.default]


def test_decompositions_come_first():
    rule = fxplug.DecompositionRecord(torch.relu, lambda x: (x + x.abs()) / 2)
    module = trace(rectified)
    found = fxplug.decompose(module, (PAIR,), to="aten", decompositions=[rule])
    aten = torch.ops.aten
    assert calls(found) == [aten.abs.default, aten.add.Tensor, aten.div.Tensor]


# -- what cannot be


def asks_for_a_value(x):
    return x * x.sum().item()


def asks_for_places(x):
    return x[x > 0]


@pytest.mark.parametrize("program", [asks_for_a_value, asks_for_places])
def test_values_of_tensors_cannot_be_asked_for(program):
    module = fxplug.symbolic_trace(program, manager=NONE)
    with pytest.raises(
        DecompositionError, match=r"node '\w+'.*test_aten\.py:\d+.*depends on the values"
    ) as caught:
        decompose(module, PAIR)
    assert caught.value.code == "FXP-R001"


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def rounded(x):
    return Round.apply(x) * x


def test_gradients_of_ones_own_are_not_lost_silently():
    module = trace(rounded, PAIR)
    with pytest.raises(DecompositionError, match=r"gradient of 'Round' is Python code.*inside torch.no_grad"):
        decompose(module, PAIR)
    with torch.no_grad():
        found = decompose(module, PAIR)
    assert torch.equal(found(PAIR), rounded(PAIR))
    assert not found(PAIR.clone().requires_grad_()).requires_grad


def into_another(x):
    return torch.add(x, 1, out=torch.empty(3, 4)) * 2


def test_a_result_for_inference_computes_no_gradients():
    module = fxplug.symbolic_trace(into_another, manager=NONE)
    with pytest.raises(DecompositionError, match="support automatic differentiation"):
        decompose(module, PAIR)
    with torch.no_grad():
        found = decompose(module, PAIR)
    assert torch.equal(found(PAIR), into_another(PAIR))
    regions = {node.region for node in found.graph.nodes if node.op == "call_function"}
    assert [[entry.context for entry in region] for region in regions] == [[torch.no_grad]]


class Clamped(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.5, 0.5)
        return x * self.weight


def test_writes_that_gradients_do_not_see_are_refused():
    with pytest.raises(DecompositionError, match="writes without gradients to a tensor that has some"):
        decompose(trace(Clamped()), PAIR)


def through_detach(x):
    y = x * 2
    y.detach().add_(1)
    return y


def through_data(x):
    y = x * 2
    y.data.mul_(3)
    return y


def through_a_view(x):
    y = x * 2
    with torch.no_grad():
        y[0].add_(1)
    return y


@pytest.mark.parametrize("program", [through_detach, through_data, through_a_view])
def test_writes_past_autograd_are_refused(program):
    module = fxplug.symbolic_trace(program, manager=NONE)
    with pytest.raises(DecompositionError, match="writes without gradients to a tensor that has some"):
        decompose(module, PAIR)
    with torch.no_grad():
        found = decompose(module, PAIR)
    assert torch.equal(found(PAIR), module(PAIR))
    assert not found(PAIR.clone().requires_grad_()).requires_grad


def into_what_is_detached(x, weight):
    y = (x * 2).detach()
    y.mul_(weight)
    return y


def into_a_view_of_data(x, weight):
    y = (x * 2).data[1:]
    y.add_(weight[1:])
    return y


def into_what_is_detached_in_place(x, weight):
    y = x * 2
    y.detach_()
    y.copy_(weight)
    return y + 1


@pytest.mark.parametrize("core", [False, True])
@pytest.mark.parametrize(
    "program", [into_what_is_detached, into_a_view_of_data, into_what_is_detached_in_place]
)
def test_gradients_that_come_to_what_was_cut_off_from_one_are_not_lost(program, core):
    weight = torch.ones(3, 4, requires_grad=True)
    module = fxplug.symbolic_trace(program, manager=NONE)
    assert module(PAIR, weight).requires_grad
    to = "core-aten" if core else "aten"
    with pytest.raises(
        DecompositionError, match=r"cut off from one, which would be lost.*x\.detach\(\)\.clone\(\)"
    ):
        fxplug.decompose(module, (PAIR, weight), to=to)
    with torch.no_grad():
        found = fxplug.decompose(module, (PAIR, weight), to=to)
    assert torch.equal(found(PAIR, weight), module(PAIR, weight))


def test_weights_that_are_renormalised_are_refused():
    module = trace(nn.Sequential(nn.Embedding(10, 4, max_norm=1.0)))
    with pytest.raises(DecompositionError, match="writes without gradients to a tensor that has some"):
        decompose(module, torch.tensor([1, 2]))


@pytest.mark.parametrize("to", TARGETS)
def test_random_slopes_have_their_gradient(to):
    module = fxplug.symbolic_trace(lambda x: F.rrelu(x, 0.2, 0.4, training=True), manager=NONE)
    x = torch.tensor([-1.0, 2.0, -3.0], requires_grad=True)
    result = decompose(module, x, to=to)(x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(gradient, (result / x).detach())
    assert gradient[1] == 1
    assert 0.2 <= gradient[0] <= 0.4


def test_hooks_are_refused():
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda module, args, value: value * 2)
    with pytest.raises(DecompositionError, match=r"'0' \(Linear\) has hooks"):
        decompose(trace(model), PAIR)


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        whole = torch.zeros(8)
        self.register_buffer("low", whole[:4])
        self.register_buffer("all", whole)

    def forward(self, x):
        self.low.add_(x[0])
        return x + self.all[:4]


def test_writes_to_shared_memory_are_refused():
    with pytest.raises(DecompositionError, match="'low', which shares its memory"):
        decompose(trace(Halves(), PAIR), PAIR)


def turned(x):
    x.t_()
    return x + 1


def test_changed_layouts_of_inputs_are_refused():
    with pytest.raises(DecompositionError, match="sizes or the layout of 'x' in place"):
        decompose(fxplug.symbolic_trace(turned, manager=NONE), PAIR)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "cuda"}, "to 'cuda': the targets are 'aten', 'core-aten'"),
        ({"example_inputs": (PAIR,)}, "example_inputs alone: say what to decompose to"),
        ({"to": "aten", "table": {torch.relu: torch.relu}}, "A table has overloads of operators"),
    ],
)
def test_arguments_that_do_not_go_together(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        fxplug.decompose(trace(rectified), manager=NONE, **options)


@pytest.mark.parametrize("inputs", [(), (PAIR, PAIR), ({PAIR},)])
def test_inputs_that_do_not_fit(inputs):
    with pytest.raises(DecompositionError, match=r"no example for|2 examples for 1|is a builtins\.set"):
        decompose(trace(rectified), *inputs)


def test_what_happens_outside_happens_when_it_runs(capsys):
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    shown = graph.call_function(torch.add, (x, 1))
    graph.call_function(print, ("seen", shown))
    graph.output(shown)
    module = fxplug.GraphModule(nn.Module(), graph)
    found = decompose(module, torch.zeros(1))
    assert capsys.readouterr().out == ""
    found(torch.zeros(1))
    assert capsys.readouterr().out == "seen tensor([1.])\n"


def test_the_result_can_be_saved_and_loaded(tmp_path):
    found = decompose(trace(Net()).eval(), IMAGES)
    fxplug.save(found, tmp_path / "net.fxp")
    loaded = fxplug.load(tmp_path / "net.fxp")
    assert torch.equal(loaded(IMAGES), found(IMAGES))
    with pytest.raises(GuardError):
        loaded(IMAGES[:1])


@pytest.mark.parametrize("to", TARGETS)
def test_inputs_that_share_memory_are_refused_where_one_is_written_to(to, tmp_path):
    def written(x, y):
        x.add_(1)
        return x * y

    def read(x, y):
        return x * y

    shared = torch.ones(3)
    result = decompose(trace(written), torch.ones(3), torch.ones(3), to=to)
    fxplug.save(result, tmp_path / "written.fxplug")
    for module in (result, fxplug.load(tmp_path / "written.fxplug")):
        with pytest.raises(
            GuardError, match="x and y sharing no memory, as the program writes to one of them"
        ):
            module(shared, shared[:3])
        assert shared.tolist() == [1.0, 1.0, 1.0]
        assert module(torch.ones(3), torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert decompose(trace(read), torch.ones(3), torch.ones(3), to=to)(shared, shared).tolist() == [1.0] * 3


@pytest.mark.parametrize("spelling", ["contiguous", "reshape", "flatten", "Flatten"])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_strides_are_guarded_where_they_decide_what_is_written_to(spelling, is_transposed):
    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.flatten = nn.Flatten(0)

        def forward(self, x):
            if spelling == "Flatten":
                y = self.flatten(x)
            else:
                y = getattr(x, spelling)(*([-1] if spelling == "reshape" else []))
            y.add_(1)
            return x * 2

    def image(transposed):
        return torch.zeros(2, 3).t() if transposed else torch.zeros(3, 2)

    module = trace(Program())
    result = decompose(module, image(is_transposed))
    ours, theirs = image(is_transposed), image(is_transposed)
    assert_same(result(ours), module(theirs))
    assert_same(ours, theirs)
    with pytest.raises(GuardError, match=r"x\.stride\(\) == "):
        result(image(not is_transposed))


def test_strides_are_free_where_they_decide_nothing_that_is_written_to():
    class Program(nn.Module):
        def forward(self, x):
            return F.relu(x.contiguous() * 2, inplace=True)

    result = decompose(trace(Program()), torch.ones(3, 2))
    assert result(torch.ones(2, 3).t()).tolist() == [[2.0, 2.0]] * 3


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (lambda x, places: torch.take_along_dim(x, places, 1), (3, 4)),
        (lambda x, places: x.take_along_dim(indices=places, dim=-1), (3, 4)),
        (lambda x, places: torch.take_along_dim(input=x[:1], indices=places, dim=1), (3, 4)),
        (lambda x, places: torch.take_along_dim(x, places, None), (3, 2)),
    ],
    ids=["function", "method", "broadcast", "flat"],
)
def test_take_along_dim_leaves_sizes_open(program, sizes):
    def example(count):
        generator = torch.Generator().manual_seed(count)
        x = torch.randn(count, sizes[0], generator=generator)
        return x, torch.randint(0, sizes[0], (count, sizes[1]), generator=generator)

    module = fxplug.decompose(
        fxplug.symbolic_trace(program, manager=NONE), example(3), to="aten", manager=NONE,
        dynamic={0: {0: "n"}, 1: {0: "n"}},
    )  # fmt: skip

    assert "aten.gather.default" in {str(node.target) for node in module.graph.nodes}
    for count in (2, 3, 7):
        assert torch.equal(module(*example(count)), program(*example(count)))


def test_take_along_dim_of_other_ranks_is_refused_as_in_eager():
    module = fxplug.symbolic_trace(lambda x, places: torch.take_along_dim(x, places, 1), manager=NONE)

    with pytest.raises(fxplug.FxplugError, match="should have the same number of dimensions"):
        fxplug.decompose(
            module,
            (torch.ones(2, 3), torch.zeros(2, 3, 1, dtype=torch.int64)),
            to="aten",
            manager=NONE,
            dynamic={0: {0: "n"}},
        )
