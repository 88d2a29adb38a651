"""Runs one program through torch.fx and through fxplug and compares what comes out.

`DIFFERENCES`, `SPELLINGS` and `SOURCE_SPELLINGS` are the only places where a difference is allowed, each with its
reason. An entry that no longer describes a difference fails the suite, so the lists cannot rot.
"""

from __future__ import annotations

import builtins
import copy
import importlib.util
import inspect
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path
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
    from collections.abc import Callable, Mapping

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named ones."""


# -- what may differ


@dataclass(frozen=True)
class Allowed:
    """A difference from torch.fx that is meant."""

    reason: str
    refused: bool = False
    """torch.fx makes no working module of the program at all."""
    wrong: bool = False
    """torch.fx's module computes something else than eager, or fails."""
    same_graph: bool = False
    """The graphs are equal; what differs is the generated source."""


IN_PLACE = Allowed(
    "in-place operators are nodes of their own; torch.fx records plain ones, right where nothing aliases"
)
IN_PLACE_LOST = Allowed("in-place operators are nodes of their own; torch.fx loses the write", wrong=True)
ITEM_ASSIGNMENT = Allowed("item assignment is recorded; torch.fx does not support it", refused=True)
BUFFERS = Allowed("a buffer is read by one node, as a parameter is; torch.fx reads it anew for every use")
BUFFER_MATHS = Allowed("what is computed from buffers is in the graph; torch.fx computes it while tracing")
BUFFER_PARTS = Allowed(
    "a buffer may be indexed with traced sizes; torch.fx indexes it while tracing, which Python refuses",
    refused=True,
)
BUFFER_WRITE = Allowed(
    "updates of buffers are in the graph; torch.fx makes them once, while tracing", wrong=True
)
NAMEDTUPLE = Allowed("a namedtuple is an argument like a tuple; torch.fx records a call of its class")
TIED = Allowed("a parameter is read at the path that the program names; torch.fx takes the first path it has")
KEYWORD_PATH = Allowed("a module may be called `class`; torch.fx makes no valid source of it", refused=True)
COPIES = Allowed(
    "a copy of a value is recorded; torch.fx copies its proxy and loses what is done to it", wrong=True
)
CALLABLE = Allowed("every callable can be traced; torch.fx takes modules and plain functions", refused=True)
OWN_FORWARD = Allowed("the forward of the instance is traced; torch.fx traces that of the class", wrong=True)
FIXED = Allowed("a parameter that is fixed keeps its name; torch.fx gives it another")
CALLABLE_DEFAULT = Allowed("a function may be a default; torch.fx refuses it", refused=True)
PARAMETER_ORDER = Allowed(
    "parameters keep their order; torch.fx puts keyword-only ones before starred ones", wrong=True
)
KEYWORD_ONLY = Allowed(
    "keyword-only parameters stay so; torch.fx lets callers pass them by position", same_graph=True
)
UNPACKING = Allowed(
    "the graph checks that there are as many parts as names; torch.fx drops those that are left over"
)
SELF = Allowed(
    "a parameter may be called `self`; torch.fx calls its receiver so and loses it",
    wrong=True,
    same_graph=True,
)
ANNOTATION = Allowed("an annotation is the very object; torch.fx prints its parts", same_graph=True)

DIFFERENCES: dict[str, Allowed] = {
    "augmented_add": IN_PLACE,
    "augmented_matrix_product": IN_PLACE,
    "augmented_operators": IN_PLACE_LOST,
    "augmented_add_of_an_alias": IN_PLACE_LOST,
    "augmented_add_of_an_input": IN_PLACE_LOST,
    "in_place_operator_functions": IN_PLACE_LOST,
    "ResidualStage": IN_PLACE,
    "resnet50": IN_PLACE,
    "resnet50_evaluated": IN_PLACE,
    "item_assignment": ITEM_ASSIGNMENT,
    "slice_assignment": ITEM_ASSIGNMENT,
    "namedtuple_result": NAMEDTUPLE,
    "copies_of_values": COPIES,
    "BufferReadTwice": BUFFERS,
    "BufferMaths": BUFFER_MATHS,
    "EinsumAttention": BUFFER_MATHS,
    "RotaryEmbedding": BUFFER_PARTS,
    "CountingBuffer": BUFFER_WRITE,
    "MovingAverage": BUFFER_WRITE,
    "KeptState": BUFFERS,
    "TiedParameters": TIED,
    "deep_recommender_constrained": TIED,
    "ChildrenNamedLikePython": KEYWORD_PATH,
    "NestedContainers": KEYWORD_PATH,
    "partial_root": CALLABLE,
    "partial_root_by_position": CALLABLE,
    "bound_method_root": CALLABLE,
    "class_method_root": CALLABLE,
    "callable_object_root": CALLABLE,
    "forward_of_the_instance": OWN_FORWARD,
    "fixed_number": FIXED,
    "fixed_none": FIXED,
    "fixed_condition": FIXED,
    "any_annotation": CALLABLE_DEFAULT,
    "every_kind_of_parameter": PARAMETER_ORDER,
    "Defaults": KEYWORD_ONLY,
    "keyword_only_parameters": KEYWORD_ONLY,
    "keyword_only_default": KEYWORD_ONLY,
    "parameters_like_the_receiver": SELF,
    "ChannelShuffle": UNPACKING,
    "GatedFeedForward": UNPACKING,
    "SelfAttention": UNPACKING,
    "ShiftedWindows": UNPACKING,
    "nested_unpacking": UNPACKING,
    "tuple_input": UNPACKING,
    "unpacking_of_shape": UNPACKING,
    "optional_annotation": ANNOTATION,
    "generic_annotations": ANNOTATION,
    "union_annotation": ANNOTATION,
}
"""Name of a program -> the difference that is meant."""

