"""Pieces of programs as modules of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import ForeignNodeError, GraphError, InvalidArgumentError, UnknownNameError

X = torch.linspace(-1, 1, 12).reshape(4, 3)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.act = nn.ReLU(inplace=True)
        self.body = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.head = nn.Linear(3, 2)

    def forward(self, x, mask):
        y = self.act(self.stem(x))
        z = self.body(y) * self.scale
        return self.head(z + y) * mask


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def module(model):
    return fxplug.symbolic_trace(model)


def calls(module):
    return [node.name for node in module.graph.nodes if node.op.startswith("call_")]


def test_values_are_computed_from_others(model, module):
    piece = fxplug.extract_subgraph(module, inputs=["body", "act"], outputs="head")
    y = model.act(model.stem(X))
    body = model.body(y)

    piece.graph.lint()
    assert [node.name for node in piece.graph.find_nodes(op="placeholder")] == ["body_1", "act"]
    assert calls(piece) == ["mul", "add", "head"]
    assert torch.equal(piece(body, y), model.head(body * model.scale + y))
    assert piece.scale is model.scale
    assert piece.head is model.head
    assert not hasattr(piece, "stem")


def test_the_inputs_are_those_of_the_module_where_none_are_named(model, module):
    piece = fxplug.extract_subgraph(module, outputs=["body", module.graph.find_nodes(op="call_module")[0]])
    found = piece(X, None)

    assert type(found) is tuple
    torch.testing.assert_close(found, (model.body(model.stem(X).relu()), model.stem(X)))


def test_outputs_come_in_the_form_in_which_they_are_named(module):
    y = torch.ones(4, 3)
    named = fxplug.extract_subgraph(module, "act", {"out": "body"})
    single, listed = (
        fxplug.extract_subgraph(module, "act", "body"),
        fxplug.extract_subgraph(module, "act", ["body"]),
    )

    torch.testing.assert_close(named(y), {"out": single(y)})
    torch.testing.assert_close(listed(y), (single(y),))


def test_a_value_may_be_named_twice_and_an_input_may_be_an_output(module):
    piece = fxplug.extract_subgraph(module, "act", {"a": "body", "b": "body", "c": "act"})
    y = torch.ones(4, 3)
    found = piece(y)

    assert found["a"] is found["b"]
    assert found["c"] is y


def test_calls_are_extracted_with_what_they_use_and_give(model, module):
    piece = fxplug.extract_subgraph(module, nodes=["body_0", "body_1", "mul"])
    y = torch.ones(4, 3)

    assert [node.name for node in piece.graph.find_nodes(op="placeholder")] == ["act"]
    assert torch.equal(piece(y), model.body(y) * model.scale)
    both = fxplug.extract_subgraph(module, nodes=["stem", "act", "head"])
    assert [node.name for node in both.graph.find_nodes(op="placeholder")] == ["x", "add"]
    assert len(both(X, y)) == 2


def test_the_module_stays_as_it_is_and_is_what_the_pieces_are_together(model, module):
    before = module.code
    first = fxplug.extract_subgraph(module, ["x"], ["body", "act"])
    second = fxplug.extract_subgraph(module, ["body", "act", "mask"], "mul_1")

    assert module.code == before
    torch.testing.assert_close(second(*first(X), 2), model(X, 2))


def test_regions_origins_and_notes_are_kept():
    def program(x):
        with torch.no_grad():
            y = torch.sin(x)
        return y * 2

    module = fxplug.symbolic_trace(program)
    (sine,) = module.graph.find_nodes(op="call_function", target=torch.sin)
    piece = fxplug.extract_subgraph(module, outputs="sin")
    (copy,) = piece.graph.find_nodes(op="call_function", target=torch.sin)

    assert (copy.origins, copy.region) == (sine.origins, sine.region)
    assert not piece(X.clone().requires_grad_()).requires_grad


# -- effects


def test_what_writes_to_a_value_on_the_way_is_part_of_it():
    def program(x):
        y = x * 1
        y.add_(1)
        row = y[0]
        row.mul_(3)
        return y * 2

    module = fxplug.symbolic_trace(program)
    whole = fxplug.extract_subgraph(module, outputs="mul_1")
    tail = fxplug.extract_subgraph(module, inputs="mul", outputs="mul_1")

    torch.testing.assert_close(whole(X), program(X), rtol=0, atol=0)
    torch.testing.assert_close(tail(X * 1), program(X), rtol=0, atol=0)


def test_what_was_written_before_an_input_was_computed_is_in_it():
    def program(x):
        y = x * 1
        y.add_(1)
        row = y.view(-1)
        return row * 2

    piece = fxplug.extract_subgraph(fxplug.symbolic_trace(program), inputs="view", outputs="mul_1")

    assert calls(piece) == ["mul_1"]
    assert torch.equal(piece(X), X * 2)


def test_an_output_that_is_written_later_comes_as_it_was():
    def program(x):
        y = x * 1
        z = y.add_(1)
        return y, z * 2

    piece = fxplug.extract_subgraph(fxplug.symbolic_trace(program), outputs=["mul", "mul_1"])

    torch.testing.assert_close(piece(X), (X, (X + 1) * 2), rtol=0, atol=0)


def test_state_that_is_updated_before_it_is_read_is_updated():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            self.count += x.sum(0)
            return x + self.count

    module, twin = fxplug.symbolic_trace(Counting()), Counting()
    piece = fxplug.extract_subgraph(module, outputs="add")
    for _ in range(2):
        assert torch.equal(piece(X), twin(X))


def test_draws_and_output_that_no_value_needs_are_left_out():
    def program(x):
        F.dropout(x, training=True)
        torch._assert(x.sum() > -100, "no")
        return x * 2

    assert calls(fxplug.extract_subgraph(fxplug.symbolic_trace(program), outputs="mul")) == ["mul"]


def test_calls_without_one_that_writes_between_them_are_refused():
    def program(x):
        y = x * 1
        z = y.sin()
        y.add_(1)
        return y * z

    module = fxplug.symbolic_trace(program)
    with pytest.raises(
        GraphError, match="'add_' may change a value that they use, and is none of them"
    ) as caught:
        fxplug.extract_subgraph(module, nodes=["mul", "mul_1"])

    assert caught.value.code == "FXP-G031"
    fxplug.extract_subgraph(module, nodes=["mul", "add_", "mul_1"])


# -- guards


def test_guards_hold_for_the_inputs_that_they_speak_of():
    def program(x):
        y = x * 2 if x.shape[0] == 4 else x
        return y + 1

    module = fxplug.trace(program, (X,))

    assert fxplug.extract_subgraph(module, outputs="add").guard_set is module.guard_set
    assert fxplug.extract_subgraph(module, "mul", "add").guard_set is None


def test_defaults_and_keyword_only_parameters_are_kept_where_the_inputs_are():
    class Scaled(nn.Module):
        def forward(self, x, *, scale=2):
            return (x * scale).sin()

    piece = fxplug.extract_subgraph(fxplug.symbolic_trace(Scaled()), outputs="mul")

    assert torch.equal(piece(X), X * 2)
    assert torch.equal(piece(X, scale=3), X * 3)
    with pytest.raises(TypeError):
        piece(X, 3)


def test_nested_inputs_are_given_one_by_one():
    module = fxplug.symbolic_trace(
        lambda pair: pair["a"] * pair["b"] + 1, concrete_args={"pair": {"a": fxplug.PH, "b": fxplug.PH}}
    )
    piece = fxplug.extract_subgraph(module, outputs="mul")

    assert torch.equal(piece(X, 3), X * 3)


# -- errors


def test_a_value_that_is_neither_given_nor_computed_is_named_with_what_needs_it(module):
    with pytest.raises(GraphError) as caught:
        fxplug.extract_subgraph(module, inputs=["body"], outputs="head")

    assert str(caught.value) == (
        "Cannot extract a subgraph: 'x' is needed for 'stem' for 'act' for 'add' for 'head', and is none of the "
        "inputs, nor computed from them. Add 'x' to the inputs, or a value that is computed from it. [FXP-G031]"
    )


def test_an_input_that_no_output_needs_is_refused(module):
    with pytest.raises(GraphError, match="with the input 'head': 'body_1' can be computed without it"):
        fxplug.extract_subgraph(module, inputs=["x", "head"], outputs="body")


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({}, InvalidArgumentError, "name the outputs, with or without inputs, or else the nodes"),
        ({"outputs": "head", "nodes": ["head"]}, InvalidArgumentError, "or else the nodes"),
        ({"inputs": "x", "nodes": ["head"]}, InvalidArgumentError, "or else the nodes"),
        ({"outputs": []}, InvalidArgumentError, "without outputs"),
        ({"outputs": 3}, InvalidArgumentError, "Cannot extract 3, a int"),
        ({"outputs": "hed"}, UnknownNameError, "Did you mean 'head'"),
        ({"inputs": ["x", "x"], "outputs": "head"}, InvalidArgumentError, "the input 'x' is named twice"),
        ({"nodes": ["x"]}, InvalidArgumentError, "Cannot extract node 'x': it is no call"),
        ({"nodes": []}, InvalidArgumentError, "Cannot extract nothing"),
    ],
)
def test_what_cannot_be_meant_is_refused(module, arguments, kind, message):
    with pytest.raises(kind, match=message):
        fxplug.extract_subgraph(module, **arguments)


def test_nodes_of_other_graphs_and_outputs_are_refused(module):
    with pytest.raises(ForeignNodeError, match="it belongs to another graph"):
        fxplug.extract_subgraph(
            module, outputs=fxplug.symbolic_trace(Model()).graph.find_nodes(op="call_module")[0]
        )
    with pytest.raises(InvalidArgumentError, match="Cannot extract the output"):
        fxplug.extract_subgraph(module, outputs=module.graph.output_node())
