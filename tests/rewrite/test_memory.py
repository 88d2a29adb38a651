"""What shares memory with what is written stays so, or is left alone."""

from __future__ import annotations

import operator
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug as fx
from fxplug.rewrite import Pattern, Rewriter, replace_pattern

X = torch.linspace(-2, 2, 6).reshape(2, 3)


def assert_left_alone(capture, program, pattern, replacement, *inputs):
    module = capture(program)
    expected = program(*[value.clone() for value in inputs])

    assert replace_pattern(module, pattern, replacement) == []
    torch.testing.assert_close(module(*[value.clone() for value in inputs]), expected)


def _in_place(call):
    def program(x):
        t = call(x)
        u = t + 0
        x.add_(1)
        return u

    return program


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.relu(x, inplace=True),
        lambda x: F.hardtanh(x, inplace=True),
        lambda x: F.leaky_relu(x, inplace=True),
        lambda x: F.elu(x, inplace=True),
        lambda x: F.silu(x, inplace=True),
    ],
    ids=["relu", "hardtanh", "leaky_relu", "elu", "silu"],
)
def test_what_works_in_place_returns_its_argument(capture, call):
    assert_left_alone(capture, _in_place(call), lambda a: a + 0, lambda a: a, X)


@pytest.mark.parametrize(
    "call",
    [lambda x, o: torch.add(x, 1, out=o), lambda x, o: torch.maximum(x, x, out=o)],
    ids=["add", "maximum"],
)
def test_what_writes_to_out_returns_it(capture, call):
    def program(x, o):
        u = call(x, o) + 0
        o.add_(1)
        return u

    assert_left_alone(capture, program, lambda a: a + 0, lambda a: a, X, X)


def test_a_container_that_is_put_together_holds_what_its_parts_do(capture):
    def program(x):
        parts = x.chunk(2) + x.chunk(2)
        u = parts[0] + 0
        x.add_(1)
        return u

    assert_left_alone(capture, program, lambda a: a + 0, lambda a: a, X)


class Tied(nn.Module):
    def __init__(self, tie):
        super().__init__()
        self.register_buffer("a", torch.zeros(3))
        self.register_buffer("b", tie(self.a))

    def forward(self, x):
        read = self.a + 0
        self.b.add_(1)
        return x + read


@pytest.mark.parametrize(
    "tie", [lambda a: a, lambda a: a[:], lambda a: a.view(3, 1)[:, 0]], ids=["same", "slice", "view"]
)
def test_a_write_under_another_path_is_one_to_the_same_buffer(capture, tie):
    module = capture(Tied(tie))

    assert replace_pattern(module, lambda a: a + 0, lambda a: a) == []
    assert torch.equal(module(torch.zeros(3)), torch.zeros(3))


def test_a_write_to_another_buffer_does_not_matter(capture):
    module = capture(Tied(torch.clone))

    assert len(replace_pattern(module, lambda a: a + 0, lambda a: a)) == 1


def writes_behind_a_view(x):
    t = x * 2
    v = t.view(-1)
    t.add_(1)
    return t, v


def test_a_view_of_a_value_that_is_kept_and_written_stays(capture):
    module = capture(writes_behind_a_view)
    pattern = Pattern(lambda x: (x * 2).view(-1), keep_used=True)

    assert Rewriter().add(pattern, lambda x: torch.add(x, x).view(-1)).run(module) == []
    torch.testing.assert_close(module(X), writes_behind_a_view(X))


def test_two_results_that_shared_memory_go_on_sharing_it(capture):
    def pattern(x):
        t = x * 2
        return t, t.view(-1)

    def apart(x):
        return x + x, (x + x).view(-1)

    def together(x):
        t = x + x
        return t, t.view(-1)

    assert_left_alone(capture, writes_behind_a_view, pattern, apart, X)
    module = capture(writes_behind_a_view)
    assert len(replace_pattern(module, pattern, together)) == 1
    torch.testing.assert_close(module(X), writes_behind_a_view(X))


def test_two_results_that_did_not_share_memory_do_not_begin_to(capture):
    def program(x):
        t = x * 2
        v = (x * 2).view(-1)
        t.add_(1)
        return t, v

    def together(x):
        t = x * 2
        return t, t.view(-1)

    assert_left_alone(capture, program, lambda x: (x * 2, (x * 2).view(-1)), together, X)


