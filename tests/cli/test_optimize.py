"""``fxplug optimize`` when all is well."""

from __future__ import annotations

import ast
import copy
import json
import stat
from pathlib import Path

import pytest
import torch

import fxplug as fx
from fxplug.lower import Backend

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
INPUT = ("--example", "1x3x8x8")
FAST = (*INPUT, "--no-measure")


def test_a_person_reads_what_was_done_and_what_came_of_it(fxplug):
    result = fxplug("optimize", "models.py:net", *INPUT, "--runs", "2")

    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == [
        "models.py:net:",
        "Net,",
        "120",
        "parameters,",
        "with",
        "float32[1,",
        "3,",
        "8,",
        "8]",
    ]
    stages = [line[:4] for line in lines if line[:1] == ["ok"]]
    assert stages == [
        ["ok", "run", "eager", "float32[1,"],
        ["ok", "trace", "5", "nodes"],
        ["ok", "dead-code", "nothing", "to"],
        ["ok", "remove-identities", "no", "identity"],
        ["ok", "fuse-conv-bn", "folded", "1"],
        ["ok", "onednn-fuse", "1", "convolution"],
        ["ok", "propagate-shapes", "noted", "3"],
        ["ok", "check", "largest", "error"],
        ["ok", "measure", *stages[-1][2:]],
    ]
    summary = {line[0]: " ".join(line[1:]) for line in lines if line and line[0].endswith(":")}
    assert summary["passes:"] == "5 ran, 2 changed the model: fuse-conv-bn, onednn-fuse"
    assert summary["nodes:"] == "5 → 3 (-2)"
    assert "medians of 2 runs each" in summary["latency:"]
    assert summary["written:"] == "nothing; --out DIR writes the module and reports"
    assert "largest error: " in result.stdout
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_without_measuring_there_is_no_latency(fxplug):
    result = fxplug("optimize", "models.py:net", *FAST)

    assert "measure " not in result.stdout
    assert "not measured" in result.stdout


def test_quiet_prints_nothing(fxplug):
    result = fxplug("optimize", "models.py:Net", *FAST, "--quiet", "--training")

    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    "reference", ["models.py:net", "models.py:Net", "models.py:ready", "models:net", "./models.py:net"]
)
def test_a_model_is_a_function_a_class_or_a_module_in_a_file_or_a_package(fxplug, reference):
    assert fxplug("optimize", reference, *FAST).exit_code == 0


def test_a_model_in_training_mode_is_put_into_evaluation_mode_and_that_is_said(fxplug):
    evaluated = fxplug("optimize", "models.py:Net", *FAST)
    trained = fxplug("optimize", "models.py:Net", *FAST, "--training")

    assert "came in training mode and was put into evaluation mode" in evaluated.stdout
    assert "folded 1 batch norm" in evaluated.stdout
    assert "put into evaluation mode" not in trained.stdout
    assert "folded" not in trained.stdout
    assert "Warning: The model is in training mode" in trained.stderr


def test_files_beside_the_model_can_be_imported_by_it(fxplug, folder, monkeypatch):
    (folder / "zoo").mkdir()
    (folder / "zoo" / "fxp_test_parts.py").write_text("from torch import nn\nactivation = nn.ReLU()\n")
    (folder / "zoo" / "main.py").write_text("import fxp_test_parts\nmodel = fxp_test_parts.activation\n")

    assert fxplug("optimize", "zoo/main.py:model", *FAST).exit_code == 0


def test_a_file_named_like_a_library_is_loaded_all_the_same(fxplug, folder):
    (folder / "json.py").write_text("from torch import nn\nmodel = nn.ReLU()\n")

    assert fxplug("optimize", "json.py:model", *FAST).exit_code == 0


def test_examples_come_from_a_function(fxplug):
    result = fxplug("optimize", "models.py:net", "--example-from", "models.py:batch", "--no-measure")

    assert "with float32[1, 3, 8, 8]" in result.stdout


@pytest.mark.parametrize(
    "command",
    [
        *[("optimize", "--no-measure"), ("cost",), ("bisect",), ("plan", "--backend", "eager")],
        *[("trace",), ("decompose", "--counts"), ("export", "out")],
    ],
    ids=lambda command: command[0],
)
def test_a_function_gives_examples_by_name(fxplug, folder, command):
    (folder / "named.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n    def forward(self, x, scale=1.0, bias=None):\n        return x * scale + bias\n"
        "def inputs():\n    return {'bias': torch.ones(3), 'x': torch.ones(2, 3)}\n"
        "def wrong():\n    return {'bais': torch.ones(3)}\n"
    )
    name, *options = command
    own = [options.pop(0)] if options and not options[0].startswith("-") else []
    result = fxplug(name, "named.py:Net", *own, "--example-from", "named.py:inputs", *options)
    refused = fxplug(name, "named.py:Net", *own, "--example-from", "named.py:wrong", *options)

    assert result.exit_code == 0, result.stderr
    assert refused.exit_code != 0
    assert "unexpected keyword argument 'bais'" in " ".join(refused.stderr.split()) or "'x'" in refused.stderr


