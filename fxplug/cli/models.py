"""What commands run that look at what models compute: models from programs and files, and their inputs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch
from torch import nn

from fxplug.analyze.isolation import tensors_in, tensors_of
from fxplug.api import load
from fxplug.cli.examples import check_examples, example_from_option, make_examples, read_examples
from fxplug.cli.references import Reference, build_model, importable
from fxplug.errors import ConfigError
from fxplug.semantics.deep_copies import deep_copy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fxplug.execute import GraphModule
    from fxplug.plugins import PluginManager

__all__ = [
    "MODE_CHANGED",
    "allow_option",
    "device_option",
    "first_line",
    "in_wanted_mode",
    "input_options",
    "load_file",
    "mode_text",
    "model_or_file",
    "models_and_inputs",
    "tolerance_options",
    "training_option",
]


def allow_option(function: Any) -> Any:
    """Give a command the option ``--allow``."""
    return click.option(
        "--allow",
        multiple=True,
        metavar="NAME",
        help="A function, as package.module:function, that a file may name although fxplug does not know it; "
        "repeatable.",
    )(function)


training_option = click.option(
    "--training", is_flag=True, help="Leave a model in training mode that comes in it."
)
"""Gives a command the option ``--training``."""


def in_wanted_mode(model: nn.Module, *, training: bool) -> nn.Module:
    """Return a model, put into evaluation mode unless it may stay in training mode; say so where that changed it."""
    if model.training and not training:
        model.eval()
        click.echo(MODE_CHANGED, err=True)
    return model


MODE_CHANGED = "The model came in training mode and was put into evaluation mode (--training leaves it)."


def mode_text(model: nn.Module) -> str:
    """Return the mode that a model is in, for people."""
    return "training mode" if model.training else "evaluation mode"


def input_options(function: Any) -> Any:
    """Give a command the options that say with which inputs a model is run."""
    for option in (
        training_option,
        allow_option,
        example_from_option,
        click.option(
            "--example",
            "examples",
            multiple=True,
            metavar="SHAPE[:DTYPE[:BOUND]]",
            help="An input, as 1x3x224x224 or 1x16:int64; once per input, in order. The numbers are the same at every "
            "call.",
        ),
    ):
        function = option(function)
    return function


def tolerance_options(function: Any) -> Any:
    """Give a command the options that say how large an error is allowed."""
    for option in (
        click.option(
            "--atol",
            type=click.FloatRange(min=0),
            metavar="NUMBER",
            help="Allowed error beside it.  [default: by dtype]",
        ),
        click.option(
            "--rtol",
            type=click.FloatRange(min=0),
            metavar="NUMBER",
            help="Allowed error, as a share of the expected value.  [default: by dtype]",
        ),
    ):
        function = option(function)
    return function


def models_and_inputs(  # noqa: PLR0913 - options of commands
    context: click.Context,
    texts: Sequence[str],
    *,
    examples: Sequence[str],
    example_from: str | None,
    allow: Sequence[str],
    training: bool,
    manager: PluginManager,
    device: str | None = None,
) -> tuple[list[nn.Module], tuple[Any, ...]]:
    """Return the models that texts refer to, each a reference or a file that ends in ``.fxplug``, and their inputs.

    Args:
        context: While it lasts, the neighbours of files can be imported.
        texts: References and files.
        examples: See `input_options`, as for the next three.
        example_from: A reference.
        allow: Names of functions.
        training: Whether modules stay in training mode.
        manager: Knows what files name.
        device: Where models and inputs are put. On ``"meta"`` models are also made, so that none has weights.

    Raises:
        UsageError: There are no inputs, or they are given in two ways.
        ConfigError: The device cannot be used.
        UnresolvedReferenceError: A reference leads nowhere, or to no module.
        UserProgramError: The program failed.
        StorageError: A file cannot be loaded.
    """
    check_examples(examples, example_from)
    if not examples and example_from is None:
        raise click.UsageError(
            "Models are run, so they need inputs: --example 1x3x224x224 (once per input), or --example-from "
            "path.py:callable."
        )
    inputs = make_examples(examples) if example_from is None else None
    models = [model_or_file(context, text, allow, manager, device) for text in texts]
    for model in models:
        if not training:
            model.eval()  # The output says so, for all models at once.
    if inputs is None:
        source = Reference.parse(str(example_from), "example")
        context.with_resource(importable(source.folder))
        inputs = read_examples(source, models[0])
    if device is None:
        return models, inputs
    return [_put_on(model, device) for model in models], _put_on(inputs, device)


def device_option(function: Any) -> Any:
    """Give a command the option ``--device``."""
    return click.option(
        "--device",
        metavar="DEVICE",
        help="Put model and inputs there, e.g. cuda; meta: make the model without weights, however large it is.",
    )(function)


def _put_on(value: Any, device: str) -> Any:
    """Return a model or inputs on a device; what is shared stays shared."""
    try:
        place = torch.device(device)
        if isinstance(value, nn.Module) and place.type != "meta":
            return value.to(place)
        # A module that is moved to the meta device gets a parameter of its own for each place where there was one.
        tensors = {id(tensor): tensor for tensor in _tensors_of(value)}
        with torch.no_grad():
            moved = {key: _moved(tensor, place) for key, tensor in tensors.items()}
        return deep_copy(value, moved)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"Cannot use the device {device!r}: {first_line(error)}.") from error


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, nn.Module):
        yield from value.parameters()
        yield from (tensor for _, tensor in tensors_of(value))
    else:
        yield from tensors_in(value)


def _moved(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    moved = tensor.detach().to(place)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(moved, requires_grad=tensor.requires_grad)
    return moved.requires_grad_(tensor.requires_grad)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, without the full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def load_file(context: click.Context, file: str, allow: Sequence[str], manager: PluginManager) -> GraphModule:
    """Return the module that a file holds.

    Args:
        context: While it lasts, what is allowed is also found in the working directory, as models are.
        file: Its name.
        allow: Names of functions.
        manager: Knows what files name. It has looked for its plugins already.

    Raises:
        StorageError: The file cannot be loaded.
    """
    if allow:
        context.with_resource(importable(Path.cwd()))
    return load(file, allow=allow, manager=manager)


def model_or_file(
    context: click.Context,
    text: str,
    allow: Sequence[str],
    manager: PluginManager,
    device: str | None = None,
) -> nn.Module:
    """Return the model that a text refers to: a reference, or a file that ends in ``.fxplug``."""
    if text.endswith(".fxplug"):
        return load_file(context, text, allow, manager)
    reference = Reference.parse(text, "model")
    context.with_resource(importable(reference.folder))
    with torch.device("meta") if device == "meta" else nullcontext():
        return build_model(reference)
