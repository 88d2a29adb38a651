"""Dropout that is off, which returns its input itself in eager: a write to the result is one to the input."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.semantics.internals import DropoutBase, has_hooks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["input_of_dropout", "is_off"]

_FUNCTIONS = (
    *(functional.alpha_dropout, functional.dropout, functional.dropout1d, functional.dropout2d),
    *(functional.dropout3d, functional.feature_alpha_dropout),
)
_OPERATORS = (torch.alpha_dropout, torch.dropout, torch.feature_alpha_dropout, torch.feature_dropout)


def _operator(input: Any, p: float, train: bool) -> None:  # noqa: A002, FBT001 - as torch has them
    """Have the parameters of those that are written in C."""


_SIGNATURES = {
    **{id(function): inspect.signature(function) for function in _FUNCTIONS},
    **{id(function): inspect.signature(_operator) for function in _OPERATORS},
}
"""Id of a function -> its parameters: what it is given, how much is dropped, and whether anything is."""


def is_off(module: nn.Module) -> bool:
    """Return whether a module is a dropout that drops nothing now, and does nothing else."""
    if not isinstance(module, DropoutBase) or type(module).__module__ != DropoutBase.__module__:
        return False
    return not has_hooks(module) and (not module.training or bool(module.p == 0))


def input_of_dropout(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a call of a dropout returns that drops nothing, its input; None for any other call.

    Args:
        function: What is called.
        args: With what.
        kwargs: With what by keyword.
    """
    signature = _SIGNATURES.get(id(function))
    if signature is None:
        return None
    given = signature.bind(*args, **kwargs)
    given.apply_defaults()
    value, share, is_on = [*given.arguments.values()][:3]
    return None if is_on and share != 0 else value
