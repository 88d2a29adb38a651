"""Hearing the operators that a program runs, and writing them into a graph."""

from __future__ import annotations

import operator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from fxplug.errors import DecompositionError
from fxplug.ir import MadeBy, Node, RegionEntry, iterate_leaves, map_aggregate
from fxplug.semantics.internals import FUNCTIONAL_BATCH_NORM, LightDispatchMode, is_fake, is_implicit
from fxplug.semantics.symbols import expression_of, is_symbolic, write_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fxplug.ir import Graph
    from fxplug.ir.regions import Region
    from fxplug.semantics.symbols import SymbolicSizes

__all__ = ["OperatorRecorder", "resolved_region"]

_WITHOUT_VALUE = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default)
_DETACH = torch.ops.aten.detach.default
_INSIDE = MadeBy("decompose", inside=True)


def resolved_region(region: Region) -> Region:
    """Return the part of a region that holds for operators: autocast has been applied when they are heard."""
    return tuple(entry for entry in region if entry.context is not torch.autocast)


class OperatorRecorder(LightDispatchMode):
    """Hears of operators on tensors without data, and appends each to a graph.

    A node gets the origins of the one that runs (`current`), with what made it, and its region.

    Args:
        graph: Gets the nodes.
        table: Operator -> a function that computes the same by others.
        sizes: Open sizes, if any.
        core: Whether an operator is to be written by another that does the same, where only that is a core one.
    """

    def __init__(
        self,
        graph: Graph,
        table: Mapping[Any, Callable[..., Any]],
        sizes: SymbolicSizes | None,
        *,
        core: bool = False,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.table = table
        self.current: Node | None = None
        """What runs."""
        self.grad_mode = True
        """Whether gradients were on when it began."""
        self.paths: dict[int, str] = {}
        """Id of what stands for a parameter, a buffer or a constant -> where the root has it."""
        self.without_grad: set[Node] = set()
        """Nodes that ran without gradients."""
        self.cut_off: set[Node] = set()
        """Nodes whose values are cut off from their gradients."""
        self._sizes = sizes
        self._core = core
        self._nodes: dict[int, Node] = {}
        self._alive: list[torch.Tensor] = []
        self._size_nodes: dict[Any, Any] = {}
        self._size_sources: dict[tuple[int, int], tuple[Any, int]] = {}

    def bind(self, tensor: torch.Tensor, node: Node) -> None:
        """Let a node stand for a tensor."""
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def bind_size(self, place: tuple[int, int], node: Node) -> None:
        """Let open sizes that are read at a place be read from a node."""
        self._size_sources[place] = (node, place[1])

    def node_of(self, tensor: torch.Tensor) -> Node:
        """Return what stands for a tensor.

        Raises:
            DecompositionError: It was made where nobody heard of it.
        """
        node = self._nodes.get(id(tensor))
        if node is not None:
            return node
        if id(tensor) in self.paths:
            node = self._placed(self.graph.get_attr(self.paths[id(tensor)]), plain=True)
            self.bind(tensor, node)
            return node
        if is_fake(tensor):
            raise DecompositionError(
                "it uses a tensor that was made before it ran, or by code that runs no operators of torch"
            )
        return self._constant(tensor)

    def _constant(self, tensor: torch.Tensor) -> Node:
        number = 0
        while (name := f"_tensor_constant{number}") in self.graph.lifted or name in self.paths.values():
            number += 1
        self.graph.lifted[name] = tensor
        node = self._placed(self.graph.get_attr(name), plain=True)
        self.bind(tensor, node)
        return node

    def on_operator(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Write an operator, or what the table has for it."""
        replacement = self.table.get(func)
        if replacement is not None:
            with self:
                value = replacement(*args, **kwargs)
            if value is not NotImplemented:
                return value
        if is_implicit(func):
            with self:
                value = func.decompose(*args, **kwargs)  # pyright: ignore[reportFunctionMemberAccess]
            if value is not NotImplemented:
                return value
        return self._write(func, args, kwargs)

    def _write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _WITHOUT_VALUE:
            value = func(*args, **kwargs)
            self.bind(value, self.node_of(args[0]))
            return value
        value = self._run(func, args, kwargs)
        if not any(isinstance(leaf, torch.Tensor) for leaf in iterate_leaves((value,))):
            return value  # A question about a tensor, which is answered already.
        if func is _DETACH and self._core:
            # Views that are made without gradients still say that they have some: a copy does not.
            node = self.write_call(torch.ops.aten.clone.default, args, kwargs)
            node.region = (*node.region, RegionEntry(torch.no_grad))
        else:
            node = self.write_call(func, args, kwargs)
            if func is FUNCTIONAL_BATCH_NORM:
                self._copy_statistics(node)
        if func is _DETACH:
            self.cut_off.add(node)
        self._bind_results(value, node)
        return value

    def _copy_statistics(self, node: Node) -> None:
        """Let a batch norm read copies of its statistics: it keeps them for its gradient, and they are written to."""
        for statistics in dict.fromkeys(
            argument for argument in node.args[3:5] if isinstance(argument, Node)
        ):
            with self.graph.inserting_before(node):
                copied = self._placed(self.graph.call_function(torch.ops.aten.clone.default, (statistics,)))
            node.replace_input_with(statistics, copied)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._sizes is not None and func is torch.ops.aten.convolution.default:
            # Which library computes it depends on the sizes, and nothing that is written does.
            with self._sizes.environment.suppress_guards():
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _bind_results(self, value: Any, node: Node) -> None:
        if isinstance(value, torch.Tensor):
            self.bind(value, node)
            return
        for index, element in enumerate(value):
            if isinstance(element, (torch.Tensor, list, tuple)):
                self._bind_results(
                    element, self._placed(self.graph.call_function(operator.getitem, (node, index)))
                )

    def write_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        """Append a call with what stands for its arguments."""
        args = self.written(args)
        kwargs = {name: self.written(value) for name, value in kwargs.items()}
        return self._placed(self.graph.call_function(func, args, kwargs))

    def written(self, value: Any) -> Any:
        """Return what stands for a nested value."""
        return map_aggregate(value, self._leaf)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if not is_symbolic(value):
            return value
        count = len(self.graph.nodes)
        made = write_expression(expression_of(value), self.graph, self._size, self._size_nodes)
        for node in self.since(count):
            self._placed(node, plain=True)
        return made

    def since(self, count: int) -> list[Node]:
        """Return the nodes behind the first `count`, the last one first."""
        nodes = self.graph.nodes
        return list(islice(nodes.reversed(), len(nodes) - count))

    def _size(self, symbol: Any) -> Node:
        if self._sizes is None:
            raise DecompositionError(f"the size {symbol} is not one of the inputs")
        source, dimension = self._size_sources[self._sizes.place_of(symbol)]
        return self.graph.call_function(torch.ops.aten.sym_size.int, (source, dimension))

    def _placed(self, node: Node, *, plain: bool = False) -> Node:
        current = self.current
        if current is None:
            return node
        node.origins = tuple(origin.derived(_INSIDE) for origin in current.origins)
        if not plain:
            node.region = resolved_region(current.region)
            mode = torch.is_grad_enabled()
            if mode is not self.grad_mode:
                node.region = (*node.region, RegionEntry(torch.enable_grad if mode else torch.no_grad))
            if not mode:
                self.without_grad.add(node)
        return node
