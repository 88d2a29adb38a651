"""Rewriting graphs: patterns, and single calls in place."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import torch
import torch.fx
import torch.fx.subgraph_rewriter
from torch.nn import functional

import fxplug
from benchmarks.report import Comparison, Figure, compare_samples, promised
from benchmarks.timing import Fresh, interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from benchmarks.modes import Mode

__all__ = ["compare_rewriting", "measure_rewriting"]

_NODES_PER_MATCH = 4


def _program(matches: int) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        for _ in range(matches):
            x = torch.relu(x) + 1
            x = torch.tanh(torch.sigmoid(x))
        return x

    return run


def _pattern(x: Tensor) -> Tensor:
    return torch.relu(x) + 1


def _replacement(x: Tensor) -> Tensor:
    return functional.gelu(x)


def _fxplug_pattern(matches: int) -> Fresh[fxplug.GraphModule]:
    return Fresh(
        lambda: fxplug.symbolic_trace(_program(matches)),
        lambda module: fxplug.replace_pattern(module, _pattern, _replacement),
    )


def _torch_pattern(matches: int) -> Fresh[torch.fx.GraphModule]:
    return Fresh(
        lambda: torch.fx.symbolic_trace(_program(matches)),
        lambda module: torch.fx.subgraph_rewriter.replace_pattern(module, _pattern, _replacement),
    )


def _replace_in_place(module: fxplug.GraphModule) -> None:
    graph = module.graph
    for node in graph.nodes:
        if node.target is torch.relu:
            graph.replace_call(node, functional.gelu)


def _insert_and_erase(module: torch.fx.GraphModule) -> None:
    graph = module.graph
    for node in graph.nodes:
        if node.target is torch.relu:
            with graph.inserting_after(node):
                new = graph.call_function(functional.gelu, node.args, node.kwargs)
            node.replace_all_uses_with(new)
            graph.erase_node(node)


def compare_rewriting(mode: Mode) -> list[Comparison]:
    """Compare `replace_pattern`, and the exchange of single calls, with torch.fx."""
    matches = mode.rewritten_matches
    count = matches * _NODES_PER_MATCH
    patterns = interleave(
        {"torch.fx": _torch_pattern(matches), "fxplug": _fxplug_pattern(matches)}, max(1, mode.rounds // 8)
    )
    calls = interleave(
        {
            "torch.fx": Fresh(lambda: torch.fx.symbolic_trace(_program(matches)), _insert_and_erase),
            "fxplug": Fresh(lambda: fxplug.symbolic_trace(_program(matches)), _replace_in_place),
        },
        max(1, mode.rounds // 2),
    )
    return [
        compare_samples(
            f"replace_pattern, {matches:,} matches in {count:,} nodes",
            "µs per match",
            patterns["torch.fx"],
            patterns["fxplug"],
            1e6 / matches,
            promised(mode, "at least 100", least=100),
        ),
        compare_samples(
            f"one call for another, {matches:,} in {count:,} nodes: insert, replace uses, erase against replace_call",
            "µs per call",
            calls["torch.fx"],
            calls["fxplug"],
            1e6 / matches,
            promised(mode, "at least 5", least=5),
        ),
    ]


def measure_rewriting(mode: Mode) -> list[Figure]:
    """Measure how the cost of a match grows with the graph."""
    small, large = mode.rewritten_matches // 4, mode.rewritten_matches * 4
    samples = interleave(
        {"small": _fxplug_pattern(small), "large": _fxplug_pattern(large)}, max(1, mode.rounds // 4)
    )
    growth = [
        (after / large) / (before / small)
        for before, after in zip(samples["small"], samples["large"], strict=True)
    ]
    return [
        Figure(
            f"replace_pattern, cost per match in {large * _NODES_PER_MATCH:,} nodes, against "
            f"{small * _NODES_PER_MATCH:,}",
            "times",
            statistics.median(growth),
            promised(mode, "at most 1.3", most=1.3),
        )
    ]
