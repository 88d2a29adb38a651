"""Cells of the operator suite: a case in one dtype and rank, as a program that a backend is handed."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.execute import GraphModule
from fxplug.ir import Graph, iterate_leaves, map_aggregate
from fxplug.semantics.internals import schema_of
from fxplug.testing.operators import arranging, elementwise, layers, reducing
from fxplug.testing.operators.case import Draw, OperatorCase, dtype_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from fxplug.testing.operators.case import Call

__all__ = ["OperatorCell", "OperatorProgram", "operator_cases", "operator_cells", "program_of"]

_BATCH, _OTHER_BATCH = 2, 3
_SEEDS = 12


@functools.cache
def operator_cases() -> tuple[OperatorCase, ...]:
    """Return all cases, those of one operator together; an operator that the installed PyTorch lacks is left out."""
    groups = (elementwise, arranging, reducing, layers)
    found = [case for group in groups for case in group.cases() if case.target is not None]
    order = {name: number for number, name in enumerate(dict.fromkeys(case.operator for case in found))}
    return tuple(sorted(found, key=lambda case: order[case.operator]))


def operator_cells(
    cases: Iterable[OperatorCase] | None = None,
    dtypes: Collection[torch.dtype] | None = None,
    *,
    thorough: bool = False,
) -> Iterator[OperatorCell]:
    """Yield the cells of cases.

    The first dtype of a case is tried in every rank, with fixed sizes and with an open batch; the others in one rank.

    Args:
        cases: By default all.
        dtypes: By default all.
        thorough: Whether every dtype is tried in every rank, with fixed sizes and with an open batch.
    """
    for case in operator_cases() if cases is None else cases:
        usual = 2 if 2 in case.ranks else case.ranks[-1]
        for number, dtype in enumerate(case.dtypes):
            if dtypes is not None and dtype not in dtypes:
                continue
            is_full = thorough or number == 0
            for rank in case.ranks if is_full else (usual,):
                yield OperatorCell(case, dtype, rank)
                if is_full and case.dynamic and rank:
                    yield OperatorCell(case, dtype, rank, dynamic=True)


@dataclass(frozen=True)
class OperatorProgram:
    """A program of calls, with inputs, and what eager returns for them."""

    module: GraphModule
    """Returns a tuple of the results that count."""
    runs: tuple[tuple[torch.Tensor, ...], ...]
    """Inputs of each run. An engine is built for the first."""
    expected: tuple[tuple[Any, ...], ...]
    """What eager returns, for each run."""


@dataclass(frozen=True)
class OperatorCell:
    """A case in one dtype and rank, with sizes that are fixed, or with a first size that is left open."""

    case: OperatorCase
    dtype: torch.dtype
    rank: int
    dynamic: bool = False

    @property
    def name(self) -> str:
        """All of it in one line."""
        sizes = "dynamic" if self.dynamic else "static"
        return f"{self.case.name}, {dtype_name(self.dtype)}, rank {self.rank}, {sizes}"

    def program(self) -> OperatorProgram:
        """Return what a backend is handed: two runs with different values, and with `dynamic` of different batches."""
        return program_of([self])[0]

    def runs(self) -> tuple[OperatorRun, OperatorRun]:
        """Return two runs. The second has other results than the first, if there are inputs for which it has."""
        first = self._run(0, _BATCH)
        second = first
        for seed in range(1, _SEEDS):
            second = self._run(seed, _OTHER_BATCH if self.dynamic else _BATCH)
            if not _same(second.expected, first.expected):
                break
        return first, second

    def _run(self, seed: int, batch: int) -> OperatorRun:
        call = self.case.arguments(Draw(self.dtype, self.rank, batch, seed))
        # Copies, so that nothing that is run later can reach what is right.
        args: Any = map_aggregate(call.args, _copy, frozen=False)
        with torch.no_grad():
            made = self.case.target(*args, **call.kwargs)
        parts = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        wanted = range(len(parts)) if self.case.results is None else self.case.results
        return OperatorRun(call, tuple(parts[number] for number in wanted))


def program_of(cells: Sequence[OperatorCell]) -> tuple[OperatorProgram, tuple[slice, ...]]:
    """Return one program that makes the calls of several cells, and where the results of each stand."""
    runs = [cell.runs() for cell in cells]
    graph, weights = Graph(), dict[str, nn.Parameter]()
    inputs = [[value for pair in runs for value in pair[number].inputs] for number in range(2)]
    places = iter([graph.placeholder(f"x_{number}") for number in range(len(inputs[0]))])

    def placed(value: Any) -> Any:
        if isinstance(value, nn.Parameter):
            name = f"weight_{len(weights)}"
            weights[name] = value
            return graph.get_attr(name)
        return next(places) if isinstance(value, torch.Tensor) else value

    results: list[Any] = []
    parts: list[slice] = []
    for cell, (first, _) in zip(cells, runs, strict=True):
        args: Any = map_aggregate(first.call.args, placed)
        kwargs: Any = map_aggregate(dict(first.call.kwargs), placed)
        made = graph.call_function(cell.case.target, args, kwargs)
        start = len(results)
        results += _taken(graph, made, cell.case, len(first.expected))
        parts.append(slice(start, len(results)))
    graph.output(tuple(results))
    expected = tuple(tuple(value for pair in runs for value in pair[number].expected) for number in range(2))
    module = GraphModule(weights, graph, "OperatorProgram").eval()
    return OperatorProgram(module, (tuple(inputs[0]), tuple(inputs[1])), expected), tuple(parts)


def _taken(graph: Graph, made: Any, case: OperatorCase, count: int) -> list[Any]:
    """Return the results of a call that count."""
    if len(schema_of(case.target).returns) == 1 and not _returns_list(case.target):
        return [made]
    numbers = range(count) if case.results is None else case.results
    return [graph.call_function(operator.getitem, (made, number)) for number in numbers]


@dataclass(frozen=True)
class OperatorRun:
    """Arguments of a call, and what eager returns for them."""

    call: Call
    expected: tuple[Any, ...]

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """The tensors among the arguments that the program does not hold."""
        return tuple(
            leaf
            for leaf in iterate_leaves((self.call.args, dict(self.call.kwargs)))
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter)
        )


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


def _returns_list(target: Any) -> bool:
    return str(schema_of(target).returns[0].type).startswith("List")


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
