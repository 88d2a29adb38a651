"""Capture down to functions of torch, with no module kept as a call: how large the graphs are."""

from __future__ import annotations

from typing import Any

import torch

import fxplug
from benchmarks.programs import resnet50
from fxplug.plugins import Config, PluginManager, TraceConfig

__all__ = ["functional_table", "level_of_functions"]


def level_of_functions() -> PluginManager:
    """Return what makes a trace look through every module."""
    return PluginManager(config=Config(trace=TraceConfig(through_modules=("*",))), candidates=())


def functional_table() -> str:
    """Return a table of the sizes of the graphs of ResNet-50."""
    root = resnet50()
    examples = (torch.randn(2, 3, 64, 64),)
    manager = level_of_functions()
    counts = {
        f"fxplug, mode={mode!r}": len(
            fxplug.trace(root, examples, mode=mode, manager=manager, check=False).graph.nodes
        )
        for mode in ("shape", "value")
    }
    counts["torch.jit.trace"] = _nodes_below(_inlined(torch.jit.trace(root, examples)))
    counts["torch.jit.script"] = _nodes_below(_inlined(torch.jit.script(root)))
    lines = [f"| {name} | {count} |" for name, count in counts.items()]
    return "\n".join(["| captured by | nodes |", "|---|---:|", *lines])


def _nodes_below(graph: Any) -> int:
    """Return the number of nodes of a graph of TorchScript, those in the branches of conditions included."""
    return sum(1 + sum(_nodes_below(branch) for branch in node.blocks()) for node in graph.nodes())


def _inlined(scripted: Any) -> Any:
    return scripted.inlined_graph
