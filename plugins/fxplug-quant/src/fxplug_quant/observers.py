"""What values are seen while a model is calibrated, and which range their steps should cover."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fxplug.errors import ConfigError, UnknownNameError
from fxplug_quant.affine import Affine, affine_of
from fxplug_quant.errors import QuantizationError

__all__ = [
    "OBSERVERS",
    "ChannelMaxima",
    "ChannelMeans",
    "Histogram",
    "MinMax",
    "MovingAverage",
    "Observer",
    "Percentile",
    "make_observer",
]

_BINS = 2048


class Observer:
    """Sees float values, batch after batch, and chooses the range of their steps.

    The least and the greatest value that was seen, as here, is the simplest choice.
    """

    name = "min-max"
    settings: tuple[str, ...] = ()
    """Attributes that say how it observes, and not what it saw."""

    def __init__(self) -> None:
        self.seen = 0
        """How many batches were seen."""
        self.low = 0.0
        self.high = 0.0

    def observe(self, values: Tensor) -> None:
        """See the values of one batch, which are finite."""
        low, high = (float(bound) for bound in values.aminmax())
        self.take(values, low, high)
        self.seen += 1

    def take(self, values: Tensor, low: float, high: float) -> None:
        """Remember what this observer needs of a batch."""
        self.widen(low, high)

    def widen(self, low: float, high: float) -> None:
        """Widen the range that was seen."""
        self.low = min(low, self.low) if self.seen else low
        self.high = max(high, self.high) if self.seen else high

    def range(self) -> tuple[float, float]:
        """Return the range that steps should cover."""
        return self.low, self.high

    def affine(self, levels: int) -> Affine:
        """Return steps from 0 to `levels` for the values that were seen."""
        return affine_of(*self.range(), levels)

    def state(self) -> dict[str, Any]:
        """Return the kind of observer, its settings and what was seen, so that calibration can go on elsewhere.

        All are plain values and tensors.
        """
        return {"observer": self.name, **_copied(vars(self))}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned.

        Raises:
            QuantizationError: It is of another kind of observer, or of one with other settings.
        """
        misfit = self.misfit(state)
        if misfit:
            raise QuantizationError(
                f"Cannot go on with calibration: {misfit}. Use the same observer, or calibrate anew.",
                code="FXP-Q006",
            )
        vars(self).update(_copied({name: state[name] for name in vars(self)}))

    def misfit(self, state: Any) -> str:
        """Return why this observer cannot go on from a state; empty when it can."""
        if not isinstance(state, Mapping) or "observer" not in state:
            return "the state does not say what kind of observer it is of"
        found: Mapping[str, Any] = state
        if found["observer"] != self.name:
            return f"the state is of the observer {found['observer']!r}, and this one is {self.name!r}"
        if set(found) != {"observer", *vars(self)}:
            names = sorted(map(str, set(found) ^ {"observer", *vars(self)}))
            return (
                f"the state of the observer {self.name!r} has other parts than this one's: {', '.join(names)}"
            )
        for name in self.settings:
            if found[name] != getattr(self, name):
                return (
                    f"the state is of the observer {self.name!r} with {name} = {found[name]!r}, and this one has "
                    f"{name} = {getattr(self, name)!r}"
                )
        for name, value in vars(self).items():
            if not _is_like(found[name], value):
                return f"{name!r} in the state is {_kind(found[name])}, and not {_kind(value)}"
        return ""


def _is_like(found: Any, own: Any) -> bool:
    """Return whether what a state says can stand where an observer has a value."""
    if isinstance(own, Tensor):
        return isinstance(found, Tensor) and (found.shape, found.dtype) == (own.shape, own.dtype)
    if isinstance(own, int):
        return isinstance(found, int) and not isinstance(found, bool) and found >= 0
    return not isinstance(own, float) or (isinstance(found, (int, float)) and math.isfinite(found))


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)}"
    return f"the {type(value).__name__} {value!r}"


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state that does not change while an observer goes on."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


class MinMax(Observer):
    """Covers everything that was seen."""


