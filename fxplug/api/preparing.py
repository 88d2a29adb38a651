"""Capturing a model whose example inputs are at hand: what `optimize` and the tools beside it work on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from fxplug.analyze.comparison import Tolerance
from fxplug.analyze.isolation import SavedState, copy_module, tensors_in
from fxplug.api.capturing import check_options
from fxplug.api.judging import judge_values
from fxplug.api.tracing import trace
from fxplug.api.user_errors import error_text, error_with_place
from fxplug.errors import FxplugError, GuardError, TraceError, TraceWarning
from fxplug.execute import GraphModule
from fxplug.execute.folder import overriding_class
from fxplug.semantics.internals import is_fake

if TYPE_CHECKING:
    from torch import nn

    from fxplug.analyze.runs import Run
    from fxplug.plugins import PluginManager

__all__ = ["Preparation", "Prepared", "chosen_mode", "has_data", "is_ready", "own_copy"]


_WITHOUT_GRADIENTS = (
    "The program asks whether gradients are computed (torch.is_grad_enabled). It was captured without, as its results "
    "are compared: call the module inside of torch.no_grad() or torch.inference_mode()."
)


@dataclass(frozen=True)
class Prepared:
    """A model as a graph module, and how it became one."""

    module: GraphModule
    """Shares parameters, buffers and leaf modules with the model."""
    mode: str
    """The mode that it was captured in; empty for a graph module, which is taken as it is."""
    told: tuple[str, ...] = ()
    """What the tracer warned of."""
    reason: str = ""
    """A sentence: why it was captured on the inputs, where nobody asked for that; else empty."""

    without_gradients: bool = False
    """Whether it is right without gradients alone, as the program asks whether they are computed."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know, in sentences."""
        more = (_WITHOUT_GRADIENTS,) if self.without_gradients else ()
        return (*((self.reason,) if self.reason else ()), *more, *self.told)

    def warn(self) -> GraphModule:
        """Warn of what the tracer warned of, as a capture does, and return the module."""
        for text in self.told:
            warnings.warn(text, TraceWarning, stacklevel=4)
        return self.module


def chosen_mode(mode: str | None, manager: PluginManager) -> str | None:
    """Return the mode that is asked for, else that of the configuration (``trace.mode``); None where neither names one.

    Raises:
        TraceError: There is no such mode.
    """
    chosen = manager.config.trace.mode if mode is None else mode
    if chosen is not None:
        check_options({"mode": chosen}, has_examples=True)
    return chosen


