"""What commands run that look at what models compute: models from programs and files, and their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fxplug.api import load
from fxplug.cli.examples import check_examples, example_from_option, make_examples, read_examples
from fxplug.cli.references import Reference, build_model, importable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from fxplug.plugins import PluginManager

__all__ = ["allow_option", "input_options", "model_or_file", "models_and_inputs", "tolerance_options"]


def allow_option(function: Any) -> Any:
    """Give a command the option ``--allow``."""
    return click.option(
        "--allow",
        multiple=True,
        metavar="NAME",
        help="A function, as package.module:function, that a file may name although fxplug does not know it; "
        "repeatable.",
    )(function)


def input_options(function: Any) -> Any:
    """Give a command the options that say with which inputs a model is run."""
    for option in (
        click.option("--training", is_flag=True, help="Leave a model in training mode that comes in it."),
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


def models_and_inputs(
    context: click.Context,
    texts: Sequence[str],
    *,
    examples: Sequence[str],
    example_from: str | None,
    allow: Sequence[str],
    training: bool,
    manager: PluginManager,
) -> tuple[list[nn.Module], tuple[Any, ...]]:
    """Return the models that texts refer to, each a reference or a file that ends in ``.fxplug``, and their inputs.

    Raises:
        UsageError: There are no inputs, or they are given in two ways.
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
    models = [model_or_file(context, text, allow, manager) for text in texts]
    for model in models:
        if not training:
            model.eval()
    if inputs is None:
        source = Reference.parse(str(example_from), "example")
        context.with_resource(importable(source.folder))
        inputs = read_examples(source)
    return models, inputs


def model_or_file(
    context: click.Context, text: str, allow: Sequence[str], manager: PluginManager
) -> nn.Module:
    """Return the model that a text refers to: a reference, or a file that ends in ``.fxplug``."""
    if text.endswith(".fxplug"):
        return load(text, allow=allow, manager=manager)
    reference = Reference.parse(text, "model")
    context.with_resource(importable(reference.folder))
    return build_model(reference)
