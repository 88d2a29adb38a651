"""Observing what values a module computes, so that ranges can be chosen."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch

import fxplug
from fxplug.semantics import kept_random_state
from fxplug_quant.calls import WEIGHTED, Call, operation_of, place_of
from fxplug_quant.config import QuantConfig, check_limit
from fxplug_quant.errors import QuantizationError
from fxplug_quant.observers import Observer, make_observer
from fxplug_quant.plan import Plan
from fxplug_quant.planning import Draft, as_inputs, capture, draft
from fxplug_quant.watching import state_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from torch import nn

    from fxplug import GraphModule, Node

__all__ = [
    "Prepared",
    "calibration",
    "current_calibration",
    "inputs_of",
    "prepare",
    "prepare_captured",
    "run_observed",
]

_LOADER: ContextVar[Iterable[Any] | None] = ContextVar("fxplug_quant_calibration", default=None)


@contextmanager
def calibration(loader: Iterable[Any]) -> Generator[None]:
    """Let the passes that run inside calibrate with this data, and not with the example inputs.

    Args:
        loader: See `Prepared.calibrate`.

    Example:
        ::

            with fxplug_quant.calibration(loader):
                result = fxplug.optimize(model, example, pipeline="int8")
    """
    token = _LOADER.set(loader)
    try:
        yield
    finally:
        _LOADER.reset(token)


def current_calibration() -> Iterable[Any] | None:
    """Return the data of the innermost `calibration`; None outside of one."""
    return _LOADER.get()


class Prepared:
    """A module that is about to be quantized, with its plan and an observer for each value that becomes steps.

    Made by `prepare`. The module is in float still.
    """

    def __init__(self, module: GraphModule, made: Draft, inputs: int | None = None) -> None:
        self.module = module
        """The captured module with its batch norms folded."""
        self._inputs = inputs
        self.draft = made
        self.plan = made.plan
        """What was decided."""
        names = {name: entry.observer for name, entry in made.plan.edges().items()}
        self.observers: dict[Node, Observer] = {
            node: make_observer(names[node.name] or made.plan.config.observer) for node in made.flow.roots()
        }
        """The value that is observed -> what observes it."""
        self._operations = {node: _surroundings(node, made.flow.calls) for node in self.observers}
        self.batches = 0
        """How many batches were observed."""

    def calibrate(
        self,
        loader: Iterable[Any],
        *,
        progress: Callable[[int, int | None], None] | None = None,
        limit: int | None = None,
    ) -> Prepared:
        """Run the module on data, and observe. It may be called again with more data.

        Args:
            loader: Gives batches: a tensor, or a tuple or list of the positional inputs, of which what goes beyond the
                number of example inputs (labels) is left out.
            progress: Called after each batch with how many there were, and how many there will be where that is known.
            limit: How many batches are used at most.

        Returns:
            Itself.

        Raises:
            QuantizationError: There is no data, or a value is not finite.
            ConfigError: The limit is no number of batches.
        """

        def told(done: int, total: int | None) -> None:
            self.batches += 1
            if progress is not None:
                progress(done, total)

        run_observed(self.module, self.observers, loader, inputs=self._inputs, progress=told, limit=limit)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return what was observed so far, so that calibration can go on later with `load_state_dict`.

        Name of node -> its operation with those around it, its observer with its settings, and what that saw.
        """
        return {
            node.name: {"operation": self._operations[node], **observer.state()}
            for node, observer in self.observers.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned. Where it does not fit, nothing is taken over.

        Raises:
            QuantizationError: It is of another module, another plan, or another observer.
        """
        if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - it may come from a file
            raise _misfit(f"the state is a {type(state).__name__}, and not what state_dict returns")
        names = {node.name for node in self.observers}
        if names != set(state):
            raise _misfit(f"{sorted(map(str, names ^ set(state)))} are observed in one of the two only")
        seen = {node: self._checked(node, state[node.name]) for node in self.observers}
        for node, observer in self.observers.items():
            observer.load_state(seen[node])
            self.batches = max(self.batches, observer.seen)

    def _checked(self, node: Node, state: Any) -> dict[str, Any]:
        """Return what an observer saw, if it was an observer as the one of this node, at a node as this one.

        Raises:
            QuantizationError: It was not.
        """
        if not isinstance(state, Mapping) or not {"operation", "observer"} <= set(state):
            raise _misfit(
                f"what it has for {node.name!r} does not say of which operation and observer it is, as what an older "
                f"version wrote"
            )
        found: dict[str, Any] = dict(state)
        operation = found.pop("operation")
        if operation != self._operations[node]:
            raise _misfit(
                f"at {node.name!r} the state has {operation!r}, and the module {self._operations[node]!r}"
            )
        reason = self.observers[node].misfit(found)
        if reason:
            raise _misfit(f"at {node.name!r} {reason}")
        return found

    def check(self) -> None:
        """Check that each observer saw what a range can be chosen from.

        Raises:
            QuantizationError: There was no calibration, or a value was never seen or always the same.
        """
        if self.observers and not self.batches:
            raise QuantizationError(
                "Cannot convert: no calibration data was seen, and static int8 needs the ranges of "
                f"{len(self.observers)} values. Call calibrate(loader), or choose mode = 'dynamic-int8'.",
                code="FXP-Q007",
            )
        for node, observer in self.observers.items():
            if not observer.seen:
                raise _fault(node, "its observer saw nothing", "Calibrate with data that reaches it")
            if observer.low == observer.high and observer.low == 0:
                raise _fault(
                    node,
                    "it was 0 throughout calibration, so that no range can be chosen",
                    "Calibrate with other data",
                )


def _misfit(found: str) -> QuantizationError:
    return QuantizationError(
        f"Cannot go on with calibration: {found}. Prepare the same module with the same plan, or calibrate anew.",
        code="FXP-Q006",
    )


def _surroundings(node: Node, calls: Mapping[Node, Call]) -> str:
    """Return the operation of a node with those that it takes values from and those that take its value.

    Names of nodes and single operations are the same in many modules: every `torch.nn.Sequential` has a ``_1``, and
    that is often a ReLU. The layers before and behind it, with the shapes of their weights, tell modules apart.
    """

    def text(nodes: Iterable[Node]) -> str:
        return ", ".join(_operation(calls[other]) for other in nodes)

    inputs, users = text(calls[node].inputs), text(user for user in node.users if user in calls)
    return f"{_operation(calls[node])}{f' of {inputs}' if inputs else ''}{f', taken by {users}' if users else ''}"


def _operation(call: Call) -> str:
    return f"{call.operation}{list(call.called.weight.shape) if call.kind in WEIGHTED else ''}"


class _Observing(fxplug.Interpreter):
    """Runs a module, and lets observers see."""

    def __init__(self, module: GraphModule, observers: Mapping[Node, Observer]) -> None:
        super().__init__(module)
        self._observers = observers
        self.inputs = sum(node.op == "placeholder" for node in module.graph.nodes)

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        observer = self._observers.get(n)
        if observer is not None and value.numel():
            if not bool(value.isfinite().all()):
                raise _fault(
                    n,
                    f"batch {observer.seen} gives values that are not finite (NaN or infinity)",
                    "Leave such batches out",
                )
            observer.observe(value)
        return value


def run_observed(
    module: GraphModule,
    observers: Mapping[Node, Observer],
    loader: Iterable[Any],
    *,
    inputs: int | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    limit: int | None = None,
) -> None:
    """Run a module on data, and let observers see values of it.

    Args:
        module: Stays as it is.
        observers: The value that is observed -> what observes it.
        loader: See `Prepared.calibrate`.
        inputs: How many of the tensors in a batch are inputs at most; the others are labels.
        progress: See `Prepared.calibrate`.
        limit: How many batches are used at most.

    Raises:
        QuantizationError: There is no data although something is observed, or a value is not finite.
        ConfigError: The limit is no number of batches.
    """
    check_limit(limit)
    total = len(loader) if hasattr(loader, "__len__") else None  # pyright: ignore[reportArgumentType]
    total = total if limit is None else limit if total is None else min(limit, total)
    runner = _Observing(module, observers)
    count = runner.inputs if inputs is None else min(inputs, runner.inputs)
    done = 0
    with torch.no_grad(), kept_random_state(), state_kept(module):
        for batch in loader if limit is None else itertools.islice(loader, limit):
            runner.run(*copy.deepcopy(inputs_of(batch, count)))
            done += 1
            if progress is not None:
                progress(done, total)
    if not done and observers:
        raise QuantizationError(
            "Cannot calibrate: the loader gave no batch. Give it at least one; a generator can be used only once.",
            code="FXP-Q007",
        )


def _fault(node: Node, found: str, remedy: str) -> QuantizationError:
    line = place_of(node)
    where = f" (line {line})" if line else ""
    return QuantizationError(
        f"Cannot quantize the value of node {node.name!r}, {operation_of(node)}{where}: {found}. {remedy}, or leave "
        f"the call that uses it in float: a rule with mode = 'float'.",
        code="FXP-Q008",
    )


def inputs_of(batch: Any, count: int | None) -> tuple[Any, ...]:
    """Return the first inputs, at most `count`, in what a loader gave."""
    return tuple(batch)[:count] if isinstance(batch, (tuple, list)) else (batch,)


def prepare(
    module: nn.Module,
    config: QuantConfig | Plan | Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | torch.Tensor = (),
) -> Prepared:
    """Return a module ready for calibration; the given one stays as it is.

    Args:
        module: In evaluation mode.
        config: What is wished, or a plan, edited or not.
        example_inputs: Positional inputs of one call, or a single tensor.

    Raises:
        QuantizationError: The module cannot be quantized, or the plan is of another one.
    """
    inputs = as_inputs(example_inputs)
    return prepare_captured(capture(module, inputs), config, inputs)


def prepare_captured(
    captured: GraphModule, config: QuantConfig | Plan | Mapping[str, Any] | None, inputs: tuple[Any, ...]
) -> Prepared:
    """Return a captured module ready for calibration; it is the one that is converted."""
    # A parameter with a default value that the example leaves out is not where labels go.
    count = len(inputs) or None
    if isinstance(config, Plan):
        return Prepared(captured, draft(captured, config.config, inputs, config), count)
    return Prepared(captured, draft(captured, QuantConfig.of(config), inputs), count)
