"""Example inputs, given as to a call, by the names of the parameters that receive them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.capture.inputs import name_of, signature_of
from fxplug.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fxplug.capture.inputs import Input

__all__ = ["bound_examples"]


def bound_examples(
    function: Callable[..., Any], inputs: Sequence[Input], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what each parameter receives when a function is called with the examples; defaults where it is not given.

    Args:
        function: Is not called.
        inputs: Its parameters.
        args: The examples that are given by position.
        kwargs: Those that are given by name.

    Raises:
        TraceError: The function cannot be called with them.
    """
    is_plain = not any([entry.stars or entry.keyword_only for entry in inputs])  # noqa: C419 - a generator takes longer
    if is_plain and not kwargs and len(args) == len(inputs):
        return {entry.name: value for entry, value in zip(inputs, args, strict=True)}
    try:
        signature = signature_of(function)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        count = f"{len(args)} positional" + (f", {sorted(kwargs)} by name" if kwargs else "")
        raise TraceError(
            f"Cannot trace {name_of(function)!r} with the example inputs ({count}): {error}. Give example_inputs as "
            f"the arguments of a call, in a tuple, and example_kwargs as a dict; the signature is "
            f"{_signature_of(function)}.",
            code="FXP-T064",
        ) from error
    bound.apply_defaults()
    return dict(bound.arguments)


def _signature_of(function: Callable[..., Any]) -> str:
    try:
        return str(signature_of(function))
    except (TypeError, ValueError):
        return "unknown to Python"
