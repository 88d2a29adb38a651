"""Constant folding: what is the same in every call is held, and nothing that could differ is."""

from __future__ import annotations

import copy
import operator
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import ConfigError
from fxplug.passes import BUILTIN_PASSES, FoldConstants, PassContext, Pipeline, PipelineStep

sys.path.insert(0, str(Path(__file__).parent))
from random_modules import random_module

X = torch.linspace(-2, 2, 12).reshape(3, 4)
RECORD = next(record for record in BUILTIN_PASSES if record.name == "fold-constants")


class Model(nn.Module):
    """One of the programs below, with things that it may use."""

    def __init__(self, program):
        super().__init__()
        self.program = program
        self.register_buffer("scale", torch.linspace(1, 2, 4))
        self.register_buffer("tied", self.scale)
        self.register_buffer("table", torch.linspace(-1, 1, 16).reshape(4, 4))
        self.register_buffer("places", torch.arange(3), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.frozen = nn.Parameter(torch.linspace(0, 1, 4), requires_grad=False)
        self.weight = nn.Parameter(torch.linspace(0, 1, 4))
        self.words = nn.Embedding(5, 4).requires_grad_(False)
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, affine=False)
        self.layer = nn.LayerNorm(4).requires_grad_(False)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.program(self, x)


def captured(program, *, training=False):
    torch.manual_seed(0)
    model = Model(program).train(training)
    return model, fxplug.symbolic_trace(copy.deepcopy(model))


def folded(module, **options):
    result = FoldConstants(**options).run(module, PassContext())
    module.graph.lint()
    assert result.modified is (result.details["folded"] > 0)
    return result.details["folded"]


def calls(module):
    return [node.target for node in module.graph.nodes if node.op.startswith("call_")]


def in_no_grad(m, x):
    with torch.no_grad():
        scale = m.frozen * 2
    return x * scale


