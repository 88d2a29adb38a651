"""Passes in a process of their own: what they do arrives, and what goes wrong there is an error here."""

from __future__ import annotations

import functools
import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture import Tracer
from fxplug.errors import PassError, PassTimeoutError, PassWorkerError
from fxplug.execute import GraphModule
from fxplug.ir import Effect, effects
from fxplug.passes import BUILTIN_PASSES, PassRecord, PassResult, Pipeline, PipelineStep

FOLDER = str(Path(__file__).parent)
X = torch.randn(2, 4)


@pytest.fixture(scope="module")
def samples():
    """A module that is found by its name in other processes, too."""
    sys.path.insert(0, FOLDER)
    import worker_samples

    yield worker_samples
    sys.path.remove(FOLDER)
    del sys.modules["worker_samples"]


@pytest.fixture
def captured(samples):
    def make():
        torch.manual_seed(0)
        tracer = Tracer()
        graph = tracer.trace(samples.Program())
        module = GraphModule(tracer.root, graph, "Program")
        module.listed, module.config = tracer.root.listed, tracer.root.config
        return module

    return make


def run(samples, module, work, *, hard=120.0, on_error="raise", **limits):
    factory = functools.partial(samples.Doing, getattr(samples, work))
    step = PipelineStep(
        "odd:p", PassRecord("p", factory, "Test.", replaces_parameters=True), provider="fxplug-odd 1.2"
    )
    (report,) = Pipeline("test", [step], on_error, hard_time_limit=hard, **limits).run(module, (X,))
    return report


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def are_equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


WORKS = ["edits", "writes", "replaces", "converts", "unties", "ties_memory", "notes", "draws", "new_graph"]


@pytest.mark.parametrize("work", WORKS)
def test_it_does_what_it_does_here(samples, captured, work):
    there, here = captured(), captured()
    parameters = dict(there.named_parameters(remove_duplicate=False))
    parts = dict(there.named_modules())
    before_here = dict(here.named_parameters(remove_duplicate=False))
    parts_here = dict(here.named_modules())

    torch.manual_seed(1)
    report = run(samples, there, work)
    after_there = torch.get_rng_state()
    torch.manual_seed(1)
    expected = run(samples, here, work, hard=None)

    assert (report.result, report.changes, report.nodes_after, report.bytes_after) == (
        expected.result,
        expected.changes,
        expected.nodes_after,
        expected.bytes_after,
    )
    assert torch.equal(after_there, torch.get_rng_state())
    assert there.code == here.code
    assert are_equal(there.state_dict(), here.state_dict())
    assert [parameter.requires_grad for parameter in there.parameters()] == [
        parameter.requires_grad for parameter in here.parameters()
    ]
    assert _same_objects(there, parameters, parts) == _same_objects(here, before_here, parts_here)
    assert _sharing(there) == _sharing(here)
    assert sorted(vars(there)) == sorted(vars(here))
    assert there.training is here.training
    x = X.to(there.scale.dtype)
    assert torch.equal(there(x), here(x))
    assert [sorted(node.meta) for node in there.graph.nodes] == [
        sorted(node.meta) for node in here.graph.nodes
    ]
    assert [node.stack_trace for node in there.graph.nodes] == [node.stack_trace for node in here.graph.nodes]


def _same_objects(module, parameters, parts):
    now = dict(module.named_parameters(remove_duplicate=False))
    return (
        {name: parameters.get(name) is value for name, value in now.items()},
        {name: parts.get(name) is value for name, value in module.named_modules()},
    )


def _sharing(module):
    memory = [
        tensor.untyped_storage()._cdata
        for part in module.modules()
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False), *vars(part).values())
        if isinstance(tensor, torch.Tensor)
    ]
    return [memory.index(key) for key in memory]


class Asks(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] > 1 else x * 3


def test_what_runs_where_a_guard_does_not_hold_stays_here_and_is_kept(samples):
    module = fxplug.trace(Asks(), (X,), on_guard_failure="eager")

    run(samples, module, "negates")

    assert torch.equal(module(X), X * -2)
    assert torch.equal(module(X[:1]), X[:1] * 3)


