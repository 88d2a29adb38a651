"""Programs that ask what tensors are like, or what is in them, captured on examples without being listened to.

PYTEST_DONT_REWRITE: an ``assert`` of theirs is to be one, and not what pytest makes of it.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.api import plain_ranks
from fxplug.api.plain_run import BegunRun

X = torch.linspace(-1, 1, 32).reshape(2, 4, 4)


class Net(nn.Module):
    """What the forwards below are forwards of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)))

    def forward(self, x):
        return self.layer(x)


def net_of(forward):
    return type("Net", (Net,), {"forward": forward})().eval()


def outcome(program, x):
    """Return what a program returns, and what the error says that it raises instead."""
    try:
        return program(x), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def texts(captured):
    return [str(guard) for guard in captured.guards]


# -- what tensors are like


def of_memory(self, x):
    return self.layer(x) if x.is_contiguous() else x


def of_computed_memory(self, x):
    y = self.layer(x).transpose(1, 2)
    return self.norm(y) if y.is_contiguous() else y.contiguous()


def of_steps(self, x):
    return self.layer(x) if x.stride(1) == x.size(2) else x


def of_numbers(self, x):
    return self.layer(x) if x.numel() > 8 and x.element_size() * 2 == 8 else x


def of_kinds(self, x):
    y = self.layer(x)
    return y if x.is_floating_point() and not torch.is_complex(y) else x


def of_gradients(self, x):
    y = self.layer(x)
    return y + 1 if y.requires_grad and not x.requires_grad else y


def of_devices(self, x):
    return x if x.is_cuda or self.norm(x).is_meta else self.layer(x)


# -- what is in them


def of_a_sum(self, x):
    return self.layer(x) if x.sum() > 100 else x * 2


def of_missing_numbers(self, x):
    y = self.layer(x)
    return y.nan_to_num() if torch.isnan(y).any() else y


def of_one_number(self, x):
    return self.layer(x) if self.layer(x).sum().item() < 50 else x


def of_an_element(self, x):
    if x[0, 0, 0] < 0:
        x = x + 1
    return self.layer(x) if x[0, 0, 0] < 0.5 else x


def of_two_tensors(self, x):
    return x if torch.equal(x, self.layer(x)) or torch.allclose(x, x * 2) else self.norm(x)


def with_an_assertion(self, x):
    assert (self.layer(x).abs() < 50).all(), "too large"
    return x * 2


ASKING = [
    *(of_computed_memory, of_devices, of_gradients, of_kinds, of_memory, of_numbers, of_steps),
    *(of_a_sum, of_an_element, of_missing_numbers, of_one_number, of_two_tensors, with_an_assertion),
]
OTHERS = [
    *(X, X + 40, X * 0, X - 3, torch.full((2, 4, 4), float("nan")), torch.ones(1, 2, 4)),
    *(X.transpose(1, 2), torch.ones(2, 4, 8)[..., :4], torch.full((3, 4, 4), 500.0), X.double()),
]


@pytest.mark.parametrize("forward", ASKING)
@pytest.mark.parametrize("check", [True, False])
def test_both_ways_capture_the_same(plainly, forward, check, listened_to):
    net, given = net_of(forward), X.clone()
    captured = fxplug.trace(net, (given,), check=check)
    assert plainly == [captured]
    torch.testing.assert_close(given, X, rtol=0, atol=0)
    other = listened_to(net, given, check=check)

    captured.graph.lint()
    assert captured.code == other.code
    assert texts(captured) == texts(other)
    refused = 0
    for x in OTHERS:
        result, error = outcome(captured, x)
        expected, other_error = outcome(other, x)
        assert error == other_error
        refused += error is not None
        if error is None:
            torch.testing.assert_close(result, expected, equal_nan=True)
            torch.testing.assert_close(result, net(x), equal_nan=True)
    assert 0 < refused < len(OTHERS)


@pytest.mark.parametrize("forward", ASKING)
def test_another_answer_is_captured_anew(forward):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,), on_guard_failure="recapture")
    for x in OTHERS[:-3]:
        result, error = outcome(captured, x)
        expected, own_error = outcome(net, x)
        assert (error or "").partition("\n")[0] == (own_error or "").partition("\n")[0]
        if error is None:
            torch.testing.assert_close(result, expected, equal_nan=True)


def test_what_is_asked_of_inputs_is_not_in_the_graph():
    captured = fxplug.trace(net_of(of_memory), (X,))
    assert [node.op for node in captured.graph.nodes] == ["placeholder", "call_module", "output"]
    assert [guard.text for guard in captured.guards] == ["x.is_contiguous()"]


