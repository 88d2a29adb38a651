"""What all tests share: the same random numbers in every run, so that what fails once fails again."""

import pytest
import torch


def pytest_collectstart(collector: pytest.Collector) -> None:
    # Some files of tests make layers and inputs while they are imported.
    if isinstance(collector, pytest.Module):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same state of torch's generator, whatever ran before it."""
    torch.manual_seed(0)
