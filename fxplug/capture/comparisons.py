"""Comparisons by identity, such as ``mask is None``, with what a function of the program is called with."""

from __future__ import annotations

import inspect
from contextlib import suppress
from itertools import combinations, product
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.annotated import rely_on_annotations
from fxplug.capture.answers import OPTIONAL_ATTRIBUTES
from fxplug.capture.arguments import iterate_parts
from fxplug.capture.compared import compared_with_found, comparisons_under_way
from fxplug.capture.hazards import arguments_under_test, scan_of, values_by_name
from fxplug.capture.identity import Pair, is_result_returned, test_of_result
from fxplug.capture.kinds import held_value, kind_of_node, may_be_none, may_hold_none
from fxplug.capture.operands import Call, candidates
from fxplug.capture.originals import original_of
from fxplug.capture.proxy import Attribute, Proxy
from fxplug.capture.sameness import are_one_object, may_be_one_object, passes_on, tell_apart
from fxplug.capture.sources import frames_of_program, passes_calls_on, user_line
from fxplug.errors import TraceError
from fxplug.semantics.checks import check_equal, same_value
from fxplug.semantics.kinds import TENSOR_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import FunctionType

    from fxplug.capture.identity import Test
    from fxplug.capture.sessions import Session
    from fxplug.ir import Node

__all__ = [
    "check_call",
    "check_comparisons",
    "check_result",
    "check_returned",
    "check_tested",
    "check_weight",
    "hear_of_gradients",
]

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
            rely_on_annotations(tracer, node)
            continue
        if test.is_for_none and node in tracer.given:
            _record_presence(tracer, value, test)
        elif test.is_for_none and node.op == "placeholder" and not (node.args and node.args[0] is None):
            tracer.note_assumption(node, _refusal(tracer, node, name, test))
        else:
            error = _refusal(tracer, node, name, test)
            tracer.note_refusal(error)
            raise error
    scan = scan_of(function.__code__)
    if scan.pairs or scan.comparisons:
        given = {**_closed_over(function), **_given_to(function, args, kwargs)}
        check_call(tracer, Call(function.__code__, given, function.__globals__))


def check_call(tracer: Any, call: Call) -> None:
    """Look at a call of a function that compares two values by identity.

    Raises:
        TraceError: Whether they are one object hangs on who calls the captured program.
    """
    scan = scan_of(call.code)
    for pair in scan.pairs:
        _check_pair(tracer, pair, call)
    for comparison in scan.comparisons:
        if not comparison.is_by_operator:
            pair = Pair(comparison.line, "", "")
            found = [
                (one, other)
                for one, other in candidates(tracer, call, comparison)
                if _may_be_one(one, other, tracer.root)
            ]
            if len(found) > _MOST_COMPARED or any(isinstance(other, torch.Tensor) for _, other in found):
                _refuse_pair(tracer, pair, found[0][0].node)
            for one, other in found:
                _compare(tracer, pair, one, other)


def _may_be_one(one: Proxy, other: Any, root: Any) -> bool:
    """Return whether what stands for a value may be another one, or a weight that the program has found as it is."""
    if isinstance(other, torch.Tensor):
        return one.node.op == "get_attr" and held_value(one.node, root) is other
    return may_be_one_object(one.node, other.node, root)


_MOST_COMPARED = 16
"""So many pairs of values are recorded to be two objects each."""


def _closed_over(function: FunctionType) -> dict[str, Any]:
    """Return what a function closes over, by name, as far as it has a value yet."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _given_to(function: FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each parameter of a function is given in a call, those behind stars included."""
    code = function.__code__
    given = dict(values_by_name(function, args, kwargs))
    place = code.co_argcount + code.co_kwonlyargcount
    named = code.co_varnames[:place]
    if code.co_flags & inspect.CO_VARARGS:
        given[code.co_varnames[place]] = args[code.co_argcount :]
        place += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        given[code.co_varnames[place]] = {key: kwargs[key] for key in kwargs.keys() - set(named)}
    return given