def test_what_is_asked_of_elements_is_checked_in_the_graph():
    captured = fxplug.trace(net_of(of_a_sum), (X,))
    names = [str(getattr(node.target, "__name__", node.target)) for node in captured.graph.nodes]
    assert names == ["x", "sum", "gt", "truth", "not_", "check_true", "mul", "output"]


# -- what is written


def of_what_is_written(self, x, factor):
    small = (x < 9).all()
    y = self.layer(x) if small else x
    small.mul_(factor)
    return y + 1 if small else y


def of_equal_ones(self, x, factor):
    y = x * 1
    first = self.layer(x) if torch.equal(x, y) else x
    y *= factor
    return first + 1 if torch.equal(x, y) else first


def of_equal_ones_behind_a_view(self, x, factor):
    y = x * 1
    first = self.layer(x) if torch.equal(x, y) else x
    part = y[0]
    part *= factor
    return first + 1 if torch.equal(x, y) else first


def of_what_is_written_by_a_view(self, x, factor):
    small = (x < 9).all()
    y = self.layer(x) if small else x
    part = small.view(1)
    part.mul_(factor)
    return y + 1 if small else y


def of_a_number_behind_a_view(self, x, factor):
    small = (x < 9).all()
    y = self.layer(x) if small.item() else x
    part = small.view(1)
    part.mul_(factor)
    return y + 1 if small.item() else y


@pytest.mark.parametrize(
    "forward",
    [
        *(of_a_number_behind_a_view, of_equal_ones, of_equal_ones_behind_a_view),
        *(of_what_is_written, of_what_is_written_by_a_view),
    ],
)
@pytest.mark.parametrize("is_listened_to", [False, True])
def test_the_same_question_behind_a_write_is_asked_again(forward, is_listened_to, listened_to):
    net = net_of(forward)
    same, other = torch.tensor(True), torch.tensor(False)
    captured = listened_to(net, X, same) if is_listened_to else fxplug.trace(net, (X, same))
    with pytest.raises(fxplug.GuardError):
        captured(X, other)
    torch.testing.assert_close(captured(X + 1, same), net(X + 1, same))


def of_equal_ones_behind_a_layer(self, x):
    y = x * 1
    first = self.layer(x) if torch.equal(x, y) else x
    self.act(y[0])
    return first + 1 if torch.equal(x, y) else first


@pytest.mark.parametrize("is_listened_to", [False, True])
def test_a_layer_that_writes_is_a_write(is_listened_to, listened_to):
    net = net_of(of_equal_ones_behind_a_layer)
    net.act = nn.ReLU(inplace=True)
    captured = listened_to(net, X.abs()) if is_listened_to else fxplug.trace(net, (X.abs(),))
    torch.testing.assert_close(captured(X.abs() + 1), net(X.abs() + 1))
    with pytest.raises(fxplug.GuardError):
        captured(X)


def asks_for_gradients_behind_a_write(self, x, y):
    x.mul_(y)
    return x + 1 if x.requires_grad else x


def asks_for_gradients_behind_a_write_to_a_view(self, x, y):
    part = x[0]
    part.mul_(y[0])
    return x + 1 if x.requires_grad else x


@pytest.mark.parametrize(
    "forward", [asks_for_gradients_behind_a_write, asks_for_gradients_behind_a_write_to_a_view]
)
@pytest.mark.parametrize("is_listened_to", [False, True])
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_write_may_say_that_an_input_needs_gradients(forward, is_listened_to, needs_gradient, listened_to):
    net, other = net_of(forward), X.clone().requires_grad_()
    given = other if needs_gradient else X.clone()
    inputs = X.clone(), given
    captured = listened_to(net, *inputs) if is_listened_to else fxplug.trace(net, inputs)
    torch.testing.assert_close(captured(X.clone(), given), net(X.clone(), given))
    with pytest.raises(fxplug.GuardError, match="requires_grad"):
        captured(X.clone(), X if needs_gradient else other)


def of_one_number_behind_a_write(self, x):
    x.mul_(2)
    return self.layer(x) if x.sum().item() < 50 else x


def test_numbers_of_elements_behind_a_write_are_asked_behind_it(plainly):
    net = net_of(of_one_number_behind_a_write)
    captured = fxplug.trace(net, (X.clone(),), check=False)
    assert plainly == [captured]
    for factor in (1, 0.5, 3):
        torch.testing.assert_close(captured(X * factor), net(X * factor))
    large = torch.full((2, 4, 4), 1.0)  # 32 before it is written to, and 64 behind.
    with pytest.raises(fxplug.GuardError):
        captured(large)


def behind_a_write_to_the_input(self, x):
    x.mul_(2)
    return self.layer(x) if x.sum() > -100 else x


