"""Programs of the corpus with their tensors on another device."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from capture_corpus.comparison import call, seed_everything, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from capture_corpus.corpus import Program


def on_device(program: Program, device: str) -> Program:
    """Return a program whose module and inputs are made on the CPU and moved.

    Args:
        program: The program.
        device: Where they go.
    """

    def moved(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: _moved(make(), device)

    return dataclasses.replace(
        program,
        make=moved(program.make),
        inputs=moved(program.inputs),
        kwargs=moved(program.kwargs),
        others=tuple(map(moved, program.others)),
        other_kwargs=tuple(map(moved, program.other_kwargs)),
    )


def why_not_there(program: Program) -> str:
    """Return why eager cannot run a program where its tensors are, as one that makes tensors on the CPU."""
    if program.illegal:
        return ""
    root = program.fresh()
    seed_everything(0)
    error = call(root, *steps_of(program)[0].inputs(), {}).error
    return "" if error is None else f"{type(error).__name__}: {error}"


def _moved(value: Any, device: str) -> Any:
    if isinstance(value, nn.Module):
        return value.to(device)
    if type(value) is torch.Tensor:
        return value.detach().to(device).requires_grad_(value.requires_grad)
    if isinstance(value, tuple):
        parts = [_moved(part, device) for part in cast("tuple[Any, ...]", value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is list:
        return [_moved(part, device) for part in cast("list[Any]", value)]
    if isinstance(value, dict):
        held = cast("dict[Any, Any]", value)
        held.update({key: _moved(part, device) for key, part in held.items()})
        return held
    return value
