"""Everything that stands against capturing a model, in one run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError

ROWS = torch.arange(8.0).reshape(2, 4)

pytest.importorskip("numpy")  # It is in the environment named capture.


def by_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy())


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + 1
        x = self.inner(x)
        x = by_numpy(x)
        return x if x.shape[0] > 1 else -x


def problems_of(**options: Any) -> TraceError:
    with pytest.raises(TraceError) as refused:
        fxplug.trace(Model(), on_error="collect", **options)
    return refused.value


def test_every_problem_is_found() -> None:
    error = problems_of()

    assert sorted(problem.code for problem in error.problems) == [
        "FXP-T001",
        "FXP-T001",
        "FXP-T003",
        "FXP-T068",
    ]


def test_message_lists_them_with_their_lines() -> None:
    text = str(problems_of())

    assert text.startswith("Cannot trace Model: 4 problems.\n1. ")
    for line in (
        "if x.sum() > 0:",
        "return x * len(x)",
        "return torch.from_numpy(x.numpy())",
        "x.shape[0] > 1",
    ):
        assert line in text


def test_with_examples_fewer_are_left() -> None:
    error = problems_of(example_inputs=(ROWS,))

    assert [problem.code for problem in error.problems] == ["FXP-T063"]


def test_shape_mode_finds_questions_about_values() -> None:
    error = problems_of(example_inputs=(ROWS,), mode="shape")

    assert [problem.code for problem in error.problems] == ["FXP-T066"]


def test_model_without_problems_is_captured() -> None:
    captured = fxplug.trace(nn.Sequential(nn.Linear(4, 2)), on_error="collect")

    assert captured(ROWS).shape == (2, 2)


def test_loop_on_a_guess_ends_and_is_one_problem() -> None:
    def endless(x: torch.Tensor) -> torch.Tensor:
        while not x.sum() > 0:
            x = x + 1
        return x

    with pytest.raises(TraceError) as refused:
        fxplug.trace(endless, on_error="collect")
    assert [problem.code for problem in refused.value.problems] == ["FXP-T001"]
