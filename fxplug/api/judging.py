"""Judging what passes make of a module: by its values, by a function of the user's, or by the time that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.comparison import Check, Comparison, Tolerance
from fxplug.analyze.isolation import SavedState, forked_random_state
from fxplug.analyze.runs import Run, compare_runs, observe
from fxplug.api.latency import measure_latency
from fxplug.api.user_errors import error_text
from fxplug.errors import ConfigError, TraceError
from fxplug.passes.bisection import Judgement

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from fxplug.execute import GraphModule

__all__ = ["check_start", "judge_by", "judge_check", "judge_values", "slowdown", "wrong_start"]


def judge_by(
    start: GraphModule,
    inputs: tuple[Any, ...],
    eager: Run,
    check: Callable[[GraphModule], bool] | None,
    tolerance: Tolerance,
    slower_than: float | None,
    measure: Callable[[GraphModule, GraphModule, tuple[Any, ...]], float] | None,
) -> Callable[[GraphModule], Judgement]:
    """Return what judges modules: by `check`, by time where `slower_than` is given, else by value.

    Args:
        start: The module before any pass.
        inputs: Of one call.
        eager: What is right.
        check: See `fxplug.bisect`, as of the other arguments.
        tolerance: What is close enough.
        slower_than: A ratio of times.
        measure: Measures it.
    """

    def by_check(module: GraphModule) -> Judgement:
        saved = SavedState(module)
        try:
            with forked_random_state():
                is_right = check is None or check(module)
        except Exception as error:  # Whatever the user's own function raises says that something is wrong.
            return Judgement("fails", f"the check raises {error_text(error)}")
        finally:
            saved.restore()
        return Judgement("good") if is_right else Judgement("differs", "the check says no")

    def by_time(module: GraphModule) -> Judgement:
        try:
            ratio = (measure or slowdown)(start, module, inputs)
        except Exception as error:  # What a broken graph raises is not known.
            return Judgement("fails", f"the module raises {error_text(error)}")
        text = f"the module takes {ratio:.2f} times as long as before the passes"
        return Judgement("good" if ratio <= (slower_than or 0) else "slow", text)

    def by_value(module: GraphModule) -> Judgement:
        return judge_values(module, inputs, eager, tolerance)

    if check is not None:
        return by_check
    return by_value if slower_than is None else by_time


def judge_values(module: GraphModule, inputs: tuple[Any, ...], right: Run, tolerance: Tolerance) -> Judgement:
    """Run a module and judge what it computes.

    Args:
        module: What is judged.
        inputs: Of one call.
        right: What it should compute and do.
        tolerance: What is close enough.
    """
    saved = SavedState(module)
    try:
        run = observe(module, inputs, saved)
    except Exception as error:  # What a broken graph raises is not known.
        return Judgement("fails", f"the module raises {error_text(error)}")
    check = Check(tuple(compare_runs(inputs, right, run, tolerance)))
    return judge_check(check)


def judge_check(check: Check) -> Judgement:
    """Return what a comparison says."""
    return Judgement("good") if check.passed else Judgement("differs", _difference(check.failures[0]))


def _difference(failure: Comparison) -> str:
    return f"{failure.path} ({failure.expected}): {failure.reason}"


def slowdown(start: GraphModule, module: GraphModule, inputs: tuple[Any, ...]) -> float:
    """Return how many times as long `module` takes as `start`, by the medians of calls that take turns."""
    saved = [SavedState(part) for part in (start, module)]
    try:
        with torch.no_grad():
            latency = measure_latency(start, module, inputs)
    finally:
        for state in saved:
            state.restore()
    return latency.after / latency.before


def check_start(
    module: nn.Module,
    start: GraphModule,
    judge: Callable[[GraphModule], Judgement],
    slower_than: float | None,
) -> None:
    """Refuse to search where something is wrong before the first pass.

    Raises:
        ConfigError: A check says so, or times vary too much.
        TraceError: The captured module does something else than the module.
    """
    judgement = judge(start)
    if judgement.is_good:
        return
    if slower_than is not None:
        raise ConfigError(
            f"Cannot search for what is slower than {slower_than:g} times: before any pass has run, {judgement.text}. "
            "Times vary that much here; give a larger ratio."
        )
    if judgement.text.startswith("the check"):
        raise ConfigError(
            f"Cannot bisect {type(module).__name__}: before any pass has run, {judgement.text}. Give a check that the "
            "captured module passes."
        )
    raise wrong_start(module, judgement.text)


def wrong_start(module: nn.Module, text: str) -> TraceError:
    """Return the error for a module of which something else was captured than it computes."""
    return TraceError(
        f"Cannot bisect {type(module).__name__}: what was captured is wrong before any pass has run: {text}. "
        "Capture it with fxplug.trace(module, example_inputs), and bisect what that returns."
    )
