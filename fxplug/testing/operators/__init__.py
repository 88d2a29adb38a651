"""The operator suite: calls of ATen operators that any backend is tried with, and a table of what came of it."""

from __future__ import annotations

from fxplug.testing.operators.case import Call, Draw, OperatorCase
from fxplug.testing.operators.cells import OperatorCell, OperatorProgram, operator_cases, operator_cells

__all__ = [
    "Call",
    "Draw",
    "OperatorCase",
    "OperatorCell",
    "OperatorProgram",
    "operator_cases",
    "operator_cells",
]
