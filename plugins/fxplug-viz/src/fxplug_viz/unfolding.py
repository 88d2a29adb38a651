"""Graph modules that a graph calls, drawn as if their nodes stood in it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from fxplug.execute import GraphModule, fetch_path, has_path
from fxplug.ir import PATH_OPCODES, Graph, map_arg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxplug.ir import Node

__all__ = ["called_graph_module", "frames_of", "own_target", "unfolded"]

_NOTE = "fxplug_viz.frames"

_Frames = tuple[tuple[str, str], ...]


def called_graph_module(node: Node, module: GraphModule | None) -> GraphModule | None:
    """Return the graph module that a node calls, None where it calls something else."""
    if node.op != "call_module" or module is None or not has_path(module, str(node.target)):
        return None
    called = fetch_path(module, str(node.target))
    return called if isinstance(called, GraphModule) else None


def frames_of(node: Node) -> _Frames:
    """Return path and class of the graph modules that a node of an unfolded graph lies in, outermost first."""
    return node.meta.get(_NOTE, ())


def own_target(node: Node) -> str:
    """Return the target of a node as it is in the graph module that the node lies in."""
    frames = frames_of(node)
    return str(node.target).removeprefix(f"{frames[-1][0]}.") if frames else str(node.target)


def unfolded(graph: Graph, module: GraphModule | None) -> Graph:
    """Return a graph to be shown, in which the nodes of called graph modules stand in front of the calls.

    Every node keeps its name. One of a graph module has the name of the call in front of its own, and uses what the
    call is given; the call itself uses what the graph module returns. Paths are those of the outer module.

    Args:
        graph: Not changed.
        module: What it belongs to.

    Returns:
        The same graph where it calls no graph module, or is not sound.
    """
    nodes = list(graph.nodes)
    if not any(called_graph_module(node, module) is not None for node in nodes):
        return graph
    shown = Graph()
    taken = {node.name for node in nodes}
    try:
        _Unfolding(shown, taken).add(nodes, module, {}, "", "", ())
    except KeyError:  # A node uses one that comes later.
        return graph
    return shown


class _Unfolding:
    def __init__(self, shown: Graph, taken: set[str]) -> None:
        self.shown, self.taken = shown, taken

    def add(
        self,
        nodes: Sequence[Node],
        module: GraphModule | None,
        values: dict[Node, Any],
        path: str,
        call: str,
        frames: _Frames,
    ) -> None:
        """Copy nodes.

        Args:
            nodes: All of a graph.
            module: What they belong to.
            values: Node -> what stands for it; what is in it is not copied.
            path: Of the module, with a full stop behind it.
            call: Name of the call, empty for the outer graph.
            frames: The graph modules around.
        """
        targets = Counter(node.target for node in nodes if node.op == "call_module")
        for node in nodes:
            if node in values or (call and node.op == "output"):
                continue
            around = frames
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            called = called_graph_module(node, module)
            if called is not None:
                label = _label(node, called, is_shared=targets[node.target] > 1)
                around = (*frames, (f"{path}{node.target}", label))
                inner = _inputs(called, args, kwargs)
                name = f"{call}{node.name}_"
                self.add(list(called.graph.nodes), called, inner, f"{path}{node.target}.", name, around)
                args, kwargs = _returned(called, inner), {}
            values[node] = self._copy(node, path, call, args, kwargs)
            if around:
                values[node].meta[_NOTE] = around

    def _copy(self, node: Node, path: str, call: str, args: Any, kwargs: Any) -> Node:
        target = f"{path}{node.target}" if node.op in PATH_OPCODES else node.target
        name = f"{call}{node.name}"
        while call and name in self.taken:
            name += "_"
        self.taken.add(name)
        copy = self.shown.create_node(node.op, target, args, kwargs, name)
        copy.origins, copy.region = node.origins, node.region
        copy.meta.update(node.meta)
        return copy


def _label(node: Node, called: GraphModule, *, is_shared: bool) -> str:
    name = repr(called).partition("(")[0]
    # Another call of the same module is another frame.
    return f"{name}, called as {node.name}" if is_shared else name


def _inputs(called: GraphModule, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[Node, Any]:
    """Return what the placeholders of a graph module are given; those that are left stand for themselves."""
    given: dict[Node, Any] = {}
    rest = list(args)
    for node in called.graph.find_nodes(op="placeholder"):
        if str(node.target) in kwargs:
            given[node] = kwargs[str(node.target)]
        elif rest:
            given[node] = rest.pop(0)
    return given


def _returned(called: GraphModule, values: dict[Node, Any]) -> tuple[Any, ...]:
    outputs = called.graph.find_nodes(op="output")
    return map_arg(outputs[0].args, values.__getitem__) if outputs else ()
