"""Calls are expressed by others, and everything else stays as it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug import DecompositionRecord
from fxplug.errors import DecompositionError, GraphError
from fxplug.plugins import PluginManager
from fxplug.rewrite import BUILTIN_DECOMPOSITIONS

NONE = PluginManager(candidates=[], environ={})


def trace(program):
    return fxplug.symbolic_trace(program, manager=NONE)


def decompose(module, *rules):
    return fxplug.decompose(module, decompositions=[DecompositionRecord(*rule) for rule in rules])


def targets(module):
    return [getattr(node.target, "__name__", node.target) for node in module.graph.nodes if "call" in node.op]


def silu(input, inplace=False):  # noqa: A002
    return NotImplemented if inplace else input * torch.sigmoid(input)


def call_silu(x):
    return F.silu(x)


def call_sin(x):
    return torch.sin(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.SiLU()

    def forward(self, x):
        with torch.no_grad():
            y = F.hardswish(self.linear(x))
        y = y + F.mish(x) + F.tanhshrink(x) + torch.addmm(x, x, y)
        return self.act(y) + F.silu(input=x)


def test_the_builtin_ones_compute_the_same():
    model = Model()
    traced = trace(model)
    x = torch.randn(4, 4)

    simpler = fxplug.decompose(traced, manager=NONE)

    assert not {"silu", "hardswish", "mish", "tanhshrink", "addmm", "act"} & set(targets(simpler))
    torch.testing.assert_close(simpler(x), model(x))
    assert simpler.linear.weight is model.linear.weight
    assert "silu" in targets(traced)


@pytest.mark.parametrize("record", BUILTIN_DECOMPOSITIONS, ids=lambda record: record.target.__name__)
def test_each_builtin_one_alone(record):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.call = record.target() if isinstance(record.target, type) else None

        def forward(self, x):
            if record.target is torch.addmm:
                return torch.addmm(x, x, x)
            return record.target(x) if self.call is None else self.call(x)

    x = torch.randn(5, 5, dtype=torch.float64) * 4
    one = One()

    simpler = fxplug.decompose(trace(one), decompositions=[record])

    assert targets(simpler) != targets(trace(one))
    torch.testing.assert_close(simpler(x), one(x))


def test_regions_origins_and_notes_are_kept():
    traced = trace(Model())
    old = next(node for node in traced.graph.nodes if node.target is F.hardswish)
    old.meta["mine"] = 1
    linear = next(node for node in traced.graph.nodes if node.op == "call_module")
    linear.meta["mine"] = 2

    simpler = fxplug.decompose(traced, manager=NONE)

    by_name = {node.name: node for node in simpler.graph.nodes}
    assert by_name["linear"].meta["mine"] == 2
    made = [node for node in simpler.graph.nodes if node.region and node.name != "linear"]
    assert len(made) == 4
    for node in made:
        assert node.region == old.region
        assert node.origins[0].source() == old.origins[0].source()
        assert node.origins[0].made_by == "decompose"
    assert made[-1].meta["mine"] == 1


def test_calls_that_a_rule_makes_are_looked_at_too():
    simpler = decompose(trace(call_silu), (F.silu, silu), (torch.sigmoid, lambda x: 1 / (1 + torch.exp(-x))))

    assert "sigmoid" not in targets(simpler)
    x = torch.randn(5)
    torch.testing.assert_close(simpler(x), F.silu(x))


def test_a_call_can_be_left_alone():
    simpler = decompose(trace(lambda x: F.silu(x.clone(), inplace=True) + F.silu(x)), (F.silu, silu))

    assert targets(simpler) == ["clone", "silu", "sigmoid", "mul", "add"]


def test_what_a_rule_recorded_before_it_gave_up_is_gone():
    def gives_up(x):
        torch.exp(x)
        return NotImplemented

    assert targets(decompose(trace(call_sin), (torch.sin, gives_up))) == ["sin"]


def test_module_classes_methods_and_operators():
    model = Model()

    def linear(module, x):
        return x @ module.weight.t() + module.bias

    by_class = decompose(trace(nn.Sequential(model.linear)), (nn.Linear, linear))
    assert targets(by_class) == ["t", "matmul", "add"]

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = model.linear

        def forward(self, x):
            return torch.ops.aten.sin.default(self.linear(x).square())

    traced = trace(Holder())
    simpler = decompose(
        traced,
        (nn.Linear, linear),
        ("square", lambda x: x * x),
        (torch.ops.aten.sin, lambda x: torch.cos(x - torch.pi / 2)),
    )
    assert targets(simpler) == ["t", "matmul", "add", "mul", "sub", "cos"]
    x = torch.randn(2, 4)
    torch.testing.assert_close(simpler(x), traced(x))
    assert simpler.linear.weight is model.linear.weight


def test_a_module_with_hooks_is_left_alone():
    model = nn.Sequential(nn.SiLU())
    model[0].register_forward_hook(lambda module, args, result: result + 1)

    assert targets(fxplug.decompose(trace(model), manager=NONE)) == ["0"]


def test_a_rule_that_forgets_to_return_its_value_is_named():
    def forgetful(input, inplace=False):  # noqa: A002
        torch.sigmoid(input)

    traced = fxplug.symbolic_trace(lambda x: F.silu(x) + 1)

    with pytest.raises(DecompositionError, match=r"forgetful: it returned nothing, but the value is used"):
        decompose(traced, (F.silu, forgetful))


def test_what_goes_wrong_is_named():
    traced = trace(call_silu)

    def asks(input, inplace=False):  # noqa: A002
        return input if input.sum() > 0 else -input

    with pytest.raises(
        DecompositionError, match=r"node 'silu', a call of silu, by .*asks: Cannot trace: a condition"
    ):
        decompose(traced, (F.silu, asks))
    with pytest.raises(DecompositionError, match=r"still are calls of silu .* lead back to them") as refused:
        decompose(traced, (F.silu, lambda input, inplace=False: F.silu(input)))  # noqa: A006
    assert refused.value.code == "FXP-R001"
    with pytest.raises(GraphError, match=r"Cannot decompose a torch\.nn\.modules\.linear\.Linear"):
        fxplug.decompose(nn.Linear(1, 1), manager=NONE)
