"""The questions a tracer asks while it captures a program, so that others can customise it without subclassing."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.errors import TraceError
from fxplug.execute.fused import FusedLayer
from fxplug.semantics.internals import has_own_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fxplug.ir import Node

__all__ = ["TraceContext", "TraceEvent", "TracePolicy", "check_settings", "is_leaf_by_class"]


@dataclass(frozen=True)
class TraceContext:
    """What is being traced when a question is asked; a record handed to every hook of a trace."""

    root: Any
    """The module or function that is being traced."""
    mode: str = "symbolic"
    """How values are treated: ``"symbolic"``, ``"shape"`` or ``"value"``."""


@dataclass(frozen=True)
class TraceEvent:
    """The start or the end of a trace."""

    context: TraceContext
    """What is traced."""
    graph: Any = None
    """The finished graph; None at the start and after a failure."""
    error: BaseException | None = None
    """What ended the trace early."""
    seconds: float = 0.0
    """How long the trace took; 0 at the start."""


@dataclass(frozen=True)
class TracePolicy:
    """Answers to the tracer's questions; a question that is None costs nothing.

    The default policy answers none of them: the tracer's own rules apply.
    """

    is_leaf_module: Callable[[nn.Module, str, TraceContext], bool | None] | None = None
    """(module, qualified name, context) -> whether the module stays one node; None = the tracer decides."""
    create_argument: Callable[[Any, TraceContext], Any] | None = None
    """(value, context) -> an argument of the graph for a value of a foreign type; None = no opinion."""
    lift_constant: Callable[[Any], str | None] | None = None
    """(value) -> how the name of a constant of the graph begins that is to hold the value; None = it is none."""
    proxy_mixins: Callable[[Node, str, TraceContext], tuple[type, ...]] | None = None
    """(node, kind, context) -> classes mixed into the proxy that stands for the node, first one first."""
    mixins_of_kind: Callable[[str, TraceContext], tuple[type, ...]] | None = None
    """(kind, context) -> the same for every node of a trace; asked once when it starts, unless `proxy_mixins` is."""
    node_created: Callable[[Node, TraceContext], Mapping[str, Any] | None] | None = None
    """(node, context) -> notes to be added to the node's ``meta``."""
    unwrap_module: Callable[[nn.Module], nn.Module | None] | None = None
    """(module) -> the module inside a wrapper; None = it is no wrapper."""
    leaf_functions: Callable[[], Iterable[Callable[..., Any]]] | None = None
    """() -> functions whose calls stay calls; asked once when a trace starts."""
    trace_started: Callable[[TraceEvent], None] | None = None
    """Observes the start of a trace."""
    trace_finished: Callable[[TraceEvent], None] | None = None
    """Observes the end of a trace."""


def is_leaf_by_class(module: nn.Module) -> bool:
    """Return fxplug's own rule for leaves: the classes that torch.nn ships, except containers, and fused layers.

    Modules that TorchScript has compiled run no Python that could be recorded: they are leaves, too. A class of torch
    to which somebody has given another ``__call__`` is none: what that does besides is recorded, and would be done
    twice.
    """
    kind = type(module)
    is_torchs = str(kind.__module__).startswith(("torch.nn", "torch.ao.nn"))
    if is_torchs and not isinstance(module, nn.Sequential) and not has_own_call(kind):
        return True
    return isinstance(module, (FusedLayer, _ScriptModule))


_ScriptModule: type = torch.jit.ScriptModule


def check_settings(modules: Any, functions: Any, policy: Any) -> None:
    """Refuse settings of a tracer that it could not use.

    Args:
        modules: Python modules.
        functions: Callables; which of them can be kept as calls is looked at when a trace starts.
        policy: None for none.

    Raises:
        TraceError: One of them is something else.
    """
    _check_each("autowrap_modules", modules, "Python modules, as in (math,)", _is_module)
    _check_each("autowrap_functions", functions, "functions, as in (torch.relu,)", callable)
    if policy is not None and not isinstance(policy, TracePolicy):
        raise TraceError(
            f"Cannot make a tracer: policy is {policy!r}, a {type(policy).__name__}. Pass a fxplug.TracePolicy, whose "
            "fields are the answers."
        )


def _check_each(name: str, given: Any, wanted: str, is_right: Callable[[Any], bool]) -> None:
    is_several = isinstance(given, (tuple, list, set, frozenset))
    wrong = [value for value in cast("list[Any]", given) if not is_right(value)] if is_several else [given]
    if wrong:
        raise TraceError(
            f"Cannot make a tracer: {name} {'holds' if is_several else 'is'} {wrong[0]!r}, a "
            f"{type(wrong[0]).__name__}. Pass a tuple of {wanted}."
        )


def _is_module(value: Any) -> bool:
    return isinstance(value, ModuleType)
