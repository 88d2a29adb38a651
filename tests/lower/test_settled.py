"""Checks in captured programs: those that a profile answers run with the engine, the others in PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import ConfigError, GuardError
from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.lower import Backend, Profile, Support, lower, lowered_partitions, plan_lowering
from fxplug.lower.stored import _profile_data, _profile_of
from fxplug.passes import requirements
from fxplug.semantics.checks import CHECKS, check_true

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Engines(Backend):
    """Runs what it is given; knows nothing of checks."""

    def __init__(self, *refused, open_dimensions=()):
        self.refused = refused
        self.open = open_dimensions
        self.programs = []

    def supports(self, node, context):
        return Support(node.target not in CHECKS and node.name not in self.refused, "not here")

    def compile(self, subgraph, example_inputs, options):
        self.programs.append(subgraph)
        return subgraph

    def profile(self, example_inputs):
        return Profile.of(example_inputs, open_dimensions=self.open)


def checks_of(program):
    return [node for node in program.graph.nodes if node.target in CHECKS]


class Parts(nn.Module):
    """Asks how many parts there are, and how long one of them is."""

    def forward(self, x):
        first, second = x.relu().chunk(2, -1)
        total = torch.cat([first, second]).exp()
        if len(total) == 4:
            return total + 1
        return total * 2


def test_checks_of_sizes_run_with_the_engine_that_is_compiled_for_them():
    module, backend = fxplug.trace(Parts(), (X,)), Engines()
    assert len(checks_of(module)) == 2
    lowered = lower(module, backend, (X,), name="engines", strict=True)

    ((name, part),) = lowered_partitions(lowered.module).items()
    assert [partition.name for partition in lowered.report.partitions] == [name]
    assert checks_of(backend.programs[0]) == []
    assert len(checks_of(part.eager)) == 2
    assert torch.equal(lowered.module(X - 1), Parts()(X - 1))


def test_checks_hold_where_pytorch_runs_a_partition():
    module = fxplug.trace(Parts(), (X,))
    lowered = lower(module, Engines(), (X,), name="engines", on_mismatch="eager")

    with pytest.raises(GuardError, match=r"captured for cat.*size\(0\) == 4"):
        lowered.module(torch.ones(3, 4))


def test_a_check_that_the_examples_do_not_pass_is_not_left_out():
    report = plan_lowering(fxplug.trace(Parts(), (X,)), Engines(), "engines", (torch.ones(3, 4),))

    assert [node.name for node in report.nodes if not node.partition] == ["check_true"]


class Shapes(nn.Module):
    def forward(self, x):
        first, second = x.relu().chunk(2, -1)
        total = torch.cat([first, second]).exp()
        if total.shape[0] == 4 and total.shape[1] == 2:
            return total + 1
        return total * 2


def test_with_an_open_size_only_what_does_not_depend_on_it_is_left_out():
    module, backend = fxplug.trace(Shapes(), (X,)), Engines(open_dimensions=(0,))
    report = plan_lowering(module, backend, "engines", (X,))

    checks = [node.name for node in checks_of(module)]
    (left,) = [node for node in report.nodes if node.name in checks and not node.partition]
    assert len(checks) > 1
    assert left.reason.startswith("it checks something that dtypes and sizes of the inputs do not tell")
    assert "shape[0]" in str(next(node for node in module.graph.nodes if node.name == left.name).args)


class Picks(nn.Module):
    def forward(self, x):
        y = x.exp()
        if y.sum() > 0:
            return y + 1
        return y * 2


def test_what_depends_on_elements_stays_in_pytorch_and_does_not_take_the_rest_with_it():
    module, backend = fxplug.trace(Picks(), (X,)), Engines()
    lowered = lower(module, backend, (X,), name="engines")

    left = {node.name: node.reason for node in lowered.report.nodes if not node.partition}
    assert list(left) == ["truth", "check_true"]
    assert left["truth"].startswith("it returns a number that depends on the elements of tensors")
    assert len(lowered.report.partitions) == 1
    assert torch.equal(lowered.module(X), Picks()(X))
    with pytest.raises(GuardError):
        lowered.module(X * float("nan"))


class Counts(nn.Module):
    def forward(self, x):
        found = torch.nonzero(x)
        if len(found) == 8:
            return found + 1
        return found * 2


def test_a_size_that_depends_on_elements_is_checked():
    module = fxplug.trace(Counts(), (X,))
    report = plan_lowering(module, Engines(), "engines", (X,))

    assert [node.name for node in report.nodes if not node.partition] == ["size", "eq", "check_true"]


def test_checks_stay_between_what_happens_before_and_behind_them():
    graph = Graph()
    x = graph.placeholder("x")
    first, printed, second, third, last = (
        graph.call_function(check_true, (x, "one")),
        graph.call_function(print, (x,)),
        graph.call_function(check_true, (x, "two")),
        graph.call_function(check_true, (x, "three")),
        graph.call_function(print, (x,)),
    )
    graph.output(x)
    before = requirements(GraphModule(nn.Module(), graph))

    assert before[printed] == [first]
    assert before[second] == before[third] == [printed]
    assert before[last] == [second, third]


@fxplug.wrap
def nested(x):
    return x, (x + 1, [x * 2])


def test_what_is_nested_in_containers_is_taken_apart_where_it_was_made():
    def program(x):
        made = nested(x)
        return made[1][0].exp() + made[1][1][0]

    lowered = lower(fxplug.symbolic_trace(program), Engines("nested"), (X,), name="engines")
    left = [node.name for node in lowered.report.nodes if not node.partition]

    assert left[0] == "nested"
    assert set(left[1:]) <= {"getitem", "getitem_1", "getitem_2", "getitem_3", "getitem_4"}
    (part,) = lowered_partitions(lowered.module).values()
    assert all(
        entry.parts is None or not any(inner.parts for inner in entry.parts) for entry in part.profile.inputs
    )
    assert torch.equal(lowered.module(X + 1), program(X + 1))


def test_profiles_know_what_is_in_containers():
    profile = Profile.of([(X, [X.long(), 3]), {"a": X}])

    assert profile.problem_with([(X, [X.long(), 3]), {"a": X}]) == ""
    assert profile.problem_with([(X, [X, 3]), {"a": X}]) == (
        "input 0 at [1] at [0] is float32 2x4, and int64 2x4 is expected"
    )
    assert profile.problem_with([(X, [X.long(), 4]), {"a": X}]).endswith(
        "at [1] at [1] is 4, and was 3 when it was compiled"
    )
    assert "has no part 'a'" in profile.problem_with([(X, [X.long(), 3]), {"b": X}])
    assert "is a tuple of 1" in profile.problem_with([(X,), {"a": X}])
    assert profile.is_closed
    opened = Profile.of([(X,)], open_dimensions=(0,))
    assert not opened.is_closed
    assert opened.problem_with([(X[:1],)]) == ""
    assert _profile_of(_profile_data(profile)) == profile


def test_what_happens_on_a_mismatch_is_one_of_two_things():
    with pytest.raises(ConfigError, match=r"Cannot use on_mismatch='ignore': use one of 'error', 'eager'"):
        lower(fxplug.trace(Parts(), (X,)), Engines(), (X,), name="engines", on_mismatch="ignore")


class Ones(nn.Module):
    def forward(self, x):
        y = x.exp()
        if y.shape[0] == 1:
            return y + 1
        return y * 2


class Longest(nn.Module):
    def forward(self, x):
        y = x.exp()
        if y.shape == (3, 4):
            return y + 1
        return y * 2


class Ranks(nn.Module):
    def forward(self, x):
        y = x.exp().squeeze(0)
        if y.dim() == 1:
            return y + 1
        return y * 2


class Splits(nn.Module):
    def forward(self, x):
        parts = x.exp().split(2)
        if len(parts) == 1:
            return parts[0] + 1
        return parts[0] * 2


@fxplug.wrap
def in_parts(x):
    return (x,) if x.shape[0] != 3 else (x, x)


class Wrapped(nn.Module):
    """How many parts there are follows from an open size, and is one for all sizes but one."""

    def forward(self, x):
        parts = in_parts(x.exp())
        if len(parts) == 1:
            return parts[0] + 1
        return parts[0] * 2


@pytest.mark.parametrize(
    ("program", "size"),
    [(Ones(), 1), (Longest(), 3), (Ranks(), 1), (Splits(), 3), (Wrapped(), 3)],
    ids=str,
)
def test_a_check_that_fails_for_another_open_size_is_not_left_out(program, size):
    module = fxplug.trace(program, (X,))
    lowered = lower(module, Engines(open_dimensions=(0,)), (X,), name="engines")

    assert lowered_partitions(lowered.module)
    assert torch.equal(lowered.module(X - 1), program(X - 1))
    with pytest.raises(GuardError):
        lowered.module(torch.ones(size, 4))


class OfTwo(nn.Module):
    def forward(self, x, y):
        first, second = x.exp(), y.exp()
        if first.shape[0] != second.shape[0]:
            return first.sum(0) - second.sum(0)
        return first.sum(0) + second.sum(0)


def test_open_sizes_that_are_equal_in_the_examples_may_differ():
    module = fxplug.trace(OfTwo(), (X, X))
    lowered = lower(module, Engines(open_dimensions=(0,)), (X, X), name="engines")

    assert torch.equal(lowered.module(X[:1], X[:1]), OfTwo()(X[:1], X[:1]))
    with pytest.raises(GuardError):
        lowered.module(X, X[:1])


class OfPair(nn.Module):
    def forward(self, pair):
        y = pair[0].exp()
        if y.shape[0] == 2:
            return y + 1
        return y * 2


def test_open_sizes_inside_of_containers_settle_nothing():
    module = fxplug.trace(OfPair(), ((X, X),))
    lowered = lower(module, Engines(open_dimensions=(0,)), ((X, X),), name="engines")

    # In a partition it would be checked by the engine, which knows no checks.
    (check,) = checks_of(module)
    assert [node.name for node in lowered.report.nodes if not node.partition] == [check.name]
    with pytest.raises(GuardError):
        lowered.module((torch.ones(3, 4), X))
