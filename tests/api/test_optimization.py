"""The main job, on small modules: what it does, what it finds out, and what it leaves alone."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import fxplug
from fxplug.api import ExampleError, MismatchError, OptimizationResult, optimize
from fxplug.errors import ConfigError, FxplugError, LoweringError, PassError, TraceError, UnknownNameError
from fxplug.lower import Backend, BackendRecord, EagerBackend, Profile, Support
from fxplug.passes import Pass, PassRecord, PassResult


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)
        nn.init.uniform_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 1.5)

    def forward(self, x):
        return self.dropout(torch.relu(self.norm(self.conv(x))))


EXAMPLE = (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)),)


@pytest.fixture
def model():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(2)
        return Net().eval()


def run(model, inputs=EXAMPLE, **options):
    return optimize(model, inputs, **{"measure": False, **options})


def a_pass(action, name="spoil", **declared):
    """Offer a pass that does `action`, for `manager_with`."""

    class Action(Pass):
        def run(self, module, context):
            action(module)
            return PassResult(modified=True)

    return lambda: [PassRecord(name, Action, "For a test.", **declared)]


# -- what it does


def test_the_facade_offers_it():
    assert fxplug.optimize is optimize
    assert fxplug.OptimizationResult is OptimizationResult


def test_the_result_computes_what_the_model_computes_with_fewer_nodes(model, manager):
    result = run(model, manager=manager)

    torch.testing.assert_close(result.module(*EXAMPLE), model(*EXAMPLE))
    assert (result.traced_nodes, result.nodes) == (6, 3)
    assert [report.name for report in result.passes] == [
        "dead-code",
        "remove-identities",
        "fuse-conv-bn",
        "onednn-fuse",
        "propagate-shapes",
    ]
    assert result.pipeline == "inference"
    assert result.check.passed
    assert 0 < result.check.max_abs_error < 1e-5
    assert result.graph_module is result.module
    assert result.lowering is None
    assert result.latency is None
    assert result.warnings == ()


def test_named_passes_run_instead_of_the_pipeline(model, manager):
    result = run(model, passes=["fuse-conv-bn"], manager=manager)

    assert [report.name for report in result.passes] == ["fuse-conv-bn"]
    assert result.pipeline == ""
    assert run(model, passes=[], manager=manager).passes == ()


def test_a_plugins_pass_runs_with_its_options(model, manager_with):
    @dataclass
    class Options:
        times: int = 1

    class Note(Pass):
        def __init__(self, times=1):
            self.times = times

        def run(self, module, context):
            return PassResult(
                modified=False, summary=f"{self.times} times, {len(context.example_inputs)} input"
            )

    manager = manager_with(
        fxplug_register_passes=lambda: [PassRecord("note", Note, "Notes.", options=Options)]
    )
    result = run(model, passes=[{"name": "note", "times": 3}], manager=manager)

    assert result.passes[0].name == "sample:note"
    assert result.passes[0].result.summary == "3 times, 1 input"


def test_a_single_tensor_stands_for_itself(model, manager):
    assert run(model, EXAMPLE[0], manager=manager).check.passed


def test_latency_is_measured_as_often_as_asked(model, manager):
    latency = run(model, measure=True, runs=4, manager=manager).latency

    assert latency.runs == 4
    assert len(latency.after_runs) == 4
    assert latency.before > 0
    assert latency.ratio == pytest.approx(latency.before / latency.after)


def test_an_observer_hears_of_every_stage_in_order(model, manager):
    events = []
    run(model, measure=True, runs=2, backend="eager", observer=events.append, manager=manager)

    finished = [(event.stage, event.subject) for event in events if event.state == "finished"]
    assert finished == [
        ("run", "Net"),
        ("trace", "Net"),
        ("pass", "dead-code"),
        ("pass", "remove-identities"),
        ("pass", "fuse-conv-bn"),
        ("pass", "propagate-shapes"),
        ("lower", "eager"),
        ("check", "Net"),
        ("measure", ""),
    ]
    started = [(event.stage, event.subject) for event in events if event.state == "started"]
    assert started == finished
    fused = next(event for event in events if event.subject == "fuse-conv-bn" and event.state == "finished")
    assert fused.nodes == (5, 4)
    assert fused.summary == "folded 1 batch norm"
    assert fused.seconds > 0
    assert [event.steps for event in events if event.state == "progress"] == [(1, 2), (2, 2)]


def test_the_result_and_the_observer_are_told_the_same_time_of_tracing(model, manager):
    events = []
    result = run(model, observer=events.append, manager=manager)

    (told,) = [event.seconds for event in events if event.stage == "trace" and event.state == "finished"]
    assert result.trace_seconds == told > 0


def test_plugins_hear_of_passes_too(model, manager_with):
    heard = []
    manager = manager_with(fxplug_pass_finished=lambda event: heard.append(event.name))
    run(model, manager=manager)

    assert heard == ["dead-code", "remove-identities", "fuse-conv-bn", "onednn-fuse", "propagate-shapes"]


# -- what it leaves alone


class Busy(Net):
    """Draws random numbers, counts its calls and keeps what it saw."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.seen = []

    def forward(self, x):
        self.calls += 1
        self.seen.append(x)
        return super().forward(x)


