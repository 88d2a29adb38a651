"""A case of the operator suite: an ATen operator with arguments of any dtype and rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "DTYPES",
    "FLOATS",
    "INTEGERS",
    "NUMBERS",
    "RANKS",
    "Call",
    "Draw",
    "OperatorCase",
    "call",
    "dtype_name",
]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
NUMBERS = (*FLOATS, *INTEGERS)
DTYPES = (*NUMBERS, torch.bool)
"""All that the suite knows."""
RANKS = (0, 2, 4)

_SIZES = (2, 3, 4, 5, 3)
_STEPS = 8
_LARGEST = 6


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Call:
    """Arguments of an operator. A tensor is an input of the program, an `nn.Parameter` a weight that it holds."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


def call(*args: Any, **kwargs: Any) -> Call:
    """Return the arguments of an operator."""
    return Call(args, kwargs)


class Draw:
    """Draws the values of a case; the same every time.

    Numbers are multiples of an eighth, which every dtype represents, so that eager and an engine start from the same.

    Args:
        dtype: Of values, unless a method says otherwise.
        rank: How many dimensions values have.
        batch: The first size.
        seed: Another one draws other inputs; weights stay.
    """

    def __init__(self, dtype: torch.dtype, rank: int, batch: int = 2, seed: int = 0) -> None:
        self.dtype = dtype
        self.rank = rank
        self.batch = batch
        self._inputs = torch.Generator().manual_seed(seed)
        self._weights = torch.Generator().manual_seed(99)

    @property
    def shape(self) -> tuple[int, ...]:
        """The usual sizes: as many as there are dimensions, the batch first."""
        return (self.batch, *_SIZES[1:])[: self.rank]

    def tensor(self, *sizes: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return any values; the usual sizes where none are given."""
        return _values(self._inputs, sizes or self.shape, dtype or self.dtype)

    def image(self, channels: int, *sizes: int) -> torch.Tensor:
        """Return any values with channels after the batch."""
        return self.tensor(self.batch, channels, *sizes)

    def scalar(self) -> torch.Tensor:
        """Return a tensor of no dimensions."""
        return _values(self._inputs, (), self.dtype)

    def positive(self, *sizes: int) -> torch.Tensor:
        """Return values above zero."""
        values = self.tensor(*sizes)
        return (values if values.dtype is torch.uint8 else values.abs()) + 1

    def nonzero(self, *sizes: int) -> torch.Tensor:
        """Return values of either sign, none of them zero or close to it."""
        values = self.tensor(*sizes)
        return (
            torch.ones_like(values)
            if values.dtype is torch.bool
            else values + torch.where(values < 0, -1, 1).to(values.dtype)
        )

    def unit(self, *sizes: int) -> torch.Tensor:
        """Return values between -1 and 1, both excluded."""
        values = self.tensor(*sizes)
        return (values / 8).clamp(-0.875, 0.875).to(values.dtype)

    def distinct(self, *sizes: int) -> torch.Tensor:
        """Return values of which no two are equal; a longer last dimension than usual where there are several."""
        wanted = torch.Size(sizes or (*self.shape[:-1], self.shape[-1] + 4) if self.rank > 1 else self.shape)
        order = torch.randperm(wanted.numel(), generator=self._inputs).reshape(wanted)
        if self.dtype.is_floating_point:
            return ((order - wanted.numel() // 2) / _STEPS * 2).to(self.dtype)
        return order.to(self.dtype)

    def special(self, *sizes: int) -> torch.Tensor:
        """Return values among which there are infinities and not-a-number."""
        values = self.tensor(*sizes)
        picked = torch.randint(0, 6, tuple(values.shape), generator=self._inputs)
        for number, value in enumerate((float("inf"), -float("inf"), float("nan"))):
            values = values.masked_fill(picked == number, value)
        return values

    def sparse(self, *sizes: int, share: float = 0.6) -> torch.Tensor:
        """Return values of which a share is zero."""
        values = self.nonzero(*sizes)
        return values.masked_fill(torch.rand(values.shape, generator=self._inputs) < share, 0)

    def pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return two values that are equal in some places."""
        values = self.tensor()
        return values, torch.where(
            torch.rand(values.shape, generator=self._inputs) < 0.4, values, self.tensor()
        )

    def mask(self, *sizes: int) -> torch.Tensor:
        """Return truth values."""
        return self.tensor(*sizes, dtype=torch.bool)

    def index(self, limit: int, *sizes: int) -> torch.Tensor:
        """Return places below `limit`."""
        return torch.randint(0, limit, sizes or self.shape, generator=self._inputs)

    def places(self, dim: int, *sizes: int) -> torch.Tensor:
        """Return places along a dimension of `sizes`, none of them twice."""
        wanted = sizes or self.shape
        return torch.rand(wanted, generator=self._inputs).argsort(dim)

    def weight(self, *sizes: int) -> nn.Parameter:
        """Return values that the program holds, the same for every seed."""
        values = _values(self._weights, sizes, self.dtype)
        return nn.Parameter(values / 4 if values.is_floating_point() else values, requires_grad=False)

    def positive_weight(self, *sizes: int) -> nn.Parameter:
        """Return such values above zero."""
        return nn.Parameter(self.weight(*sizes).abs() + 0.5, requires_grad=False)

    def held(self, values: Any, dtype: torch.dtype = torch.int64) -> nn.Parameter:
        """Return given values that the program holds."""
        return nn.Parameter(torch.tensor(values, dtype=dtype), requires_grad=False)


def _values(generator: torch.Generator, sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(sizes, generator=generator) > 0.5
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -_LARGEST
        return torch.randint(low, low + 2 * _LARGEST + 1, sizes, generator=generator).to(dtype)
    values = (torch.randn(sizes, generator=generator) * 1.5 * _STEPS).round() / _STEPS
    return values.clamp(-_LARGEST, _LARGEST).to(dtype)


@dataclass(frozen=True)
class OperatorCase:
    """One way of calling one operator."""

    operator: str
    """With its overload: ``"aten.add.Tensor"``."""
    arguments: Callable[[Draw], Call]
    """Returns what it is called with."""
    dtypes: tuple[torch.dtype, ...] = FLOATS
    """Those that PyTorch computes it in on the CPU; the first is tried in every rank, the others in one."""
    ranks: tuple[int, ...] = RANKS
    """Of the first input."""
    note: str = ""
    """What is special about this way; empty for the usual one."""
    results: tuple[int, ...] | None = None
    """Which results count, of an operator that returns several; None for all."""
    dynamic: bool = True
    """Whether the first size of all inputs is a batch, so that it may be left open."""
    rtol: float | None = None
    """None: by dtype, as `fxplug.Tolerance` has it."""
    atol: float | None = None
    """None: by dtype."""

    @property
    def name(self) -> str:
        """The operator, and the note where there is one."""
        return f"{self.operator} ({self.note})" if self.note else self.operator

    @property
    def target(self) -> Any:
        """The overload; None where the installed PyTorch does not have it."""
        found: Any = torch.ops
        for part in self.operator.split("."):
            found = getattr(found, part, None)
        return found
