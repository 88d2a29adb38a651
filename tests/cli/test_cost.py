"""``fxplug cost`` and ``fxplug profile``."""

from __future__ import annotations

import csv
import json

import pytest
import torch

INPUT = ("--example", "2x3x8x8")
MORE = """
import torch
from torch import nn

class Huge(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10**6, 10**6)
        self.head = nn.Linear(10**6, 10**6, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        return self.head(self.words(words))

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        return self.head(self.words(words))

tied = Tied().eval()

class Outer(nn.Module):
    def forward(self, x):
        return torch.outer(x, x)
"""


@pytest.fixture
def more(folder):
    (folder / "more.py").write_text(MORE)
    return folder


def facts(result):
    lines = [line.split("  ", 1) for line in result.stdout.splitlines() if line]
    return {line[0]: line[-1].strip() for line in lines}


def read_table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


# -- cost


def test_a_table_the_sums_and_where_the_peak_is(fxplug):
    result = fxplug("cost", "models.py:net", *INPUT)

    assert result.exit_code == 0
    header, first, *_ = result.stdout.splitlines()
    assert header.split() == [
        "name",
        "kind",
        "calls",
        "multiply-adds",
        "%",
        "moved",
        "parameters",
        "result",
        "peak",
        "line",
    ]
    convolution = 2 * 4 * 6 * 6 * 27
    assert first.split() == ["conv", "Conv2d", "1", f"{convolution:,}", "96.4%", *first.split()[5:]]
    assert first.split()[-1].startswith("models.py:")
    found = facts(result)
    assert found["calls"] == "3"
    assert found["multiply-adds"] == f"{convolution + 2 * 4 * 36:,}"
    assert found["parameters"] == "480 B (480 bytes)"
    assert found["buffers"] == "40 B"
    assert found["inputs"] == "1.5 kB"
    assert "at the most, at " in found["activations"]
    assert "models.py:" in found["activations"]
    assert found["unknown calls"] == "none"


def test_calls_that_no_formula_knows_are_listed(fxplug, more):
    result = fxplug("cost", "more.py:Outer", "--example", "4")

    assert facts(result)["unknown calls"] == "outer (outer)"
    assert "unknown" in result.stdout.splitlines()[1]


def test_rows_by_module_sorted_and_cut(fxplug):
    result = fxplug(
        "cost", "models.py:net", *INPUT, "--by", "module", "--sort", "parameter_bytes", "--top", "2"
    )

    lines = result.stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:3]] == [["(root)", "Net", "3"], ["conv", "Conv2d", "1"]]
    assert lines[3] == "1 more; --top 0 shows all."


def test_csv_and_json_hold_all_rows(fxplug, folder):
    result = fxplug("cost", "models.py:net", *INPUT, "--top", "1", "--csv", "costs.csv", "--json")

    found = json.loads(result.stdout)
    assert (found["format"], found["version"], found["by"]) == ("fxplug-cost", 1, "node")
    assert found["parameter_bytes"] == 480
    assert found["peak_bytes"] == 480 + 40 + 1536 + found["peak_activation_bytes"]
    assert found["peak_node"] in {"conv", "norm", "relu"}
    assert found["estimate"] is None
    rows = read_table(folder / "costs.csv")
    assert [row["name"] for row in rows] == [row["name"] for row in found["rows"]] == ["conv", "norm", "relu"]
    assert [int(row["multiply_adds"]) for row in rows] == [row["multiply_adds"] for row in found["rows"]]


def test_a_model_that_no_memory_holds(fxplug, more):
    result = fxplug("cost", "more.py:Huge", "--example", "1x4:int64", "--device", "meta")

    assert result.exit_code == 0
    assert facts(result)["parameters"] == "4000.0 GB (4,000,000,000,000 bytes)"
    assert facts(result)["multiply-adds"] == f"{4 * 10**12:,}"


def test_what_is_shared_stays_shared_on_the_meta_device(fxplug, more):
    result = fxplug("cost", "more.py:tied", "--example", "1x4:int64", "--device", "meta")

    assert facts(result)["parameters"] == "128 B (128 bytes)"


def test_an_estimate_for_a_device(fxplug):
    result = fxplug("cost", "models.py:net", *INPUT, "--device-name", "nvidia-h200-sxm")

    assert "on nvidia-h200-sxm: at least 0.0" in result.stdout
    assert result.stdout.splitlines()[-1].strip() == "fits into its 141.0 GB"


def test_a_file_is_costed(fxplug, folder):
    import fxplug as fx

    torch.manual_seed(0)
    fx.save(fx.symbolic_trace(torch.nn.Linear(3, 4)), folder / "linear.fxplug")

    assert facts(fxplug("cost", "linear.fxplug", "--example", "2x3"))["multiply-adds"] == "24"
    assert (
        facts(fxplug("cost", "linear.fxplug", "--example", "2x3", "--device", "meta"))["multiply-adds"]
        == "24"
    )


