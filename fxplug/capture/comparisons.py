"""Comparisons by identity, such as ``mask is None``, with what a function of the program is called with."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.answers import OPTIONAL_ATTRIBUTES
from fxplug.capture.hazards import arguments_under_test
from fxplug.capture.kinds import kind_of_node, may_be_none
from fxplug.capture.proxy import Attribute, Proxy
from fxplug.errors import TraceError
from fxplug.semantics.internals import assert_function
from fxplug.semantics.kinds import TENSOR_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FunctionType

    from fxplug.capture.identity import Test
    from fxplug.capture.sessions import Session
    from fxplug.ir import Node

__all__ = ["check_comparisons"]

_TWO_VALUED = (bool, dict, list, tuple)
"""Classes whose values, or parts of them, may be what they are compared with."""


def check_comparisons(
    session: Session, function: FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Look at what a function is called with that compares some of it by identity.

    A value that cannot be None passes. An input without a default passes if the captured program fails when it is None
    after all, which is known in the end. What the caller has said to be there is checked when the program runs.

    Args:
        session: The trace.
        function: With its own code.
        args: Of the call, the object of a method included.
        kwargs: Of the call.

    Raises:
        TraceError: Which way the comparison goes hangs on who calls the captured program.
    """
    tracer: Any = session.interceptor
    for value, name, test in arguments_under_test(function, args, kwargs):
        if not isinstance(value, Proxy) or value.tracer is not tracer:
            continue
        if isinstance(value, Attribute) and vars(value).get("_node") is None:
            if value.attr in TENSOR_NAMES and value.attr not in OPTIONAL_ATTRIBUTES:
                continue
            raise _refusal(tracer, value.node, name, test)
        node = value.node
        if test.is_indirect and not (node.op == "placeholder" and node.args and node.args[0] is None):
            continue
        if _is_certain(node, tracer.root, test):
            continue
        if test.is_for_none and node in tracer.given:
            _record_presence(tracer, value)
        elif test.is_for_none and node.op == "placeholder" and not (node.args and node.args[0] is None):
            tracer.note_assumption(node, _refusal(tracer, node, name, test))
        else:
            error = _refusal(tracer, node, name, test)
            tracer.note_refusal(error)
            raise error


def _is_certain(node: Node, root: Any, test: Test) -> bool:
    """Return whether the comparison has one answer for every value that a node can have."""
    kind = kind_of_node(node, root)
    if kind is None:
        return not may_be_none(node, root)
    if test.is_for_none or issubclass(kind.cls, torch.Tensor):
        return True
    return not issubclass(kind.cls, _TWO_VALUED)


def _record_presence(tracer: Any, proxy: Proxy) -> None:
    """Record that an input must not be None."""
    name = str(proxy.node.target)
    present = tracer.create_proxy("call_function", operator.is_not, (proxy, None), {})
    message = f"{name} was taken to be given, and not None, when the program was traced"
    tracer.create_proxy("call_function", assert_function, (present, message), {})
    tracer.given.discard(proxy.node)


def _refusal(tracer: Any, node: Node, name: str, test: Test) -> TraceError:
    if node.op == "placeholder":
        path = str(node.target)
        remedy = (
            f"Trace without it (concrete_args={{{path!r}: None}}), or say that it is always given "
            f"(concrete_args={{{path!r}: fxplug.PH}}); or "
            if test.is_for_none
            else f"Fix it (concrete_args={{{path!r}: ...}}), or "
        )
    else:
        remedy = "Make the enclosing module a leaf, or "
    return TraceError(
        f"Cannot trace: whether {test.question.format(name=name)} is asked at {test.line} ({test.line.text!r}), and "
        f"the value of {node.name!r} is unknown. {remedy}give example inputs: fxplug.trace(root, example_inputs).",
        code="FXP-T041",
    )