def test_integer_examples_are_valid_tokens(fxplug):
    result = fxplug("optimize", "models.py:Tokens", "--example", "2x5:int64", "--no-measure")

    assert result.exit_code == 0, result.stderr
    assert "with int64[2, 5]" in result.stdout


def test_named_passes_run_instead_of_the_pipeline(fxplug):
    result = fxplug("optimize", "models.py:net", *FAST, "--pass", "fuse-conv-bn")

    assert "passes:              1 ran, 1 changed the model: fuse-conv-bn" in result.stdout
    assert "dead-code" not in result.stdout


def test_a_pipeline_of_the_configuration_runs(fxplug, folder):
    (folder / "mine.toml").write_text('[pipelines.short]\npasses = ["dead-code"]\n')
    result = fxplug("optimize", "models.py:net", *FAST, "--config", "mine.toml", "--pipeline", "short")

    assert result.exit_code == 0, result.stderr
    assert "1 ran, 0 changed the model" in result.stdout


def test_passes_are_verified_at_the_level_that_is_asked_for(fxplug, folder):
    result = fxplug("optimize", "models.py:net", *FAST, "--verify", "gradient", "--out", "o")

    assert result.exit_code == 0, result.output
    passes = {
        entry["name"]: entry for entry in json.loads((folder / "o" / "report.json").read_text())["passes"]
    }
    assert passes["fuse-conv-bn"]["verified"].startswith("gradient: ")
    assert f"fuse-conv-bn: {passes['fuse-conv-bn']['verified'][:20]}" in result.stdout
    assert passes["dead-code"]["verified"] is None


def test_a_level_that_does_not_exist_is_refused(fxplug):
    result = fxplug("optimize", "models.py:net", *FAST, "--verify", "numbers")

    assert result.exit_code == 2
    assert "'numbers' is not one of 'structure', 'shape', 'numeric'" in result.stderr


def test_a_backend_takes_over(fxplug):
    result = fxplug("optimize", "models.py:net", *FAST, "--backend", "eager")

    assert "lower to eager" in result.stdout
    assert "eager: 2 of 2 calls supported, runs the module" in result.stdout


def test_it_is_said_for_which_sizes_a_backend_compiled(fxplug, folder, monkeypatch):
    monkeypatch.setattr("fxplug.lower.eager.EagerBackend.profile", Backend.profile)
    monkeypatch.setattr("fxplug.lower.eager.EagerBackend.compile", lambda self, part, *_: copy.copy(part))

    result = fxplug("optimize", "models.py:net", *FAST, "--backend", "eager", "--out", "out")

    said = "symbolically; no guard; lowered to 'eager' for the very sizes of the examples"
    assert said in " ".join(result.stdout.split())
    assert f"| captured | {said} |" in (folder / "out" / "report.md").read_text()
    report = json.loads((folder / "out" / "report.json").read_text())
    assert report["backend"]["restriction"] == said.partition("; no guard; ")[2]


def test_that_nothing_was_compared_is_said(fxplug, folder):
    result = fxplug("optimize", "models.py:net", "--example", "0x3x8x8", "--no-measure", "--out", "out")

    said = "nothing was compared: no value has elements and data"
    assert f"largest error: {said}" in " ".join(result.stdout.split())
    assert "nothing to compare" in result.stdout
    assert "Warning: Nothing was compared with eager PyTorch" in " ".join(result.stderr.split())
    assert f"| largest error | {said} |" in (folder / "out" / "report.md").read_text()
    report = json.loads((folder / "out" / "report.json").read_text())
    assert (report["check"]["elements"], report["check"]["values"][0]["elements"]) == (0, 0)


def test_what_a_backend_does_with_other_inputs_needs_a_backend(fxplug):
    assert (
        fxplug("optimize", "models.py:net", *FAST, "--backend", "eager", "--on-mismatch", "eager").exit_code
        == 0
    )
    refused = fxplug("optimize", "models.py:net", *FAST, "--on-mismatch", "eager")

    assert refused.exit_code == 2
    assert "--on-mismatch is about partitions of a backend: name one with --backend." in refused.stderr


# -- the output folder


