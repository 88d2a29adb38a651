"""``fxplug decompose``."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import click
import torch

from fxplug.api import decompose as express
from fxplug.api import trace as capture
from fxplug.cli.graphs import given, graph_options
from fxplug.cli.trace import print_module
from fxplug.execute import GraphModule
from fxplug.ir import qualified_name
from fxplug.semantics.internals import OpOverload

__all__ = ["decompose"]


@click.command(short_help="Express a model by operators of ATen, and print its graph.")
@click.option(
    "--to",
    type=click.Choice(["core-aten", "aten"]),
    default="core-aten",
    show_default=True,
    help="By which operators: core ones, or those that eager runs.",
)
@click.option(
    "--dynamic",
    "dynamic",
    multiple=True,
    metavar="INPUT.DIM=NAME",
    help="Leave a size open: 0.0=batch for the first dimension of the first input. Equal names are equal sizes.",
)
@click.option("--counts", "form", flag_value="counts", help="Only how often each operator is called.")
@graph_options
def decompose(
    context: click.Context, reference: str, *, to: str, dynamic: tuple[str, ...], form: str, **options: Any
) -> None:
    """Capture MODEL, express it by operators of ATen, and print the graph.

    MODEL is package.module:callable or path.py:callable: a torch.nn.Module, or a function or class without
    arguments that gives one; or a file that ends in .fxplug. It is put into evaluation mode (see --training).
    """
    open_sizes = _open_sizes(dynamic)
    found = given(context, reference, **options)
    model, inputs = found.model, found.inputs
    if inputs is None:
        raise click.UsageError("Say with which inputs: --example 1x3x224x224, or --example-from.", context)
    captured = (
        model
        if isinstance(model, GraphModule)
        else capture(model, inputs, mode=found.mode, manager=found.manager)
    )
    module = express(captured, inputs, to=to, dynamic=open_sizes or None, manager=found.manager)
    if form == "counts":
        click.echo("\n".join(_counts(module)))
    else:
        print_module(module, form, type(model).__name__)


def _open_sizes(texts: tuple[str, ...]) -> dict[int | str, dict[int, str]]:
    """Return what ``INPUT.DIM=NAME`` says.

    Raises:
        BadParameter: One says something else.
    """
    found: dict[int | str, dict[int, str]] = {}
    for text in texts:
        place, _, name = text.partition("=")
        key, _, dimension = place.rpartition(".")
        if not key or not name or not dimension.lstrip("-").isdigit():
            raise click.BadParameter(
                f"{text!r} is not INPUT.DIM=NAME, such as 0.0=batch.", param_hint="--dynamic"
            )
        found.setdefault(int(key) if key.isdigit() else key, {})[int(dimension)] = name
    return found


def _counts(module: GraphModule) -> list[str]:
    """Return a line for each operator, the most frequent one first; those that are no core ones say so."""
    targets: list[Any] = [node.target for node in module.graph.nodes if node.op == "call_function"]
    counts = Counter(target for target in targets if target is not operator.getitem)
    return [
        f"{count:5}  {_name(target)}{'' if _is_core(target) else '  (not a core operator)'}"
        for target, count in sorted(counts.items(), key=lambda item: (-item[1], _name(item[0])))
    ]


def _name(target: Any) -> str:
    return str(target) if isinstance(target, OpOverload) else qualified_name(target)


def _is_core(target: Any) -> bool:
    return torch.Tag.core in getattr(target, "tags", ())
