"""Example inputs by name, put where they stand among the positional arguments of a call."""

from __future__ import annotations

import inspect
from collections import abc
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.analyze.isolation import holds_itself
from fxplug.capture.inputs import signature_of
from fxplug.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["as_inputs"]

_Parameter = inspect.Parameter


def as_inputs(
    example_inputs: Sequence[Any] | torch.Tensor | None,
    example_kwargs: Mapping[str, Any] | None = None,
    program: nn.Module | Callable[..., Any] | None = None,
) -> tuple[Any, ...]:
    """Return the positional arguments of one call, those that are given by name in their places.

    Parameters in front of them that are not given have their defaults.

    Args:
        example_inputs: Positional inputs; a single tensor stands for itself, None for nothing where there are
            `example_kwargs`.
        example_kwargs: Inputs by the names of parameters.
        program: Which is called with them: a module, or another callable.

    Raises:
        ConfigError: Something else was given, something that holds itself, or something by name that the program takes
            by name alone, or not at all.
    """
    if holds_itself([example_inputs, example_kwargs]):
        raise ConfigError(
            "Cannot use example inputs that hold themselves: a list, tuple or dict in them is its own part. Give the "
            "program what it needs of them."
        )
    if example_kwargs is None:
        return _positional(example_inputs)
    inputs = () if example_inputs is None else _positional(example_inputs)
    if not isinstance(example_kwargs, abc.Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"Cannot use a {type(example_kwargs).__name__} as example_kwargs: give a dict of parameter name -> value."
        )
    if not example_kwargs:
        return inputs
    return _in_places(program, inputs, dict(example_kwargs))


def _positional(example_inputs: Any) -> tuple[Any, ...]:
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(cast("Sequence[Any]", example_inputs))
    raise ConfigError(
        f"Cannot use a {type(example_inputs).__name__} as example inputs: give a tuple with the positional arguments "
        f"of one call, and example_kwargs for those by name."
    )


def _in_places(program: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    name = type(program).__name__ if isinstance(program, nn.Module) else str(program)
    try:
        signature = signature_of(program.forward if isinstance(program, nn.Module) else program)
        given = signature.bind(*inputs, **named).arguments
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"Cannot call {name} with the example inputs ({len(inputs)} by position, {sorted(named)} by name): "
            f"{error}. Give example_inputs as the arguments of a call, in a tuple, and example_kwargs as a dict."
        ) from error
    parameters = list(signature.parameters.values())
    by_name = [
        parameter.name
        for parameter in parameters
        if parameter.name in given and parameter.kind in {_Parameter.KEYWORD_ONLY, _Parameter.VAR_KEYWORD}
    ]
    if by_name:
        raise ConfigError(
            f"Cannot use example_kwargs for {by_name[0]!r}: {name} takes it by name alone, and models are run "
            "and compared here with positional inputs. Leave it out if it has a default, put a module around this one "
            "that fixes it, or let forward take it by position, too."
        )
    found: list[Any] = []
    last = max(index for index, parameter in enumerate(parameters) if parameter.name in given)
    for parameter in parameters[: last + 1]:
        if parameter.kind is _Parameter.VAR_POSITIONAL:
            found.extend(given.get(parameter.name, ()))
        else:
            found.append(given.get(parameter.name, parameter.default))
    return tuple(found)