def test_the_folder_holds_a_loadable_module_readable_python_and_reports(fxplug, folder):
    result = fxplug("optimize", "models.py:net", *INPUT, "--runs", "1", "--out", "out/net")
    out = folder / "out" / "net"

    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "module.fxplug",
        "module.py",
        "report.json",
        "report.md",
    ]
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["net"]
    loaded = fx.load(out / "module.fxplug")
    assert loaded(torch.ones(1, 3, 8, 8)).shape == (1, 4, 6, 6)
    assert not any(node.target == "norm" for node in loaded.graph.nodes)
    assert "to use it:           fxplug.load('out/net/module.fxplug')" in result.stdout


def test_the_readable_python_is_python_and_says_what_it_is(fxplug, folder):
    fxplug("optimize", "models.py:net", *FAST, "--out", "out")
    text = (folder / "out" / "module.py").read_text()

    assert text.startswith("# models.py:net as fxplug ")
    assert [type(part).__name__ for part in ast.parse(text).body] == ["Import", "ClassDef"]
    assert "self.conv(x)" in text


def test_the_reports_tell_the_same_to_programs_and_to_people(fxplug, folder):
    fxplug("optimize", "models.py:net", *INPUT, "--runs", "3", "--backend", "eager", "--out", "out")
    report = json.loads((folder / "out" / "report.json").read_text())
    text = (folder / "out" / "report.md").read_text()

    assert report["format"] == "fxplug-report"
    assert report["model"] == {
        "reference": "models.py:net",
        "class": "Net",
        "parameters": 120,
        "inputs": ["float32[1, 3, 8, 8]"],
    }
    assert report["nodes"] == {"traced": 5, "optimised": 4}
    assert [entry["name"] for entry in report["passes"]] == [
        "dead-code",
        "remove-identities",
        "fuse-conv-bn",
        "propagate-shapes",
    ]
    assert report["passes"][2]["details"] == {"folded": 1, "in_training": 0}
    assert report["check"]["passed"] is True
    assert report["check"]["values"][0]["path"] == "output"
    assert report["latency"]["runs"] == 3
    assert report["latency"]["ratio"] == pytest.approx(
        report["latency"]["eager_seconds"] / report["latency"]["optimised_seconds"]
    )
    assert report["backend"] == {
        "name": "eager",
        "runs_the_module": True,
        "fallback": None,
        "restriction": None,
        "coverage": 1.0,
        "unsupported": [],
        "left": [],
        "partitions": [
            {
                "name": "submod_0",
                "backend": "eager",
                "nodes": ["conv", "relu"],
                "compute_nodes": 2,
                "transfer_bytes": report["backend"]["partitions"][0]["transfer_bytes"],
                "fallback": None,
            }
        ],
    }
    for expected in (
        "# Net, optimised",
        "5 → 4 (-1)",
        "| fuse-conv-bn |",
        "medians of 3 runs",
        "## Backend eager",
    ):
        assert expected in text


def test_an_earlier_result_is_replaced(fxplug, folder):
    fxplug("optimize", "models.py:net", *FAST, "--out", "out")
    result = fxplug("optimize", "models.py:net", *FAST, "--pass", "dead-code", "--out", "out")

    assert result.exit_code == 0, result.stderr
    assert len(json.loads((folder / "out" / "report.json").read_text())["passes"]) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["models.py", "out"]


def test_an_empty_folder_is_filled(fxplug, folder):
    (folder / "out").mkdir()

    assert fxplug("optimize", "models.py:net", *FAST, "--out", "out").exit_code == 0
    assert (folder / "out" / "report.md").exists()


def test_the_folder_has_the_permissions_that_the_user_gives_to_folders(fxplug, folder):
    fxplug("optimize", "models.py:net", *FAST, "--out", "out")
    (folder / "other").mkdir()

    assert stat.S_IMODE((folder / "out").stat().st_mode) == stat.S_IMODE((folder / "other").stat().st_mode)


# -- the examples of the project


