"""Programs with nested inputs, traced as graphs with flat ones.

A parameter whose concrete value is a list, dict or another structure known to torch's pytrees becomes one input for
each leaf. The function that is generated from the graph takes the same structure, and returns what the program
returned.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.capture.arguments import iterate_parts
from fxplug.capture.concrete import PH
from fxplug.capture.proxy import Proxy
from fxplug.capture.questions import refuse_cycles
from fxplug.codegen import PyTreeCodeGen, TreeParameter
from fxplug.errors import GraphError, TraceError
from fxplug.semantics.deep_copies import shallow_copy
from fxplug.semantics.internals import flatten_tree, flatten_tree_with_paths, is_registered, unflatten_tree

if TYPE_CHECKING:
    from fxplug.capture.inputs import Input
    from fxplug.capture.roots import RootCall
    from fxplug.ir import Graph
    from fxplug.semantics.internals import TreeSpec

__all__ = [
    "LEAF",
    "InputPlan",
    "InputTrees",
    "NestedCall",
    "OutputTree",
    "PlannedInput",
    "tell_sizes_from_tuples",
]


LEAF = 0
"""Stands for each leaf of a structure without values; None would be a part that is missing to some containers."""


@dataclass(frozen=True)
class PlannedInput:
    """One input of the graph."""

    input: Input
    """Its placeholder."""
    path: str
    """How it is called in messages."""
    value: Any
    """What it is traced with; a placeholder (see `PH`) where it stays an input."""


class InputPlan:
    """Which inputs a graph has: one for each parameter, or for each leaf of the value that it is traced with.

    Args:
        inputs: The parameters.
        concrete: Name of a parameter -> value, where one was given.
        named_by_path: Whether the inputs for the parts of a structure are named after their places in it, and not
            numbered.

    Raises:
        TraceError: A structure was given for a parameter that stands behind a variable number of others.
    """

    def __init__(self, inputs: list[Input], concrete: dict[str, Any], *, named_by_path: bool = False) -> None:
        self._named_by_path = named_by_path
        self.specs: dict[str, TreeSpec] = {}
        """Name of each nested parameter -> its structure."""
        self.entries: list[PlannedInput] = []
        """The inputs in order."""
        if not concrete:
            self.entries = [PlannedInput(entry, entry.name, PH) for entry in inputs]
            return
        if not all(type(value) is torch.Tensor for value in concrete.values()):
            refuse_cycles(concrete, "concrete_args")
        taken = {entry.name for entry in inputs}
        star: str | None = None
        for entry in inputs:
            value = concrete.get(entry.name, PH)
            is_tensor = type(value) is torch.Tensor  # As most are, which takes no search.
            paths, spec = ([], None) if is_tensor else flatten_tree_with_paths(value)
            if spec is None or spec.is_leaf():
                star = entry.target if entry.stars == "*" else star
                self.entries.append(PlannedInput(entry, entry.name, value))
                continue
            if star is not None and not entry.stars:
                raise TraceError(
                    f"Cannot give the parameter {entry.name!r} a structure: it stands behind {star}, and how many "
                    f"values that receives is unknown. Give {star} a tuple in concrete_args too.",
                    code="FXP-T031",
                )
            if any(other.name == "self" for other in inputs):
                raise TraceError(
                    f"Cannot give the parameter {entry.name!r} a structure: the program has another parameter that is "
                    "called 'self', as the first parameter of the captured function is. Give it another name.",
                    code="FXP-T031",
                )
            self.specs[entry.name] = spec
            for path, leaf in paths:
                self._add_leaf(entry, path, leaf, taken)

    def _add_leaf(self, entry: Input, path: str, leaf: Any, taken: set[str]) -> None:
        stem = entry.name
        if self._named_by_path:
            stem = "_".join([entry.name, *re.findall(r"[A-Za-z0-9]+", path)])
        name = stem
        if not self._named_by_path or name in taken:
            number = 1
            while f"{stem}_{number}" in taken:
                number += 1
            name = f"{stem}_{number}"
        taken.add(name)
        # Stars and annotation are those of the whole.
        behind = entry.keyword_only or bool(entry.stars)
        own = dataclasses.replace(entry, name=name, stars="", annotation=None, keyword_only=behind)
        self.entries.append(PlannedInput(own, entry.name + path, leaf))


class InputTrees:
    """Takes nested values apart.

    Args:
        specs: Name of each nested parameter -> its structure.
        tells_sizes: Whether a ``torch.Size`` is another structure than a tuple: the program may ask which it is.
    """

    def __init__(self, specs: dict[str, TreeSpec], *, tells_sizes: bool = False) -> None:
        self.specs = specs
        self.tells_sizes = tells_sizes
        self.skeletons: dict[str, Any] = {name: _skeleton(spec) for name, spec in specs.items()}
        """The same structures with `LEAF` for each leaf, in containers."""

    @staticmethod
    def of(skeletons: dict[str, Any], tells_sizes: bool = False) -> InputTrees:  # noqa: FBT001, FBT002 - as pickled
        """Return what takes values apart that are nested as `skeletons` are."""
        specs = {name: flatten_tree(skeleton)[1] for name, skeleton in skeletons.items()}
        return InputTrees(specs, tells_sizes=tells_sizes)

    def __call__(self, values: tuple[Any, ...]) -> list[Any]:
        """Return the leaves of one value for each nested parameter.

        Raises:
            GraphError: A value has another structure than the one that was traced.
            TraceError: A value is traced itself, so that it cannot be taken apart.
        """
        leaves: list[Any] = []
        for (name, spec), value in zip(self.specs.items(), values, strict=True):
            if isinstance(value, Proxy):
                raise TraceError(
                    f"Cannot trace into a captured program with nested inputs: the value of {name!r} is a single "
                    "traced value. Give concrete_args the structure, with fxplug.PH for its values, or make the "
                    "module a leaf.",
                    code="FXP-T031",
                )
            try:
                skeleton = self.skeletons[name]
                leaves += spec.flatten_up_to(_aligned(skeleton, value, is_exact=self.tells_sizes))
            except (ValueError, TypeError, KeyError) as error:
                difference = _difference(self.skeletons[name], value, "") or str(error)
                reason = (
                    f"the value of {name!r} has another structure than the one that was traced: {difference}"
                )
                raise GraphError(
                    f"Cannot run the captured program: {reason}. Pass the same structure, or trace the program again "
                    "with this one.",
                    code="FXP-G020",
                ) from ValueError(reason)
        return leaves

    def __reduce__(self) -> tuple[Any, ...]:
        return InputTrees.of, (self.skeletons, self.tells_sizes)


class OutputTree:
    """Puts a nested result together.

    Args:
        spec: Its structure.
    """

    def __init__(self, spec: TreeSpec) -> None:
        self.spec = spec

    @property
    def skeleton(self) -> Any:
        """The same structure with `LEAF` for each leaf, in containers."""
        return _skeleton(self.spec)

    @staticmethod
    def of(skeleton: Any) -> OutputTree:
        """Return what puts results together that are nested as `skeleton` is."""
        return OutputTree(flatten_tree(skeleton)[1])

    def __call__(self, leaves: Any) -> Any:
        """Return the result for what the graph returns.

        Raises:
            GraphError: The graph returns something else than one value for each leaf.
        """
        found: list[Any] = list(leaves) if isinstance(leaves, (tuple, list)) else [leaves]
        if len(found) != self.spec.num_leaves:
            raise GraphError(
                f"Cannot put the result together: the graph returns {len(found)} values, and the program returned "
                f"{self.spec.num_leaves}. If the graph was changed on purpose, give its function flat results: "
                "graph.set_codegen(fxplug.CodeGen())."
            )
        return unflatten_tree(found, self.spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return OutputTree.of, (self.skeleton,)


def tell_sizes_from_tuples(graph: Graph) -> None:
    """Let the function of a graph with nested inputs take no ``torch.Size`` where a tuple was traced."""
    generator = vars(graph)["_codegen"]
    if isinstance(generator, PyTreeCodeGen) and isinstance(generator.flatten, InputTrees):
        generator.flatten.tells_sizes = True


def _aligned(skeleton: Any, value: Any, *, is_exact: bool) -> Any:
    """Return `value` with plain tuples for its sizes where tuples were traced.

    Args:
        skeleton: What was traced.
        value: What is given.
        is_exact: Whether these are left as they are.

    Raises:
        ValueError: A dict is of another class, or its keys are in another order: a program that loops over it does
            something else then.
    """
    if isinstance(value, torch.Size):
        return tuple(value) if type(skeleton) is tuple and not is_exact else value
    if isinstance(value, dict) and isinstance(skeleton, dict):
        if type(value) is not type(skeleton):  # Which torch takes for one another, and programs do not.
            raise ValueError("it is a dict of another class")
        pair = cast("tuple[dict[Any, Any], dict[Any, Any]]", (skeleton, value))
        return _aligned_dict(*pair, is_exact=is_exact)
    kind: Any = type(skeleton)
    if type(value) is not kind or not issubclass(kind, (tuple, list)) or len(value) != len(skeleton):
        return value
    parts = [_aligned(one, part, is_exact=is_exact) for one, part in zip(skeleton, value, strict=True)]
    if all(map(_is_same, parts, value)):
        return value
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def _aligned_dict(skeleton: dict[Any, Any], value: dict[Any, Any], *, is_exact: bool) -> dict[Any, Any]:
    if skeleton.keys() != value.keys():
        return value  # Which keys are wrong is said when it is taken apart.
    if list(skeleton) != list(value):
        raise ValueError("its keys stand in another order")
    changed = {key: _aligned(skeleton[key], part, is_exact=is_exact) for key, part in value.items()}
    if all(changed[key] is part for key, part in value.items()):
        return value
    aligned = shallow_copy(value)
    aligned.update(changed)
    return aligned


def _difference(skeleton: Any, value: Any, place: str) -> str:
    """Return where a value has another structure, "" where that is not plain to see."""
    where = f"its part {place}" if place else "it"
    if type(value) is not type(skeleton):
        found, traced = type(value).__name__, type(skeleton).__name__
        return "" if skeleton is LEAF else f"{where} is a {found}, and was traced as a {traced}"
    if isinstance(skeleton, dict):
        return _difference_of_dicts(cast("dict[Any, Any]", skeleton), cast("dict[Any, Any]", value), place)
    if not isinstance(skeleton, (list, tuple)):
        return ""
    parts: list[Any] = list(cast("list[Any]", skeleton))
    if len(value) != len(parts):
        return f"{where} has {len(value)} parts, and was traced with {len(parts)}"
    found = (_difference(part, value[index], f"{place}[{index}]") for index, part in enumerate(parts))
    return next(filter(None, found), "")


def _difference_of_dicts(skeleton: dict[Any, Any], value: dict[Any, Any], place: str) -> str:
    where = f"its part {place}" if place else "it"
    missing = [key for key in skeleton if key not in value]
    unknown = [key for key in value if key not in skeleton]
    if missing or unknown:
        lacks = f"has no {', '.join(map(repr, missing))}" if missing else ""
        holds = f"has {', '.join(map(repr, unknown))}, which the traced one had not" if unknown else ""
        return f"{where} {' and '.join(filter(None, (lacks, holds)))}"
    if list(skeleton) != list(value):
        whose = f"in its part {place} the" if place else "its"
        return f"{whose} keys stand in the order {list(value)}, and were traced as {list(skeleton)}"
    found = (_difference(part, value[key], f"{place}[{key!r}]") for key, part in skeleton.items())
    return next(filter(None, found), "")


def _skeleton(spec: TreeSpec) -> Any:
    """Return a structure without values: containers, where a `TreeSpec` is torch's own."""
    return unflatten_tree([LEAF] * spec.num_leaves, spec)


