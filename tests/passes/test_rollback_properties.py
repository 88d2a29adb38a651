"""Whatever a failing pass did, afterwards the module is exactly what it was: random modules, edits and failures."""

from __future__ import annotations

import operator
import random
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from fxplug.errors import PassError
from fxplug.passes import Pass, PassRecord, PassResult, PassVerificationError, Pipeline, PipelineStep

sys.path.insert(0, str(Path(__file__).parent))
from random_modules import EDITS, X, edit, photograph, random_module, resize, write_numpy

CHANGED = PassResult(modified=True)
seeds = st.integers(0, 2**20)
some_edits = st.lists(st.sampled_from(EDITS), min_size=1, max_size=6)
quick = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def running(function, **record):
    class Running(Pass):
        def run(self, module, context):
            return function(module)

    return PipelineStep("change", PassRecord("change", Running, "Test.", **record))


@pytest.mark.parametrize("change", [*EDITS, write_numpy], ids=lambda change: change.__name__)
def test_every_edit_can_be_seen(change):
    """The photographs of this module show what each edit does; else the properties would hold for nothing."""
    shown = 0
    for seed in range(8):
        module = random_module(seed)
        before = photograph(module)
        with suppress(Exception):
            change(module, random.Random(seed))
            module.graph.lint()
        shown += _looks_other(module, before)
    assert shown


def _looks_other(module, before):
    try:
        return photograph(module) != before
    except Exception:  # It cannot even be looked at.
        return True


# -- ways to fail


def raises(module):
    raise ValueError("on purpose")


def interrupts(module):
    raise KeyboardInterrupt


def exits(module):
    raise SystemExit


def returns_nothing(module):
    return None


def leaves_a_node_behind_the_output(module):
    output = module.graph.output_node()
    with module.graph.inserting_after(output):
        module.graph.call_function(torch.relu, (next(iter(module.graph.nodes)),))
    return CHANGED


def leaves_a_target_that_is_not_there(module):
    with module.graph.inserting_before(module.graph.output_node()):
        module.graph.create_node("call_module", "nowhere.to.be.found", ())
    return CHANGED


def denies(module):
    """Change the graph, and say that nothing was."""
    next(iter(module.graph.nodes)).target = "another_name"
    return PassResult(modified=False)


FAILURES = [
    *(raises, interrupts, exits, returns_nothing),
    *(leaves_a_node_behind_the_output, leaves_a_target_that_is_not_there, denies),
]


def changes_the_result(module):
    output = module.graph.output_node()
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_function(operator.add, (output.args[0], 1000.0)),)
    return CHANGED


def fails(module, edits, seed, failure, **options):
    def change(module):
        edit(module, edits, seed)
        return failure(module)

    with pytest.raises((PassError, KeyboardInterrupt, SystemExit)):
        Pipeline("test", [running(change)], **options).run(module, (X,))


@quick
@given(seed=seeds, edits=some_edits, edit_seed=seeds, failure=st.sampled_from(FAILURES))
def test_a_pass_that_fails_leaves_no_trace(seed, edits, edit_seed, failure):
    module = random_module(seed)
    before = photograph(module)
    fails(module, edits, edit_seed, failure)
    assert photograph(module) == before


@settings(quick, max_examples=30)
@given(
    seed=seeds, edits=some_edits, edit_seed=seeds, level=st.sampled_from(["numeric", "gradient", "paranoid"])
)
def test_a_pass_that_is_refused_leaves_no_trace(seed, edits, edit_seed, level):
    module = random_module(seed)
    before = photograph(module)
    fails(module, edits, edit_seed, changes_the_result, verify=level)
    assert photograph(module) == before


@settings(quick, max_examples=30)
@given(
    seed=seeds,
    edits=st.lists(st.sampled_from([*EDITS, write_numpy, write_numpy, write_numpy]), min_size=1, max_size=5),
    edit_seed=seeds,
    failure=st.sampled_from(FAILURES),
)
def test_writes_past_the_operators_leave_no_trace_at_the_level_that_hears_of_them(
    seed, edits, edit_seed, failure
):
    # Memory that NumPy has seen cannot become smaller again; that its values come back, test_transaction shows.
    assume(not {resize, write_numpy} <= set(edits))
    module = random_module(seed)
    before = photograph(module)
    fails(module, edits, edit_seed, failure, verify="paranoid")
    assert photograph(module) == before


