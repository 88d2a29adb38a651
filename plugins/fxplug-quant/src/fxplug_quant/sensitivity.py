"""What quantizing each layer does to the outputs: alone, and together with those before it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fxplug.errors import UnknownNameError
from fxplug_quant.trials import Trials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from fxplug_quant.config import QuantConfig
    from fxplug_quant.output_error import OutputError
    from fxplug_quant.plan import Plan

__all__ = ["SORT_KEYS", "LayerSensitivity", "Sensitivity", "sensitivity"]

SORT_KEYS = ("order", "sqnr", "cosine", "max-error")
"""By what layers can be sorted, the worst first; ``"order"``: as they are called."""


@dataclass(frozen=True)
class LayerSensitivity:
    """What quantizing one call of a layer does to the outputs of the module."""

    node: str
    """Name of the call."""
    operation: str
    """The class of the layer."""
    path: str
    """Where in the module it stands."""
    line: str
    """Line of the program, as ``file.py:12``."""
    mode: str
    """How it is quantized: one of `fxplug_quant.MODES`."""
    isolated: OutputError
    """With all other layers in float."""
    cumulative: OutputError | None
    """With all layers that are called before it quantized, too, and those behind it in float; None if not asked for."""

    def data(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        cumulative = None if self.cumulative is None else self.cumulative.data()
        texts = {name: getattr(self, name) for name in ("node", "operation", "path", "line", "mode")}
        return {**texts, "isolated": self.isolated.data(), "cumulative": cumulative}


@dataclass(frozen=True)
class Sensitivity:
    """A table of layers. ``print`` shows it as text."""

    layers: tuple[LayerSensitivity, ...]
    total: OutputError
    """With everything quantized as the plan says."""

    def sorted_by(self, key: str, *, cumulative: bool = False) -> Sensitivity:
        """Return the table with the worst layer first.

        Args:
            key: One of `SORT_KEYS`.
            cumulative: Whether the cumulative error counts, and not the isolated one.

        Raises:
            UnknownNameError: There is no such key.
        """
        if key not in SORT_KEYS:
            raise UnknownNameError("key to sort layers by", key, SORT_KEYS)
        if key == "order":
            return self

        def badness(layer: LayerSensitivity) -> float:
            error = layer.cumulative if cumulative and layer.cumulative is not None else layer.isolated
            return {"sqnr": -error.sqnr, "cosine": -error.cosine, "max-error": error.max_error}[key]

        return replace(self, layers=tuple(sorted(self.layers, key=badness, reverse=True)))

    def __str__(self) -> str:
        header = ("node", "operation", "mode", "SQNR dB", "cosine", "max error", "so far: SQNR dB", "line")
        rows = [header, *(_cells(layer) for layer in self.layers)]
        rows.append(("all", "", "", *_figures(self.total), "", ""))
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    def data(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"layers": [layer.data() for layer in self.layers], "total": self.total.data()}

    def to_json(self) -> str:
        """Return the table as JSON text."""
        return json.dumps(self.data(), indent=1)


def _cells(layer: LayerSensitivity) -> tuple[str, ...]:
    so_far = "" if layer.cumulative is None else f"{layer.cumulative.sqnr:.1f}"
    place = layer.line.replace("\\", "/").rpartition("/")[2]
    return (layer.node, layer.operation, layer.mode, *_figures(layer.isolated), so_far, place)


def _figures(error: OutputError) -> tuple[str, str, str]:
    return f"{error.sqnr:.1f}", f"{error.cosine:.6f}", f"{error.max_error:.3g}"


def sensitivity(
    module: nn.Module,
    plan: Plan | QuantConfig | Mapping[str, Any] | None,
    loader: Iterable[Any],
    *,
    example_inputs: Sequence[Any] | Tensor = (),
    cumulative: bool = True,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Sensitivity:
    """Measure what quantizing each layer does to the outputs of a module, which stays as it is.

    Each layer is quantized alone, as `convert` would do it, and the module runs on all batches: as many runs as there
    are layers, and as many again for the cumulative errors.

    Args:
        module: In evaluation mode.
        plan: What is to be measured: a plan, or what is wished.
        loader: Data to calibrate with and to run; see `Prepared.calibrate`. It is read once, and its batches are kept.
        example_inputs: Positional inputs of one call, or a single tensor; by default those of the first batch.
        cumulative: Whether each layer is also measured together with those before it.
        limit: How many batches are used at most.
        progress: Called after each measurement with how many there were, and how many there will be.

    Raises:
        QuantizationError: The module cannot be quantized, there is no data, or no output can be compared.
    """
    trials = Trials(module, plan, loader, example_inputs, limit)
    layers = trials.layers()
    names = [layer.node for layer in layers]
    alone = [trials.only([name], "the other layers are measured") for name in names]
    # The last of these is the plan itself, which is measured in any case.
    together = [trials.only(names[: end + 1], "it comes later") for end in range(len(names) - 1)]
    plans = [*alone, *(together if cumulative else ()), trials.plan]
    trials.observe(plans)
    errors: list[OutputError] = []
    for done, tried in enumerate(plans, start=1):
        errors.append(trials.error(tried))
        if progress is not None:
            progress(done, len(plans))
    so_far: list[OutputError | None] = [*errors[len(names) :]] if cumulative else [None] * len(names)
    rows = [
        LayerSensitivity(row.node, row.operation, row.path, row.line, row.mode, error, behind)
        for row, error, behind in zip(layers, errors, so_far, strict=False)
    ]
    return Sensitivity(tuple(rows), errors[-1])
