"""What a program costs: multiply-adds, bytes and memory of every node, counted from shapes, nothing being computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.isolation import tensors_of
from fxplug.analyze.memory import MemoryUse, bytes_of_state, bytes_of_tensor, identity_of
from fxplug.analyze.parts import part_of
from fxplug.analyze.places import called_name, groups_of, place_of, sorted_rows
from fxplug.analyze.shapes import TensorMetadata
from fxplug.errors import AnalysisError
from fxplug.execute import GraphModule, fetch_path
from fxplug.ir import Node, iterate_leaves, map_aggregate
from fxplug.semantics.internals import OpOverload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import nn

__all__ = [
    "CallCost",
    "CostRow",
    "CostTable",
    "FlopFormulaRecord",
    "NodeCost",
    "OperatorCall",
    "bytes_of",
    "cost_table",
    "dtype_text",
    "tensors_in",
]


@dataclass(frozen=True)
class OperatorCall:
    """A call as its formula sees it: shapes and dtypes instead of tensors."""

    node: Node
    """The call."""
    args: tuple[Any, ...]
    """Its positional arguments, with `fxplug.analyze.TensorMetadata` where there are tensors. A node whose value is no
    tensor stands for itself."""
    kwargs: Mapping[str, Any]
    """Its keyword arguments, likewise."""
    result: Any
    """What it returns, likewise; None when it holds no tensor."""
    module: nn.Module | None
    """The module that a ``call_module`` node calls."""

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return the argument at a position or with a name, whichever way it was passed."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def shape(self, position: int, *names: str) -> torch.Size | None:
        """Return the shape of the argument at a position or with one of the names; None when there is no tensor."""
        places = self.args[position : position + 1] or tuple(
            self.kwargs[name] for name in names if name in self.kwargs
        )
        return next((place.shape for place in places if isinstance(place, TensorMetadata)), None)

    def elements(self) -> int:
        """Return how many elements the tensors of the result have together."""
        return sum(part.shape.numel() for part in tensors_in(self.result))


@dataclass(frozen=True)
class CallCost:
    """What one call costs."""

    multiply_adds: int
    """Multiplications with an addition each; what is only one of both counts as one."""
    bytes_read: int | None = None
    """Bytes of memory read; None: all tensors among arguments and state."""
    bytes_written: int | None = None
    """Bytes of memory written; None: all tensors of the result."""
    workspace_bytes: int | None = None
    """Bytes of memory that the call takes besides its result and gives back before it returns; None: those of the
    tensors that are made meanwhile, and what fxplug knows of the operators that make them."""


@dataclass(frozen=True)
class FlopFormulaRecord:
    """States what calls of one target cost."""

    target: Hashable
    """A callable, a method name, or a module class (the class itself, not those derived from it). For an operator of
    ``torch.ops``, all its overloads are meant."""
    formula: Callable[[OperatorCall], int | CallCost | None]
    """Returns the multiply-adds, or a `CallCost`; None when it cannot tell, and the next formula is asked."""
    summary: str = ""
    """One line for people."""


@dataclass(frozen=True)
class NodeCost:
    """What one node costs."""

    name: str
    op: str
    target: str
    """What it calls, for people."""
    multiply_adds: int | None
    """None: no formula knows the call."""
    bytes_read: int
    bytes_written: int
    dtype: str
    """In which the node computes, e.g. ``"float32"``; empty when it handles no tensor."""
    parameters: Mapping[str, int] = field(default_factory=dict[str, int])
    """Path -> bytes of every parameter that it reads; one that goes by several paths has the first."""
    allocated_bytes: int | None = None
    """Memory that its result takes; none for views, and for what is written in place. None: nobody has looked, as
    for the other fields about memory."""
    workspace_bytes: int | None = None
    """Memory that it takes besides and gives back before it ends."""
    peak_bytes: int | None = None
    """The most memory that activations take while it runs: those that are needed later, its own, its workspace."""
    modules: tuple[tuple[str, str], ...] = ()
    """Path and class of every module that it lies in, from the root on."""
    line: str = ""
    """``"FILE:LINE in FUNCTION"`` of the program; empty where none is known."""

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the parameters that it reads."""
        return sum(self.parameters.values())

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class CostRow:
    """What some nodes cost together: a row of a table."""

    name: str
    """The node, the path of the module (empty for the root), the class, or what is called."""
    kind: str
    """What the node calls, or the class of the module."""
    calls: int
    multiply_adds: int
    """The sum over the calls whose cost is known."""
    unknown: int
    """How many calls no formula knows."""
    bytes_read: int
    bytes_written: int
    parameter_bytes: int
    """Each parameter once."""
    allocated_bytes: int | None
    """Memory that the results take, whether or not they are alive together."""
    peak_bytes: int | None
    """The most memory that activations take while one of the calls runs."""
    line: str
    """``"FILE:LINE in FUNCTION"`` of the first call."""


