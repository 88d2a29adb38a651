"""What authors of passes, backends and plugins test with.

Nothing here is loaded before it is used, so that coverage sees all of a plugin, and nothing needs pytest but
`fxplug.testing.pytest_plugin`, which a test run names: ``pytest -p fxplug.testing.pytest_plugin``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fxplug.testing.behaviour import assert_same_behaviour
    from fxplug.testing.conformance import check_plugin
    from fxplug.testing.isolation import (
        FakeDistribution,
        FakeSite,
        IsolatedHost,
        IsolationError,
        isolated_host,
        make_plugin,
    )
    from fxplug.testing.operators import (
        NotApplicableError,
        OperatorCoverage,
        OperatorProgram,
        operator_cases,
        operator_cells,
        run_operator_suite,
    )
    from fxplug.testing.report import Finding, Report

__all__ = [
    "FakeDistribution",
    "FakeSite",
    "Finding",
    "IsolatedHost",
    "IsolationError",
    "NotApplicableError",
    "OperatorCoverage",
    "OperatorProgram",
    "Report",
    "assert_same_behaviour",
    "check_plugin",
    "isolated_host",
    "make_plugin",
    "operator_cases",
    "operator_cells",
    "run_operator_suite",
]

_HOMES = {
    "fxplug.testing.behaviour": ("assert_same_behaviour",),
    "fxplug.testing.conformance": ("check_plugin",),
    "fxplug.testing.isolation": (
        "FakeDistribution",
        "FakeSite",
        "IsolatedHost",
        "IsolationError",
        "isolated_host",
        "make_plugin",
    ),
    "fxplug.testing.operators": (
        "NotApplicableError",
        "OperatorCoverage",
        "OperatorProgram",
        "operator_cases",
        "operator_cells",
        "run_operator_suite",
    ),
    "fxplug.testing.report": ("Finding", "Report"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fxplug.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
