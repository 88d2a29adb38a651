"""Runs one program through torch.fx and through fxplug and compares what comes out.

`DIFFERENCES` and `SPELLINGS` are the only places where a difference is allowed, each with its reason. An entry that
no longer describes a difference fails the suite, so the lists cannot rot.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.fx
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxplug.capture import Tracer
from fxplug.execute import GraphModule, Interpreter
from fxplug.ir import Node

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Allowed:
    """A difference from torch.fx that is meant."""

    reason: str
    refused: bool = False
    """torch.fx makes no working module of the program at all."""
    wrong: bool = False
    """torch.fx's module computes something else than eager."""


IN_PLACE = Allowed(
    "in-place operators are nodes of their own; torch.fx records plain ones, right where nothing aliases"
)
IN_PLACE_LOST = Allowed("in-place operators are nodes of their own; torch.fx loses the write", wrong=True)
ITEM_ASSIGNMENT = Allowed("item assignment is recorded; torch.fx does not support it", refused=True)
BUFFERS = Allowed("a buffer is read by one node, as a parameter is; torch.fx reads it anew for every use")
BUFFER_MATHS = Allowed("what is computed from buffers is in the graph; torch.fx computes it while tracing")
BUFFER_WRITE = Allowed(
    "updates of buffers are in the graph; torch.fx makes them once, while tracing", wrong=True
)
NAMEDTUPLE = Allowed("a namedtuple is an argument like a tuple; torch.fx records a call of its class")
TIED = Allowed("a parameter is read at the path that the program names; torch.fx takes the first path it has")
KEYWORD_PATH = Allowed("a module may be called `class`; torch.fx makes no valid source of it", refused=True)

DIFFERENCES: dict[str, Allowed] = {
    "augmented_add": IN_PLACE,
    "augmented_operators": IN_PLACE_LOST,
    "augmented_add_of_an_alias": IN_PLACE_LOST,
    "augmented_add_of_an_input": IN_PLACE_LOST,
    "item_assignment": ITEM_ASSIGNMENT,
    "slice_assignment": ITEM_ASSIGNMENT,
    "namedtuple_result": NAMEDTUPLE,
    "BufferReadTwice": BUFFERS,
    "BufferMaths": BUFFER_MATHS,
    "CountingBuffer": BUFFER_WRITE,
    "TiedParameters": TIED,
    "ChildrenNamedLikePython": KEYWORD_PATH,
}
"""Name of a program -> the difference that is meant."""

SPELLINGS: tuple[tuple[str, str, str], ...] = (
    (r"torch\._C\._(linalg|fft|special)\.\1_", r"torch.\1.", "a function is printed by its public name"),
    (r"torch\._C\._nn\.", "torch.nn.functional.", "a function is printed by its public name"),
    (r"torch\.functional\.", "torch.", "a function is printed by its public name"),
    (r"torch\._ops\.", "torch.ops.", "an operator is printed by its public name"),
    (
        r"(?m)^( +%\w+ : .+?) :? ?(\[num_users)",
        r"\1 \2",
        "torch.fx has no colon behind a placeholder's annotation",
    ),
    (
        r"slice\([^()]*\)",
        lambda match: match[0].replace("%", ""),
        "nodes in slices have their percent sign too",
    ),
)
"""Pattern, replacement, reason: how the texts of two equal graphs may differ."""


def trace_with_fxplug(root: Any) -> GraphModule:
    tracer = Tracer()
    graph = tracer.trace(root)
    return GraphModule(tracer.root, graph, _title(root))


def trace_with_torch(root: Any) -> torch.fx.GraphModule:
    tracer = torch.fx.Tracer()
    graph = tracer.trace(root)
    return torch.fx.GraphModule(tracer.root, graph, _title(root))


def _title(root: Any) -> str:
    return type(root).__name__ if isinstance(root, nn.Module) else root.__name__


def rows(graph: Any) -> list[tuple[str, str, str, str, str]]:
    """Return opcode, name, target, args and kwargs of every node, in a form that does not depend on the library."""
    return [
        (node.op, node.name, repr(node.target), str(_plain(node.args)), str(_plain(dict(node.kwargs))))
        for node in graph.nodes
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, (Node, torch.fx.Node)):
        return f"%{value.name}"
    if isinstance(value, tuple):
        return (type(value).__name__, *map(_plain, value))
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(element) for key, element in value.items()}
    if isinstance(value, slice):
        return f"slice({_plain(value.start)}, {_plain(value.stop)}, {_plain(value.step)})"
    return repr(value)


def text_of(graph: Any) -> str:
    text = str(graph)
    for pattern, replacement, _ in SPELLINGS:
        text = re.sub(pattern, replacement, text)
    return text


