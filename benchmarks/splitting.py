"""Splitting a program into submodules."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import torch.fx
from torch.fx.passes.split_module import split_module as split_with_torch

import fxplug
from benchmarks.programs import count_text, long_function, resnet50
from benchmarks.report import Comparison, Figure, compare_samples
from benchmarks.timing import interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from benchmarks.modes import Mode

__all__ = ["compare_splitting", "measure_splitting"]

_PARTITIONS = 8


def _in_eighths(graph: Any) -> Callable[[Any], int]:
    """Return a callback that puts each eighth of the calls into a partition."""
    calls = [node for node in graph.nodes if node.op.startswith("call_")]
    place = {node: number * _PARTITIONS // len(calls) for number, node in enumerate(calls)}
    return place.__getitem__


def compare_splitting(mode: Mode) -> list[Comparison]:
    """Compare `split_module` into eight partitions with torch.fx, per node."""
    count = mode.lengths[0]
    return [
        _compare("split_module into 8 partitions, ResNet-50", resnet50(), mode),
        _compare(
            f"split_module into 8 partitions, function of {count_text(count)}", long_function(count), mode
        ),
    ]


def _compare(name: str, root: nn.Module | Callable[..., object], mode: Mode) -> Comparison:
    theirs, ours = torch.fx.symbolic_trace(root), fxplug.symbolic_trace(root)
    their_place, our_place = _in_eighths(theirs.graph), _in_eighths(ours.graph)
    samples = interleave(
        {
            "torch.fx": lambda: split_with_torch(theirs, theirs, their_place),
            "fxplug": lambda: fxplug.split_module(ours, None, our_place),
        },
        max(1, mode.rounds // 4),
    )
    return compare_samples(
        name, "µs per node", samples["torch.fx"], samples["fxplug"], 1e6 / len(ours.graph.nodes)
    )


def measure_splitting(mode: Mode) -> list[Figure]:
    """Measure how the cost per node of splitting and grouping grows with the graph."""
    small, large = mode.lengths[0], mode.lengths[0] * 8
    return [
        _growth(
            "split_module",
            small,
            large,
            mode,
            lambda module: fxplug.split_module(module, None, _in_eighths(module.graph)),
        ),
        _growth(
            "split_by",
            small,
            large,
            mode,
            lambda module: fxplug.split_by(module, lambda node: node.op == "call_method"),
        ),
    ]


def _growth(
    name: str, small: int, large: int, mode: Mode, split: Callable[[fxplug.GraphModule], object]
) -> Figure:
    modules = {count: fxplug.symbolic_trace(long_function(count)) for count in (small, large)}
    samples = interleave(
        {"small": lambda: split(modules[small]), "large": lambda: split(modules[large])},
        max(1, mode.rounds // 8),
    )
    growth = [
        (after / large) / (before / small)
        for before, after in zip(samples["small"], samples["large"], strict=True)
    ]
    return Figure(
        f"{name}, cost per node of a function of {count_text(large)}, against {count_text(small)}",
        "times",
        statistics.median(growth),
    )
