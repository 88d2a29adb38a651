"""``fxplug quant`` on the command line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import fxplug
from fxplug.cli.references import UserProgramError
from fxplug.errors import ConfigError
from fxplug_quant import Plan, QuantizationError
from fxplug_quant.command import quant

_PROGRAM = """
import torch

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
"""


def test_plan_shows_what_stays_float_and_prints_json_that_is_a_plan(tmp_path):
    (tmp_path / "tiny_model.py").write_text(_PROGRAM)
    given = ["plan", f"{tmp_path / 'tiny_model.py'}:build", "--example", "4x8", "--float", "2"]

    shown = CliRunner().invoke(quant, given, catch_exceptions=False)
    printed = CliRunner().invoke(quant, [*given, "--json"], catch_exceptions=False)

    assert shown.exit_code == printed.exit_code == 0
    assert shown.output.splitlines()[-1] == "in float: _2: Rule(path='2', mode='float')"
    assert Plan.from_json(printed.output).calls()["_0"].mode == "static-int8"


def test_a_group_size_is_taken_over_and_checked(tmp_path):
    (tmp_path / "tiny_model.py").write_text(_PROGRAM)
    given = ["plan", f"{tmp_path / 'tiny_model.py'}:build", "--example", "4x8", "--mode", "weight-int4"]

    shown = CliRunner().invoke(quant, [*given, "--group-size", "32"], catch_exceptions=False)
    refused = CliRunner().invoke(quant, [*given, "--group-size", "7"])

    expected = "in float: _0: 8 input features, which are no multiple of group_size = 32"
    assert shown.output.splitlines()[-2] == expected
    assert "group_size=7: torch's operator knows groups of 32, 64, 128, 256" in str(refused.exception)


_DATA = """
import torch

def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    with torch.no_grad():  # The second layer has to tell small values from one another beside a huge one.
        model[0].weight[3] *= 1000
        model[0].bias[3] *= 1000
        model[1].weight[:, 3] /= 1000
    return model

def loader():
    for seed in range(3):
        yield torch.randn(16, 8, generator=torch.Generator().manual_seed(seed)), "labels"

def spoilt():
    yield torch.full((16, 8), float("nan"))

def one():
    return 1

def in_float(module):
    return sum(type(part) is torch.nn.Linear for part in module.modules())

def broken(module):
    raise ValueError("no score")

number = 3
"""


def invoke(tmp_path, command, *options):
    (tmp_path / "data_model.py").write_text(_DATA)
    given = [command, f"{tmp_path / 'data_model.py'}:build", "--example", "4x8", *options]
    return CliRunner().invoke(quant, given, catch_exceptions=False)


def test_sensitivity_prints_a_table_or_json(tmp_path):
    data = f"{tmp_path / 'data_model.py'}:loader"

    shown = invoke(tmp_path, "sensitivity", "--data", data)
    ordered = invoke(tmp_path, "sensitivity", "--data", data, "--sort", "order", "--isolated", "--json")

    assert shown.output.splitlines()[0].startswith("node  operation  mode ")
    assert shown.output.splitlines()[1].startswith("_1 ")
    rows = json.loads(ordered.output)["layers"]
    assert [row["node"] for row in rows] == ["_0", "_1", "_2"]
    assert {row["cumulative"] for row in rows} == {None}


def test_autotune_prints_a_plan_that_run_follows(tmp_path):
    data = f"{tmp_path / 'data_model.py'}:loader"

    shown = invoke(tmp_path, "autotune", "--data", data, "--budget", "0.05")
    printed = invoke(tmp_path, "autotune", "--data", data, "--budget", "0.05", "--json")
    (tmp_path / "plan.json").write_text(printed.output)
    given = ("--data", data, "--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out.fxplug"))
    written = invoke(tmp_path, "run", *given)

    assert shown.output.splitlines()[-1].startswith(
        "in float: _1: quantized alone, it makes a relative error"
    )
    assert "2 calls quantized, 1 left in float." in written.output
    assert type(fxplug.load(tmp_path / "out.fxplug").get_submodule("1")).__name__ == "Linear"


def test_autotune_asks_a_metric(tmp_path):
    program = f"{tmp_path / 'data_model.py'}"

    given = ("--data", f"{program}:loader", "--budget", "2", "--metric", f"{program}:in_float")
    shown = invoke(tmp_path, "autotune", *given)

    assert shown.output.splitlines()[-1].startswith("in float: _1: ")
    assert shown.output.splitlines()[-1].endswith("; the metric may lose 2")


def test_run_calibrates_with_the_data(tmp_path):
    with pytest.raises(QuantizationError, match="batch 0 gives values that are not finite"):
        invoke(
            tmp_path,
            "run",
            "--data",
            f"{tmp_path / 'data_model.py'}:spoilt",
            "--out",
            str(tmp_path / "x.fxplug"),
        )


def test_data_and_metrics_that_are_none_are_refused(tmp_path):
    program = f"{tmp_path / 'data_model.py'}"

    with pytest.raises(ConfigError, match=r"as data: it gives a int\. Return a list of batches"):
        invoke(tmp_path, "sensitivity", "--data", f"{program}:one")
    with pytest.raises(ConfigError, match=r"as a metric: it is a int\. Name a function"):
        invoke(tmp_path, "autotune", "--budget", "1", "--metric", f"{program}:number")
    with pytest.raises(UserProgramError, match=r"data_model\.py:broken' raised ValueError: no score"):
        invoke(tmp_path, "autotune", "--budget", "1", "--metric", f"{program}:broken")
    negative = CliRunner().invoke(quant, ["autotune", "x.py:build", "--budget", "-1"])
    assert negative.exit_code == 2
