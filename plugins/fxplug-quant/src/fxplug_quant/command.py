"""The command ``fxplug quant``. Imported when it is called, since it needs click."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import fxplug
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.models import input_options, models_and_inputs
from fxplug.errors import StorageError
from fxplug_quant.calibration import prepare
from fxplug_quant.config import MODES
from fxplug_quant.convert import convert
from fxplug_quant.engine import ENGINES
from fxplug_quant.plan import Plan
from fxplug_quant.planning import plan as make_plan

if TYPE_CHECKING:
    from torch import nn

__all__ = ["quant"]

_MODEL = "MODEL is package.module:callable, path.py:callable, or a file that ends in .fxplug."


def _wish_options(function: Any) -> Any:
    for option in (
        click.option("--observer", default="histogram", show_default=True, help="Chooses ranges of values."),
        click.option("--engine", type=click.Choice(ENGINES), default="x86", show_default=True),
        click.option(
            "--group-size",
            type=int,
            default=64,
            show_default=True,
            help="Weights that share a scale in weight-int4.",
        ),
        click.option("--mode", type=click.Choice(MODES), default="static-int8", show_default=True),
        click.option(
            "--float",
            "floats",
            multiple=True,
            metavar="GLOB",
            help="Leave modules whose path matches in float; repeatable.",
        ),
    ):
        function = option(function)
    return function


@click.group("quant", help="Plan the quantization of a model, or quantize it.")
def quant() -> None:
    """Group of the commands below."""


@quant.command("plan", help=f"Show what would become of every call, weight and value. {_MODEL}")
@click.argument("model")
@input_options
@_wish_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, which 'run --plan' reads.")
@config_option
@click.pass_context
def plan_command(context: click.Context, model: str, *, as_json: bool, **options: Any) -> None:
    """Print a plan."""
    wish = _wish(options)
    module, inputs = _model_and_inputs(context, model, options)
    made = make_plan(module, wish, inputs)
    if as_json:
        click.echo(made.to_json())
        return
    click.echo(str(made))
    for name, reason in made.left_in_float().items():
        click.echo(f"in float: {name}: {reason}")


@quant.command("run", help=f"Quantize a model; it is calibrated with the inputs. {_MODEL}")
@click.argument("model")
@input_options
@_wish_options
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE.json",
    help="A plan, edited or not, instead of the other wishes.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.fxplug",
    help="Where the module goes; an older file is replaced.",
)
@config_option
@click.pass_context
def run_command(
    context: click.Context, model: str, *, plan_file: Path | None, out: Path, **options: Any
) -> None:
    """Quantize and save."""
    wish: Any = _wish(options)
    if plan_file is not None:
        wish = Plan.from_json(plan_file.read_text(encoding="utf-8"))
    if out.suffix != ".fxplug":
        raise StorageError(f"Cannot write the module to {str(out)!r}: the name has to end in .fxplug.")
    config = options["config"]
    module, inputs = _model_and_inputs(context, model, options)
    prepared = prepare(module, wish, inputs)
    if prepared.observers:
        prepared.calibrate([inputs])
    converted = convert(prepared)
    fxplug.save(converted, out, manager=manager_for(config))
    left = prepared.plan.left_in_float()
    modes = [entry.mode for entry in prepared.plan.calls().values() if entry.mode != "float"]
    click.echo(f"Wrote {out}: {len(modes)} calls quantized, {len(left)} left in float.")
    for name, reason in left.items():
        click.echo(f"in float: {name}: {reason}")


def _wish(options: dict[str, Any]) -> dict[str, Any]:
    floats = options.pop("floats")
    return {
        **{name: options.pop(name) for name in ("mode", "engine", "observer", "group_size")},
        "rules": tuple({"path": glob, "mode": "float"} for glob in floats),
    }


def _model_and_inputs(
    context: click.Context, model: str, options: dict[str, Any]
) -> tuple[nn.Module, tuple[Any, ...]]:
    manager = manager_for(options.pop("config"))
    (module,), inputs = models_and_inputs(context, (model,), manager=manager, **options)
    return module, inputs