class MovingAverage(Observer):
    """Averages the bounds of the batches, the later ones counting more: one odd batch does less harm.

    Args:
        momentum: How much a new batch counts.
    """

    name = "moving-average"
    settings = ("momentum",)

    def __init__(self, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum

    def take(self, values: Tensor, low: float, high: float) -> None:
        """Move the bounds towards those of a batch."""
        share = self.momentum if self.seen else 1.0
        self.low += share * (low - self.low)
        self.high += share * (high - self.high)


class Histogram(Observer):
    """Counts values, and covers the range with which the mean squared error is least."""

    name = "histogram"

    def __init__(self) -> None:
        super().__init__()
        self.counts = torch.zeros(_BINS, dtype=torch.float64)

    def take(self, values: Tensor, low: float, high: float) -> None:
        """Count the values of a batch; what was counted before moves to the bins of the wider range."""
        former = (self.low, self.high)
        self.widen(low, high)
        if self.seen and former != (self.low, self.high):
            centres = _centres(*former)
            self.counts = self._count(centres, self.counts)
        self.counts += self._count(values.detach().float())

    def _count(self, values: Tensor, weights: Tensor | None = None) -> Tensor:
        if self.high <= self.low:
            total = float(values.numel()) if weights is None else float(weights.sum())
            return torch.zeros(_BINS, dtype=torch.float64).index_fill_(0, torch.tensor([0]), total)
        if weights is None:
            return torch.histc(values.reshape(-1), _BINS, self.low, self.high).double()
        places = ((values - self.low) / (self.high - self.low) * _BINS).long().clamp_(0, _BINS - 1)
        return torch.zeros(_BINS, dtype=torch.float64).index_add_(0, places, weights)

    def affine(self, levels: int) -> Affine:
        """Return the steps with the least mean squared error."""
        if self.high <= self.low:
            return affine_of(self.low, self.high, levels)
        centres = _centres(self.low, self.high)
        keep = self.counts > 0
        centres, counts = centres[keep], self.counts[keep]
        low, high = self.low, self.high
        # One end after the other: where most values are near one of them, it stays.
        high = min(_shares(high), key=lambda end: _error(low, end, levels, centres, counts))
        low = min(_shares(low), key=lambda end: _error(end, high, levels, centres, counts))
        return affine_of(low, high, levels)


class Percentile(Histogram):
    """Covers the middle of what was seen, and cuts off the rest.

    Args:
        share: How much of the values, in percent, lies within the range.
    """

    name = "percentile"
    settings = ("share",)

    def __init__(self, share: float = 99.99) -> None:
        super().__init__()
        self.share = share

    def range(self) -> tuple[float, float]:
        """Return the range in which the share of the values lies."""
        if self.high <= self.low:
            return self.low, self.high
        below = self.counts.cumsum(0) / self.counts.sum()
        rest = (1 - self.share / 100) / 2
        width = (self.high - self.low) / _BINS
        first = int((below <= rest).sum())
        last = int((below < 1 - rest).sum())
        return self.low + first * width, min(self.low + (last + 1) * width, self.high)

    def affine(self, levels: int) -> Affine:
        """Return the steps of that range."""
        return affine_of(*self.range(), levels)


def _channels_first(values: Tensor, channel: int) -> Tensor:
    """Return values as (channels, all others).

    Raises:
        ConfigError: They have no such dimension.
    """
    rank = values.dim()
    if not -rank <= channel < rank:
        has = f"it has {rank} dimension{'' if rank == 1 else 's'}, shape {list(values.shape)}"
        remedy = (
            f"Give a number from {-rank} to {rank - 1}" if rank else "A value without dimensions has none"
        )
        raise ConfigError(
            f"Cannot observe the channels of a value along dimension {channel}: {has}. {remedy}."
        )
    return values.detach().movedim(channel, 0).flatten(1)


class ChannelMaxima(Observer):
    """Sees the greatest magnitude in each channel.

    Args:
        channel: Which dimension the channels are, counted from behind. A value without it is a `ConfigError`.
    """

    name = "channel-maxima"
    settings = ("channel",)

    def __init__(self, channel: int = -1) -> None:
        super().__init__()
        self.channel = channel
        self.values: Tensor | None = None
        """One number for each channel."""

    def take(self, values: Tensor, low: float, high: float) -> None:
        """Look at a batch."""
        found = _channels_first(values, self.channel).abs().amax(1)
        super().take(values, low, high)
        self.values = found if self.values is None else torch.maximum(self.values, found)


class ChannelMeans(Observer):
    """Sees the mean of each channel.

    Args:
        channel: Which dimension the channels are, counted from behind. A value without it is a `ConfigError`.
    """

    name = "channel-means"
    settings = ("channel",)

    def __init__(self, channel: int = -1) -> None:
        super().__init__()
        self.channel = channel
        self._sums: Tensor | float = 0.0
        self._count = 0

    def take(self, values: Tensor, low: float, high: float) -> None:
        """Look at a batch."""
        rows = _channels_first(values, self.channel).double()
        super().take(values, low, high)
        self._sums = self._sums + rows.sum(1)
        self._count += rows.shape[1]

    def means(self) -> list[float]:
        """Return one number for each channel; none before anything was seen."""
        return (self._sums / self._count).tolist() if isinstance(self._sums, Tensor) else []


def _shares(end: float) -> list[float]:
    return [end * share for share in torch.linspace(1.0, 0.3, 29, dtype=torch.float64).tolist()]


def _error(low: float, high: float, levels: int, centres: Tensor, counts: Tensor) -> float:
    affine = affine_of(low, high, levels)
    steps = (centres / affine.scale).round().add_(affine.zero_point).clamp_(0, levels)
    return float((((steps - affine.zero_point) * affine.scale - centres).square_() * counts).sum())


def _centres(low: float, high: float) -> Tensor:
    width = (high - low) / _BINS
    return low + width * (torch.arange(_BINS, dtype=torch.float64) + 0.5)


OBSERVERS: dict[str, type[Observer]] = {
    kind.name: kind for kind in (MinMax, MovingAverage, Histogram, Percentile)
}
"""Name -> class."""


def make_observer(text: str) -> Observer:
    """Return a new observer.

    Args:
        text: A name from `OBSERVERS`; ``"percentile"`` and ``"moving-average"`` take a number behind a colon, such as
            ``"percentile:99.9"``.

    Raises:
        UnknownNameError: There is no such observer.
        ConfigError: It is no text, or the number is none, or out of range.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - it may come from JSON
        raise ConfigError(
            f"Cannot observe with {text!r}: the name of an observer is text. Give one of {', '.join(OBSERVERS)}."
        )
    name, _, number = text.partition(":")
    if name not in OBSERVERS:
        raise UnknownNameError("observer", name, OBSERVERS)
    if not number:
        return OBSERVERS[name]()
    ranges = {"percentile": (50.0, 100.0), "moving-average": (0.0, 1.0)}
    try:
        value = float(number)
        low, high = ranges[name]
        if low < value <= high:
            return Percentile(value) if name == "percentile" else MovingAverage(value)
    except (KeyError, ValueError):
        pass
    raise ConfigError(
        f"Cannot observe with {text!r}: a number may follow percentile (above 50, at most 100) and moving-average "
        f"(above 0, at most 1). Give one of these, or the name alone."
    )
