"""Normalisation: every spelling of a call becomes one, and what may be another call stays."""

from __future__ import annotations

import copy
import operator
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxplug
from fxplug.passes import BUILTIN_PASSES, CommonSubexpressions, Normalize, PassContext, Pipeline, PipelineStep

sys.path.insert(0, str(Path(__file__).parent))
from random_modules import random_module

X = torch.linspace(-2, 2, 16).reshape(4, 4)
Y = torch.linspace(1, 3, 16).reshape(4, 4)
RECORD = next(record for record in BUILTIN_PASSES if record.name == "normalize")


def normalised(module, context=None):
    result = Normalize().run(module, context or PassContext())
    module.graph.lint()
    assert result.modified is (result.details["rewritten"] > 0)
    return result.details["rewritten"]


def call_of(op, target, args=(), kwargs=None, kinds=(Tensor, Tensor)):
    """Return a module that makes one call of its inputs, which are named "x" and "y" in the arguments."""
    graph = fxplug.Graph()
    inputs = {name: graph.placeholder(name, kind) for name, kind in zip("xy", kinds, strict=True)}

    def named(value):
        if isinstance(value, (tuple, list)):
            return type(value)(map(named, value))
        return inputs.get(value, value) if isinstance(value, str) else value

    kwargs = {key: named(value) for key, value in (kwargs or {}).items()}
    graph.output(graph.create_node(op, target, named(tuple(args)), kwargs))
    return fxplug.GraphModule(nn.Module(), graph)


def shown(module):
    return module.code.splitlines()[1].partition(" = ")[2].partition(";")[0].strip()


F_, M = "call_function", "call_method"
SPELLINGS = {
    "torch.add(x, y)": [
        (F_, operator.add, ("x", "y")),
        (F_, torch.add, ("x", "y"), {"alpha": 1}),
        (F_, torch.add, (), {"input": "x", "other": "y"}),
        (M, "add", ("x", "y")),
        (M, "add", ("x",), {"other": "y", "alpha": 1}),
    ],
    "torch.add(x, y, alpha = 2)": [
        (F_, torch.add, ("x", 2, "y")),
        (M, "add", ("x", 2, "y")),
        (M, "add", ("x", "y"), {"alpha": 2}),
    ],
    "torch.sub(x, y, alpha = 3)": [
        (F_, torch.sub, ("x", 3, "y")),
        (F_, torch.subtract, ("x", "y"), {"alpha": 3}),
    ],
    "torch.add(x, 2)": [(F_, operator.add, (2, "x")), (F_, operator.add, ("x", 2)), (M, "add", ("x", 2))],
    "torch.gt(x, 1)": [(F_, operator.lt, (1, "x")), (F_, operator.gt, ("x", 1)), (M, "greater", ("x", 1))],
    "torch.eq(x, 1)": [(F_, operator.eq, (1, "x")), (M, "eq", ("x", 1))],
    "torch.div(x, y)": [(F_, operator.truediv, ("x", "y")), (M, "true_divide", ("x", "y"))],
    "torch.matmul(x, y)": [(F_, operator.matmul, ("x", "y")), (M, "matmul", ("x", "y"))],
    "torch.neg(x)": [(F_, operator.neg, ("x",)), (M, "negative", ("x",))],
    "torch.relu(x)": [(F_, F.relu, ("x",)), (F_, F.relu, ("x", False)), (M, "relu", ("x",))],
    "torch.relu_(x)": [
        (F_, F.relu, ("x", True)),
        (F_, F.relu, ("x",), {"inplace": True}),
        (M, "relu_", ("x",)),
    ],
    "torch.softmax(x, 1)": [(F_, F.softmax, ("x", 1)), (M, "softmax", ("x",), {"dim": 1})],
    "torch.sum(x, 0, keepdim = True)": [
        (M, "sum", ("x", 0, True)),
        (F_, torch.sum, ("x",), {"keepdim": True, "axis": 0}),
    ],
    "torch.permute(x, (1, 0))": [(M, "permute", ("x", 1, 0)), (M, "permute", ("x", (1, 0)))],
    "x.view((2, 8))": [
        (M, "view", ("x", 2, 8)),
        (M, "view", ("x", (2, 8))),
        (M, "view", ("x",), {"size": (2, 8)}),
    ],
    "x.add_(y)": [
        (F_, operator.iadd, ("x", "y")),
        (M, "add_", ("x", "y")),
        (M, "add_", ("x",), {"other": "y"}),
    ],
    "torch.clamp(x, min = 0)": [(M, "clamp", ("x", 0)), (F_, torch.clamp, ("x",), {"min": 0})],
    "torch.addmm(x, y, y, beta = 2)": [
        (F_, torch.addmm, (2, "x", "y", "y")),
        (M, "addmm", ("x", "y", "y"), {"beta": 2}),
    ],
    "torch.addcmul(x, x, y, value = 2)": [
        (F_, torch.addcmul, ("x", 2, "x", "y")),
        (M, "addcmul", ("x", 2, "x", "y")),
    ],
    "torch.add(x, y, out = x)": [(F_, torch.add, ("x", "y"), {"alpha": 1, "out": "x"})],
    "torch.nn.functional.dropout(x, training = False)": [(F_, F.dropout, ("x", 0.5, False))],
    "torch.nn.functional.max_pool2d(x, 2, padding = 1)": [
        (F_, F.max_pool2d, ("x",), {"padding": 1, "kernel_size": 2, "return_indices": False})
    ],
    "torch.nn.functional.linear(x, y)": [
        (F_, F.linear, ("x", "y", None)),
        (F_, F.linear, ("x",), {"weight": "y"}),
    ],
}
EVERY = [(wanted, call) for wanted, calls in SPELLINGS.items() for call in calls]