SPELLINGS: tuple[tuple[str, Any, str], ...] = (
    (r"torch\._C\._(linalg|fft|special)\.\1_", r"torch.\1.", "a function is printed by its public name"),
    (r"torch\._C\._nn\.", "torch.nn.functional.", "a function is printed by its public name"),
    (r"torch\.functional\.", "torch.", "a function is printed by its public name"),
    (r"torch\._ops\.", "torch.ops.", "an operator is printed by its public name"),
    (r" : '\w+' \[", " : [", "an annotation that is text is left out: to resolve it would run code"),
    (
        r"slice\([^()]*\)",
        lambda match: match[0].replace("%", ""),
        "nodes in slices have their percent sign too",
    ),
)
"""Pattern, replacement, reason: how the texts of two equal graphs may differ."""


def _by_object(text: str, graph: Any, known: Mapping[str, Any]) -> str:
    """Name what is global by the object that it leads to."""
    local = {node.name for node in graph.nodes} | {"self"}
    local |= {str(node.target).lstrip("*") for node in graph.nodes if node.op == "placeholder"}
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    lines = text.splitlines()
    for index in reversed(range(len(tokens))):
        name = tokens[index]
        if name.type != tokenize.NAME or name.string in local or name.string not in known:
            continue
        if tokens[index - 1].string == "." or tokens[index + 1].string == "=":
            continue
        value, end = known[name.string], index
        while tokens[end + 1].string == "." and hasattr(value, tokens[end + 2].string):
            value, end = getattr(value, tokens[end + 2].string), end + 2
        shown = f"{getattr(value, '__name__', 'object')}@{id(value):x}" if callable(value) else repr(value)
        line = lines[name.start[0] - 1]
        lines[name.start[0] - 1] = line[: name.start[1]] + shown + line[tokens[end].end[1] :]
    return "\n".join(lines)


_PATH = re.compile(r"(getattr@\w+\()*\w+(\.\w+|, \"[^\"]*\"\))+")


def _by_path(text: str, graph: Any, known: Mapping[str, Any]) -> str:
    """Put the path of a module in the place of a local that holds the module."""
    names = {node.name for node in graph.nodes}
    paths: dict[str, str] = {}
    lines: list[str] = []
    for line in text.splitlines():
        for local, path in paths.items():
            line = re.sub(rf"(?<![\w.]){local}(?=\.|, \")", lambda _, path=path: path, line)  # noqa: PLW2901
        local, _, value = line.strip().partition(" = ")
        if local.isidentifier() and local not in names and _PATH.fullmatch(value):
            assert local not in paths
            paths[local] = value
        else:
            lines.append(line)
    return "\n".join(lines)


def _by_pattern(pattern: str, replacement: str) -> Callable[[str, Any, Mapping[str, Any]], str]:
    return lambda text, graph, known: re.sub(pattern, replacement, text)


