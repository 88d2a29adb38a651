"""``fxplug trace``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from fxplug.api import trace as capture
from fxplug.api.optimization import example_error
from fxplug.cli.graphs import given, graph_options
from fxplug.cli.terminal import console, print_table
from fxplug.errors import FxplugError
from fxplug.execute import GraphModule
from fxplug.ir import TABLE_HEADER, Node, format_table, node_rows, qualified_name

if TYPE_CHECKING:
    from torch import nn

__all__ = ["print_module", "trace"]


@click.command(short_help="Capture a model and print its graph.")
@graph_options
def trace(context: click.Context, reference: str, form: str, **options: Any) -> None:
    """Capture MODEL and print its graph.

    MODEL is package.module:callable or path.py:callable: a torch.nn.Module, or a function or class without
    arguments that gives one. It is put into evaluation mode (see --training); with an example, nearly every model can
    be captured. Of a file that ends in .fxplug, what it holds is printed.
    """
    found = given(context, reference, **options)
    model, inputs = found.model, found.inputs
    try:
        module = (
            model
            if reference.endswith(".fxplug") and isinstance(model, GraphModule)
            else capture(model, inputs, mode=found.mode, manager=found.manager)
        )
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
        "training": module.training,
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
