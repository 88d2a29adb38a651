"""The command ``fxplug quant``. Imported when it is called, since it needs click."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import fxplug
from fxplug.api.user_errors import error_text, error_with_place
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.models import input_options, models_and_inputs
from fxplug.cli.references import Reference, UserProgramError, call_reference, importable
from fxplug.errors import ConfigError, FxplugError, StorageError
from fxplug_quant.autotuning import autotune
from fxplug_quant.calibration import prepare
from fxplug_quant.config import MODES
from fxplug_quant.convert import convert
from fxplug_quant.engine import ENGINES
from fxplug_quant.plan import Plan
from fxplug_quant.planning import plan as make_plan
from fxplug_quant.progress import progress_bar
from fxplug_quant.sensitivity import SORT_KEYS, sensitivity

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

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


def _plan_option(function: Any) -> Any:
    return click.option(
        "--plan",
        "plan_file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE.json",
        help="A plan, edited or not, instead of the other wishes.",
    )(function)


def _data_option(function: Any) -> Any:
    return click.option(
        "--data",
        metavar="path.py:callable",
        help="Gives what the model is calibrated with: an iterable of batches, of which labels are left out.  "
        "[default: the inputs alone]",
    )(function)


@click.group("quant", help="Plan the quantization of a model, measure what it costs, or quantize it.")
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
    with _running(model):
        made = make_plan(module, wish, inputs)
    _show(made, as_json=as_json)


@quant.command("run", help=f"Quantize a model. {_MODEL}")
@click.argument("model")
@input_options
@_wish_options
@_plan_option
@_data_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.fxplug",
    help="Where the module goes; an older file is replaced.",
)
@config_option
@click.pass_context
def run_command(context: click.Context, model: str, *, data: str | None, out: Path, **options: Any) -> None:
    """Quantize and save."""
    wish = _wish_or_plan(options)
    if out.suffix != ".fxplug":
        raise StorageError(f"Cannot write the module to {str(out)!r}: the name has to end in .fxplug.")
    config = options["config"]
    module, inputs = _model_and_inputs(context, model, options)
    with _running(model):
        prepared = prepare(module, wish, inputs)
    if prepared.observers:
        loader = _batches(context, data, inputs)
        with _running(model), progress_bar("calibrate") as progress:
            prepared.calibrate(loader, progress=progress)
    converted = convert(prepared)
    fxplug.save(converted, out, manager=manager_for(config))
    left = prepared.plan.left_in_float()
    modes = [entry.mode for entry in prepared.plan.calls().values() if entry.mode != "float"]
    click.echo(f"Wrote {out}: {len(modes)} calls quantized, {len(left)} left in float.")
    for name, reason in left.items():
        click.echo(f"in float: {name}: {reason}")


@quant.command("sensitivity", help=f"Measure what quantizing each layer does to the outputs. {_MODEL}")
@click.argument("model")
@input_options
@_wish_options
@_plan_option
@_data_option
@click.option(
    "--sort", type=click.Choice(SORT_KEYS), default="sqnr", show_default=True, help="The worst layer first."
)
@click.option("--isolated", is_flag=True, help="Leave out the errors that add up; it takes half as long.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
@click.pass_context
def sensitivity_command(
    context: click.Context,
    model: str,
    *,
    data: str | None,
    sort: str,
    isolated: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Print a table of layers."""
    wish = _wish_or_plan(options)
    module, inputs = _model_and_inputs(context, model, options)
    with _running(model), progress_bar("measure layers") as progress:
        table = sensitivity(
            module,
            wish,
            _batches(context, data, inputs),
            example_inputs=inputs,
            cumulative=not isolated,
            progress=progress,
        ).sorted_by(sort)
    click.echo(table.to_json() if as_json else str(table))


@quant.command("autotune", help=f"Find a plan that leaves as few layers in float as keep a budget. {_MODEL}")
@click.argument("model")
@input_options
@_wish_options
@_plan_option
@_data_option
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    required=True,
    metavar="NUMBER",
    help="The relative error of the outputs that is allowed, or how much the metric may lose.",
)
@click.option(
    "--metric",
    metavar="path.py:callable",
    help="A function that is called with a module and returns a score, the greater the better.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, which 'run --plan' reads.")
