"""Asserting that two modules behave alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.analyze.comparison import Tolerance, compare
from fxplug.analyze.isolation import SavedState, copy_values, forked_random_state

if TYPE_CHECKING:
    from torch import nn

    from fxplug.analyze.comparison import Comparison

__all__ = ["assert_same_behaviour", "differences"]


def assert_same_behaviour(
    actual: nn.Module,
    expected: nn.Module,
    inputs: tuple[Any, ...],
    *,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Assert that two modules return the same values and do the same to their inputs.

    Both get copies of the inputs and start from the same random state; parameters, buffers and random state are as
    before afterwards.

    Args:
        actual: The module that is tested, for example the result of a pass.
        expected: The module that is right.
        inputs: Positional arguments of both.
        rtol: Relative tolerance, element by element; None: by dtype, 1e-4 for float32.
        atol: Absolute tolerance; None: by dtype, 1e-4 for float32.

    Raises:
        AssertionError: Something differs; the message names each value that does, and how.

    Example:
        ::

            assert_same_behaviour(graph_module, model, (torch.randn(2, 3),))
    """
    different = differences(actual, expected, inputs, Tolerance(rtol, atol))
    if different:
        lines = "\n  - ".join(
            f"{entry.path}: {entry.reason or f'largest error {entry.max_abs_error:.3g}'}"
            for entry in different
        )
        raise AssertionError(f"{_name(actual)} does not behave as {_name(expected)} does:\n  - {lines}")


def differences(
    actual: nn.Module, expected: nn.Module, inputs: tuple[Any, ...], tolerance: Tolerance
) -> list[Comparison]:
    """Return every value of two modules, and every input that they change, in which they differ.

    Args:
        actual: The module that is tested.
        expected: The module that is right.
        inputs: Positional arguments of both.
        tolerance: What is close enough.
    """
    return [entry for entry in _compared(actual, expected, inputs, tolerance) if not entry.passed]


def _compared(
    actual: nn.Module, expected: nn.Module, inputs: tuple[Any, ...], tolerance: Tolerance
) -> list[Comparison]:
    right, right_inputs = _run(expected, inputs)
    found, found_inputs = _run(actual, inputs)
    return [
        *compare(right, found, tolerance),
        *compare(right_inputs, found_inputs, tolerance, "inputs"),
    ]


def _run(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    own = copy_values(inputs)
    state = SavedState(module)
    try:
        with forked_random_state():
            return module(*own), own
    finally:
        state.restore()


def _name(module: nn.Module) -> str:
    return type(module).__name__