@pytest.mark.parametrize(
    ("wanted", "call"), EVERY, ids=[f"{wanted} {n}" for n, (wanted, _) in enumerate(EVERY)]
)
def test_every_spelling_becomes_the_usual_one(wanted, call):
    module = call_of(*call)
    given = (X[None], Y) if "max_pool" in wanted else (X, Y)
    ours, theirs = (tuple(value.clone() for value in given) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Deprecated orders of arguments.
        expected = module(*ours)
    before = shown(module)

    assert normalised(module) == (before != wanted)
    assert shown(module) == wanted
    torch.testing.assert_close(module(*theirs), expected, rtol=0, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert normalised(module) == 0, "a second run finds nothing"


class Odd:
    """Adds and looks like no tensor."""

    def add(self, other):
        return "added"

    def __add__(self, other):
        return "plus"

    __radd__ = __add__


KEPT = {
    "an operator on what is not known": (F_, operator.add, ("x", "y"), None, (None, None)),
    "one of them not known": (F_, operator.add, ("x", "y"), None, (Tensor, None)),
    "a method of what is not known": (M, "add", ("x", "y"), None, (None, Tensor)),
    "numbers": (F_, operator.add, ("x", "y"), None, (int, int)),
    "two literals": (F_, operator.add, (1, 2)),
    "lists": (F_, operator.add, ("x", "y"), None, (list, list)),
    "an operator that turned round is another": (F_, operator.sub, (2, "x")),
    "a power of a number": (F_, operator.pow, (2, "x")),
    "comparison with nothing": (F_, operator.eq, ("x", None)),
    "a method written in Python": (M, "split", ("x", 2)),
    "a method of no tensor": (M, "frobnicate", ("x",)),
    "arguments that fit nothing": (F_, torch.relu, ("x", "y", 3)),
    "an operator in place that is none": (F_, operator.imatmul, ("x", "y")),
    "a class of tensors": (F_, operator.add, ("x", "y"), None, (type("Sub", (Tensor,), {}), Tensor)),
    "an operator takes no keywords": (F_, operator.add, ("x", "y"), {"alpha": 2}),
    "an operator takes no third argument": (F_, operator.add, ("x", 2, "y")),
    "one size, or all of them": (M, "reshape", ("x", "y"), None, (Tensor, None)),
    "item assignment": (F_, operator.setitem, ("x", 0, 1.0)),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_may_be_another_call_stays(name):
    module = call_of(*KEPT[name])
    code = module.code

    assert normalised(module) == 0
    assert module.code == code


def test_what_is_no_tensor_still_runs():
    module = call_of(F_, operator.add, ("x", "y"), None, (None, None))
    method = call_of(M, "add", ("x", "y"), None, (None, None))
    normalised(module)
    normalised(method)

    assert module([1], [2]) == [1, 2]
    assert module(Odd(), X) == module(2, Odd()) == "plus"
    assert method(Odd(), 1) == "added"


@pytest.mark.parametrize(
    ("other", "is_certain"),
    [
        (torch.relu, True),
        (lambda x: F.linear(x, torch.ones(4, 4)), True),
        (lambda x: torch.ones(4) @ x, False),
        (lambda x: x.relu(), False),
    ],
    ids=["a function", "linear", "an operator", "a method"],
)
def test_a_call_that_takes_nothing_but_a_tensor_makes_it_certain(other, is_certain):
    module = fxplug.symbolic_trace(lambda x: (x + 1, other(x)))

    normalised(module)

    added = [node.target for node in module.graph.nodes if node.name.startswith("add")]
    assert added == [torch.add if is_certain else operator.add]


def test_example_inputs_make_it_certain():
    program = lambda x, y: x + y  # noqa: E731
    module = fxplug.symbolic_trace(program)
    assert normalised(module) == 0

    Pipeline("trial", [PipelineStep("normalize", RECORD)]).run(module, (X, 2.0))
    assert normalised(module) == 0, "a number was given for y, of which nothing is known"

    module = fxplug.symbolic_trace(program)
    Pipeline("trial", [PipelineStep("normalize", RECORD)]).run(module, (X, Y))
    assert shown(module) == "torch.add(x, y)"


class Calls(nn.Module):
    def __init__(self, module, *args, **kwargs):
        super().__init__()
        self.inner, self.args, self.kwargs = module, args, kwargs

    def forward(self, x):
        args = [x if value is Ellipsis else value for value in self.args]
        return self.inner(
            *args, **{name: x if value is Ellipsis else value for name, value in self.kwargs.items()}
        )


class Own(nn.Module):
    def forward(self, x, scale=2):
        return x * scale


def with_leaves(model):
    tracer = fxplug.Tracer()
    tracer.is_leaf_module = lambda module, name: True
    return fxplug.GraphModule(model, tracer.trace(model))


def hooked(module):
    module.register_forward_pre_hook(lambda module, args, kwargs: None, with_kwargs=True)
    return module


@pytest.mark.parametrize(
    ("model", "call"),
    [
        (lambda: Calls(nn.Linear(4, 4), input=...), "self.inner(x)"),
        (lambda: Calls(nn.ReLU(), ...), "self.inner(x)"),
        (lambda: Calls(Own(), scale=3, x=...), "self.inner(x, scale = 3)"),
        (lambda: Calls(Own(), ..., 2), "self.inner(x, scale = 2)"),
        (lambda: Calls(hooked(nn.Linear(4, 4)), input=...), "self.inner(input = x)"),
    ],
    ids=["keyword", "plain", "own", "a default of its own", "hooks see how it is called"],
)
def test_arguments_of_modules(model, call):
    model = model()
    module = with_leaves(model)

    normalised(module)

    assert shown(module) == call
    torch.testing.assert_close(module(X), model(X), rtol=0, atol=0)


def test_spellings_that_differ_merge_afterwards():
    module = fxplug.symbolic_trace(lambda x: torch.relu(x).add(x) * (F.relu(x) + x).exp())
    normalised(module)

    assert CommonSubexpressions().run(module, PassContext()).details["merged"] == 2


def test_what_is_known_of_a_value_stays():
    module = call_of(F_, operator.add, ("x", "y"))
    (node,) = module.graph.find_nodes(op="call_function")
    node.meta["note"], node.type = 7, Tensor

    normalised(module)

    assert (node.meta["note"], node.type, node.target) == (7, Tensor, torch.add)


def test_regions_and_origins_stay():
    def program(x: Tensor):
        with torch.no_grad():
            return x.exp() + 1

    module = fxplug.symbolic_trace(program)
    before = [
        (node.region, node.origins[0].source().line)
        for node in module.graph.nodes
        if node.op.startswith("call_")
    ]

    Pipeline("trial", [PipelineStep("normalize", RECORD)]).run(module)

    calls = [node for node in module.graph.nodes if node.op.startswith("call_")]
    assert [node.target for node in calls] == [torch.exp, torch.add]
    assert [(node.region, node.origins[0].source().line) for node in calls] == before


def test_a_rollback_leaves_no_trace():
    class Fails(fxplug.Pass):
        def run(self, module, context):
            assert Normalize().run(module, context).modified
            raise ValueError("on purpose")

    module = call_of(F_, operator.add, ("x", "y"))
    code = module.code
    failing = PipelineStep("fails", fxplug.PassRecord("fails", Fails, "Fails."))
    Pipeline("trial", [failing], on_error="rollback").run(module, (X, Y))

    assert module.code == code


@pytest.mark.parametrize("seed", range(40))
def test_random_modules_compute_the_same(seed):
    module = random_module(seed)
    expected = copy.deepcopy(module)
    given = torch.linspace(-1, 1, 6).reshape(2, 3)

    assert normalised(module, PassContext((given,), module=module)) >= 0
    assert normalised(module) == 0

    torch.testing.assert_close(module(given), expected(given), rtol=0, atol=0)


def test_it_is_offered_by_name():
    report = fxplug.optimize(
        fxplug.symbolic_trace(lambda x: x + 1), X, passes=["normalize"], measure=False
    ).passes[0]

    assert report.result.summary == "rewrote 1 call"
