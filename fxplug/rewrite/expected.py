"""What the values of a program are like before it is expressed by others, and whether they still are."""

from __future__ import annotations

import copy
import operator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from fxplug.errors import DecompositionError
from fxplug.execute import GraphModule, Interpreter
from fxplug.execute.shadow import state_tensors
from fxplug.ir import Node, effects, map_aggregate
from fxplug.semantics.checks import CHECKS
from fxplug.semantics.internals import FakeTensorMode
from fxplug.semantics.symbols import example_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "Description",
    "as_fake",
    "difference",
    "expected_values",
    "is_kept",
]


class Description(NamedTuple):
    """What a value is like."""

    is_tensor: bool
    """Whether it is one tensor; else it may have some inside."""
    tensors: dict[str, str]
    """Where each tensor stands in it -> its dtype and sizes."""


def expected_values(module: GraphModule, inputs: Sequence[Any]) -> dict[Node, Description]:
    """Run a program on tensors without data, and return what the values of its nodes are like.

    Where it cannot go on without data, what follows is left out.

    Args:
        module: Not changed.
        inputs: One value for each input of its graph.
    """
    run = _Describing(module)
    placeholders = module.graph.find_nodes(op="placeholder")
    with run.mode, suppress(Exception):
        values = [map_aggregate(value, run.without_data, frozen=False) for value in inputs]
        run.run(initial_env=dict(zip(placeholders, values, strict=True)), enable_io_processing=False)
    return run.found


def as_fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """Return what stands for a tensor of the state or the inputs, without its history."""
    plain = tensor if tensor.is_leaf else tensor.detach().requires_grad_(tensor.requires_grad)
    return mode.from_tensor(plain, static_shapes=True)


def is_kept(node: Node) -> bool:
    """Return whether a call is written as it is, for what it checks or does outside of the program."""
    return node.op == "call_function" and (node.target in CHECKS or effects.effect_of(node).outside)


class _Describing(Interpreter):
    """Runs a program and notes what its values are like."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.found: dict[Node, Description] = {}
        self._copied: dict[int, Any] = {}
        """Id of what the module holds -> what stands for it."""

    def without_data(self, leaf: Any) -> Any:
        """Return what stands for a value."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in self._copied:
            self._copied[id(leaf)] = as_fake(leaf, self.mode)
        return self._copied[id(leaf)]

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        if isinstance(value, nn.Module):
            for _, tensor in state_tensors(value):
                self.without_data(tensor)
            return copy.deepcopy(value, self._copied)
        return self.without_data(value)

    def run_node(self, n: Node) -> Any:
        if is_kept(n):
            if n.target in CHECKS:
                with suppress(Exception):
                    return super().run_node(n)
            return None  # What is done outside of the program is done once.
        value = super().run_node(n)
        self.found[n] = _described(value)
        return value


def _described(value: Any) -> Description:
    tensors = {place: _text(tensor) for place, tensor in _tensors(value, "")}
    return Description(isinstance(value, torch.Tensor), tensors)


def _tensors(value: Any, place: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, (tuple, list)):
        for index, element in enumerate(cast("Sequence[Any]", value)):
            yield from _tensors(element, f"{place}[{index}]")
    elif isinstance(value, dict):
        for key, element in cast("dict[Any, Any]", value).items():
            yield from _tensors(element, f"{place}[{key!r}]")


def _text(tensor: torch.Tensor) -> str:
    sizes = ", ".join([str(example_of(size)) for size in tensor.shape])
    return f"{str(tensor.dtype).removeprefix('torch.')}[{sizes}]"


def difference(
    node: Node, value: Any, expected: Mapping[Node, Description]
) -> tuple[Node, DecompositionError] | None:
    """Return what made a value that no longer is like it was, with the error; None where it still is.

    Parts that nothing reads may be others, as the masks and statistics of some operators are.
    """
    wanted = expected.get(node)
    if wanted is None or not (wanted.is_tensor or any(map(_reads_elements, node.users))):
        return None
    found = _described(value).tensors
    at = next((at for at, text in wanted.tensors.items() if found.get(at, text) != text), None)
    if at is None:
        return None
    maker, place = _maker(node, expected)
    what = f"element {place}{at} of what it returns" if place or at else "what it returns"
    return maker, DecompositionError(
        f"{what} would be {found[at]}, and is {wanted.tensors[at]} in the program. A decomposition is wrong: one of "
        f"the table, or one that PyTorch {torch.__version__} has of its own. Pass another table, use another version "
        "of PyTorch, or take the call out of the program and decompose the parts beside it",
        code="FXP-R002",
    )


def _reads_elements(user: Node) -> bool:
    return user.target is not operator.getitem and user.target not in CHECKS


def _maker(node: Node, expected: Mapping[Node, Description]) -> tuple[Node, str]:
    """Return what made a value that a node takes out of several, and where it stands in that: ``"[1][0]"``."""
    path = ""
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        source = node.args[0]
        if source not in expected or expected[source].is_tensor:
            break
        node, path = source, f"[{node.args[1]!r}]{path}"
    return node, path
