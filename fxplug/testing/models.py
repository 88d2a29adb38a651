"""Small models on which passes, backends and traces are checked."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.analyze.isolation import copy_module, copy_values, forked_random_state
from fxplug.api import symbolic_trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.execute import GraphModule
    from fxplug.plugins import PluginManager

__all__ = ["Sample", "canned_samples"]


@dataclass(frozen=True)
class Sample:
    """A model with inputs for it."""

    name: str
    model: nn.Module
    inputs: tuple[Any, ...]

    def trace(self, manager: PluginManager) -> GraphModule:
        """Return the graph of a copy of the model, as `manager` has it captured."""
        return symbolic_trace(copy_module(self.model), manager=manager)

    def own_inputs(self) -> tuple[Any, ...]:
        """Return a copy of the inputs."""
        return copy_values(self.inputs)


def canned_samples(more: Mapping[str, tuple[nn.Module, tuple[Any, ...]]] | None = None) -> list[Sample]:
    """Return the models, the same at every call, random state untouched.

    Args:
        more: Name -> (model, inputs) of models that are used as well.
    """
    with forked_random_state():
        torch.manual_seed(0)
        random.seed(0)
        samples = [Sample(name, kind().eval(), _inputs(name)) for name, kind in _MODELS.items()]
    return samples + [Sample(name, model, inputs) for name, (model, inputs) in (more or {}).items()]


def _inputs(name: str) -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 3, 8, 8),) if name == "convolution" else (torch.randn(4, 8),)


class _Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class _Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean = torch.randn(4)
        self.norm.running_var = torch.rand(4) + 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))


class _InPlace(nn.Module):
    """Writes to a value that is read again, and to a view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        before = y.sum()
        y.add_(1)
        y[0].mul_(3)
        return functional.relu(y, inplace=True) + before


class _TwoOutputs(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        y = torch.tanh(x)
        return y, {"sum": y.sum(-1), "sorted": x.sort(-1).values}


class _Shared(nn.Module):
    """Calls one layer twice, and reads its weight besides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.again = self.layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.layer(x)) + self.layer.weight.sum()


class _Needless(nn.Module):
    """Holds much that can go: values that nobody uses, identities, and what is done and undone."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.identity = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.exp(x)
        y = torch.relu(torch.relu(self.dropout(x)))
        return self.identity(y).neg().neg() * 1 + 0


class _WrittenBetween(nn.Module):
    """Repeats a call, and writes between the two or behind them: to what the first returned, and to the second."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(x)
        y.sub_(1)
        z = torch.relu(y)
        kept = torch.relu(torch.tanh(x))
        copied = torch.relu(kept)
        copied.add_(1)
        return z, kept + copied


class _Views(nn.Module):
    """Reads a value before and after views of it, and views of those, are written."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 0.5
        flat, column = y.view(-1), y[:, 0]
        first = torch.relu(column)
        flat[::2].mul_(-2)
        second = torch.relu(column)
        y.t().add_(1)
        return first - second, flat.sum() + torch.relu(y)


class _Spellings(nn.Module):
    """Makes equal calls as functions, as methods and as submodules, by position and by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(input=torch.relu(x.neg())).neg()
        z = functional.relu(input=y.relu(), inplace=False)
        total = torch.add(input=torch.tanh(input=x), other=z, alpha=2)
        return self.relu(self.relu(input=total)) + x.sum(dim=-1, keepdim=True).relu().relu()


class _SharedActivations(nn.Module):
    """Calls one submodule that writes in place, and one that does not, several times."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = nn.ReLU(inplace=True)
        self.again = self.writes
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(x)
        z = self.act(y - 1)
        y.mul_(-1)
        return self.again(self.writes(y.add(z))) + self.act(self.act(y) + z)


class _Regions(nn.Module):
    """Computes within nested regions; what is read outside was computed inside."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.relu(x)
        with torch.no_grad():
            z = torch.relu(y)
            with torch.enable_grad():
                read = torch.tanh(z) + y
            z.mul_(0.5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = torch.matmul(x, z.t())
        return read, torch.relu(torch.relu(z)) + y, rounded


class _Draws(nn.Module):
    """Draws random numbers more than once, also where nobody uses them; dropout draws none in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.rand_like(x)
        torch.rand_like(x)
        second = torch.rand_like(x)
        return self.dropout(torch.relu(torch.relu(x))) + first - 2 * second


_MODELS: dict[str, type[nn.Module]] = {
    "perceptron": _Perceptron,
    "convolution": _Convolution,
    "in-place": _InPlace,
    "two-outputs": _TwoOutputs,
    "shared": _Shared,
    "needless": _Needless,
    "written-between": _WrittenBetween,
    "views": _Views,
    "spellings": _Spellings,
    "shared-activations": _SharedActivations,
    "regions": _Regions,
    "draws": _Draws,
}
