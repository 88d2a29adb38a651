"""Whatever torch.fx offers publicly is here by the same name and takes the same arguments; what is not is listed."""

from __future__ import annotations

import inspect

import pytest
import torch.fx
from torch import nn

from fxplug.capture import Tracer
from fxplug.codegen import CodeGen
from fxplug.execute import GraphModule, Interpreter
from fxplug.ir import Graph, Node

LEFT_OUT = {
    # They put reads of sizes into graphs whose notes hold symbolic sizes. The representation does not know torch; the
    # same nodes are made with graph.call_function(torch.ops.aten.sym_size.int, (node, dim)).
    (Graph, "create_size_node"),
    (Graph, "create_stride_node"),
    (Graph, "create_storage_offset_node"),
    (Graph, "materialize_symint"),
    (Graph, "materialize_symints"),
}
PARAMETERS_LEFT_OUT = {
    "record_func",  # Of python_code: calls of torch's profiler in the source.
    "fast_sympy_print",  # Of print_readable: another printer for symbolic sizes.
}
PAIRS = [
    (torch.fx.Node, Node),
    (torch.fx.Graph, Graph),
    (torch.fx.GraphModule, GraphModule),
    (torch.fx.Interpreter, Interpreter),
    (torch.fx.CodeGen, CodeGen),
]


def public(kind, base):
    return sorted(name for name in dir(kind) if not name.startswith("_") and not hasattr(base, name))


MEMBERS = [
    pytest.param(theirs, ours, name, id=f"{ours.__name__}.{name}")
    for theirs, ours in PAIRS
    for name in public(theirs, nn.Module if issubclass(ours, nn.Module) else object)
    if (ours, name) not in LEFT_OUT
]


def parameters(function):
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


@pytest.mark.parametrize(("theirs", "ours", "name"), MEMBERS)
def test_every_member_is_here_and_takes_the_same_arguments(theirs, ours, name):
    assert hasattr(ours, name)
    wanted = [
        one
        for one in parameters(getattr(theirs, name))
        if one.name not in PARAMETERS_LEFT_OUT and not one.name.startswith("_")
    ]
    found = {one.name: one for one in parameters(getattr(ours, name))}
    for parameter in wanted:
        assert parameter.name in found
        assert parameter.kind is found[parameter.name].kind
        if parameter.default is not parameter.empty:
            assert found[parameter.name].default is not parameter.empty
    positional = [one.name for one in wanted if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert [name for name in found if name in positional] == positional


@pytest.mark.parametrize(("kind", "name"), sorted(LEFT_OUT, key=lambda pair: pair[1]))
def test_what_is_left_out_is_not_here_by_half(kind, name):
    assert not hasattr(kind, name)


def test_attributes_of_instances_are_here():
    root = nn.Linear(2, 2)
    theirs, tracer = torch.fx.symbolic_trace(root), Tracer()
    ours = GraphModule(root, tracer.trace(root))
    pairs = [
        (theirs, ours),
        (theirs.graph, ours.graph),
        (next(iter(theirs.graph.nodes)), next(iter(ours.graph.nodes))),
        (torch.fx.Interpreter(theirs), Interpreter(ours)),
    ]

    for one, other in pairs:
        missing = {
            name
            for name in getattr(one, "__dict__", {})
            if not name.startswith("_") and not hasattr(other, name)
        }
        assert missing <= {"shape_env"}  # What torch.export notes on its modules.
