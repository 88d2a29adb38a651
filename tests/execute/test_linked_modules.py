"""Captured models whose code is linked from known statements: they run what Python would have compiled."""

from __future__ import annotations

import copy
import linecache
import pickle
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxplug
from fxplug.codegen import compile_code
from fxplug.codegen.linking import CAN_LINK, Linker

pytestmark = pytest.mark.skipif(not CAN_LINK, reason="code objects of this Python are not known")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.short = nn.Sequential(nn.Conv2d(width, width, 1), nn.BatchNorm2d(width))

    def forward(self, x):
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        out += self.short(x)
        return functional.relu(out)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(*[Block(4) for _ in range(3)]) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.head = nn.Linear(4, 3)

    def forward(self, x, bias=0.5):
        for stage in self.stages:
            x = stage(x) * self.scale + bias
        return self.head(torch.flatten(functional.adaptive_avg_pool2d(x, (1, 1)), 1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"qkv": nn.Linear(8, 24), "out": nn.Linear(8, 8)}) for _ in range(3)
        )
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        for layer in self.layers:
            q, k, v = layer["qkv"](self.norm(x)).view(x.shape[0], -1, 3, 8).unbind(dim=2)
            weights = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, dim=-1)
            x = x + layer["out"](weights @ v)[:, :, :]
        return {"last": x, "mean": x.mean(dim=(1, 2), keepdim=True)}


MODELS = {"network": (Network, (2, 4, 8, 8)), "attention": (Attention, (2, 5, 8))}


@pytest.fixture(params=MODELS)
def case(request, monkeypatch):
    monkeypatch.setattr("fxplug.codegen.linking._MOST_NEW", 0)
    made, shape = MODELS[request.param]
    return made().eval(), torch.randn(shape)


def test_a_model_runs_the_code_that_python_would_have_compiled(case):
    model, x = case
    module = fxplug.symbolic_trace(model)
    code = module.graph.python_code("self")
    assert isinstance(code.maker, Linker)
    linked = compile_code(code).function.__code__
    found = compile(code.src, "<alone>", "exec", dont_inherit=True).co_consts
    expected = next(value for value in found if isinstance(value, types.CodeType))
    for part in (
        "co_code",
        "co_consts",
        "co_names",
        "co_varnames",
        "co_stacksize",
        "co_flags",
        "co_argcount",
    ):
        assert getattr(linked, part) == getattr(expected, part), part
    torch.testing.assert_close(module(x), model(x), rtol=0, atol=0)


def test_a_linked_model_is_copied_pickled_edited_and_compiled_by_dynamo(case):
    model, x = case
    module = fxplug.symbolic_trace(model)
    expected = module(x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(other(x), expected, rtol=0, atol=0)
        assert other.code == module.code
    torch.testing.assert_close(torch.compile(module, backend="eager")(x), expected)
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_function(type, (next(iter(module.graph.nodes)),)),)
    assert module(x) is torch.Tensor


def test_an_error_in_a_linked_model_names_the_node_and_shows_the_line(case):
    model, _ = case
    module = fxplug.symbolic_trace(model)
    with pytest.raises(RuntimeError) as caught:
        module(torch.randn(1, 2, 3, 4, 5))
    frames = []
    trace = caught.value.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "forward" and "-generated-" in trace.tb_frame.f_code.co_filename:
            frames.append(linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip())
        trace = trace.tb_next
    assert len(frames) == 1
    assert frames[0] in module.code
    assert any("node" in note for note in caught.value.__notes__)
