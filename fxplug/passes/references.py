"""Running a module on its reference inputs, so that what a pass made of it can be compared with what it was."""

from __future__ import annotations

import math
import random
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from fxplug.analyze.comparison import Comparison, describe
from fxplug.analyze.isolation import copy_values, forked_random_state, tensors_in, tensors_of
from fxplug.analyze.runs import Run, compare_gradients, compare_runs, observe
from fxplug.errors import FxplugError
from fxplug.execute import GraphModule
from fxplug.passes.transaction import Snapshot
from fxplug.semantics.random_state import random_state, seed_random_state, set_random_state
from fxplug.semantics.storages import checksum

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from fxplug.analyze.comparison import Tolerance

__all__ = ["Kept", "Observation", "Parameters", "References", "other_values", "seeded"]


@dataclass(frozen=True)
class Observation:
    """What a module does on the reference inputs."""

    runs: tuple[Run, ...]
    """One for each set of inputs."""
    gradient_runs: tuple[Run, ...]
    """The same with gradients; empty below the level at which they count."""
    parameters: Mapping[str, torch.Tensor]
    """By their paths; empty, as what follows, where gradients do not count."""
    checksums: Mapping[str, bytes]
    """Of the values of these."""
    trains: Mapping[str, bool]
    """Which of them required a gradient."""
    gradient_error: Exception | None = None
    """Why a run with gradients failed."""


class Kept:
    """A module as it is, with a copy of all memory, and the way back to it.

    Args:
        module: What is kept.
    """

    def __init__(self, module: GraphModule) -> None:
        self._snapshot = Snapshot(module)
        self._snapshot.journal.save_all()
        self._generators = [(generator, random_state(generator)) for generator in _generators_of(module)]
        self.buffers = {
            name: tensor.detach().clone() for name, tensor in tensors_of(module) if not is_lazy(tensor)
        }
        """Path -> value of every buffer, and of every tensor that is a plain attribute."""

    def restore(self) -> None:
        """Make the module what it was.

        Raises:
            FxplugError: Something could not be undone.
        """
        left = self._snapshot.restore()
        for generator, state in self._generators:
            set_random_state(state, generator)
        if left:
            raise FxplugError(
                f"Cannot undo what a run of the module did to it ({left[0]}): capture the model again."
            )


class References:
    """The inputs on which a module is run, and how.

    Args:
        sets: Positional arguments of one call each; copied, so that nobody changes them.
        gradients: Whether the module also runs with gradients. Every floating-point tensor among the inputs then
            requires one.
    """

    def __init__(self, sets: Sequence[tuple[Any, ...]], *, gradients: bool) -> None:
        self.sets = [copy_values(tuple(inputs)) for inputs in sets]
        self.gradients = gradients
        self._differentiable = [_differentiable(inputs) for inputs in self.sets] if gradients else []

    def add(self, inputs: tuple[Any, ...]) -> None:
        """Take in one more set."""
        self.sets.append(inputs)
        if self.gradients:
            self._differentiable.append(_differentiable(inputs))

    def drop(self, count: int) -> None:
        """Forget all sets behind the first `count`."""
        del self.sets[count:], self._differentiable[count:]

    def give_up_input_gradients(self) -> None:
        """Let only those inputs require a gradient that came so."""
        self._differentiable = list(self.sets)

    def observe(self, module: GraphModule) -> Observation:
        """Run the module on every set of inputs, and leave it, the inputs and the random state as they are."""
        module.forward  # noqa: B018 - compiled before the attributes are kept, it need not be compiled again
        kept = Kept(module)
        parameters = {
            name: parameter
            for name, parameter in module.named_parameters(remove_duplicate=False)
            if not is_lazy(parameter)
        }
        sources = {f"parameter {name}": parameter for name, parameter in parameters.items()}
        with seeded():
            runs = [observe(module, inputs, kept) for inputs in self.sets]
            gradient_runs, error = self._with_gradients(module, kept, sources)
        if not self.gradients:
            return Observation(tuple(runs), (), {}, {}, {})
        checksums = {name: checksum(parameter) for name, parameter in parameters.items()}
        trains = {name: parameter.requires_grad for name, parameter in parameters.items()}
        return Observation(tuple(runs), gradient_runs, parameters, checksums, trains, error)

    def _with_gradients(
        self, module: GraphModule, kept: Kept, sources: Mapping[str, torch.Tensor]
    ) -> tuple[tuple[Run, ...], Exception | None]:
        try:
            return tuple([observe(module, inputs, kept, sources) for inputs in self._differentiable]), None
        except Exception as error:  # Values are compared first, and tell more.
            return (), error

    def differences(
        self, before: Observation, after: Observation, tolerance: Tolerance, parameters: Parameters
    ) -> Iterator[Comparison]:
        """Compare what a module did with what it does now.

        Args:
            before: What is right.
            after: What is judged.
            tolerance: What is close enough.
            parameters: What became of the parameters.
        """
        for number, inputs in enumerate(self.sets):
            entries = list(compare_runs(inputs, before.runs[number], after.runs[number], tolerance))
            if before.gradient_runs and after.gradient_runs:
                one, other = before.gradient_runs[number], after.gradient_runs[number]
                gradients = {**other.gradients, **parameters.renamed(other.gradients)}
                entries += compare_gradients(
                    one, replace(other, gradients=gradients), tolerance, parameters.left_out
                )
            where = f"reference inputs {number + 1}: " if len(self.sets) > 1 else ""
            yield from (replace(entry, path=f"{where}{entry.path}") for entry in entries)


