"""Any parameter names with tensors and other values of torch: what comes out of a module is what went in."""

from __future__ import annotations

import copy
import keyword
import pickle

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.execute import GraphModule
from fxplug.ir import Graph

settings.register_profile(
    "tensors", max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
SETTINGS = settings.get_profile("tensors")

SAME_SIZE = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.complex64: torch.int64,
    torch.int64: torch.int64,
    torch.uint8: torch.uint8,
    torch.int8: torch.int8,
    torch.bool: torch.bool,
}
"""Kind of a tensor -> integers that hold its bits."""


class Labelled(torch.Tensor):
    """A kind of tensor that a user might have."""


def bits_of(tensor):
    return tensor.detach().contiguous().flatten().view(SAME_SIZE[tensor.dtype]).tolist()


@st.composite
def tensors(draw):
    """Tensors of every kind, made from bits: not-a-numbers with a payload, negative zeros and infinities included."""
    kind = draw(st.sampled_from(list(SAME_SIZE)))
    sizes = draw(st.sampled_from([(), (0,), (3,), (2, 3), (2, 0, 1)]))
    whole = SAME_SIZE[kind]
    low, high = (0, 1) if whole is torch.bool else (torch.iinfo(whole).min, torch.iinfo(whole).max)
    count = int(torch.tensor(sizes).prod())
    special = st.sampled_from([low, high, 0, high // 2 + 1])
    bits = draw(st.lists(st.integers(low, high) | special, min_size=count, max_size=count))
    tensor = torch.tensor(bits, dtype=whole).view(kind).reshape(sizes)
    form = draw(st.sampled_from(["plain", "transposed", "parameter", "needs gradient", "labelled"]))
    if form == "transposed" and tensor.dim() == 2:
        return tensor.t()
    if form == "labelled":
        return tensor.as_subclass(Labelled)
    if tensor.is_floating_point() and form == "parameter":
        return nn.Parameter(tensor)
    return tensor.requires_grad_(tensor.is_floating_point() and form == "needs gradient")


OTHERS = [
    *(torch.float32, torch.bfloat16, torch.complex128, torch.quint8),
    *(torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")),
    *(torch.strided, torch.sparse_coo, torch.contiguous_format, torch.channels_last),
    *(torch.relu, torch.Tensor.add, torch.ops.aten.add.Tensor, torch.ops.aten.add, F.softmax, nn.Linear),
    *(torch.finfo(torch.float16), torch.iinfo(torch.int8)),
    *(torch.tensor([1.0]).to_sparse(), torch.empty(2, device="meta")),
]
CONSTANTS = tensors() | st.sampled_from([*OTHERS, torch.per_tensor_affine, torch.Generator()])

NAMES = st.sampled_from(
    [
        "x",
        "torch",
        "self",
        "device",
        "nan",
        "inf",
        "tensor",
        "_tensor_constant0",
        "aten",
        "slice",
        "float32",
        "input",
    ]
) | st.text(
    st.characters(categories=["Ll", "Lu", "Nd", "Pc"], max_codepoint=127), min_size=1, max_size=5
).filter(lambda text: text.isidentifier() and not keyword.iskeyword(text))


def identical(one, other):
    return one is other or (not isinstance(one, torch.Tensor) and type(one) is type(other) and one == other)


def can_be_copied(tensor):
    """Whether torch itself can: not where a class of its own comes without a clone() that keeps the class."""
    return type(tensor) is not Labelled


def same_bits(one, other):
    assert (type(one), one.dtype, one.shape, one.requires_grad) == (
        type(other),
        other.dtype,
        other.shape,
        other.requires_grad,
    )
    assert bits_of(one) == bits_of(other)


@SETTINGS
@given(st.lists(NAMES, max_size=4, unique=True), st.lists(CONSTANTS, max_size=4))
@example(
    ["torch", "device", "self"], [torch.device("cuda", 1), torch.float32, torch.relu, torch.tensor(-0.0)]
)
@example(["_tensor_constant0", "x"], [torch.tensor(float("nan"))])
def test_a_graph_returns_the_very_objects(names, constants):
    graph = Graph()
    nodes = [graph.placeholder(name) for name in names]
    total = graph.call_function(lambda *args: args, (*nodes, *constants))
    graph.output((nodes, total, [constants], {"slice": slice(None, tuple(constants))}))
    module = GraphModule(nn.Module(), graph)
    values = [object() for _ in names]
    named = dict(zip(names, values, strict=True))

    for received, called, [held], sliced in (
        module(*values),
        module.forward(**named),
    ):
        assert list(received) == values
        assert list(called[: len(names)]) == values
        assert all(map(identical, called[len(names) :], constants))
        assert all(map(identical, held, constants))
        assert all(map(identical, sliced["slice"].stop, constants))


@SETTINGS
@given(st.lists(tensors(), min_size=1, max_size=3))
def test_a_trace_returns_the_very_tensors(constants):
    module = fxplug.symbolic_trace(lambda x: (x, constants, {"first": constants[0]}))

    x, held, named = module(5)

    assert x == 5
    assert all(one is other for one, other in zip(held, constants, strict=True))
    assert named["first"] is constants[0]


@SETTINGS
@given(
    st.lists(tensors().filter(can_be_copied), min_size=1, max_size=3),
    st.sampled_from(["deep copy", "pickle"]),
)
def test_copies_hold_the_same_bits(constants, way):
    module = fxplug.symbolic_trace(lambda x: (x, constants))

    twin = copy.deepcopy(module) if way == "deep copy" else pickle.loads(pickle.dumps(module))

    for one, other in zip(twin(5)[1], constants, strict=True):
        assert one is not other
        same_bits(one, other)


def take(x, value):
    return torch.overrides.handle_torch_function(take, (x,), x, value) if hasattr(x, "node") else (x, value)


@pytest.mark.parametrize("value", OTHERS, ids=str)
def test_every_other_value_of_torch_can_be_an_argument(value):
    module = fxplug.symbolic_trace(lambda x: take(x, value))

    assert [node.op for node in module.graph.nodes][-2:] == ["call_function", "output"]
    assert identical(module(torch.ones(1))[1], value)
