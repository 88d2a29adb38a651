"""Capturing programs that do nothing but call modules and torch: nobody has to listen while they run on examples.

What such a program does is the same for all inputs (see `fxplug.capture.plain_functions`). It is traced as if there
were no examples, and what was traced is run on them by itself, for the errors that it may raise; unless it is known
from sizes that it raises none (see `fxplug.api.plain_shapes`).
"""

from __future__ import annotations

import inspect
import math
import operator
import sys
from contextlib import nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.analyze.isolation import SavedTensors
from fxplug.api.plain_answers import PlainAnswers
from fxplug.api.plain_identity import are_objects_of_their_own
from fxplug.api.plain_judging import (
    checks_of_counts,
    do_more,
    first_asked,
    settle_checks,
)
from fxplug.api.plain_run import WrongTellingError, run_plainly
from fxplug.capture import Tracer
from fxplug.capture.attempts import keep_attempts
from fxplug.capture.caught import forget_frames
from fxplug.capture.examples.acting import mark_checks_behind
from fxplug.capture.examples.guarding import guards_of_inputs, present
from fxplug.capture.examples.learning import LAYERS, learn
from fxplug.capture.interception import own_code
from fxplug.capture.plain_contexts import inside_of_contexts
from fxplug.execute import GraphModule
from fxplug.execute.guards import GuardSet
from fxplug.ir.collector import paused_collection
from fxplug.ir.guards import StateGuard
from fxplug.semantics.checks import check_equal, check_length, check_true, same_value
from fxplug.semantics.internals import are_calls_heard, is_under_modes
from fxplug.semantics.modules import returns_new_tensor
from fxplug.semantics.random_state import kept_random_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fxplug.capture import TracePolicy
    from fxplug.capture.layer_records import LayerCall
    from fxplug.ir import Node

__all__ = ["capture_plainly"]

_STARS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def capture_plainly(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], policy: TracePolicy, name: str
) -> GraphModule | None:
    """Return what is captured of a plain program, None for any other one and for one that raises an error.

    The inputs and the random state are as before.

    Args:
        program: A module or function.
        args: Example inputs, by position.
        kwargs: The same by name.
        policy: The answers of others to the questions of a tracer. Who wants to hear of traces hears of one alone.
        name: Of what is captured.
    """
    function, first = _function_of(program)
    function = inside_of_contexts(function, own_code)
    if type(function) is not FunctionType or "__wrapped__" in function.__dict__:
        return None
    given = _by_position(function, first, args, kwargs) if kwargs else args
    left_out = None if given is None else _left_out(function, first, given)
    if given is None or left_out is None:
        return None
    if policy.trace_started or policy.trace_finished or policy.node_created:
        return None
    handled = sys.exc_info()[1]
    try:
        return _capture_in_turns(program, given, left_out, policy, name)
    except Exception as error:
        forget_frames(error, handled)
        return None


def _capture_in_turns(
    program: Any,
    args: Sequence[torch.Tensor],
    left_out: Mapping[str, Any],
    policy: TracePolicy,
    name: str,
) -> GraphModule | None:
    """Trace and run a program; once more where layers are unknown, or where something else was told than was found."""
    tells, handled = True, sys.exc_info()[1]
    root = program if isinstance(program, nn.Module) else nn.Module()
    for _ in range(_MOST_TURNS):
        tracer = _tracer(policy)
        tracer.left_out = left_out
        try:
            captured = _capture(program, args, tracer, PlainAnswers(root, args, tells=tells), name)
        except WrongTellingError as error:
            forget_frames(error, handled)
            tells = False
            continue
        if not tracer.unknown_layers:
            return captured
        learn(tracer.unknown_layers)
    return None


_MOST_TURNS = 3


def _tracer(policy: TracePolicy) -> Tracer:
    tracer = Tracer(policy=policy)
    tracer.traces_plain_alone, tracer.layer_calls = True, []
    if not (_says_of_values(policy) or are_calls_heard() or is_under_modes()):
        tracer.layer_records = LAYERS
    return tracer


def _capture(
    program: Any, args: Sequence[torch.Tensor], tracer: Tracer, answers: PlainAnswers, name: str
) -> GraphModule | None:
    """Trace a program and run what was traced; return None where that is not all that there is to say of it."""
    with answers.heard_by(tracer):
        with paused_collection():
            tracer.trace(program)
            if tracer.unknown_layers:
                return None
            answers.checks.refuses_none = tracer.needs_examples
            nodes = tracer.graph.nodes.listed()
            checks = checks_of_counts(nodes) if tracer.has_checks else []
            asked = tracer.asked_rank or answers.rank_asked or first_asked(nodes)
            if do_more(nodes, tracer, checks, answers, asks=asked is not None):
                return None
            is_asked = tracer.plain is not None and tracer.plain.compares
            if is_asked and not are_objects_of_their_own(nodes, args, tracer.root):
                return None
        root = tracer.root
        _run(root, nodes, args, tracer, answers)
    with paused_collection():
        inputs = nodes[: len(args) + len(tracer.left_out)]
        guards = guards_of_inputs(inputs, args, answers.at_entry, asked, _said_of_inputs(inputs, tracer))
        answers.settle(tracer.graph)  # What was copied to answer the guards is not needed here any more.
        settle_checks(tracer.graph, checks, root)
        if tracer.plain is not None and tracer.plain.catching:
            keep_attempts(tracer.graph, root)
        if answers.writing:
            mark_checks_behind(tracer.graph.nodes, answers.checks.acted, root, answers.writing)
        captured = _captured(root, tracer, name)
        if guards is not None:
            captured.set_guards(GuardSet(*guards))
        return captured


