"""Tensors, arguments and annotations come back with the same type and the same bits."""

from __future__ import annotations

import math
import operator
import struct
import typing
from typing import Optional

import pytest
import torch
from torch import nn

from fxplug.errors import StorageError
from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.storage import save


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([float("nan"), -0.0, float("inf"), 5e-324], dtype=torch.float64),
        torch.tensor([1 + 2j, complex("nan-infj")], dtype=torch.complex128),
        torch.randn(3, 4, dtype=torch.bfloat16),
        torch.randn(4, dtype=torch.float32).to(torch.float8_e5m2),
        torch.arange(6).reshape(2, 3).to(torch.uint16),
        torch.tensor([True, False]),
        torch.tensor(7),
        torch.empty(0, 3),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 1, 1).to(memory_format=torch.channels_last),
        torch.randn(3, 1).expand(3, 1000),
        torch.randn(10)[2:8:3],
        torch.empty(3, 4, dtype=torch.float16, device="meta"),
        torch.empty(2, 3, device="meta").t(),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{list(tensor.shape)}-{tensor.stride()}-{tensor.device}".replace(
        "torch.", ""
    ),
)
def test_tensors_keep_dtype_shape_strides_and_bits(round_trip, tensor):
    graph = Graph()
    graph.output(graph.get_attr("value"))
    value = round_trip(GraphModule({"value": tensor}, graph)).value

    assert (value.dtype, value.shape, value.stride(), value.device) == (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.device,
    )
    assert not value._is_view()
    if tensor.device.type != "meta":
        assert value.contiguous().flatten().view(torch.uint8).tolist() == (
            tensor.contiguous().flatten().view(torch.uint8).tolist()
        )


def test_tensors_of_one_shape_keep_each_what_is_its_own(round_trip):
    tensors = {
        "weight": nn.Parameter(torch.ones(2, 2)),
        "frozen": nn.Parameter(torch.ones(2, 2), requires_grad=False),
        "buffer": torch.ones(2, 2),
        "leaf": torch.ones(2, 2, requires_grad=True),
        "wide": torch.ones(2, 2, dtype=torch.float64),
        "turned": torch.arange(4.0).reshape(2, 2).t(),
        "column": torch.arange(8.0).reshape(2, 4)[:, 1:3],
    }
    graph = Graph()
    graph.output([graph.get_attr(name) for name in tensors])
    loaded = round_trip(GraphModule(tensors, graph))

    for name, tensor in tensors.items():
        found = getattr(loaded, name)
        assert (type(found), found.requires_grad) == (type(tensor), tensor.requires_grad)
        assert (found.dtype, found.stride()) == (tensor.dtype, tensor.stride())
        assert torch.equal(found, tensor)


@pytest.mark.parametrize("names", [("later", "first"), ("first", "later")])
def test_overlapping_parts_of_one_tensor_stay_overlapping_whichever_is_stored_first(round_trip, names):
    base = torch.arange(8.0)
    parts = {"later": base[3:], "first": base[:4]}
    graph = Graph()
    graph.output([graph.get_attr(name) for name in names])
    loaded = round_trip(GraphModule({name: parts[name] for name in names}, graph))

    assert torch.equal(loaded.first, parts["first"])
    assert torch.equal(loaded.later, parts["later"])
    loaded.first[3] = 99
    assert loaded.later.tolist() == [99, 4, 5, 6, 7]


def test_overlapping_tensors_of_different_dtypes_stay_overlapping(round_trip):
    words = torch.arange(4, dtype=torch.int32)
    graph = Graph()
    graph.output((graph.get_attr("bytes"), graph.get_attr("words")))
    loaded = round_trip(GraphModule({"bytes": words.view(torch.uint8)[2:7], "words": words}, graph))

    loaded.words.fill_(-1)
    assert loaded.bytes.tolist() == [255] * 5


ARGUMENTS = [
    None,
    True,
    0,
    2**53 + 1,
    -(2**200),
    -0.0,
    1e-320,
    float("inf"),
    complex(-0.0, float("-inf")),
    'text with "quotes", \n, é and \ud800',
    "\U0001f600",
    "\ude00\ud83d",
    b"\x00\xff",
    ...,
    (),
    (1,),
    [1, [2, (3,)]],
    {"a": 1, 2: [None], (3, "x"): {}},
    slice(None, -1, 2),
    (slice(1, None), ..., None, 0),
    range(1, 10, 3),
    torch.Size([1, 2]),
    torch.float16,
    torch.device("cuda", 1),
    torch.device("cpu"),
    torch.strided,
    torch.channels_last,
    torch.per_tensor_affine,
    torch.nn.functional.relu,
    torch.ops.aten.add.Tensor,
    torch.ops.aten.add,
    torch.Tensor.add,
    operator.getitem,
    math.sqrt,
    len,
    int,
    torch.Tensor,
]


@pytest.mark.parametrize("argument", ARGUMENTS, ids=lambda argument: repr(argument)[:40])
def test_arguments_come_back_with_the_same_type_and_value(round_trip, argument):
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(getattr, (x, "shape", argument), {"keyword": [argument]}))
    loaded = round_trip(GraphModule(nn.Module(), graph))

    node = next(node for node in loaded.graph.nodes if node.op == "call_function")
    assert type(node.args[2]) is type(graph.find_nodes(op="call_function")[0].args[2])
    assert repr(node.args[2]) == repr(argument)
    assert node.args[2] == argument
    assert node.kwargs == {"keyword": [argument]}


@pytest.mark.parametrize("argument", ["\ud83d\ude00", {"a\ud83d\ude00": 1}, [("\ud800\udc00",)]])
def test_a_text_that_would_be_another_one_when_it_is_read_is_refused(tmp_path, argument):
    graph = Graph()
    graph.output(graph.call_function(getattr, (graph.placeholder("x"), "shape", argument)))

    with pytest.raises(
        StorageError, match=r"the text '.*' holds two surrogates where it should hold the letter"
    ):
        save(GraphModule(nn.Module(), graph), tmp_path / "module.fxplug")
    assert list(tmp_path.iterdir()) == []


def test_nans_keep_their_payload(round_trip):
    (nan,) = struct.unpack(">d", bytes.fromhex("fff800000000beef"))
    graph = Graph()
    graph.output(graph.call_function(math.fabs, (nan,)))
    loaded = round_trip(GraphModule(nn.Module(), graph))

    assert (
        struct.pack(">d", loaded.graph.find_nodes(op="call_function")[0].args[0]).hex() == "fff800000000beef"
    )


@pytest.mark.parametrize(
    "annotation",
    [
        int,
        torch.Tensor,
        Optional[int],  # noqa: UP045 - is equal to what follows, and prints differently
        int | None,
        list[int],
        typing.List[int],  # noqa: UP006 - differs from what comes before
        tuple[int, ...],
        "Forward",
        typing.Any,
    ],
    ids=str,
)
def test_annotations_come_back(round_trip, annotation):
    graph = Graph()
    graph.output(graph.placeholder("x", annotation))
    loaded = round_trip(GraphModule(nn.Module(), graph))

    (node,) = loaded.graph.find_nodes(op="placeholder")
    assert node.type == annotation
    assert repr(node.type) == repr(annotation)