def in_autocast(m, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = m.table @ m.table
    return x.to(torch.bfloat16) @ product


def several_results(m, x):
    values, places = m.table.exp().topk(2)
    return (x[:, :2] * values.sum(0) + places.sum(0)) * 1


def used_twice(x, value):
    return x * value + x * (value + 1)


FOLDED = {
    "arithmetic on a buffer": (lambda m, x: x * (m.scale * 2 + 1), 1, 1),
    "a frozen parameter": (lambda m, x: x * torch.exp(m.frozen), 1, 1),
    "a shared value": (lambda m, x: (x + m.scale * 2) * torch.relu(m.scale * 2), 2, 2),
    "one value used by a constant and by a call": (
        lambda m, x: used_twice(x, m.scale.exp()),
        2,
        3,
    ),
    "behind a view": (lambda m, x: x @ (m.table.t() * 2), 1, 1),
    "what is viewed": (lambda m, x: x @ (m.table * 2).t(), 1, 2),
    "a part of several": (lambda m, x: x @ torch.cat((m.table * 2).chunk(2)), 1, 1),
    "several results": (several_results, 2, 4),
    "sizes": (lambda m, x: x * torch.full((m.table.shape[0],), 2.0), 1, 1),
    "a number of a buffer": (lambda m, x: x * torch.full((4,), m.scale.sum().item()), 1, 1),
    "an embedding": (lambda m, x: x + m.words(m.places), 1, 1),
    "a module without weights": (lambda m, x: x * m.relu(m.scale - 1.5), 1, 1),
    "a normalisation": (lambda m, x: x * m.layer(m.table).sum(0), 1, 1),
    "no_grad": (in_no_grad, 1, 1),
    "autocast": (in_autocast, 1, 2),
    "beside a write to something else": (lambda m, x: (x * 2).add_(1) * (m.scale * 2), 1, 3),
    "beside a written buffer": (lambda m, x: (m.count.add_(1), x * (m.scale * 2))[1] * 1, 1, 3),
}


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_the_same_in_every_call_is_computed_once(name):
    program, count, left = FOLDED[name]
    model, module = captured(program)

    assert folded(module) == count
    assert len(calls(module)) == left
    for given in (X, X * 2):
        torch.testing.assert_close(module(given), model(given), rtol=0, atol=0)
    assert folded(module) == 0, "a second run finds nothing"


def written_through_a_view(m, x):
    before = x * (m.scale * 2)
    m.scale[:2].zero_()
    return before


def written_result(m, x):
    scale = m.scale * 2
    scale += x[0]
    return x * scale


def written_view_of_a_result(m, x):
    scale = m.table * 2
    scale[0].add_(x[0])
    return x @ scale


def zeros_that_are_filled(m, x):
    found = torch.zeros(3, 4)
    found[0] = x[0]
    return found * 1


def no_grad_of_a_trained_one(m, x):
    with torch.no_grad():
        scale = m.weight.abs().amax()
    return x * scale


def inference(m, x):
    with torch.inference_mode():
        scale = m.scale * 2
    return x * scale


@fxplug.wrap
def unknown_to_all(x):
    return x + 1


KEPT = {
    "a parameter that trains": lambda m, x: x * (m.weight * 2),
    "a trained module": lambda m, x: x * m.linear(m.scale),
    "the value of one, without a gradient": no_grad_of_a_trained_one,
    "detached": lambda m, x: x * m.weight.detach().exp(),
    "returned": lambda m, x: (m.scale * 2, x),
    "returned in a container": lambda m, x: {"a": [m.scale * 2], "b": x},
    "a view of it returned": lambda m, x: ((m.table * 2).t()[0], x),
    "what may be returned": lambda m, x: torch.where(m.scale > 1, m.scale * 2, m.scale * 3).contiguous(),
    "a buffer that is returned, too": lambda m, x: (x * (m.scale * 2), m.tied),
    "views alone": lambda m, x: x @ m.table.t(),
    "an expanded view": lambda m, x: x * m.scale.expand(3, 4),
    "random numbers": lambda m, x: x * torch.rand_like(m.scale),
    "random numbers made into more": lambda m, x: x * (F.dropout(m.scale, 0.5, True) + 1),
    "a written buffer": lambda m, x: (m.scale.mul_(1.5), x * (m.scale * 2))[1] * 1,
    "a buffer written under another name": lambda m, x: (m.tied.mul_(1.5), x * (m.scale * 2))[1] * 1,
    "a buffer written through a view": written_through_a_view,
    "a written result": written_result,
    "a written view of a result": written_view_of_a_result,
    "zeros that are filled": zeros_that_are_filled,
    "beside an unknown call": lambda m, x: unknown_to_all(x) * (m.scale * 2),
    "memory that nobody filled": lambda m, x: x * (torch.empty_like(m.scale) * 0).nan_to_num(),
    "inference mode": inference,
    "an input": lambda m, x: x * (x * 2),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_could_differ_is_not_folded(name):
    _, module = captured(KEPT[name])
    eager, _ = captured(KEPT[name])
    before = calls(module)

    assert folded(module) == 0
    assert calls(module) == before
    for seed in range(2):
        torch.manual_seed(seed)
        expected = eager(X)
        torch.manual_seed(seed)
        torch.testing.assert_close(module(X), expected)


@pytest.mark.parametrize("target", [torch.set_default_dtype, torch.manual_seed])
def test_a_setting_stands_against_it(target):
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    graph.call_function(target, (0,))
    graph.output(graph.call_function(torch.add, (x, graph.call_function(torch.zeros, (3,)))))

    assert folded(fxplug.GraphModule(nn.Module(), graph)) == 0


def test_what_a_module_updates_is_not_folded():
    model = Model(None)
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    between = graph.call_module("norm", (x,))
    scale = graph.call_function(torch.exp, (graph.get_attr("norm.running_mean"),))
    graph.output(graph.call_function(torch.mul, (between, scale)))

    assert folded(fxplug.GraphModule(model.train(), graph)) == 0
    assert folded(fxplug.GraphModule(model.eval(), copy.deepcopy(graph))) == 1


def test_a_question_for_identity_keeps_the_value():
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    value = graph.call_function(operator.mul, (graph.get_attr("scale"), 2))
    same = graph.call_function(operator.is_, (value, x))
    graph.output(graph.call_function(torch.mul, (x, same)))

    assert folded(fxplug.GraphModule(Model(None), graph)) == 0


@pytest.mark.parametrize(
    "change",
    [lambda model: model.to("meta"), lambda model: setattr(model, "scale", Sub(model.scale))],
    ids=["meta", "subclass"],
)
def test_tensors_without_data_and_of_other_classes_stay(change):
    model = Model(lambda m, x: x * (m.scale * 2))
    change(model)

    assert folded(fxplug.symbolic_trace(model)) == 0


class Sub(torch.Tensor):
    @staticmethod
    def __new__(cls, value):
        return value.as_subclass(cls)


def test_every_call_gives_its_caller_a_tensor_of_its_own():
    model, module = captured(lambda m, x: (m.scale * 2 + 1, x))
    assert folded(module) == 1, "what the returned sum is made of"

    module(X)[0].zero_()

    torch.testing.assert_close(module(X), model(X))


def test_what_the_caller_is_given_may_be_written_by_the_caller():
    model, module = captured(lambda m, x: (x * (m.scale * 2), m.tied))
    folded(module)

    for twin in (model, module):
        twin(X)[1].mul_(5)

    torch.testing.assert_close(module(X)[0], model(X)[0])


def test_the_limit_is_about_each_value():
    program = lambda m, x: x * (m.scale * 2) @ (m.table * 2)  # noqa: E731
    result = FoldConstants(limit=16).run(captured(program)[1], PassContext())

    assert (result.details["folded"], result.details["too_large"], result.details["bytes"]) == (1, 1, 16)
    assert "1 left alone, larger than the limit" in result.summary
    assert folded(captured(program)[1], limit=15) == 0
    assert folded(captured(program)[1], limit=64) == 2


def test_what_is_larger_than_the_limit_is_never_made():
    _, module = captured(lambda m, x: x * m.scale.exp().expand(2**40, 4).contiguous().sum())

    assert folded(module) == 1, "exp alone"


def test_a_negative_limit_is_refused():
    with pytest.raises(ConfigError) as caught:
        FoldConstants(limit=-1)
    assert str(caught.value).startswith(
        "Cannot fold constants with limit=-1: it is a number of bytes. Give 0 to fold nothing, or the size of the "
        "largest tensor that may be held."
    )


def test_parameters_that_train_are_folded_where_that_is_wanted():
    model, module = captured(lambda m, x: x * (m.weight * 2))
    assert folded(copy.deepcopy(module).train(), trainable=True) == 0, "in training mode"

    assert folded(module, trainable=True) == 1
    torch.testing.assert_close(module(X), model(X))
    assert not [*module.parameters()]


def test_values_are_buffers_and_what_nobody_reads_is_dropped():
    _, module = captured(
        lambda m, x: x @ m.table * (m.scale * m.frozen) + m.table.sum(0) + m.places.exp().sum()
    )
    held = {*module.state_dict()}

    assert folded(module) == 3
    assert held == {"scale", "frozen", "table"}
    assert {*module.state_dict()} == {"mul_folded", "sum_1_folded", "table"}
    assert "sum_2_folded" in dict(module.named_buffers()), "no state dict has what it is made of"


def test_names_that_are_taken_are_left():
    _, module = captured(lambda m, x: x * (m.scale * 2))
    module.register_buffer("mul_folded", torch.zeros(7))

    folded(module)

    assert module.mul_folded.shape == (7,)
    assert module.mul_folded_1.shape == (4,)


def pipeline(*more, **options):
    step = PipelineStep("fold-constants", RECORD, options)
    return Pipeline("trial", [step, *more])


def program_with_everything(m, x):
    return (x * (m.scale * m.frozen).exp() + m.words(m.places) + m.layer(m.table).sum(0)) * torch.full(
        (4,), 2.0
    )


def test_new_weights_are_folded_again():
    model, module = captured(program_with_everything)
    pipeline().run(module, (X,))
    torch.manual_seed(5)
    trained = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in trained.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) + (0.5 if "var" in name else 0))
    trained.eval()
    assert not torch.allclose(module(X), trained(X))

    fxplug.load_original_state_dict(module, trained.state_dict(), strict=False)

    torch.testing.assert_close(module(X), trained(X))


