"""Answers that hang on what annotations say of inputs: the captured program checks that they are right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.kinds import kind_of_node
from fxplug.capture.sources import place_in_program
from fxplug.ir import effects
from fxplug.semantics.checks import check_equal, class_of, is_check, is_instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug.ir import Node

__all__ = ["rely_on_annotations"]

_Check = tuple[str, "Callable[..., Any]", tuple[Any, ...], Any]
"""What a message calls it; a function, what it is called with behind the input, and what it has to return."""


def rely_on_annotations(
    tracer: Any, node: Node, asks: Callable[[type], object] | None = None, *, exactly: bool = False
) -> None:
    """Record that inputs are what their annotations say, where the kind of a value hangs on that.

    Who is called with something else is not told so by Python, and the answer would be a wrong one.

    Args:
        tracer: Who traces without examples; others know what the inputs are.
        node: Of whose value something was asked, and answered by its kind.
        asks: What was asked of the class of the value, if it was asked of that.
        exactly: Whether values of a subclass may have another answer, whatever is known of that.
    """
    if not tracer.takes_defaults:
        return
    for given in _annotated_behind(node, tracer.root):
        kind = kind_of_node(given, tracer.root)
        if kind is not None:
            is_asked = given is node
            for check in _checks(kind.cls, asks if is_asked else None, exactly=exactly and is_asked):
                _record(tracer, given, *check)


def _annotated_behind(node: Node, root: Any) -> Iterator[Node]:
    """Yield the inputs without whose annotations the kind of a value would not be known."""
    waiting, seen = [node], {node}
    while waiting:
        current = waiting.pop()
        if current.op == "placeholder":
            is_certain = str(current.target).startswith("*")  # Python makes a tuple or a dict.
            if not is_certain and kind_of_node(node, root, {current: None}) is None:
                yield current
            continue
        further = [used for used in current.all_input_nodes if used not in seen]
        seen.update(further)
        waiting += further


def _checks(cls: type, asks: Callable[[type], object] | None, *, exactly: bool) -> Iterator[_Check]:
    """Yield what has to be checked of an input that is annotated as a class."""

    def differs(other: type) -> bool:
        return exactly or (asks is not None and asks(other) != asks(cls))

    if cls is torch.Tensor and differs(nn.Parameter):
        yield "type({}) is torch.Tensor", class_of, (), cls
    elif cls is float and asks is not None and not differs(int):  # Whoever takes numbers takes both.
        yield "isinstance({}, float | int)", is_instance, ((float, int),), True
    else:
        yield f"isinstance({{}}, {cls.__name__})", is_instance, (cls,), True
        if cls is int and differs(bool):
            yield "isinstance({}, bool) is False", is_instance, (bool,), False


def _record(
    tracer: Any, node: Node, text: str, ask: Callable[..., Any], rest: tuple[Any, ...], answer: Any
) -> None:
    if (node, text) in tracer.relied_on:
        return
    tracer.relied_on.add((node, text))
    nothing_written = all(
        is_check(one) or effects.effect_of(one, tracer.root).is_pure for one in tracer.graph.nodes
    )
    found = tracer.create_proxy("call_function", ask, (tracer.proxy(node), *rest), {})
    said = f"{text.format(node.target)}{place_in_program()}"
    tracer.create_proxy("call_function", check_equal, (found, answer, said, nothing_written), {})