def _says_of_values(policy: TracePolicy) -> bool:
    """Return whether answers may say something else of what a layer does that is looked through."""
    return bool(
        policy.create_argument
        or policy.leaf_functions
        or policy.lift_constant
        or policy.mixins_of_kind
        or policy.proxy_mixins
    )


def _captured(root: nn.Module, tracer: Tracer, name: str) -> GraphModule:
    """Return the module for what was traced."""
    graph = tracer.graph
    if tracer.asked_flags:
        graph.captured_training = root.training
        asked = [StateGuard(f"self.{path}.training", (), flag) for path, flag in tracer.asked_flags.items()]
        graph.state_guards = tuple(dict.fromkeys((*graph.state_guards, *asked)))
    return GraphModule(root, graph, name)


def _said_of_inputs(inputs: Sequence[Node], tracer: Tracer) -> list[tuple[Node, Any]]:
    """Return what a program that asks for it takes inputs to be: each with None, its value or its class."""
    left_out, plain = tracer.left_out, tracer.plain
    said = [(node, left_out[str(node.target)]) for node in inputs if node.target in left_out]
    given = [node for node in inputs if node.target not in left_out]
    # A parameter, which an input may be compared with, is of another class.
    if plain is not None and (plain.asks_for_classes or plain.compares):
        return said + [(node, torch.Tensor) for node in given]  # Which None is not.
    is_asked = plain is not None and plain.needs_examples
    return said + [(node, present) for node in given if node.args or is_asked]


def _function_of(program: Any) -> tuple[Any, int]:
    """Return the function that runs when a program is called, and the number of its first input."""
    return (getattr(type(program), "forward", None), 1) if isinstance(program, nn.Module) else (program, 0)


def _by_position(
    function: FunctionType, first: int, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Sequence[Any] | None:
    """Return all inputs of a program by position; None where those that are given by name are not the next ones.

    Args:
        function: That runs when the program is called.
        first: The number of its first input.
        args: The inputs by position.
        kwargs: The others.
    """
    code, begin = function.__code__, first + len(args)
    following = code.co_varnames[begin : begin + len(kwargs)]
    is_named = code.co_posonlyargcount <= begin and begin + len(kwargs) <= code.co_argcount
    return (
        (*args, *(kwargs[name] for name in following)) if is_named and set(following) == set(kwargs) else None
    )


def _left_out(function: FunctionType, first: int, args: Sequence[Any]) -> dict[str, Any] | None:
    """Return the inputs of a program that are not given, with their defaults; None where it does not take the others.

    All that is given are plain tensors, and what is not has None or a flag for its default.

    Args:
        function: That runs when the program is called.
        first: The number of its first input.
        args: What is given.
    """
    if not all(map(_is_alone, args)):
        return None
    code, defaults = function.__code__, function.__defaults__ or ()
    count = code.co_argcount - first
    missing = code.co_varnames[first + len(args) : first + count]
    by_name = code.co_varnames[first + count : first + count + code.co_kwonlyargcount]
    known = {
        **dict(zip(missing, defaults[len(defaults) - len(missing) :], strict=False)),
        **(function.__kwdefaults__ or {}),
    }
    is_plain = not code.co_flags & _STARS and len(args) <= count
    if (
        not is_plain
        or known.keys() != {*missing, *by_name}
        or not _FLAGS.issuperset(map(type, known.values()))
    ):
        return None
    return known


_FLAGS = frozenset({bool, type(None)})


def _is_alone(value: Any) -> bool:
    """Return whether a value is a plain tensor without a history, into which a run may write."""
    return type(value) is torch.Tensor and value.grad_fn is None


def _run(
    program: nn.Module,
    nodes: Sequence[Node],
    args: Sequence[torch.Tensor],
    tracer: Tracer,
    answers: PlainAnswers,
) -> None:
    """Run a program on its examples, if it may raise errors; these and the random state are as before.

    Those of a run that has begun are put back by who has begun it.
    """
    checks = answers.checks if answers.checks.are_needed else None
    calls = tracer.layer_calls or ()
    values = (*args, *tracer.left_out.values())
    if answers.run is None and answers.is_known_to_run(tracer, nodes[-1]):
        return
    if answers.run is not None:
        run_plainly(program, nodes, values, calls, answers.run, checks)
        return
    saved = SavedTensors(args if _may_write_to_inputs(nodes[: len(args)], calls) else ())
    with kept_random_state() if any(map(_may_draw, nodes)) else nullcontext():
        try:
            run_plainly(program, nodes, values, calls, None, checks)
        finally:
            saved.restore()


def _may_write_to_inputs(inputs: Iterable[Node], calls: Iterable[LayerCall]) -> bool:
    """Return whether anything may write to an input: all but layers that are known to leave it as it is."""
    for node in inputs:
        for user in node.users:
            layer = next((layer for layer, *_, result in calls if result is user), None)
            if layer is None or not returns_new_tensor(layer):
                return True
    return False


def _may_draw(node: Node) -> bool:
    """Return whether a node may draw random numbers; layers that do were refused before."""
    return node._op == "call_function" and node._target not in _DRAWING_NOTHING  # pyright: ignore[reportPrivateUsage]


_DRAWING_NOTHING = {
    *(check_equal, check_length, check_true, getattr, same_value),
    *(value for module in (math, operator) for value in vars(module).values() if callable(value)),
    *(torch.add, torch.cat, torch.conv1d, torch.conv2d, torch.conv3d, torch.flatten, torch.relu),
    *(functional.adaptive_avg_pool2d, functional.avg_pool2d, functional.max_pool2d),
    *(functional.batch_norm, functional.group_norm, functional.layer_norm),
    *(functional.gelu, functional.linear, functional.relu, functional.silu),
}
