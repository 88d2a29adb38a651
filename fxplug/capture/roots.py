"""What is run when a root is traced, as a function whose first argument is the root."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.inputs import Given, Input, call_with, first_unknown
from fxplug.capture.interception import entering, original_call
from fxplug.capture.wrappers import inner_module
from fxplug.capture.wrapping import check_inputs
from fxplug.errors import TraceError
from fxplug.semantics.internals import has_backward_hooks, has_forward_hooks, has_own_call

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RootCall", "Unbound", "function_of", "refuse_backward_hooks", "signature_source"]


class Unbound:
    """Takes the root first and drops it: stands for what is no method of the root's class.

    Args:
        like: Whose signature the call has.
        run: What is called without the root.
    """

    def __init__(self, like: Callable[..., Any], run: Callable[..., Any]) -> None:
        self.like = like
        self.run = run

    def __call__(self, root: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        """Call it without the root."""
        return self.run(*args, **kwargs)


def function_of(root: nn.Module, name: str) -> Callable[..., Any]:
    """Return the method `name` of a module as a function that takes the module first; with it the hooks of forward.

    Raises:
        TraceError: The module has no such method, or something around its forward cannot be recorded.
    """
    if isinstance(root, torch.jit.ScriptModule):
        raise TraceError(
            f"Cannot trace {type(root).__name__}: it is a scripted module, which is compiled and runs no Python that "
            "could be recorded. Trace the module that was scripted, or a module that holds this one.",
            code="FXP-T014",
        )
    inner = inner_module(root) if name == "forward" else None
    if inner is not None:
        return Unbound(inner.forward, inner)
    bound = getattr(root, name, None)
    if not callable(bound):
        raise TraceError(
            f"Cannot trace {type(root).__name__}: it has no method {name!r}, which traced_func_name names. Set "
            "traced_func_name to a method of the module."
        )
    if name == "forward":
        if has_own_call(type(root)):
            raise TraceError(
                f"Cannot trace {type(root).__name__}: it has a __call__ of its own, around the forward that would "
                "be traced. Trace a module or function that calls it.",
                code="FXP-T010",
            )
        refuse_backward_hooks(root, "the root")
        if has_forward_hooks(root):
            return Unbound(bound, partial(original_call, root))
    if isinstance(bound, MethodType) and bound.__self__ is root:
        return bound.__func__
    return Unbound(bound, bound)


def signature_source(function: Callable[..., Any], root: nn.Module | None) -> Callable[..., Any]:
    """Return the callable whose parameters, without the root, are those of `function`."""
    if isinstance(function, Unbound):
        return function.like
    return function if root is None else MethodType(function, root)


class RootCall:
    """Runs a root with one value for each parameter.

    Args:
        function: Takes the root first if there is one.
        root: The module; None when a function is traced.
        inputs: The parameters without the root.
        given: How the examples were given; None where there are none.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        root: nn.Module | None,
        inputs: list[Input],
        given: Given | None = None,
    ) -> None:
        self.inputs = inputs
        self.constants: set[str] = set()
        """The names of the parameters that the graph has no input for: they stay what they are by default."""
        self._given = given
        self._skipped = 0 if root is None else 1
        self._source = signature_source(function, root)
        self._with_hooks: Callable[..., Any] | None = None
        if isinstance(function, Unbound) and function.run is not function.like:
            self._with_hooks = function.run

    @property
    def must_name(self) -> frozenset[str]:
        """The names of the parameters that callers of the captured program must name, behind one that it has not."""
        if not self.constants:
            return frozenset()
        first = next(index for index, entry in enumerate(self.inputs) if entry.name in self.constants)
        behind = self.inputs[first:]
        return frozenset(entry.name for entry in behind if not entry.stars) - self.constants

    def __call__(self, *args: Any) -> Any:
        """Run it.

        Raises:
            TraceError: There are hooks, and how many values they receive is unknown.
        """
        body = entering(self._source)
        values = list(args[self._skipped :])
        if self._with_hooks is not None and first_unknown(self.inputs, values) is not None:
            raise TraceError(
                "Cannot trace a root that has forward hooks and takes a variable number of arguments: hooks receive "
                "them one by one. Trace it with example inputs, remove the hooks, or wrap the module in one with fixed "
                "parameters.",
                code="FXP-T010",
            )
        by_name = {entry.name: value for entry, value in zip(self.inputs, values, strict=True)}
        check_inputs(body, (body.__self__,) if isinstance(body, MethodType) else (), by_name)
        return call_with(self._with_hooks or body, self.inputs, values, self._given)


def refuse_backward_hooks(module: nn.Module, what: str) -> None:
    """Refuse a module that is to be traced through although it has backward hooks.

    Raises:
        TraceError: It has.
    """
    if has_backward_hooks(module):
        raise TraceError(
            f"Cannot trace into {what} ({type(module).__name__}): it has backward hooks, which run on gradients and "
            "cannot be recorded. Remove them, or make the module a leaf.",
            code="FXP-T010",
        )
