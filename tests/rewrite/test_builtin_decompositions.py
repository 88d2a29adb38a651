"""The decompositions of fxplug change no result: value, dtype, layout and gradient."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import fxplug
from fxplug.plugins import PluginManager
from fxplug.rewrite import BUILTIN_DECOMPOSITIONS

NONE = PluginManager(candidates=[], environ={})
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64)
ADDMM_FLAGS = {
    "": {},
    "ones": {"beta": 1.0, "alpha": 1},
    "alpha": {"alpha": 2},
    "beta": {"beta": 0},
}
INPLACE_FLAGS = {"": {}, "not-inplace": {"inplace": False}, "inplace": {"inplace": True}}


def calls_of(record):
    """Yield a name and a function of a tensor for each way to call the target of a record."""
    target = record.target
    if target is torch.addmm:
        for name, flags in ADDMM_FLAGS.items():
            yield f"addmm-{name}", (lambda x, own=flags: torch.addmm(x, x.t(), x.t(), **own))
        yield "addmm-row", lambda x: torch.addmm(x[:1], mat1=x, mat2=x)
        yield "addmm-number", lambda x: torch.addmm(x.sum().to(x.dtype), x, x)
    elif isinstance(target, type):
        for name, flags in INPLACE_FLAGS.items():
            yield f"{target.__name__}-{name}", Written(target(**flags))
    elif target is F.tanhshrink:
        yield "tanhshrink", target
    else:
        for name, flags in INPLACE_FLAGS.items():
            yield f"{target.__name__}-{name}", (lambda x, own=flags, call=target: call(x * 1, **own))


class Written(nn.Module):
    """Calls a module on a value that may be written to."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x * 1)


class Inside(nn.Module):
    """Calls a function inside a context."""

    def __init__(self, call, context):
        super().__init__()
        self.call = call
        self.context = context

    def forward(self, x):
        if self.context is None:
            return self.call(x)
        with self.context():
            return self.call(x)


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


CONTEXTS = {
    "plain": (None, nullcontext),
    "autocast": (autocast, nullcontext),
    "autocast-around": (None, autocast),
    "no-grad": (torch.no_grad, nullcontext),
}
CALLS = {name: (call, record) for record in BUILTIN_DECOMPOSITIONS for name, call in calls_of(record)}


def inputs_of(name, dtype):
    large = [0.5, -1.5, 3.0, 5.0] if name.startswith("addmm") else [0.5, -2.875, 12000.0, -12000.0]
    if dtype is torch.uint8:
        large = [1, 2, 3, 4]
    values = torch.tensor([large, [1, 2, 0, 4], [-1, 3, 2.5, -7], [6, 0.125, 0, -3]], dtype=torch.float64)
    values = (values.abs() if dtype is torch.uint8 else values).to(dtype)
    wide = torch.zeros(8, 8, dtype=dtype)
    wide[::2, ::2] = values
    return {
        "dense": values,
        "transposed": values.t().contiguous().t(),
        "strided": wide[::2, ::2],
        "empty": torch.empty(0, 0, dtype=dtype),
    }


def outcome(module, x, around):
    """Return value and gradient of a call, or the kind of error."""
    x = x.detach().requires_grad_(x.is_floating_point())
    with around():
        value = module(x)
    if value.requires_grad:
        value.sum().backward()
    return value, x.grad


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("where", CONTEXTS)
@pytest.mark.parametrize("name", CALLS)
def test_nothing_that_one_can_see_changes(name, where, dtype):
    call, record = CALLS[name]
    inside, around = CONTEXTS[where]
    eager = Inside(call, inside)
    traced = fxplug.symbolic_trace(eager, manager=NONE)
    simpler = fxplug.decompose(traced, decompositions=[record])
    is_left_alone = name.endswith(("-inplace", "-alpha", "-beta")) and "not-" not in name
    assert is_left_alone == (len(simpler.graph.nodes) == len(traced.graph.nodes))

    for layout, x in inputs_of(name, dtype).items():
        try:
            value, gradient = outcome(eager, x, around)
        except (NotImplementedError, RuntimeError):
            assert not dtype.is_floating_point, layout
            continue
        new, new_gradient = outcome(simpler, x, around)
        assert (new.dtype, new.stride(), new.requires_grad) == (
            value.dtype,
            value.stride(),
            value.requires_grad,
        ), layout
        torch.testing.assert_close(new, value, equal_nan=True, **tolerance(value))
        torch.testing.assert_close(new_gradient, gradient, equal_nan=True, **tolerance(value))


def tolerance(value):
    if not value.is_floating_point():
        return {"rtol": 0, "atol": 0}
    eps = torch.finfo(value.dtype).eps
    return {"rtol": 8 * eps, "atol": 8 * eps}


def test_a_large_half_stays_what_it_is():
    simpler = fxplug.decompose(
        fxplug.symbolic_trace(nn.Sequential(nn.Hardswish()), manager=NONE), manager=NONE
    )

    assert simpler(torch.tensor([12000.0], dtype=torch.float16)).item() == 12000


def test_autocast_gives_the_same_dtype():
    x = torch.ones(2, 2)

    def program(x):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.addmm(x, x, x)

    simpler = fxplug.decompose(fxplug.symbolic_trace(program, manager=NONE), manager=NONE)
    assert simpler(x).dtype == torch.bfloat16
    assert simpler(x).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_mish_keeps_its_dtype_where_autocast_computes_softplus_in_float32():
    class AsOnGraphicsCards(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result.float() if func is F.softplus else result

    simpler = fxplug.decompose(fxplug.symbolic_trace(nn.Sequential(nn.Mish()), manager=NONE), manager=NONE)
    with AsOnGraphicsCards():
        assert simpler(torch.ones(2, dtype=torch.float16)).dtype == torch.float16


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_factors_that_the_program_computes_are_left_alone(name):
    def program(x, factor):
        return torch.addmm(x, x, x, **{name: factor})

    simpler = fxplug.decompose(fxplug.symbolic_trace(program, manager=NONE), manager=NONE)
    assert [node.name for node in simpler.graph.nodes if node.op == "call_function"] == ["addmm"]
    assert simpler(torch.ones(2, 2), 1).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_flags_that_the_program_computes_are_left_alone():
    def program(x, inplace):
        return F.silu(x, inplace)

    simpler = fxplug.decompose(fxplug.symbolic_trace(program, manager=NONE), manager=NONE)
    assert [node.name for node in simpler.graph.nodes if node.op == "call_function"] == ["silu"]


def test_the_dtype_of_a_product_is_left_alone():
    def program(x):
        return torch.addmm(x, x, x, torch.float32)

    traced = fxplug.symbolic_trace(program, manager=NONE)
    assert [node.op for node in fxplug.decompose(traced, manager=NONE).graph.nodes] == [
        "placeholder",
        "call_function",
        "output",
    ]