def test_a_check_behind_a_write_says_that_the_program_cannot_be_run_instead():
    net = net_of(behind_a_write_to_the_input)
    captured = fxplug.trace(net, (X.clone(),), on_guard_failure="eager")
    given = X.clone()
    torch.testing.assert_close(captured(given), net(X.clone()))
    with pytest.raises(fxplug.GuardError) as found:
        captured(X - 100)
    assert not found.value.can_run_again


def test_a_question_about_a_weight_hears_of_another_one():
    def forward(self, x):
        return self.layer(x) if self.mask.sum() > 5 else x

    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    torch.testing.assert_close(captured(X), net(X))
    with torch.no_grad():
        captured.mask.zero_()
    with pytest.raises(fxplug.GuardError):
        captured(X)


# -- what is listened to


def takes_a_number_along(self, x):
    total = x.sum().item()
    return self.layer(x) * total if total > -100 else x


def takes_an_answer_along(self, x):
    flag = self.layer(x).requires_grad
    return x * flag if flag else x


def of_many_numbers(self, x):
    return self.layer(x) if x.stride()[0] == 16 else x


def of_a_draw(self, x):
    return self.layer(x) if (x + torch.rand(4)).sum() > -100 else x


@pytest.mark.parametrize("forward", [of_a_draw, of_many_numbers, takes_a_number_along, takes_an_answer_along])
def test_what_goes_on_is_listened_to(plainly, forward, listened_to):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))
    assert captured.code == listened_to(net, X, check=False).code


def test_an_answer_that_raises_is_the_error_of_the_program(plainly):
    def forward(self, x):
        return self.layer(x) if x > 0 else x

    with pytest.raises(RuntimeError, match="ambiguous"):
        fxplug.trace(net_of(forward), (X,))
    assert plainly == [None]


# -- answers that are most probably the same


class Blocks(nn.Module):
    """Modules that run the same lines."""

    def __init__(self, forward, count: int = 4) -> None:
        super().__init__()
        torch.manual_seed(1)
        kind = type("Block", (Net,), {"forward": forward, "steps": 0.0})
        self.blocks = nn.ModuleList([kind() for _ in range(count)])
        self.eval()

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def runs(monkeypatch):
    """The nodes up to which programs were run while they were traced."""
    found = []
    original = BegunRun.value_of

    def value_of(self, node):
        found.append(node)
        return original(self, node)

    monkeypatch.setattr(BegunRun, "value_of", value_of)
    return found


def of_steps_of_all(self, x):
    return self.layer(x) if self.layer(x).stride(-1) == 1 and x.is_contiguous() else x


def of_elements_of_all(self, x):
    return self.layer(x) if (self.norm(x) < 99).all() else x


def of_sizes_of_all(self, x):
    y = torch.cat([x, x], dim=1).flip(0).unfold(1, 4, 4)
    return self.layer(x) if y.size(1) <= 2 else x


@pytest.mark.parametrize("forward", [of_elements_of_all, of_sizes_of_all, of_steps_of_all])
def test_blocks_that_ask_the_same_are_answered_by_one_run(plainly, runs, forward, listened_to):
    net = Blocks(forward)
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    assert len(runs) == (2 if forward is of_steps_of_all else 1)
    other = listened_to(net, X)
    assert captured.code == other.code
    assert texts(captured) == [text for text in texts(other) if text != "type(x) is torch.Tensor"]
    torch.testing.assert_close(captured(X), net(X))


def grows(self, x):
    y = x + 1
    return y * 2 if y.sum() < 100 else y - 1


def grows_and_refuses(self, x):
    y = x * 3 + 1
    if y.sum() > 900:
        return self.norm(y)
    assert y.sum() < 900, "too large"
    return y


def turns_round(self, x):
    y = x.transpose(1, 2)
    return self.layer(y) if y.is_contiguous() else y


def asks_again_and_again(self, x):
    while (x * 1).sum() < 64:
        x = x + 1
    return x


def is_large(value):
    return value * 2 > 30


def asks_of_numbers_and_tensors(self, x):
    y = self.norm(x)
    return self.layer(y) if is_large(y.stride(0) if y.size(1) > 4 else y.sum()) else torch.cat([y, y], 1)


@pytest.mark.parametrize(
    "forward",
    [
        *(asks_again_and_again, asks_of_numbers_and_tensors, grows, grows_and_refuses, turns_round),
    ],
)
def test_a_wrong_guess_is_no_answer(plainly, forward, listened_to):
    net = Blocks(forward)
    captured = fxplug.trace(net, (X,))
    other = listened_to(net, X)
    # What was a tensor before is no number that may be asked for.
    assert plainly == [None if forward is asks_of_numbers_and_tensors else captured]
    assert captured.code == other.code
    for x in OTHERS:
        result, error = outcome(captured, x)
        expected, other_error = outcome(other, x)
        assert error == other_error
        if error is None:
            torch.testing.assert_close(result, expected, equal_nan=True)
            torch.testing.assert_close(result, net(x), equal_nan=True)


