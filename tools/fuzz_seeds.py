"""The good files that tools/fuzz_storage.py damages: the golden ones, and one of each kind of module."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import fxplug
from fxplug.execute.fused import FusedConv2d, FusedLinear
from fxplug.lower import Backend, BackendRecord, Support, lower
from fxplug.plugins import PluginCandidate, PluginManager, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug import GraphModule

__all__ = ["manager", "write_seeds"]

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "storage" / "golden"


# Its annotations are no text: what checks options would compile it, whatever a file says.
_Options = dataclasses.make_dataclass("_Options", [("level", int, 1)], frozen=True)


class _Engine(nn.Module):
    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def forward(self, *inputs: Any) -> Any:
        return self.program(*inputs)


class _Keeping(Backend):
    """A backend whose engine is a copy of the program, and whose artefact is a few bytes."""

    def __init__(self, level: int = 1) -> None:
        self.options = _Options(level)

    def supports(self, node: Any, context: Any) -> Support:
        return Support(True, "")

    def compile(self, subgraph: Any, example_inputs: Any, options: Any) -> Any:
        return _Engine(copy.deepcopy(subgraph))

    def environment(self) -> dict[str, str]:
        return {"keeping": "1"}

    def artefact(self, engine: Any) -> bytes:
        return bytes(range(100))

    def restore(self, artefact: bytes) -> Any:
        raise AssertionError("no file is run here")


class _Whole(nn.Module):
    """Submodules of many kinds, tied weights, guards and a region."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.memory = nn.LSTM(4, 4, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("mask", torch.ones(4, dtype=torch.bool), persistent=False)

    def forward(self, chosen: torch.Tensor) -> dict[str, Any]:
        x = self.words(chosen)
        if chosen.shape[0] > 1:
            x = self.norm(self.attention(x, x, x, need_weights=False)[0] + x)
        with torch.no_grad():
            weights = x.softmax(-1)[..., 1:]
        return {"scores": self.head(self.memory(x)[0]), "more": (weights, x.masked_fill(~self.mask, -0.0))}


class _Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = FusedConv2d(nn.Conv2d(2, 2, 1), "leaky_relu", (0.1,), layout="contiguous")
        self.linear = FusedLinear(nn.Linear(2, 2), "relu", add=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.conv(x), x)


def _nested(batch: dict[str, Any], *rest: torch.Tensor, scale: float = 2.0, **options: torch.Tensor) -> Any:
    sums = {name: value + sum(rest) for name, value in options.items()}
    return {"sums": sums, "pairs": [(first * second * scale, None) for first, second in batch["pairs"]]}


def _layers() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 16, 1), nn.ReLU(), nn.Conv2d(16, 2, 1), nn.Flatten(), nn.Linear(32, 16))


def _golden_plugin(golden: Any) -> PluginCandidate:
    provisions, module = golden.provisions(), types.ModuleType("golden_plugin")
    hooks: dict[str, Callable[[], Any]] = {
        "fxplug_register_storage_targets": lambda: [offer.record for offer in provisions.targets],
        "fxplug_register_constants": lambda: [offer.record for offer in provisions.constants],
        "fxplug_register_backends": lambda: [BackendRecord("keeping", _Keeping, "Keeps.", options=_Options)],
    }
    for name, hook in hooks.items():
        hook.__name__ = name
        setattr(module, name, hookimpl(hook))
    return PluginCandidate.of_module(module, "golden")


def manager() -> PluginManager:
    """Return the plugins that the files name: that of the golden files, and fxplug-quant where it is installed."""
    sys.path.insert(0, str(GOLDEN.parent))
    candidates = [_golden_plugin(importlib.import_module("golden_module"))]
    try:
        quant = importlib.import_module("fxplug_quant.plugin")
    except ImportError:
        return PluginManager(candidates=candidates, environ={})
    return PluginManager(candidates=[*candidates, PluginCandidate.of_module(quant, "quant")], environ={})


def write_seeds(folder: Path, plugins: PluginManager) -> list[Path]:
    """Write the files that are made anew into a folder; return these and the golden ones, in a fixed order."""
    torch.manual_seed(0)
    one = torch.ones(2)
    image = torch.linspace(-1, 1, 64).reshape(2, 2, 4, 4)
    modules: dict[str, GraphModule] = {
        "whole": fxplug.trace(_Whole().eval(), (torch.ones(2, 3, dtype=torch.long),), manager=plugins),
        "nested": fxplug.trace(
            _nested, ({"pairs": [(one, one)]}, one), example_kwargs={"bias": one}, manager=plugins
        ),
        "fused": fxplug.symbolic_trace(_Fused().eval(), manager=plugins),
    }
    plain = fxplug.symbolic_trace(_layers().eval(), manager=plugins)
    modules["lowered"] = lower(plain, _Keeping(), (image,), name="keeping").module
    if any(info.name == "quant" for info in plugins.plugin_infos()):
        modules |= _quantized(image)
    paths: list[Path] = []
    for name, module in modules.items():
        paths.append(folder / f"{name}.fxplug")
        fxplug.save(module, paths[-1], manager=plugins)
    return [*sorted(GOLDEN.glob("*.fxplug")), *paths]


def _quantized(image: torch.Tensor) -> dict[str, GraphModule]:
    quant: Any = importlib.import_module("fxplug_quant")
    found: dict[str, GraphModule] = {}
    for mode in ("static-int8", "dynamic-int8", "weight-int4"):
        prepared = quant.prepare(_layers().eval(), {"mode": mode, "group_size": 32}, image)
        found[mode] = quant.convert(prepared.calibrate([image]) if prepared.observers else prepared)
    return found
