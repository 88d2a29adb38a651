"""``fxplug quant`` on the command line."""

from __future__ import annotations

from click.testing import CliRunner

from fxplug_quant import Plan
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
