"""Checks that an engine need not run: what it was compiled for, which is looked at before it runs, answers them."""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug.ir import iterate_leaves, map_aggregate
from fxplug.lower.backend import values_of
from fxplug.semantics.checks import check_raises, class_of, is_check, is_instance
from fxplug.semantics.internals import FakeTensor
from fxplug.semantics.symbols import is_asked_about, is_symbolic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fxplug.execute import GraphModule
    from fxplug.ir import Node
    from fxplug.lower.backend import LoweringContext
    from fxplug.lower.profile import Profile

__all__ = ["ASKS", "NOT_SETTLED", "UNKNOWN", "Settled", "settle", "without_checks"]

NOT_SETTLED = (
    "it checks something that dtypes and sizes of the inputs do not tell, that the captured program relies on; such "
    "checks run in PyTorch"
)
"""Why a check stays in PyTorch."""
UNKNOWN = (
    "it returns a number that depends on the elements of tensors; the program goes on with it in PyTorch"
)
"""Why such a call stays in PyTorch."""
ASKS = "it asks about sizes that are left open; the program goes on with the answer in PyTorch"
"""Why such a call stays in PyTorch."""
_ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim"})
_METHODS = frozenset({"size", "dim", "ndimension", "numel", "nelement", "__len__", "is_floating_point"})
_FUNCTIONS: tuple[Any, ...] = (
    len,
    isinstance,
    class_of,
    is_instance,
    torch.is_tensor,
    torch.is_floating_point,
    torch.numel,
)
"""What of a tensor follows from the dtypes, devices and sizes that a profile fixes."""
_PARTS: tuple[Any, ...] = (operator.getitem, len, isinstance, class_of, is_instance)
"""What may be done with open sizes, so that a plain result is the same for all of them. A comparison may be one for
the examples alone."""


@dataclass(frozen=True)
class Settled:
    """What the profile of an engine tells of a program, before the engine runs."""

    checks: frozenset[Node] = frozenset()
    """The checks that hold for all inputs of the profile."""
    unknown: frozenset[Node] = frozenset()
    """Calls that return plain values which depend on the elements of tensors."""
    asking: frozenset[Node] = frozenset()
    """Calls that ask about sizes which are left open: an engine would answer as the examples do."""


def settle(module: GraphModule, context: LoweringContext, profile: Profile | None) -> Settled:
    """Return what is known of a program for all inputs of a profile.

    Args:
        module: Not changed.
        context: Knows the module and its example inputs.
        profile: What inputs are accepted; None for all of them.
    """
    inputs = context.example_inputs
    if profile is None or inputs is None:
        return Settled()
    if any(entry.parts is not None and not entry.is_closed for entry in profile.inputs):
        return Settled()  # Open sizes of tensors inside of an input have no names.
    opened = _open_sizes(inputs, profile)
    values = values_of(module, inputs, opened) if opened else context.values
    is_asked = _is_asked(module, values, opened)
    small = list(_of_small_sizes(module, inputs, opened)) if opened and values else []
    known: dict[Node, bool] = {}
    asking: set[Node] = set()
    for node in module.graph.nodes:
        known[node] = node in values and _is_known(node, values, known)
        if known[node] and is_asked and type(values[node]) in {tuple, list} and _has_tensor(values[node]):
            known[node] = False  # How many parts there are may be what was asked.
        elif opened and known[node] and (_asks_open_sizes(node, values) or _is_other(node, values, small)):
            known[node] = False
            asking.add(node)
    calls = [node for node in module.graph.nodes if node.op.startswith("call_")]
    checks = {
        node
        for node in calls
        if is_check(node)
        and node.target is not check_raises
        and all(known[used] for used in node.all_input_nodes)
        and _holds(node, values)
    }
    for found in small:
        checks = {node for node in checks if _holds(node, found)}
    return Settled(
        frozenset(checks),
        frozenset(
            node
            for node in calls
            if node in values and not known[node] and node not in asking and _is_plain(values[node])
        ),
        frozenset(asking),
    )


