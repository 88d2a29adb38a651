"""Constant folding: what is the same in every call is computed once, and held by the module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture import Tracer
from fxplug.errors import ConfigError
from fxplug.execute import set_path
from fxplug.ir import PATH_OPCODES, Graph, Node, map_arg
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.constant_values import ConstantValues
from fxplug.passes.derivations import Recipe
from fxplug.passes.sharing import drop_unread, free_attribute
from fxplug.passes.state_origins import state_origins
from fxplug.passes.tensor_table import TensorTable
from fxplug.rewrite.adoption import drop_unreached
from fxplug.rewrite.calls import value_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.execute import GraphModule

__all__ = ["FoldConstants", "FoldConstantsOptions"]

_LIMIT = 16 * 2**20
_SMALL = 4096
"""How many elements a tensor has at most that is written into the recipe of another one."""


@dataclass(frozen=True)
class FoldConstantsOptions:
    """Options of ``fold-constants``.

    Raises:
        ConfigError: The limit is negative.
    """

    limit: int = _LIMIT
    """A value that takes more bytes is not folded, and neither is what is computed from it."""
    trainable: bool = False
    """Whether what is computed from parameters that require gradients is folded as well. They cannot be trained any
    more then; a module in training mode is left alone."""

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ConfigError(
                f"Cannot fold constants with limit={self.limit}: it is a number of bytes. Give 0 to fold nothing, or "
                "the size of the largest tensor that may be held."
            )


class FoldConstants(Pass):
    """Computes calls on nothing but constants, parameters and buffers, and lets the module hold their values.

    A value becomes a buffer of its own. Left as they are

    - values that depend on a parameter that requires a gradient: training changes it;
    - what draws random numbers, writes, or shares memory with something that is written, by whomever in the graph;
    - values that are returned, or may be: every call gives its caller new tensors;
    - views: they stay views of what they are views of, which may be a folded value;
    - everything, where the graph calls something of which nobody knows what it does.

    Args:
        limit: See `FoldConstantsOptions`.
        trainable: See `FoldConstantsOptions`.
    """

    def __init__(self, limit: int = _LIMIT, *, trainable: bool = False) -> None:
        self._options = FoldConstantsOptions(limit, trainable)

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Fold what can be folded."""
        trainable = self._options.trainable and not module.training
        constants = ConstantValues(module, self._options.limit, trainable=trainable)
        recorder = _Recorder(module)
        folded = [
            node
            for node in constants.wanted
            if constants.is_storable(node) and recorder.knows(node) and context.allows(node, "fold")
        ]
        recorded = [recorder.record(node) for node in folded]  # Before the first edit.
        sizes = [
            _fold(module, context, node, constants.values[node], *made)
            for node, made in zip(folded, recorded, strict=True)
        ]
        if folded:
            _clean_up(module, folded)
        details = {
            "folded": len(folded),
            "bytes": sum(sizes),
            "too_large": constants.too_large,
            "trainable": constants.training,
            "unknown": len(constants.unseen),
        }
        return PassResult(bool(folded), _summary(details, constants.unseen), details)


def _summary(details: dict[str, int], unseen: list[Node]) -> str:
    count = details["folded"]
    text = f"folded {count} value{'s' if count != 1 else ''}" if count else "nothing to fold"
    if unseen:
        text += f"; node {unseen[0].name!r} may change what is read"
    if details["trainable"]:
        text += f"; {details['trainable']} left alone, which train"
    if details["too_large"]:
        text += f"; {details['too_large']} left alone, larger than the limit"
    return text


def _fold(
    module: GraphModule,
    context: PassContext,
    node: Node,
    value: torch.Tensor,
    recipe: Recipe,
    sources: list[torch.Tensor],
    is_stored: bool,  # noqa: FBT001
) -> int:
    """Let the module hold the value of a call, and its users read it there; return its size."""
    graph = module.graph
    held = value.detach()
    path = free_attribute(module, f"{node.name}_folded")
    set_path(module, path, held, persistent=is_stored)
    context.derive(module.get_buffer(path), sources, recipe)
    with graph.inserting_before(node):
        read = graph.get_attr(path, node.type)
    read.region = node.region
    read.origins = node.origins
    read.meta = dict(node.meta)
    node.replace_all_uses_with(read)
    return held.numel() * held.element_size()


# -- how it is made ------------------------------------------------------------------------------------------------


