"""Models as graphs, for commands that look at graphs; commands of plugins among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.analyze import described_copy
from fxplug.api import trace
from fxplug.cli.examples import check_examples, example_inputs, example_options
from fxplug.cli.models import allow_option, in_wanted_mode, load_file, training_option
from fxplug.cli.references import load_model
from fxplug.execute import GraphModule

if TYPE_CHECKING:
    from collections.abc import Sequence

    import click

    from fxplug.plugins import PluginManager

__all__ = ["capture_options", "captured_module"]


def capture_options(function: Any) -> Any:
    """Give a command the options of `captured_module`: ``--example``, ``--example-from``, ``--mode`` and so on."""
    return example_options(training_option(allow_option(function)))


def captured_module(  # noqa: PLR0913 - options of commands
    context: click.Context,
    text: str,
    *,
    examples: Sequence[str] = (),
    example_from: str | None = None,
    mode: str | None = None,
    allow: Sequence[str] = (),
    training: bool = False,
    manager: PluginManager,
) -> GraphModule:
    """Return the graph module that a text refers to: a file that ends in ``.fxplug``, or a model that is captured.

    With inputs, dtypes and shapes of all values are noted on its nodes.

    Args:
        context: While it lasts, the neighbours of files can be imported.
        text: A file, ``package.module:callable`` or ``path.py:callable``.
        examples: See `capture_options`, as for the next three.
        example_from: A reference.
        mode: How values are treated.
        allow: Names of functions.
        training: Whether a model may stay in training mode.
        manager: The plugins that take part.

    Raises:
        UsageError: Inputs are given in two ways.
        FxplugError: The model cannot be loaded or captured.
    """
    check_examples(examples, example_from)
    if text.endswith(".fxplug"):
        module = load_file(context, text, allow, manager)
        inputs = example_inputs(context, examples, example_from, module)
    else:
        model = in_wanted_mode(load_model(context, text), training=training)
        inputs = example_inputs(context, examples, example_from, model)
        module = model if isinstance(model, GraphModule) else trace(model, inputs, mode=mode, manager=manager)
    return module if inputs is None else described_copy(module, *inputs)
