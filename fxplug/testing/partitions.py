"""The smallest parts of a graph that a backend may be handed: single calls, with the values that reach them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.analyze.isolation import copy_values
from fxplug.execute import GraphModule, Interpreter
from fxplug.ir import Graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug.ir import Node

__all__ = ["single_calls"]


def single_calls(
    module: GraphModule, inputs: tuple[Any, ...], is_wanted: Callable[[Node], bool]
) -> Iterator[tuple[str, GraphModule, tuple[Any, ...]]]:
    """Yield name, module and inputs of every wanted call.

    Args:
        module: Run once on `inputs`.
        inputs: Not changed.
        is_wanted: Asked for each call.
    """
    recorder = _Recorder(module)
    recorder.run(*copy_values(inputs))
    for node in module.graph.nodes:
        if node in recorder.values and is_wanted(node):
            values = recorder.values[node]
            yield node.name, _part(module, node, list(values)), tuple(values.values())


class _Recorder(Interpreter):
    """Keeps a copy of the values that each call takes from others; what it reads from the module is left there."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.values: dict[Node, dict[Node, Any]] = {}

    def run_node(self, n: Node) -> Any:
        """Run a node after its inputs were copied: it may change them."""
        if n.op.startswith("call_"):
            taken = [used for used in n.all_input_nodes if used.op != "get_attr"]
            # Together, so that what is shared stays shared.
            values = copy_values([self.env[used] for used in taken])
            self.values[n] = dict(zip(taken, values, strict=True))
        return super().run_node(n)


def _part(module: GraphModule, node: Node, inputs: list[Node]) -> GraphModule:
    graph = Graph()
    copies = {used: graph.placeholder(used.name) for used in inputs}
    for used in node.all_input_nodes:
        if used not in copies:
            copies[used] = graph.node_copy(used)
    graph.output(graph.node_copy(node, lambda used: copies[used]))
    return GraphModule(module, graph)