@config_option
@click.pass_context
def autotune_command(
    context: click.Context,
    model: str,
    *,
    data: str | None,
    budget: float,
    metric: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print a plan."""
    wish = _wish_or_plan(options)
    module, inputs = _model_and_inputs(context, model, options)
    score = None if metric is None else _metric(context, metric)
    with _running(model), progress_bar("try plans") as progress:
        made = autotune(
            module,
            wish,
            _batches(context, data, inputs),
            budget=budget,
            metric=score,
            example_inputs=inputs,
            progress=progress,
        )
    _show(made, as_json=as_json)


def _show(made: Plan, *, as_json: bool) -> None:
    if as_json:
        click.echo(made.to_json())
        return
    click.echo(str(made))
    for name, reason in made.left_in_float().items():
        click.echo(f"in float: {name}: {reason}")


@contextmanager
def _running(model: str) -> Generator[None]:
    """Let an error that the user's model raises while it runs be told with the node and the line.

    Raises:
        UserProgramError: It raised one.
    """
    try:
        yield
    except FxplugError:
        raise
    except Exception as error:
        notes = [str(note) for note in getattr(error, "__notes__", ())]
        if not notes:  # It does not come from a node of the model.
            raise
        where = "\n".join(notes)
        raise UserProgramError(
            f"Cannot run the model {model!r} on these inputs: {error_text(error)}. Give inputs as it takes them "
            f"(--example, --example-from, --data).\n{where}"
        ) from error


class _Batches:
    """What the user's loader gives; what it raises is told as an error of the user's program."""

    def __init__(self, text: str, given: Iterable[Any]) -> None:
        self._text, self._given = text, given

    def __iter__(self) -> Iterator[Any]:
        try:
            batches = iter(self._given)
        except Exception as error:
            raise self._failed(error) from error
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except Exception as error:
                raise self._failed(error) from error
            yield batch

    def _failed(self, error: Exception) -> UserProgramError:
        return UserProgramError(f"The data {self._text!r} raised {error_with_place(error)}.")


class _SizedBatches(_Batches):
    """The same of a loader that knows how many batches there are."""

    def __init__(self, text: str, given: Iterable[Any], count: int) -> None:
        super().__init__(text, given)
        self._count = count

    def __len__(self) -> int:
        return self._count


def _batches(context: click.Context, data: str | None, inputs: tuple[Any, ...]) -> Iterable[Any]:
    """Return what the user's function gives, or the inputs as the only batch.

    Raises:
        ConfigError: It gives nothing that can be iterated.
    """
    if data is None:
        return [inputs]
    given = call_reference(_reference(context, data, "loader"))
    if not hasattr(given, "__iter__") or isinstance(given, (str, bytes, dict)):
        raise ConfigError(
            f"Cannot use {data!r} as data: it gives a {type(given).__name__}. Return a list of batches, or another "
            f"iterable such as a DataLoader."
        )
    try:
        return _SizedBatches(data, given, len(given))
    except TypeError:  # A generator, or a DataLoader of an iterable data set.
        return _Batches(data, given)


def _metric(context: click.Context, text: str) -> Callable[[Any], float]:
    """Return the user's metric.

    Raises:
        ConfigError: It is no function.
    """
    function: Any = _reference(context, text, "metric").load()
    if not callable(function):
        raise ConfigError(
            f"Cannot use {text!r} as a metric: it is a {type(function).__name__}. Name a function that takes a module "
            f"and returns a score."
        )

    def score(module: Any) -> float:
        try:
            found: Any = function(module)
            return float(found)
        except Exception as error:
            raise UserProgramError(f"The metric {text!r} raised {error_with_place(error)}.") from error

    return score


def _reference(context: click.Context, text: str, what: str) -> Reference:
    reference = Reference.parse(text, what)
    context.with_resource(importable(reference.folder))
    return reference


def _wish_or_plan(options: dict[str, Any]) -> Any:
    plan_file, wish = options.pop("plan_file"), _wish(options)
    if plan_file is None:
        return wish
    try:
        # Some editors begin a file with a byte order mark.
        text = plan_file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"Cannot read the plan {str(plan_file)!r}: {error}. Give a text file in UTF-8, as 'fxplug quant plan "
            f"--json' prints it."
        ) from error
    return Plan.from_json(text)


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