def test_objects_that_hang_together_stay_so(samples, captured):
    module = captured()
    first, scale, config = module.first, module.scale, module.config
    run(samples, module, "writes")

    assert module.listed == [first, scale]
    assert module.first is first
    assert module.listed[1] is module.scale is scale
    assert module.second.weight is module.first.weight
    assert module.config is config


def test_a_note_on_a_node_names_the_node_of_this_graph(samples, captured):
    module = captured()
    graph = module.graph
    run(samples, module, "notes")

    assert module.graph is graph
    assert samples.relu_of(module).meta["note"] is samples.relu_of(module).args[0]


def test_it_is_another_process(samples, captured):
    report = run(samples, captured(), "prints_where")

    assert report.result.summary.startswith("process ")
    assert report.result.summary != f"process {os.getpid()}"
    assert multiprocessing.active_children() == []


def test_built_in_passes_do_the_same_there(captured):
    def make():
        torch.manual_seed(0)
        root = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).eval()
        tracer = Tracer()
        return GraphModule(root, tracer.trace(root), "Net")

    steps = [PipelineStep(record.name, record) for record in BUILTIN_PASSES]
    x = torch.randn(1, 3, 2, 2)
    there, here = make(), make()
    reports = Pipeline("test", steps, hard_time_limit=120).run(there, (x,))
    expected = Pipeline("test", steps).run(here, (x,))

    assert [report.result for report in reports] == [report.result for report in expected]
    assert torch.equal(there(x), here(x))
    assert [str(node.meta["tensor_meta"]) for node in there.graph.nodes] == [
        str(node.meta["tensor_meta"]) for node in here.graph.nodes
    ]


# -- what goes wrong -----------------------------------------------------------------------------------------------

HEAD = r"Pass 'odd:p' of fxplug-odd 1.2 "


@pytest.mark.parametrize(
    ("work", "kind", "text"),
    [
        ("fails", PassError, HEAD + "failed: ValueError: of its own. Graph, submodules"),
        ("fails_oddly", PassError, HEAD + r"failed: PassError: OddError: 1 and 2|OddError: 1 and 2"),
        ("lies", PassError, "says that it changed nothing, but the graph went from version"),
        ("wrong_type", PassError, "returned a str. Return a PassResult"),
        ("interrupts", KeyboardInterrupt, None),
        ("ends", SystemExit, "3"),
        (
            "leaves",
            PassWorkerError,
            HEAD + r"failed in a process of its own: It ended before .* \(exit code 7\)",
        ),
        ("crashes", PassWorkerError, HEAD + r"failed in a process of its own: .* \(signal SIGSEGV\)"),
        ("is_killed", PassWorkerError, r"\(signal SIGKILL\)"),
        ("puts_a_lambda", PassWorkerError, "what it put into the module cannot be sent back"),
    ],
)
def test_what_goes_wrong_there_is_an_error_here_and_the_module_is_as_before(
    samples, captured, work, kind, text
):
    module = captured()
    graph, before, code = module.graph, state(module), module.code

    with pytest.raises(kind, match=text):
        run(samples, module, work)

    assert are_equal(state(module), before)
    assert module.code == code
    if work != "lies":  # There, something was taken over before it was refused.
        assert module.graph is graph
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("work", "last"),
    [
        ("loops", r"last it was at \S*worker_samples.py:\d+ in loops"),
        ("sleeps_in_c", r"last it was at \S*worker_samples.py:\d+ in sleeps_in_c"),
    ],
)
def test_a_pass_that_does_not_end_is_ended(samples, captured, work, last):
    module = captured()
    graph, before = module.graph, state(module)

    with pytest.raises(
        PassTimeoutError, match=HEAD + r"was stopped after [0-9.]+ s: its hard_time_limit is 0.5 s; " + last
    ):
        run(samples, module, work, hard=0.5)

    assert module.graph is graph
    assert are_equal(state(module), before)
    assert multiprocessing.active_children() == []


