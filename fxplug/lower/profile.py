"""What inputs a compiled partition accepts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["InputProfile", "Profile"]


@dataclass(frozen=True)
class InputProfile:
    """What one input has to be."""

    dtype: torch.dtype | None = None
    """None for an input that is no tensor."""
    sizes: tuple[int | None, ...] = ()
    """Of a tensor; None for a dimension of any size."""
    device: torch.device | None = None
    value: Any = None
    """What an input that is no tensor has to be equal to."""

    @classmethod
    def of(cls, value: Any) -> InputProfile:
        """Return the profile that `value` alone fulfils, and tensors like it."""
        if isinstance(value, torch.Tensor):
            return cls(value.dtype, tuple(value.shape), value.device)
        return cls(value=value)

    def problem_with(self, value: Any) -> str:
        """Return why `value` is not accepted, for people; empty when it is."""
        if self.dtype is None:
            same = type(value) is type(self.value) and bool(value == self.value)
            return "" if same else f"is {value!r}, and was {self.value!r} when it was compiled"
        if not isinstance(value, torch.Tensor):
            return f"is a {type(value).__name__}, and {self} is expected"
        fits = (
            value.dtype == self.dtype
            and value.device == self.device
            and len(value.shape) == len(self.sizes)
            and all(
                wanted is None or size == wanted for size, wanted in zip(value.shape, self.sizes, strict=True)
            )
        )
        return "" if fits else f"is {InputProfile.of(value)}, and {self} is expected"

    def __str__(self) -> str:
        if self.dtype is None:
            return repr(self.value)
        sizes = "x".join("?" if size is None else str(size) for size in self.sizes) or "scalar"
        where = "" if self.device is None or self.device.type == "cpu" else f" on {self.device}"
        return f"{str(self.dtype).removeprefix('torch.')} {sizes}{where}"


@dataclass(frozen=True)
class Profile:
    """What the inputs of a compiled partition have to be."""

    inputs: tuple[InputProfile, ...]

    @classmethod
    def of(cls, inputs: Sequence[Any], *, open_dimensions: Collection[int] = ()) -> Profile:
        """Return the profile that `inputs` fulfil.

        Args:
            inputs: Of a partition.
            open_dimensions: Dimensions of tensors that may have any size.
        """
        found = (InputProfile.of(value) for value in inputs)
        return cls(
            tuple(
                replace(
                    entry,
                    sizes=tuple(
                        None if number in open_dimensions else size for number, size in enumerate(entry.sizes)
                    ),
                )
                for entry in found
            )
        )

    def problem_with(self, values: Sequence[Any]) -> str:
        """Return why `values` are not accepted, for people; empty when they are."""
        if len(values) != len(self.inputs):
            return f"there are {len(values)} inputs, and {len(self.inputs)} are expected"
        for number, (entry, value) in enumerate(zip(self.inputs, values, strict=True)):
            if problem := entry.problem_with(value):
                return f"input {number} {problem}"
        return ""
