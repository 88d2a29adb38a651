"""Running a module without leaving a trace, and comparing two such runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from fxplug.analyze.comparison import Comparison, Tolerance, compare, describe
from fxplug.analyze.isolation import copy_values, forked_random_state, tensors_in, tensors_of
from fxplug.semantics.deep_copies import deep_copy
from fxplug.semantics.internals import is_fake
from fxplug.semantics.storages import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

__all__ = ["Run", "Saved", "compare_gradients", "compare_runs", "gradients_of", "observe"]


class Saved(Protocol):
    """A module as it was, and the way back to it."""

    buffers: dict[str, torch.Tensor]
    """Path -> value of every buffer, and of every tensor that is a plain attribute."""

    def restore(self) -> Any:
        """Make the module what it was."""


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
    gradients: Mapping[str, torch.Tensor | None] = field(default_factory=dict[str, "torch.Tensor | None"])
    """Name of what requires a gradient -> its gradient, None where the outputs do not depend on it."""
    requires_grad: tuple[bool, ...] = ()
    """Of each tensor in the output, in order; empty where gradients were not asked for."""
    kept: frozenset[str] = frozenset()
    """Those of the buffers that the call itself put there, as plain attributes that held no tensor before."""


def observe(
    module: nn.Module,
    inputs: tuple[Any, ...],
    saved: Saved,
    sources: Mapping[str, torch.Tensor] | None = None,
) -> Run:
    """Run a module on copies of the inputs, from the random state as it is, and undo what it did to itself.

    Args:
        module: What runs.
        inputs: Its positional arguments.
        saved: The module as it is.
        sources: Where given, the run is one with gradients: of these tensors, by their names, and of all tensors among
            the inputs that require one.
    """
    leaves, arguments = _own_inputs(inputs, differentiable=sources is not None)
    gradients: dict[str, torch.Tensor | None] = {}
    flags: tuple[bool, ...] = ()
    try:
        with (
            forked_random_state(),
            torch.set_grad_enabled(sources is not None),
        ):
            output = module(*arguments)
            if sources is not None:
                flags = tuple(tensor.requires_grad for tensor in tensors_in(output))
                gradients = gradients_of(output, {**leaves, **sources})
            # A copy: what is returned may be a buffer, or one of the inputs.
            output = _independent(output)
        buffers = {name: tensor.detach().clone() for name, tensor in tensors_of(module)}
    finally:
        saved.restore()
    changed = {
        name
        for name, tensor in buffers.items()
        if name not in saved.buffers or _is_other(tensor, saved.buffers[name])
    }
    registered = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    kept = buffers.keys() - saved.buffers.keys() - registered
    return Run(output, arguments, buffers, frozenset(changed), gradients, flags, frozenset(kept))


def _is_other(tensor: torch.Tensor, before: torch.Tensor) -> bool:
    if is_fake(tensor):
        return False  # Nobody knows; where nothing is computed, nothing is compared.
    if tensor.layout is torch.strided and before.layout is torch.strided and not tensor.is_meta:
        return not torch.equal(tensor, before)
    return checksum(tensor) != checksum(before)


def _own_inputs(
    inputs: tuple[Any, ...], *, differentiable: bool
) -> tuple[dict[str, torch.Tensor], tuple[Any, ...]]:
    """Return copies of the inputs, and those in them that require a gradient, by name.

    The copies that are handed out are no leaves of autograd then, so that a program may write to them.
    """
    arguments = copy_values(inputs)
    if not differentiable:
        return {}, arguments
    with torch.enable_grad():
        known = {id(tensor): tensor.clone() for tensor in tensors_in(arguments) if tensor.requires_grad}
        leaves = {
            f"input {number}": tensor
            for number, tensor in enumerate(tensors_in(arguments))
            if tensor.requires_grad
        }
        return leaves, deep_copy(arguments, {**known})


def gradients_of(output: Any, sources: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """Return the gradients of all results with regard to those of `sources` that require one.

    Raises:
        RuntimeError: The results cannot be differentiated, or not so.
    """
    wanted = {name: tensor for name, tensor in sources.items() if tensor.requires_grad}
    results = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
    if not wanted or not results:
        return {}
    # Weighted, so that the results of a softmax do not cancel out.
    weights = [
        torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape).to(result) for result in results
    ]
    given: list[torch.Tensor] | None = weights
    if all(type(result) is torch.Tensor and result.layout is torch.strided for result in results):
        # The same gradients. To compare sizes with those of weights that it is given, PyTorch imports SymPy: a second.
        results, given = list(map(_weighted_sum, results, weights)), None
    gradients = torch.autograd.grad(results, list(wanted.values()), given, allow_unused=True)
    return {
        name: None if gradient is None else gradient.detach()
        for name, gradient in zip(wanted, cast("tuple[torch.Tensor | None, ...]", gradients), strict=True)
    }


def _weighted_sum(result: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return a real number whose gradient with regard to `result` is `weight`, which has no imaginary part."""
    total = (result * weight).sum()
    return total.real if total.is_complex() else total


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
        elif name in eager.buffers and name not in eager.kept:
            # What a program keeps for others to look at is no state of it; that it is not kept, the capture has told.
            text = describe(eager.buffers[name])
            reason = "a call of the model updates it, and the optimised module does not have it"
            yield Comparison(path, text, "nothing", math.inf, math.inf, reason=reason)


def compare_gradients(
    before: Run, after: Run, tolerance: Tolerance, left_out: frozenset[str] = frozenset()
) -> Iterator[Comparison]:
    """Compare the gradients of two runs, and which results can be differentiated.

    A gradient is a sum of many terms, which may cancel out: `rtol` also allows that share of the largest magnitude
    in it.

    Args:
        before: What is right.
        after: What is judged.
        tolerance: What is close enough.
        left_out: Names of gradients that are not compared.
    """
    for number, (wanted, found) in enumerate(zip(before.requires_grad, after.requires_grad, strict=False)):
        if wanted != found:
            path = f"output tensor {number}"
            reason = f"its requires_grad is {found} and should be {wanted}"
            yield Comparison(path, f"requires_grad={wanted}", f"requires_grad={found}", reason=reason)
    for name, gradient in before.gradients.items():
        if name in left_out:
            continue
        path, other = f"gradient of {name}", after.gradients.get(name)
        if gradient is None or other is None:
            yield from _compare_missing(gradient, other, path)
        else:
            share = tolerance.share + tolerance.of(gradient.dtype)[0]
            yield from compare(gradient, other, replace(tolerance, share=share), path)


def _compare_missing(
    gradient: torch.Tensor | None, other: torch.Tensor | None, path: str
) -> Iterator[Comparison]:
    """Compare two gradients of which one is missing: none at all is as good as zeros."""
    present = other if gradient is None else gradient
    if present is None or not torch.any(present):
        yield Comparison(path, "no gradient", "no gradient")
        return
    wanted, found = ("no gradient" if value is None else describe(value) for value in (gradient, other))
    text = "there is one and should be none" if gradient is None else "there is none any more"
    yield Comparison(path, wanted, found, math.inf, math.inf, reason=text)
