"""Capturing programs that do nothing but call modules and torch: nobody has to listen while they run on examples.

What such a program does is the same for all inputs (see `fxplug.capture.plain_functions`). It is traced as if there
were no examples, and run on them by itself, for the errors that it may raise.
"""

from __future__ import annotations

import inspect
import operator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.analyze.isolation import SavedTensors
from fxplug.capture import Tracer
from fxplug.execute import GraphModule
from fxplug.ir import Node
from fxplug.ir.collector import paused_collection
from fxplug.semantics.modules import returns_new_tensor
from fxplug.semantics.random_state import kept_random_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fxplug.capture import TracePolicy

__all__ = ["capture_plainly", "runs_through"]

_STARS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def capture_plainly(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], policy: TracePolicy, name: str
) -> GraphModule | None:
    """Return what is captured of a plain program, None for any other one.

    Args:
        program: A module or function.
        args: Example inputs, by position.
        kwargs: The same by name.
        policy: The answers of others to the questions of a tracer. Who wants to hear of traces hears of one alone.
        name: Of what is captured.
    """
    if not isinstance(program, nn.Module) or kwargs or not _takes_tensors(program, args):
        return None
    if any((policy.trace_started, policy.trace_finished, policy.node_created)):
        return None
    tracer = Tracer(policy=policy)
    tracer.traces_plain_alone = True
    try:
        with paused_collection():
            graph = tracer.trace(program)
            captured = GraphModule(program, graph, name)
    except Exception:
        return None
    return None if any(map(_does_more, graph.nodes)) else captured


def _does_more(node: Node) -> bool:
    """Return whether a node reads a weight, which may be changed, or gives a list to an operator."""
    is_operator = node.op == "call_function" and node.target in _OPERATORS
    return node.op == "get_attr" or (is_operator and not all(type(part) in _OPERANDS for part in node.args))


_OPERATORS = frozenset(value for value in vars(operator).values() if callable(value))
_OPERANDS = frozenset({Node, bool, complex, float, int})


def _takes_tensors(program: nn.Module, args: Sequence[Any]) -> bool:
    """Return whether the forward of a module takes as many inputs as there are, and all of them are plain tensors."""
    forward = getattr(type(program), "forward", None)
    if type(forward) is not FunctionType or not all(map(_is_alone, args)):
        return False
    code = forward.__code__
    is_plain = not code.co_flags & _STARS and not code.co_kwonlyargcount and not forward.__defaults__
    return is_plain and code.co_argcount == len(args) + 1


def _is_alone(value: Any) -> bool:
    """Return whether a value is a plain tensor without a history, into which a run may write."""
    return type(value) is torch.Tensor and value.grad_fn is None


def runs_through(program: nn.Module, captured: GraphModule, args: Sequence[torch.Tensor]) -> bool:
    """Run a program that was captured by `capture_plainly`; return whether it ends without an error.

    The inputs and the random state are as before.
    """
    saved = SavedTensors(args if _may_write_to_inputs(captured) else ())
    with kept_random_state():
        try:
            program(*args)
        except Exception:
            return False
        finally:
            saved.restore()
    return True


def _may_write_to_inputs(captured: GraphModule) -> bool:
    for node in captured.graph.nodes:
        if node.op != "placeholder":
            return False
        for user in node.users:
            is_layer = user.op == "call_module"
            if not (is_layer and returns_new_tensor(captured.get_submodule(str(user.target)))):
                return True
    return False