def test_the_model_the_inputs_and_the_random_state_stay_as_they_were(manager):
    model = Busy().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    identities = {name: id(value) for name, value in model.named_parameters()}
    inputs = (EXAMPLE[0].clone(),)
    random_state = torch.get_rng_state()
    result = run(model, inputs, measure=True, runs=2, manager=manager)

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {name: id(value) for name, value in model.named_parameters()} == identities
    assert model.training
    assert (model.calls, model.seen) == (0, [])
    assert torch.equal(inputs[0], EXAMPLE[0])
    assert torch.equal(torch.get_rng_state(), random_state)
    assert result.module.norm.num_batches_tracked == 0
    assert "forward assigned the attribute 'calls'" in result.warnings[1]


def test_a_pass_that_writes_into_parameters_does_not_reach_the_model(model, manager_with):
    def spoil(module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()

    before = copy.deepcopy(model.state_dict())
    with pytest.raises(MismatchError):
        run(model, passes=["spoil"], manager=manager_with(fxplug_register_passes=a_pass(spoil)))

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_model_stays_as_it_was_when_it_cannot_be_captured(manager):
    class Branch(Busy):
        def forward(self, x):
            y = super().forward(x)
            return y if y.sum() > 0 else -y

    model = Branch()
    with pytest.raises(TraceError, match=r"test_optimization\.py:\d+ in forward"):
        run(model, manager=manager, mode="symbolic")
    with pytest.raises(TraceError, match=r"test_optimization\.py:\d+ in forward"):
        run(model, manager=manager, mode="shape")

    assert (model.calls, model.seen) == (0, [])
    assert model.norm.num_batches_tracked == 0


def test_the_result_shares_no_tensor_with_the_model(model, manager):
    result = run(model, passes=[], manager=manager)
    theirs = {value.data_ptr() for value in (*model.parameters(), *model.buffers())}

    assert not theirs & {
        value.data_ptr() for value in (*result.module.parameters(), *result.module.buffers())
    }


# -- what the check finds


def test_training_mode_is_kept_and_pointed_out(model, manager):
    result = run(model.train(), manager=manager)

    assert "training mode" in result.warnings[0]
    assert result.module.training
    # Dropout drew the same numbers in both, and both updated the statistics of the batch norm alike.
    assert [entry.path for entry in result.check.comparisons] == [
        "output",
        "buffer norm.num_batches_tracked",
        "buffer norm.running_mean",
        "buffer norm.running_var",
    ]


def test_other_values_are_a_mismatch_that_says_where_and_what_to_do(model, manager_with):
    def negate(module):
        with torch.no_grad():
            module.conv.weight.neg_()

    manager = manager_with(fxplug_register_passes=a_pass(negate))
    with pytest.raises(MismatchError) as caught:
        run(model, passes=["spoil"], manager=manager)

    text = str(caught.value)
    assert (
        "The optimised Net does not compute what eager PyTorch computes: in output (float32[2, 4, 6, 6])"
        in text
    )
    assert "elements are off, most of all at [" in text
    assert "Leave passes out" in text
    assert text.endswith("[FXP-V002]")
    assert not caught.value.check.passed
    assert caught.value.findings[0].startswith("output: ")


def test_the_allowed_error_can_be_widened(model, manager_with):
    def shift(module):
        with torch.no_grad():
            module.norm.running_mean.add_(0.01)

    manager = manager_with(fxplug_register_passes=a_pass(shift))
    with pytest.raises(MismatchError):
        run(model, passes=["spoil"], manager=manager)

    assert run(model, passes=["spoil"], atol=0.1, manager=manager).check.max_abs_error > 1e-4


def test_an_update_of_a_buffer_that_got_lost_is_a_mismatch(manager_with):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("runs", torch.zeros(()))

        def forward(self, x):
            self.runs.add_(1)
            return x * 2

    def forget(module):
        (update,) = module.graph.find_nodes(op="call_method", target="add_")
        module.graph.erase_node(update)

    assert run(Counter(), manager=manager_with()).check.comparisons[1].path == "buffer runs"
    with pytest.raises(MismatchError, match="in buffer runs"):
        run(Counter(), passes=["spoil"], manager=manager_with(fxplug_register_passes=a_pass(forget)))


def test_what_the_model_writes_into_its_input_is_compared(manager_with):
    class InPlace(nn.Module):
        def forward(self, x):
            x.add_(1)
            return torch.zeros(1)

    def forget(module):
        (update,) = module.graph.find_nodes(op="call_method", target="add_")
        module.graph.erase_node(update)

    inputs = (torch.zeros(2),)
    paths = [entry.path for entry in run(InPlace(), inputs, manager=manager_with()).check.comparisons]
    assert paths == ["output", "input[0]"]
    assert inputs[0].tolist() == [0, 0]
    with pytest.raises(MismatchError, match=r"in input\[0\]"):
        run(InPlace(), inputs, passes=["spoil"], manager=manager_with(fxplug_register_passes=a_pass(forget)))


def test_a_result_that_does_not_run_is_a_mismatch(model, manager_with):
    def break_it(module):
        module.conv = nn.Conv2d(5, 4, 3)

    offered = a_pass(break_it, replaces_parameters=True)
    with pytest.raises(
        MismatchError, match="fails where the original does not: it raises RuntimeError: Given groups"
    ):
        run(model, passes=["spoil"], manager=manager_with(fxplug_register_passes=offered))


def test_a_failing_pass_ends_the_work(model, manager_with):
    def fail(module):
        raise ValueError("not today")

    with pytest.raises(PassError, match=r"'sample:spoil' of fxplug-sample .* failed: ValueError: not today"):
        run(model, passes=["spoil"], manager=manager_with(fxplug_register_passes=a_pass(fail)))


# -- backends


class Refusing(EagerBackend):
    def supports(self, node, context):
        return Support(ok=node.op != "call_module", reason="no modules here")


class Doubling(Backend):
    def supports(self, node, context):
        return Support(ok=True)

    def compile(self, subgraph, example_inputs, options):
        class Lowered(nn.Module):
            def forward(self, x):
                return subgraph(x) * 2

        return Lowered()


def a_backend(kind):
    return lambda: [BackendRecord("mine", kind, "For a test.")]


def test_a_backend_takes_over(model, manager):
    result = run(model, backend="eager", manager=manager)

    assert result.lowering.coverage == 1
    assert result.fallback == ""


def test_a_backend_that_cannot_is_a_warning_or_strictly_an_error(model, manager_with):
    manager = manager_with(fxplug_register_backends=a_backend(Refusing))
    result = run(model, backend="mine", manager=manager)

    assert result.fallback == ""
    assert [partition.nodes for partition in result.lowering.partitions] == [("relu",)]
    assert result.warnings[0].startswith("1 of 2 calls stay in PyTorch, the first is 'conv'")
    assert result.warnings[0].endswith("no modules here")
    with pytest.raises(LoweringError, match="no modules here"):
        run(model, backend="mine", strict=True, manager=manager)


class Fixed(Backend):
    def supports(self, node, context):
        return Support(ok=True)

    def compile(self, subgraph, example_inputs, options):
        return copy.copy(subgraph)


def test_a_backend_meets_other_inputs_with_an_error_or_in_pytorch(model, manager_with):
    manager = manager_with(fxplug_register_backends=a_backend(Fixed))
    other = EXAMPLE[0][:1]
    with pytest.raises(LoweringError, match="Cannot run partition"):
        run(model, backend="mine", manager=manager).module(other)
    found = run(model, backend="mine", manager=manager, on_mismatch="eager").module(other)

    torch.testing.assert_close(found, model(other))
    with pytest.raises(ConfigError, match="on_mismatch='ignore'"):
        run(model, manager=manager, on_mismatch="ignore")


class Open(Fixed):
    def profile(self, example_inputs):
        return Profile.of(example_inputs, open_dimensions=(0,))


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (Fixed, {}, "lowered to 'mine' for the very sizes of the examples"),
        (
            Fixed,
            {"on_mismatch": "eager"},
            "lowered to 'mine' for the very sizes of the examples; others run in PyTorch",
        ),
        (Open, {}, "lowered to 'mine' for the sizes of the examples, but for open ones"),
        (EagerBackend, {}, ""),
        (Refusing, {}, ""),
    ],
)
def test_it_is_said_which_sizes_a_backend_takes(model, manager_with, kind, options, said):
    manager = manager_with(fxplug_register_backends=a_backend(kind))

    assert run(model, manager=manager).restriction == ""
    assert run(model, backend="mine", manager=manager, **options).restriction == said