@settings(quick, max_examples=30)
@given(seed=seeds, rounds=st.lists(st.tuples(some_edits, seeds, st.sampled_from(FAILURES[:4])), max_size=4))
def test_several_failing_passes_leave_no_trace(seed, rounds):
    module = random_module(seed)
    before = photograph(module)
    for edits, edit_seed, failure in rounds:
        fails(module, edits, edit_seed, failure)
    assert photograph(module) == before


@settings(quick, max_examples=30)
@given(
    seed=seeds, edits=some_edits, edit_seed=seeds, level=st.sampled_from(["structure", "shape", "numeric"])
)
def test_a_pipeline_that_is_stopped_leaves_what_was_accepted(seed, edits, edit_seed, level):
    """What stands behind a failure is what the passes before it made."""
    module = random_module(seed)
    photographs = []

    def adds_zero(module):
        output = module.graph.output_node()
        with module.graph.inserting_before(output):
            output.args = (module.graph.call_function(operator.add, (output.args[0], 0.0)),)
        return CHANGED

    def looks(module):
        photographs.append(photograph(module))
        return PassResult(modified=False)

    def breaks(module):
        edit(module, edits, edit_seed)
        return raises(module)

    steps = [running(adds_zero), running(looks), running(breaks), running(adds_zero)]
    reports = Pipeline("test", steps, "stop", verify=level).run(module, (X,))
    assert [bool(report.error or report.skipped) for report in reports] == [False, False, True, True]
    assert photograph(module) == photographs[0]


# -- verified passes are right


def _moved(amount):
    def moves(module):
        output = module.graph.output_node()
        with module.graph.inserting_before(output):
            output.args = (module.graph.call_function(operator.mul, (output.args[0], 1 + amount)),)
        return CHANGED

    return moves


@settings(quick, max_examples=40)
@given(
    seed=seeds,
    amounts=st.lists(st.sampled_from([0.0, 1e-7, 3e-3, 3e-2, 0.5, -0.5]), min_size=1, max_size=3),
    declared=st.sampled_from([0.0, 1e-2, 1.0]),
    level=st.sampled_from(["numeric", "gradient", "paranoid"]),
)
@example(seed=1, amounts=[3e-2], declared=1e-2, level="numeric")
@example(seed=1, amounts=[3e-3], declared=1e-2, level="numeric")
def test_every_wrong_pass_is_refused_and_every_right_one_accepted(seed, amounts, declared, level):
    module = random_module(seed).eval()
    largest = module(X).abs().max().item()
    if not 0.1 < largest < 1e4:  # The absolute tolerance would count, or the rounding.
        return
    steps = [running(_moved(amount), tolerance=declared) for amount in amounts]
    reports = Pipeline("test", steps, "rollback", verify=level, rtol=1e-5, atol=1e-5).run(module, (X,))
    for amount, report in zip(amounts, reports, strict=True):
        assert (report.error == "") == (abs(amount) <= max(declared, 1e-6)), report.error
    allowed = (len(amounts) * declared + 1e-5) * largest + 2e-5
    assert torch.all((module(X) - random_module(seed).eval()(X)).abs() <= allowed)


@settings(quick, max_examples=40)
@given(seed=seeds, edits=some_edits, edit_seed=seeds)
def test_a_pass_that_is_accepted_has_not_changed_the_result(seed, edits, edit_seed):
    module, twin = random_module(seed), random_module(seed)

    def change(module):
        edit(module, edits, edit_seed)
        return CHANGED

    before = photograph(module)
    (report,) = Pipeline("test", [running(change)], "rollback", verify="numeric").run(module, (X,))
    if report.error:
        assert photograph(module) == before
    with torch.no_grad():
        torch.testing.assert_close(module(X), twin(X), rtol=3e-4, atol=3e-4, equal_nan=True)


def test_the_error_of_a_refused_pass_is_one_of_verification():
    module = random_module(3)
    with pytest.raises(PassVerificationError):
        Pipeline("test", [running(changes_the_result)], verify="numeric").run(module, (X,))