def test_views_that_nobody_writes_may_come_apart(capture):
    def program(x):
        t = x * 2
        return t + 1, t.view(-1)

    module = capture(program)
    pattern = Pattern(lambda x: (x * 2).view(-1), keep_used=True)

    assert len(Rewriter().add(pattern, lambda x: torch.add(x, x).view(-1)).run(module)) == 1
    torch.testing.assert_close(module(X), program(X))


class Zeros(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("zeros", torch.zeros(2, 3))

    def forward(self, x):
        return self.zeros.view(2, 3)


def test_a_buffer_does_not_take_the_place_of_a_value_that_is_written(capture):
    def program(x):
        return (x * 0).add_(1)

    module = capture(program)

    assert replace_pattern(module, lambda x: x * 0, capture(Zeros())) == []


@pytest.mark.parametrize("direct", [True, False])
def test_a_write_that_a_replacement_brings_is_heard_of(capture, direct):
    """What was planned before is looked at again."""

    def program(x, other):
        other.add_(1)
        written = x + 1
        copied = (x if direct else x.view(-1)) + 0
        return written, copied

    module = capture(program)
    rewriter = Rewriter().add(lambda v: v + 1, lambda v: v.add_(1)).add(lambda v: v + 0, lambda v: v)

    assert len(rewriter.run(module)) == 1
    assert len(module.graph.find_nodes(op="call_function", target=operator.add)) == 1


def test_a_new_view_of_what_is_written_is_near_the_write(capture):
    def program(x, other):
        other.add_(1)
        y = torch.neg(x)
        written = y + 1
        copied = y.reshape(2, 3) + 0
        return written, copied

    module = capture(program)
    rewriter = Rewriter().add(lambda v: v + 1, lambda v: v.add_(1))
    rewriter.add(lambda v: v.reshape(2, 3), lambda v: v.view(2, 3)).add(lambda v: v + 0, lambda v: v)

    assert len(rewriter.run(module)) == 2
    assert len(module.graph.find_nodes(op="call_function", target=operator.add)) == 1


# -- cost


def _calls_made(function):
    count = 0

    def hear(frame, event, argument):
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(hear)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def _many_copies(length):
    def program(x, mask, other):
        for _ in range(length):
            x = torch.relu(x) * mask.clone()
        other.add_(1)
        return x

    return program


def _many_pairs(length):
    def program(x):
        y = x
        for _ in range(length):
            y = y * torch.sin(x) - torch.cos(x)
        return y

    return program


@pytest.mark.parametrize(
    ("make", "pattern", "replacement"),
    [
        (_many_copies, lambda a: a.clone(), lambda a: a),
        (_many_pairs, lambda a: (torch.sin(a), torch.cos(a)), lambda a: (torch.tan(a), torch.tanh(a))),
    ],
    ids=["copies of one value", "pairs over one value"],
)
def test_twice_the_matches_take_twice_the_work(capture, make, pattern, replacement):
    def work(length):
        module = capture(make(length))
        found = []
        calls = _calls_made(lambda: found.extend(replace_pattern(module, pattern, replacement)))
        assert len(found) == length
        return calls

    work(2)  # What is remembered between searches.
    assert work(200) < 2.4 * work(100)


class TestCopiesOfSomeTensorsOnly:
    """`contiguous` and `to` return their argument where nothing is to be done, and nobody knows where that is."""

    def test_a_write_to_what_may_be_a_copy_keeps_it(self):
        def program(x):
            y = x.t().contiguous()
            y.mul_(3)
            return x + y.t()

        module = fx.symbolic_trace(program)
        assert not replace_pattern(module, lambda a: a.contiguous(), lambda a: a)
        assert torch.equal(module(X.clone()), program(X.clone()))

    def test_a_write_to_a_view_is_not_led_into_a_copy(self):
        def program(x):
            x.t().mul_(3)
            return x

        module = fx.symbolic_trace(program)
        assert not replace_pattern(module, lambda a: a.t(), lambda a: a.t().contiguous())
        assert torch.equal(module(X.clone()), program(X.clone()))

    def test_where_nothing_is_written_it_is_replaced(self):
        module = fx.symbolic_trace(lambda x: x.t().contiguous().to(torch.float32) * 2)
        rewriter = (
            Rewriter().add(lambda a: a.contiguous(), lambda a: a).add(lambda a, t: a.to(t), lambda a, t: a)
        )
        assert len(rewriter.run(module)) == 2
        assert torch.equal(module(X), X.t() * 2)
