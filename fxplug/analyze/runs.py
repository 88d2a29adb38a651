"""Running a module without leaving a trace, and comparing two such runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.comparison import Comparison, Tolerance, compare, describe
from fxplug.analyze.isolation import copy_values, forked_random_state, tensors_in, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from fxplug.analyze.isolation import SavedState

__all__ = ["Run", "compare_runs", "observe"]


@dataclass(frozen=True)
class Run:
    """What one call of a module gave and did."""

    output: Any
    inputs: tuple[Any, ...]
    """As the call left them."""
    buffers: Mapping[str, torch.Tensor]
    """As the call left them."""
    changed: frozenset[str]
    """The buffers that it changed."""


def observe(module: nn.Module, inputs: tuple[Any, ...], saved: SavedState) -> Run:
    """Run a module on copies of the inputs, from the random state as it is, and undo what it did to itself."""
    arguments = copy_values(inputs)
    try:
        with forked_random_state([*module.parameters(), *tensors_in(inputs)]), torch.no_grad():
            # A copy: what is returned may be a buffer, or one of the inputs.
            output = _independent(module(*arguments))
        buffers = {name: tensor.detach().clone() for name, tensor in tensors_of(module)}
    finally:
        saved.restore()
    changed = {
        name
        for name, tensor in buffers.items()
        if name not in saved.buffers or not torch.equal(tensor, saved.buffers[name])
    }
    return Run(output, arguments, buffers, frozenset(changed))


def _independent(output: Any) -> Any:
    try:
        return copy_values(output)
    except Exception:  # Something foreign among the outputs, which no buffer and no input can be.
        return output


def compare_runs(given: tuple[Any, ...], eager: Run, run: Run, tolerance: Tolerance) -> Iterator[Comparison]:
    """Compare what two modules returned, and what the runs did to inputs and buffers.

    Args:
        given: The inputs, as neither run has seen them.
        eager: What is right.
        run: What is judged.
        tolerance: What is close enough.
    """
    yield from compare(eager.output, run.output, tolerance)
    exact = Tolerance(0.0, 0.0)
    written = {entry.path for entry in compare(given, eager.inputs, exact, "input") if not entry.passed}
    for entry in compare(eager.inputs, run.inputs, tolerance, "input"):
        if entry.path in written or not entry.passed:
            yield entry
    for name in sorted(eager.changed | run.changed):
        path = f"buffer {name}"
        if name in eager.buffers and name in run.buffers:
            yield from compare(eager.buffers[name], run.buffers[name], tolerance, path)
        elif name in eager.buffers:
            text = describe(eager.buffers[name])
            reason = "a call of the model updates it, and the optimised module does not have it"
            yield Comparison(path, text, "nothing", math.inf, math.inf, reason=reason)
