"""``fxplug backends coverage``."""

from __future__ import annotations

import json

from click.testing import CliRunner

from fxplug.cli.app import main


def run(*arguments):
    return CliRunner().invoke(main, ["backends", "coverage", *arguments])


def test_the_table_says_what_a_backend_runs():
    result = run("eager", "--operator", "aten.mm")

    assert result.exit_code == 0, result.output
    assert "aten.mm.default" in result.output
    assert "eager: 1 of 1 operators are covered, " in result.output


def test_json_and_markdown_hold_the_same():
    data = json.loads(run("eager", "--operator", "aten.mm", "--json").output)
    text = run("eager", "--operator", "aten.mm", "--markdown").output

    assert data["covered"] == ["aten.mm.default"]
    assert "| `aten.mm.default` | " in text


def test_cases_are_left_out_by_their_note():
    result = run("eager", "--operator", "aten.relu", "--without", "not finite")

    assert "does not apply: cases are left out: not finite" in result.output


def test_an_operator_that_the_suite_does_not_have_is_an_error():
    result = run("eager", "--operator", "aten.nothing")

    assert result.exit_code != 0
    assert "Cannot run the operator suite for 'aten.nothing'" in result.output


def test_an_option_that_the_backend_does_not_have_is_an_error():
    result = run("eager", "--operator", "aten.mm", "--open-batch", "wide")

    assert result.exit_code != 0
    assert "the backend 'eager' has no such option" in result.output
