"""Example inputs: from ``1x3x224x224`` or ``1x16:int64`` to tensors.

``SHAPE[:DTYPE[:BOUND]]``. SHAPE is sizes joined by ``x``, or ``scalar``. DTYPE is a name of PyTorch's, by default
``float32``. Floating-point numbers are drawn from the normal distribution. Integers are drawn below BOUND, by
default 2, so that they are valid as tokens of any vocabulary (for uint8: 256). The numbers are the same at every
call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import torch

from fxplug.api.capturing import MODES
from fxplug.api.positions import as_inputs
from fxplug.cli.references import Reference, call_reference, importable
from fxplug.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "check_examples",
    "example_from_option",
    "example_inputs",
    "example_options",
    "make_examples",
    "mode_option",
    "prepared_mode_option",
    "read_examples",
]

_SEED = 0
_GRAMMAR = "Write sizes joined by 'x', and a dtype if it is not float32: 1x3x224x224 or 1x16:int64"


example_from_option = click.option(
    "--example-from",
    metavar="REFERENCE",
    help="path.py:callable or package.module:callable that returns the inputs of one call: a tuple, or a dict by name.",
)
"""Gives a command the option that names a callable for the inputs."""


def mode_option(default: str) -> Any:
    """Return what gives a command the option ``--mode``.

    Args:
        default: What holds without it, for the help.
    """
    return click.option(
        "--mode", type=click.Choice(MODES), help=f"How values are treated.  [default: {default}]"
    )


prepared_mode_option = mode_option("symbolic; value, with guards, where that is not possible")
"""Gives a command the option ``--mode`` that captures models as `fxplug.optimize` does."""


def example_options(function: Any) -> Any:
    """Give a command the options that say with which inputs, and how, a model is captured."""
    for option in (
        mode_option("value with an example, symbolic without"),
        example_from_option,
        click.option(
            "--example",
            "examples",
            multiple=True,
            metavar="SHAPE[:DTYPE[:BOUND]]",
            help="Run the model on this input while it is captured: 1x3x224x224 or 1x16:int64; once per input, in "
            "order.",
        ),
    ):
        function = option(function)
    return function


def check_examples(examples: Sequence[str], example_from: str | None) -> None:
    """Refuse inputs that are given in two ways.

    Raises:
        UsageError: They are.
    """
    if examples and example_from is not None:
        raise click.UsageError("--example and --example-from exclude each other.")


def example_inputs(
    context: click.Context, examples: Sequence[str], example_from: str | None, model: Callable[..., Any]
) -> tuple[Any, ...] | None:
    """Return the inputs that the options of `example_options` give, None when they give none.

    Args:
        context: While it lasts, the neighbours of a file with examples can be imported.
        examples: Shapes.
        example_from: Reference of a function.
        model: Which is called with them, so that the function can give them by name.

    Raises:
        FxplugError: They cannot be made.
    """
    if example_from is None:
        return make_examples(examples) if examples else None
    source = Reference.parse(example_from, "example")
    context.with_resource(importable(source.folder))
    return read_examples(source, model)


def make_examples(texts: Sequence[str]) -> tuple[torch.Tensor, ...]:
    """Return one tensor for each text.

    Raises:
        ConfigError: A text has another form.
    """
    generator = torch.Generator().manual_seed(_SEED)
    return tuple(_make_example(text, generator) for text in texts)


def _make_example(text: str, generator: torch.Generator) -> torch.Tensor:
    shape_text, _, rest = text.partition(":")
    dtype_text, _, bound_text = rest.partition(":")
    if rest != dtype_text + (f":{bound_text}" if bound_text else "") or (":" in text and not dtype_text):
        raise _malformed(text, "after a colon something is missing")
    shape = _read_shape(text, shape_text)
    dtype = _read_dtype(text, dtype_text)
    bound = _read_bound(text, bound_text, dtype)
    try:
        return _draw(shape, dtype, bound, generator)
    except (RuntimeError, OverflowError, MemoryError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"Cannot make the example {text!r}: {reason}.") from error


def _malformed(text: str, reason: str) -> ConfigError:
    return ConfigError(f"Cannot read the example {text!r}: {reason}. {_GRAMMAR}.")


def _read_shape(text: str, shape: str) -> list[int]:
    if shape == "scalar":
        return []
    sizes = shape.split("x")
    wrong = [size for size in sizes if not (size.isascii() and size.isdigit())]
    if wrong:
        raise _malformed(text, f"{wrong[0]!r} is not a size" if wrong[0] else "a size is missing")
    return [int(size) for size in sizes]


def _read_dtype(text: str, name: str) -> torch.dtype:
    if not name:
        return torch.float32
    known = {key: value for key, value in vars(torch).items() if isinstance(value, torch.dtype)}
    dtype = known.get(name)
    if dtype is None:
        raise _malformed(text, f"PyTorch has no dtype {name!r}. {did_you_mean(name, known)}".rstrip("."))
    return dtype


def _read_bound(text: str, bound: str, dtype: torch.dtype) -> int:
    if not bound:
        return 256 if dtype is torch.uint8 else 2
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        raise _malformed(text, f"a bound is for integers, and {str(dtype).removeprefix('torch.')} is none")
    if not (bound.isascii() and bound.isdigit() and int(bound) > 0):
        raise _malformed(text, f"the bound {bound!r} is not a positive number")
    return int(bound)


def _draw(shape: list[int], dtype: torch.dtype, bound: int, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        drawn = torch.randn(
            shape, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32
        )
        return drawn.to(dtype)
    return torch.randint(bound, shape, generator=generator).to(dtype)


def read_examples(reference: Reference, model: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the arguments of one call that the user's function gives.

    Args:
        reference: Of the function.
        model: Which is called with them, so that a dict can give them by name.

    Raises:
        ConfigError: It gives something else than a tuple, a list, a tensor, or names that the model knows.
        UnresolvedReferenceError: The reference leads nowhere.
        UserProgramError: The function fails.
    """
    given = call_reference(reference)
    if isinstance(given, torch.Tensor):
        return (given,)
    if isinstance(given, (tuple, list)):
        return tuple(given)
    if isinstance(given, dict):
        return as_inputs(None, given, model)
    raise ConfigError(
        f"Cannot use {reference.text!r} as example inputs: it gives a {type(given).__name__}. Return a tuple with the "
        f"positional arguments of one call, or a dict with arguments by name."
    )
