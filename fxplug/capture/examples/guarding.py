"""What a program asks while it is captured, collected as guards."""

# Whoever asks often waits for the texts: slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.arguments import PLAIN_TYPES
from fxplug.capture.bytecode import read_once
from fxplug.codegen import INFIX, PREFIX, PyTreeCodeGen
from fxplug.ir import Graph, Node, map_arg
from fxplug.ir.guards import Guard
from fxplug.semantics.checks import attribute_names, class_of, is_instance, same_value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from fxplug.ir import Origin

__all__ = [
    "GuardCollector",
    "expression",
    "fails_for_none",
    "guard_at",
    "guard_of",
    "guards_of_inputs",
    "is_metadata",
    "present",
    "size_text",
]

_METADATA = frozenset(
    [
        "shape",
        "size",
        "dim",
        "ndim",
        "ndimension",
        "numel",
        "nelement",
        "dtype",
        "device",
        "layout",
        "stride",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_cuda",
        "is_cpu",
        "is_meta",
        "is_quantized",
        "is_sparse",
        "is_nested",
        "is_contiguous",
        "element_size",
        "itemsize",
        "nbytes",
        "get_device",
        "storage_offset",
        "is_inference",
        "is_conj",
        "is_neg",
    ]
)
"""Attributes and methods of a tensor that say the same whatever is written to its memory. Whether it needs gradients is
none of them."""


