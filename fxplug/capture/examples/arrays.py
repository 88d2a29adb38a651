"""Tensors that a program makes of arrays of NumPy: constants of the graph, as long as nobody changes them unheard."""

from __future__ import annotations

from typing import Any

import torch

from fxplug.capture.arrays import is_array
from fxplug.capture.examples.parts import is_in_reach
from fxplug.capture.sources import place_in_program
from fxplug.errors import TraceError
from fxplug.semantics.internals import storage_of, with_data

__all__ = ["FreshTensors", "outlives", "write_to_array"]


class FreshTensors:
    """Tensors that the program has made of values that are no tensors, and whose memory an array may share."""

    def __init__(self) -> None:
        self._known: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._written: set[Any] = set()

    def add(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Hear of one, and of a copy of it."""
        self._known.append((tensor, values))

    def before_write(self, tensor: torch.Tensor) -> None:
        """Hear that a tensor is about to be written to by a call that is recorded."""
        if self._known:
            self._written.add(storage_of(tensor))

    def refuse_changes(self) -> None:
        """Refuse a program that has changed an array after it has made a tensor of its memory.

        Raises:
            TraceError: It has.
        """
        with torch.no_grad(), with_data():
            for tensor, values in self._known:
                if storage_of(tensor) not in self._written and not _is_same(tensor, values):
                    raise TraceError(
                        "Cannot trace: the program changes an array of NumPy of which it has made a tensor before, and "
                        "torch does not tell of that. Make the tensor when the array is complete, or make a copy of it "
                        "(torch.tensor).",
                        code="FXP-T061",
                    )


def outlives(array: Any) -> bool:
    """Return whether an array is there for the next call."""
    while is_array(array):
        if is_in_reach(array):
            return True
        array = array.base  # A view is made anew; what it is a view of may be held.
    return False


def write_to_array() -> TraceError:
    """Return the refusal of a program that writes to the memory of an array that may be there for the next call."""
    return TraceError(
        f"Cannot trace: the program writes to a tensor{place_in_program()} that has the memory of an array of NumPy, "
        "and what the array is in the next call is not known. Make a copy of the array (torch.tensor), or keep what "
        "changes in a buffer (register_buffer).",
        code="FXP-T055",
    )


def _is_same(tensor: torch.Tensor, values: torch.Tensor) -> bool:
    if tensor.shape != values.shape or tensor.dtype != values.dtype or tensor.is_meta:
        return True  # It was made another one by calls of torch, which are heard.
    same = (tensor == values) | (tensor.isnan() & values.isnan())
    return bool(same.all())
