"""``fxplug bisect`` and ``fxplug compare``."""

from __future__ import annotations

import json

import pytest
import torch

import fxplug as fx

INPUT = ("--example", "1x3x8x8")
EXACT = (*INPUT, "--rtol", "0", "--atol", "0")
MORE = """
from models import Net
import torch

def seeded():
    torch.manual_seed(0)
    return Net()

def other():
    model = seeded()
    model.norm.weight.data.mul_(1.5)
    return model

def broken():
    model = seeded()
    model.norm = torch.nn.BatchNorm2d(7)
    return model

class Two(torch.nn.Module):
    def forward(self, x, y):
        return x + y
"""


@pytest.fixture
def more(folder):
    (folder / "more.py").write_text(MORE)
    return folder


def facts(result):
    lines = [
        line.split(maxsplit=1) for line in result.stdout.splitlines() if line and not line.startswith(" ")
    ]
    return {line[0]: line[1] if len(line) > 1 else "" for line in lines}


# -- bisect


def test_where_nothing_is_wrong_the_exit_code_is_0(fxplug):
    result = fxplug("bisect", "models.py:net", *INPUT, "--out", "failure")

    assert (result.exit_code, facts(result)) == (0, {"result": "nothing is wrong", "runs": "1"})
    assert result.stderr == "run 1: dead-code to propagate-shapes, 5 passes\n"


def test_what_is_wrong_is_said_and_the_exit_code_is_1(fxplug, more):
    result = fxplug("bisect", "more.py:seeded", *EXACT, "--quiet")

    found = facts(result)
    assert result.exit_code == 1, result.output
    assert result.stderr == ""
    assert found["result"].startswith("differs: output (float32[1, 4, 6, 6]): ")
    assert found["pass"] == f"fuse-conv-bn of fxplug {fx.__version__}, 3 of 5"
    assert found["rewrite"] == "fold norm, 1 of 1"
    assert found["node"] == "conv, a call_module of conv"
    assert f"from {more / 'models.py'}:" in result.stdout


def test_the_folder_is_written_and_can_be_replaced(fxplug, more):
    for _ in range(2):
        result = fxplug("bisect", "more.py:seeded", *EXACT, "--pass", "fuse-conv-bn", "--out", "failure")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "written  failure; python failure/reproduce.py shows it again"
    assert sorted(path.name for path in (more / "failure").iterdir()) == [
        "README.md", "after.fxplug", "after.py", "before.fxplug", "before.py", "config.json", "expected.fxplug",
        "inputs.fxplug", "report.json", "reproduce.py",
    ]  # fmt: skip


def test_programs_read_json(fxplug, more):
    result = fxplug("bisect", "more.py:seeded", *EXACT, "--json", "--quiet", "--out", "failure")

    data = json.loads(result.stdout)
    assert (result.exit_code, data["format"], data["found"]) == (1, "fxplug-bisect", True)
    assert (data["culprit"]["name"], data["rewrite"]["node"], data["node"]["name"]) == (
        "fuse-conv-bn",
        "norm",
        "conv",
    )
    assert "failure" not in data


def test_a_file_can_be_bisected(fxplug, more):
    torch.manual_seed(0)
    assert (
        fxplug(
            "optimize", "more.py:seeded", *INPUT, "--no-measure", "--pass", "dead-code", "--out", "x"
        ).exit_code
        == 0
    )

    result = fxplug("bisect", "x/module.fxplug", *EXACT, "--quiet")

    assert facts(result)["rewrite"] == "fold norm, 1 of 1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "so they need inputs: --example"),
        (
            (*INPUT, "--pipeline", "inference", "--pass", "dead-code"),
            "--pipeline and --pass exclude each other",
        ),
        ((*INPUT, "--pass", "dead-cod"), "Did you mean 'dead-code'?"),
        ((*INPUT, "--pipeline", "inferense"), "There is no pipeline named 'inferense'"),
        ((*INPUT, "--slower-than", "0"), "--slower-than"),
        ((*INPUT, "--example-from", "models.py:batch"), "exclude each other"),
    ],
)
def test_wrong_usage_has_exit_code_2(fxplug, arguments, message):
    result = fxplug("bisect", "models.py:net", *arguments)

    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_a_model_that_fails_by_itself_is_an_error(fxplug):
    result = fxplug("bisect", "models.py:net", "--example", "1x4x8x8", "--quiet")

    assert result.exit_code == 1
    assert "Cannot run Net on the example inputs" in result.stderr


def test_a_folder_of_somebody_else_is_refused_before_anything_runs(fxplug, folder):
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")

    result = fxplug("bisect", "models.py:net", *EXACT, "--out", "mine")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "holds what fxplug did not write there (notes.txt)" in result.stderr


# -- compare


def test_equal_models_agree(fxplug, more):
    result = fxplug("compare", "more.py:seeded", "more.py:seeded", *INPUT)

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "layers            4 compared, 0 differ",
        "only in reference none",
        "only in model     none",
        "first difference  none",
        "outputs           agree",
    ]


def test_the_first_layer_that_differs_is_named(fxplug, more):
    result = fxplug("compare", "more.py:seeded", "more.py:other", *INPUT)

    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert lines[0].split() == [
        "node",
        "in",
        "the",
        "reference",
        "target",
        "max",
        "error",
        "relative",
        "SQNR",
        "dB",
        "cosine",
    ]
    assert [line.split()[0] for line in lines[1:4]] == ["norm", "relu", "output"]
    assert "first difference  norm" in lines
    assert "outputs           do not agree" in lines
    assert any(line.startswith(" " * 18 + f"from {more / 'models.py'}:") for line in lines)


def test_a_model_is_compared_with_the_file_of_what_became_of_it(fxplug, more):
    fxplug("optimize", "more.py:seeded", *INPUT, "--no-measure", "--out", "x")

    result = fxplug("compare", "more.py:seeded", "x/module.fxplug", *INPUT, "--all")

    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:3]] == [
        ["conv", "relu"],
        ["output", "output"],
    ]
    assert "only in reference conv" in result.stdout


def test_comparisons_are_json_too(fxplug, more):
    result = fxplug("compare", "more.py:seeded", "more.py:other", *INPUT, "--json")

    data = json.loads(result.stdout, parse_constant=pytest.fail)
    assert (data["passed"], data["first_difference"], result.exit_code) == (False, "norm", 1)
    assert data["layers"][0]["sqnr"] is None  # The convolutions are equal.
    assert data["layers"][1]["sqnr"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("more.py:seeded",), 2, "Missing argument 'MODEL'"),
        (("more.py:seeded", "more.py:other"), 2, "so they need inputs"),
        (("more.py:seeded", "more.py:nothing", *INPUT), 2, "more.py has no 'nothing'"),
        (("more.py:seeded", "nothing.fxplug", *INPUT), 1, "there is no such file"),
        (("more.py:seeded", "more.py:broken", *INPUT), 1, "Cannot run Net on the example inputs"),
        (("more.py:seeded", "more.py:Two", *INPUT), 1, "Cannot run Two on the example inputs"),
    ],
)
def test_bad_input_of_a_comparison_is_named(fxplug, more, arguments, code, message):
    result = fxplug("compare", *arguments)

    assert result.exit_code == code, result.output
    assert message in result.stderr


def test_the_history_of_a_node_is_explained(fxplug):
    arguments = ("explain", "node", "models.py:net", "conv", *INPUT)

    assert "made by" not in fxplug(*arguments).stdout
    assert "made by       fuse-conv-bn of fxplug" in fxplug(*arguments, "--pipeline", "inference").stdout
