"""Lowering: what a backend supports, and what happens when it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxplug.analyze.isolation import copy_module, copy_values
from fxplug.capture import Tracer
from fxplug.errors import BackendError, ConfigError, InvalidArgumentError, LoweringError
from fxplug.execute import GraphModule
from fxplug.lower import (
    BUILTIN_BACKENDS,
    Backend,
    Choices,
    EagerBackend,
    LoweringContext,
    Profile,
    Support,
    lower,
    lower_to_several,
    lowered_partitions,
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


class Engine(nn.Module):
    """Runs what it was compiled from; its results share memory with nothing."""

    def __init__(self, part):
        super().__init__()
        self.part = copy_module(part)

    def forward(self, *inputs):
        return copy_values(self.part(*copy_values(inputs)))


class Running(Picky):
    """Supports everything but what it is told, and runs it."""

    def compile(self, subgraph, example_inputs, options):
        super().compile(subgraph, example_inputs, options)
        return Engine(subgraph)


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


def test_a_supported_module_is_one_partition(module):
    backend = Picky()
    lowered = lower(module, backend, (X,), name="picky", options={"level": 2})

    ((part, inputs, options),) = backend.compiled
    assert [node.name for node in part.graph.nodes if node.op.startswith("call_")] == [
        "linear",
        "act",
        "mul",
        "add",
    ]
    assert torch.equal(inputs[0], X)
    assert options == {"level": 2}
    assert isinstance(lowered.module.submod_0.engine, nn.Identity)
    assert lowered.fallback == ""
    assert lowered.report.coverage == 1.0
    assert lowered.report.eager == ()


def test_unsupported_calls_stay_between_partitions(module):
    backend = Running("act", "mul")
    lowered = lower(module, backend, (X,), name="running")

    assert [partition.nodes for partition in lowered.report.partitions] == [("linear",), ("add",)]
    assert [node.name for node in lowered.report.eager] == ["act", "mul"]
    assert list(lowered_partitions(lowered.module)) == ["submod_0", "submod_1"]
    assert torch.equal(lowered.module(X), module(X))
    assert lowered.fallback == ""


def test_a_module_of_which_nothing_is_supported_stays_eager(module):
    backend = Picky("linear", "act", "mul", "add")
    lowered = lower(module, backend, (X,), name="picky")

    assert lowered.module is module
    assert backend.compiled == []
    line = Net.forward.__code__.co_firstlineno + 1
    assert lowered.fallback == (
        f"4 of 4 calls are not supported by 'picky', the first is 'linear' at {__file__}:{line}: linear is too hard"
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


@pytest.mark.parametrize(
    "call",
    [
        lambda module: lower(module, EagerBackend(), (X,), name="eager"),
        lambda module: lower_to_several(module, [("eager", EagerBackend())], (X,)),
        lambda module: plan_lowering(module, EagerBackend()),
    ],
    ids=["lower", "several", "plan"],
)
def test_a_module_without_a_graph_is_to_be_traced_first(call):
    with pytest.raises(InvalidArgumentError, match=r"Cannot lower a torch\.nn\..*Linear: .* Trace it first"):
        call(nn.Linear(3, 3))


@pytest.mark.parametrize("given", [(), (X, X), (torch.ones(2, 9),), (None,)])
def test_inputs_on_which_the_module_does_not_run_are_named(module, given):
    with pytest.raises(LoweringError, match="does not run on the example inputs") as caught:
        lower(module, Running(), given, name="running")

    assert caught.value.code == "FXP-V001"
    said = {0: "(none)", 2: "(float32[2, 3], float32[2, 3])"}.get(len(given), "")
    assert said in str(caught.value)
    assert isinstance(caught.value.__cause__, (TypeError, RuntimeError))


@pytest.mark.parametrize("given", [X, None])
def test_inputs_come_in_a_tuple(module, given):
    with pytest.raises(InvalidArgumentError, match=r"as example_inputs: give a tuple"):
        lower(module, Running(), given, name="running")


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
    record = BUILTIN_BACKENDS[0]
    assert [each.name for each in BUILTIN_BACKENDS] == ["eager", "inductor"]
    assert isinstance(record.factory(), EagerBackend)
    assert record.requires == ()


# -- what the user decides


def test_small_partitions_stay_eager_with_the_reason(module):
    report = plan_lowering(module, Picky("mul"), "picky", choices=Choices(min_block_size=2))

    assert [partition.nodes for partition in report.partitions] == [("linear", "act")]
    assert report.nodes[3].reason == (
        "its partition for 'picky' would have 1 call that compute, fewer than min_block_size=2"
    )


def test_pins_and_keep_together(module):
    report = plan_lowering(module, Picky(), "picky", choices=Choices(pins={"act": ""}))
    assert report.nodes[1].reason == "it is pinned to PyTorch"
    assert [partition.nodes for partition in report.partitions] == [("linear",), ("mul", "add")]

    together = Choices(together=(("act", "mul"),))
    report = plan_lowering(module, Picky("mul"), "picky", choices=together)
    assert [partition.nodes for partition in report.partitions] == [("linear",), ("add",)]
    assert "together" in report.nodes[1].reason


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            Choices(pins={"acr": ""}),
            "Cannot decide where node 'acr' runs: the module has no call of this name.",
        ),
        (Choices(pins={"act": "other"}), "Cannot pin node 'act' to 'other': it is none of the backends"),
        (Choices(min_block_size=0), "Cannot use min_block_size=0: give a positive whole number."),
    ],
    ids=["node", "backend", "size"],
)
def test_choices_that_name_nothing_are_refused(module, choices, message):
    with pytest.raises(ConfigError) as caught:
        plan_lowering(module, Picky(), "picky", choices=choices)

    assert message in str(caught.value)


def test_the_first_backend_that_supports_a_call_runs_it(module):
    first, second = Running("act", "mul"), Running("mul")
    lowered = lower_to_several(module, [("first", first), ("second", second)], (X,))

    runs = [(partition.backend, partition.nodes) for partition in lowered.report.partitions]
    assert runs == [("first", ("linear",)), ("second", ("act",)), ("first", ("add",))]
    assert lowered.report.nodes[2].reason == "first: mul is too hard; second: mul is too hard"
    assert torch.equal(lowered.module(X), module(X))


# -- what is known before anything is built


def test_the_report_says_what_moves_and_what_more_support_would_merge(module):
    report = plan_lowering(module, Picky("act"), "picky", (X,))

    assert [partition.transfer_bytes for partition in report.partitions] == [2 * 24, 2 * 24]
    (missing,) = report.missing
    assert (missing.target, missing.nodes, missing.partitions) == ("Tanh", ("act",), 1)
    line = Net.forward.__code__.co_firstlineno + 1
    assert str(report).splitlines() == [
        "picky: 3 of 4 calls supported (75%)",
        "partitions: 2",
        "  submod_0 (picky): 1 calls, of which 1 compute, 48 bytes in and out",
        "  submod_1 (picky): 2 calls, of which 2 compute, 48 bytes in and out",
        "in PyTorch: 1",
        f"  act (act) at {__file__}:{line}: act is too hard",
        "with Tanh supported: 1 partitions",
    ]


# -- what partitions are called with


def test_other_inputs_are_an_error_or_run_in_pytorch(module):
    lowered = lower(module, Running(), (X,), name="running")
    with pytest.raises(LoweringError) as caught:
        lowered.module(torch.randn(5, 3))
    assert str(caught.value) == (
        "Cannot run partition 'submod_0' on 'running': input 0 is float32 5x3, and float32 2x3 is expected. Lower the "
        "module for such inputs, let the backend leave sizes open where it can, or lower with on_mismatch='eager'. "
        "[FXP-L003]"
    )

    lowered = lower(module, Running(), (X,), name="running", on_mismatch="eager")
    other = torch.randn(5, 3)
    assert torch.equal(lowered.module(other), module(other))


def test_profiles_look_at_dtypes_ranks_and_plain_values():
    profile = Profile.of((X, 3), open_dimensions=(0,))

    assert profile.problem_with((torch.ones(9, 3), 3)) == ""
    assert (
        profile.problem_with((torch.ones(9, 4), 3)) == "input 0 is float32 9x4, and float32 ?x3 is expected"
    )
    assert profile.problem_with((X.double(), 3)) == "input 0 is float64 2x3, and float32 ?x3 is expected"
    assert profile.problem_with((X, 4)) == "input 1 is 4, and was 3 when it was compiled"
    assert profile.problem_with((X,)) == "there are 1 inputs, and 2 are expected"


# -- what cannot be built


def test_one_partition_that_cannot_be_built_stays_eager(module):
    class Half(Running):
        def compile(self, subgraph, example_inputs, options):
            if any(node.name == "add" for node in subgraph.graph.nodes):
                raise BackendError("No additions today.")
            return super().compile(subgraph, example_inputs, options)

    lowered = lower(module, Half("mul"), (X,), name="half")

    assert [partition.fallback for partition in lowered.report.partitions] == ["", "No additions today."]
    assert [node.name for node in lowered.report.eager] == ["mul", "add"]
    assert lowered.fallback == ""
    assert torch.equal(lowered.module(X), module(X))


# -- memory that is shared


class Writing(nn.Module):
    def forward(self, x):
        y = x * 2
        z = y.view(-1)
        z.add_(1)
        return y.sum() + z, y


@pytest.mark.parametrize("refused", [(), ("add_",), ("view",), ("mul",), ("sum_1",)])
def test_what_is_written_is_seen_through_views(refused):
    module = GraphModule(nn.Module(), Tracer().trace(Writing()))
    lowered = lower(module, Running(*refused), (X,), name="running")

    torch.testing.assert_close(lowered.module(X), Writing()(X))
