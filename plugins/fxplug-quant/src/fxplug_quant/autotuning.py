"""Leaving the layers in float that cost too much, until a budget holds."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from fxplug.errors import ConfigError
from fxplug.semantics import kept_random_state
from fxplug_quant.errors import QuantizationError
from fxplug_quant.trials import Trials
from fxplug_quant.watching import state_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from fxplug import GraphModule
    from fxplug_quant.config import QuantConfig
    from fxplug_quant.plan import Plan

__all__ = ["autotune"]


def autotune(  # noqa: PLR0913 - one front door with many switches
    module: nn.Module,
    config: QuantConfig | Plan | Mapping[str, Any] | None,
    loader: Iterable[Any],
    *,
    budget: float,
    metric: Callable[[GraphModule], float] | None = None,
    example_inputs: Sequence[Any] | Tensor = (),
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Return a plan that leaves as few layers in float as keep a budget; the module stays as it is.

    Layers go back to float one after the other, those first that do the most harm alone, until the budget holds. Then
    each of them is tried in int8 once more: one that the budget can do without stays quantized.

    Args:
        module: In evaluation mode.
        config: What is wished, or a plan to begin with.
        loader: Data to calibrate and to compare with; see `Prepared.calibrate`. It is read once, and its batches are
            kept.
        budget: How much may be lost. Without a metric: the relative error of the outputs, so that 0.01 is a signal to
            noise ratio of 40 dB. With one: by how much the quantized module may score lower than the float one.
        metric: Called with a module, in float or quantized; returns a score, such as the accuracy on data that was held
            out. The greater the better.
        example_inputs: Positional inputs of one call, or a single tensor; by default those of the first batch.
        limit: How many batches are used at most.
        progress: Called after each measurement with how many there were, and how many there will be at most.

    Returns:
        The plan; `PlanEntry.decided_by` is ``"autotune"`` where a layer was put back to float, and the reason says what
        it costs.

    Raises:
        QuantizationError: The module cannot be quantized, there is no data, or the metric gives no number.
        ConfigError: The budget is negative or no number, or the limit is no number of batches.
    """
    if (
        isinstance(budget, bool)
        or not isinstance(budget, Real)
        or not (math.isfinite(budget) and budget >= 0)
    ):
        raise ConfigError(f"Cannot keep a budget of {budget!r}: give a number that is not negative.")
    return _Tuning(Trials(module, config, loader, example_inputs, limit), budget, metric, progress).run()


class _Tuning:
    def __init__(
        self,
        trials: Trials,
        budget: float,
        metric: Callable[[GraphModule], float] | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._trials, self._budget, self._metric, self._progress = trials, budget, metric, progress
        self._float_score = 0.0 if metric is None else self._score(trials.module)
        self._layers = trials.layers()
        self._done = 0
        self._reasons: dict[str, str] = {}

    def run(self) -> Plan:
        """Try plans until one holds."""
        trials = self._trials
        if self._holds(trials.plan) or not self._layers:
            return trials.plan
        order = self._ranking()
        floats: list[str] = []
        for name in order:
            floats.append(name)
            if self._holds(self._plan(floats)):
                break
        else:
            raise QuantizationError(
                f"Cannot keep a budget of {self._budget}: with all layers in float the loss is larger still. Give a "
                f"metric that returns the same score for the same module.",
                code="FXP-Q011",
            )
        for name in floats[-2::-1]:  # The last one was needed.
            fewer = [other for other in floats if other != name]
            if self._holds(self._plan(fewer)):
                floats = fewer
        return trials.planned(self._plan(floats))

    def _plan(self, floats: Sequence[str]) -> Plan:
        plan = self._trials.plan
        for name in floats:
            plan = plan.with_mode(name, "float", self._reasons[name], decided_by="autotune")
        return plan

    def _ranking(self) -> list[str]:
        """Return the layers, the one that does the most harm alone first."""
        plans = {
            layer.node: self._trials.only([layer.node], "another one is measured") for layer in self._layers
        }
        self._trials.observe(plans.values())
        errors: dict[str, float] = {}
        for name, plan in plans.items():
            errors[name] = self._trials.error(plan).relative_error
            self._count()
            limit = (
                f"the metric may lose {self._budget:g}" if self._metric else f"{self._budget:g} is allowed"
            )
            self._reasons[name] = f"quantized alone, it makes a relative error of {errors[name]:.2g}; {limit}"
        return sorted(errors, key=errors.__getitem__, reverse=True)

    def _holds(self, plan: Plan) -> bool:
        if self._metric is None:
            loss = self._trials.error(plan).relative_error
        else:
            loss = self._float_score - self._score(self._trials.quantized(plan))
        self._count()
        return loss <= self._budget

    def _score(self, module: GraphModule) -> float:
        metric: Any = self._metric
        with torch.no_grad(), kept_random_state(), state_kept(module):
            score = float(metric(module))
        if not math.isfinite(score):
            raise QuantizationError(
                f"Cannot keep a budget: the metric returned {score}. Let it return a finite number, the greater the "
                f"better.",
                code="FXP-Q011",
            )
        return score

    def _count(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, 3 * len(self._layers))