def test_the_soft_limit_holds_there_too(samples, captured):
    with pytest.raises(PassTimeoutError, match=r"its time_limit is 0.1 s; last it edited node 'relu'"):
        run(samples, captured(), "loops_editing", time_limit=0.1)


def test_the_others_still_run_when_the_pipeline_goes_on(samples, captured):
    report = run(samples, captured(), "leaves", on_error="rollback")

    assert report.result is None
    assert report.error.startswith("PassWorkerError: Pass 'odd:p'")


def test_the_traceback_of_the_process_is_shown(samples, captured):
    with pytest.raises(PassError) as caught:
        run(samples, captured(), "fails")
    assert "in fails" in str(caught.value.__cause__.__cause__)


def test_a_pass_that_cannot_be_sent_is_an_error(captured):
    step = PipelineStep("p", PassRecord("p", lambda: None, "Test."), hard_time_limit=5)

    with pytest.raises(
        PassWorkerError, match=r"Pass 'p' of fxplug cannot run in a process of its own.*: the pass cannot"
    ):
        Pipeline("test", [step]).run(captured())


def test_a_module_that_cannot_be_sent_is_an_error(samples, captured):
    module = captured()
    module.function = lambda: None

    with pytest.raises(PassWorkerError, match="the module GraphModule cannot be sent there"):
        run(samples, module, "edits")


def test_what_plugins_say_about_effects_holds_there(samples):
    """A call that plugins call pure is removed there as here."""
    tracer = Tracer()
    module = GraphModule(nn.Module(), tracer.trace(lambda x: x + 1), "Net")
    with module.graph.inserting_before(module.graph.output_node()):
        node = module.graph.call_function(samples.prints_where, (1,))
    step = PipelineStep("dead-code", BUILTIN_PASSES[0], hard_time_limit=120)
    Pipeline("test", [step]).run(module)
    assert node.name in module.code
    effects.register_target(samples.prints_where, Effect())
    try:
        Pipeline("test", [step]).run(module)
    finally:
        effects.unregister_target(samples.prints_where)
    assert node.name not in module.code


def test_a_script_without_its_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import fxplug
        from fxplug.passes import BUILTIN_PASSES, Pipeline, PipelineStep
        module = fxplug.symbolic_trace(lambda x: x + 1)
        try:
            Pipeline("t", [PipelineStep("dead-code", BUILTIN_PASSES[0])], hard_time_limit=60).run(module)
        except fxplug.PassError as error:
            print(error)
            raise SystemExit
        """)
    )
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)

    assert (
        "this process is itself being started for a pass. Let the script begin its work below" in found.stdout
    )
    assert "It could not begin. A script must begin its work below: if __name__ == '__main__'" in found.stdout


def test_nothing_is_started_without_a_hard_limit(samples, captured, monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_context", None)
    assert run(samples, captured(), "edits", hard=None).result == PassResult(True, "done")


def test_new_weights_can_be_loaded_behind_a_pass_that_ran_there(samples):
    """What a pass says of tensors comes back with them."""
    fuse = next(record for record in BUILTIN_PASSES if record.name == "fuse-conv-bn")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    x = torch.randn(2, 3, 5, 5)
    module = fxplug.symbolic_trace(model)

    Pipeline("test", [PipelineStep("fuse-conv-bn", fuse, hard_time_limit=120)]).run(module, (x,))
    torch.testing.assert_close(module(x), model(x))
    other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    other[1].running_mean.normal_()
    fxplug.load_original_state_dict(module, other.state_dict())

    assert len(module.graph.nodes) == 3
    torch.testing.assert_close(module(x), other(x))


def test_a_pass_may_read_what_it_preserves_there(samples, captured):
    record = PassRecord("asking", samples.Asking, "Asks.", preserves=frozenset({"shapes"}))
    for hard in (None, 120):
        (report,) = Pipeline("test", [PipelineStep("asking", record)], hard_time_limit=hard).run(
            captured(), (X,)
        )
        assert report.result.summary == "[2, 4]"
