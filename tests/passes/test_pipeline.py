"""Pipelines: every pass is a transaction."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn

from fxplug.errors import ConfigError, GraphError, PassError, VerificationError
from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.passes import Pass, PassRecord, PassResult, Pipeline, PipelineStep

X = torch.linspace(-1, 1, 6).reshape(2, 3)
CHANGED = PassResult(modified=True, summary="changed")
UNCHANGED = PassResult(modified=False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.stack = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("offset", torch.zeros(3))
        self.register_buffer("temporary", torch.zeros(3), persistent=False)

    def forward(self, x):
        return self.stack(torch.relu(self.first(x))) * self.scale + self.offset + self.temporary


class Running(Pass):
    def __init__(self, function):
        self.function = function

    def run(self, module, context):
        return self.function(module)


def pipeline(*functions, on_error="raise"):
    steps = [
        PipelineStep(function.__name__, PassRecord(function.__name__, lambda f=function: Running(f), "Test."))
        for function in functions
    ]
    return Pipeline("test", steps, on_error)


@pytest.fixture
def module(capture):
    torch.manual_seed(0)
    module = capture(Net().eval())
    module.meta["note"] = 1
    module(X)
    return module


def photograph(module):
    """Return everything that can be seen of a module, as plain values."""
    return {
        "text": str(module.graph),
        "code": module.code,
        "result": module(X).tolist(),
        "state": {name: value.tolist() for name, value in module.state_dict().items()},
        "dtypes": {name: value.dtype for name, value in module.state_dict().items()},
        "modules": [(name, id(part), type(part), part.training) for name, part in module.named_modules()],
        "parameters": [(name, id(value), value.requires_grad) for name, value in module.named_parameters()],
        "buffers": [(name, id(value)) for name, value in module.named_buffers()],
        "attributes": sorted(vars(module)),
        "notes": dict(module.meta),
        "metas": [dict(node.meta) for node in module.graph.nodes],
        "origins": [node.stack_trace for node in module.graph.nodes],
        "hooks": [len(part._forward_hooks) for part in module.modules()],
        "gradients": [value.grad for value in module.parameters()],
    }


def edit(module):
    """Do a bit of everything that passes do."""
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_function(operator.neg, (output.args[0],)),)
    next(iter(module.graph.nodes)).meta["seen"] = [1]
    module.first = nn.Linear(3, 3)
    module.scale = nn.Parameter(torch.zeros(3))
    module.register_buffer("fresh", torch.ones(1))
    module.add_submodule("deep.new", nn.ReLU())
    module.get_submodule("stack").add_module("7", nn.ReLU())
    module.delete_submodule("stack.2")
    module.train()


# -- success


def test_reports_say_what_was_done(module):
    def change(module):
        edit(module)
        module.add_submodule("stack.2", nn.Dropout())
        return PassResult(modified=True, summary="negated", details={"count": 1})

    def look(module):
        return PassResult(modified=False, summary="looked")

    first, second = pipeline(change, look).run(module)
    assert (first.name, first.result.summary, first.result.details) == ("change", "negated", {"count": 1})
    assert first.nodes_after == first.nodes_before + 1 == second.nodes_before
    assert second.result.summary == "looked"
    assert second.nodes_before == second.nodes_after
    assert first.error == second.error == ""
    assert first.seconds > 0


def test_passes_run_in_the_order_of_the_steps(module):
    seen = []

    def first(module):
        seen.append(1)
        return UNCHANGED

    def second(module):
        seen.append(2)
        return UNCHANGED

    pipeline(first, second, first).run(module)
    assert seen == [1, 2, 1]


def test_options_reach_the_factory(module):
    seen = {}

    def factory(**options):
        seen.update(options)
        return Running(lambda module: UNCHANGED)

    Pipeline("test", [PipelineStep("p", PassRecord("p", factory, "Test."), {"level": 3})]).run(module)
    assert seen == {"level": 3}


def test_context_reaches_the_pass(module):
    seen = []

    class Looking(Pass):
        def run(self, module, context):
            seen.append(context)
            return UNCHANGED

    Pipeline("mine", [PipelineStep("p", PassRecord("p", Looking, "Test."))]).run(module, (X,))
    assert seen[0].pipeline == "mine"
    assert seen[0].example_inputs == (X,)


def test_result_of_a_pass_that_changes_things_is_kept(module):
    expected = -module(X)

    def negate(module):
        output = module.graph.output_node()
        with module.graph.inserting_before(output):
            output.args = (module.graph.call_function(operator.neg, (output.args[0],)),)
        return CHANGED

    pipeline(negate).run(module)
    assert torch.equal(module(X), expected)


# -- failures


def raising(error):
    def fail(module):
        edit(module)
        raise error

    return fail


def half_done(module):
    edit(module)


def lying(module):
    edit(module)
    module.add_submodule("stack.2", nn.Dropout())
    return UNCHANGED


def dangling(module):
    edit(module)
    return CHANGED


def unordered(module):
    first, *_, last = module.graph.find_nodes(op="call_module")
    last.append(first)
    return CHANGED


def replaced(module):
    module.graph = Graph()
    raise ValueError("after replacing the graph")


FAILING = [
    (raising(ValueError("wrong")), "Pass 'fail' of fxplug failed: ValueError: wrong"),
    (raising(GraphError("own")), "Pass 'fail' of fxplug failed: GraphError: own"),
    (half_done, "Pass 'half_done' of fxplug returned a NoneType. Return a PassResult."),
    (
        lying,
        r"Pass 'lying' of fxplug says that it changed nothing, but the graph went from version \d+ to \d+",
    ),
    (dangling, r"VerificationError: The graph is not well formed:\n  - node 'stack_2' refers to 'stack\.2'"),
    (unordered, "before it is computed"),
    (replaced, "ValueError: after replacing the graph"),
]
each_failure = pytest.mark.parametrize(
    ("function", "message"),
    FAILING,
    ids=["error", "own error", "no result", "lie", "dangling", "unordered", "replaced"],
)


@each_failure
def test_failing_pass_leaves_the_module_exactly_as_before(module, function, message):
    before = photograph(module)
    with pytest.raises(PassError, match=message):
        pipeline(function).run(module)

    assert photograph(module) == before
    module.graph.lint()
    assert module.graph.owning_module is module


@each_failure
def test_others_run_after_a_rollback(module, function, message):
    before = photograph(module)
    seen = []

    def later(module):
        seen.append(photograph(module) == before)
        return UNCHANGED

    failed, report = pipeline(function, later, on_error="rollback").run(module)
    assert seen == [True]
    assert failed.result is None
    assert failed.nodes_before == failed.nodes_after
    assert failed.error
    assert report.error == ""


def test_work_of_earlier_passes_is_kept(module):
    def negate(module):
        output = module.graph.output_node()
        with module.graph.inserting_before(output):
            output.args = (module.graph.call_function(operator.neg, (output.args[0],)),)
        return CHANGED

    expected = -module(X)
    with pytest.raises(PassError):
        pipeline(negate, raising(ValueError())).run(module)
    assert torch.equal(module(X), expected)


@pytest.mark.parametrize("on_error", ["raise", "rollback"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupt_undoes_the_pass_and_goes_on(module, kind, on_error):
    before = photograph(module)
    interrupt = kind()
    with pytest.raises(kind) as caught:
        pipeline(raising(interrupt), on_error=on_error).run(module)

    assert caught.value is interrupt
    assert photograph(module) == before


def test_cause_is_kept(module):
    error = ValueError("wrong")
    with pytest.raises(PassError) as caught:
        pipeline(raising(error)).run(module)

    assert caught.value.__cause__ is error
    assert str(caught.value) == (
        "Pass 'fail' of fxplug failed: ValueError: wrong. "
        "Graph, submodules and parameters are those from before this pass. [FXP-P000]"
    )


def test_provider_is_named(module):
    record = PassRecord("p", lambda: Running(raising(ValueError("wrong"))), "Test.")

    with pytest.raises(PassError, match=r"Pass 'quant:p' of fxplug-quant 1\.2 failed: ValueError: wrong"):
        Pipeline("test", [PipelineStep("quant:p", record, provider="fxplug-quant 1.2")]).run(module)


def test_error_of_the_pass_itself_is_not_wrapped(module):
    error = PassError("Cannot fold: there is nothing.")
    with pytest.raises(PassError) as caught:
        pipeline(raising(error)).run(module)
    assert caught.value is error


def test_failing_factory_is_a_failing_pass(module):
    def factory():
        raise RuntimeError("no engine")

    before = photograph(module)
    with pytest.raises(PassError, match="RuntimeError: no engine"):
        Pipeline("test", [PipelineStep("p", PassRecord("p", factory, "Test."))]).run(module)
    assert photograph(module) == before


def test_failed_module_can_be_transformed_afterwards(module):
    with pytest.raises(PassError):
        pipeline(raising(ValueError())).run(module)

    def negate(module):
        module.graph.output_node().args = (module.graph.find_nodes(op="placeholder")[0],)
        return CHANGED

    pipeline(negate).run(module)
    assert torch.equal(module(X), X)


def in_place_parameter(module):
    with torch.no_grad():
        module.scale.zero_()


def in_place_buffer(module):
    module.offset.add_(1)


def data_of_a_parameter(module):
    module.scale.data = torch.zeros(3)


def gradients_off(module):
    module.requires_grad_(False)


def other_dtype(module):
    module.double()


def hook(module):
    module.first.register_forward_hook(lambda module, args, result: result * 100)


def other_class(module):
    module.first.__class__ = nn.Bilinear


def note_of_the_module(module):
    module.meta["more"] = 2


def through_a_view(module):
    module.scale.data[1:].mul_(3)


def through_an_out_argument(module):
    with torch.no_grad():
        torch.add(module.scale, 1, out=module.scale)


def resized(module):
    with torch.no_grad():
        module.scale.resize_(0)


def other_memory(module):
    with torch.no_grad():
        module.offset.set_(torch.zeros(7))


def gradient(module):
    module.scale.grad = torch.ones_like(module.scale)


def statistics(module):
    nn.functional.batch_norm(
        torch.arange(6.0).reshape(2, 3), module.offset.clone().zero_(), module.offset, training=True
    )


def many_at_once(module):
    with torch.no_grad():
        torch._foreach_mul_(list(module.parameters()), 2.0)


@pytest.mark.parametrize(
    "change",
    [
        in_place_parameter,
        in_place_buffer,
        data_of_a_parameter,
        gradients_off,
        other_dtype,
        hook,
        other_class,
        note_of_the_module,
        through_a_view,
        through_an_out_argument,
        resized,
        other_memory,
        gradient,
        statistics,
        many_at_once,
    ],
)
def test_changes_inside_objects_are_undone_too(module, change):
    def fail(module):
        change(module)
        raise ValueError

    before = photograph(module)
    with pytest.raises(PassError, match="those from before this pass"):
        pipeline(fail).run(module)
    assert photograph(module) == before


@pytest.mark.parametrize(
    "change", [in_place_parameter, other_dtype, lambda module: setattr(module, "first", nn.ReLU())]
)
def test_unreported_change_of_the_state_is_noticed(module, change):
    def lie(module):
        change(module)
        return UNCHANGED

    with pytest.raises(PassError):
        pipeline(lie).run(module)


def test_observers_of_the_graph_survive_a_rollback(module):
    seen = []
    module.graph.observers.append(lambda *event: seen.append(event))
    with pytest.raises(PassError):
        pipeline(raising(ValueError())).run(module)
    seen.clear()
    module.graph.output_node().args = (None,)
    assert seen


def no_output(module):
    module.graph.erase_node(module.graph.output_node())
    return CHANGED


def bad_parameter_name(module):
    module.graph.find_nodes(op="placeholder")[0].target = "no name"
    return CHANGED


@pytest.mark.parametrize("function", [no_output, bad_parameter_name])
def test_graph_that_cannot_run_is_refused(module, function):
    with pytest.raises(PassError):
        pipeline(function).run(module)


# -- observers


def test_every_pass_is_announced_twice(module):
    events = []

    def first(module):
        return UNCHANGED

    def second(module):
        edit(module)
        module.add_submodule("stack.2", nn.Dropout())
        return CHANGED

    reports = pipeline(first, second).run(module, None, [events.append])
    assert [(event.name, event.index, event.total, event.pipeline) for event in events] == [
        ("first", 0, 2, "test"),
        ("first", 0, 2, "test"),
        ("second", 1, 2, "test"),
        ("second", 1, 2, "test"),
    ]
    assert [event.result for event in events] == [None, reports[0].result, None, reports[1].result]
    assert [event.nodes_after for event in events][0::2] == [0, 0]
    assert events[3].nodes_after == events[3].nodes_before + 1
    assert all(event.module is module and event.error is None for event in events)


def test_failure_is_announced_after_it_was_undone(module):
    before = photograph(module)
    events = []
    error = ValueError("wrong")

    def observe(event):
        events.append((event.error, event.result, photograph(event.module) == before))

    with pytest.raises(PassError):
        pipeline(raising(error)).run(module, None, [observe])
    assert events == [(None, None, True), (error, None, True)]


def test_interrupt_is_announced(module):
    events = []
    with pytest.raises(KeyboardInterrupt):
        pipeline(raising(KeyboardInterrupt())).run(module, None, [events.append])
    assert isinstance(events[1].error, KeyboardInterrupt)


def test_all_observers_hear_every_event(module):
    first, second = [], []

    def nothing(module):
        return UNCHANGED

    pipeline(nothing).run(module, None, [first.append, second.append])
    assert first == second
    assert len(first) == 2


def test_observers_are_told_the_inputs_of_the_passes(module):
    given, events = (torch.zeros(2, 3),), []

    def nothing(module):
        return UNCHANGED

    pipeline(nothing).run(module, None, [events.append])
    pipeline(nothing).run(module, given, [events.append])

    assert [event.example_inputs for event in events[:2]] == [None, None]
    assert all(event.example_inputs[0] is given[0] for event in events[2:])
    assert "tensor(" not in repr(events[2])
    assert events[0] == events[2]


def test_verification_error_keeps_its_findings(module):
    with pytest.raises(PassError) as caught:
        pipeline(dangling).run(module)
    assert isinstance(caught.value.__cause__, VerificationError)
    assert len(caught.value.__cause__.findings) == 1


def test_constants_survive_a_rollback(capture):
    module = capture(lambda x: x + torch.ones(3))
    with pytest.raises(PassError):
        pipeline(lambda_that_fails).run(module)
    assert module(torch.zeros(3)).tolist() == [1, 1, 1]


def lambda_that_fails(module):
    module.delete_submodule("none")
    module._buffers.clear()
    raise ValueError


def test_moved_constants_survive_a_rollback(capture):
    module = capture(lambda x: x + torch.ones(3)).bfloat16()
    with pytest.raises(PassError):
        pipeline(raising(ValueError())).run(module)
    assert module(torch.zeros(3, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_graph_module_class_is_that_of_the_caller(module):
    class Mine(GraphModule):
        pass

    mine = Mine(module, module.graph)
    with pytest.raises(PassError):
        pipeline(raising(ValueError())).run(mine)
    assert type(mine) is Mine


@pytest.mark.parametrize(
    "steps",
    ["dead-code", ["dead-code"], [lambda module: module], None, 5],
    ids=["text", "name", "function", "None", "int"],
)
def test_what_is_no_step_is_refused_when_the_pipeline_is_made(steps):
    with pytest.raises(ConfigError, match=r"Cannot make pipeline 'trial': .* is no step") as info:
        Pipeline("trial", steps)
    assert info.value.code == "FXP-F000"
