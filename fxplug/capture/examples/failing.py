"""Calls that fail on the examples: what can be said of other inputs, where the call cannot be tried again on them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.examples.asking import INSIDE
from fxplug.capture.examples.guarding import expression
from fxplug.capture.examples.parts import tensors_in
from fxplug.capture.sources import place_in_program
from fxplug.errors import TraceError
from fxplug.semantics.internals import is_about_missing_data, is_fake, map_leaves, with_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.ir import Node

__all__ = ["caught_failure", "fails_by_kinds"]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def fails_by_kinds(
    error: Exception, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Return whether a call of torch fails on all tensors with these sizes and dtypes, and does nothing before.

    It is called with others. On those without data nothing fails that hangs on values, and on those that need no
    gradient, and share no memory, nothing that hangs on that. Torch may say it in other words where there is no data.

    Args:
        error: The error with which it has failed.
        function: What was called.
        args: What it was given.
        kwargs: The same, by keyword.
    """
    given = {id(tensor): tensor for tensor in tensors_in((args, kwargs))}
    if not all(map(_is_plain, given.values())):
        return False
    call = partial(_failure_on, function, (args, kwargs), given)
    told, needing = call(_without_data), call(_without_data_but_gradients)
    # Which of two errors comes first does not matter where an `except` cannot tell them apart.
    if told is None or type(told) is not type(error) or type(needing) is not type(error):
        return False
    if is_about_missing_data(told):
        return False
    if str(told) != str(error) and not any(map(is_fake, given.values())):
        told = call(torch.zeros_like)
    return type(told) is type(error) and str(told) == str(error)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (type(tensor) in _PLAIN or is_fake(tensor)) and tensor.layout is torch.strided


def _failure_on(
    function: Callable[..., Any],
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    given: dict[int, torch.Tensor],
    like: Callable[[torch.Tensor], torch.Tensor],
) -> Exception | None:
    """Return the error of a call with other tensors; None where there is none, or where it has done something before.

    Args:
        function: What is called.
        arguments: What it was given, by position and by keyword.
        given: The tensors among these, by their ids.
        like: Makes the tensor that stands for another one.
    """
    with with_data(), torch.enable_grad():
        others = {key: like(tensor) for key, tensor in given.items()}
        args, kwargs = map_leaves(partial(_instead, others), arguments)
        versions = {key: other._version for key, other in others.items()}
        try:
            function(*args, **kwargs)
        except Exception as error:  # Whatever it raises is looked at.
            is_untouched = all(
                other._version == versions[key] and other.shape == given[key].shape
                for key, other in others.items()
            )
            return error if is_untouched else None
    return None


def _instead(others: dict[int, torch.Tensor], value: Any) -> Any:
    return others.get(id(value), value)


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _without_data_but_gradients(tensor: torch.Tensor) -> torch.Tensor:
    can_need = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return _without_data(tensor).requires_grad_(can_need)


def caught_failure(node: Node, error: Exception) -> TraceError:
    """Return the refusal of a program that catches the error of a call, and goes on.

    Args:
        node: The call.
        error: What it has raised.
    """
    what = expression(node, INSIDE)
    kind = type(error).__name__
    said = next(iter(str(error).splitlines()), "")
    return TraceError(
        f"Cannot trace: {what} fails on the example inputs{place_in_program()} with a {kind} ({said}), and the program "
        "catches it and goes on. Whether it fails for other inputs, or settings such as no_grad, cannot be checked in "
        "the graph, since the call does more than to compute a result. Test with an if, before the call, what it "
        f"fails by (sizes, dtypes, requires_grad), keep the function around the 'except' as a call (fxplug.wrap), or "
        "let the error through.",
        code="FXP-T070",
    )