class GuardCollector:
    """Collects guards, those that can be answered from the inputs alone apart from the others.

    Args:
        graph: The graph that is recorded.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._at_entry: set[Node] = set()
        self._predicates: dict[Node, Guard] = {}
        self._known: set[str] = set()

    def is_at_entry(self, node: Node) -> bool:
        """Return whether the value of a node can be worked out from the inputs before the program runs."""
        return node in self._at_entry

    def add_input(self, node: Node) -> None:
        """Hear of an input that is no tensor."""
        self._at_entry.add(node)

    def hear(self, node: Node, *, nothing_written: bool) -> None:
        """Hear of a node whose value is no tensor.

        Args:
            node: The node.
            nothing_written: Whether the program has changed no tensor so far.
        """
        inputs = node.all_input_nodes
        looks_at_values = not (nothing_written or is_metadata(node))
        for one in inputs:
            if one not in self._at_entry and (one.op != "placeholder" or looks_at_values):
                return
        if inputs:
            self._at_entry.add(node)

    def is_new(self, text: str) -> bool:
        """Return whether a predicate says something that was not said yet."""
        is_known = text in self._known
        self._known.add(text)
        return not is_known

    def add(self, predicate: Node, guard: Guard | None = None) -> None:
        """Add a predicate that can be answered from the inputs.

        Args:
            predicate: What is to be true.
            guard: Says it; by default what the predicate says by itself.
        """
        self._predicates[predicate] = guard_of(predicate) if guard is None else guard

    def predicates(self) -> list[Node]:
        """Return what is to be true."""
        return list(self._predicates)

    def not_for_none(self) -> set[Node]:
        """Return the nodes that cannot be None where all predicates hold: one is false then, or has no answer."""
        return _not_for_none(self._predicates)

    def finish(self, inputs: Iterable[Node]) -> tuple[Graph | None, tuple[Guard, ...]]:
        """Return a graph with the same inputs that answers every predicate, with the guards in its order.

        Args:
            inputs: The placeholders of the graph that is recorded, in order.
        """
        if not self._predicates:
            return None, ()
        graph = Graph()
        copies = {node: graph.node_copy(node) for node in inputs}
        answers = [_copy(graph, predicate, copies) for predicate in self._predicates]
        graph.output(tuple(answers))
        graph.keyword_only = self._graph.keyword_only
        generator = vars(self._graph)["_codegen"]
        if isinstance(generator, PyTreeCodeGen):  # The same nested inputs, and one plain result.
            graph.set_codegen(PyTreeCodeGen(generator.parameters, generator.flatten))
        return graph, tuple(self._predicates.values())


def guards_of_inputs(
    inputs: Iterable[Node],
    values: Iterable[torch.Tensor],
    predicates: Mapping[Node, Guard],
    asked: Guard | None,
    said: Iterable[tuple[Node, Any]] = (),
) -> tuple[Graph, tuple[Guard, ...]] | None:
    """Return, as `GuardCollector.finish` does, guards of inputs that are tensors; None without such.

    Args:
        inputs: The placeholders of the graph that was recorded.
        values: One tensor for each of the first of them.
        predicates: What has to be true, with the guards that say it.
        asked: Where the program has asked how many dimensions they have, which they have to have in all runs then.
        said: What inputs have to be: each with None, a flag, a class, or `present`.
    """
    inputs, values = list(inputs), list(values)
    told = _not_for_none(predicates)
    told.update(inputs[: len(values)] if asked is not None else ())  # None has no dimensions.
    said = [(node, value) for node, value in said if not (value is present and node in told)]
    if not predicates and asked is None and not said:
        return None
    answering = Graph()
    copies = {node: answering.node_copy(node) for node in inputs}
    pairs = list(zip(copies.values(), values, strict=False)) if asked is not None else []
    answers = [_copy(answering, predicate, copies) for predicate in predicates]
    dimensions = [
        answering.call_function(operator.eq, (answering.call_method("dim", (node,)), value.dim()))
        for node, value in pairs
    ]
    others = [_predicate_of(answering, copies[node], value) for node, value in said]
    answering.output((*answers, *others, *dimensions))
    guards = [*predicates.values(), *(Guard(expression(other), "", "") for other in others)]
    if asked is not None:
        guards += [Guard(expression(answer), asked.line, asked.source) for answer in dimensions]
    return answering, tuple(guards)


present: Any = object()
"""Says of an input that it has to be something else than None."""


def _predicate_of(graph: Graph, node: Node, value: Any) -> Node:
    """Record the question whether an input is a value, or of a class."""
    if value is present:
        return graph.call_function(operator.is_not, (node, None))
    if isinstance(value, type):
        node = graph.call_function(class_of, (node,))
    return graph.call_function(operator.is_, (node, value))


def fails_for_none(node: Node, value: Node) -> bool:
    """Return whether a call is an error where None stands for one of its inputs, as for a method or an operator.

    What a method is given, and what an index is, may be None.
    """
    if node.op == "call_function" and node.target in _ARITHMETIC:
        return True
    if not node.args or node.args[0] is not value:
        return False
    if node.target is getattr:
        return len(node.args) == 2
    return node.op == "call_method" or (
        node.op == "call_function" and node.target in {operator.getitem, class_of}
    )


def _not_for_none(predicates: Collection[Node]) -> set[Node]:
    """Return the nodes that cannot be None where all predicates hold: one is false then, or has no answer."""
    found: set[Node] = set()
    seen = set(predicates)
    waiting = list(seen)
    while waiting:
        node = waiting.pop()
        for one in node.all_input_nodes[:1]:
            if fails_for_none(node, one) or (node in predicates and _is_false_for_none(node)):
                found.add(one)
        more = [one for one in node.all_input_nodes if one not in seen]
        seen.update(more)
        waiting += more
    return found


def _is_false_for_none(predicate: Node) -> bool:
    """Return whether a predicate is false, or an error, where None stands for its first input."""
    if predicate.target is operator.is_not:
        return predicate.args[1] is None
    return predicate.target in {operator.is_, operator.eq, same_value}


_ARITHMETIC = {*INFIX, *PREFIX} - {operator.is_, operator.is_not, operator.eq, operator.ne, operator.not_}


def _copy(graph: Graph, node: Node, copies: dict[Node, Node]) -> Node:
    """Copy a node with everything that it is computed from."""
    stack = [node]
    while stack:
        current = stack[-1]
        missing = [one for one in current.all_input_nodes if one not in copies]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if current not in copies:
            copies[current] = graph.node_copy(current, copies.__getitem__)
    return copies[node]


def guard_of(node: Node, text: str | None = None, depth: int = 0) -> Guard:
    """Return the guard that says that the value of `node` is true.

    Args:
        node: The predicate.
        text: Says it in another way.
        depth: How deep inside a longer expression it stands already.
    """
    return guard_at(next(iter(node.origins), None), text or expression(node, depth))


def guard_at(origin: Origin | None, text: str) -> Guard:
    """Return a guard that was asked for at a place in the program."""
    code = None if origin is None else origin.code
    if origin is None or not isinstance(code, CodeType):
        line = None if origin is None else origin.source()
        return Guard(text, "" if line is None else str(line), "" if line is None else line.text or "")
    known = _lines_in(code)
    said = known.get(origin.offset)
    if said is None:
        line = origin.source()
        said = known[origin.offset] = ("", "") if line is None else (str(line), line.text)
    return Guard(text, *said)


@read_once
def _lines_in(code: CodeType) -> dict[int, tuple[str, str]]:
    """Return the lines of a function at which something was asked, and their texts: a network runs the same ones."""
    return {}


def is_metadata(node: Node) -> bool:
    """Return whether a number is one that no write to a tensor changes, or computed from other numbers."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in _METADATA
    if node.op == "call_method":
        return node.target in _METADATA
    return not any(one.op == "placeholder" for one in node.all_input_nodes)