class NestedCall:
    """Runs a root with one value for each leaf of its inputs, and takes its result apart.

    Args:
        call: Runs it with one value for each parameter.
        skipped: How many values precede those of the parameters.
        specs: Name of each nested parameter -> its structure.
        graph: Whose function is to take and return the structures.
    """

    def __init__(self, call: RootCall, skipped: int, specs: dict[str, TreeSpec], graph: Graph) -> None:
        self._call = call
        self._skipped = skipped
        self._specs = specs
        self._graph = graph

    def __call__(self, *args: Any) -> Any:
        """Return the leaves of the result.

        Raises:
            TraceError: The program changes a structure that it was given: callers of the graph would not see it.
        """
        values, before = self._values(args)
        result = self._call(*args[: self._skipped], *values)
        for entry, value, leaves in zip(self._call.inputs, values, before, strict=True):
            if leaves is not None:
                self._check_unchanged(entry, value, leaves)
        refuse_cycles(result, "what the program returns")
        outputs, spec = flatten_tree(result)
        self._graph.set_codegen(PyTreeCodeGen(self._parameters(), InputTrees(self._specs), OutputTree(spec)))
        return outputs

    @staticmethod
    def taken_apart(call: RootCall, result: Any, graph: Graph) -> Any:
        """Return the leaves of a result that holds objects of classes of which torch knows the parts; else the result.

        The function of the graph puts them together.

        Args:
            call: Runs a root without nested inputs.
            result: What it has returned.
            graph: Whose function is to return the structure.
        """
        if not any(map(is_registered, iterate_parts(result))):
            return result
        if any(entry.name == "self" for entry in call.inputs):
            return result  # The first parameter of the generated function has that name.
        outputs, spec = flatten_tree(result)
        parameters = NestedCall(call, 0, {}, graph)._parameters()
        graph.set_codegen(PyTreeCodeGen(parameters, InputTrees({}), OutputTree(spec)))
        return outputs

    def _values(self, args: tuple[Any, ...]) -> tuple[list[Any], list[list[Any] | None]]:
        """Return one value for each parameter, and the leaves of those that are nested."""
        given = iter(args[self._skipped :])
        values: list[Any] = []
        before: list[list[Any] | None] = []
        for entry in self._call.inputs:
            spec = self._specs.get(entry.name)
            if spec is None:
                values.append(next(given))
                before.append(None)
                continue
            leaves = [next(given) for _ in range(spec.num_leaves)]
            values.append(unflatten_tree(leaves, spec))
            before.append(leaves)
        return values, before

    def _check_unchanged(self, entry: Input, value: Any, leaves: list[Any]) -> None:
        found, spec = flatten_tree(value)
        if spec == self._specs[entry.name] and all(map(_is_same, found, leaves)):
            return
        raise TraceError(
            f"Cannot trace: the program changes the {type(value).__name__} that it is given as {entry.name!r}, and "
            "callers of the captured program would not see the change. Copy it first, and change the copy.",
            code="FXP-T032",
        )

    def _parameters(self) -> list[TreeParameter]:
        return [
            self._parameter(entry) for entry in self._call.inputs if entry.name not in self._call.constants
        ]

    def _parameter(self, entry: Input) -> TreeParameter:
        spec = self._specs.get(entry.name)
        leaves = None if spec is None else spec.num_leaves
        is_named = entry.keyword_only or entry.name in self._call.must_name
        return TreeParameter(entry.name, entry.stars, leaves, entry.default, is_named)


def _is_same(one: object, other: object) -> bool:
    return one is other
