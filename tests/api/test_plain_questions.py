"""Programs that ask about sizes, captured on examples without being listened to.

PYTEST_DONT_REWRITE: an ``assert`` of theirs is to be one, and not what pytest makes of it.
"""

from __future__ import annotations

import gc
import math
from contextlib import suppress
from types import CellType, FunctionType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxplug
from fxplug.api.plain_run import BegunRun


class Net(nn.Module):
    """What the forwards below are forwards of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.width = 4
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x):
        return self.layer(x).relu()


def net_of(forward):
    return type("Net", (Net,), {"forward": forward})().eval()


def run(captured, *inputs):
    try:
        return captured(*inputs), None
    except fxplug.GuardError as error:
        return None, error


def texts(captured):
    return [str(guard) for guard in captured.guards]


def of_an_input(self, x):
    if x.shape[1] > 5:
        return x
    return self.layer(x)


def of_what_is_computed(self, x):
    y = self.norm(self.layer(x))
    return y * 2 if y.size(1) == self.width else y[:, :-1]


def of_both(self, x):
    y = self.layer(x) if x.size(-1) == self.width else x
    if y.size(0) * 2 <= y.size(1) and not y.shape[1] > 7:
        y = y + 1
    return y


def of_a_length(self, x):
    return self.layer(x) * self.mask[: x.size(1), :1] if x.size(1) <= len(self.mask) else x


def of_a_range(self, x):
    return self.layer(x) if 1 <= x.size(0) < 6 else x


def again_and_again(self, x):
    y = x
    if x.size(1) > 3:
        y = y.relu()
    if x.size(1) > 3:
        y = self.layer(y)
    return y - 1 if x.size(1) > 3 else y


def of_truth(self, x):
    y = self.layer(x) if x.size(1) % 2 else x
    return y + 1 if self.norm(y).size(0) - 2 else y - 1


def of_many_sizes(self, x):
    y = self.layer(x)
    return x + y if x.shape == y.shape and x.shape[1:] == y.size()[1:] else x


def of_the_largest(self, x):
    longest = max(x.size(1), 3)
    return self.layer(x) * longest if min(longest, x.size(0), abs(x.size(1) - 6)) == 2 else x


def or_raises(self, x):
    batch, length, width = self.norm(x).shape
    if width != self.width:
        raise ValueError(f"Expected {self.width} features, and got {width}.")
    assert length < 100, f"{length} is too long."
    assert batch > 0
    return self.layer(x).reshape(batch, -1)


ASKING = [
    *(
        again_and_again,
        of_a_length,
        of_a_range,
        of_an_input,
        of_both,
        of_truth,
        of_what_is_computed,
        or_raises,
    ),
]
X = torch.randn(2, 4, 4)


@pytest.mark.parametrize("forward", ASKING)
@pytest.mark.parametrize("check", [True, False])
def test_both_ways_capture_the_same(plainly, forward, check, listened_to):
    net, given = net_of(forward), X.clone()
    captured = fxplug.trace(net, (given,), check=check)
    assert plainly == [captured]
    torch.testing.assert_close(given, X, rtol=0, atol=0)
    other = listened_to(net, given.clone(), check=check)

    captured.graph.lint()
    assert sorted(texts(captured)) == sorted(texts(other))
    assert [str(node.target) for node in captured.graph.nodes] == [
        str(node.target) for node in other.graph.nodes
    ] or forward in {of_a_length, or_raises}
    for shape in ((2, 4, 4), (5, 4, 4), (3, 7, 4), (9, 4, 4), (2, 9, 4), (1, 1, 4)):
        x = torch.randn(shape)
        result, error = run(captured, x)
        expected, other_error = run(other, x)
        assert (error is None) is (other_error is None)
        if error is None:
            torch.testing.assert_close(result, expected)
            torch.testing.assert_close(result, net(x))
        else:
            assert error.can_run_again is other_error.can_run_again


def of_dimensions(self, x):
    y = self.layer(x).flatten(1)
    return y if x.dim() == 3 and y.ndim == 2 and self.mask.dim() > 1 else x


@pytest.mark.parametrize("forward", [of_dimensions, of_many_sizes, of_the_largest])
def test_what_is_guarded_holds_for_as_many_inputs_or_more(plainly, forward, listened_to):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    other, count = listened_to(net, X), 0
    for shape in ((2, 4, 4), (5, 4, 4), (3, 7, 4), (9, 4, 4), (2, 9, 4), (1, 1, 4), (4, 4), (1, 2, 4, 4)):
        x = torch.randn(shape)
        result, error = run(captured, x)
        assert error is None or run(other, x)[1] is not None
        if error is None:
            torch.testing.assert_close(result, net(x))
            count += 1
    assert count >= 1


@pytest.mark.parametrize("forward", [*ASKING, of_dimensions, of_many_sizes, of_the_largest])
def test_another_answer_is_captured_anew(forward):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,), on_guard_failure="recapture")
    for shape in ((2, 4, 4), (2, 9, 4), (9, 4, 4), (2, 4, 4), (1, 6, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(captured(x), net(x))


def test_what_is_asked_of_inputs_is_not_in_the_graph():
    captured = fxplug.trace(net_of(again_and_again), (X,))
    ops = " ".join(node.op for node in captured.graph.nodes)
    assert ops == "placeholder call_method call_module call_function output"
    assert [guard.text for guard in captured.guards] == ["x.size(1) > 3"]


def test_each_answer_is_checked_where_it_is_asked():
    captured = fxplug.trace(net_of(or_raises), (X,))
    names = [str(getattr(node.target, "__name__", node.target)) for node in captured.graph.nodes]
    assert names.count("check_true") == 3
    assert names.index("check_true") < names.index("layer")
    assert "width != self.width" in texts(captured)[1]


# -- methods of the classes above


class Checked(Net):
    def forward(self, x):
        return super().forward(x) if x.size(1) <= len(self.mask) else x


class CheckedTwice(Checked):
    def forward(self, x):
        return super().forward(x) + self.norm(x)


class Between(Net):
    def forward(self, x):
        return super().forward(x) - 1


class Both(Checked, Between):
    """``super`` of the first one is the second one."""


@pytest.mark.parametrize("kind", [Checked, CheckedTwice, Between, Both])
def test_methods_of_the_classes_above_are_called(plainly, kind, listened_to):
    net = kind().eval()
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    torch.testing.assert_close(captured(X), net(X))
    assert captured.code == listened_to(net, X).code


def test_a_class_above_that_is_exchanged_is_heard(plainly, monkeypatch):
    fxplug.trace(Checked().eval(), (X,))
    monkeypatch.setattr(Net, "forward", lambda self, x: self.norm(x) if int(x.size(0)) == 2 else x)
    captured = fxplug.trace(Checked().eval(), (X,))
    assert plainly[1:] == [None]
    torch.testing.assert_close(captured(X), Checked().eval()(X))


def test_another_super_is_looked_at(plainly, monkeypatch):
    class Other:
        def forward(self, x):
            return x * 3

    net = Between().eval()
    monkeypatch.setitem(globals(), "super", Other)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X), X * 3 - 1)


def test_another_len_is_looked_at(plainly, monkeypatch):
    monkeypatch.setitem(globals(), "len", lambda value: 3)
    captured = fxplug.trace(Checked().eval(), (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X), X)


# -- what is listened to


def of_a_computed_length(self, x):
    y = self.layer(x)
    return y if len(y) < 3 else x


def behind_a_draw(self, x):
    y = x + torch.rand(x.shape)
    return self.layer(y) if self.norm(x).size(1) > 2 else y


def with_a_text_of_its_own(self, x):
    return getattr(self, f"lay{'er'}")(x) if x.size(1) > 2 else x


@pytest.mark.parametrize(
    "forward",
    [
        *(behind_a_draw, of_a_computed_length, with_a_text_of_its_own),
    ],
)
def test_other_questions_are_listened_to(plainly, forward, listened_to):
    net = net_of(forward)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    captured = fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    found = captured(X)
    torch.manual_seed(5)
    torch.testing.assert_close(found, net(X))


def behind_a_write(self, x):
    mask = self.mask
    mask += 1
    return self.layer(x) if x.size(1) > 2 else x


def behind_a_layer_that_writes(self, x):
    x = F.batch_norm(x.transpose(1, 2), self.mean, self.var, training=True).transpose(1, 2)
    return self.layer(x) if x.size(1) > 2 else x


def behind_a_write_in_place(self, x):
    torch.relu_(self.mask[: x.size(1)])
    return self.layer(x) if self.norm(x).size(1) > 2 else x


def raises_behind_a_write(self, x):
    mask = self.mask
    mask += 1
    if self.norm(x).size(1) > 2:
        raise ValueError("It is too long.")
    return x


@pytest.mark.parametrize(
    "forward", [behind_a_layer_that_writes, behind_a_write, behind_a_write_in_place, raises_behind_a_write]
)
@pytest.mark.parametrize("check", [True, False])
def test_what_was_written_before_a_question_is_put_back(plainly, forward, check):
    net = net_of(forward)
    net.mask -= 0.5
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with suppress(ValueError):
        fxplug.trace(net, (X,), check=check)
    assert plainly == [None]
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_other_answers_behind_a_write_are_captured_anew():
    net, other = net_of(behind_a_write), net_of(behind_a_write)
    captured = fxplug.trace(net, (X,), check=False, on_guard_failure="recapture")
    for shape in ((2, 4, 4), (2, 1, 4), (2, 4, 4), (3, 2, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(captured(x), other(x))
        torch.testing.assert_close(captured.mask, other.mask)


def test_a_program_that_raises_leaves_nothing_behind():
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(AssertionError):
                fxplug.trace(net_of(or_raises), (torch.randn(1, 101, 4),))
        assert not [found for found in gc.get_objects() if type(found) is BegunRun]
    finally:
        gc.enable()


@pytest.mark.parametrize("is_listened_to", [False, True])
def test_questions_that_differ_in_keyword_arguments_are_two(is_listened_to, listened_to):
    def forward(self, x):
        y = self.layer(x)
        count, length = y.size(0), y.size(1)
        a = y + 1 if math.isclose(count, length, rel_tol=0.9) else y - 1
        return a * 2 if math.isclose(count, length, rel_tol=0.6) else a * 3

    net = net_of(forward)
    captured = listened_to(net, X) if is_listened_to else fxplug.trace(net, (X,))
    with pytest.raises(fxplug.GuardError):
        captured(torch.randn(2, 9, 4))


def test_the_same_question_is_checked_once(plainly):
    def forward(self, x):
        size = self.layer(x).size(1)
        y = x + 1 if size > 3 else x
        return y * 2 if size > 3 else y

    captured = fxplug.trace(net_of(forward), (X,))
    assert plainly == [captured]
    assert len(captured.guards) == 1


def test_dimensions_of_a_weight_are_checked(plainly):
    def forward(self, x):
        return self.layer(x) if self.mask.dim() == 2 else x

    captured = fxplug.trace(net_of(forward), (X,))
    assert plainly == [captured]
    captured.mask = torch.ones(3)
    with pytest.raises(fxplug.GuardError):
        captured(X)


@pytest.mark.parametrize("way", ["plain", "listened to"])
def test_what_is_solved_for_is_one_vector_or_several(way, listened_to):
    def forward(self, x, y):
        z = torch.linalg.solve(x, y)
        return z + 1 if z.dim() == 2 else z * 2

    net, x = net_of(forward), torch.eye(2).expand(3, 2, 2).clone()
    inputs = x, torch.randn(3, 2)
    captured = fxplug.trace(net, inputs) if way == "plain" else listened_to(net, *inputs)
    with pytest.raises(fxplug.GuardError):
        captured(x, torch.randn(2, 3))


def test_a_class_that_is_not_known_yet_is_listened_to(plainly, listened_to):
    method = FunctionType(Between.forward.__code__, globals(), "forward", None, (CellType(),))
    with pytest.raises(RuntimeError, match="empty __class__ cell"):
        fxplug.trace(net_of(method), (X,))
    with pytest.raises(RuntimeError, match="empty __class__ cell"):
        fxplug.symbolic_trace(net_of(method))


def test_inputs_that_are_written_to_before_a_question_are_put_back(plainly):
    def forward(self, x):
        torch.relu_(x)
        return self.layer(x) if x.size(1) > 2 else x

    x = X.clone()
    captured = fxplug.trace(net_of(forward), (x,), check=False)
    assert plainly != [None]
    torch.testing.assert_close(x, X, rtol=0, atol=0)
    torch.testing.assert_close(captured(X.clone()), net_of(forward)(X.clone()))


def test_sizes_that_the_program_changes_are_those_that_it_asks_for(plainly):
    def forward(self, x, y):
        torch.resize_as_(x, y)
        return self.layer(x) if x.size(1) > 2 else x - 1

    captured = fxplug.trace(net_of(forward), (torch.ones(2, 4), torch.ones(1, 2)), check=False)
    assert plainly == [None]
    torch.testing.assert_close(captured(torch.ones(2, 4), torch.ones(1, 2)), torch.zeros(1, 2))
    with pytest.raises(fxplug.GuardError):
        captured(torch.ones(2, 4), torch.ones(1, 4))


def test_a_program_raises_its_own_error(plainly):
    net = net_of(or_raises)
    with pytest.raises(AssertionError, match="101 is too long"):
        fxplug.trace(net, (torch.randn(1, 101, 4),))
    assert plainly == [None]


def test_an_error_before_the_question_is_the_program_s_own(plainly):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fxplug.trace(net_of(of_what_is_computed), (torch.randn(2, 4, 5),))
    assert plainly == [None]


def of_what_is_in_a_product(self, x):
    y = x @ x.transpose(-2, -1)
    return y * 2 if (y < 1e9).all() else y[:, :-1]


def test_values_that_take_much_memory_are_not_kept(plainly, monkeypatch):
    monkeypatch.setattr(BegunRun, "most", X.nbytes // 2)
    captured = fxplug.trace(net_of(of_what_is_in_a_product), (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net_of(of_what_is_in_a_product)(X))


def test_inputs_do_not_count_among_them(plainly, monkeypatch):
    monkeypatch.setattr(BegunRun, "most", 0)
    captured = fxplug.trace(net_of(of_an_input), (X,))
    assert plainly == [captured]


def test_nothing_of_a_run_stays(plainly):
    captured = fxplug.trace(net_of(of_what_is_computed), (X,))
    assert plainly == [captured]
    del plainly[:]
    gc.collect()
    assert not [found for found in gc.get_objects() if type(found) is BegunRun]


def test_a_trace_without_examples_still_refuses():
    with pytest.raises(fxplug.TraceError, match=r"\[FXP-T001\]"):
        fxplug.symbolic_trace(net_of(of_an_input))
    with pytest.raises(fxplug.TraceError, match=r"\[FXP-T003\]"):
        fxplug.symbolic_trace(net_of(of_a_length))


class WritingWhereItAsks(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.act, self.layer = nn.ReLU(inplace=True), nn.Linear(4, 4)
        type(self).forward = forward


def of_what_a_method_writes(self, x):
    y = x * 1
    if y.mul_(2).ndim == 3:
        return y + 1
    return y


def of_what_a_layer_writes(self, x):
    y = x * 1
    assert self.act(y).dim() == 3
    return y


def of_a_view_of_what_is_written(self, x):
    y = x * 1
    z = y.add_(1).view(-1)
    assert z.ndim == 1
    return y


def of_an_input_that_is_written(self, x):
    z = x.mul_(2)
    assert z.ndim == 3
    return x + 1


def of_what_is_not_used_besides(self, x):
    z = self.layer(x)
    assert z.ndim == 3
    return x + 1


@pytest.mark.parametrize(
    "forward",
    [
        *(of_what_a_method_writes, of_what_a_layer_writes, of_a_view_of_what_is_written),
        *(of_an_input_that_is_written, of_what_is_not_used_besides),
    ],
)
def test_what_is_asked_of_is_computed(plainly, forward):
    net = type("Writing", (WritingWhereItAsks,), {})(forward).eval()
    given = X.clone()
    captured = fxplug.trace(net, (given,), check=False)
    assert plainly == [captured]
    assert torch.equal(given, X)
    expected, found = X.clone(), X.clone()
    torch.testing.assert_close(captured(found), net(expected))
    assert torch.equal(found, expected)
    if forward is of_what_is_not_used_besides:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            captured(torch.randn(2, 3, 5))