def check_result(tracer: Any, proxy: Proxy) -> None:
    """Look whether the program compares by identity what a call that was just recorded returns, and may be None.

    Raises:
        TraceError: It does: the comparison does not ask what stands for the value.
    """
    for frame in frames_of_program():
        test = test_of_result(frame.f_code, frame.f_lasti)
        if test is not None and _may_answer_otherwise(proxy.node, tracer.root, test):
            error = _refusal(tracer, proxy.node, f"what {proxy.node.name!r} stands for", test)
            tracer.note_refusal(error)
            raise error
        if not is_result_returned(frame.f_code, frame.f_lasti):
            return


def check_returned(tracer: Any, proxy: Proxy) -> None:
    """Look whether the program compares what a call that was just recorded returns with what may be the same object.

    What a function is called with is looked at when it is called (see `check_comparisons`).

    Raises:
        TraceError: It does: what stands for the result is another object than what stands for the argument.
    """
    node = proxy.node
    if not passes_on(node, tracer.root):
        return
    for comparison, values in comparisons_under_way(_is_tensor):
        if comparison.is_by_operator:
            continue  # What finds these functions is refused (see `StateKeeper.on_function_reached`).
        if not values or any(_may_be_result(tracer, node, value) for value in values):
            _refuse_pair(tracer, Pair(comparison.line, "", ""), node)


def check_weight(tracer: Any, proxy: Proxy, weight: torch.Tensor, *, is_listed: bool) -> None:
    """Look whether the program may compare what stands for a weight with the weight itself, which it finds otherwise.

    Args:
        tracer: Who traces.
        proxy: What stands for the weight.
        weight: The weight.
        is_listed: Whether the program asks modules for their weights.

    Raises:
        TraceError: It does: Python would find two objects.
    """
    for comparison in compared_with_found(weight, lambda value: value is weight or value is proxy):
        _refuse_pair(tracer, Pair(comparison.line, "", ""), proxy.node)
    for comparison, values in comparisons_under_way(_is_tensor) if is_listed else ():
        if not comparison.is_by_operator and (not values or any(value is weight for value in values)):
            _refuse_pair(tracer, Pair(comparison.line, "", ""), proxy.node)


def _is_tensor(value: Any) -> bool:
    return issubclass(type(value), (Proxy, torch.Tensor))


def _may_be_result(tracer: Any, node: Node, value: Any) -> bool:
    """Return whether a call may have returned a value that the program has already."""
    if not issubclass(type(value), Proxy):
        return any(used.op == "get_attr" for used in node.all_input_nodes)
    return (
        value.tracer is tracer and value.node is not node and may_be_one_object(node, value.node, tracer.root)
    )


def hear_of_gradients(
    tracer: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: Any
) -> Any:
    """Hear of a call of ``torch.autograd.grad``, which may give None for what is not used; return the gradients."""
    if isinstance(gradients, Proxy):
        check_result(tracer, gradients)
    return gradients


def check_tested(tracer: Any, proxy: Proxy) -> None:
    """Look whether the program compares what a call that was just recorded returns with a number, a text or the like.

    Raises:
        TraceError: It does, and what stands for the result is never what it is compared with.
    """
    for frame in frames_of_program():
        test = test_of_result(frame.f_code, frame.f_lasti)
        if test is not None and test.cls is not NoneType and not _is_certain(proxy.node, tracer.root, test):
            error = _refusal(tracer, proxy.node, f"what {proxy.node.name!r} stands for", test)
            tracer.note_refusal(error)
            raise error
        if not is_result_returned(frame.f_code, frame.f_lasti):
            return


def _may_answer_otherwise(node: Node, root: Any, test: Test) -> bool:
    return may_be_none(node, root) or (not test.is_for_none and may_hold_none(node, root))


def _check_pair(tracer: Any, pair: Pair, call: Call) -> None:
    """Look at a comparison of what a function is called with with another value.

    Two values that the function is called with are recorded to be two, unless they are one, or cannot be one.

    Raises:
        TraceError: What it is compared with is not known, or is not what the function is called with as a whole.
    """
    given = call.given
    one, other = given.get(pair.one, _UNKNOWN), given.get(pair.other, _UNKNOWN)
    if pair.name:
        other = original_of(call.namespace.get(pair.name, _UNKNOWN))
    for value, is_part in ((one, pair.one_is_part), (other, pair.other_is_part)):
        if is_part and _is_ours(value, tracer):
            _refuse_pair(tracer, pair, value.node)
    if not pair.one:
        _compare_parts(tracer, pair, combinations(_traced_parts(tracer, list(given.values())), 2))
    elif pair.one_is_part or pair.other_is_part:
        parts = _traced_parts(tracer, one)
        others = parts if other is _UNKNOWN else _traced_parts(tracer, other)
        _compare_parts(tracer, pair, product(parts, others))
    elif _is_ours(one, tracer) and _is_ours(other, tracer):
        _compare(tracer, pair, one, other)
    elif _is_ours(one, tracer) and (other is _UNKNOWN or _may_be(one.node, other, tracer.root)):
        _refuse_pair(tracer, pair, one.node)
    elif _is_ours(other, tracer) and _may_be(other.node, one, tracer.root):
        _refuse_pair(tracer, pair, other.node)


