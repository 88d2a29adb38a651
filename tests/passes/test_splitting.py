"""Splitting: nothing is lost, nothing changes places that must not, and what cannot be split says why."""

from __future__ import annotations

import operator
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import InvalidArgumentError, PartitionError
from fxplug.execute import GraphModule
from fxplug.ir import Origin, RegionEntry, effects
from fxplug.ir.effects import Effect
from fxplug.passes import split_by_tags

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def by_name(**places):
    """Return a callback that puts nodes into partitions by their names; the rest goes into 0."""
    return lambda node: places.get(node.name, 0)


def split(program, **places):
    return fxplug.split_module(fxplug.symbolic_trace(program), None, by_name(**places))


def names(module):
    return [node.name for node in module.graph.nodes if node.op.startswith("call_")]


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("shift", torch.ones(3), persistent=False)
        self.linear = nn.Linear(3, 3)

    def forward(self, x, factor=2, unused=None):
        first = self.linear(x * self.scale) * factor
        second = self.linear(first) + self.scale + self.shift
        return {"second": second, "both": (first, [second, 1])}


# -- what partitions are


def test_partitions_share_modules_parameters_defaults_and_nested_outputs():
    model = Shared()
    module = fxplug.symbolic_trace(model)
    result = fxplug.split_module(module, model, lambda node: int(node.name in {"linear_1", "add", "add_1"}))

    result.graph.lint()
    assert result.submod_0.linear is result.submod_1.linear is model.linear
    assert result.scale is model.scale
    assert [node.target for node in result.graph.find_nodes(op="placeholder")] == ["x", "factor", "unused"]
    assert "shift" not in result.state_dict()
    for given in ((X,), (X, 3)):
        torch.testing.assert_close(result(*given), model(*given), rtol=0, atol=0)
    assert names(module) == ["mul", "linear", "mul_1", "linear_1", "add", "add_1"]  # As it was.


def test_notes_origins_regions_and_types_are_kept():
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    origin = Origin(None, made_by="somebody")
    region = (RegionEntry(torch.no_grad),)
    first = graph.call_function(torch.sin, (x,), type_expr=torch.Tensor)
    second = graph.call_function(torch.cos, (first,))
    for node in (first, second):
        node.origins, node.region, node.meta["mine"] = (origin,), region, {"list": [node]}
    graph.output(second)
    module = GraphModule({}, graph)

    result = fxplug.split_module(module, None, by_name(cos=1))

    inner = next(iter(result.submod_0.graph.find_nodes(op="call_function")))
    assert (inner.origins, inner.region, inner.type) == ((origin,), region, torch.Tensor)
    assert inner.meta["mine"]["list"] == [inner]
    inner.meta["mine"]["list"].append(1)
    assert first.meta["mine"]["list"] == [first]
    assert not result(X.clone().requires_grad_()).requires_grad


def test_a_region_across_partitions_is_entered_in_each():
    def program(x):
        with torch.no_grad():
            y = torch.sin(x)
            z = torch.cos(y)
        return z * x, torch.is_grad_enabled

    module = fxplug.symbolic_trace(lambda x: program(x)[0])
    result = fxplug.split_module(module, None, by_name(cos=1, mul=2))
    x = X.clone().requires_grad_()
    result(x).sum().backward()

    assert torch.equal(x.grad, X.sin().cos())


def test_facts_about_values_stay_with_values():
    module = fxplug.symbolic_trace(lambda x: torch.sin(x) + torch.cos(x))
    fxplug.analyze.ShapeProp(module).propagate(X)
    result = fxplug.split_module(module, None, by_name(add=1))

    shapes = {
        node.name: node.meta["tensor_meta"].shape for node in result.graph.nodes if node.op == "call_function"
    }
    assert shapes == {"getitem": X.shape, "getitem_1": X.shape}
    assert result.graph.find_nodes(op="call_module")[1].meta["tensor_meta"].shape == X.shape


def test_a_partition_that_returns_nothing_runs_for_its_effect():
    module = fxplug.symbolic_trace(lambda x, total: (total.add_(1), x * 2)[1])
    result = fxplug.split_module(module, None, by_name(mul=1))
    total = torch.zeros(3)

    assert torch.equal(result(X, total), X * 2)
    assert torch.equal(total, torch.ones(3))
    assert result.submod_0.graph.output_node().args == ((),)