SOURCE_SPELLINGS: tuple[tuple[Callable[[str, Any, Mapping[str, Any]], str], str], ...] = (
    (_by_object, "a global is reached by its public path, or bound under a name that says what it is"),
    (_by_path, "a module deep below the root is read once, into a local; torch.fx reads it for every use"),
    (_by_pattern(r"^\s+|(?m:\n[^\S\n]*$)", ""), "torch.fx leaves empty lines around the function"),
    (_by_pattern(r"\.\.\.", "Ellipsis"), "Ellipsis is printed as a literal"),
    (_by_pattern(r"\((-[0-9.e+-]+)\)", r"\1"), "a number with a sign has parentheses beside an operator"),
    (
        _by_pattern(r"(?m)^( +\w+ = (\w+));  \2 = None$", r"\1"),
        "a value whose parameter has another name than its node is freed under both",
    ),
    (
        _by_pattern(r"(?m)^wrap@\w+\(\"\w+\"\)\n", ""),
        "functions that were kept as calls are not wrapped again by the source, which is not traced again",
    ),
    (_by_pattern(r"device@\w+\(", "device("), "a device is bound; torch.fx makes it anew in every call"),
    (
        _by_pattern(r" (:|->) '\w+'", ""),
        "an annotation that is text is left out: to resolve it would run code",
    ),
)
"""Rule, reason: how the generated sources of two equal graphs may differ."""


# -- what is compared


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


def text_of(graph: Any, spellings: tuple[tuple[str, Any, str], ...] = SPELLINGS) -> str:
    text = str(graph)
    for pattern, replacement, _ in spellings:
        text = re.sub(pattern, replacement, text)
    return text


def source_of(graph: Any, spellings: tuple[tuple[Any, str], ...] = SOURCE_SPELLINGS) -> str:
    code = graph.python_code("self")
    text, known = code.src, {**vars(builtins), **code.globals}
    for rule, _ in spellings:
        text = rule(text, graph, known)
    return text


@dataclass
class Outcome:
    """What two calls left behind."""

    results: list[Any]
    structure: Any
    inputs: list[Any]
    state: dict[str, Tensor]
    gradients: dict[str, Any]


def run(function: Callable[..., Any], module: nn.Module | None, inputs: Inputs) -> Outcome:
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
        args, kwargs = passed
        results.append(function(*args, **kwargs))
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


