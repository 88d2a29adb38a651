"""Checks of converters: the network, its sizes and dtypes, what it computes, and the engine. Part of the test tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import fxplug
from fxplug import Graph, GraphModule
from fxplug.ir import iterate_leaves
from fxplug_tensorrt.conversion import convert
from fxplug_tensorrt.converters import builtin_converters
from fxplug_tensorrt.eight_bits import FLOAT8
from fxplug_tensorrt.engine import build_plan
from fxplug_tensorrt.options import TensorRTOptions
from fxplug_tensorrt.testing.evaluator import evaluate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fxplug_tensorrt.conversion import Converted, ConverterRecord

__all__ = ["Checked", "check_call", "check_program"]


@dataclass(frozen=True)
class Checked:
    """What was built and computed."""

    converted: Converted
    found: tuple[torch.Tensor, ...]
    """What the evaluator computes of the network."""
    expected: tuple[torch.Tensor, ...]
    """What eager computes."""
    plan: bytes
    """The engine; empty where none was asked for."""


def check_call(
    target: Any,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    converters: Mapping[Any, ConverterRecord] | None = None,
    options: TensorRTOptions | None = None,
    engine: bool = True,
    tolerance: float = 1e-5,
) -> Checked:
    """Check the converter of one operator by one call.

    Args:
        target: An overload, such as ``torch.ops.aten.relu.default``.
        *args: Of the call. Tensors become inputs of the network, and parameters of `torch.nn` constants.
        kwargs: Of the call.
        converters: Instead of those of this plugin.
        options: Of the backend.
        engine: Whether the engine is built.
        tolerance: How far results may be from those of eager, as a share of the largest.

    Raises:
        NotConvertibleError: The call cannot be written.
        AssertionError: The network computes something else.
    """
    graph = Graph()
    held: dict[str, torch.Tensor] = {}
    inputs: list[torch.Tensor] = []

    def node(value: Any) -> Any:
        if isinstance(value, torch.nn.Parameter):
            name = f"held_{len(held)}"
            held[name] = value
            return graph.get_attr(name)
        if isinstance(value, torch.Tensor):
            inputs.append(value)
            return graph.placeholder(f"x{len(inputs)}")
        if isinstance(value, (tuple, list)):
            return type(value)(node(part) for part in value)
        return value

    given = [node(value) for value in args]
    named = {name: node(value) for name, value in (kwargs or {}).items()}
    places = [place for place in graph.nodes if place.op == "placeholder"]
    for place in reversed(places):  # Inputs come first.
        first = next(iter(graph.nodes))
        if place is not first:
            first.prepend(place)
    call = graph.call_function(target, tuple(given), named)
    graph.output(call)
    module = GraphModule(held, graph)
    with torch.no_grad():
        expected = target(*args, **(kwargs or {}))
    return _compared(
        module, tuple(inputs), expected, converters, options or TensorRTOptions(), tolerance, engine=engine
    )


def check_program(
    program: Any,
    inputs: Sequence[Any],
    *,
    options: TensorRTOptions | None = None,
    engine: bool = True,
    tolerance: float = 1e-5,
) -> Checked:
    """Check a whole program: every call of it has a converter.

    Args:
        program: A module or function, or a captured one.
        inputs: Examples.
        options: Of the backend.
        engine: Whether the engine is built.
        tolerance: How far results may be from those of eager, as a share of the largest.

    Raises:
        NotConvertibleError: A call cannot be written.
        AssertionError: The network computes something else.
    """
    module = (
        program if isinstance(program, GraphModule) else fxplug.trace(program, tuple(inputs), check=False)
    )
    with torch.no_grad():
        written = fxplug.decompose(module, tuple(inputs), to="aten")
        expected = program(*inputs)
    return _compared(
        written, tuple(inputs), expected, None, options or TensorRTOptions(), tolerance, engine=engine
    )


def _compared(
    module: GraphModule,
    inputs: tuple[Any, ...],
    expected: Any,
    converters: Mapping[Any, ConverterRecord] | None,
    options: TensorRTOptions,
    tolerance: float,
    *,
    engine: bool,
) -> Checked:
    known = builtin_converters() if converters is None else converters
    converted = convert(module, inputs, known, computed_in=options.computed_in)
    found = evaluate(converted, inputs)
    wanted = [leaf for leaf in iterate_leaves(expected) if isinstance(leaf, torch.Tensor)]
    pairs = list(_pairs(converted.results, expected))
    for number, leaf in pairs:
        computed = found[number]
        if leaf.dtype is FLOAT8 is computed.dtype:  # With which PyTorch computes little.
            leaf, computed = leaf.float(), computed.float()  # noqa: PLW2901 - the same in another dtype
        largest = float(leaf.abs().nan_to_num(posinf=0.0).max()) if leaf.is_floating_point() else 1.0
        torch.testing.assert_close(
            computed,
            leaf,
            rtol=tolerance,
            atol=tolerance * max(largest, 1.0),
            equal_nan=True,
            check_stride=False,
        )
    plan = build_plan(converted, options) if engine else b""
    return Checked(converted, tuple(found), tuple(wanted), plan)


def _pairs(results: Any, expected: Any) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield number and tensor for each result that the network computes; how they are nested does not matter."""
    for result, leaf in zip(iterate_leaves(results), iterate_leaves(expected), strict=True):
        if hasattr(result, "number"):
            yield result.number, leaf