def test_what_a_file_of_the_original_holds_is_loaded():
    model, other = Shared(), Shared()
    result = fxplug.split_module(fxplug.symbolic_trace(model), None, by_name(linear_1=1, add=1, add_1=1))
    fxplug.load_original_state_dict(result, {key: value + 1 for key, value in other.state_dict().items()})

    assert torch.equal(model.scale, other.scale + 1)
    assert torch.equal(result.submod_1.linear.weight, other.linear.weight + 1)


def test_dotted_paths_do_not_collide_where_torch_fx_flattens_them():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Sequential(nn.Linear(3, 3))
            self.a_0 = nn.Linear(3, 3)

        def forward(self, x):
            return self.a_0(self.a(x))

    model = Model()
    mapping = {}
    result = fxplug.split_module(fxplug.symbolic_trace(model), None, lambda node: 0, mapping)

    assert mapping == {"submod_0.a.0": "a.0", "submod_0.a_0": "a_0"}
    assert torch.equal(result(X), model(X))


def test_constants_and_keyword_only_parameters_and_structures_come_along():
    def program(pair, *, weight=1.5):
        return {"sum": pair["a"] * torch.tensor([1.0, 2.0, 3.0]) + weight, "rest": pair["b"]}

    inputs = {"a": X, "b": 1}
    module = fxplug.trace(program, (inputs,))
    result = fxplug.split_module(module, None, by_name(add=1))

    torch.testing.assert_close(result(inputs), program(inputs))
    assert result.graph.keyword_only == module.graph.keyword_only
    assert result.guard_set is module.guard_set


def test_names_are_kept_where_that_is_asked_for():
    module = fxplug.symbolic_trace(lambda x: torch.relu(torch.relu(torch.relu(x))))
    place = {"relu": 0, "relu_1": 1, "relu_2": 1}
    kept = fxplug.split_module(module, None, lambda node: place[node.name], keep_original_node_name=True)
    fresh = fxplug.split_module(
        module,
        None,
        lambda node: place[node.name],
        keep_original_input_name=False,
        partition_affix="pp",
        tuple_return=True,
    )

    assert names(kept.submod_1) == ["relu_1", "relu_2"]
    assert next(iter(kept.submod_1.graph.nodes)).name == "relu"
    assert [node.name for node in fresh.submod_pp_1.graph.nodes] == ["arg_0", "relu", "relu_1", "output"]
    assert [type(fresh.submod_pp_1(X)), len(fresh.submod_pp_1(X))] == [tuple, 1]
    assert torch.equal(fresh(X), torch.relu(X))


def test_a_program_without_calls_and_one_without_output():
    assert torch.equal(fxplug.split_module(fxplug.symbolic_trace(lambda x: x), None, str)(X), X)
    graph = fxplug.Graph()
    graph.call_method("add_", (graph.placeholder("x"), 1))
    result = fxplug.split_module(GraphModule({}, graph), None, lambda node: 0)
    x = torch.zeros(2)

    assert result(x) is None
    assert torch.equal(x, torch.ones(2))


def test_the_graph_still_knows_its_module():
    module = fxplug.symbolic_trace(Shared())
    graph = module.graph
    fxplug.split_module(module, None, lambda node: 0)

    assert graph.owning_module is module


def test_a_module_is_split_twice():
    module = fxplug.symbolic_trace(lambda x: torch.cos(torch.sin(torch.relu(x))))
    once = fxplug.split_module(module, None, by_name(cos=1))
    twice = fxplug.split_module(once, None, lambda node: node.target[-1])

    assert torch.equal(twice(X), module(X))
    by = fxplug.split_by(once, lambda node: node.target == "submod_1")
    assert torch.equal(by(X), module(X))
    assert [node.target for node in by.graph.find_nodes(op="call_module")] == ["submod_0", "submod_2"]


# -- order of effects


def noisy(value):
    """A function of which nobody knows what it does."""
    value += 100
    return value


fxplug.wrap(noisy)


class Early(nn.Module):
    """Computes something of its own first, so that the last partition would come first if only values counted."""

    def __init__(self, program):
        super().__init__()
        self.own = nn.Parameter(torch.ones(3))
        self.program = program

    def forward(self, x, y):
        early = torch.exp(self.own)
        return self.program(*(x, y)[: self.program.__code__.co_argcount]), early


