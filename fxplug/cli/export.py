"""``fxplug export``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fxplug.api import export_python
from fxplug.api import trace as capture
from fxplug.cli.examples import check_examples, example_inputs, example_options
from fxplug.cli.failures import traceback_option
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.models import allow_option, in_wanted_mode, model_or_file, training_option
from fxplug.execute import GraphModule

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["export"]


@click.command(short_help="Write a model as a Python package that needs torch alone.", no_args_is_help=True)
@click.argument("model")
@click.argument("folder")
@click.option(
    "--class-name", metavar="NAME", help="The class that the package defines.  [default: that of the model]"
)
@click.option("--overwrite", is_flag=True, help="Replace a package that was exported into FOLDER before.")
@training_option
@allow_option
@example_options
@config_option
@traceback_option
@click.pass_context
def export(context: click.Context, model: str, folder: str, config: Path | None, **options: Any) -> None:
    """Write MODEL into FOLDER as Python that people can read and edit.

    MODEL is package.module:callable, path.py:callable, or a file that ends in .fxplug. A model is captured first; with
    an example, nearly every model can be. A file is read as data and never run.
    """
    examples, example_from = options["examples"], options["example_from"]
    check_examples(examples, example_from)
    manager = manager_for(config)
    module: Any = model_or_file(context, model, options["allow"], manager)
    if not isinstance(module, GraphModule):
        inputs = example_inputs(context, examples, example_from, module)
        module = in_wanted_mode(module, training=options["training"])
        module = capture(module, inputs, mode=options["mode"], manager=manager)
    names = {name: options[name] for name in ("class_name", "overwrite")}
    export_python(module, folder, **names, manager=manager)
    click.echo(f"Written to {folder}: model.py, and weights.pt, which load() reads.")