class Preparation:
    """How a model becomes a graph module.

    A graph module is taken as it is, with its guards. Anything else is captured in the mode that is asked for, or in
    that of the configuration. Where neither names one, it is captured symbolically, so that the program
    stays right for inputs of other sizes; if that is refused, or computes something else than the model, it runs on
    the inputs (mode ``"value"``), and a warning says why and how many guards came of it.

    Args:
        model: What is captured.
        inputs: The positional arguments of one call.
        saved: The model as it is; it is put back after each attempt.
        mode: As `chosen_mode` returned it.
        manager: The plugins that take part, and the configuration.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Any, ...],
        saved: SavedState,
        *,
        mode: str | None,
        manager: PluginManager,
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._saved = saved
        self._manager = manager
        self._mode = mode

    def prepare(self, eager: Run | None, tolerance: Tolerance | None = None) -> Prepared:
        """Return the model as a graph module.

        Args:
            eager: What the model computes on the inputs, so that a symbolic capture nobody asked for can be compared
                with it; None to take it as it comes.
            tolerance: How much may lie between the two; by default according to dtype.

        Raises:
            TraceError: The model cannot be captured.
            MismatchError: What was captured on the inputs computes something else than the model.
        """
        if is_ready(self._model):
            return Prepared(self._model, "")
        if self._mode is not None:
            return self._captured(self._mode)
        try:
            found = self._captured("symbolic", autowrap=False, on_error="raise")
        except (
            TraceError,
            GuardError,
        ) as error:  # The latter from a graph module in it, which asks stand-ins.
            if self._stands_on_examples(error):
                raise
            reason = f"A symbolic capture is refused: {error.message}"
        else:
            reason = self._difference(found.module, eager, tolerance or Tolerance())
            if not reason:
                return found
        return self._with_reason(self._captured("value"), reason)

    def _stands_on_examples(self, error: TraceError | GuardError) -> bool:
        """Return whether a capture on the inputs would only run the model once more, to be refused alike."""
        settings = self._manager.config.trace
        is_final = isinstance(error, TraceError) and error.stands_on_examples
        return is_final and not settings.autowrap and settings.on_error == "raise"

    def _difference(self, module: GraphModule, eager: Run | None, tolerance: Tolerance) -> str:
        """Return why what was captured symbolically is not what the model computes, "" where it is."""
        if eager is None or not self._manager.config.trace.check or not has_data(self._model, self._inputs):
            return ""
        judgement = judge_values(module, self._inputs, eager, tolerance)
        self._saved.restore()
        if judgement.is_good:
            return ""
        return f"What a symbolic capture computes is something else: {judgement.text}."

    def _with_reason(self, prepared: Prepared, reason: str) -> Prepared:
        count = len(prepared.module.guards)
        guards = (
            "1 guard, checked"
            if count == 1
            else f"{count} guards, checked"
            if count
            else "no guard is left to check"
        )
        text = (
            f"{type(self._model).__name__} was captured on the example inputs, and is right for inputs that give its "
            f"questions the same answers ({guards} at each call). {reason}"
        )
        return replace(prepared, reason=text)

    def _captured(self, mode: str, **options: Any) -> Prepared:
        """Capture the model; what the tracer warns of becomes part of the result.

        Raises:
            TraceError: It cannot be captured in this mode.
            MismatchError: What was captured computes something else.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TraceWarning)
            try:
                module = trace(self._model, self._inputs, mode=mode, manager=self._manager, **options)
                without_gradients = self._asks_for_gradients(module)
                if without_gradients:
                    with torch.no_grad():
                        module = trace(self._model, self._inputs, mode=mode, manager=self._manager, **options)
            except FxplugError:
                raise
            except (Exception, SystemExit) as error:
                raise self._failure(mode, error) from error
            finally:
                # What the program did to lists and dicts of its own while it was captured is undone.
                self._saved.restore()
        told: list[str] = []
        for warning in caught:
            if issubclass(warning.category, TraceWarning):
                told.append(str(warning.message))
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return Prepared(module, mode, tuple(dict.fromkeys(told)), without_gradients=without_gradients)

    def _asks_for_gradients(self, module: GraphModule) -> bool:
        """Return whether a captured program refuses to run without gradients, as it does to be compared."""
        guards = module.guard_set
        if guards is None or not torch.is_grad_enabled():
            return False
        with torch.no_grad():
            return guards.failure(module, self._inputs, {}) is not None

    def _failure(self, mode: str, error: BaseException) -> TraceError:
        """Return the error for a model that runs on the inputs, and raises `error` while it is captured."""
        stand_ins, other = ("numbers", "")
        if mode == "symbolic":
            stand_ins, other = "values", ", capture it on the example (mode 'value')"
        return TraceError(
            f"Cannot trace {type(self._model).__name__}: it runs on the example, but not on stand-ins for "
            f"{stand_ins}: {error_with_place(error)}. Make the module that holds this line a leaf (leaf_modules in "
            f"the configuration){other}, or write it in a way that can be recorded.",
            code="FXP-T014",
        )


def is_ready(model: nn.Module) -> TypeGuard[GraphModule]:
    """Return whether a model is a graph module of which a call runs the graph and nothing else.

    Hooks, and a forward of a subclass, are no part of the graph: such a module is captured like any other.
    """
    return (
        isinstance(model, GraphModule)
        and overriding_class(model, GraphModule) is None
        and not any(vars(model)[name] for name in _HOOKS)
    )


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Tables of what a call of a module runs beside its forward."""


def has_data(model: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Return whether a model and its inputs have data, so that what it computes can be compared."""
    tensors = [*model.parameters(), *model.buffers(), *tensors_in(inputs)]
    return not any(tensor.is_meta or is_fake(tensor) for tensor in tensors)


def own_copy(captured: GraphModule, name: str) -> GraphModule:
    """Return a copy of a captured module that shares nothing with the model, for passes to change.

    What runs where a guard does not hold (``on_guard_failure``) gets weights of its own: the passes change those of
    the captured program, by which the original program would be changed a second time.

    Args:
        captured: The module.
        name: Of the model, for the error.

    Raises:
        FxplugError: Something in it cannot be copied.
    """
    try:
        copied = copy_module(captured)
        guards = copied.guard_set
        if guards is not None and guards.instead is not None:
            other = copy_module(captured).guard_set
            guards.instead = None if other is None else other.instead
    except Exception as error:
        raise FxplugError(
            f"Cannot work on {name}: something in it cannot be copied ({error_text(error)}), and the original has to "
            "stay as it is. Make the part that holds it copyable (__deepcopy__)."
        ) from error
    return copied