def test_what_comes_from_no_state_dict_does_not_stand_against_new_weights():
    model, module = captured(lambda m, x: m.linear(x) * m.places.exp().sum())
    pipeline().run(module, (X,))
    with torch.no_grad():
        model.linear.weight.mul_(2)

    fxplug.load_original_state_dict(module, model.state_dict(), strict=False)

    torch.testing.assert_close(module(X), model(X))


def test_a_rollback_leaves_no_trace():
    class Fails(fxplug.Pass):
        def run(self, module, context):
            FoldConstants().run(module, context)
            raise ValueError("on purpose")

    _, module = captured(program_with_everything)
    code, held, expected = module.code, [*module.state_dict()], module(X)
    failing = PipelineStep("fails", fxplug.PassRecord("fails", Fails, "Fails."))
    Pipeline("trial", [failing], on_error="rollback").run(module, (X,))

    assert module.code == code
    assert [*module.state_dict()] == held
    torch.testing.assert_close(module(X), expected, rtol=0, atol=0)


def test_the_new_node_keeps_the_origin():
    _, module = captured(lambda m, x: x * (m.scale * 2))
    (product,) = [node for node in module.graph.nodes if node.name == "mul"]
    line = product.origins[0].source().line

    pipeline().run(module, (X,))

    (read,) = module.graph.find_nodes(op="get_attr")
    assert read.origins[0].source().line == line
    assert read.history[-1].name == "fold-constants"


@pytest.mark.parametrize("seed", range(40))
def test_random_modules_compute_the_same(seed):
    module = random_module(seed)
    for parameter in module.parameters():
        parameter.requires_grad_(seed % 3 == 0)
    expected = copy.deepcopy(module)

    folded(module)
    assert folded(module) == 0

    given = torch.linspace(-1, 1, 6).reshape(2, 3)
    torch.testing.assert_close(module(given), expected(given), rtol=0, atol=0)


def test_it_is_offered_by_name():
    model = Model(lambda m, x: x * (m.scale * 2)).eval()
    report = fxplug.optimize(model, X, passes=["fold-constants"], measure=False).passes[0]

    assert report.result.summary == "folded 1 value"
    assert (report.nodes_before, report.nodes_after) == (5, 4)