def write_then_read(x):
    y = x * 1
    z = y + 0
    y.add_(1)
    return y * 2, z


def write_through_a_view(x):
    y = x * 1
    row = y[0]
    row.mul_(5)
    return y.sum()


def write_of_what_a_view_shows(x):
    y = x * 1
    row = y[0]
    y.mul_(5)
    return row.sum()


def two_draws(x):
    return F.dropout(x, training=True), torch.rand_like(x)


def item_assignment(x):
    y = x.clone()
    y[0] = 7
    return y + 1


def out_argument(x):
    target = torch.zeros_like(x)
    torch.add(x, 1, out=target)
    return target * 2


def read_before_write(x):
    y = x * 1
    before = y.sum()
    y.mul_(2)
    return before


def two_writes(x):
    y = x * 1
    y.mul_(2)
    y.add_(1)
    return x


def two_inputs_that_may_be_one(x, y):
    y.add_(1)
    return x * 2


ORDERS = {
    # program, the nodes that have to run first, the nodes that have to run behind them
    "a write before a read": (write_then_read, {"add_"}, {"mul_1"}),
    "a write through a view": (write_through_a_view, {"mul_"}, {"sum_1"}),
    "a write of what a view shows": (write_of_what_a_view_shows, {"mul_"}, {"sum_1"}),
    "two draws": (two_draws, {"dropout"}, {"rand_like"}),
    "an item assignment": (item_assignment, {"setitem"}, {"add"}),
    "an out argument": (out_argument, {"add"}, {"mul"}),
    "a read before a write": (read_before_write, {"sum_1"}, {"mul_"}),
    "two writes": (two_writes, {"mul_"}, {"add_"}),
    "inputs that may be one tensor": (two_inputs_that_may_be_one, {"add_"}, {"mul"}),
}


@pytest.mark.parametrize("case", ORDERS.values(), ids=ORDERS)
def test_effects_happen_in_their_order_where_values_alone_would_allow_another(case):
    program, first, second = case
    module = fxplug.symbolic_trace(Early(program))
    assert first | second <= set(names(module))
    place = {
        name: "a" if name in first else "b" if name in second or name == "exp" else "c"
        for name in names(module)
    }
    given, expected_inputs = [X.clone()] * 2, [X.clone()] * 2
    torch.manual_seed(3)
    expected = program(*expected_inputs[: program.__code__.co_argcount])
    result = fxplug.split_module(module, None, lambda node: place[node.name])
    torch.manual_seed(3)
    found, _ = result(*given)

    order = [node.target for node in result.graph.find_nodes(op="call_module")]
    assert order.index("submod_a") < order.index("submod_b")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(given, expected_inputs, rtol=0, atol=0)


CYCLES = {
    # Both ends in one partition, what lies between for its effect in another.
    "a write between reads": (
        lambda x: ((y := x * 1), (a := y + 1), y.add_(1), a * y)[-1],
        {"add_"},
    ),
    "a read between writes": (lambda x: (x.add_(1), (a := x * 2), x.mul_(3), a + x)[-1], {"mul"}),
    "a draw between draws": (
        lambda x: torch.rand_like(x) + (b := torch.randn_like(x)) + torch.rand_like(b * 0 + x),
        {"randn_like"},
    ),
    "a call that nobody knows": (lambda x: (torch.sin(x), noisy(x), torch.cos(x))[2], {"noisy"}),
}


@pytest.mark.parametrize("case", list(CYCLES))
def test_a_split_that_would_reorder_effects_is_refused_and_names_the_nodes(case):
    program, inside = CYCLES[case]
    module = fxplug.symbolic_trace(program)

    with pytest.raises(PartitionError) as caught:
        fxplug.split_module(module, None, lambda node: int(node.name in inside))

    assert caught.value.code == "FXP-G030"
    assert "'submod_0' needs 'submod_1'" in str(caught.value)
    assert "'submod_1' needs 'submod_0'" in str(caught.value)
    assert any(repr(name) in str(caught.value) for name in inside)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        first = self.norm(x)
        before = self.norm.running_mean * 1
        second = self.norm(x * 2)
        return first, before, second, self.norm.running_mean + 0


