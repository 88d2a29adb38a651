"""The operator suite: calls of ATen operators that any backend is tried with, and a table of what came of it."""

from __future__ import annotations

from fxplug.testing.operators.case import Call, Draw, OperatorCase
from fxplug.testing.operators.cells import OperatorCell, OperatorProgram, operator_cases, operator_cells
from fxplug.testing.operators.coverage import CellResult, OperatorCoverage, OperatorResult
from fxplug.testing.operators.suite import NotApplicableError, OperatorEngine, run_operator_suite

__all__ = [
    "Call",
    "CellResult",
    "Draw",
    "NotApplicableError",
    "OperatorCase",
    "OperatorCell",
    "OperatorCoverage",
    "OperatorEngine",
    "OperatorProgram",
    "OperatorResult",
    "operator_cases",
    "operator_cells",
    "run_operator_suite",
]
