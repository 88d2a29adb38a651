"""What inputs a compiled partition accepts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.ir import iterate_leaves
from fxplug.lower.plain_values import describe_difference, is_same_value, kept_copy

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
    """What an input that is no tensor has to be, of the same class and with the same parts (see
    `fxplug.lower.plain_values.is_same_value`); of a dict with tensors, its keys."""
    parts: tuple[InputProfile, ...] | None = None
    """Of a tuple, list or dict with tensors, what each of its parts has to be; None for other inputs."""

    @classmethod
    def of(cls, value: Any) -> InputProfile:
        """Return the profile that `value` alone fulfils, and tensors like it."""
        if isinstance(value, torch.Tensor):
            return cls(value.dtype, tuple(value.shape), value.device)
        if isinstance(value, (tuple, list, dict)) and any(
            isinstance(leaf, torch.Tensor) for leaf in iterate_leaves((value,))
        ):
            entries = cast("Sequence[Any]", value)
            if isinstance(value, dict):
                return cls(value=tuple(value), parts=tuple(map(cls.of, cast("Any", value).values())))
            return cls(parts=tuple(map(cls.of, entries)))
        return cls(value=kept_copy(value))

    def problem_with(self, value: Any) -> str:
        """Return why `value` is not accepted, for people; empty when it is."""
        if self.parts is not None:
            return self._problem_in_parts(value, self.parts)
        if self.dtype is None:
            return "" if is_same_value(self.value, value) else describe_difference(self.value, value)
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

    def _problem_in_parts(self, value: Any, parts: Sequence[InputProfile]) -> str:
        kinds = (tuple, list) if self.value is None else dict
        if not isinstance(value, kinds) or len(value) != len(parts):
            size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
            return f"is a {type(value).__name__}{size}, and {self} is expected"
        keys = self.value if self.value is not None else range(len(parts))
        given = {key: key for key in value} if isinstance(value, dict) else None
        for key, entry in zip(keys, parts, strict=True):
            if given is not None and not (key in given and is_same_value(key, given[key])):
                return f"has no part {key!r}, and {self} is expected"
            if problem := entry.problem_with(value[key]):
                return f"at [{key!r}] {problem}"
        return ""

    def opened(self, dimensions: Collection[int]) -> InputProfile:
        """Return the same with dimensions of tensors that may have any size."""
        if self.parts is not None:
            return replace(self, parts=tuple(part.opened(dimensions) for part in self.parts))
        sizes = (None if number in dimensions else size for number, size in enumerate(self.sizes))
        return replace(self, sizes=tuple(sizes))

    @property
    def is_closed(self) -> bool:
        """Whether no dimension may have any size."""
        return None not in self.sizes and all(part.is_closed for part in self.parts or ())

    def __str__(self) -> str:
        if self.parts is not None:
            inner = ", ".join(map(str, self.parts))
            return f"({inner})" if self.value is None else f"a dict of {inner}"
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
        return cls(tuple(InputProfile.of(value).opened(open_dimensions) for value in inputs))

    def closed(self, positions: Collection[int], inputs: Sequence[Any]) -> Profile:
        """Return the same, in which some inputs have the sizes that they have in examples.

        Args:
            positions: Which inputs.
            inputs: Examples of all inputs.
        """
        entries = enumerate(zip(self.inputs, inputs, strict=True))
        return Profile(
            tuple(
                replace(entry, sizes=tuple(value.shape))
                if number in positions and isinstance(value, torch.Tensor)
                else entry
                for number, (entry, value) in entries
            )
        )

    @property
    def is_closed(self) -> bool:
        """Whether no dimension of an input may have any size."""
        return all(entry.is_closed for entry in self.inputs)

    def problem_with(self, values: Sequence[Any]) -> str:
        """Return why `values` are not accepted, for people; empty when they are."""
        if len(values) != len(self.inputs):
            return f"there are {len(values)} inputs, and {len(self.inputs)} are expected"
        for number, (entry, value) in enumerate(zip(self.inputs, values, strict=True)):
            if problem := entry.problem_with(value):
                return f"input {number} {problem}"
        return ""
