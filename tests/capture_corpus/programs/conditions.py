"""Conditions and loops on the values of tensors, and the errors that programs catch."""

# ruff: noqa: TRY301
from __future__ import annotations

import contextlib

import torch
from torch import nn

from capture_corpus.corpus import program
from capture_corpus.inputs import larger, one, positive, ramp, tracked, two, vector


@program(one, others=positive, symbolic="FXP-T001", shape="FXP-T066")
def branch_on_a_sum(x):
    if x.sum() > 1:
        return x * 2
    return -x


@program(vector, others=lambda: (ramp(4, low=3.0, high=9.0),), symbolic="FXP-T001", shape="FXP-T066")
def while_on_a_value(x):
    steps = 0
    while x.abs().max() > 0.3:
        x = x / 2
        steps += 1
    return x, steps


@program(one, others=positive, shape="FXP-T066")
def item_as_a_factor(x):
    return x * x.max().item()


@program(one, others=positive, symbolic="FXP-T001", shape="FXP-T066")
def item_in_a_branch(x):
    largest = x.max().item()
    return x * 2 if largest > 1.5 else x + largest


@program(
    lambda: (ramp(4, 3), torch.tensor(2)),
    others=(lambda: (ramp(4, 3), torch.tensor(3)),),
    shape="FXP-T066",
)
def item_as_a_size(x, count):
    return x[: count.item()].sum(0), torch.zeros(int(count))


@program(vector, others=lambda: (ramp(4, low=3.0, high=9.0),), symbolic="FXP-T005", shape="FXP-T066")
def list_of_values(x):
    return torch.tensor([value * 2 for value in x.tolist()]), max(x.tolist())


@program(vector, symbolic="FXP-T001", shape="FXP-T066")
def tensor_as_a_number(x):
    return x * float(x[0]) + int(x[-1] * 3) + bool(x[1] < 0) + complex(x[2]).real


@program(lambda: (torch.tensor([1, 3]), list(range(5))), shape="FXP-T066")
def tensor_as_an_index_of_a_list(indices, values):
    return indices * values[indices[1]] + values[int(indices[0])]


@program(vector, others=lambda: (ramp(4, low=1.0, high=2.0),), symbolic="FXP-T001", shape="FXP-T066")
def any_and_all(x):
    if (x > 0).all():
        return x.log()
    return x.abs() if torch.any(x < -0.5) else x


@program(two, symbolic="FXP-T001", shape="FXP-T066")
def are_they_equal(x, y):
    if torch.equal(x, y) or torch.allclose(x, y):
        return x
    return y - x


@program(one, others=positive, symbolic="FXP-T001", shape="FXP-T066")
def boolean_operators(x):
    mean = x.mean()
    return x + 1 if (mean > 0 and x.max() < 3) or not x.any() else x - 1


@program(one, others=positive, symbolic="FXP-T001", shape="FXP-T066")
def chained_comparison_of_values(x):
    return x * 2 if -0.5 < x.mean() < 0.5 else x


@program(two, symbolic="FXP-T004", shape="FXP-T066")
def member_of_a_list(x, y):
    return x * 2 if torch.tensor(2.0) in y else x * 3


@program(one, others=positive, symbolic="FXP-T001", shape="FXP-T066")
def conditional_expression_in_a_call(x):
    return torch.clamp(x, min=0 if x[0, 0] < 0 else 1.25)


@program(one, others=positive, symbolic="FXP-T001", shape="FXP-T066")
def sorted_tensors(x):
    return torch.stack(sorted([x[0, 2], x[0, 1], x[1, 0]], reverse=True))


@program(one, others=positive, symbolic="FXP-T001", shape="FXP-T066")
def largest_of_tensors(x):
    return max(x[0, 0], x[1, 1]) + min(x.flatten())


@program(vector, others=lambda: (ramp(4, low=3.0, high=9.0),), symbolic="FXP-T005", shape="FXP-T066")
def early_return_from_a_loop(x):
    for index, value in enumerate(x):
        if value > 0:
            return x[index:] * index
    return x


@program(one, others=positive, symbolic="FXP-T001", shape="FXP-T066")
def asserted_value(x):
    assert x.max() < 5, f"too large: {x.max()}"
    assert torch.isfinite(x).all()
    return x.exp()


@program(vector, symbolic="FXP-T001", shape="FXP-T066")
def iteration_until_it_converges(x):
    total = torch.zeros(())
    for _ in range(50):
        updated = (total + x.sum() + 1) / 2
        if abs(updated - total) < 1e-3:
            break
        total = updated
    else:
        return -total
    return total


@program(
    lambda: (ramp(2, 3), torch.tensor(True)),
    others=(lambda: (ramp(2, 3), torch.tensor(False)),),
    symbolic="FXP-T001",
    shape="FXP-T066",
)
def flag_in_a_tensor(x, flag):
    return x * 2 if flag else x * 3


@program(
    lambda: (torch.tensor([[1, 2, 0], [2, 0, 0]]), ramp(3, 2)),
    others=(lambda: (torch.tensor([[2, 2, 2]]), ramp(3, 2)),),
    symbolic="FXP-T005",
    shape="FXP-T066",
)
def ragged_lengths(tokens, table):
    lengths = (tokens != 0).sum(1)
    parts = [table[row[:length]].sum(0) for row, length in zip(tokens, lengths.tolist(), strict=True)]
    return torch.stack(parts)


@program(tracked, symbolic="FXP-T001", shape="FXP-T066")
class RoutedByValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(3, 2)
        self.experts = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x):
        out = torch.zeros_like(x)
        choice = self.router(x).argmax(-1)
        for index, expert in enumerate(self.experts):
            chosen = choice == index
            if chosen.any():
                out[chosen] = expert(x[chosen])
        return out


# -- errors that the program catches


@program(one, others=larger, rows=(3,), symbolic="FXP-T003")
def swallowed_length(x):
    try:
        size = len(x)
    except Exception:
        size = 100
    return x * size


@program(one, others=positive, rows=(3,), symbolic="FXP-T001", shape="FXP-T066")
def swallowed_condition(x):
    try:
        if x.sum() > 0:
            return x
    except ValueError:
        return x * 100
    return -x


@program(one, rows=(3,), symbolic="FXP-T005")
def suppressed_iteration(x):
    total = 0
    with contextlib.suppress(Exception):
        for row in x:
            total = total + row
    return total


@program(one, rows=(3,), symbolic="FXP-T002", shape="FXP-T066")
def swallowed_and_reported(x):
    try:
        scale = complex(x.max()).real
    except Exception as error:
        scale = len(str(error))
    finally:
        x = x + 1
    return x * scale


@program(two, symbolic="FXP-T060")
def an_error_of_eager_is_caught(x, y):
    try:
        z = x.matmul(y)
    except RuntimeError:
        z = x.matmul(y.t())
    return z


@program(one)
def a_key_error_is_caught(x):
    try:
        return {"a": x}["b"]
    except KeyError as error:
        return x * len(error.args)


@program(one)
def exception_carries_a_tensor(x):
    try:
        raise StopIteration(x * 2)
    except StopIteration as stop:
        return stop.value + 1


@program(vector, others=lambda: (ramp(4, low=-1.0, high=0.0),), symbolic="FXP-T005", shape="FXP-T066")
def try_with_else(x):
    try:
        index = [value > 0 for value in x.tolist()].index(True)
    except ValueError:
        return x * 100
    else:
        return x[index]