@dataclass
class Outcome:
    """What two calls left behind."""

    results: list[Any]
    structure: Any
    inputs: list[Any]
    state: dict[str, Tensor]
    gradients: dict[str, Any]


def run(function: Callable[..., Any], module: nn.Module | None, inputs: tuple[Any, ...]) -> Outcome:
    """Call twice with copies of `inputs`, with gradients into every floating-point input and parameter."""
    tracked: dict[str, Tensor] = dict(module.named_parameters()) if module is not None else {}
    results: list[Any] = []
    given: list[Any] = []
    torch.manual_seed(7)
    for call in range(2):
        leaves = pytree.tree_map_only(Tensor, lambda tensor: tensor.clone(), inputs)
        for index, leaf in enumerate(pytree.tree_leaves(leaves)):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                tracked[f"input {index} of call {call}"] = leaf.requires_grad_()
        # In-place changes of leaves that require gradients are refused by autograd.
        passed = pytree.tree_map_only(Tensor, lambda leaf: leaf * 1 if leaf.requires_grad else leaf, leaves)
        results.append(function(*passed))
        given.append(passed)
    flat, structure = pytree.tree_flatten(results)
    gradients = _gradients(flat, {name: leaf for name, leaf in tracked.items() if leaf.requires_grad})
    state = {name: value.detach().clone() for name, value in (module.state_dict() if module else {}).items()}
    return Outcome(flat, structure, pytree.tree_leaves(given), state, gradients)


def _gradients(results: list[Any], tracked: dict[str, Tensor]) -> dict[str, Any]:
    ends = [value for value in results if isinstance(value, Tensor) and value.requires_grad]
    if not ends or not tracked:
        return {}
    total = sum((value * (index + 1)).sum() for index, value in enumerate(ends))
    try:
        found = torch.autograd.grad(total, list(tracked.values()), allow_unused=True)
    except RuntimeError as error:
        return {"refused": str(error)}
    return dict(zip(tracked, found, strict=True))


def assert_same(actual: Outcome, expected: Outcome) -> None:
    assert actual.structure == expected.structure
    for ours, theirs in zip(actual.results + actual.inputs, expected.results + expected.inputs, strict=True):
        _assert_equal(ours, theirs)
    # A captured module holds what its graph names: not what is unused, and lifted constants besides.
    for name in actual.state.keys() & expected.state.keys():
        _assert_equal(actual.state[name], expected.state[name])
    for name, gradient in expected.gradients.items():
        _assert_equal(actual.gradients.get(name), gradient)


def _assert_equal(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if not isinstance(ours, Tensor):
        assert ours == theirs
        return
    assert ours.requires_grad == theirs.requires_grad
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True)
class Comparison:
    """One program, its inputs, and both libraries."""

    name: str
    make: Callable[[], Any]
    inputs: tuple[Any, ...]

    def root(self) -> Any:
        torch.manual_seed(0)
        return copy.deepcopy(self.make())

    def eager(self) -> Outcome:
        root = self.root()
        return run(root, root if isinstance(root, nn.Module) else None, self.inputs)

    def check_values(self) -> None:
        """Generated code computes what eager computes."""
        module = trace_with_fxplug(self.root())
        module.graph.lint()
        assert_same(run(module, module, self.inputs), self.eager())

    def check_interpreter(self) -> None:
        """The interpreter computes what generated code computes."""
        module = trace_with_fxplug(self.root())
        interpreted = trace_with_fxplug(self.root())
        actual = run(Interpreter(interpreted).run, interpreted, self.inputs)
        assert_same(actual, run(module, module, self.inputs))

    def check_against_torch(self) -> None:
        """The graph is that of torch.fx, and so is its text, unless the difference is meant."""
        allowed = DIFFERENCES.get(self.name)
        ours = trace_with_fxplug(self.root()).graph
        if allowed is not None and allowed.refused:
            with pytest.raises((TypeError, SyntaxError)):
                trace_with_torch(self.root())
            return
        theirs = trace_with_torch(self.root())
        if allowed is None:
            assert rows(ours) == rows(theirs.graph)
            assert text_of(ours) == text_of(theirs.graph)
        else:
            assert rows(ours) != rows(theirs.graph), (
                "There is no difference: take the entry out of DIFFERENCES."
            )
        computed = run(theirs, theirs, self.inputs)
        if allowed is not None and allowed.wrong:
            with pytest.raises(AssertionError):
                assert_same(computed, self.eager())
        else:
            assert_same(computed, self.eager())


@pytest.fixture
def compare() -> Callable[[str, Callable[[], Any], tuple[Any, ...]], Comparison]:
    return Comparison


@pytest.fixture
def differences() -> dict[str, Allowed]:
    return DIFFERENCES
