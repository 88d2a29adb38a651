"""``fxplug trace``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from fxplug.api import trace as capture
from fxplug.api.optimization import example_error
from fxplug.cli.examples import check_examples, example_inputs, example_options
from fxplug.cli.failures import traceback_option
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.references import load_model
from fxplug.cli.terminal import console, print_table
from fxplug.errors import FxplugError
from fxplug.ir import TABLE_HEADER, Node, format_table, node_rows, qualified_name

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from fxplug.execute import GraphModule

__all__ = ["print_module", "trace"]


@click.command(short_help="Capture a model and print its graph.")
@click.argument("reference", metavar="MODEL")
@click.option("--code", "form", flag_value="code", default=True, help="As Python.  [default]")
@click.option("--tabular", "form", flag_value="tabular", help="As a table of nodes.")
@click.option("--json", "form", flag_value="json", help="As JSON.")
@click.option("--graph", "form", flag_value="graph", help="As text, one node a line.")
@click.option("--guards", "form", flag_value="guards", help="Only what was assumed about the inputs.")
@example_options
@config_option
@traceback_option
@click.pass_context
def trace(
    context: click.Context,
    reference: str,
    form: str,
    examples: tuple[str, ...],
    example_from: str | None,
    mode: str | None,
    config: Path | None,
) -> None:
    """Capture MODEL and print its graph.

    MODEL is package.module:callable or path.py:callable: a torch.nn.Module, or a function or class without
    arguments that gives one. It is captured as it is; with an example, nearly every model can be.
    """
    check_examples(examples, example_from)
    manager = manager_for(config)
    model = load_model(context, reference)
    inputs = example_inputs(context, examples, example_from)
    try:
        module = capture(model, inputs, mode=mode, manager=manager)
    except FxplugError:
        raise
    except Exception as error:
        if inputs is None or _runs(model, inputs):
            raise
        raise example_error(model, inputs, error) from error
    print_module(module, form, type(model).__name__)


def print_module(module: GraphModule, form: str, class_name: str) -> None:
    """Print a graph module.

    Args:
        module: The module.
        form: ``"code"``, ``"tabular"``, ``"json"``, ``"graph"`` or ``"guards"``.
        class_name: Of the model that it was captured from.
    """
    if form == "guards":
        click.echo("\n".join(module.assumptions) or "Nothing was assumed.")
    elif form == "tabular":
        _print_table(module)
    elif form == "json":
        click.echo(json.dumps(_as_data(module, class_name), indent=2))
    else:
        click.echo(str(module.graph) if form == "graph" else module.code.rstrip())


def _runs(model: nn.Module, inputs: tuple[Any, ...]) -> bool:
    """Return whether a model runs where nobody captures it."""
    try:
        model(*inputs)
    except (Exception, SystemExit):
        return False
    return True


def _print_table(module: GraphModule) -> None:
    nodes = list(module.graph.nodes)
    if console().is_terminal:
        print_table(TABLE_HEADER, node_rows(nodes))
    else:
        click.echo(format_table(nodes))


def _as_data(module: GraphModule, class_name: str) -> dict[str, Any]:
    nodes = list(module.graph.nodes)
    return {
        "format": "fxplug-graph",
        "version": 1,
        "class": class_name,
        "assumptions": list(module.assumptions),
        "nodes": [_node_data(node) for node in nodes],
    }


def _node_data(node: Node) -> dict[str, Any]:
    source = node.origins[0].source() if node.origins else None
    return {
        "name": node.name,
        "opcode": node.op,
        "target": node.target if isinstance(node.target, str) else qualified_name(node.target),
        "args": [_argument(value) for value in node.args],
        "kwargs": {key: _argument(value) for key, value in node.kwargs.items()},
        "users": [user.name for user in node.users],
        "source": None if source is None else f"{source.filename}:{source.line}",
    }


def _argument(value: Any) -> Any:
    """Return an argument as JSON: a node as ``{"node": name}``, what JSON does not know as ``{"text": …}``."""
    if isinstance(value, Node):
        return {"node": value.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_argument(element) for element in value]
    if isinstance(value, dict):
        return {"dict": [[_argument(key), _argument(element)] for key, element in value.items()]}
    return {"text": str(value)}
