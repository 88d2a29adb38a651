"""Running the operator suite: every cell is built, run, and compared with eager."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from fxplug.analyze.comparison import Tolerance, compare
from fxplug.analyze.isolation import copy_values
from fxplug.errors import BackendError, ConfigError
from fxplug.lower import Backend, LoweringContext
from fxplug.testing.operators.case import DTYPES, dtype_name
from fxplug.testing.operators.cells import OperatorCell, operator_cases, operator_cells, program_of
from fxplug.testing.operators.coverage import CellResult, OperatorCoverage
from fxplug.testing.subject import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from fxplug.testing.operators.cells import OperatorProgram

__all__ = ["NotApplicableError", "OperatorEngine", "run_operator_suite"]

OperatorEngine: TypeAlias = "Callable[[OperatorProgram], Sequence[Any]]"
"""Builds a program for its first run, and returns what it computes for each. Raises a `BackendError` with the reason
where the engine does not support the call, and a `NotApplicableError` where it cannot be asked."""


class NotApplicableError(BackendError):
    """A cell asks for something that an engine does not have as a whole, such as sizes that are left open."""

    code = "FXP-L002"


def run_operator_suite(
    engine: Backend | OperatorEngine,
    name: str,
    *,
    open_batch: Backend | OperatorEngine | None = None,
    operators: Collection[str] | None = None,
    dtypes: Collection[torch.dtype] | None = None,
    outside: Mapping[str, str] | None = None,
    thorough: bool = False,
) -> OperatorCoverage:
    """Return which calls of ATen operators an engine runs, and whether they equal eager.

    An operator counts when its cells were built, run and compared; that a backend says it supports it is not enough.
    Cells of one operator are built together where the engine takes all of them.

    Args:
        engine: A backend, or what builds and runs a program, for an engine that is run in a way of its own.
        name: Of the backend, for the report.
        open_batch: The same for programs whose first size is left open; by default `engine`.
        operators: Such as ``"aten.add.Tensor"`` or ``"aten.add"``; by default all.
        dtypes: By default all.
        outside: Note of cases -> why the engine is not asked for them, such as ``{"not finite": "..."}``.
        thorough: Whether every dtype is tried in every rank, with fixed sizes and with an open batch.

    Raises:
        ConfigError: There is no case of an operator that `operators` names.
    """
    static = _engine(engine)
    dynamic = static if open_batch is None else _engine(open_batch)
    cases = operator_cases() if operators is None else _chosen(operators)
    absent = _absent_dtypes(static, DTYPES if dtypes is None else dtypes)
    groups: dict[tuple[str, bool], list[OperatorCell]] = {}
    results: dict[OperatorCell, CellResult] = {}
    for cell in operator_cells(cases, dtypes, thorough=thorough):
        reason = absent.get(cell.dtype) or (outside or {}).get(cell.case.note, "")
        results[cell] = CellResult(cell, "outside", reason)
        if not reason:
            groups.setdefault((cell.case.operator, cell.dynamic), []).append(cell)
    for (_, is_open), cells in groups.items():
        found = _results(cells, dynamic if is_open else static)
        results.update({result.cell: result for result in found})
    return OperatorCoverage(name, tuple(results.values()))


def _chosen(operators: Collection[str]) -> Iterable[Any]:
    cases = operator_cases()
    known = {case.operator for case in cases}
    for name in operators:
        if name not in known and not any(entry.startswith(f"{name}.") for entry in known):
            raise ConfigError(
                f"Cannot run the operator suite for {name!r}: it has no case of it. Give names such as 'aten.add' or "
                f"'aten.add.Tensor'; fxplug.testing.operator_cases() holds all {len(known)}."
            )
    return [
        case for case in cases if case.operator in operators or case.operator.rpartition(".")[0] in operators
    ]


def _absent_dtypes(engine: OperatorEngine, dtypes: Collection[torch.dtype]) -> dict[torch.dtype, str]:
    """Return dtype -> reason, for those in which an engine refuses to add and to copy."""
    probes = {case.operator: case for case in operator_cases() if not case.note}
    absent: dict[torch.dtype, str] = {}
    for dtype in dtypes:
        found = [
            _run([OperatorCell(probes[name], dtype, 2)], engine)[0]
            for name in ("aten.add.Tensor", "aten.cat.default")
        ]
        if all(result.outcome == "refused" for result in found):
            absent[dtype] = f"it does not compute with {dtype_name(dtype)}: {found[0].reason}"
    return absent


def _engine(engine: Backend | OperatorEngine) -> OperatorEngine:
    return _BackendEngine(engine) if isinstance(engine, Backend) else engine


class _BackendEngine:
    """Runs programs with a backend, which takes all of a program or refuses it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __call__(self, program: OperatorProgram) -> Sequence[Any]:
        first = program.runs[0]
        profile = self._backend.profile(first)
        if profile is not None and any(profile.problem_with(run) for run in program.runs):
            raise NotApplicableError("it is configured for fixed sizes")
        context = LoweringContext(program.module, first)
        for node in program.module.graph.nodes:
            if node.op.startswith("call_") and not (support := self._backend.supports(node, context)):
                raise BackendError(support.reason)
        engine = self._backend.compile(program.module, copy_values(first), {})
        return [engine(*copy_values(run)) for run in program.runs]


def _results(cells: Sequence[OperatorCell], engine: OperatorEngine) -> list[CellResult]:
    """Return what comes of cells: together, and one by one if that does not work."""
    if len(cells) > 1:
        found = _run(cells, engine)
        if all(result.outcome == "equal" for result in found):
            return found
    return [result for cell in cells for result in _run([cell], engine)]


def _run(cells: Sequence[OperatorCell], engine: OperatorEngine) -> list[CellResult]:
    program, parts = program_of(cells)
    try:
        with torch.no_grad():
            found = engine(program)
    except NotApplicableError as error:
        return [CellResult(cell, "outside", error.message) for cell in cells]
    except BackendError as error:
        return [CellResult(cell, "refused", error.message) for cell in cells]
    except Exception as error:  # An engine fails in any way.
        return [CellResult(cell, "failed", reason_of(error)) for cell in cells]
    return [_compared(cell, program, part, found) for cell, part in zip(cells, parts, strict=True)]


def _compared(cell: OperatorCell, program: OperatorProgram, part: slice, found: Sequence[Any]) -> CellResult:
    tolerance = Tolerance(cell.case.rtol, cell.case.atol)
    for number, (right, given) in enumerate(zip(program.expected, found, strict=True)):
        for entry in compare(right[part], tuple(given)[part], tolerance, f"run {number}, result "):
            if not entry.passed:
                return CellResult(cell, "different", f"{entry.path}: {entry.reason}")
    return CellResult(cell, "equal")
