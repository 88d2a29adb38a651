"""Analyses: what passes may ask about the values and calls of a graph, answered anew once it may be out of date."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fxplug.analyze import TensorMetadata, described_copy
from fxplug.errors import AnalysisError, UnknownNameError
from fxplug.execute import GraphModule
from fxplug.ir import Node, effects
from fxplug.ir.clone import drop_notes
from fxplug.ir.notes import RESULTS_OF_ANALYSES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from fxplug.ir import Graph
    from fxplug.ir.effects import Effect

__all__ = [
    "ANALYSES",
    "AnalysisCache",
    "AnalysisResult",
    "analyze",
    "check_preserved",
    "drop_notes_of_analyses",
    "known_facts",
]

ResultT = TypeVar("ResultT")


class AnalysisResult(Mapping[Node, ResultT], Generic[ResultT]):
    """What an analysis found out, node by node; it answers as long as that is known to be true.

    Args:
        name: Of the analysis.
        module: What was analysed.
        values: Node -> what was found out.
        preserved: Returns the names of the analyses that the running pass preserves.
    """

    def __init__(
        self,
        name: str,
        module: GraphModule,
        values: Mapping[Node, ResultT],
        preserved: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self.name = name
        """Name of the analysis."""
        self._module = module
        self._values = values
        self._preserved = preserved
        self._is_expired = False
        self._graph: Graph = module.graph
        self._version = module.graph.version

    @property
    def is_current(self) -> bool:
        """Whether the result answers: nobody edited the graph since, or only a pass that preserves the analysis."""
        if self._is_expired or self._module.graph is not self._graph:
            return False
        return self._graph.version == self._version or self.name in self._preserved()

    def __getitem__(self, node: Node) -> ResultT:
        """Return what is known of a node.

        Raises:
            AnalysisError: The graph has been edited since, or the node is newer than the result.
        """
        self._check()
        if node not in self._values:
            raise AnalysisError(
                f"Cannot answer for node {node.name!r}: it was made after {self.name!r} was analysed. Ask "
                f"context.analysis({self.name!r}) again."
            )
        return self._values[node]

    def get(self, node: Node, default: Any = None) -> Any:
        """Return what is known of a node, `default` when nothing is.

        Raises:
            AnalysisError: The graph has been edited since.
        """
        self._check()
        return self._values.get(node, default)

    def __contains__(self, node: object) -> bool:
        """Return whether something is known of a node."""
        self._check()
        return node in self._values

    def __iter__(self) -> Iterator[Node]:
        """Iterate over the nodes of which something is known."""
        self._check()
        return iter(self._values)

    def __len__(self) -> int:
        """Return of how many nodes something is known."""
        self._check()
        return len(self._values)

    def __repr__(self) -> str:
        state = f"{len(self._values)} nodes" if self.is_current else "out of date"
        return f"<AnalysisResult {self.name!r}: {state}>"

    def _check(self) -> None:
        if not self.is_current:
            raise AnalysisError(
                f"Cannot use this result of the analysis {self.name!r}: graph or module were changed since, and no "
                f"pass that did so declares that it preserves {self.name!r}. Ask context.analysis({self.name!r}) "
                "again; a pass that edits while it reads plans first and edits then, or declares it: "
                f'PassRecord(preserves=frozenset({{"{self.name}"}})).',
                code="FXP-A001",
            )

    def renew(self) -> None:
        """Take it that the result is true of the graph as it is now."""
        self._version = self._graph.version

    def expire(self) -> None:
        """Answer no more."""
        self._is_expired = True

    def covers(self, graph: Graph) -> bool:
        """Return whether something is known of every node of a graph."""
        return graph is self._graph and all(node in self._values for node in graph.nodes)


# -- what there is to ask ------------------------------------------------------------------------------------------


def _shapes(module: GraphModule, example_inputs: tuple[Any, ...] | None) -> dict[Node, Any]:
    """Return for each node what its value is like: nested `TensorMetadata`, None in the place of other values."""
    if example_inputs is None:
        raise AnalysisError(
            "Cannot analyse 'shapes' without example inputs. Give them to the pipeline: "
            "pipeline.run(module, inputs)."
        )
    known = described_copy(module, *example_inputs)
    return {
        node: twin.meta.get("tensor_meta")
        for node, twin in zip(module.graph.nodes, known.graph.nodes, strict=True)
    }


def _effects(module: GraphModule, _: tuple[Any, ...] | None) -> dict[Node, Effect]:
    """Return for each node what it does besides computing its value."""
    return {node: effects.effect_of(node, module) for node in module.graph.nodes}


ANALYSES: dict[str, Callable[[GraphModule, tuple[Any, ...] | None], dict[Node, Any]]] = {
    "shapes": _shapes,
    "effects": _effects,
}
"""Name -> function of a module and its example inputs, which changes neither."""


def analyze(
    name: str, module: GraphModule, example_inputs: tuple[Any, ...] | None = None
) -> AnalysisResult[Any]:
    """Return what an analysis finds out about a module as it is now.

    Args:
        name: ``"shapes"``: nested `fxplug.analyze.TensorMetadata` for each node; ``"effects"``: a
            `fxplug.Effect`.
        module: Not changed.
        example_inputs: Not changed. Shapes cannot be known without.

    Raises:
        UnknownNameError: There is no such analysis.
        AnalysisError: Example inputs are needed.
    """
    if name not in ANALYSES:
        raise UnknownNameError("analysis", name, ANALYSES)
    return AnalysisResult(name, module, ANALYSES[name](module, example_inputs))


# -- results that are kept -----------------------------------------------------------------------------------------


@dataclass
class _Kept:
    result: AnalysisResult[Any]
    module: GraphModule
    state: list[Any]


class AnalysisCache:
    """The results of one run of a pipeline, each served only while nothing changed that it may depend on."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._preserved: frozenset[str] = frozenset()

    def get(
        self, name: str, module: GraphModule, example_inputs: tuple[Any, ...] | None
    ) -> AnalysisResult[Any]:
        """Return a result that is true of the module as it is now; it is computed if there is none.

        Raises:
            UnknownNameError: There is no such analysis.
            AnalysisError: Example inputs are needed.
        """
        kept = self._kept.get(name)
        if kept is not None and self._is_valid(kept, module):
            return kept.result
        self._drop(name)
        fresh = analyze(name, module, example_inputs)
        result = AnalysisResult(name, module, dict(fresh), lambda: self._preserved)
        self._kept[name] = _Kept(result, module, _state_of(module))
        return result

    def begin(self, preserved: Iterable[str]) -> None:
        """Hear that a pass starts which preserves some analyses; what is out of date before goes."""
        self._preserved = frozenset()
        self._drop_invalid()
        self._preserved = frozenset(preserved)

    def end(self, *, failed: bool, wrote: bool) -> None:
        """Hear that the pass ended.

        Args:
            failed: Whether it did; then what was found out meanwhile may be about values that were undone.
            wrote: Whether it wrote values of tensors, of which not every way can be seen from the tensors themselves.
        """
        if failed:
            self._preserved = frozenset()
        if wrote or failed:
            for name in self._kept.keys() - self._preserved:
                self._drop(name)
        self._drop_invalid()
        self._preserved = frozenset()

    def _drop_invalid(self) -> None:
        for name in [name for name, kept in self._kept.items() if not self._is_valid(kept, kept.module)]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            kept.result.expire()

    def _is_valid(self, kept: _Kept, module: GraphModule) -> bool:
        """Return whether a result is true of a module; renew one of which the running pass says so."""
        if kept.module is not module or not kept.result.is_current:
            return False
        state = _state_of(module)
        if kept.result.name in self._preserved:
            if not kept.result.covers(module.graph):
                return False
            kept.result.renew()
            kept.state = state
            return True
        return _is_same(kept.state, state)


