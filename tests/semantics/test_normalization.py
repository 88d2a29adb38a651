"""Calls in full: the same call, with every argument where its parameter is."""

from __future__ import annotations

import math
import operator
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxplug.capture import Tracer
from fxplug.errors import GraphError
from fxplug.execute import GraphModule
from fxplug.ir import ArgsKwargsPair, Graph, NormalizationRegistry
from fxplug.semantics import normalize_function, normalize_module

X = torch.linspace(-2, 2, 12).reshape(3, 4)
IMAGE = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
aten = torch.ops.aten

# (function, args, kwargs, what stands by keyword when all do; None: only that the call is the same)
CALLS = [
    (torch.relu, (X,), {}, ["input"]),
    (torch.add, (X, X), {}, ["input", "other", "alpha"]),
    (torch.add, (X, 2), {}, ["input", "other", "alpha"]),
    (torch.add, (X,), {"alpha": 3, "other": X}, ["input", "other", "alpha"]),
    (torch.mul, (X, 2.5), {}, ["input", "other"]),
    (torch.sum, (X,), {}, ["input", "dtype"]),
    (torch.sum, (X, 1), {}, ["input", "dim", "keepdim", "dtype"]),
    (torch.sum, (X,), {"dim": [0, 1], "keepdim": True}, ["input", "dim", "keepdim", "dtype"]),
    (torch.sum, (X,), {"axis": 1, "keepdims": True}, ["input", "dim", "keepdim", "dtype"]),
    (torch.clamp, (X, 0), {}, ["input", "min", "max"]),
    (torch.clamp, (X,), {"max": X}, ["input", "min", "max"]),
    (torch.cat, ([X, X], 1), {}, ["tensors", "dim"]),
    (torch.transpose, (X, 0, 1), {}, ["input", "dim0", "dim1"]),
    (torch.flatten, (X,), {}, ["input", "start_dim", "end_dim"]),
    (torch.softmax, (X, 1), {}, ["input", "dim", "dtype"]),
    (torch.where, (X > 0, X, 0.0), {}, None),
    (torch.max, (X, 1), {}, ["input", "dim", "keepdim"]),
    (torch.full, ((2, 3), 1.5), {}, None),
    (torch.zeros, ([2, 3],), {"dtype": torch.float16}, None),
    (torch.linalg.norm, (X,), {}, None),
    (torch.mean, (X, (0, 1)), {"dtype": torch.float64}, ["input", "dim", "keepdim", "dtype"]),
    (torch.permute, (X, (1, 0)), {}, ["input", "dims"]),
    (torch.add, (X, X), {"out": torch.empty(3, 4)}, ["input", "other", "alpha", "out"]),
    (torch.conv2d, (IMAGE, torch.ones(1, 3, 2, 2)), {"stride": 2}, None),
    (F.linear, (X, torch.ones(2, 4)), {}, ["input", "weight", "bias"]),
    (F.gelu, (X,), {}, None),
    (F.relu, (X,), {}, ["input", "inplace"]),
    (F.max_pool2d, (IMAGE, 2), {}, None),
    (F.interpolate, (IMAGE, 4), {}, None),
    (F.layer_norm, (X, [4]), {}, ["input", "normalized_shape", "weight", "bias", "eps"]),
    (torch.split, (X, 2), {}, ["tensor", "split_size_or_sections", "dim"]),
    (aten.add.Tensor, (X, X), {}, ["self", "other", "alpha"]),
    (aten.relu.default, (X,), {}, ["self"]),
    (aten.sum, (X, [1]), {}, ["self", "dim", "keepdim", "dtype"]),
    (aten.uniform.default, (X, 0.0, 0.0), {}, ["self", "from", "to", "generator"]),
    (isinstance, (X, torch.Tensor), {}, "refused"),
    (math.sqrt, (2.0,), {}, "refused"),
    (operator.add, (1, 2), {}, "refused"),
]


@pytest.mark.parametrize("only_keywords", [True, False])
@pytest.mark.parametrize(("function", "args", "kwargs", "names"), CALLS)
def test_the_call_in_full_is_the_same_call(function, args, kwargs, names, only_keywords):
    pair = normalize_function(function, args, kwargs, normalize_to_only_use_kwargs=only_keywords)
    if names == "refused":
        assert pair is None
        return

    torch.testing.assert_close(function(*pair.args, **pair.kwargs), function(*args, **kwargs))
    assert len(pair.args) == (0 if only_keywords else len(args))
    if names is not None:
        assert list(pair.kwargs) == names[len(pair.args) :]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((X, X, X), {}),
        ((X,), {"nothing": 1}),
        ((X, X), {"input": X}),
        (("text", X), {}),
        ((X, "text"), {}),
    ],
)
def test_a_call_that_fits_no_overload_has_no_full_form(args, kwargs):
    assert normalize_function(torch.add, args, kwargs) is None


