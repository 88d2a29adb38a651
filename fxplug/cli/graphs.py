"""What commands that print the graph of a model have in common: its inputs, its mode, and the form of the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fxplug.cli.examples import check_examples, example_inputs, example_options
from fxplug.cli.failures import traceback_option
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.models import allow_option, in_wanted_mode, model_or_file, training_option

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import nn

    from fxplug.plugins import PluginManager

__all__ = ["Given", "given", "graph_options"]

_FORMS = {
    "code": "As Python.  [default]",
    "tabular": "As a table of nodes.",
    "json": "As JSON.",
    "graph": "As text, one node a line.",
    "guards": "Only what was assumed about the inputs.",
}


def graph_options(function: Any) -> Any:
    """Give a command the argument MODEL, the options of `given`, and ``form``: in which form a graph is printed."""
    forms = [
        click.option(f"--{form}", "form", flag_value=form, default=form == "code" or None, help=text)
        for form, text in _FORMS.items()
    ]
    decorators = (
        click.argument("reference", metavar="MODEL"),
        *forms,
        example_options,
        training_option,
        allow_option,
        config_option,
        traceback_option,
        click.pass_context,
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


@dataclass(frozen=True)
class Given:
    """What the options say."""

    model: nn.Module
    inputs: tuple[Any, ...] | None
    mode: str | None
    """How values are treated."""
    manager: PluginManager


def given(  # noqa: PLR0913 - options of commands
    context: click.Context,
    reference: str,
    *,
    examples: Sequence[str],
    example_from: str | None,
    mode: str | None,
    training: bool,
    allow: Sequence[str],
    config: Path | None,
) -> Given:
    """Return the model and its inputs; a model is put into evaluation mode unless `training` leaves it.

    Args:
        context: While it lasts, the neighbours of files can be imported.
        reference: Of the model, or a file that ends in ``.fxplug``.
        examples: See `graph_options`, as for the next ones.
        example_from: A reference.
        mode: How values are treated.
        training: Whether a model may stay in training mode.
        allow: Names of functions that a file may name.
        config: A file.

    Raises:
        UsageError: Inputs are given in two ways.
        FxplugError: The model or its inputs cannot be made.
    """
    check_examples(examples, example_from)
    manager = manager_for(config)
    model = in_wanted_mode(model_or_file(context, reference, allow, manager), training=training)
    return Given(model, example_inputs(context, examples, example_from, model), mode, manager)
