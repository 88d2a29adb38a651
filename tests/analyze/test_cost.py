"""Costs are those that one counts by hand."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug import CallCost, FlopFormulaRecord
from fxplug.analyze import builtin_formulas, cost_table, propagate_shapes
from fxplug.errors import AnalysisError
from fxplug.plugins import PluginManager

NONE = PluginManager(candidates=[], environ={})


def costs(program, *inputs):
    return fxplug.cost(program, inputs, manager=NONE)


def call_relu(x):
    return torch.relu(x)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1, groups=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        return self.linear(x.mean((2, 3))) + 1


def test_a_small_network_counted_by_hand():
    table = costs(Small().eval(), torch.randn(2, 3, 8, 8))

    features = 2 * 8 * 4 * 4
    assert {node.name: node.multiply_adds for node in table.nodes} == {
        "conv": features * 3 * 3 * 3,
        "norm": features,
        "relu": 0,
        "mean": features,
        "linear": 2 * 5 * 8,
        "add": 2 * 5,
    }
    assert table.unknown == ()
    assert table.multiply_adds == features * 27 + 2 * features + 90
    conv, norm = table.nodes[:2]
    assert (conv.bytes_read, conv.bytes_written) == (4 * (2 * 3 * 64 + 8 * 27 + 8), 4 * features)
    # Weight, bias, mean and variance of 8 channels, and a count of 8 bytes.
    assert norm.bytes_read == 4 * (features + 4 * 8) + 8
    assert (conv.dtype, conv.target, conv.op) == ("float32", "Conv2d", "call_module")


@pytest.mark.parametrize(
    ("program", "shapes", "expected"),
    [
        (lambda a, b: a @ b, [(2, 3, 4), (2, 4, 5)], 2 * 3 * 5 * 4),
        (torch.matmul, [(3, 4), (4,)], 3 * 4),
        (lambda a, b: a.matmul(b), [(3, 4), (4, 5)], 60),
        (torch.bmm, [(2, 3, 4), (2, 4, 5)], 120),
        (torch.addmm, [(3, 5), (3, 4), (4, 5)], 60),
        (torch.ops.aten.mm.default, [(3, 4), (4, 5)], 60),
        (lambda x, w: F.conv2d(x, weight=w, groups=2), [(1, 4, 5, 5), (6, 2, 3, 3)], 6 * 3 * 3 * 2 * 9),
        (lambda x, w: F.conv_transpose1d(x, w, stride=2), [(1, 3, 4), (3, 2, 5)], 12 * 2 * 5),
        (
            F.scaled_dot_product_attention,
            [(2, 4, 8), (2, 6, 8), (2, 6, 3)],
            2 * 4 * 6 * 11,
        ),
        (lambda x: F.batch_norm(x, None, None, training=True), [(4, 2)], 3 * 8),
        (lambda x: F.layer_norm(x, (4,)), [(2, 4)], 3 * 8),
        (lambda x: x * 2 + torch.exp(x), [(3, 4)], 36),
        (lambda x: x.view(12).relu(), [(3, 4)], 0),
    ],
)
def test_calls_in_all_spellings(program, shapes, expected):
    def call(*args):
        return program(*args)

    table = costs(call, *[torch.randn(shape) for shape in shapes])

    assert table.unknown == ()
    assert table.multiply_adds == expected


def test_attention_module():
    width, targets, sources, batch = 8, 3, 5, 2
    module = nn.MultiheadAttention(width, 2, batch_first=True).eval()
    query, key = torch.randn(batch, targets, width), torch.randn(batch, sources, width)

    table = costs(lambda q, k: q, query, key)
    assert table.multiply_adds == 0

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = module

        def forward(self, q, k):
            return self.attention(q, k, k)[0]

    projections = batch * width * width * (2 * targets + 2 * sources)
    assert (
        costs(Model().eval(), query, key).multiply_adds == projections + 2 * batch * targets * sources * width
    )


def test_a_view_moves_nothing_and_a_lookup_reads_its_rows_only():
    table = costs(lambda x: x.view(12), torch.randn(3, 4))
    assert table.nodes[0].bytes == 0

    (node,) = costs(nn.Sequential(nn.Embedding(1000, 4)), torch.zeros(3, dtype=torch.int64)).nodes
    assert (node.bytes_read, node.bytes_written) == (3 * 4 * 4 + 3 * 8, 3 * 4 * 4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.drop = nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Dropout()

    def forward(self, x):
        return self.drop(self.linear(self.norm(x)))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Block()
        self.more = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        with torch.no_grad():
            y = self.first(x)
        with torch.autocast("cpu", torch.bfloat16):
            for block in self.more:
                y = block(y)
        return y + x


@pytest.mark.parametrize(("training", "block"), [(False, 12 + 48), (True, 36 + 48 + 12)])
def test_what_is_captured_costs_what_the_module_costs(training, block):
    model = Nested().train(training)
    x = torch.randn(3, 4)

    table = costs(model, x)
    assert table.unknown == ()
    assert table.multiply_adds == 3 * block + 12

    traced = fxplug.symbolic_trace(model, manager=NONE)
    assert costs(traced, x) == costs(fxplug.trace(model, (x,), manager=NONE), x) == table

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = traced

        def forward(self, x):
            return self.inner(x) * 2

    assert costs(Outer(), x).multiply_adds == table.multiply_adds + 12


def test_the_dtype_is_that_in_which_a_node_computes():
    dtypes = {node.name: node.dtype for node in costs(Nested().eval(), torch.randn(3, 4)).nodes}

    assert dtypes["first_linear"] == "float32"
    assert dtypes["more_0_linear"] == "bfloat16"
    # One side is bfloat16, the other one float32.
    assert dtypes["add"] == "float32"


def test_nothing_is_computed_and_the_module_is_left_alone():
    model = Small().to("meta").eval()
    assert costs(model, torch.empty(2, 3, 8, 8, device="meta")).multiply_adds > 0

    traced = fxplug.symbolic_trace(Small().train(), manager=NONE)
    before = traced.norm.running_mean.clone()
    costs(traced, torch.randn(2, 3, 8, 8))
    assert all("tensor_meta" not in node.meta for node in traced.graph.nodes)
    assert torch.equal(traced.norm.running_mean, before)


def test_a_program_that_asks_for_values_is_run_on_copies():
    traced = fxplug.trace(lambda x: x * int(x.sum().item()), (torch.ones(3),), manager=NONE)

    assert fxplug.cost(traced, torch.ones(3), manager=NONE).multiply_adds == 6


def test_what_guards_ask_costs_nothing():
    def program(x):
        return x * 2 if x.sum() > 0 else x

    traced = fxplug.trace(program, (torch.ones(3),), manager=NONE)

    table = fxplug.cost(traced, torch.ones(3), manager=NONE)
    assert traced.guards
    assert table.unknown == ()
    assert table.multiply_adds == 6


def test_the_first_formula_that_has_an_answer_counts():
    traced = fxplug.symbolic_trace(call_relu, manager=NONE)
    propagate_shapes(traced, torch.ones(3))

    def cost_with(*formulas):
        return cost_table(traced, [FlopFormulaRecord(torch.relu, formula) for formula in formulas]).nodes[0]

    assert cost_with(lambda call: None, lambda call: call.elements()).multiply_adds == 3
    assert cost_with(lambda call: CallCost(5, 1, 2)).bytes == 3
    assert cost_with(lambda call: None).multiply_adds is None
    with pytest.raises(AnalysisError, match="node 'relu' costs: the formula for relu returned 'many'"):
        cost_with(lambda call: "many")


def test_shapes_have_to_be_known():
    traced = fxplug.symbolic_trace(call_relu, manager=NONE)

    with pytest.raises(AnalysisError, match=r"node 'relu' costs: its shape is not known.*\[FXP-A000\]"):
        cost_table(traced, builtin_formulas())


def test_resnet_50_has_the_multiply_adds_that_are_known_of_it():
    path = Path(__file__).resolve().parents[2] / "examples" / "resnet50.py"
    kind = runpy.run_path(str(path))["ResNet50"]
    with torch.device("meta"):
        model = kind().eval()

    table = costs(model, torch.empty(1, 3, 224, 224, device="meta"))

    products = sum(node.multiply_adds for node in table.nodes if node.target in {"Conv2d", "Linear"})
    assert products == 4_089_184_256
    assert table.unknown == ()
    assert 1 < table.multiply_adds / products < 1.005

    # Training: batch norm counts two more for each element.
    trained = costs(model.train(), torch.empty(1, 3, 224, 224, device="meta"))
    normalised = sum(node.multiply_adds for node in table.nodes if node.target == "BatchNorm2d")
    assert trained.unknown == ()
    assert trained.multiply_adds == table.multiply_adds + 2 * normalised


# -- graph modules that are called


def split_in_two(model):
    module = fxplug.symbolic_trace(model, manager=NONE)
    first = {node.name for node in list(module.graph.nodes)[:3]}
    return module, fxplug.passes.split_module(module, model, lambda node: int(node.name not in first))


def test_the_parts_of_a_split_program_cost_what_the_program_costs():
    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Softmax(-1), nn.Linear(8, 4)
    ).eval()
    module, split = split_in_two(model)
    whole, parts = costs(module, torch.randn(3, 8)), costs(split, torch.randn(3, 8))

    assert [node.name for node in parts.nodes] == [
        "submod_0._0",
        "submod_0._1",
        "submod_1._2",
        "submod_1._3",
        "submod_1._4",
    ]
    assert parts.unknown == ()
    for ours, theirs in zip(parts.nodes, whole.nodes, strict=True):
        assert (ours.multiply_adds, ours.bytes, ours.allocated_bytes, ours.parameter_bytes, ours.modules) == (
            theirs.multiply_adds,
            theirs.bytes,
            theirs.allocated_bytes,
            theirs.parameter_bytes,
            theirs.modules,
        )
    assert (parts.parameter_bytes, parts.peak_bytes) == (whole.parameter_bytes, whole.peak_bytes)
    # What a part is given stays until it returns.
    given = 3 * 16 * 4
    assert parts.nodes[-1].peak_bytes == whole.nodes[-1].peak_bytes + given
    assert "described_part" not in next(iter(split.graph.find_nodes(op="call_module"))).meta


def test_a_part_that_is_called_twice_costs_by_its_inputs():
    part = fxplug.symbolic_trace(lambda x: torch.relu(x @ x.t()), manager=NONE)
    graph = fxplug.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output((graph.call_module("part", (x,)), graph.call_module("part", (y,))))
    module = fxplug.GraphModule({"part": part}, graph)
    table = costs(module, torch.randn(2, 3), torch.randn(5, 3))
    found = {node.name: node.multiply_adds for node in table.nodes if node.multiply_adds}
    assert found == {"part.matmul": 2 * 3 * 2, "part_1.matmul": 5 * 3 * 5}


def test_a_part_with_hooks_is_one_call():
    _, split = split_in_two(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    split.submod_0.register_forward_hook(lambda *_: None)
    assert [node.name for node in costs(split, torch.randn(3, 8)).unknown] == ["submod_0"]


class Viewed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 8))
        self.register_buffer("rows", self.weight.detach()[1:3])
        self.register_buffer("turned", self.weight.detach().t())
        self.register_buffer("own", torch.ones(6))
        self.register_buffer("tail", self.own[3:])

    def forward(self, x):
        return x @ self.weight.t() + self.rows.sum() + self.turned.sum() + self.own.sum() + self.tail.sum()


def test_memory_that_state_shares_counts_once():
    table = costs(Viewed(), torch.randn(2, 8))
    assert (table.parameter_bytes, table.buffer_bytes) == (4 * 8 * 4, 6 * 4)