def expression(node: Any, depth: int = 0) -> str:
    """Return a value of the graph as an expression over its inputs, as a reader would write it."""
    if not isinstance(node, Node):
        return repr(node) if node.__class__ in PLAIN_TYPES else _value_text(node, depth)
    op, target = node._op, node._target
    if op == "get_attr":
        return str(target)
    if op == "placeholder" or depth > _DEEPEST:
        return node._name
    args = node._args
    if op == "call_module":
        return f"{target}({_arguments(args, node._kwargs, depth)})"
    if op == "call_method":
        return f"{_operand(args[0], depth)}.{target}({_arguments(args[1:], node._kwargs, depth)})"
    return _function_text(node, args, depth)


def size_text(node: Node, place: int) -> str:
    """Return one of the sizes of a tensor as an expression, as `expression` writes what gives it."""
    return f"{_operand(node, 2)}.shape[{place}]"


_DEEPEST = 12
_FORMS: dict[Any, str] = {
    operator.not_: "not {}",
    operator.contains: "{1} in {0}",
    operator.is_: "{} is {}",
    operator.is_not: "{} is not {}",
    same_value: "{} == {}",
    attribute_names: "list(vars({}))",
}


def _function_text(node: Node, args: tuple[Any, ...], depth: int) -> str:
    target: Any = node._target
    if target is getattr:
        return f"{_operand(args[0], depth)}.{args[1]}"
    if target is operator.getitem:
        return f"{_operand(args[0], depth)}[{expression(args[1], depth + 1)}]"
    if target is operator.truth:
        return expression(args[0], depth)
    form = _FORMS.get(target)
    if form is not None:
        return form.format(*(_operand(argument, depth) for argument in args))
    if target in INFIX and len(args) == 2:
        return f"{_operand(args[0], depth)} {INFIX[target]} {_operand(args[1], depth)}"
    if target in PREFIX:
        return f"{PREFIX[target]}{_operand(args[0], depth)}"
    name = _NAMES.get(target) or getattr(target, "__name__", str(target))
    return f"{name}({_arguments(args, node.kwargs, depth)})"


_NAMES: dict[Any, str] = {class_of: "type", is_instance: "isinstance"}
"""What people call functions of checks."""


def _operand(value: Any, depth: int) -> str:
    text = expression(value, depth + 1)
    is_call = isinstance(value, Node) and value._op == "call_function" and value._target in _IN_PARENTHESES
    return f"({text})" if is_call else text


_IN_PARENTHESES = {*INFIX, operator.not_}


def _arguments(args: Iterable[Any], kwargs: dict[str, Any], depth: int) -> str:
    shown = [expression(argument, depth + 1) for argument in args]
    shown += [f"{name}={expression(argument, depth + 1)}" for name, argument in kwargs.items()]
    return ", ".join(shown)


def _value_text(value: Any, depth: int) -> str:
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, type):
        return (
            value.__qualname__
            if value.__module__ == "builtins"
            else f"{value.__module__}.{value.__qualname__}"
        )
    parts: list[Node] = []
    map_arg(value, parts.append)
    if not parts:
        return repr(value)
    if isinstance(value, (tuple, list)):
        inner = ", ".join(expression(part, depth + 1) for part in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    return repr(value)