def test_statistics_that_training_writes_are_read_and_written_in_order():
    model, twin = Normed(), Normed()
    module = fxplug.symbolic_trace(model)
    result = fxplug.split_module(module, None, lambda node: f"{'b' if node.name == 'norm_1' else node.name}")

    torch.testing.assert_close(result(X), twin(X), rtol=0, atol=0)
    assert torch.equal(model.norm.running_mean, twin.norm.running_mean)
    assert int(model.norm.num_batches_tracked) == 2
    with pytest.raises(PartitionError, match="effects would happen in another order"):
        fxplug.split_module(module, None, by_name(mul=1))  # The mean is read between two calls that write it.
    model.eval()
    fxplug.split_module(fxplug.symbolic_trace(model), None, by_name(mul=1))


def test_a_weight_that_is_written_is_read_behind_that_by_the_module_that_holds_it():
    graph = fxplug.Graph()
    x, weight = graph.placeholder("x"), graph.get_attr("linear.weight")
    early = graph.call_function(torch.exp, (x,))
    graph.call_method("mul_", (weight, 2))
    graph.output((early, graph.call_module("linear", (x,))))
    linear = nn.Linear(3, 3, bias=False).requires_grad_(False)
    module = GraphModule(nn.ModuleDict({"linear": linear}), graph)
    expected = X @ (linear.weight * 2).t()
    result = fxplug.split_module(module, None, by_name(exp=1, linear=1))

    torch.testing.assert_close(result(X)[1], expected)


def test_independent_writes_are_no_reason_to_refuse():
    def program(x):
        first, second = x * 1, x * 2
        first.add_(1)
        second.add_(2)
        first.mul_(3)
        second.mul_(4)
        return first + second

    result = split(program, mul_1=1, add__1=1, mul__1=1, add=2)

    assert torch.equal(result(X), program(X))


def test_checks_stay_before_writes():
    """A check that fails before anything was written lets the program run again."""
    graph = fxplug.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.call_method("add_", (y, 1))
    graph.call_function(torch._assert, (x, "no"))
    graph.call_method("mul_", (y, 2))
    graph.output(x)
    module = GraphModule({}, graph)

    with pytest.raises(PartitionError, match="_assert"):
        fxplug.split_module(module, None, by_name(_assert=1))


def test_what_reads_state_that_others_may_write_is_not_moved():
    def peek():
        return torch.zeros(())

    graph = fxplug.Graph()
    x = graph.placeholder("x")
    x2 = graph.call_method("add_", (x, 1))
    peeked = graph.call_function(peek)
    x3 = graph.call_method("add_", (x2, 1))
    graph.output((peeked, x3))
    effects.register_target(peek, Effect(reads_state=True))
    try:
        with pytest.raises(PartitionError, match="peek"):
            fxplug.split_module(GraphModule({}, graph), None, by_name(peek=1))
    finally:
        effects.unregister_target(peek)


# -- errors


def test_partitions_that_need_each_other_are_named_with_the_nodes():
    with pytest.raises(PartitionError) as caught:
        split(lambda x: torch.sin(torch.cos(torch.sin(x))), cos=1)

    assert str(caught.value) == (
        "Cannot split the module: partitions need each other: 'submod_0' needs 'submod_1' (its node 'sin_1' uses "
        "'cos'), 'submod_1' needs 'submod_0' (its node 'cos' uses 'sin'). Put these nodes into one partition, or what "
        "lies between them into partitions of its own. [FXP-G030]"
    )


def test_the_original_order_is_refused_where_it_cannot_be():
    module = fxplug.symbolic_trace(lambda x: torch.tanh(x) + torch.sin(torch.cos(x)))
    place = {"tanh": "first", "cos": "second", "sin": "second", "add": "first"}
    result = fxplug.split_module(module, None, lambda node: place[node.name])

    assert [node.target for node in result.graph.find_nodes(op="call_module")] == [
        "submod_second",
        "submod_first",
    ]
    with pytest.raises(PartitionError, match="'submod_first' has the first node and needs 'submod_second'"):
        fxplug.split_module(module, None, lambda node: place[node.name], keep_original_order=True)


def test_in_the_original_order_attributes_are_read_where_they_are_used():
    module = fxplug.symbolic_trace(Shared())
    result = fxplug.split_module(module, None, by_name(linear_1=1, add=1, add_1=1), keep_original_order=True)
    opcodes = [node.op for node in result.graph.nodes if node.op in {"get_attr", "call_module"}]

    assert opcodes == ["get_attr", "call_module", "get_attr", "call_module"]
    torch.testing.assert_close(result(X), module(X))


