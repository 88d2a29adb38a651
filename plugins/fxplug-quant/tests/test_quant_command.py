"""``fxplug quant`` on the command line."""

from __future__ import annotations

import json
from contextlib import contextmanager

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


_FAILS = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.layer(x)

def build():
    return Model()

def wide():
    return [torch.randn(4, 17)]

def breaks():
    yield torch.randn(4, 16)
    raise OSError("the disk is gone")

class Unreadable:
    def __iter__(self):
        raise OSError("no disk")

    def __len__(self):
        return 2
"""


def fails(tmp_path, command, *options, example="4x16"):
    (tmp_path / "failing_model.py").write_text(_FAILS)
    given = [command, f"{tmp_path / 'failing_model.py'}:build", "--example", example, *options]
    return CliRunner().invoke(quant, given)


@pytest.mark.parametrize(
    ("example", "found"), [("4x16:int64", "must have the same dtype"), ("4x17", "4x17 and 16x4")]
)
def test_inputs_that_the_model_cannot_take_are_told_with_node_and_line(tmp_path, example, found):
    error = fails(tmp_path, "plan", example=example).exception

    assert isinstance(error, UserProgramError)
    assert "Cannot run the model" in str(error)
    assert found in str(error)
    assert "While running node %layer" in str(error)
    assert "return self.layer(x)" in str(error)


@pytest.mark.parametrize("command", ["run", "sensitivity", "autotune"])
def test_data_that_the_model_cannot_take_or_that_raises_is_told(tmp_path, command):
    options = {"run": ["--out", str(tmp_path / "x.fxplug")], "autotune": ["--budget", "0.1"]}.get(command, [])
    program = tmp_path / "failing_model.py"

    wide = fails(tmp_path, command, *options, "--data", f"{program}:wide").exception
    assert isinstance(wide, UserProgramError)
    assert "4x17 and 16x4" in str(wide)
    assert "While running node %layer" in str(wide)
    for loader, found in (("breaks", "OSError: the disk is gone"), ("Unreadable", "OSError: no disk")):
        error = fails(tmp_path, command, *options, "--data", f"{program}:{loader}").exception
        assert isinstance(error, UserProgramError)
        assert f":{loader}' raised {found}, at " in str(error)


def test_the_number_of_batches_is_known_where_the_data_has_one(tmp_path, monkeypatch):
    counts = []

    @contextmanager
    def counting(_):
        yield lambda done, total: counts.append((done, total))

    monkeypatch.setattr("fxplug_quant.command.progress_bar", counting)
    (tmp_path / "sized.py").write_text("import torch\ndef data():\n    return [torch.randn(4, 16)] * 2\n")

    result = fails(
        tmp_path, "run", "--data", f"{tmp_path / 'sized.py'}:data", "--out", str(tmp_path / "x.fxplug")
    )

    assert result.exit_code == 0
    assert counts == [(1, 2), (2, 2)]


def test_a_plan_that_is_no_utf8_is_refused_and_one_with_a_byte_order_mark_is_read(tmp_path):
    printed = fails(tmp_path, "plan", "--json").output
    file = tmp_path / "plan.json"
    options = ("--plan", str(file), "--out", str(tmp_path / "x.fxplug"))

    file.write_bytes(printed.encode("utf-16"))
    refused = fails(tmp_path, "run", *options).exception
    file.write_bytes(printed.encode("utf-8-sig"))
    read = fails(tmp_path, "run", *options)

    assert isinstance(refused, ConfigError)
    assert f"Cannot read the plan {str(file)!r}: 'utf-8' codec can't decode" in str(refused)
    assert read.exit_code == 0
