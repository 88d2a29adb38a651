"""Programs that call methods of values and take these apart, captured on examples without being listened to."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxplug


class Net(nn.Module):
    """What the forwards below are forwards of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 12)
        self.back = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)])
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))
        self.factor = nn.Parameter(torch.tensor(0.5))


def net_of(forward):
    return type("Net", (Net,), {"forward": forward})().eval()


def attends(self, x):
    batch, length, width = x.shape
    query, key, value = self.layer(x).chunk(3, dim=-1)
    query = query.view(batch, length, 2, width // 2).transpose(1, 2)
    key = key.view(batch, length, 2, width // 2).transpose(1, 2)
    value = value.view(batch, length, 2, width // 2).transpose(1, 2)
    scores = (query @ key.transpose(-2, -1)) / math.sqrt(key.size(-1))
    mixed = scores.softmax(dim=-1) @ value
    return x + self.back(mixed.transpose(1, 2).contiguous().view(batch, length, width))


def goes_through_blocks(self, x):
    for block in self.blocks:
        x = block(x) + x.mean(dim=1, keepdim=True)
    return x[:, -1].sigmoid(), x[..., None]


def uses_one_part(self, x):
    batch, _, _ = x.size()
    left, _, _ = self.layer(x).split(4, dim=-1)
    return left.reshape(batch, -1)


def uses_no_part(self, x):
    _, _, _ = x.shape
    return self.back(x).relu()


def makes_tensors_of_sizes(self, x):
    return x + torch.arange(x.shape[1]).view(1, -1, 1).to(torch.float32) * x.size(-1)


def writes_to_a_view(self, x):
    F.relu(x.view(-1), inplace=True)
    return self.back(x).tanh()


def masks(self, x):
    scores = (x @ x.transpose(1, 2)) * self.factor
    return scores.masked_fill(self.mask[: x.shape[1], : x.shape[1]] == 0, -1e9).softmax(dim=-1) @ x


def asks_for_sizes_of_a_weight(self, x):
    return x * self.mask.size(0) + self.mask.shape[1]


def indexes_by_a_value(self, x):
    order = x[:, 0, 0].argsort()
    return x[order].shape, x.view(-1)


def unpacks_what_it_has_written_before(self, x):
    y = self.back(x) + 1
    y += 1
    left, right = y.chunk(2, dim=2)
    return left.sum() - right.sum()


def indexes_by_a_list(self, x):
    return x.relu()[[-1, 0]]


def asks_for_a_class(self, x):
    return x + torch.zeros(1, dtype=x.dtype).view(1, 1, 1)


def keeps_a_constant(self, x):
    return x + torch.ones(4).view(1, 4)


PLAIN = [
    *(
        asks_for_a_class,
        asks_for_sizes_of_a_weight,
        attends,
        goes_through_blocks,
        indexes_by_a_list,
        indexes_by_a_value,
        keeps_a_constant,
        makes_tensors_of_sizes,
        masks,
        uses_no_part,
        uses_one_part,
        unpacks_what_it_has_written_before,
        writes_to_a_view,
    )
]
X = torch.randn(2, 3, 4)


def asked(captured):
    return sorted((guard.text, guard.line, guard.source) for guard in captured.guards)


def targets(captured):
    return sorted(str(node.target) for node in captured.graph.nodes)


@pytest.mark.parametrize("forward", PLAIN)
@pytest.mark.parametrize("check", [True, False])
def test_both_ways_capture_the_same(plainly, forward, check, listened_to):
    net, given = net_of(forward), X.clone()
    captured = fxplug.trace(net, (given,), check=check)
    assert plainly == [captured]
    torch.testing.assert_close(given, X, rtol=0, atol=0)
    other = listened_to(net, given.clone(), check=check)

    captured.graph.lint()
    if forward is indexes_by_a_value:  # A shape that is returned names no line.
        assert [text for text, *_ in asked(captured)] == [text for text, *_ in asked(other)]
    elif forward is not unpacks_what_it_has_written_before:  # It says `iadd` here, and `add_` there.
        assert asked(captured) == asked(other)
    # A write is the function that was called here, and the operator that it calls there.
    assert targets(captured) == targets(other) or forward in {
        unpacks_what_it_has_written_before,
        writes_to_a_view,
    }
    for batch, length in ((2, 3), (5, 7), (1, 1)):
        x = torch.randn(batch, length, 4)
        expected, mine, theirs = x.clone(), x.clone(), x.clone()
        result = net(expected)
        torch.testing.assert_close(captured(mine), result)
        torch.testing.assert_close(other(theirs), result)
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("forward", [attends, uses_no_part, uses_one_part])
def test_another_number_of_dimensions_is_said_before_anything_runs(forward):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    with pytest.raises(fxplug.GuardError, match=r"x\.dim\(\) == 3"):
        captured(torch.randn(2, 5, 3, 4))
    again = fxplug.trace(net, (X,), on_guard_failure="eager")
    with pytest.raises(ValueError, match="too many values to unpack"):
        again(torch.randn(2, 5, 3, 4))


def test_another_number_of_parts_is_said_and_may_be_captured_again():
    def forward(self, x):
        left, right = self.back(x).chunk(2, dim=1)
        return left.sum() - right.sum()

    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    with pytest.raises(fxplug.GuardError, match=r"chunk\(2, dim=1\)\) == 2") as caught:
        captured(X[:, :1])
    assert caught.value.can_run_again
    again = fxplug.trace(net, (X,), on_guard_failure="eager")
    with pytest.raises(ValueError, match="not enough values to unpack"):
        again(X[:, :1])


def test_a_check_knows_what_was_written_before():
    def forward(self, x):
        F.relu(x, inplace=True)
        left, right = self.back(x).chunk(2, dim=1)
        return left.sum() - right.sum()

    captured = fxplug.trace(net_of(forward), (X.clone(),))
    with pytest.raises(fxplug.GuardError) as caught:
        captured(X[:, :1].clone())
    assert not caught.value.can_run_again


@pytest.mark.parametrize("check", [True, False])
def test_an_error_of_the_program_comes_through(check):
    def forward(self, x):
        batch, length = x.shape
        return x.view(length, batch)

    with pytest.raises(ValueError, match="too many values to unpack"):
        fxplug.trace(net_of(forward), (X,), check=check)


def writes_to_a_weight(self, x):
    F.relu(self.mask, inplace=True)
    return x + self.mask[0, :4].view(1, 4)


def loses_dimensions(self, x):
    rows, columns = x[:1].squeeze().shape
    return x.view(-1, rows * columns)


def adds_to_a_shape(self, x):
    return x.reshape(x.shape[:-1] + (2, 2))  # noqa: RUF005 - what it is about


def asks_for_a_place(self, x):
    return x.view(-1) * x.get_device()


def asks_for_steps(self, x):
    rows, columns, depth = self.back(x).stride()
    return x * rows * columns * depth


@pytest.mark.parametrize(
    "forward",
    [
        *(
            adds_to_a_shape,
            asks_for_a_place,
            asks_for_steps,
        ),
        *(
            loses_dimensions,
            writes_to_a_weight,
        ),
    ],
)
def test_programs_that_do_more_are_listened_to(plainly, forward, listened_to):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))


def test_what_is_unpacked_and_not_used_is_not_read():
    graph = fxplug.trace(net_of(uses_no_part), (X,)).graph
    assert [node.op for node in graph.nodes] == ["placeholder", "call_module", "call_method", "output"]


def test_draws_for_shapes_of_inputs_leave_the_random_state(plainly):
    def forward(self, x):
        return x + torch.rand(x.shape).view(x.shape)

    net = net_of(forward)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    captured = fxplug.trace(net, (X,), check=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert plainly == [captured]
    results = []
    for model in (net, captured):
        torch.manual_seed(4)
        results.append(model(X))
    torch.testing.assert_close(*results)


def slices_a_shape_by_a_size(self, x):
    y = torch.zeros(x.shape[x.size(0) :])
    (last,) = y.shape
    return x * last


def repeats_a_shape(self, x):
    return torch.zeros(x.shape * x.size(0)).view(-1)[: x.size(1)].sum() + x


def flattens_from_a_size(self, x):
    return x.flatten(x.size(0) - 1), x.shape


def averages_over_dimensions_of_sizes(self, x):
    return x.mean(x.size(0) - 1), x.shape


def unpacks_a_tensor(self, x):
    first, second = self.back(x)
    return F.relu(first.exp(), inplace=True) + second


def makes_a_draw_for_nothing(self, x):
    torch.rand(3, out=torch.empty(3))
    return x.view(-1)


@pytest.mark.parametrize(
    "forward",
    [
        *(
            averages_over_dimensions_of_sizes,
            flattens_from_a_size,
            makes_a_draw_for_nothing,
        ),
        *(repeats_a_shape, slices_a_shape_by_a_size, unpacks_a_tensor),
    ],
)
def test_programs_whose_dimensions_or_parts_are_not_known_are_listened_to(plainly, forward, listened_to):
    net, x = net_of(forward), torch.randn(2, 3, 4)
    captured = fxplug.trace(net, (x,), check=False)
    assert plainly == [None]
    torch.manual_seed(1)
    result, drawn = net(x.clone()), torch.rand(1)
    torch.manual_seed(1)
    torch.testing.assert_close(captured(x.clone()), result)
    assert torch.equal(torch.rand(1), drawn)


def reads_a_part(self, x, index):
    parts = x.chunk(2)
    _, right = parts
    parts[index]
    return right * 1


def reads_by_what_it_unpacks(self, x, index):
    first, second = index
    x[index]
    return x.view(-1) * first + second


@pytest.mark.parametrize(
    ("forward", "good", "bad"), [(reads_a_part, 1, 5), (reads_by_what_it_unpacks, [0, 1], [0, 5])]
)
def test_what_the_program_reads_itself_of_what_it_unpacks_stays(forward, good, bad):
    net, x = net_of(forward), torch.randn(2, 3)
    captured = fxplug.trace(net, (x, torch.tensor(good)), check=False)
    torch.testing.assert_close(captured(x, torch.tensor(good)), net(x, torch.tensor(good)))
    for model in (net, captured):
        with pytest.raises(IndexError):
            model(x, torch.tensor(bad))


def test_a_value_that_is_its_own_index_is_listened_to(plainly, listened_to):
    def forward(self, x):
        (length,) = x[x].shape
        return x.view(-1) * length

    net = net_of(forward)
    captured = fxplug.trace(net, (torch.tensor([[True, False], [False, True]]),), check=False)
    assert plainly == [None]
    assert captured(torch.ones(2, 2).bool()).shape == (4,)
