"""The passes that quantize by a plan."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

from fxplug.passes import Pass, PassContext, PassResult
from fxplug_quant.calibration import Prepared, current_calibration, inputs_of, prepare_captured
from fxplug_quant.calls import TABLES, WEIGHTED, read_calls
from fxplug_quant.convert import convert
from fxplug_quant.errors import QuantizationError
from fxplug_quant.options import StaticInt8Options, WeightInt4Options, WeightInt8Options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug import GraphModule
    from fxplug_quant.config import QuantConfig

__all__ = ["StaticInt8", "WeightInt4", "WeightInt8", "data_of"]


class StaticInt8(Pass):
    """Replaces linear layers and convolutions by int8 ones whose ranges are chosen by running the module on data.

    The data comes from `fxplug_quant.calibration`, and without it from the example inputs.

    Args:
        **options: See `StaticInt8Options`.

    Raises:
        ConfigError: An option is out of range.
        UnknownNameError: There is no such engine, observer or mode.
    """

    def __init__(self, **options: Any) -> None:
        self.options = StaticInt8Options(**options)

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Calibrate and convert.

        Raises:
            QuantizationError: There is no data, or a value is not finite or always the same.
        """
        return _run(module, context, self.options.config(), self.options.batches)


class WeightInt8(Pass):
    """Gives linear layers int8 weights; what they compute with them is float as before.

    Args:
        **options: See `WeightInt8Options`.
    """

    def __init__(self, **options: Any) -> None:
        self.options = WeightInt8Options(**options)

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Convert."""
        return _run(module, context, self.options.config(), 0)


class WeightInt4(Pass):
    """Gives linear layers int4 weights in groups; what they compute with them is float as before.

    Args:
        **options: See `WeightInt4Options`.

    Raises:
        ConfigError: The group size is none of those that there are.
    """

    def __init__(self, **options: Any) -> None:
        self.options = WeightInt4Options(**options)

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Convert."""
        return _run(module, context, self.options.config(), 0)


def _run(module: GraphModule, context: PassContext, config: QuantConfig, limit: int) -> PassResult:
    calls = read_calls(module)
    layers = [call for call in calls.values() if call.kind in {*WEIGHTED, *TABLES}]
    if not layers:
        return PassResult(False, "no linear layer or convolution")
    if all(call.reason for call in layers) or module.training:
        left = {call.node.name: call.reason or "training mode (call eval() first)" for call in layers}
        return PassResult(False, _summary([], left), {"quantized": 0, "left": left})
    inputs, data = data_of(module, context)
    prepared = _allowed(prepare_captured(module, config, inputs), config, context, inputs)
    left = prepared.plan.left_in_float()
    names = [call.node.name for call in layers if call.node.name not in left]
    if not names:
        return PassResult(False, _summary([], left), {"quantized": 0, "left": left})
    if prepared.observers:
        prepared.calibrate(data, limit=limit or None)
    convert(prepared)
    details = {"quantized": len(names), "left": left, "batches": prepared.batches}
    return PassResult(True, _summary(names, left), details)


def data_of(module: GraphModule, context: PassContext) -> tuple[tuple[Any, ...], Iterable[Any]]:
    """Return example inputs and what to calibrate with.

    Raises:
        QuantizationError: There is neither.
    """
    loader, examples = current_calibration(), context.example_inputs
    if loader is None and examples is None:
        raise QuantizationError(
            "Cannot quantize: there is no calibration data. Give example inputs, or run inside of 'with "
            "fxplug_quant.calibration(loader):'.",
            code="FXP-Q007",
        )
    if loader is None:
        loader = [examples]
    if examples is None:
        batches = iter(loader)
        first = next(batches, None)
        if first is None:
            raise QuantizationError(
                "Cannot calibrate: the loader gave no batch. Give it at least one; a generator can be used only once.",
                code="FXP-Q007",
            )
        examples = inputs_of(first, sum(node.op == "placeholder" for node in module.graph.nodes))
        loader = itertools.chain([first], batches)
    return examples, loader


def _allowed(
    prepared: Prepared, config: QuantConfig, context: PassContext, inputs: tuple[Any, ...]
) -> Prepared:
    """Return what is prepared without the calls that the pass may not rewrite."""
    nodes = {node.name: node for node in prepared.module.graph.nodes}
    plan = prepared.plan
    for name, entry in plan.calls().items():
        if entry.mode != "float" and not context.allows(nodes[name], "quantize"):
            plan = plan.with_mode(name, "float", "not allowed by the caller")
    return prepared if plan is prepared.plan else prepare_captured(prepared.module, plan, inputs)


def _summary(names: list[str], left: dict[str, str]) -> str:
    count = len(names)
    parts = [f"quantized {count or 'no'} layer{'' if count <= 1 else 's'} to int8"]
    parts += [f"{many} left in float: {reason}" for reason, many in Counter(left.values()).items()]
    return "; ".join(parts)
