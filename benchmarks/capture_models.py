"""What capture makes of many models: ``python -m benchmarks.capture_models``.

Each model is captured by torch.fx and by fxplug in every mode, and what was captured is compared with the model, in
eval mode, on the example inputs and on a batch of another size. Where torchvision, timm or transformers is not
installed, its models are left out, and the script says how to get them.

    python -m benchmarks.capture_models                        # everything, some minutes
    python -m benchmarks.capture_models --group own            # needs no other library
    python -m benchmarks.capture_models --only 'vit*' --why    # some models, and what the errors say
    python -m benchmarks.capture_models --device cuda          # models and inputs are there
    python -m benchmarks.capture_models --write                # keep the tables, also in the documentation
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import fnmatch
import gc
import os
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.fx
from torch import nn

import fxplug
from benchmarks.capture_costs import CostOfModel, cost_of_model, costs_by_library, costs_table
from benchmarks.functional import functional_table, level_of_functions
from benchmarks.report import describe_surroundings
from benchmarks.zoo import GROUPS, MissingLibraryError, models_of, randomise
from fxplug.plugins import PluginManager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.own_models import OwnModel

__all__ = ["Row", "main", "try_model"]

_CHECKOUT = Path(__file__).resolve().parents[1]
_RESULTS = _CHECKOUT / "benchmarks" / "results" / "capture-models.md"
_PAGE = _CHECKOUT / "docs" / "capture" / "models.md"
_COSTS = """A program that only calls modules, functions of torch and methods of values, fills containers, handles its
modules as values, enters contexts of torch, asks what tensors are like and whether two are one, is not listened to on
examples (ADR 0023). Others are, as in the last row: results of torch get stand-ins, and answers get guards. So are some
models of libraries, whose forwards do more; before it is captured, what they may call is looked through, which with
transformers are thousands of functions. In microseconds for each node, of models that were captured once before:"""
_ENGINES = ("torch.fx", "symbolic", "shape", "value")
_BATCH, _OTHER_BATCH = 2, 3


@dataclass
class Row:
    """What became of one model."""

    group: str
    name: str
    verdicts: dict[str, str] = field(default_factory=dict[str, str])
    """Engine -> ``"ok"``, ``"guard"``, ``"refused"`` with a code, ``"fails"`` or ``"wrong"``."""
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """Engine -> what the error says."""
    nodes: int | None = None
    """How many nodes the graph of the value mode has."""
    cost: CostOfModel | None = None
    """What captures cost."""


def try_model(
    group: str,
    model: OwnModel,
    manager: PluginManager | None = None,
    engines: Sequence[str] = _ENGINES,
    device: str = "cpu",
) -> Row:
    """Build a model, capture it in every way, and compare.

    Args:
        group: Where it is from.
        model: The model.
        manager: The plugins that take part in captures of fxplug.
        engines: Who captures it.
        device: Where the model and its inputs are.
    """
    row = Row(group, model.name)
    torch.manual_seed(0)
    root = randomise(model.build()).to(device)
    examples, others = (
        [value.to(device) for value in model.inputs(batch)] for batch in (_BATCH, _OTHER_BATCH)
    )
    # The gradients of large models take longer than all the rest.
    # Everyone gets a model that was never called: a call may leave something behind that the next one reads.
    reference = copy.deepcopy(root)
    expected = [_run(reference, inputs, with_gradients=group == "own") for inputs in (examples, others)]
    for engine in engines:
        try:
            captured = _capture(engine, copy.deepcopy(root), examples, manager)
        except Exception as error:
            is_coded = engine == "torch.fx" or isinstance(error, fxplug.FxplugError)
            found = getattr(error, "code", None) or "" if is_coded else type(error).__name__
            row.verdicts[engine] = f"{'refused' if is_coded else 'fails'} {found}".rstrip()
            row.reasons[engine] = f"{type(error).__name__}: {error}"
            continue
        for run in expected:
            row.verdicts[engine] = _verdict(captured, run, row, engine)
            if row.verdicts[engine] != "ok":
                break
        if engine == "value":
            row.nodes = len(captured.graph.nodes)
    if manager is None and row.verdicts.get("value") == "ok":
        # Some keep a table that their first run makes, and are refused behind it.
        with contextlib.suppress(fxplug.FxplugError):
            row.cost = cost_of_model(root, examples, PluginManager(candidates=()))
    return row


@dataclass(frozen=True)
class _Run:
    """A call, and what came of it."""

    inputs: Sequence[torch.Tensor]
    output: Any
    gradients: Sequence[torch.Tensor | None] | None
    """Of inputs and parameters; None where nobody asks."""


def _run(program: Callable[..., Any], inputs: Sequence[torch.Tensor], *, with_gradients: bool) -> _Run:
    if not with_gradients:
        with torch.no_grad():
            return _Run(inputs, program(*inputs), None)
    leaves = [value.detach().clone().requires_grad_(value.is_floating_point()) for value in inputs]
    output = program(*leaves)
    results = [result for result in _tensors_in(output) if result.requires_grad]
    # Uneven weights: the results of a softmax sum up to 1, whatever they are.
    total = sum(
        (result * torch.linspace(0.5, 1.5, result.numel()).view_as(result)).sum() for result in results
    )
    sources = [leaf for leaf in leaves if leaf.requires_grad]
    if isinstance(program, nn.Module):
        sources += [
            dict(program.named_parameters())[name] for name in sorted(dict(program.named_parameters()))
        ]
    return _Run(inputs, output, torch.autograd.grad(cast("torch.Tensor", total), sources, allow_unused=True))


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        parts = (
            cast("dict[Any, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
        )
        for part in parts:
            yield from _tensors_in(part)


def _capture(engine: str, root: nn.Module, examples: Sequence[Any], manager: PluginManager | None) -> Any:
    if engine == "torch.fx":
        return torch.fx.symbolic_trace(root)
    if engine == "symbolic":
        return fxplug.trace(root, mode=engine, manager=manager)
    # What is captured is compared below, on more inputs.
    return fxplug.trace(root, examples, mode=engine, manager=manager, check=False)


def _verdict(captured: Callable[..., Any], expected: _Run, row: Row, engine: str) -> str:
    try:
        found = _run(captured, expected.inputs, with_gradients=expected.gradients is not None)
    except fxplug.GuardError as error:
        row.reasons[engine] = str(error)
        return "guard"
    except Exception as error:
        row.reasons[engine] = f"{type(error).__name__}: {error}"
        return f"fails {type(error).__name__}"
    if not _is_equal(found.output, expected.output):
        return "wrong"
    return "ok" if _is_equal(found.gradients, expected.gradients) else "wrong gradient"


def _is_equal(found: Any, expected: Any) -> bool:
    """Return whether two results are of the same structure and, up to rounding, of the same values."""
    if isinstance(expected, torch.Tensor):
        return (
            isinstance(found, torch.Tensor)
            and found.shape == expected.shape
            and found.dtype == expected.dtype
            and torch.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
        )
    if isinstance(expected, dict):
        given = cast("dict[Any, Any]", expected)
        return (
            isinstance(found, dict)
            and found.keys() == given.keys()
            and all(_is_equal(found[key], given[key]) for key in given)
        )
    if isinstance(expected, (list, tuple)):
        parts = cast("list[Any]", expected)
        return len(found) == len(parts) and all(
            _is_equal(one, other) for one, other in zip(found, parts, strict=True)
        )
    if dataclasses.is_dataclass(expected):
        return type(found) is type(expected) and _is_equal(vars(found), vars(expected))
    return bool(found == expected)


# -- the run


def main(arguments: Sequence[str] | None = None) -> None:
    """Try the models that are asked for, and print the tables."""
    parser = argparse.ArgumentParser(
        description="Capture many models by torch.fx and by fxplug, and compare them with eager."
    )
    parser.add_argument("--group", action="append", choices=list(GROUPS), help="only models from there")
    parser.add_argument("--only", default="*", metavar="GLOB", help="only models of these names")
    parser.add_argument("--why", action="store_true", help="print what the errors say")
    parser.add_argument(
        "--write", action="store_true", help="keep the tables in benchmarks/results and in docs"
    )
    parser.add_argument("--device", default="cpu", help="where the models and their inputs are, e.g. cuda")
    options = parser.parse_args(arguments)
    os.environ["FXPLUG_LOAD_PLUGINS"] = ""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    groups = options.group or list(GROUPS)
    if options.device.startswith("cuda"):
        # With TF32 a batch of another size may be off by more than what is compared with.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    rows, missing = _try_all(groups, options.only, options.device, why=options.why)
    is_whole = options.only == "*" and groups == list(GROUPS) and options.device == "cpu"
    parts = [_totals(rows), *missing]
    if is_whole:
        costs = [(row.group, row.cost) for row in rows if row.cost is not None]
        parts += ["## ResNet-50 down to functions", functional_table()]
        parts += ["## Cost", costs_table(), _COSTS, costs_by_library(costs)]
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in describe_surroundings().items())
    tables = "\n\n".join([facts, *parts, "## Model by model", _models(rows)])
    sys.stdout.write(f"\n{tables}\n")
    if options.write and is_whole and not missing:
        _write(tables)
    elif options.write:
        sys.stdout.write("\nNothing written: that takes a run of all models on the CPU.\n")


def _try_all(groups: Sequence[str], pattern: str, device: str, *, why: bool) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    missing: list[str] = []
    for group in groups:
        try:
            models = models_of(group)
        except MissingLibraryError as error:
            missing.append(f"Left out: {error}")
            continue
        for model in models:
            if not fnmatch.fnmatch(model.name, pattern):
                continue
            for row in _rows_of(group, model, device):
                rows.append(row)
                sys.stdout.write(_line(row, why=why))
                sys.stdout.flush()
    return rows, missing


def _rows_of(group: str, model: OwnModel, device: str) -> Iterator[Row]:
    yield try_model(group, model, device=device)
    if group == "own":
        # Through the modules of torch, too: what happens inside them is harder to capture than they are.
        row = try_model(group, model, level_of_functions(), _ENGINES[1:], device)
        row.name += ", down to functions"
        yield row
    gc.collect()


def _line(row: Row, *, why: bool) -> str:
    verdicts = ", ".join(f"{engine} {verdict}" for engine, verdict in row.verdicts.items())
    reasons = "".join(f"    {engine}: {reason}\n" for engine, reason in row.reasons.items()) if why else ""
    return f"{row.name}: {verdicts}\n{reasons}"


# -- the tables


def _totals(rows: Sequence[Row]) -> str:
    lines = [
        "| from | models | engine | ok | guard | refused | fails | wrong |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for group in dict.fromkeys(row.group for row in rows):
        for engine in _ENGINES:
            verdicts = [row.verdicts[engine] for row in rows if row.group == group and engine in row.verdicts]
            counts = Counter(verdict.partition(" ")[0] for verdict in verdicts)
            cells = [counts[kind] for kind in ("ok", "guard", "refused", "fails", "wrong")]
            lines.append(f"| {group} | {len(verdicts)} | {engine} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _models(rows: Sequence[Row]) -> str:
    lines = [f"| model | from | nodes | {' | '.join(_ENGINES)} |", f"|---|---|---:|{'---|' * len(_ENGINES)}"]
    for row in rows:
        verdicts = " | ".join(row.verdicts.get(engine, "") for engine in _ENGINES)
        lines.append(f"| {row.name} | {row.group} | {'' if row.nodes is None else row.nodes} | {verdicts} |")
    return "\n".join(lines)


def _write(tables: str) -> None:
    _RESULTS.write_text(f"# Models captured\n\n{tables}\n", encoding="utf-8")
    page = _PAGE.read_text(encoding="utf-8")
    begin, end = "<!-- written by benchmarks/capture_models.py: begin -->", "<!-- end -->"
    replaced = re.sub(
        f"{re.escape(begin)}.*{re.escape(end)}",
        lambda _: f"{begin}\n\n{tables}\n\n{end}",
        page,
        flags=re.DOTALL,
    )
    _PAGE.write_text(replaced, encoding="utf-8")
    sys.stdout.write(f"\nwrote {_RESULTS.name} and {_PAGE.name}\n")


if __name__ == "__main__":
    main()
