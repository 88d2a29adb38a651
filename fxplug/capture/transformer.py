"""Making a new graph by running an old one with proxies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.capture.proxy import Proxy
from fxplug.capture.tracer import Tracer
from fxplug.execute import GraphModule, Interpreter
from fxplug.ir import Argument, Graph, Node, map_aggregate

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Transformer"]


class _GraphWriter(Tracer):
    """Appends nodes to a graph; each inherits origin and region of the old node that is being run."""

    def __init__(self, graph: Graph, root: nn.Module) -> None:
        super().__init__()
        self.graph = graph
        self.root = root
        self.current: Node | None = None

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        if self.current is not None:
            node.origins = self.current.origins
            node.region = self.current.region
        return node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


class Transformer(Interpreter):
    """Runs a graph with proxies and so writes a new graph; override an opcode's method to change what is written.

    The methods receive proxies where `Interpreter` has values, and return what stands for the result: proxies, made
    with ``self.tracer`` or by calling functions on proxies.

    Args:
        module: Provides the graph and its root; not changed.

    Example:
        Replacing every ``torch.sigmoid`` by ``torch.tanh``::

            class Swap(Transformer):
                def call_function(self, target, args, kwargs):
                    target = torch.tanh if target is torch.sigmoid else target
                    return super().call_function(target, args, kwargs)

            swapped = Swap(graph_module).transform()
    """

    enters_regions = False

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.new_graph = Graph()
        """The graph that is being written."""
        self.new_graph.generate_code_as(self.graph)
        self.tracer = _GraphWriter(self.new_graph, module)
        """Records the new nodes."""

    def transform(self) -> GraphModule:
        """Run the graph and return a module with what was written."""
        self.new_graph.lifted = dict(self.graph.lifted)
        self.new_graph.keyword_only = self.graph.keyword_only
        self.new_graph.rely_on(self.graph)
        try:
            self.run(enable_io_processing=False)
        finally:
            self.tracer.forget_reads()
        return GraphModule(self.module, self.new_graph)

    def run_node(self, n: Node) -> Any:
        """Write what stands for one node; it keeps annotation, origins and region."""
        self.tracer.current = n
        value = super().run_node(n)
        if isinstance(value, Proxy) and value.node.type is None and n.type is not None:
            value.node.type = n.type
        return value

    def placeholder(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Write an input."""
        return self.tracer.create_proxy("placeholder", target, args, kwargs)

    def get_attr(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Write a read of the root."""
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_function(self, target: Any, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Write a call of a function."""
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def call_method(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Write a call of a method."""
        return self.tracer.create_proxy("call_method", target, args, kwargs)

    def call_module(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Write a call of a submodule."""
        return self.tracer.create_proxy("call_module", target, args, kwargs)

    def output(self, target: str, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Write the output."""
        result = map_aggregate(args[0], lambda leaf: leaf.node if isinstance(leaf, Proxy) else leaf)
        return self.new_graph.output(result, self.graph.output_node().type)
