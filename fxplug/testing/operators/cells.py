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
from fxplug.testing.operators import arranging, elementwise, layers, reducing
from fxplug.testing.operators.case import Draw, OperatorCase, dtype_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from fxplug.testing.operators.case import Call

__all__ = ["OperatorCell", "OperatorProgram", "operator_cases", "operator_cells"]

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
    """A program of one call, with inputs, and what eager returns for them."""

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
        """Return what a backend is handed: two runs with different values, and with `dynamic` of different batches.

        The second run has other results than the first, if there are inputs for which it has.
        """
        first = self._run(0, _BATCH)
        second = first
        for seed in range(1, _SEEDS):
            second = self._run(seed, _OTHER_BATCH if self.dynamic else _BATCH)
            if not _same(second.expected, first.expected):
                break
        module = self._module(first.call, len(first.expected))
        runs = (first, second)
        return OperatorProgram(
            module, tuple(_inputs(run.call) for run in runs), tuple(run.expected for run in runs)
        )

    def _run(self, seed: int, batch: int) -> _Run:
        call = self.case.arguments(Draw(self.dtype, self.rank, batch, seed))
        with torch.no_grad():
            return _Run(call, self._results(call))

    def _results(self, call: Call) -> tuple[Any, ...]:
        # Copies, so that nothing that is run later can reach what is right.
        made = self.case.target(*map_aggregate(call.args, _copy, frozen=False), **call.kwargs)
        parts = tuple(made) if isinstance(made, (tuple, list)) else (made,)
        return parts if self.case.results is None else tuple(parts[number] for number in self.case.results)

    def _module(self, call: Call, count: int) -> GraphModule:
        graph, weights = Graph(), dict[str, nn.Parameter]()
        places = iter([graph.placeholder(f"x_{number}") for number in range(len(_inputs(call)))])

        def placed(value: Any) -> Any:
            if isinstance(value, nn.Parameter):
                name = f"weight_{len(weights)}"
                weights[name] = value
                return graph.get_attr(name)
            return next(places) if isinstance(value, torch.Tensor) else value

        args: Any = map_aggregate(call.args, placed)
        kwargs: Any = map_aggregate(dict(call.kwargs), placed)
        made = graph.call_function(self.case.target, args, kwargs)
        is_several = len(self.case.target._schema.returns) > 1 or count > 1 or _returns_list(self.case.target)
        numbers = range(count) if self.case.results is None else self.case.results
        graph.output(
            tuple(graph.call_function(operator.getitem, (made, number)) for number in numbers)
            if is_several
            else (made,)
        )
        return GraphModule(weights, graph, "OperatorProgram")


@dataclass(frozen=True)
class _Run:
    call: Call
    expected: tuple[Any, ...]


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


def _returns_list(target: Any) -> bool:
    return str(target._schema.returns[0].type).startswith("List")


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _inputs(call: Call) -> tuple[torch.Tensor, ...]:
    return tuple(
        leaf
        for leaf in iterate_leaves((call.args, dict(call.kwargs)))
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter)
    )
