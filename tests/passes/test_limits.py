"""Time limits: a pass that does not end is stopped and undone where it edits or computes."""

from __future__ import annotations

import re
import time

import pytest
import torch
from torch import nn

from fxplug.errors import ConfigError, PassError, PassTimeoutError
from fxplug.passes import Pass, PassRecord, PassResult, Pipeline, PipelineStep

SOON = 0.05


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.relu(x) * self.weight


@pytest.fixture
def module(capture):
    return capture(Program())


class Running(Pass):
    def __init__(self, work):
        self.work = work

    def run(self, module, context):
        self.work(module)
        return PassResult(modified=True)


def step(work, **limits):
    return PipelineStep(
        "odd:p", PassRecord("p", lambda: Running(work), "Test."), provider="fxplug-odd 1.2", **limits
    )


def edits(module):
    while True:
        with module.graph.inserting_before(module.graph.output_node()):
            node = module.graph.call_function(torch.neg, (next(iter(module.graph.nodes)),))
        module.graph.erase_node(node)


def changes(module):
    relu = module.graph.find_nodes(op="call_function", target=torch.relu)[0]
    while True:
        relu.target = torch.sigmoid


def moves(module):
    first, second = (
        module.graph.find_nodes(op="call_function", target=torch.relu)[0],
        module.graph.find_nodes(op="get_attr")[0],
    )
    while True:
        first.append(second)
        second.append(first)


def operators(module):
    with torch.no_grad():
        while True:
            module.weight.add_(1)


def goes_on(module):
    while True:
        try:
            module.graph.output_node().append(module.graph.call_function(torch.neg, (1,)))
        except Exception:
            continue


@pytest.mark.parametrize(
    ("work", "last"),
    [
        (edits, r"last it (made|erased) node 'neg\w*'"),
        (changes, r"last it edited node 'relu' \(from \S*test_limits.py:\d+ in forward\)"),
        (moves, r"last it moved node '(relu|weight)' \(from \S*test_limits.py:\d+ in forward\)"),
        (operators, r"last it ran the operator aten.add_.\w+"),
        (goes_on, r"last it \w+ node 'neg\w*'"),
    ],
)
def test_a_pass_that_does_not_end_is_stopped_and_undone(module, work, last):
    x = torch.randn(4)
    before, expected, weight = module.code, module(x), module.weight

    with pytest.raises(PassTimeoutError) as caught:
        Pipeline("test", [step(work)], time_limit=SOON).run(module)

    assert re.fullmatch(
        r"Pass 'odd:p' of fxplug-odd 1.2 was stopped after [0-9.]+ s: its time_limit is 0.05 s; "
        + last
        + r"\. Graph, submodules and parameters are those from before this pass\. Give it a higher time_limit, or "
        r"leave it out\. \[FXP-P021\]",
        str(caught.value),
    )
    assert module.code == before
    assert module.weight is weight
    assert torch.equal(module(x), expected)
    assert module.graph.observers == []


def test_a_pass_that_ends_too_late_is_undone_too(module):
    before = module.code

    def sleeps(module):
        module.graph.find_nodes(op="call_function", target=torch.relu)[0].target = torch.sigmoid
        time.sleep(2 * SOON)

    with pytest.raises(PassTimeoutError, match="last it edited node 'relu'"):
        Pipeline("test", [step(sleeps, time_limit=SOON)]).run(module)
    assert module.code == before


def test_a_pass_that_did_nothing_that_is_heard_says_so(module):
    with pytest.raises(PassTimeoutError, match="it had neither edited the graph nor run an operator"):
        Pipeline("test", [step(lambda module: time.sleep(2 * SOON))], time_limit=SOON).run(module)


def test_what_a_pass_raises_for_being_stopped_is_the_cause(module):
    def wraps(module):
        try:
            edits(module)
        except BaseException as error:
            raise RuntimeError("stopped") from error

    with pytest.raises(PassTimeoutError) as caught:
        Pipeline("test", [step(wraps)], time_limit=SOON).run(module)
    assert str(caught.value.__cause__) == "stopped"


def test_an_error_within_the_limit_is_itself(module):
    def fails(module):
        raise RuntimeError("of its own")

    with pytest.raises(PassError, match="RuntimeError: of its own") as caught:
        Pipeline("test", [step(fails)], time_limit=60).run(module)
    assert not isinstance(caught.value, PassTimeoutError)


def test_the_others_still_run_when_the_pipeline_goes_on(module):
    def renames(module):
        module.graph.find_nodes(op="call_function", target=torch.relu)[0].name = "other"

    reports = Pipeline("test", [step(edits), step(renames)], "rollback", time_limit=SOON).run(module)

    assert [report.result is None for report in reports] == [True, False]
    assert reports[0].error.startswith("PassTimeoutError: Pass 'odd:p' of fxplug-odd 1.2 was stopped after")
    assert "other" in module.code


def test_the_limit_of_a_pass_that_runs_others_is_its_own(module):
    def runs_others(module):
        Pipeline("inner", [step(edits)], "rollback", time_limit=60).run(module)

    outer = PipelineStep("outer", PassRecord("outer", lambda: Running(runs_others), "Test."))
    with pytest.raises(
        PassTimeoutError, match=r"Pass 'outer' of fxplug was stopped after .*: its time_limit is 0.05 s"
    ):
        Pipeline("test", [outer], time_limit=SOON).run(module)


def test_the_limit_of_a_step_prevails(module):
    def slow(module):
        time.sleep(2 * SOON)

    Pipeline("test", [step(slow, time_limit=60)], time_limit=SOON).run(module)


def test_a_limit_that_is_not_reached_changes_nothing(module, capture):
    def doubles(module):
        module.graph.find_nodes(op="call_function", target=torch.relu)[0].target = torch.sigmoid
        with torch.no_grad():
            module.weight.mul_(2)

    other = capture(Program())
    (limited,) = Pipeline("test", [step(doubles)], time_limit=60).run(module)
    (free,) = Pipeline("test", [step(doubles)]).run(other)

    assert module.code == other.code
    assert torch.equal(module.weight, other.weight)
    assert (limited.result, limited.changes) == (free.result, free.changes)
    assert module.graph.observers == []


def test_without_a_limit_operators_are_told_to_nobody(module):
    found = []
    Pipeline("test", [step(lambda module: found.append(list(module.graph.observers)))]).run(module)
    Pipeline("test", [step(lambda module: found.append(list(module.graph.observers)))], time_limit=9).run(
        module
    )

    assert [len(observers) for observers in found] == [1, 2]  # The first counts nodes.


def test_keyboard_interrupt_goes_through(module):
    def interrupted(module):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pipeline("test", [step(interrupted)], time_limit=60).run(module)


@pytest.mark.parametrize("limit", [0, -1, True, "5", float("nan")])
@pytest.mark.parametrize("name", ["time_limit", "hard_time_limit"])
def test_what_is_no_time_is_refused(name, limit):
    with pytest.raises(
        ConfigError, match=f"Cannot use {limit!r} as {name}: give a number of seconds above 0"
    ):
        Pipeline("test", [], **{name: limit})
    with pytest.raises(ConfigError, match=f"as {name} of pass 'odd:p': give a number of seconds above 0"):
        step(edits, **{name: limit})
