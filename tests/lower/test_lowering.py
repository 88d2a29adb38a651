"""Lowering: what a backend supports, and what happens when it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxplug.capture import Tracer
from fxplug.errors import BackendError, LoweringError
from fxplug.execute import GraphModule
from fxplug.lower import (
    BUILTIN_BACKENDS,
    Backend,
    EagerBackend,
    LoweringContext,
    Support,
    lower,
    plan_lowering,
)

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.act = nn.Tanh()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.act(self.linear(x)).mul(2) + self.scale  # all the calls


class Picky(Backend):
    """Supports everything but what it is told."""

    def __init__(self, *refused, error=None):
        self.refused = refused
        self.error = error
        self.asked = []
        self.compiled = []

    def supports(self, node, context):
        self.asked.append((node.name, context))
        return Support(
            node.name not in self.refused, f"{node.name} is too hard" if node.name in self.refused else ""
        )

    def compile(self, subgraph, example_inputs, options):
        if self.error is not None:
            raise self.error
        self.compiled.append((subgraph, example_inputs, options))
        return nn.Identity()


@pytest.fixture
def module():
    tracer = Tracer()
    graph = tracer.trace(Net())
    return GraphModule(tracer.root, graph, "Net")


def test_plan_has_one_entry_per_call(module):
    report = plan_lowering(module, Picky("mul"), "picky")

    assert report.backend == "picky"
    assert [(node.name, node.target, node.ok, node.reason) for node in report.nodes] == [
        ("linear", "linear", True, ""),
        ("act", "act", True, ""),
        ("mul", "mul", False, "mul is too hard"),
        ("add", "add", True, ""),
    ]
    assert report.coverage == 0.75
    assert [node.name for node in report.unsupported] == ["mul"]


def test_plan_names_the_line_of_the_program(module):
    line = Net.forward.__code__.co_firstlineno + 1

    assert {node.source for node in plan_lowering(module, Picky(), "picky").nodes} == {f"{__file__}:{line}"}


def test_plan_compiles_and_changes_nothing(module):
    backend = Picky("mul")
    text, version = str(module.graph), module.graph.version
    plan_lowering(module, backend, "picky", (X,))

    assert backend.compiled == []
    assert (str(module.graph), module.graph.version) == (text, version)


def test_context_knows_module_and_inputs(module):
    class Looking(Picky):
        def supports(self, node, context):
            self.asked.append(type(context.submodule(node)))
            assert context.module is module
            assert context.example_inputs == (X,)
            return Support(ok=True)

    backend = Looking()
    plan_lowering(module, backend, "looking", (X,))
    assert backend.asked == [nn.Linear, nn.Tanh, type(None), type(None)]
    assert LoweringContext(module).example_inputs is None


def test_graph_without_calls_is_covered(module):
    empty = GraphModule(nn.Module(), Tracer().trace(lambda x: x))
    report = plan_lowering(empty, Picky(), "picky")

    assert report.coverage == 1.0
    assert report.nodes == ()


def test_supported_module_is_compiled_as_a_whole(module):
    backend = Picky()
    lowered = lower(module, backend, (X,), name="picky", options={"level": 2})

    assert isinstance(lowered.module, nn.Identity)
    assert backend.compiled == [(module, (X,), {"level": 2})]
    assert lowered.fallback == ""
    assert lowered.report.coverage == 1.0


def test_unsupported_call_keeps_the_module_eager(module):
    backend = Picky("act", "mul")
    lowered = lower(module, backend, (X,), name="picky")

    assert lowered.module is module
    assert backend.compiled == []
    line = Net.forward.__code__.co_firstlineno + 1
    assert lowered.fallback == (
        f"2 of 4 calls are not supported by 'picky', the first is 'act' at {__file__}:{line}: act is too hard"
    )


def test_missing_reason_is_said(module):
    class Silent(Picky):
        def supports(self, node, context):
            return Support(ok=False)

    assert lower(module, Silent(), (X,), name="silent").fallback.endswith(": no reason given")


def test_backend_that_cannot_build_keeps_the_module_eager(module):
    lowered = lower(module, Picky(error=BackendError("Install fast-engine.")), (X,), name="picky")

    assert lowered.module is module
    assert lowered.fallback == "Install fast-engine."
    assert lowered.report.coverage == 1.0


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (
            Picky("act"),
            r"Cannot lower the module to 'picky': 1 of 4 calls are not supported.*act is too hard \[FXP-L000\]",
        ),
        (
            Picky(error=BackendError("Install fast-engine.")),
            r"Cannot lower the module to 'picky': Install fast-engine\.",
        ),
    ],
    ids=["unsupported", "not built"],
)
def test_strict_raises_instead(module, backend, message):
    with pytest.raises(LoweringError, match=message) as caught:
        lower(module, backend, (X,), name="picky", strict=True)
    assert caught.value.__cause__ is backend.error


def test_strict_is_content_with_a_supported_module(module):
    assert lower(module, Picky(), (X,), name="picky", strict=True).fallback == ""


def test_backend_that_fails_while_building_keeps_the_module_eager(module):
    lowered = lower(module, Picky(error=ValueError("engine bug")), (X,), name="picky")

    assert lowered.module is module
    assert "engine bug" in lowered.fallback


def test_strict_names_the_backend_that_fails_while_building(module):
    with pytest.raises(LoweringError, match=r"picky.*engine bug"):
        lower(module, Picky(error=ValueError("engine bug")), (X,), name="picky", strict=True)


def test_lowering_does_not_change_the_module(module):
    text, expected = str(module.graph), module(X)
    lower(module, Picky("act"), (X,), name="picky")
    lower(module, Picky(), (X,), name="picky")

    assert str(module.graph) == text
    assert torch.equal(module(X), expected)


def test_support_is_true_or_false():
    assert Support(ok=True)
    assert not Support(ok=False, reason="no")


def test_eager_backend_supports_everything_and_changes_nothing(module):
    lowered = lower(module, EagerBackend(), (X,), name="eager")

    assert lowered.module is module
    assert lowered.fallback == ""
    assert lowered.report.coverage == 1.0
    assert torch.equal(lowered.module(X), module(X))


def test_eager_backend_is_offered():
    (record,) = BUILTIN_BACKENDS
    assert record.name == "eager"
    assert isinstance(record.factory(), EagerBackend)
    assert record.requires == ()