def _state_of(module: GraphModule) -> list[Any]:
    """Return what results may depend on besides the graph: parts, their attributes and hooks, and tensors.

    Tensors and modules are referred to weakly, so that what a pass drops is not kept alive.
    """
    state: list[Any] = []
    for path, part in module.named_modules():
        state += (path, type(part), weakref.ref(part))
        for name, value in vars(part).items():
            if name in {"_modules", "_compiled", "meta"}:
                continue
            state.append(name)
            _describe(value, state)
        if isinstance(part, GraphModule) and part is not module:
            state.append(part.graph.version)
    return state


def _describe(value: Any, state: list[Any]) -> None:
    """Add what a value is; of containers, at any depth, also what they hold."""
    waiting, seen = [value], set[int]()
    while waiting:
        found = waiting.pop()
        if found.__class__ in _PLAIN or not isinstance(found, (dict, list, set, tuple)):
            state += _identity_of(found)
            continue
        elements = cast("Collection[Any]", found)
        state += (type(elements), id(elements), len(elements))
        if id(elements) in seen:
            continue
        seen.add(id(elements))
        if isinstance(found, dict):
            for key, entry in cast("dict[Any, Any]", found).items():
                waiting += (key, entry)
        else:
            waiting += elements


_PLAIN = frozenset({bool, int, float, str, type(None)})