def test_the_batch_norms_of_resnet50_are_folded(fxplug, folder):
    result = fxplug(
        *("optimize", f"{EXAMPLES / 'resnet50.py'}:resnet50", "--example", "1x3x64x64"),
        *("--runs", "1", "--out", "out"),
    )

    assert result.exit_code == 0, result.stderr
    report = json.loads((folder / "out" / "report.json").read_text())
    assert report["nodes"] == {"traced": 177, "optimised": 59}
    assert report["passes"][2]["details"]["folded"] == 53
    assert report["check"]["max_abs_error"] < 1e-4
    with torch.no_grad():
        assert fx.load(folder / "out" / "module.fxplug")(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


# -- the mode of the capture


ASKING = """
import torch
from torch import nn

class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        assert x.shape[1] == 3, "pictures | have three channels"
        return {"y": self.norm(self.conv(x)).relu()}

ready = Asking().eval()
"""


@pytest.fixture
def asking(folder):
    (folder / "asking.py").write_text(ASKING)
    return "asking.py:Asking"


def test_a_model_that_asks_is_captured_on_the_inputs_and_the_guards_are_told(fxplug, folder, asking):
    result = fxplug("optimize", asking, *FAST, "--out", "out")

    assert result.exit_code == 0, result.stderr
    rows = {" ".join(line.split()) for line in result.stdout.splitlines()}
    assert "ok trace 5 nodes, value mode" in {" ".join(row.split()[:6]) for row in rows}
    assert "captured: in value mode, for inputs like the examples; 2 guards" in rows
    assert {"guard: x.shape[1] == 3", "guard: x.dim() == 4"} <= rows
    assert "Warning: Asking was captured on the example inputs" in " ".join(result.stderr.split())
    report = json.loads((folder / "out" / "report.json").read_text())
    assert report["capture"]["mode"] == "value"
    assert [guard["text"] for guard in report["capture"]["guards"]] == ["x.shape[1] == 3", "x.dim() == 4"]
    assert "asking.py:12" in report["capture"]["guards"][0]["line"]
    assert "assert x.shape[1] == 3" in report["capture"]["guards"][0]["source"]
    text = (folder / "out" / "report.md").read_text()
    assert "| captured | in value mode, for inputs like the examples; 2 guards |" in text
    assert "## Guards" in text
    assert "| x.dim() == 4 |" in text
    module = fx.load(folder / "out" / "module.fxplug")
    with pytest.raises(fx.GuardError, match=r"x\.shape\[1\] == 3"):
        module(torch.ones(1, 4, 8, 8))


def test_a_model_that_asks_nothing_is_captured_symbolically(fxplug, folder):
    result = fxplug("optimize", "models.py:net", *FAST, "--out", "out")

    assert "captured:            symbolically, for inputs of all sizes; no guard" in result.stdout
    report = json.loads((folder / "out" / "report.json").read_text())
    assert report["capture"] == {"mode": "symbolic", "guards": []}
    assert "## Guards" not in (folder / "out" / "report.md").read_text()


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_the_mode_is_chosen_by_option_or_configuration(fxplug, folder, mode):
    (folder / "mine.toml").write_text(f'[trace]\nmode = "{mode}"\n')
    for how in (("--mode", mode), ("--config", "mine.toml")):
        result = fxplug("optimize", "models.py:net", *FAST, *how)

        assert result.exit_code == 0, result.stderr
        assert f"captured:            in {mode} mode" in result.stdout
    prevails = fxplug("optimize", "models.py:net", *FAST, "--config", "mine.toml", "--mode", "symbolic")
    assert "captured:            symbolically" in prevails.stdout


def test_a_symbolic_capture_that_was_asked_for_is_an_error_where_it_is_refused(fxplug, asking):
    for command in (
        ("optimize", "--no-measure"),
        ("plan", "--backend", "eager"),
        ("bisect",),
        ("cost",),
        ("profile",),
    ):
        result = fxplug(command[0], asking, *INPUT, *command[1:], "--mode", "symbolic")

        assert result.exit_code == 1
        assert "[FXP-T001]" in result.stderr
    compared = fxplug("compare", asking, asking, *INPUT, "--mode", "symbolic")
    assert "[FXP-T001]" in compared.stderr


def test_commands_beside_it_capture_in_the_same_way(fxplug, asking):
    ready = asking.replace("Asking", "ready")
    for command in (("plan", asking, "--backend", "eager"), ("bisect", asking), ("compare", ready, ready)):
        for mode in ((), ("--mode", "value")):
            result = fxplug(*command, *INPUT, *mode)

            assert result.exit_code == 0, result.stderr


def test_a_mode_that_does_not_exist_is_refused(fxplug):
    result = fxplug("optimize", "models.py:net", *FAST, "--mode", "valeu")

    assert result.exit_code == 2
    assert "'valeu' is not one of 'symbolic', 'shape', 'value'" in result.stderr


def test_many_guards_are_cut_short_on_the_terminal(fxplug, folder):
    lines = "\n".join(f"        assert x.shape[2] != {number}" for number in range(20, 30))
    (folder / "curious.py").write_text(
        "from torch import nn\n\nclass Curious(nn.Module):\n    def forward(self, x):\n"
        f"{lines}\n        return x + 1\n"
    )
    result = fxplug("optimize", "curious.py:Curious", *FAST)

    assert result.stdout.count("guard:") == 6
    assert "more guards; --out DIR writes a list" in result.stdout
