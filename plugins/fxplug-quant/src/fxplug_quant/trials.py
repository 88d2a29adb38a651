"""Quantizing one module by many plans: captured and observed once, converted and compared for each plan."""

from __future__ import annotations

import copy
import inspect
import itertools
from typing import TYPE_CHECKING, Any

import torch

from fxplug.semantics import kept_random_state
from fxplug_quant.calibration import Prepared, inputs_of, prepare_captured
from fxplug_quant.config import check_limit
from fxplug_quant.convert import convert
from fxplug_quant.errors import QuantizationError
from fxplug_quant.observers import make_observer
from fxplug_quant.output_error import OutputComparison, run_batch
from fxplug_quant.planning import as_inputs, capture
from fxplug_quant.watching import state_kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from fxplug import GraphModule, Node
    from fxplug_quant.config import QuantConfig
    from fxplug_quant.observers import Observer
    from fxplug_quant.output_error import OutputError
    from fxplug_quant.plan import Plan, PlanEntry

__all__ = ["Trials"]

_Key = tuple[str, str]
"""Name of a value and the observer of it, as text."""


class Trials:
    """A module with its data, which any plan can be tried on. The module stays as it is.

    Args:
        module: In evaluation mode.
        config: What is wished, or a plan.
        loader: See `Prepared.calibrate`; its batches are kept, since every trial runs them.
        example_inputs: Inputs of one call; by default the first batch.
        limit: How many batches are used at most.

    Raises:
        QuantizationError: The module cannot be quantized, there is no data, or no output can be compared.
    """

    def __init__(
        self,
        module: nn.Module,
        config: QuantConfig | Plan | Mapping[str, Any] | None,
        loader: Iterable[Any],
        example_inputs: Sequence[Any] | Tensor = (),
        limit: int | None = None,
    ) -> None:
        check_limit(limit)
        batches = list(loader if limit is None else itertools.islice(loader, limit))
        if not batches:
            raise QuantizationError(
                "Cannot try plans: the loader gave no batch. Give it at least one; a generator can be used only once.",
                code="FXP-Q007",
            )
        self._inputs = as_inputs(example_inputs) or inputs_of(batches[0], _positional(module))
        self._batches = [inputs_of(batch, len(self._inputs)) for batch in batches]
        self._captured = capture(module, self._inputs)
        self._seen: dict[_Key, dict[str, Any]] = {}
        self._ready: dict[Plan, Prepared] = {}
        self.plan = self._prepared(config).plan
        """What would be done by `config`."""
        self.module = self._captured
        """The module in float, with its batch norms folded."""
        self._expected = self._outputs(self._captured)
        if not any(tensors and any(map(torch.numel, tensors)) for tensors in self._expected):
            raise QuantizationError(
                f"Cannot measure what quantization changes: {type(module).__name__} gives no floating-point tensor "
                f"with elements. Give a module that returns one, such as the scores before an argmax.",
                code="FXP-Q010",
            )

    def layers(self) -> list[PlanEntry]:
        """Return the calls whose weights are quantized, in order."""
        calls = self.plan.calls()
        weights = [entry.node for entry in self.plan.entries if entry.what == "weight"]
        return [calls[name] for name in dict.fromkeys(weights) if calls[name].mode != "float"]

    def only(self, names: Iterable[str], why: str) -> Plan:
        """Return the plan with all layers in float but some."""
        kept, plan = set(names), self.plan
        for layer in self.layers():
            if layer.node not in kept:
                plan = plan.with_mode(layer.node, "float", why)
        return plan

    def planned(self, plan: Plan) -> Plan:
        """Return a plan with what follows for weights and values from the calls in it."""
        return self._prepared(plan).plan

    def observe(self, plans: Iterable[Plan]) -> None:
        """Calibrate for several plans at once, which are tried later."""
        for plan in plans:
            self._ready[plan] = self._prepared(plan)
        self._calibrate(key for prepared in self._ready.values() for key, _ in _observed(prepared))

    def error(self, plan: Plan) -> OutputError:
        """Return how far the outputs are off when the module is quantized by a plan."""
        comparison = OutputComparison()
        for expected, found in zip(self._expected, self._outputs(self.quantized(plan)), strict=True):
            comparison.add(expected, found)
        return comparison.error()

    def quantized(self, plan: Plan) -> GraphModule:
        """Return the module, quantized by a plan; float weights are shared with the others."""
        prepared = self._ready.pop(plan, None) or self._prepared(plan)
        self._calibrate(key for key, _ in _observed(prepared))
        for key, observer in _observed(prepared):
            observer.load_state(self._seen[key])
        prepared.batches = len(self._batches)
        return convert(prepared)

    # -- how it is done ----------------------------------------------------------------------------------------

    def _prepared(self, plan: QuantConfig | Plan | Mapping[str, Any] | None) -> Prepared:
        shared: dict[int, Any] = {id(tensor): tensor for tensor in self._captured.parameters()}
        return prepare_captured(copy.deepcopy(self._captured, shared), plan, self._inputs)

    def _calibrate(self, wanted: Iterable[_Key]) -> None:
        """Observe the values that nobody has observed yet."""
        nodes = {node.name: node for node in self._captured.graph.nodes}
        by_text: dict[str, dict[Node, Observer]] = {}
        for name, text in dict.fromkeys(wanted):
            if (name, text) not in self._seen:
                by_text.setdefault(text, {})[nodes[name]] = make_observer(text)
        for text, observers in by_text.items():
            collector = self._prepared(self.plan)
            collector.module, collector.observers = self._captured, observers
            collector.calibrate(self._batches)
            self._seen.update({(node.name, text): observer.state() for node, observer in observers.items()})

    def _outputs(self, module: GraphModule) -> list[list[Tensor]]:
        with torch.no_grad(), kept_random_state(), state_kept(module):
            return [run_batch(module, copy.deepcopy(batch)) for batch in self._batches]


def _observed(prepared: Prepared) -> Iterable[tuple[_Key, Observer]]:
    """Give the values that a plan observes, by name and kind of observer."""
    edges, default = prepared.plan.edges(), prepared.plan.config.observer
    for node, observer in prepared.observers.items():
        yield (node.name, edges[node.name].observer or default), observer


def _positional(module: nn.Module) -> int | None:
    """Return how many positional inputs a module takes at most; None where there is no limit."""
    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return None
    return sum(
        kind in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD} for kind in kinds
    )
