"""What a capture on example inputs costs besides running the program."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import fxplug
from benchmarks.functional import level_of_functions
from benchmarks.programs import Decoder, long_function, resnet50
from benchmarks.timing import interleave
from fxplug.plugins import PluginManager

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CostOfModel", "cost_of_model", "costs_by_library", "costs_table"]

_QUESTIONS = {
    "size": "asks for a size",
    "dtype": "asks for a dtype",
    "steps": "asks for steps in memory",
    "elements": "asks for elements",
    "class": "asks for a class",
    "identity": "asks for identity",
    "context": "turns gradients off",
    "errors": "may catch an error",
    "function": "makes a function",
    "object": "makes an object",
    "sorted": "sorts numbers, which has to be listened to",
}
_PROMISED = 15.0
"""Microseconds for each node."""


def costs_table(rounds: int = 101) -> str:
    """Return a table of captures in value mode without a check, next to runs of the same programs.

    One thread runs, and what is counted is the time that it had the processor.

    Args:
        rounds: How often each program is run and captured, in turns.
    """
    images, words = torch.randn(1, 3, 64, 64), torch.randn(2, 16, 32)
    plain = PluginManager(candidates=())
    root = resnet50()
    lines = [
        _cost("ResNet-50", root, images, plain, rounds),
        _cost_of_hearing("ResNet-50, its calls heard of and nothing more", root, images, plain, rounds),
        _cost("ResNet-50, down to functions", root, images, level_of_functions(), rounds),
        _cost("2,000 small operations", long_function(2_000), torch.randn(8), plain, rounds),
        _cost("decoder of 12 blocks", Decoder(12), words, plain, rounds),
        *(
            _cost(f"the same, each block {what}", Decoder(12, asks=asks), words, plain, rounds)
            for asks, what in _QUESTIONS.items()
        ),
    ]
    head = ["program", "nodes", "eager, ms", "captured, ms", "more, µs per node", f"at most {_PROMISED:g}"]
    return "\n".join([f"| {' | '.join(head)} |", "|---|---:|---:|---:|---:|---|", *lines])


@dataclass(frozen=True)
class CostOfModel:
    """What captures of a model cost, in microseconds for each node of what is captured."""

    value: float
    """In value mode without a check, more than a run."""
    symbolic: float | None
    """Without examples; None where it is refused."""


def cost_of_model(
    root: nn.Module, inputs: Sequence[Any], manager: PluginManager, rounds: int = 5
) -> CostOfModel:
    """Measure what captures of a model cost that was captured before.

    Args:
        root: The model, in eval mode.
        inputs: Of one call.
        manager: The plugins that take part.
        rounds: How often it is run and captured, in turns.
    """
    nodes = len(_captured(root, inputs, manager, "value").graph.nodes)
    contenders: dict[str, Callable[[], Any]] = {
        "eager": lambda: root(*inputs),
        "value": lambda: _captured(root, inputs, manager, "value"),
    }
    try:
        found = len(_captured(root, inputs, manager, "symbolic").graph.nodes)
        contenders["symbolic"] = lambda: _captured(root, inputs, manager, "symbolic")
    except fxplug.FxplugError:
        found = 0
    with torch.no_grad():
        samples = interleave(contenders, rounds, time.process_time)
    more = statistics.median(
        after - before for before, after in zip(samples["eager"], samples["value"], strict=True)
    )
    alone = statistics.median(samples["symbolic"]) / found * 1e6 if found else None
    return CostOfModel(more / nodes * 1e6, alone)


def _captured(root: nn.Module, inputs: Sequence[Any], manager: PluginManager, mode: str) -> Any:
    with torch.no_grad():
        given = tuple(inputs) if mode == "value" else None
        return fxplug.trace(root, given, mode=mode, manager=manager, check=False)


def costs_by_library(costs: Sequence[tuple[str, CostOfModel]]) -> str:
    """Return a table of what captures of the models of each library cost.

    Args:
        costs: With the library that each model is from.
    """
    lines = [
        f"| from | models | value, more than eager: median | at most {_PROMISED:g} | symbolic: median |",
        "|---|---:|---:|---:|---:|",
    ]
    for library in dict.fromkeys(name for name, _ in costs):
        found = [cost for name, cost in costs if name == library]
        value = statistics.median(cost.value for cost in found)
        held = sum(cost.value <= _PROMISED for cost in found)
        alone = [cost.symbolic for cost in found if cost.symbolic is not None]
        text = f"{statistics.median(alone):.0f}" if alone else ""
        lines.append(f"| {library} | {len(found)} | {value:.0f} | {held} | {text} |")
    return "\n".join(lines)


def _cost(
    name: str, program: Callable[..., Any], example: torch.Tensor, manager: PluginManager, rounds: int
) -> str:
    nodes = 0

    def capture() -> None:
        nonlocal nodes
        nodes = len(fxplug.trace(program, (example,), manager=manager, check=False).graph.nodes)

    capture()
    return _row(name, nodes, lambda: program(example), capture, rounds)


def _cost_of_hearing(
    name: str, program: Callable[..., Any], example: torch.Tensor, manager: PluginManager, rounds: int
) -> str:
    """Measure what remains if everything is left out but to hear of the calls of modules and of torch.

    It is the least that Python can do about a call. A capture that listens while the program runs cannot cost less.
    """
    heard: list[Any] = []
    called = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = called(module, *args, **kwargs)
        heard.append((module, args, result))
        return result

    class Listening(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            heard.append((func, args, result))
            return result

    def hear() -> None:
        heard.clear()
        nn.Module.__call__ = call
        try:
            with Listening():
                program(example)
        finally:
            nn.Module.__call__ = called

    nodes = len(fxplug.trace(program, (example,), manager=manager, check=False).graph.nodes)
    return _row(name, nodes, lambda: program(example), hear, rounds, is_capture=False)


def _row(
    name: str,
    nodes: int,
    run: Callable[[], Any],
    capture: Callable[[], None],
    rounds: int,
    *,
    is_capture: bool = True,
) -> str:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            samples = interleave({"eager": run, "capture": capture}, rounds, time.process_time)
    finally:
        torch.set_num_threads(threads)
    more = statistics.median(
        (after - before) / nodes * 1e6
        for before, after in zip(samples["eager"], samples["capture"], strict=True)
    )
    eager, captured = (f"{statistics.median(taken) * 1e3:.1f}" for taken in samples.values())
    held = ("yes" if more <= _PROMISED else "NO") if is_capture else ""
    return f"| {name} | {nodes} | {eager} | {captured} | {more:.0f} | {held} |"
