"""Capturing what torch.compile hands to its backends: graph modules of torch.fx that make their code at first use."""

from __future__ import annotations

import warnings

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed
from torch.fx._lazy_graph_module import _LazyGraphModule

import fxplug


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2


class Beside(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.held = [inner]

    def forward(self, x):
        return self.held[0](x) * 2


def model():
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)).requires_grad_(False)


def late():
    made = _LazyGraphModule.from_graphmodule(torch.fx.symbolic_trace(model()))
    assert made._needs_recompile()
    return made


@pytest.mark.parametrize("mode", ["symbolic", "value", "shape"])
@pytest.mark.parametrize("is_traced_before", [False, True])
def test_a_backend_captures_what_it_is_given(mode, is_traced_before):
    net, x, captured = model(), torch.randn(4, 3), []

    def backend(given, examples):
        made = (
            fxplug.symbolic_trace(given)
            if mode == "symbolic"
            else fxplug.trace(given, tuple(examples), mode=mode)
        )
        captured.append(made)
        return made.forward

    torch._dynamo.reset()
    chosen = aot_autograd(fw_compiler=backend) if is_traced_before else backend
    result = torch.compile(net, backend=chosen)(x)
    torch._dynamo.reset()
    assert len(captured) == 1
    assert len(captured[0].graph.nodes) >= 4  # It is what the model does, and not one call.
    torch.testing.assert_close(result, net(x))


@pytest.mark.parametrize(
    "program_of",
    [
        lambda made: made,
        lambda made: made.forward,
        lambda made: lambda x: made(x) * 2,
        Around,
        Beside,
    ],
    ids=["itself", "its method", "a function", "a part", "held"],
)
@pytest.mark.parametrize(
    "capture",
    [fxplug.symbolic_trace, lambda root: fxplug.trace(root, (torch.ones(4, 3),))],
    ids=["symbolic", "value"],
)
def test_code_is_made_before_a_program_runs(program_of, capture):
    x, made = torch.randn(2, 3), late()
    program = program_of(made)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Making the code is no doing of the program.
        captured = capture(program)
    torch.testing.assert_close(captured(x), program(x))
    assert [node.op for node in captured.graph.nodes].count("output") == 1


def test_the_method_that_makes_the_code_is_called_like_the_code():
    method, x = late().forward, torch.randn(2, 3)
    torch.testing.assert_close(fxplug.symbolic_trace(method)(input=x), method(x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("is_traced_before", [False, True])
def test_a_backend_optimises_what_it_is_given(dynamic, is_traced_before):
    net, results = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval().requires_grad_(False), []

    def backend(given, examples):
        results.append(fxplug.optimize(given, examples, measure=False))
        return results[-1].module

    torch._dynamo.reset()
    boxed = aot_autograd(fw_compiler=lambda *given: make_boxed_func(backend(*given)))
    compiled = torch.compile(net, backend=boxed if is_traced_before else backend, dynamic=dynamic)
    for size in (8, 9) if dynamic else (8,):
        x = torch.randn(2, 3, size, size)
        torch.testing.assert_close(compiled(x), net(x))
    torch._dynamo.reset()
    told = any("Nothing was compared" in warning for warning in results[0].warnings)
    assert told is (results[0].check.elements == 0)


def test_an_open_size_is_no_example():
    def backend(given, examples):
        return fxplug.trace(given, tuple(examples))

    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match=r"it is an open size \(SymInt s\d+\).* \[FXP-T065\]"):
        torch.compile(model(), backend=backend, dynamic=True)(torch.randn(4, 3))
    torch._dynamo.reset()


def test_what_a_compiler_notes_on_an_example_is_no_guard():
    x = torch.randn(4, 3)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    assert vars(x)

    captured = fxplug.trace(lambda x: x * 2 if x.shape[0] > 1 else x, (x,))

    torch.testing.assert_close(captured(torch.ones(3, 3)), torch.full((3, 3), 2.0))