class _Recorder:
    """Writes down how values are computed from the tensors of a module, as graphs.

    Args:
        module: Not changed.
    """

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._table = TensorTable(module)
        self._origins = state_origins(module)
        self._inside: dict[str, Graph | None] = {}

    def knows(self, node: Node) -> bool:
        """Return whether the value of a call can be computed anew without the module."""
        return all(
            used.op != "call_module"
            or (not used.kwargs and self._forward(str(used.target), len(used.args)) is not None)
            for used in _needed(node)
        )

    def _forward(self, path: str, count: int) -> Graph | None:
        """Return what the module at a path does with so many arguments, None where that cannot be captured."""
        if path not in self._inside:
            try:
                self._inside[path] = Tracer().trace(value_at(self._module, path))
            except Exception:  # Whatever it is that a module does.
                self._inside[path] = None
        graph = self._inside[path]
        if graph is None or graph.lifted or graph.find_nodes(op="call_module"):
            return None
        inputs = graph.find_nodes(op="placeholder")
        rest = inputs[count:]
        is_known = len(inputs) >= count and all(entry.args for entry in rest)
        return graph if is_known and not any(str(entry.target).startswith("*") for entry in inputs) else None

    def record(self, node: Node) -> tuple[Recipe, list[torch.Tensor], bool]:
        """Return how the value of a call is made, from which tensors, and whether a state dict holds one of them."""
        nodes = _needed(node)
        everything: dict[str, None] = {}
        for used in nodes:
            everything.update(dict.fromkeys(self._paths_of(used)))
        literals = {path: self._literal(path) for path in everything}
        paths = [path for path in everything if literals[path] is None]
        if not paths:  # Nothing that weights change; without sources, nothing is computed anew.
            paths = [*everything]
        graph = Graph()
        read = {path: graph.placeholder(f"tensor_{number}") for number, path in enumerate(paths)}
        first = next(iter(read.values()), None)
        for path in everything:
            if path not in read:
                dtype = {"dtype": self._table.tensors[path].dtype}
                read[path] = graph.call_method("new_tensor", (first, literals[path]), dtype)
        made: dict[Node, Any] = {}
        for used in nodes:
            if used.op == "get_attr":
                made[used] = read[str(used.target)]
            elif used.op == "call_module":
                made[used] = self._inline(graph, used, made, read)
            else:
                made[used] = graph.node_copy(used, lambda entry: made[entry])
        graph.output(made[node])
        sources = [self._table.tensors[path] for path in paths]
        return Recipe("fold", graph), sources, any(path in self._table.stored for path in paths)

    def _literal(self, path: str) -> Any:
        """Return the values of a small tensor that no weights change, None for others."""
        origin, tensor = self._origins.get(path), self._table.tensors[path]
        is_fixed = origin is not None and not origin.keys and not origin.unsaid
        return tensor.tolist() if is_fixed and tensor.numel() <= _SMALL else None

    def _paths_of(self, node: Node) -> Iterable[str]:
        if node.op == "get_attr":
            return (str(node.target),)
        if node.op != "call_module":
            return ()
        graph = self._inside[str(node.target)]
        reads = graph.find_nodes(op="get_attr") if graph is not None else []
        return [f"{node.target}.{entry.target}" for entry in reads]

    def _inline(self, graph: Graph, node: Node, made: dict[Node, Any], read: dict[str, Node]) -> Any:
        inner = self._inside[str(node.target)]
        assert inner is not None
        given: list[Any] = [map_arg(value, lambda entry: made[entry]) for value in node.args]
        mapped: dict[Node, Any] = {}
        for entry in inner.nodes:
            if entry.op == "placeholder":
                mapped[entry] = given.pop(0) if given else entry.args[0]
            elif entry.op == "get_attr":
                mapped[entry] = read[f"{node.target}.{entry.target}"]
            elif entry.op == "output":
                return map_arg(entry.args[0], lambda used: mapped[used])
            else:
                copied = mapped[entry] = graph.node_copy(entry, lambda used: mapped[used])
                copied.region = (*node.region, *entry.region)
        return None


def _needed(node: Node) -> list[Node]:
    """Return a constant and all that it is computed from, inputs first."""
    found: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found[one] = None
            waiting += one.all_input_nodes
    return sorted(found)


# -- what is left over ---------------------------------------------------------------------------------------------


def _clean_up(module: GraphModule, folded: list[Node]) -> None:
    """Remove the calls that only folded values needed, and what nobody reads any more."""
    unread: list[str] = []
    waiting, erased = list(folded), set[Node]()
    while waiting:
        node = waiting.pop()
        if node.users or node.op == "placeholder" or node in erased:
            continue
        inputs = node.all_input_nodes
        if node.op in PATH_OPCODES:
            unread.append(str(node.target))
        module.graph.erase_node(node)
        erased.add(node)
        waiting += inputs
    drop_unread(module, unread)
    drop_unreached(module, [path for path in unread if isinstance(value_at(module, path), torch.nn.Module)])