@pytest.mark.parametrize("answer", [1.5, "a.b", ""])
def test_a_name_that_no_submodule_can_have_is_refused(answer):
    with pytest.raises(InvalidArgumentError, match="node 'sin' would be called"):
        fxplug.split_module(fxplug.symbolic_trace(lambda x: x.sin()), None, lambda node: answer)


def test_an_attribute_with_the_name_of_a_partition_is_refused():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.submod_0 = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x + self.submod_0

    with pytest.raises(PartitionError, match="it holds 'submod_0' already"):
        fxplug.split_module(fxplug.symbolic_trace(Model()), None, lambda node: 0)


# -- by tags


def test_tags_become_submodules_in_their_order():
    model = Shared()
    module = fxplug.symbolic_trace(model)
    for node in module.graph.nodes:
        node.meta["tag"] = "head" if node.name in {"linear_1", "add", "add_1"} else "trunk"
    result, mapping = split_by_tags(module, ["trunk", "head"], return_fqn_mapping=True, return_tuple=True)

    assert [node.target for node in result.graph.find_nodes(op="call_module")] == ["trunk", "head"]
    assert mapping == {"linear": "head.linear", "shift": "head.shift"}
    torch.testing.assert_close(result(X), model(X))
    with pytest.raises(
        PartitionError, match=r"'head' would run before 'trunk'.*'linear_1' has to run behind 'mul_1'"
    ):
        split_by_tags(module, ["head", "trunk"])
    with pytest.raises(PartitionError, match="has the tag 'head', and listed are"):
        split_by_tags(module, ["trunk"])


# -- by size


def layers(*widths, tied=False):
    parts = [nn.Linear(before, after, bias=False) for before, after in pairwise(widths)]
    if tied:
        parts[-1].weight = parts[0].weight
    return fxplug.symbolic_trace(nn.Sequential(*parts).eval())


def sizes(module):
    return [sum(4 * parameter.numel() for parameter in part.parameters()) for part in module.children()]


def test_parts_are_as_even_as_they_can_be():
    module = layers(10, 10, 10, 10, 20, 10)  # 400, 400, 400, 800, 800 bytes.

    assert sizes(fxplug.split_by_size(module, 1)) == [2800]
    assert sizes(fxplug.split_by_size(module, 2)) == [1200, 1600]
    assert sizes(fxplug.split_by_size(module, 3)) == [1200, 800, 800]
    assert sizes(fxplug.split_by_size(module, 5)) == [400, 400, 400, 800, 800]
    with pytest.raises(PartitionError, match="into 6 parts: it has 5 calls"):
        fxplug.split_by_size(module, 6)


def test_parts_hold_no_more_than_they_may():
    module = layers(10, 10, 10, 10, 20, 10)
    result = fxplug.split_by_size(module, max_bytes=900)
    x = torch.randn(2, 10)

    assert sizes(result) == [800, 400, 800, 800]
    assert torch.equal(result(x), module(x))
    assert not list(result.parameters(recurse=False))
    with pytest.raises(PartitionError, match="node '_3' alone uses 800"):
        fxplug.split_by_size(module, max_bytes=500)


def test_a_tied_weight_counts_in_each_part_that_uses_it_and_once_in_it():
    module = layers(10, 10, 10, 10, tied=True)  # The first and the last one are the same.

    assert sizes(fxplug.split_by_size(module, max_bytes=400)) == [400, 400, 400]
    assert sizes(fxplug.split_by_size(module, max_bytes=800)) == [800]


def test_weights_may_be_anything_that_is_counted():
    module = fxplug.symbolic_trace(lambda x: torch.cos(torch.sin(torch.tanh(torch.relu(x)))))
    costs = {"relu": 0.5, "tanh": 5.5, "sin": 3.0, "cos": 2.0}
    result = fxplug.split_by_size(module, 2, weigh=lambda node: costs[node.name])

    assert [names(part) for part in result.children()] == [["relu", "tanh"], ["sin", "cos"]]
    even = fxplug.split_by_size(module, 3, weigh=lambda node: 0)
    assert len(list(even.children())) == 3
    with pytest.raises(InvalidArgumentError, match="node 'relu' would weigh -1"):
        fxplug.split_by_size(module, 2, weigh=lambda node: -1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "give either the number of parts"),
        ({"parts": 2, "max_bytes": 4}, "give either the number of parts"),
        ({"max_bytes": 4, "weigh": len}, "give either the number of parts"),
        ({"parts": 0}, "0 is no positive whole number"),
        ({"max_bytes": 1.5}, "1.5 is no positive whole number"),
        ({"parts": True}, "True is no positive whole number"),
    ],
)
def test_wrong_sizes_are_refused(arguments, text):
    with pytest.raises(InvalidArgumentError, match=text):
        fxplug.split_by_size(layers(2, 2), **arguments)