def _parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters with defaults, and with annotations that are no text; all may be passed by name."""
    everywhere = {inspect.Parameter.POSITIONAL_ONLY: inspect.Parameter.POSITIONAL_OR_KEYWORD}
    parameters = inspect.signature(function).parameters.values()
    return [
        entry.replace(
            kind=everywhere.get(entry.kind, entry.kind),
            annotation=entry.empty if isinstance(entry.annotation, str) else entry.annotation,
        )
        for entry in parameters
    ]


def _named_values(graph: Any, kwargs: Mapping[str, Any]) -> dict[Any, Any]:
    """Return the values of inputs that are passed by keyword; an interpreter takes the others by position."""
    values: dict[Any, Any] = {}
    named = dict(kwargs)
    for node in graph.find_nodes(op="placeholder"):
        if node.target.startswith("**"):
            values[node] = named
        elif node.target in named:
            values[node] = named.pop(node.target)
    return values


@dataclass(frozen=True)
class Comparison:
    """One program, its inputs, and both libraries."""

    name: str
    make: Callable[[], Any]
    make_inputs: Callable[[], tuple[Any, ...]]
    make_keywords: Callable[[], dict[str, Any]] = dict
    """Makes the inputs that are passed by keyword."""
    concrete_args: Mapping[str, Any] | None = None
    tracers: tuple[type[Tracer], type[torch.fx.Tracer]] = (Tracer, torch.fx.Tracer)
    """The tracer of each library."""

    @property
    def allowed(self) -> Allowed | None:
        return DIFFERENCES.get(self.name)

    @property
    def same_graph(self) -> bool:
        return self.allowed is None or self.allowed.same_graph

    def inputs(self) -> Inputs:
        return self.make_inputs(), self.make_keywords()

    def root(self) -> Any:
        torch.manual_seed(0)
        return copy.deepcopy(self.make())

    def with_fxplug(self) -> GraphModule:
        root, tracer = self.root(), self.tracers[0]()
        graph = tracer.trace(root, self.concrete_args)
        return GraphModule(tracer.root, graph)

    def with_torch(self) -> torch.fx.GraphModule:
        root, tracer = self.root(), self.tracers[1]()
        graph = tracer.trace(root, None if self.concrete_args is None else dict(self.concrete_args))
        return torch.fx.GraphModule(tracer.root, graph)

    def eager(self) -> Outcome:
        root = self.root()
        return run(root, root if isinstance(root, nn.Module) else None, self.inputs())

    def outcome(self, module: nn.Module) -> Outcome:
        """Return what two calls of a captured module leave behind."""
        return run(module, module, self.inputs())

    def check_values(self) -> None:
        """Generated code computes what eager computes."""
        module, root = self.with_fxplug(), self.root()
        module.graph.lint()
        program = root.forward if isinstance(root, nn.Module) else root
        assert _parameters_of(module.forward) == _parameters_of(program)
        assert_same(run(module, module, self.inputs()), self.eager())

    def check_interpreter(self) -> None:
        """The interpreter computes what generated code computes."""
        module, interpreted = self.with_fxplug(), self.with_fxplug()

        def interpret(*args: Any, **kwargs: Any) -> Any:
            return Interpreter(interpreted).run(*args, initial_env=_named_values(interpreted.graph, kwargs))

        assert_same(run(interpret, interpreted, self.inputs()), run(module, module, self.inputs()))

    def check_graph(self) -> None:
        """The graph is that of torch.fx, and so is what it computes, unless the difference is meant."""
        allowed = self.allowed
        ours = self.with_fxplug().graph
        if allowed is not None and allowed.refused:
            with pytest.raises((TypeError, SyntaxError, AssertionError, NotImplementedError)):
                self.with_torch()
            return
        theirs = self.with_torch()
        if self.same_graph:
            assert rows(ours) == rows(theirs.graph)
            assert text_of(ours) == text_of(theirs.graph)
        else:
            assert rows(ours) != rows(theirs.graph), STALE
        if allowed is None or not allowed.wrong:
            assert_same(run(theirs, theirs, self.inputs()), self.eager())
        else:
            assert not self._agrees(theirs), STALE

    def _agrees(self, module: torch.fx.GraphModule) -> bool:
        try:
            assert_same(run(module, module, self.inputs()), self.eager())
        except (AssertionError, NameError, TypeError):
            return False
        return True

    def check_source(self) -> None:
        """The generated source is that of torch.fx, unless the difference is meant."""
        ours, theirs = source_of(self.with_fxplug().graph), source_of(self.with_torch().graph)
        if self.allowed is None:
            assert ours == theirs
        else:
            assert ours != theirs, STALE


def _programs() -> list[Comparison]:
    """Return the programs of every file of the folder `programs`."""
    found: list[Comparison] = []
    for path in sorted((Path(__file__).parent / "programs").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"programs_of_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += [Comparison(name, **options) for name, options in module.PROGRAMS.items()]
    return found


PROGRAMS = _programs()


@pytest.fixture(scope="session")
def comparisons() -> list[Comparison]:
    return PROGRAMS


@pytest.fixture
def differences() -> dict[str, Allowed]:
    return DIFFERENCES


@pytest.fixture(scope="session")
def equal_graphs(comparisons: list[Comparison]) -> list[tuple[Any, Any]]:
    """Return both graphs of every program for which they are equal."""
    same = [program for program in comparisons if program.allowed is None]
    return [(program.with_fxplug().graph, program.with_torch().graph) for program in same]


@pytest.fixture(params=range(len(SPELLINGS)))
def text_without_a_spelling(request: pytest.FixtureRequest) -> Callable[[Any], str]:
    """Return what shows the text of a graph, with one spelling missing."""
    rest = SPELLINGS[: request.param] + SPELLINGS[request.param + 1 :]
    return lambda graph: text_of(graph, rest)


@pytest.fixture(params=range(len(SOURCE_SPELLINGS)))
def source_without_a_spelling(request: pytest.FixtureRequest) -> Callable[[Any], str]:
    """Return what shows the generated source of a graph, with one spelling missing."""
    rest = SOURCE_SPELLINGS[: request.param] + SOURCE_SPELLINGS[request.param + 1 :]
    return lambda graph: source_of(graph, rest)


@pytest.fixture
def same_outcome() -> Callable[[GraphModule, Comparison], None]:
    """Return what checks that a module made from a program does what eager does."""

    def check(module: GraphModule, program: Comparison) -> None:
        eager = program.eager()
        outcome = run(module, module, program.inputs())
        # Parameters have other paths in a module that was split, and sums in gradients have another order.
        gradients, eager.state, eager.gradients = eager.gradients, {}, {}
        assert_same(outcome, eager)
        for name, gradient in gradients.items():
            if " of call " in name and isinstance(gradient, Tensor):
                torch.testing.assert_close(
                    outcome.gradients[name], gradient, rtol=1e-4, atol=1e-5, equal_nan=True
                )

    return check


STALE = "There is no difference: take the entry out of DIFFERENCES."


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each program to every test that asks for a comparison, or for one of equal graphs."""
    for fixture in {"comparison", "comparison_of_equal_graphs"} & set(metafunc.fixturenames):
        chosen = [program for program in PROGRAMS if fixture == "comparison" or program.same_graph]
        metafunc.parametrize(fixture, chosen, ids=[program.name for program in chosen])
