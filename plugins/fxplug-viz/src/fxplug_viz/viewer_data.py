"""A graph as the plain data that a page of the viewer holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.analyze import shape_text
from fxplug.errors import InvalidArgumentError
from fxplug.execute import GraphModule
from fxplug.ir import OPCODES, Graph, argument_text, effects, printable, qualified_name
from fxplug_viz.unfolding import unfolded
from fxplug_viz.viewer_tree import tree_of

if TYPE_CHECKING:
    from fxplug.ir import Effect, Node, Origin, RegionEntry

__all__ = ["graph_data"]

_LONGEST = 50_000


def graph_data(
    module_or_graph: GraphModule | Graph, *, key: str = "graph", title: str | None = None
) -> dict[str, Any]:
    """Return what a page shows of a graph, in values that JSON knows.

    Args:
        module_or_graph: What is shown. Only a module has guards, and lets its submodules be described.
        key: Tells the graph from others on the same page; part of links to nodes.
        title: Its name for people; by default the class of the module.

    Returns:
        A mapping with the nodes in program order, inputs and groups as positions in their lists.

    Raises:
        InvalidArgumentError: Something else than a graph was given.
    """
    if isinstance(module_or_graph, GraphModule):
        module, graph = module_or_graph, module_or_graph.graph
        name = repr(module).partition("(")[0]
    elif isinstance(module_or_graph, Graph):
        module, graph = None, module_or_graph
        name = "graph"
    else:
        raise InvalidArgumentError(
            f"Cannot show a {type(module_or_graph).__name__}: only a GraphModule or a Graph has nodes to show. Capture "
            f"it first: view(fxplug.symbolic_trace(module), path)."
        )
    nodes = list(unfolded(graph, module).nodes)
    positions = {node: position for position, node in enumerate(nodes)}
    code, lines = _code_of(graph)
    data = [_node_data(node, positions, lines, module) for node in nodes]
    groups, places = tree_of(nodes, data)
    for entry, place in zip(data, places, strict=True):
        entry["g"] = place
    return {
        "id": key,
        "title": printable(name if title is None else title),
        "opcodes": list(OPCODES),
        "nodes": data,
        "groups": groups,
        "code": code,
        "guards": []
        if module is None
        else [[guard.text, guard.line, guard.source] for guard in module.guards],
        "overlays": [],
    }


def _code_of(graph: Graph) -> tuple[list[str], dict[str, int]]:
    """Return the lines of the generated code, and the line of each node; nothing for a graph that has no code."""
    try:
        code = graph.python_code("self")
    except Exception:  # A picture is wanted most of a graph that is broken.
        return [], {}
    return code.src.rstrip().split("\n"), {name: line for line, name in code.lines.items()}


def _node_data(
    node: Node, positions: dict[Node, int], lines: dict[str, int], module: GraphModule | None
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "n": node.name,
        "o": OPCODES.index(node.op) if node.op in OPCODES else 0,
        "t": _cut(node.target if isinstance(node.target, str) else qualified_name(node.target)),
        "s": shape_text(node),
        "i": [positions[source] for source in node.all_input_nodes if source in positions],
        "a": [[name, _cut(_text(value))] for name, value in _arguments(node)],
        "c": lines.get(node.name, 0),
        "e": _effect_text(_effect_of(node, module)),
        "r": [_region_text(entry) for entry in node.region],
        "h": [str(made) for made in node.history],
        "f": _frames(node.origins),
    }
    if node.op == "call_module" and module is not None:
        data["d"], data["k"] = _describe_submodule(module, node.target)
    return {key: value for key, value in data.items() if value not in ("", [], 0) or key in {"n", "o", "i"}}


def _arguments(node: Node) -> list[tuple[str, Any]]:
    return [*((str(position), value) for position, value in enumerate(node.args)), *node.kwargs.items()]


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, str) else argument_text(value)


def _cut(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({len(text) - _LONGEST:,} more characters)"


def _describe_submodule(module: GraphModule, path: str) -> tuple[str, str]:
    """Return what a submodule says of itself, and its class."""
    try:
        submodule = module.get_submodule(path)
    except AttributeError:
        return "", ""
    kind = type(submodule).__name__
    try:
        return _cut(repr(submodule)), kind
    except Exception:  # Somebody's own `extra_repr`.
        return kind, kind


def _effect_of(node: Node, module: GraphModule | None) -> Effect | None:
    try:
        return effects.effect_of(node, module)
    except Exception:  # A rule of somebody's, or a target that does not exist.
        return None


def _effect_text(effect: Effect | None) -> str:
    if effect is None:
        return ""
    written = ["state" if key == "state" else f"argument {key}" for key in sorted(map(str, effect.writes))]
    told = {
        "reads state": effect.reads_state,
        "draws random numbers": effect.random,
        "acts outside the program": effect.outside,
        "unknown": effect.unknown,
    }
    return ", ".join(
        [
            *([f"writes {', '.join(written)}"] if written else []),
            *(text for text, holds in told.items() if holds),
        ]
    )


def _region_text(entry: RegionEntry) -> str:
    name = entry.context if isinstance(entry.context, str) else qualified_name(entry.context)
    return f"{name}({', '.join(map(repr, entry.arguments))})"


def _frames(origins: tuple[Origin, ...]) -> list[list[list[Any]]]:
    """Return the stacks of source positions that a node comes from, innermost position first."""
    stacks: list[list[list[Any]]] = []
    for origin in origins:
        stack: list[list[Any]] = [
            [frame.filename, frame.line, frame.function, frame.text] for frame in origin.frames()
        ]
        if stack and stack not in stacks:
            stacks.append(stack)
    return stacks
