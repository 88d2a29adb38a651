"""Intermediate values of a model: by node, by module, or by line of the program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.api.tracing import symbolic_trace, trace
from fxplug.capture.kinds import kind_of_node
from fxplug.codegen import PyTreeCodeGen
from fxplug.errors import InvalidArgumentError, UnknownNameError
from fxplug.execute import GraphModule
from fxplug.ir import Graph, effects
from fxplug.rewrite.writes import WrittenMemory
from fxplug.semantics.copies import clone_tensors
from fxplug.semantics.kinds import TENSOR

if TYPE_CHECKING:
    from fxplug.ir import ModuleScope, Node
    from fxplug.plugins import PluginManager

__all__ = ["extract", "find_value", "kept_value"]

_LINE = re.compile(r"(?P<file>.+\.py):(?P<line>\d+)")
_SHOWN = 8


def extract(
    model: nn.Module | Callable[..., Any],
    nodes: str | Iterable[str] | Mapping[str, str],
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    manager: PluginManager | None = None,
) -> GraphModule:
    """Return a module that computes intermediate values of a model.

    The program ends with the last of these values, and what is not needed for them is left out. A value that is written
    in place before that comes as it was when it was computed.

    Args:
        model: A module, a function, or a captured module; it stays as it is, and shares its parameters with the result.
        nodes: What to return. Each one is the name of a node (``"relu_1"``), the path of a module (``"layer3.0"``: what
            that module returns), or a line of the program (``"model.py:42"``: what that line computes). Where one could
            be the other, say what it is: ``"node:relu"``, ``"module:relu"``. A mapping also says under which names.
        example_inputs: Positional arguments of one call; with them the model is captured by `fxplug.trace`, otherwise
            by `fxplug.symbolic_trace`.
        manager: The plugins that take part in the capture; by default those that are installed and selected.

    Returns:
        A module with the parameters of `model` that returns a dict: what was asked for, or the name given for it ->
        the value, in the order of `nodes`.

    Raises:
        UnknownNameError: There is nothing by that name.
        InvalidArgumentError: It stands for several values: a module that is called more than once or returns several.
        TraceError: The model cannot be captured.

    Example:
        ::

            features = fxplug.extract(model, ["layer2", "layer4"])(images)
            features["layer4"].shape
    """
    wanted = _named(nodes)
    if isinstance(model, GraphModule):
        captured = model
    elif example_inputs is None:
        captured = symbolic_trace(model, manager=manager)
    else:
        captured = trace(model, example_inputs, manager=manager)
    mapping: dict[Node, Any] = {}
    graph = _without_output(captured.graph, mapping)
    found = {name: mapping[find_value(captured, selector)] for selector, name in wanted.items()}
    # The program ends with the last of the values: what comes behind would write, draw and print for nobody.
    last = max(found.values())
    for node in graph.nodes.reversed():
        if last < node and node.op != "placeholder":
            graph.erase_node(node)
    result = GraphModule(captured, graph, type(captured).__name__)
    graph.output({name: kept_value(result, node) for name, node in found.items()})
    graph.eliminate_dead_code()
    result.delete_all_unused_submodules()
    return result


def _without_output(source: Graph, mapping: dict[Node, Any]) -> Graph:
    """Return a copy of a graph that takes the same inputs and returns nothing yet."""
    graph = Graph()
    graph.graph_copy(source, mapping)
    graph.lifted.update(source.lifted)
    graph.keyword_only = source.keyword_only
    graph.rely_on(source)
    codegen = source._codegen  # pyright: ignore[reportPrivateUsage] - as torch.fx calls it
    if isinstance(codegen, PyTreeCodeGen):
        graph.set_codegen(PyTreeCodeGen(codegen.parameters, codegen.flatten))
    elif codegen is not None:
        graph.set_codegen(codegen)
    return graph


def _named(nodes: Any) -> dict[str, str]:
    """Return selectors with the names of their values."""
    if isinstance(nodes, Mapping):
        named = dict(nodes)
    elif isinstance(nodes, str):
        named = {nodes: nodes}
    elif isinstance(nodes, Iterable):
        named = {selector: selector for selector in nodes}
    else:
        named = {nodes: nodes}
    wrong = [text for pair in named.items() for text in pair if not isinstance(text, str)]
    if wrong or not named:
        found = f"{wrong[0]!r} is a {type(wrong[0]).__name__}" if wrong else "nothing is asked for"
        raise InvalidArgumentError(
            f"Cannot extract values: {found}. Name nodes, modules or lines, as in ['layer4', 'model.py:42'], or map "
            "them to names of your own."
        )
    if len(set(named.values())) < len(named):
        raise InvalidArgumentError("Cannot extract values: two of them would have the same name.")
    return named


def find_value(module: GraphModule, selector: str) -> Node:
    """Return the node that a selector means."""
    graph = module.graph
    kind, _, rest = selector.partition(":")
    if kind in _FINDERS:
        return _FINDERS[kind](graph, rest)
    if _LINE.fullmatch(selector):
        return _value_of_line(graph, selector)
    named = [node for node in graph.nodes if node.name == selector and node.op != "output"]
    if not _calls(graph, selector):
        if not named:
            paths = {path for node in graph.nodes for path in _paths_of(node)}
            known = {*_names(graph), *paths}
            raise UnknownNameError("node or module", selector, sorted(known))
        return named[0]
    try:
        found = _value_of_module(graph, selector)
    except InvalidArgumentError:
        if named:
            raise InvalidArgumentError(
                f"Cannot extract {selector!r}: it is the name of a node, and the path of a module that has several "
                f"values. Say which one: 'node:{selector}' is the node."
            ) from None
        raise
    if named and named[0] is not found:
        raise InvalidArgumentError(
            f"Cannot extract {selector!r}: it is the name of a node, and the path of a module whose value is "
            f"{found.name!r}. Say which one: 'node:{selector}' or 'module:{selector}'."
        )
    return found


def _node_named(graph: Graph, name: str) -> Node:
    for node in graph.nodes:
        if node.name == name and node.op != "output":
            return node
    raise UnknownNameError("node", name, _names(graph))


def _names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes if node.op != "output"]


def _value_of_module(graph: Graph, path: str) -> Node:
    calls = _calls(graph, path)
    if not calls:
        raise UnknownNameError(
            "module", path, sorted({path for node in graph.nodes for path in _paths_of(node)})
        )
    inside = [node for nodes in calls.values() for node in nodes]
    results = _results(inside)
    if len(inside) > 1 and any(isinstance(getattr(call, "kind", None), str) for call in calls):
        # Scopes from a file are one where they say the same, also those of several calls.
        why = "was read from a file, which does not keep in which call of a module a node was made"
        raise _ambiguous(path, why, results)
    if len(calls) > 1:
        results = [node for nodes in calls.values() for node in _results(nodes)]
        raise _ambiguous(path, "is called more than once", results)
    if len(results) != 1:
        raise _ambiguous(path, f"returns {len(results)} values that are used", results)
    return results[0]


def _value_of_line(graph: Graph, selector: str) -> Node:
    line = _LINE.fullmatch(selector)
    if line is None:
        raise InvalidArgumentError(
            f"Cannot extract {selector!r}: a line of the program is written as 'model.py:42'."
        )
    file, number = line["file"], int(line["line"])
    inside: list[Node] = []
    for node in graph.nodes:
        lines = [frame for origin in node.origins for frame in list(origin.frames())[:1]]
        if any(line.line == number and _is_file(line.filename, file) for line in lines):
            inside.append(node)
    if not inside:
        known = {
            f"{Path(line.filename).name}:{line.line}"
            for node in graph.nodes
            for origin in node.origins
            if (line := origin.source()) is not None
        }
        raise UnknownNameError("line of the program", selector, sorted(known))
    results = _results(inside)
    if len(results) != 1:
        raise _ambiguous(selector, f"computes {len(results)} values that are used", results)
    return results[0]


def _is_file(path: str, file: str) -> bool:
    return Path(path).parts[-len(Path(file).parts) :] == Path(file).parts


def _calls(graph: Graph, path: str) -> dict[Any, list[Node]]:
    """Return the nodes that were made while a module ran, for each of its calls."""
    calls: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        scope = next((scope for scope in _scopes_of(node) if scope.path == path), None)
        if node.op == "call_module" and node.target == path:
            calls[node] = [node]
        elif scope is not None and node.op != "output":
            calls.setdefault(scope, []).append(node)
    return calls


def _scopes_of(node: Node) -> list[ModuleScope]:
    scopes: list[ModuleScope] = []
    for origin in node.origins:
        scope = origin.module
        while scope is not None:
            scopes.append(scope)
            scope = scope.parent
    return scopes


def _paths_of(node: Node) -> set[str]:
    return {scope.path for scope in _scopes_of(node) if scope.path}


def _results(nodes: list[Node]) -> list[Node]:
    """Return those of some nodes whose values are used by others."""
    members = set(nodes)
    return [node for node in nodes if any(user not in members for user in node.users)]


def _ambiguous(selector: str, why: str, candidates: list[Node]) -> InvalidArgumentError:
    names = ", ".join(repr(node.name) for node in candidates[:_SHOWN])
    more = f" and {len(candidates) - _SHOWN} more" if len(candidates) > _SHOWN else ""
    choice = f"Name the node: {names}{more}." if candidates else "Name a node."
    return InvalidArgumentError(f"Cannot extract {selector!r}: it {why}. {choice}")


_FINDERS: dict[str, Callable[[Graph, str], Node]] = {
    "node": _node_named,
    "module": _value_of_module,
    "line": _value_of_line,
}
"""What a selector may begin with, to say what it is."""


def kept_value(module: GraphModule, node: Node) -> Node:
    """Return a node that has the value of `node` also behind later writes to its memory."""
    graph = module.graph
    noisy = [other for other in graph.nodes if effects.effect_of(other, module).must_be_kept]
    if node.op == "output" or not WrittenMemory(graph, module, noisy).holds(node, {node}):
        return node
    kind = kind_of_node(node, module, {})
    if kind is not None and kind.cls in _WITHOUT_TENSORS:
        return node
    with graph.inserting_after(node):
        return graph.call_function(torch.clone if kind == TENSOR else clone_tensors, (node,))


_WITHOUT_TENSORS = frozenset({bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout})
"""Classes of values that hold no tensors."""