def test_where_nothing_is_compared_that_is_a_warning(model, manager):
    empty = run(model, (torch.ones(0, 3, 8, 8),), manager=manager)
    without_data = run(
        copy.deepcopy(model).to("meta"), (torch.ones(2, 3, 8, 8, device="meta"),), manager=manager
    )

    for result in (empty, without_data):
        assert result.check.elements == 0
        assert result.warnings[0].startswith("Nothing was compared with eager PyTorch")
    (told,) = (
        report.verified
        for report in run(model, (torch.ones(0, 3, 8, 8),), verify="numeric", manager=manager).passes
        if report.name == "fuse-conv-bn"
    )
    assert told.endswith("none of which has elements")
    compared = run(model, manager=manager)
    assert compared.check.elements == 2 * 4 * 6 * 6
    assert compared.warnings == ()


def test_what_a_backend_made_is_checked(model, manager_with):
    with pytest.raises(MismatchError):
        run(model, backend="mine", manager=manager_with(fxplug_register_backends=a_backend(Doubling)))


# -- what it refuses


def test_an_example_that_the_model_does_not_take_is_the_models_own_error(model, manager):
    with pytest.raises(ExampleError) as caught:
        run(model, (torch.randn(1, 4, 8, 8), torch.ones(2)), manager=manager)
    assert (
        "Cannot run Net on the example inputs (float32[1, 4, 8, 8], float32[2]): the model raises TypeError"
        in str(caught.value)
    )

    with pytest.raises(
        ExampleError, match=r"to have 3 channels, but got 4 channels instead, at .*test_optimization"
    ):
        run(model, (torch.randn(1, 4, 8, 8),), manager=manager)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"pipeline": "inferrence"}, "no pipeline named 'inferrence'. Did you mean 'inference'?"),
        ({"passes": ["fuse-conv"]}, "no pass named 'fuse-conv'. Did you mean 'fuse-conv-bn'?"),
        ({"backend": "eagr"}, "no backend named 'eagr'. Did you mean 'eager'?"),
    ],
)
def test_unknown_names_are_refused_before_anything_runs(model, manager, options, text):
    events = []
    with pytest.raises(UnknownNameError) as caught:
        run(model, observer=events.append, manager=manager, **options)

    assert text in str(caught.value)
    assert events == []


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((lambda x: x, EXAMPLE), {}, "give a torch.nn.Module, not a function"),
        ((nn.ReLU(), {"x": 1}), {}, "Cannot use a dict as example inputs: give a tuple"),
        (
            (nn.ReLU(), EXAMPLE),
            {"pipeline": "inference", "passes": []},
            "Cannot choose between pipeline 'inference'",
        ),
        ((nn.ReLU(), EXAMPLE), {"passes": "dead-code"}, "give a list of names, ['dead-code']"),
        ((nn.LazyLinear(2), EXAMPLE), {}, "its parameters weight, bias have no size yet"),
    ],
    ids=["function", "inputs", "both", "text", "lazy"],
)
def test_senseless_arguments_are_refused(manager, arguments, options, text):
    with pytest.raises(ConfigError) as caught:
        run(*arguments, manager=manager, **options)

    assert text in str(caught.value)


def test_a_model_with_something_that_cannot_be_copied_says_so(manager):
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("there is only one of me")

    Stubborn.__module__ = "torch.nn.modules.linear"  # So that it stays a leaf.
    with pytest.raises(
        FxplugError, match=r"cannot be copied .TypeError: there is only one of me.*__deepcopy__"
    ):
        run(nn.Sequential(Stubborn(2, 2)), (torch.ones(1, 2),), manager=manager)