class Parameters:
    """What became of the parameters that required a gradient.

    One that has its name and its values still is the same, and so is one that is the same object under another name:
    its gradient has to be what it was. One whose values are others, or that is gone, was replaced: its gradient means
    something else now, and is left out.

    Args:
        before: What was.
        after: What is.
    """

    def __init__(self, before: Observation, after: Observation) -> None:
        self._names: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        replaced: list[str] = []
        names = {id(parameter): name for name, parameter in reversed([*after.parameters.items()])}
        buffers = after.runs[0].buffers if after.runs else {}
        for name, parameter in before.parameters.items():
            if not before.trains[name]:
                continue
            if after.checksums.get(name) == before.checksums[name]:
                if not after.trains[name]:
                    self._problems[name] = "it requires no gradient any more, and has the values that it had"
            elif name not in after.parameters and id(parameter) in names:
                self._names[name] = names[id(parameter)]
            elif name in buffers:
                self._problems[name] = "it is no parameter any more, but a buffer"
            else:
                replaced.append(name)
        self.left_out = frozenset(f"parameter {name}" for name in (*replaced, *self._problems))
        """Gradients that are not compared."""
        self._lost = [] if not replaced or _taken_up(before, after) else replaced
        self.replaced = tuple(replaced)
        """Names of those that are gone, or have other values."""

    def renamed(self, gradients: Mapping[str, Any]) -> dict[str, Any]:
        """Return the gradients of parameters that have another name now, by the names that they had."""
        return {f"parameter {old}": gradients.get(f"parameter {new}") for old, new in self._names.items()}

    def faults(self, before: Observation) -> Iterator[Comparison]:
        """Yield what must not have become of a parameter that had a gradient."""
        lost = dict.fromkeys(
            self._lost, "it is gone, and no parameter that is new or has other values takes its place"
        )
        for name, reason in {**self._problems, **lost}.items():
            found = [run.gradients.get(f"parameter {name}") for run in before.gradient_runs]
            if any(gradient is not None and bool(torch.any(gradient)) for gradient in found):
                text = describe(before.parameters[name])
                yield Comparison(f"parameter {name}", text, "no gradient", math.inf, math.inf, reason=reason)


def _taken_up(before: Observation, after: Observation) -> bool:
    """Return whether a parameter that trains is new, or has values that it did not have."""
    return any(
        trains and after.checksums[name] != before.checksums.get(name)
        for name, trains in after.trains.items()
    )


_RANDOM_STATE = threading.RLock()


@contextmanager
def seeded() -> Generator[None]:
    """Let everything that draws random numbers start from the same state while the context lasts.

    One thread at a time: most generators belong to the whole process.
    """
    numpy_random = getattr(sys.modules.get("numpy"), "random", None)
    with _RANDOM_STATE, forked_random_state():
        seed_random_state(0)
        random.seed(0)
        if numpy_random is not None:
            numpy_random.seed(0)
        yield


def _generators_of(module: GraphModule) -> Iterator[torch.Generator]:
    for part in module.modules():
        held = [*vars(part).values()]
        if isinstance(part, GraphModule):
            held += part.graph.lifted.values()
        yield from (value for value in held if isinstance(value, torch.Generator))


def _differentiable(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    own = copy_values(inputs)
    for tensor in tensors_in(own):
        if (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_inference():
            tensor.requires_grad_()
    return own


def other_values(inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return inputs of the same shapes and dtypes with other values; None where no tensor can have others.

    Floating-point numbers are drawn between the smallest and the largest one that was given, or from the normal
    distribution where all are the same; integers and booleans change places.
    """
    own = copy_values(inputs)
    generator = torch.Generator().manual_seed(0)
    found = False
    with torch.no_grad():
        for tensor in tensors_in(own):
            if tensor.layout is torch.strided and not tensor.is_inference() and not tensor.is_quantized:
                tensor.copy_(_drawn(tensor.detach().cpu(), generator))
                found = found or tensor.numel() > 0
    return own if found else None


def _drawn(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.is_complex():
        parts = [_drawn(part.contiguous(), generator) for part in (tensor.real, tensor.imag)]
        return torch.complex(*parts)
    if not tensor.is_floating_point():
        order = torch.randperm(tensor.numel(), generator=generator)
        return tensor.flatten()[order].reshape(tensor.shape)
    numbers = tensor.double()
    finite = numbers[numbers.isfinite()]
    if finite.numel() and bool(finite.min() < finite.max()):
        drawn = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        return finite.min() + drawn * (finite.max() - finite.min())
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