def _identity_of(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, torch.Tensor):
        return (weakref.ref(value) if isinstance(value, nn.Module) else value,)
    reference = weakref.ref(value)
    if is_lazy(value):
        return (reference,)
    version = 0 if value.is_inference() else value._version
    return reference, version, value.shape, value.dtype, value.device, value.requires_grad


_COMPARED = (str, int, float, torch.Size, torch.device, weakref.ref)


def _is_same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(
        ours is theirs
        or (type(ours) is type(theirs) and isinstance(ours, _COMPARED) and _equal(ours, theirs))
        for ours, theirs in zip(first, second, strict=True)
    )


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, weakref.ref):
        return ours() is not None and ours() is theirs()
    return bool(ours == theirs)


# -- notes on nodes ------------------------------------------------------------------------------------------------


def drop_notes_of_analyses(module: GraphModule) -> None:
    """Take away what analyses noted on the nodes of a module, and of graph modules inside."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            drop_notes(part.graph.nodes, RESULTS_OF_ANALYSES)


# -- checking what passes declare ----------------------------------------------------------------------------------


def known_facts(
    names: Iterable[str], module: GraphModule, example_inputs: tuple[Any, ...] | None
) -> dict[str, dict[Node, Any]]:
    """Return what analyses say of a module, for `check_preserved`; those that need inputs are left out without.

    Args:
        names: Of analyses.
        module: Not changed.
        example_inputs: Not changed.
    """
    return {
        name: dict(analyze(name, module, example_inputs))
        for name in sorted(names)
        if name != "shapes" or example_inputs is not None
    }


def check_preserved(
    before: Mapping[str, Mapping[Node, Any]],
    module: GraphModule,
    example_inputs: tuple[Any, ...] | None,
) -> list[str]:
    """Return where a pass did not preserve what it said that it preserves, each in a clause.

    What was known before is compared with what is found out anew, for every node that is still there; so are the
    notes that nodes have.

    Args:
        before: From `known_facts`, asked before the pass with the names in its record.
        module: The module as the pass left it; not changed.
        example_inputs: As `known_facts` got them.
    """
    problems: list[str] = []
    for name, facts in before.items():
        try:
            found = dict(analyze(name, module, example_inputs))
        except Exception as error:  # What a broken graph raises may be anything.
            problems.append(f"{name!r} cannot be analysed any more: {type(error).__name__}: {error}")
            continue
        by_name = {node.name: value for node, value in facts.items()}
        same_graph = any(node in found for node in facts)
        for node, value in found.items():
            known = facts.get(node, value) if same_graph else by_name.get(node.name, value)
            problems += _difference(name, node, known, value, "was")
            if name == "shapes" and "tensor_meta" in node.meta:
                problems += _difference(name, node, node.meta["tensor_meta"], value, "is noted as")
    return problems


def _difference(name: str, node: Node, known: Any, found: Any, verb: str) -> list[str]:
    ours, theirs = (_essence(value) for value in (known, found))
    if ours == theirs:
        return []
    return [f"{name!r} of node {node.name!r} {verb} {_text(ours)} and is {_text(theirs)}"]


def _essence(value: Any) -> Any:
    """Return what has to stay the same: sizes and dtypes of tensors, not how they lie in memory."""
    return _sizes(value) if isinstance(value, (TensorMetadata, tuple, list, dict)) else value


def _sizes(value: Any) -> Any:
    if isinstance(value, TensorMetadata):
        return str(value.dtype).removeprefix("torch."), tuple(value.shape)
    if isinstance(value, dict):
        return {key: _sizes(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sizes(entry) for entry in value]
    return None


def _text(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2:
        return f"{value[0]}{list(value[1])}"
    return "no tensor" if value is None else str(value)