def asks_of_a_count(self, x):
    return self.layer(x) if is_large(x.numel()) else x


def asks_of_a_total(self, x):
    y = self.norm(x) + 9
    return self.layer(y) if is_large(y.sum()) else y


def test_a_tensor_is_not_taken_for_the_number_that_the_same_line_has_seen(plainly, listened_to):
    net = Blocks(asks_of_a_count, 1)
    net.blocks.append(Blocks(asks_of_a_total, 1).blocks[0])
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    assert captured.code == listened_to(net, X).code


class AskingForTheSame(nn.Module):
    """Each of its blocks asks for the input."""

    def __init__(self) -> None:
        super().__init__()
        kind = type("Block", (Net,), {"forward": of_another})
        self.blocks = nn.ModuleList([kind(), kind(), kind()])
        self.eval()

    def forward(self, x):
        y = x
        for block in self.blocks:
            y = block(x, y)
        return y


def of_another(self, x, y):
    return self.layer(y) if x.is_contiguous() else y


def test_what_each_block_asks_of_an_input_is_asked_once_before_all(plainly, listened_to):
    net = AskingForTheSame()
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    assert captured.code == listened_to(net, X).code
    assert [guard.text for guard in captured.guards] == ["x.is_contiguous()"]


def test_a_wrong_guess_costs_one_more_trace(plainly, runs):
    captured = fxplug.trace(Blocks(grows, 6), (X,))
    assert plainly == [captured]
    assert len(runs) == 1 + 6


def helper(value):
    return value.size(-1) * 2 > 3


def asks_a_helper(self, x):
    first = self.layer(x) if helper(self.norm(x).expand(2, 2, 4, 4).permute(3, 2, 1, 0)) else x
    return first + 1 if helper(self.norm(first).T) else first


@pytest.mark.filterwarnings("ignore:The use of `x.T`")
def test_a_helper_that_asks_twice_for_one_module_is_answered_by_a_run(runs, listened_to):
    net = Blocks(asks_a_helper, 2)
    captured = fxplug.trace(net, (X,), check=False)
    assert captured.code == listened_to(net, X, check=False).code
    torch.testing.assert_close(captured(X), net(X))


# -- numbers that a program finds among globals

LARGEST = 99.0


def of_a_global_number(self, x):
    return self.layer(x) * LARGEST if (x < LARGEST).all() else x - LARGEST


def test_numbers_among_globals_are_constants_of_the_capture(plainly, monkeypatch, listened_to):
    net = net_of(of_a_global_number)
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    assert captured.code == listened_to(net, X).code
    expected = net(X)
    monkeypatch.setitem(globals(), "LARGEST", 7.0)
    torch.testing.assert_close(captured(X), expected)
    again = fxplug.trace(net, (X,))
    assert plainly == [captured, again]
    torch.testing.assert_close(again(X), net(X))
    monkeypatch.setitem(globals(), "LARGEST", torch.tensor(7.0))
    assert fxplug.trace(net, (X,)) is not None
    assert plainly[2:] == [None]


# -- how many dimensions values have


def of_dimensions(self, x):
    y = self.norm(self.layer(x)).relu()
    torch._assert(y.ndim == 3, f"expected 3 dimensions (got {y.ndim})")
    return y.flatten(y.ndim - 2) if y.ndim > 2 else y


def of_other_dimensions(self, x):
    y = torch.cat([x, self.layer(x)], 1)
    return y.sum(y.ndim - 1, keepdim=True) * x.ndim


@pytest.mark.parametrize("forward", [of_dimensions, of_other_dimensions])
def test_ranks_that_are_known_are_numbers_of_python(plainly, runs, forward, listened_to):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    assert runs == []
    other = listened_to(net, X)
    assert captured.code == other.code
    assert [guard.text for guard in captured.guards] == ["x.dim() == 3"]
    torch.testing.assert_close(captured(X[:1]), net(X[:1]))
    for x in (X[0], X[None]):
        with pytest.raises(fxplug.GuardError, match=r"x.dim\(\) == 3"):
            captured(x)


def test_a_rank_is_told_as_the_run_finds_it(plainly, monkeypatch):
    monkeypatch.setattr(
        plain_ranks.Ranks, "of", lambda self, node: 3
    )  # As if it was wrong about some operator.

    def forward(self, x):
        y = self.layer(x).sum(0)
        return y * y.ndim if y.ndim == 2 else y + 1

    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    torch.testing.assert_close(captured(X), net(X))
