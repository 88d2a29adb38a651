"""What all tests share: the same random numbers in every run, so that what fails once fails again."""

import importlib
import importlib.util
from typing import Any

import pytest

# Those of the distributions as they are built do without it.
_torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") is not None else None


def pytest_collectstart(collector: pytest.Collector) -> None:
    # Some files of tests make layers and inputs while they are imported.
    if _torch is not None and isinstance(collector, pytest.Module):
        _torch.manual_seed(0)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same state of torch's generator, whatever ran before it."""
    if _torch is not None:
        _torch.manual_seed(0)
