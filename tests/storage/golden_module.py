"""The module in the golden files, and a way to write one for a new version of the format.

    python tests/storage/golden_module.py tests/storage/golden/version-N.fxplug

A golden file is written once, by the first fxplug that writes its version, and never again.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import operator
import sys
from typing import Any, NamedTuple

import torch
from torch import nn

import fxplug.semantics  # noqa: F401 - tells the layers below how torch's functions are called
from fxplug.capture import ConstantRecord
from fxplug.execute import GraphModule, GuardSet
from fxplug.ir import Graph, Origin, RegionEntry, SourceLine
from fxplug.ir.guards import Guard
from fxplug.storage import (
    FORMAT_VERSION,
    ProvidedConstant,
    ProvidedTarget,
    Provisions,
    StorageTargetRecord,
    save,
)


class Window:
    """A constant that the plugin of the golden files declares."""

    def __init__(self, size: int) -> None:
        self.size = size


class Mode(enum.Enum):
    """An enum that the plugin names; files of version 2 and later have it."""

    FAST = "fast"


class Pair(NamedTuple):
    """A namedtuple that the plugin names."""

    left: Any
    right: int


@dataclasses.dataclass(frozen=True)
class Options:
    """A dataclass that the plugin names."""

    mode: Mode
    level: float = 0.5


def cut(x: torch.Tensor, window: Window) -> torch.Tensor:
    """Stand for a function that the plugin of the golden files brings."""
    return x[..., : window.size]


def provisions() -> Provisions:
    """Return what the plugin of the golden files brings."""
    record = ConstantRecord("window", Window, encode=lambda w: (w.size,), decode=lambda d: Window(*d))
    who = ("golden", "fxplug-golden", "1.2.3")
    names = {"cut": cut, "mode": Mode, "pair": Pair, "options": Options}
    return Provisions(
        tuple(ProvidedTarget(StorageTargetRecord(name, value), *who) for name, value in names.items()),
        (ProvidedConstant(record, *who),),
        {"golden": "fxplug-golden 1.2.3"},
    )


def _linear(size: int) -> nn.Linear:
    linear = nn.Linear(size, size)
    with torch.no_grad():
        linear.weight.copy_(torch.arange(size * size).view(size, size) / 8)
        linear.bias.fill_(-0.5)
    return linear


def _inner() -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x", torch.Tensor)
    graph.output(graph.call_function(torch.add, (x, 1), {"alpha": 2}))
    return GraphModule(nn.Module(), graph, "Inner")


def golden_module(version: int = FORMAT_VERSION) -> GraphModule:
    """Return a module that uses most of what a file of a version can hold."""
    root = nn.Module()
    root.linear = root.again = _linear(4)
    root.norm = nn.BatchNorm1d(4).eval()
    root.inner = _inner()
    root.tied = root.linear.weight
    root.view = nn.Parameter(root.linear.weight.detach()[1:3, ::2], requires_grad=False)
    root.register_buffer("halves", torch.tensor([1.0, -0.0, math.inf, math.nan], dtype=torch.bfloat16))
    root.register_buffer("mask", torch.tensor([True, False, True, True]), persistent=False)
    root.register_buffer("tiny", torch.tensor([0.5, 1.0], dtype=torch.float8_e4m3fn))
    root.register_buffer("wave", torch.tensor([1 + 2j, 3 - 0j]))
    root.register_buffer("nothing", torch.empty(0, 3))
    root.register_buffer("ghost", torch.empty(7, 5, device="meta"))
    root.names = {"plain": [1, 2.5, None, "text"]}
    graph = Graph()
    x = graph.placeholder("x", torch.Tensor)
    scale = graph.placeholder("scale", float, default_value=2.0)
    linear = graph.call_module("linear", (x,))
    again = graph.call_module("again", (linear,))
    normed = graph.call_module("norm", (again,))
    inner = graph.call_module("inner", (normed,))
    tied, halves = graph.get_attr("tied"), graph.get_attr("halves")
    graph.get_attr("view"), graph.get_attr("mask"), graph.get_attr("names")
    for name in ("tiny", "wave", "nothing", "ghost"):
        graph.get_attr(name)
    product = graph.call_function(operator.matmul, (inner, tied))
    product.region = (RegionEntry(torch.no_grad), RegionEntry(torch.autocast, ("cpu", torch.bfloat16)))
    product.origins = (Origin(SourceLine("model.py", 7, "forward"), made_by="golden"),)
    product.meta["note"] = {"cost": (1, 2.5), "twin": linear}
    converted = graph.call_method("to", (halves,), {"dtype": torch.float32})
    zero = graph.call_function(torch.nan_to_num, (converted,), {"nan": -0.0, "posinf": 2**60})
    piece = graph.call_function(operator.getitem, (product, (..., slice(None, None, 2), None)))
    window = graph.get_attr("_window_constant0")
    short = graph.call_function(cut, (product, window))
    values = [x, zero, piece, short, 1 + 2j, torch.channels_last, torch.device("cpu"), b"\x00\xff", range(3)]
    if version >= 2:
        values += [Mode.FAST, Pair(short, 1), Options(Mode.FAST)]
    graph.output({"values": values, "scale": scale, "bits": [math.nan, -0.0, math.inf]})
    graph.lifted["_window_constant0"] = Window(2)
    module = GraphModule(_holding(root, graph), graph, "Golden")
    module.meta["assumptions"] = ["batches are small"]
    module.set_guards(GuardSet(*_guards(), "error"))
    return module.eval()


def _holding(root: nn.Module, graph: Graph) -> dict[str, Any]:
    paths = {node.target for node in graph.nodes if node.op in {"get_attr", "call_module"}}
    return {path: graph.lifted[path] if path in graph.lifted else getattr(root, path) for path in paths}


def _guards() -> tuple[Graph, tuple[Guard, ...]]:
    graph = Graph()
    x = graph.placeholder("x")
    graph.placeholder("scale", default_value=2.0)
    rows = graph.call_method("dim", (x,))
    graph.output((graph.call_function(operator.eq, (rows, 2)),))
    return graph, (Guard("x.dim() == 2", "model.py:3", "if x.dim() == 2:"),)


if __name__ == "__main__":
    save(golden_module(), sys.argv[1], provisions=provisions)