COST_COLUMNS = tuple(entry.name for entry in fields(CostRow))
"""Names by which rows can be sorted."""


@dataclass(frozen=True)
class CostTable:
    """What a program costs, node by node."""

    nodes: tuple[NodeCost, ...]
    """One entry for each call, in the order of the graph. Where a graph module is called, such as a part of a split
    program, one for each call inside of it, ``"part.node"`` by name."""
    parameter_bytes: int = 0
    """Bytes of all parameters of the module, shared ones counted once."""
    buffer_bytes: int = 0
    """Bytes of all buffers, and of other tensors that modules hold."""
    input_bytes: int = 0
    """Bytes of the tensors among the inputs."""

    @property
    def multiply_adds(self) -> int:
        """The sum over all nodes whose cost is known; see `unknown`."""
        return sum(node.multiply_adds or 0 for node in self.nodes)

    @property
    def bytes(self) -> int:
        """Bytes read and written by all nodes, each on its own."""
        return sum(node.bytes for node in self.nodes)

    @property
    def unknown(self) -> tuple[NodeCost, ...]:
        """The calls that no formula knows; they are missing in the sum."""
        return tuple(node for node in self.nodes if node.multiply_adds is None)

    @property
    def peak_node(self) -> NodeCost | None:
        """The node during which activations take the most memory; None where nobody has looked."""
        known = [node for node in self.nodes if node.peak_bytes is not None]
        return max(known, key=lambda node: node.peak_bytes or 0, default=None)

    @property
    def peak_activation_bytes(self) -> int | None:
        """The most memory that activations take at one time in a call without gradients, inputs left out.

        None where nobody has looked, or the program cannot be followed.
        """
        if not self.nodes:
            return 0
        return None if self.peak_node is None else self.peak_node.peak_bytes

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that a call takes: parameters, buffers, inputs and activations."""
        activations = self.peak_activation_bytes
        state = self.parameter_bytes + self.buffer_bytes + self.input_bytes
        return None if activations is None else state + activations

    def rows(self, by: str = "node", sort: str | None = None) -> list[CostRow]:
        """Return the costs as a table.

        Args:
            by: What a row stands for: ``"node"``; ``"module"``, with all that lies in it, so that the root has the
                sums; ``"class"``, all modules of a class likewise; ``"kind"``, what is called.
            sort: A field of `CostRow`, from the largest number on; None: as they come in the program.

        Raises:
            UnknownNameError: There is no such grouping or field.
        """
        rows = [_row(name, kind, nodes) for (name, kind), nodes in groups_of(self.nodes, by).items()]
        return sorted_rows(rows, sort, COST_COLUMNS)

    def __str__(self) -> str:
        """Return the sums in a sentence."""
        missing = f"; unknown: {', '.join(node.name for node in self.unknown)}" if self.unknown else ""
        return (
            f"{len(self.nodes)} calls, {self.multiply_adds:,} multiply-adds, {self.bytes:,} bytes read and "
            f"written{missing}"
        )


def _row(name: str, kind: str, nodes: Sequence[NodeCost]) -> CostRow:
    parameters = {path: size for node in nodes for path, size in node.parameters.items()}
    allocated = [node.allocated_bytes for node in nodes if node.allocated_bytes is not None]
    return CostRow(
        name,
        kind,
        len(nodes),
        sum(node.multiply_adds or 0 for node in nodes),
        sum(node.multiply_adds is None for node in nodes),
        sum(node.bytes_read for node in nodes),
        sum(node.bytes_written for node in nodes),
        sum(parameters.values()),
        sum(allocated) if allocated else None,
        max((node.peak_bytes for node in nodes if node.peak_bytes is not None), default=None),
        nodes[0].line,
    )


Formulas = dict[Hashable, list[FlopFormulaRecord]]


def cost_table(
    module: GraphModule, formulas: Iterable[FlopFormulaRecord], *, state: nn.Module | None = None
) -> CostTable:
    """Return what every call of a module costs.

    Args:
        module: Its nodes have the notes of `fxplug.analyze.propagate_shapes`, and those of
            `fxplug.analyze.memory.MemoryProp` where memory is to be known, too. Not changed.
        formulas: The first one for a target that has an answer counts.
        state: Whose parameters and buffers are counted; by default those of `module`.

    Raises:
        AnalysisError: A node has no notes, or a formula gives something else than a cost.
    """
    table: Formulas = {}
    for record in formulas:
        table.setdefault(record.target, []).append(record)
    names: dict[Any, str] = {}
    for path, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(identity_of(parameter), path)
    holder = module if state is None else state
    parameters = list(holder.parameters())
    parameter_bytes = bytes_of_state(parameters)
    return CostTable(
        tuple(_node_costs(module, table, names)),
        parameter_bytes,
        # A buffer may be a view of a parameter.
        bytes_of_state([*parameters, *(tensor for _, tensor in tensors_of(holder))]) - parameter_bytes,
        bytes_of(
            tensors_in([node.meta.get("tensor_meta") for node in module.graph.find_nodes(op="placeholder")])
        ),
    )


def _node_costs(module: GraphModule, formulas: Formulas, names: Mapping[Any, str]) -> Iterator[NodeCost]:
    """Yield what every call costs; of a graph module, the calls inside of it."""
    for node in module.graph.nodes:
        if not node.op.startswith("call_"):
            continue
        part = part_of(node)
        if part is None:
            yield _node_cost(_call_of(node, module), formulas, _parameters_of(node, module, names))
            continue
        use = node.meta.get("memory")
        for inner in _node_costs(part, formulas, names):
            peak = inner.peak_bytes
            if peak is not None and isinstance(use, MemoryUse):
                peak += use.before
            yield replace(inner, name=f"{node.name}.{inner.name}", peak_bytes=peak)


def _parameters_of(node: Node, module: GraphModule, names: Mapping[Any, str]) -> dict[str, int]:
    """Return path -> bytes of the parameters that a call reads."""
    read: list[Any] = []
    if node.op == "call_module":
        read += fetch_path(module, str(node.target)).parameters()
    read += [fetch_path(module, str(used.target)) for used in node.all_input_nodes if used.op == "get_attr"]
    return {
        names[identity]: bytes_of_tensor(tensor)
        for tensor in read
        if isinstance(tensor, torch.Tensor) and (identity := identity_of(tensor)) in names
    }


def _call_of(node: Node, module: GraphModule) -> OperatorCall:
    if "type" not in node.meta:
        raise AnalysisError(
            f"Cannot tell what node {node.name!r} costs: its shape is not known. Ask "
            "fxplug.cost(module, example_inputs), or run fxplug.analyze.propagate_shapes(module, *inputs) first."
        )

    def describe(leaf: Any) -> Any:
        return leaf.meta.get("tensor_meta", leaf) if isinstance(leaf, Node) else leaf

    return OperatorCall(
        node,
        map_aggregate(node.args, describe, frozen=False),
        map_aggregate(node.kwargs, describe, frozen=False),
        node.meta.get("tensor_meta"),
        fetch_path(module, str(node.target)) if node.op == "call_module" else None,
    )


def _node_cost(call: OperatorCall, formulas: Formulas, parameters: Mapping[str, int]) -> NodeCost:
    answer = _ask(call, formulas)
    cost = answer if isinstance(answer, CallCost) else CallCost(0)
    return NodeCost(
        call.node.name,
        call.node.op,
        target_text(call),
        cost.multiply_adds if answer is not None else None,
        _bytes_read(call) if cost.bytes_read is None else cost.bytes_read,
        bytes_of(tensors_in(call.result)) if cost.bytes_written is None else cost.bytes_written,
        _dtype_of(call),
        parameters,
        **_memory_of(call.node, cost),
        **place_of(call.node),
    )


def _memory_of(node: Node, cost: CallCost) -> dict[str, int]:
    use = node.meta.get("memory")
    if not isinstance(use, MemoryUse):
        return {}
    kept = use.before + use.allocated
    workspace = use.peak - kept if cost.workspace_bytes is None else cost.workspace_bytes
    return {
        "allocated_bytes": use.allocated,
        "workspace_bytes": max(workspace, 0),
        "peak_bytes": kept + max(workspace, 0),
    }


def _ask(call: OperatorCall, formulas: Formulas) -> CallCost | None:
    for target in _targets_of(call):
        for record in formulas.get(target, ()):
            answer: Any = record.formula(call)
            if answer is None:
                continue
            cost = CallCost(answer) if isinstance(answer, int) and answer is not True else answer
            if not isinstance(cost, CallCost) or cost.multiply_adds < 0 or (cost.workspace_bytes or 0) < 0:
                raise AnalysisError(
                    f"Cannot tell what node {call.node.name!r} costs: the formula for {target_text(call)} returned "
                    f"{answer!r}. A formula returns a number of multiply-adds, a fxplug.CallCost, or None."
                )
            return cost
    return None


def _targets_of(call: OperatorCall) -> Iterator[Hashable]:
    target: Any = type(call.module) if call.module is not None else call.node.target
    if not isinstance(target, Hashable):
        return
    yield target
    if isinstance(target, OpOverload):
        yield target.overloadpacket


# -- tensors


def tensors_in(value: Any) -> Iterator[TensorMetadata]:
    """Yield the descriptions of tensors in a nested value."""
    if isinstance(value, TensorMetadata):
        yield value
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from tensors_in(element)
    elif isinstance(value, dict):
        for element in value.values():
            yield from tensors_in(element)


def bytes_of(tensors: Iterable[TensorMetadata]) -> int:
    """Return how much memory tensors take together."""
    return sum(tensor.shape.numel() * tensor.dtype.itemsize for tensor in tensors)


def _bytes_read(call: OperatorCall) -> int:
    # A tensor that is passed twice is read once.
    sources = [leaf for leaf in iterate_leaves((call.node.args, call.node.kwargs)) if isinstance(leaf, Node)]
    notes = [node.meta.get("tensor_meta") for node in dict.fromkeys(sources)]
    return bytes_of(tensors_in(notes)) + _bytes_of_state(call.module)


def _bytes_of_state(module: nn.Module | None) -> int:
    if module is None:
        return 0
    state: Sequence[torch.Tensor] = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * tensor.dtype.itemsize for tensor in state)


def _dtype_of(call: OperatorCall) -> str:
    # The result first: that is what mixed arguments are promoted to, and what autocast casts them to.
    dtypes = [part.dtype for part in tensors_in([call.result, call.args, dict(call.kwargs)])]
    computed = next((dtype for dtype in dtypes if dtype.is_floating_point), None)
    return dtype_text(computed or dtypes[0]) if dtypes else ""


def dtype_text(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its module, e.g. ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def target_text(call: OperatorCall) -> str:
    """Return what a node calls, for people."""
    return called_name(call.node, call.module)