# -- by a predicate


def test_as_few_submodules_as_possible_and_the_rest_stays():
    def program(x):
        left = torch.sin(torch.sin(x))
        right = torch.sin(torch.cos(x))
        return torch.sin(left + right) + torch.cos(left)

    module = fxplug.symbolic_trace(program)
    result = fxplug.split_by(module, lambda node: node.target is torch.sin)

    assert [names(part) for part in result.children()] == [["sin", "sin_1", "sin_2"], ["sin_3"]]
    stay = [node.name for node in result.graph.nodes if node.target is not operator.getitem]
    assert [name for name in stay if name in names(module)] == ["cos", "add", "cos_1", "add_1"]
    torch.testing.assert_close(result(X), program(X), rtol=0, atol=0)
    blocks = fxplug.split_by(module, lambda node: node.target is torch.sin, min_block_size=2)
    assert [names(part) for part in blocks.children()] == [["sin", "sin_1", "sin_2"]]
    torch.testing.assert_close(blocks(X), program(X), rtol=0, atol=0)


def test_parameters_of_one_submodule_are_in_it_and_those_of_several_are_handed_in():
    model = Shared()
    module = fxplug.symbolic_trace(model)
    result = fxplug.split_by(module, lambda node: node.name in {"mul", "linear_1", "add", "add_1"})

    assert [names(part) for part in result.children() if isinstance(part, GraphModule)] == [
        ["mul"],
        ["linear_1", "add", "add_1"],
    ]
    assert list(dict(result.named_buffers())) == ["submod_1.shift"]
    assert result.scale is model.scale
    torch.testing.assert_close(result(X), model(X))


def test_sets_come_into_one_submodule_or_into_none():
    def program(x):
        a = torch.sin(x)
        b = torch.cos(a)
        c = torch.sin(b)
        return torch.tanh(c) + a

    module = fxplug.symbolic_trace(program)
    node = {node.name: node for node in module.graph.nodes}

    def parts(chosen, *together):
        result = fxplug.split_by(
            module,
            lambda node: node.name in chosen,
            together=[[node[name] for name in one] for one in together],
        )
        torch.testing.assert_close(result(X), program(X), rtol=0, atol=0)
        return [names(part) for part in result.children()]

    assert parts({"sin", "sin_1", "tanh"}) == [["sin"], ["sin_1", "tanh"]]
    # What lies between them cannot come along.
    assert parts({"sin", "sin_1", "tanh"}, ["sin", "sin_1"]) == [["tanh"]]
    assert parts({"sin", "sin_1", "cos"}, ["sin", "sin_1"]) == [["sin", "cos", "sin_1"]]
    assert parts({"sin", "tanh", "add"}, ["sin", "cos"]) == [["tanh", "add"]]
    with pytest.raises(PartitionError, match="it is no call of this graph"):
        fxplug.split_by(module, lambda node: True, together=[[node["x"]]])


def test_a_write_outside_divides_what_reads_before_and_after_it():
    module = fxplug.symbolic_trace(write_then_read)
    result = fxplug.split_by(module, lambda node: node.name != "add_")

    assert [names(part) for part in result.children()] == [["mul", "add"], ["mul_1"]]
    torch.testing.assert_close(result(X), write_then_read(X), rtol=0, atol=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda module: fxplug.split_module(module, None, lambda _: 0),
        lambda module: fxplug.split_by(module, lambda _: True),
        lambda module: fxplug.split_by_size(module, 2),
        lambda module: split_by_tags(module, ["a"]),
    ],
    ids=["module", "predicate", "size", "tags"],
)
def test_a_module_without_a_graph_is_to_be_traced_first(call):
    with pytest.raises(InvalidArgumentError, match=r"Cannot split a torch\.nn\..*Linear: .* Trace it first"):
        call(nn.Linear(3, 3))