@pytest.fixture
def graph():
    return Graph()


def test_a_node_is_normalized_whatever_its_inputs_are(graph):
    x, y = graph.placeholder("x"), graph.placeholder("y")
    call = graph.call_function(torch.add, (x,), {"other": y})

    assert call.normalized_arguments(None) == ArgsKwargsPair((x,), {"other": y, "alpha": 1})
    assert call.normalized_arguments(None, normalize_to_only_use_kwargs=True) == (
        (),
        {"input": x, "other": y, "alpha": 1},
    )


@pytest.mark.parametrize(
    ("function", "args", "in_full"),
    [
        (torch.add, ("x", 2, "y"), {"input": "x", "other": "y", "alpha": 2}),
        (torch.sub, ("x", 2, "y"), {"input": "x", "other": "y", "alpha": 2}),
        (torch.addmm, (2, "x", "y", "y"), {"input": "x", "mat1": "y", "mat2": "y", "beta": 2, "alpha": 1}),
        (torch.addmm, (2, "x", 3, "y", "y"), {"input": "x", "mat1": "y", "mat2": "y", "beta": 2, "alpha": 3}),
        (torch.addcmul, ("x", 2, "y", "y"), {"input": "x", "tensor1": "y", "tensor2": "y", "value": 2}),
        (torch.addcdiv, ("x", 2, "y", "y"), {"input": "x", "tensor1": "y", "tensor2": "y", "value": 2}),
    ],
)
def test_the_deprecated_order_of_arguments_is_understood(graph, function, args, in_full):
    inputs = {name: graph.placeholder(name) for name in "xy"}
    values = {"x": torch.full((3, 3), 5.0), "y": torch.full((3, 3), 7.0)}
    node = graph.call_function(function, tuple([inputs.get(value, value) for value in args]))

    call = node.normalized_arguments(None, normalize_to_only_use_kwargs=True)
    assert call == ((), {name: inputs.get(value, value) for name, value in in_full.items()})
    call = node.normalized_arguments(None)
    for_call = ([values.get(str(value), value) for value in call.args], call.kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That is what is deprecated.
        expected = function(*[values.get(value, value) for value in args])
    assert torch.equal(function(*for_call[0], **for_call[1]), expected)


def test_overloads_with_other_meanings_are_told_apart_by_values(graph):
    x = graph.placeholder("x")
    dims = graph.call_function(torch.max, (x, 1))
    several = graph.call_function(torch.sum, (x, [0, 1]))

    assert dims.normalized_arguments(None, normalize_to_only_use_kwargs=True).kwargs == {
        "input": x, "dim": 1, "keepdim": False,
    }  # fmt: skip
    assert several.normalized_arguments(None).kwargs == {"keepdim": False, "dtype": None}


def test_overloads_with_other_meanings_are_told_apart_by_types(graph):
    x, y = graph.placeholder("x"), graph.placeholder("y")
    call = graph.call_function(torch.max, (x, y))

    with pytest.raises(
        GraphError, match=r"arguments of torch\.max: they fit both .*Pass the types of the arguments"
    ):
        call.normalized_arguments(None)
    assert call.normalized_arguments(None, (torch.Tensor, int)).kwargs == {"keepdim": False}
    assert call.normalized_arguments(None, (torch.Tensor, torch.Tensor)).kwargs == {}
    assert call.normalized_arguments(None, (torch.Tensor, dict)) is None


@pytest.mark.parametrize(
    ("hint", "fits"),
    [
        (list[torch.Tensor], True),
        (tuple[torch.Tensor, ...], True),
        (tuple[()], True),
        (list, True),
        (tuple[torch.Tensor, torch.nn.Parameter], True),
        (list[int], False),
        (torch.Tensor, False),
        (None, False),
    ],
    ids=repr,
)
def test_types_of_lists(graph, hint, fits):
    call = graph.call_function(torch.cat, (graph.placeholder("x"),))

    assert (call.normalized_arguments(None, (hint,)) is not None) is fits


@pytest.mark.parametrize(
    ("hint", "fits"),
    [(int, True), (None, True), (int | None, True), (list[int], True), (torch.Tensor, False)],
    ids=repr,
)
def test_types_of_optional_lists_of_numbers(graph, hint, fits):
    call = graph.call_function(torch.sum, (graph.placeholder("x"), graph.placeholder("dim")))

    found = call.normalized_arguments(None, (torch.Tensor, hint))
    assert (found is not None) is fits


def test_types_of_keyword_arguments(graph):
    call = graph.call_function(torch.max, (graph.placeholder("x"),), {"other": graph.placeholder("y")})

    assert call.normalized_arguments(None, (torch.Tensor,), {"other": torch.Tensor}) is not None
    assert call.normalized_arguments(None, (torch.Tensor,), {"other": int}) is None
    assert call.normalized_arguments(None, (), {"unknown": int}) is None


def test_functions_written_in_python_are_normalized_by_their_signature(graph):
    def program(x, scale=2, *, bias=None):
        return x

    x = graph.placeholder("x")

    call = graph.call_function(program, (x,), {"bias": x})
    assert call.normalized_arguments(None) == ((x,), {"scale": 2, "bias": x})
    assert graph.call_function(program, (), {"y": x}).normalized_arguments(None) is None
    for function in (lambda *args: args, lambda **kwargs: kwargs, lambda x, /: x):
        assert graph.call_function(function, (x,)).normalized_arguments(None) is None


class Scale(nn.Module):
    def forward(self, x, factor=2.0):
        return x * factor


def test_modules_are_normalized_by_their_forward():
    root = nn.ModuleDict({"conv": nn.Conv2d(3, 2, 1), "own": Scale()})
    graph = Graph()
    x = graph.placeholder("x")
    conv, own = graph.call_module("conv", (x,)), graph.call_module("own", (x,))

    assert conv.normalized_arguments(root, normalize_to_only_use_kwargs=True) == ((), {"input": x})
    assert own.normalized_arguments(root) == ((x,), {"factor": 2.0})
    assert normalize_module(root, "own", (x,), {"factor": 3}) == ((x,), {"factor": 3})


def test_a_graph_module_is_normalized_by_its_graph():
    tracer = Tracer()
    inner = GraphModule(tracer.root, tracer.trace(lambda x, factor=2: x * factor))
    root = nn.ModuleDict({"inner": inner})

    assert normalize_module(root, "inner", (1,)) == ((1,), {"factor": 2})


def test_a_module_that_is_not_there_is_named(graph):
    call = graph.call_module("a.b", (graph.placeholder("x"),))

    with pytest.raises(GraphError, match=r"node 'a_b': it calls 'a\.b', which the root does not have"):
        call.normalized_arguments(nn.Module())
    with pytest.raises(GraphError, match=r"a call of 'a\.b'"):
        normalize_module(nn.Module(), "a.b", ())


@pytest.mark.parametrize("op", ["placeholder", "get_attr", "call_method", "output"])
def test_other_opcodes_have_no_full_form(graph, op):
    node = graph.create_node(op, "relu", (graph.placeholder("x"),) if op in {"call_method", "output"} else ())

    assert node.normalized_arguments(None) is None


def test_the_rule_that_was_added_last_is_asked_first(graph):
    registry = NormalizationRegistry()
    answers = [ArgsKwargsPair((1,), {}), ArgsKwargsPair((2,), {})]
    node = graph.call_function(print)
    assert registry.normalize(node, None) is None
    registry.register_rule(lambda *_: answers[0])
    registry.register_rule(lambda *_: answers[1])
    registry.register_rule(lambda *_: None)

    assert registry.normalize(node, None) is answers[1]


def test_nodes_of_a_trace_can_be_rewritten_in_full():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x):
            x = F.max_pool2d(self.norm(x), 2, stride=1)
            return torch.cat([x, torch.clamp(x, 0)], 1).sum(dim=1) + torch.sum(x, (1,))

    root = Net().eval()
    expected = root(IMAGE)
    tracer = Tracer()
    graph = tracer.trace(root)
    changed = 0
    for node in graph.nodes:
        pair = node.normalized_arguments(root, normalize_to_only_use_kwargs=True)
        if pair is not None:
            node.args, node.kwargs = pair
            changed += 1

    assert changed == 5
    torch.testing.assert_close(GraphModule(root, graph)(IMAGE), expected)