_UNKNOWN: Any = object()


def _is_ours(value: Any, tracer: Any) -> bool:
    return isinstance(value, Proxy) and value.tracer is tracer


def _may_be(node: Node, value: Any, root: Any) -> bool:
    """Return whether the value of a node may be an object that is no traced value."""
    kind = kind_of_node(node, root)
    if kind is None:
        return may_be_none(node, root)
    return isinstance(value, kind.cls) and not issubclass(kind.cls, torch.Tensor)


def _compare(tracer: Any, pair: Pair, one: Any, other: Any) -> None:
    """Record that two values are two objects, as Python finds them to be while they are traced."""
    if one is other:
        return
    nodes = (one.node, other.node)
    if nodes[0] is nodes[1] or are_one_object(*nodes, tracer.root):
        _refuse_pair(tracer, pair, one.node)
    tell_apart(tracer, one, other, f" at {pair.line} ({pair.line.text!r})")


def _compare_parts(tracer: Any, pair: Pair, candidates: Iterable[tuple[Node, Node]]) -> None:
    """Look at a comparison of parts of what a function is called with: of which ones is not known.

    Raises:
        TraceError: Two of them may be one object.
    """
    for first, second in candidates:
        if first is not second and may_be_one_object(first, second, tracer.root):
            _refuse_pair(tracer, pair, first)


def _traced_parts(tracer: Any, value: Any) -> list[Node]:
    found = [part.node for part in iterate_parts(value) if _is_ours(part, tracer)]
    return list(dict.fromkeys(found))


def _refuse_pair(tracer: Any, pair: Pair, node: Node) -> None:
    error = TraceError(
        f"Cannot trace: whether two values are the same object is asked at {pair.line} ({pair.line.text!r}), and what "
        f"{node.name!r} is, is unknown. Compare what is in them (torch.equal), or make the enclosing module a leaf, or "
        "give example inputs: fxplug.trace(root, example_inputs).",
        code="FXP-T041",
    )
    tracer.note_question(error, node, f" at {pair.line} ({pair.line.text!r})")
    tracer.note_refusal(error)
    raise error


def _is_certain(node: Node, root: Any, test: Test) -> bool:
    """Return whether the comparison has one answer for every value that a node can have."""
    kind = kind_of_node(node, root)
    if kind is None:
        return test.cls is NoneType and not may_be_none(node, root)
    if test.is_for_none or issubclass(kind.cls, torch.Tensor):
        return True
    return not issubclass(kind.cls, (*_TWO_VALUED, test.cls))


def _record_presence(tracer: Any, proxy: Proxy, test: Test) -> None:
    """Record the guard that an input is not None."""
    text = f"{proxy.node.target} is not None{_place_of(test)}"
    # Functions of Python would not be heard of when the captured program is traced again.
    is_none = tracer.create_proxy("call_function", same_value, (proxy, None), {})
    tracer.create_proxy("call_function", check_equal, (is_none, False, text, True), {})
    tracer.given.discard(proxy.node)


def _place_of(test: Test) -> str:
    """Return where a comparison is made, for messages."""
    place = f" at {test.line} ({test.line.text!r})"
    caller = user_line() if passes_calls_on(test.line.filename) else None
    return place if caller is None else f" at {caller} ({caller.text!r}), inside torch{place}"


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
    place = _place_of(test)
    error = TraceError(
        f"Cannot trace: whether {test.question.format(name=name)} is asked{place}, and "
        f"the value of {node.name!r} is unknown. {remedy}give example inputs: fxplug.trace(root, example_inputs).",
        code="FXP-T041",
    )
    tracer.note_question(error, node, place)
    return error
