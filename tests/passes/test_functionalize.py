"""Functionalisation: what works in place makes a new value, unless somebody could tell the difference."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.passes import BUILTIN_PASSES, Functionalize, PassContext, Pipeline, PipelineStep

sys.path.insert(0, str(Path(__file__).parent))
from random_modules import random_module

X = torch.linspace(-2, 2, 12).reshape(3, 4)
RECORD = next(record for record in BUILTIN_PASSES if record.name == "functionalize")


class Model(nn.Module):
    def __init__(self, program):
        super().__init__()
        self.program = program
        self.register_buffer("count", torch.linspace(1, 2, 4))
        self.relu = nn.ReLU(inplace=True)
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.program(self, x)


def captured(program):
    torch.manual_seed(0)
    model = Model(program).eval()
    return model, fxplug.symbolic_trace(copy.deepcopy(model))


def functionalized(module, *inputs):
    context = PassContext(inputs, module=module) if inputs else PassContext()
    result = Functionalize().run(module, context)
    module.graph.lint()
    assert result.modified is (result.details["rewritten"] > 0)
    return result


def writes(module):
    return [
        node.name
        for node in module.graph.nodes
        if node.op != "output" and fxplug.ir.effects.effect_of(node, module).writes
    ]


def augmented(m, x):
    y = x * 2
    y += x
    y -= 1
    return y * y


def methods(m, x):
    y = x * 2
    y.add_(x).mul_(3)
    return y.relu_() - 1


def viewed_before(m, x):
    y = x * 2
    total = y.view(-1).sum()
    y.sub_(1)
    return y * total


def viewed_afterwards(m, x):
    y = x * 2
    y.sub_(1)
    return y.view(-1)


def returned_itself(m, x):
    y = x * 2
    y.add_(1)
    return y


def one_of_two(m, x):
    y = m.linear(x)
    old = y * 1
    y.mul_(3)
    return y + old


def in_no_grad(m, x):
    with torch.no_grad():
        y = x * 2
        y += 1
    return y * x


REWRITTEN = {
    "augmented": (augmented, 2),
    "methods": (methods, 3),
    "a flag": (lambda m, x: F.relu(x * 2, inplace=True) + F.elu(x + 1, 0.5, True), 2),
    "a function": (lambda m, x: torch.relu_(x * 2) + F.relu_(x + 1), 2),
    "a module": (lambda m, x: m.relu(m.linear(x)) + m.relu(x * 2), 2),
    "viewed before": (viewed_before, 1),
    "viewed afterwards": (viewed_afterwards, 1),
    "returned": (returned_itself, 1),
    "old and new": (one_of_two, 1),
    "no_grad": (in_no_grad, 1),
    "numbers": (lambda m, x: (x * 2).clamp_(-1, 1).masked_fill_(x > 0, 7.0), 2),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_what_nobody_else_sees_is_made_anew(name):
    program, count = REWRITTEN[name]
    model, module = captured(program)

    assert functionalized(module, X).details == {"rewritten": count, "left": {}}
    assert writes(module) == []
    for twin in (model, module):
        twin.given = X.clone().requires_grad_()
        twin.result = twin(twin.given)
        twin.result.sum().backward()
    torch.testing.assert_close(module.result, model.result, rtol=0, atol=0)
    torch.testing.assert_close(module.given.grad, model.given.grad)
    assert module.result.requires_grad == model.result.requires_grad
    assert not functionalized(module, X).modified, "a second run finds nothing"


def an_input(m, x):
    x += 1
    return x * 2


def an_input_through_a_view(m, x):
    x.view(-1).add_(1)
    return x * 2


def a_buffer(m, x):
    m.count += 1
    return x * m.count


def a_view(m, x):
    y = x * 2
    y[0].add_(1)
    return y


def viewed_across(m, x):
    y = x * 2
    row = y[0]
    y.add_(1)
    return y + row


def returned_view(m, x):
    y = x * 2
    row = y[0]
    y.add_(1)
    return y, row


def across_regions(m, x):
    y = x * 2
    with torch.no_grad():
        y += 1
    return y * x


def items(m, x):
    y = x * 2
    y[0] = 1.0
    return y


def out(m, x):
    y = x * 2
    torch.add(x, 1, out=y)
    return y


def identity(m, x):
    y = x.contiguous()
    y += 1
    return y


@fxplug.wrap
def keeps(x):
    KEPT_VALUES.append(x)


KEPT_VALUES = []


def given_away(m, x):
    y = x * 2
    keeps(y)
    y += 1
    return y


LEFT = {
    "an input": (an_input, "it writes the input 'x', or may do so"),
    "an input, through a view": (an_input_through_a_view, "it writes the input 'x', or may do so"),
    "what may be an input": (identity, "it writes the input 'x', or may do so"),
    "a buffer": (a_buffer, "it writes 'count', which the module holds, or may do so"),
    "a part": (a_view, "'mul' may share its memory, and is used later"),
    "a view used later": (viewed_across, "'getitem' may share its memory, and is used later"),
    "a view returned": (returned_view, "'getitem' may share its memory, and is used later"),
    "regions": (across_regions, "it stands in another region than what it writes, or in one of autocast"),
    "items": (items, "no form out of place is known"),
    "out=": (out, "no form out of place is known"),
    "given away": (given_away, "'keeps' has been given it, and may hold it"),
    "another dtype": (
        lambda m, x: (x * 2).add_(x.double()),
        "its dtype would be torch.float64 instead of torch.float32",
    ),
    "copy": (lambda m, x: (x * 2).copy_(x), "no form out of place is known"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_could_be_told_stays_in_place(name):
    program, reason = LEFT[name]
    model, module = captured(program)
    before = writes(module)

    result = functionalized(module, X.clone())

    assert writes(module) == before
    assert [*result.details["left"].values()] == [reason]
    assert f"1 left in place ({before[0]!r}: {reason})" in result.summary
    ours, theirs = X.clone(), X.clone()
    torch.testing.assert_close(module(ours), model(theirs))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        module.state_dict().get("count"), model.state_dict()["count"]
    ) if "count" in before else None


def test_without_shapes_nothing_is_rewritten():
    _, module = captured(augmented)
    result = functionalized(module)

    assert not result.modified
    assert "its dtype and shape are not known (give example inputs)" in result.summary


def test_a_module_that_is_shared_with_the_model_stays_as_it_is():
    model = Model(lambda m, x: m.relu(x * 2)).eval()
    module = fxplug.symbolic_trace(model)

    assert functionalized(module, X).modified
    assert (model.relu.inplace, module.relu.inplace) == (True, False)


def test_a_module_that_also_writes_an_input_keeps_doing_so():
    model, module = captured(lambda m, x: m.relu(x * 2) + m.relu(x))

    assert functionalized(module, X.clone()).details["rewritten"] == 1
    ours, theirs = X.clone(), X.clone()
    torch.testing.assert_close(module(ours), model(theirs))
    torch.testing.assert_close(ours, theirs)


def test_a_hook_stands_against_it():
    _, module = captured(lambda m, x: m.relu(x * 2))
    module.relu.register_forward_hook(lambda *_: None)

    assert not functionalized(module, X).modified


def test_a_rollback_leaves_no_trace():
    class Fails(fxplug.Pass):
        def run(self, module, context):
            assert Functionalize().run(module, context).modified
            raise ValueError("on purpose")

    _, module = captured(lambda m, x: m.relu(x * 2))
    code, relu = module.code, module.relu
    failing = PipelineStep("fails", fxplug.PassRecord("fails", Fails, "Fails."))
    Pipeline("trial", [failing], on_error="rollback").run(module, (X,))

    assert module.code == code
    assert module.relu is relu
    assert relu.inplace


@pytest.mark.parametrize("seed", range(20))
def test_random_modules_compute_the_same(seed):
    module = random_module(seed)
    given = torch.linspace(-1, 1, 6).reshape(2, 3)
    last = module.graph.output_node().args[0]
    if isinstance(last, fxplug.Node):
        with module.graph.inserting_before(module.graph.output_node()):
            module.graph.output_node().replace_input_with(last, module.graph.call_method("mul_", (last, 2)))
    expected = copy.deepcopy(module)

    functionalized(module, given.clone())
    assert not functionalized(module, given.clone()).modified

    ours, theirs = given.clone(), given.clone()
    with torch.no_grad():
        torch.testing.assert_close(module(ours), expected(theirs), rtol=0, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_it_is_offered_by_name_and_keeps_origins():
    _, module = captured(returned_itself)
    lines = [node.origins[0].source().line for node in module.graph.nodes if node.op.startswith("call_")]
    report = Pipeline("trial", [PipelineStep("functionalize", RECORD)]).run(module, (X,))[0]

    assert report.result.summary == "rewrote 1 call"
    assert [
        node.origins[0].source().line for node in module.graph.nodes if node.op.startswith("call_")
    ] == lines