@pytest.mark.parametrize("command", ["cost", "profile"])
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "need inputs"),
        (("--example", "2x4x8x8"), 1, "Cannot run Net on the example inputs (float32[2, 4, 8, 8])"),
        ((*INPUT, "--by", "layer"), 2, "'layer' is not one of 'node', 'module', 'class', 'kind'"),
        ((*INPUT, "--sort", "size"), 2, "'size' is not one of"),
        ((*INPUT, "--top", "-1"), 2, "--top"),
        (
            (*INPUT, "--csv", "missing/costs.csv"),
            1,
            "Cannot write 'missing/costs.csv': No such file or directory.",
        ),
        ((*INPUT, "--csv", "."), 1, "Cannot write '.': Is a directory."),
        ((*INPUT, "--device", "abacus"), 2, "Cannot use the device 'abacus'"),
    ],
)
def test_bad_input(fxplug, command, arguments, code, text):
    result = fxplug(command, "models.py:net", *arguments)

    assert result.exit_code == code
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_for_the_table_is_not_touched_before_the_work_is_done(fxplug, folder):
    (folder / "costs.csv").write_text("precious")

    assert fxplug("cost", "models.py:net", "--example", "2x4x8x8", "--csv", "costs.csv").exit_code == 1
    assert (folder / "costs.csv").read_text() == "precious"
    assert fxplug("cost", "models.py:net", "--example", "2x4x8x8", "--csv", "new.csv").exit_code == 1
    assert not (folder / "new.csv").exists()


def test_a_device_that_nobody_describes(fxplug):
    result = fxplug("cost", "models.py:net", *INPUT, "--device-name", "nvidia-h200")

    assert result.exit_code == 2
    assert "Did you mean 'nvidia-h200-sxm'" in result.stderr


# -- profile


def test_a_profile_says_what_it_is_worth(fxplug):
    result = fxplug("profile", "models.py:net", *INPUT, "--runs", "3", "--warm-up", "1", "--threads", "1")

    assert result.exit_code == 0
    header, *rows = result.stdout.split("\n\n")[0].splitlines()
    assert header.split() == ["name", "kind", "calls", "time", "±", "%", "result", "peak", "line"]
    assert {row.split()[0] for row in rows} == {"conv", "norm", "relu"}
    found = dict(line.split(" ", 1) for line in result.stdout.split("\n\n")[1].splitlines())
    assert "with nothing measured inside" in found["whole"]
    assert found["sum"].endswith("of 3 calls")
    assert found["measuring"].endswith("% of the whole")
    assert found["measured"].strip() == "medians of 3 runs behind 1, on cpu, 1 thread"


def test_threads_are_what_they_were(fxplug):
    before = torch.get_num_threads()
    fxplug("profile", "models.py:net", *INPUT, "--runs", "1", "--threads", str(before + 1))
    assert torch.get_num_threads() == before


def test_a_profile_for_programs(fxplug, folder):
    result = fxplug(
        "profile",
        "models.py:net",
        *INPUT,
        "--runs",
        "2",
        "--by",
        "kind",
        "--sort",
        "calls",
        "--csv",
        "t.csv",
        "--json",
    )

    found = json.loads(result.stdout)
    assert (found["format"], found["version"], found["runs"], found["device"]) == (
        "fxplug-profile",
        1,
        2,
        "cpu",
    )
    assert found["whole_seconds"] > 0
    assert {row["name"] for row in found["rows"]} == {"Conv2d", "BatchNorm2d", "relu"}
    rows = read_table(folder / "t.csv")
    assert [float(row["seconds"]) for row in rows] == [row["seconds"] for row in found["rows"]]


def test_no_runs(fxplug):
    result = fxplug("profile", "models.py:net", *INPUT, "--runs", "0")

    assert result.exit_code == 2
    assert "Cannot profile with runs=0: give a whole number from 1 on. [FXP-F000]" in result.stderr


def test_the_meta_device_computes_nothing(fxplug):
    result = fxplug("profile", "models.py:net", *INPUT, "--device", "meta")

    assert result.exit_code == 2
    assert "Cannot profile a program on the meta device" in result.stderr


def test_names_of_modules_are_no_formulas_and_obeyed_by_no_terminal(fxplug, folder):
    (folder / "named.py").write_text(
        "from torch import nn\n"
        "named = nn.Sequential()\n"
        "named.add_module('=1+2', nn.Linear(3, 3))\n"
        "named.add_module('a\\x1b[2J\\nb', nn.ReLU())\n"
    )
    result = fxplug(
        "cost",
        "named.py:named",
        "--example",
        "2x3",
        "--by",
        "module",
        "--sort",
        "program",
        "--csv",
        "costs.csv",
    )

    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()[1:4]] == ["(root)", "=1+2", r"a\x1b[2J\nb"]
    with (folder / "costs.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["", "'=1+2", "a\x1b[2J\nb"]


@pytest.mark.parametrize(("options", "training"), [((), False), (("--training",), True)])
def test_the_mode_of_the_model_is_said(fxplug, options, training):
    run = ("cost", "models.py:Net", "--example", "2x3x8x8", *options)
    assert f"in {'training' if training else 'evaluation'} mode" in fxplug(*run).stdout
    assert json.loads(fxplug(*run, "--json").stdout)["training"] is training
