"""A module whose partitions run on engines, and what is between them in PyTorch."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import nn

from fxplug.errors import ConfigError, LoweringError, did_you_mean
from fxplug.execute.compiled import CompiledPart
from fxplug.execute.shadow import with_other_tensors
from fxplug.ir import iterate_leaves
from fxplug.semantics.internals import is_fake

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.execute import GraphModule
    from fxplug.lower.backend import Backend
    from fxplug.lower.profile import Profile

__all__ = [
    "ON_MISMATCH",
    "EngineOrigin",
    "LoweredPartition",
    "OnMismatch",
    "Pending",
    "TensorExample",
    "check_on_mismatch",
    "lowered_partitions",
]

OnMismatch = Literal["error", "eager"]
"""What happens when a partition gets inputs that it was not compiled for."""
ON_MISMATCH: tuple[OnMismatch, ...] = ("error", "eager")
"""All that it may be."""


def check_on_mismatch(value: OnMismatch) -> None:
    """Check what is to happen when a partition gets inputs that it was not compiled for.

    Raises:
        ConfigError: It is none of `ON_MISMATCH`.
    """
    if value not in ON_MISMATCH:
        raise ConfigError(
            f"Cannot use on_mismatch={value!r}: use one of {', '.join(map(repr, ON_MISMATCH))}. "
            f"{did_you_mean(str(value), ON_MISMATCH)}".rstrip()
        )


@dataclass(frozen=True)
class EngineOrigin:
    """How an engine was made, so that it can be stored, and made again."""

    maker: Backend
    options: Mapping[str, Any]
    """Given to `Backend.compile`."""
    inputs: tuple[Any, ...]
    """Examples, whose tensors have no data."""

    @classmethod
    def of(cls, maker: Backend, options: Mapping[str, Any], inputs: tuple[Any, ...]) -> EngineOrigin:
        """Return the origin of an engine for such inputs."""
        return cls(maker, dict(options), tuple(map(_described, inputs)))


@dataclass(frozen=True)
class TensorExample:
    """What is remembered of a tensor."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device

    def tensor(self) -> torch.Tensor:
        """Return a tensor like it, full of zeros."""
        return torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device=self.device).zero_()


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        dense = value if value.layout is torch.strided else value.to_dense()
        return TensorExample(dense.dtype, tuple(dense.shape), dense.stride(), dense.device)
    if type(value) in {tuple, list}:
        return type(value)(map(_described, value))
    return value


class Pending(Protocol):
    """A call that may be under way."""

    def done(self) -> bool:
        """Return whether `result` would not wait."""
        ...

    def result(self) -> Any:
        """Wait for the result."""
        ...


class LoweredPartition(CompiledPart):
    """A partition that an engine runs.

    Args:
        name: The path of the partition.
        backend: The name of the backend that compiled it.
        engine: What the backend returned.
        eager: The same in PyTorch.
        profile: What inputs the engine accepts; None for all.
        on_mismatch: What happens with others.
        origin: How the engine was made; None where the partition need not be stored.
    """

    def __init__(
        self,
        name: str,
        backend: str,
        engine: nn.Module,
        eager: GraphModule,
        profile: Profile | None,
        on_mismatch: OnMismatch,
        origin: EngineOrigin | None = None,
    ) -> None:
        super().__init__(backend, eager)
        self.name = name
        self.profile = profile
        self.on_mismatch: OnMismatch = on_mismatch
        self.engine = engine
        self.origin = origin

    def forward(self, *inputs: Any) -> Any:
        """Run the partition.

        Raises:
            LoweringError: The inputs are others than it was compiled for.
        """
        eager = self._checked(inputs)
        return self.engine(*inputs) if eager is None else eager(*inputs)

    def submit(self, *inputs: Any) -> Pending:
        """Begin to run the partition, and return what has the result; engines that cannot do that run it now.

        The inputs must not be changed until the result is there.

        Raises:
            LoweringError: The inputs are others than it was compiled for.
        """
        eager = self._checked(inputs)
        submit = getattr(self.engine, "submit", None) if eager is None else None
        if submit is not None:
            return submit(*inputs)
        done: Future[Any] = Future()
        done.set_result(self.engine(*inputs) if eager is None else eager(*inputs))
        return done

    def _checked(self, inputs: tuple[Any, ...]) -> GraphModule | None:
        """Return what runs instead of the engine, None where the engine does."""
        problem = "" if self.profile is None else self.profile.problem_with(inputs)
        if not problem and (mode := _mode_of(inputs)) is not None:
            # An engine reads memory, and these have none: whoever asks for shapes gets them from the program.
            return with_other_tensors(
                self.program, lambda tensor: mode.from_tensor(tensor.detach(), static_shapes=True)
            )
        if not problem and (ask := getattr(self.engine, "problem_with", None)) is not None:
            problem = ask(inputs)
        if not problem:
            return None
        if self.on_mismatch == "eager":
            return self.program
        raise LoweringError(
            f"Cannot run partition {self.name!r} on {self.backend!r}: {problem}. Lower the module for such inputs, "
            "let the backend leave sizes open where it can, or lower with on_mismatch='eager'.",
            code="FXP-L003",
        )

    def extra_repr(self) -> str:
        """Return what is shown of it."""
        return f"{self.backend}"


def _mode_of(inputs: tuple[Any, ...]) -> Any:
    """Return the ``FakeTensorMode`` of inputs without data, None where they have data."""
    return next((value.fake_mode for value in iterate_leaves(inputs) if is_fake(value)), None)


def lowered_partitions(module: nn.Module) -> dict[str, LoweredPartition]:
    """Return path -> partition for all partitions of a module that run on engines."""
    return {path: part for path, part in module.named_modules() if isinstance(part, LoweredPartition)}