def _is_asked(
    module: GraphModule, values: Mapping[Node, Any], opened: Mapping[int | str, Mapping[int, str]]
) -> bool:
    """Return whether something that a program did was right for some of the open sizes alone."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    positions = [position for position in opened if isinstance(position, int)]
    shapes = [values[inputs[position]].shape for position in positions if inputs[position] in values]
    return any(is_symbolic(size) and is_asked_about(size) for shape in shapes for size in shape)


def _asks_open_sizes(node: Node, values: Mapping[Node, Any]) -> bool:
    """Return whether a call compares open sizes, or does else what has one result for the examples alone."""
    value = values[node]
    if not node.op.startswith("call_") or _has_tensor(value):
        return False
    if isinstance(value, torch.SymBool):
        return True
    if any(is_symbolic(leaf) for leaf in iterate_leaves((value,))) or any(
        node.target is one for one in _PARTS
    ):
        return False
    taken = [values[used] for used in node.all_input_nodes]
    return any(is_symbolic(leaf) for leaf in iterate_leaves((taken,)))


def _is_other(node: Node, values: Mapping[Node, Any], small: list[Mapping[Node, Any]]) -> bool:
    """Return whether a call returns another number, or tensors of another rank, where open sizes are 1 or 0."""
    if not node.op.startswith("call_"):
        return False
    return any(node in found and not _is_like(values[node], found[node]) for found in small)


def _is_like(value: Any, found: Any) -> bool:
    leaves, others = list(iterate_leaves((value,))), list(iterate_leaves((found,)))
    if len(leaves) != len(others):
        return False
    for leaf, other in zip(leaves, others, strict=True):
        if isinstance(leaf, torch.Tensor):
            if not isinstance(other, torch.Tensor) or leaf.dim() != other.dim():
                return False
        elif isinstance(leaf, (bool, int, float)) and leaf != other:
            return False
    return True


def _of_small_sizes(
    module: GraphModule, inputs: tuple[Any, ...], opened: Mapping[int | str, Mapping[int, str]]
) -> Iterator[Mapping[Node, Any]]:
    """Yield what nodes return where open sizes are 1 or 0, which no open size stands for.

    A program that takes no empty tensors need not be right for them.
    """
    names = sorted({name for entry in opened.values() for name in entry.values()})
    chosen = [set(names), *({name} for name in names if len(names) > 1)]
    for size in (1, 0):
        for those in chosen:
            changed = tuple(
                _resized(
                    value, {dim: size for dim, name in opened.get(position, {}).items() if name in those}
                )
                for position, value in enumerate(inputs)
            )
            values = values_of(module, changed)
            if values or size:
                yield values


def _resized(value: Any, sizes: Mapping[int, int]) -> Any:
    if not sizes:
        return value
    shape = [sizes.get(dim, size) for dim, size in enumerate(value.shape)]
    return torch.zeros(shape, dtype=value.dtype, device=value.device)


def _is_plain(value: Any) -> bool:
    return all(isinstance(leaf, (bool, int, float, complex)) for leaf in iterate_leaves((value,)))


def _open_sizes(inputs: tuple[Any, ...], profile: Profile) -> dict[int | str, dict[int, str]]:
    """Return a name for every open size; those that are equal in the examples have one."""
    found: dict[int | str, dict[int, str]] = {}
    for position, (value, entry) in enumerate(zip(inputs, profile.inputs, strict=True)):
        names = {
            dim: f"dim_{dim}_of_{value.shape[dim]}" for dim, size in enumerate(entry.sizes) if size is None
        }
        if names:
            found[position] = names
    return found


def _holds(check: Node, values: Mapping[Node, Any]) -> bool:
    """Return whether a check holds, for all of the open sizes."""
    if any(used not in values for used in check.all_input_nodes):
        return False
    args = map_aggregate(check.args, lambda leaf: values.get(leaf, leaf), frozen=False)
    if any(is_symbolic(leaf) for leaf in iterate_leaves(args)):
        return False
    try:
        check.target(*args)
    except Exception:  # Whatever it is: running the program tells.
        return False
    return True


def _is_known(node: Node, values: Mapping[Node, Any], known: Mapping[Node, bool]) -> bool:
    """Return whether dtypes and sizes of the inputs tell what a node returns, but for the elements of tensors."""
    if not node.op.startswith("call_"):
        return True
    if not all(known[used] for used in node.all_input_nodes):
        return False
    if _has_tensor(values[node]):
        return _is_without_data(values[node])  # Where a program had to be run, sizes may depend on numbers.
    if not any(_has_tensor(values[used]) for used in node.all_input_nodes):
        return True
    if node.op == "call_method":
        return node.target in _METHODS
    if node.target is getattr:
        return node.args[1] in _ATTRIBUTES
    return any(node.target is known for known in _FUNCTIONS)


def _is_without_data(value: Any) -> bool:
    tensors = [leaf for leaf in iterate_leaves((value,)) if isinstance(leaf, torch.Tensor)]
    return all(isinstance(tensor, FakeTensor) for tensor in tensors)


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in iterate_leaves((value,)))


def without_checks(program: GraphModule, context: LoweringContext, profile: Profile | None) -> GraphModule:
    """Return a program without the checks that hold for all inputs of a profile; the program itself if it has none.

    Args:
        program: Not changed.
        context: Knows the program and its example inputs.
        profile: What inputs are accepted.
    """
    if not any(map(is_check, program.graph.nodes)):
        return program
    settled = settle(program, context, profile).checks
    if not settled:
        return program
    made = copy.copy(program)
    graph = copy.deepcopy(program.graph)
    for node, copied in list(zip(program.graph.nodes, graph.nodes, strict=True)):
        if node in settled:
            graph.erase_node(copied)
    made.graph = graph
    return made
