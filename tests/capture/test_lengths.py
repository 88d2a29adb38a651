"""The length of a tensor that a program is run on: a number that hangs on the inputs, as its size does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x).sum(0) / len(x) + len(self.linear.weight)


PROGRAMS = {
    "mean": lambda x: x.sum(0) / len(x),
    "half": lambda x: x[: len(x) // 2],
    "a result": lambda x: x * len(x[1:]),
    "of a tuple": lambda x: x * len(x.chunk(2)) + len(x.shape) + len([x, x]) + len("text"),
    "mapped": lambda x: x * sum(map(len, (x, x))),
    "compared": lambda x: x + 1 if len(x) > 1 else x,
    "compared with another": lambda x: x + 1 if len(x) == len(x * 2) else x,
    "sizes": lambda x: torch.zeros(len(x), 3) + x,
    "its class": lambda x: x + 1 if isinstance(len(x), int) and type(len(x)) is int else x,
}


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("program", [*PROGRAMS.values(), Weighted()], ids=[*PROGRAMS, "of a weight"])
def test_a_length_hangs_on_the_inputs(program, mode):
    captured = fxplug.trace(program, (torch.rand(4, 3),), mode=mode)

    for rows in (4, 2, 6):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(captured(x), program(x))


def test_a_length_by_which_a_loop_is_unrolled_is_guarded():
    def program(x):
        return sum(x[index] * index for index in range(len(x)))

    captured = fxplug.trace(program, (torch.rand(4, 3),))

    x = torch.rand(4, 3)
    torch.testing.assert_close(captured(x), program(x))
    assert [guard.text for guard in captured.guards] == ["x.size(0) == 4"]
    with pytest.raises(fxplug.GuardError, match=r"x\.size\(0\) == 4"):
        captured(torch.rand(2, 3))


def test_a_number_has_no_length_in_a_capture_either():
    def program(x):
        return x * len(x.sum())

    x = torch.rand(4, 3)
    with pytest.raises(TypeError) as told:
        program(x)
    with pytest.raises(TypeError) as captured:
        fxplug.trace(program, (x,))
    assert str(captured.value).startswith(str(told.value))


def test_a_function_of_the_program_that_is_named_len_is_called():
    namespace = {}
    exec("def program(x):\n    return x * len(x)\n", namespace)
    namespace["len"] = lambda x: 7
    captured = fxplug.trace(namespace["program"], (torch.ones(2),))

    assert captured(torch.ones(3)).tolist() == [7, 7, 7]


def test_a_class_that_says_its_own_length_is_asked():
    class Bag:
        def __init__(self, x):
            self.x = x

        def __len__(self):
            return 5

    captured = fxplug.trace(lambda x: x * len(Bag(x)), (torch.ones(2),))

    assert captured(torch.ones(3)).tolist() == [5, 5, 5]


def test_len_is_that_of_python_again_behind_the_capture():
    def program(x):
        return x / len(x)

    fxplug.trace(program, (torch.ones(2),))

    assert "len" not in globals()
    assert program(torch.ones(4)).tolist() == [0.25] * 4
