"""``fxplug trace``."""

from __future__ import annotations

import json

import pytest


def test_code_is_printed_by_default(fxplug):
    result = fxplug("trace", "models.py:net")

    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("def forward(self, x):\n    conv = self.conv(x)")
    assert fxplug("trace", "models.py:net", "--code").stdout == result.stdout


@pytest.mark.parametrize("name", ["net.v1.5.py", "re.py", "net-1.py", ".hidden.py"])
def test_a_file_may_have_any_name(fxplug, folder, name):
    (folder / name).write_text((folder / "models.py").read_text())
    # What the file would be called without its dots is another module.
    (folder / "net_v1_5.py").write_text("raise AssertionError('imported')\n")

    result = fxplug("trace", f"{name}:net")

    assert result.exit_code == 0, result.stderr
    assert result.stdout == fxplug("trace", "models.py:net").stdout


def test_a_table_has_one_line_for_each_node(fxplug):
    lines = fxplug("trace", "models.py:net", "--tabular").stdout.splitlines()

    assert lines[0].split() == ["opcode", "name", "target", "args", "kwargs"]
    assert [line.split()[1] for line in lines[2:]] == ["x", "conv", "norm", "relu", "output"]


def test_the_graph_is_printed_as_text(fxplug):
    lines = fxplug("trace", "models.py:net", "--graph").stdout.splitlines()

    assert lines[0] == "graph():"
    assert "%conv : [num_users=1] = call_module[target=conv](args = (%x,), kwargs = {})" in lines[2]


def test_json_holds_every_node_with_its_arguments_users_and_line(fxplug, folder):
    (folder / "shapes.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.cat([x, x[1:, None]], dim=-1).to(torch.float16)\n"
    )
    data = json.loads(fxplug("trace", "shapes.py:Net", "--json").stdout)

    assert (data["format"], data["class"]) == ("fxplug-graph", "Net")
    nodes = {node["name"]: node for node in data["nodes"]}
    assert nodes["x"]["opcode"] == "placeholder"
    assert nodes["x"]["users"] == ["getitem", "cat"]
    assert nodes["cat"]["target"] == "torch.cat"
    assert nodes["cat"]["args"] == [[{"node": "x"}, {"node": "getitem"}]]
    assert nodes["cat"]["kwargs"] == {"dim": -1}
    assert nodes["cat"]["source"].endswith("shapes.py:5")
    assert nodes["to"]["args"] == [{"node": "cat"}, {"text": "torch.float16"}]
    assert nodes["getitem"]["args"][1] == [{"text": "slice(1, None, None)"}, None]


@pytest.mark.parametrize("form", ["--code", "--tabular", "--json", "--graph"])
def test_a_model_that_cannot_be_captured(fxplug, form):
    result = fxplug("trace", "models.py:Branch", form)

    assert result.exit_code == 1
    assert result.stdout == ""
    assert "models.py:16 in forward ('if x.sum() > 0:')" in result.stderr


def test_a_model_that_does_not_resolve(fxplug):
    result = fxplug("trace", "models.py:nett")

    assert result.exit_code == 2
    assert "Did you mean 'net'?" in result.stderr


def test_the_configuration_says_what_a_leaf_is(fxplug, folder):
    (folder / "mine.toml").write_text('[trace]\nleaf_modules = ["models.Opaque"]\n')
    result = fxplug("trace", "models.py:Holder", "--config", "mine.toml")

    assert "self.part(x)" in result.stdout


def test_what_the_trace_warns_of_is_one_line_on_standard_error(fxplug, folder):
    (folder / "marks.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n"
        "        self.last = x\n"
        "        return x + 1\n"
    )
    result = fxplug("trace", "marks.py:Net", "--training")

    assert result.exit_code == 0
    assert result.stdout.startswith("def forward")
    assert result.stderr.startswith("Warning: While tracing, forward assigned the attribute 'last'.")
    assert len(result.stderr.splitlines()) == 1


BRANCHING = (
    "import torch\nfrom torch import nn\n"
    "class Net(nn.Module):\n"
    "    def forward(self, x):\n"
    "        return x * 2 if x.shape[0] > 1 else x\n"
    "def inputs():\n"
    "    return (torch.ones(3, 4),)\n"
)


@pytest.mark.parametrize("example", [["--example", "2x4"], ["--example-from", "branching.py:inputs"]])
def test_a_model_that_asks_is_captured_with_an_example(fxplug, folder, example):
    (folder / "branching.py").write_text(BRANCHING)

    assert "[FXP-T001]" in fxplug("trace", "branching.py:Net").stderr
    result = fxplug("trace", "branching.py:Net", *example)

    assert result.exit_code == 0, result.stderr
    assert "mul = x * 2" in result.stdout


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_guards_are_printed(fxplug, folder, mode):
    (folder / "branching.py").write_text(BRANCHING)

    lines = fxplug(
        "trace", "branching.py:Net", "--example", "2x4", "--mode", mode, "--guards"
    ).stdout.splitlines()

    assert lines[0].startswith("x.shape[0] > 1 (asked at ")
    assert lines[1].startswith("x.dim() == 2")


def test_json_holds_what_was_assumed(fxplug, folder):
    (folder / "branching.py").write_text(BRANCHING)

    data = json.loads(fxplug("trace", "branching.py:Net", "--example", "2x4", "--json").stdout)

    assert data["assumptions"][0].startswith("x.shape[0] > 1")


def test_where_nothing_was_assumed_it_is_said(fxplug):
    assert fxplug("trace", "models.py:net", "--guards").stdout == "Nothing was assumed.\n"


def test_a_mode_that_needs_an_example_is_refused_without(fxplug):
    result = fxplug("trace", "models.py:net", "--mode", "value")

    assert result.exit_code != 0
    assert "without example inputs" in result.stderr


def test_two_sources_of_examples_are_refused(fxplug):
    result = fxplug("trace", "models.py:net", "--example", "2x4", "--example-from", "models.py:inputs")

    assert result.exit_code == 2
    assert "exclude each other" in result.stderr


MODE_CHANGED = "The model came in training mode and was put into evaluation mode (--training leaves it).\n"


@pytest.mark.parametrize("command", ["trace", "decompose", "export"])
def test_a_model_is_put_into_evaluation_mode_unless_it_may_stay_in_training(fxplug, folder, command):
    (folder / "noisy.py").write_text(
        "from torch import nn\n"
        "from torch.nn import functional as F\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return F.dropout(x, 0.5, self.training) + 1\n"
    )

    def run(*options):
        if command != "export":
            return fxplug(command, "noisy.py:Net", "--example", "3", *options)
        result = fxplug(command, "noisy.py:Net", f"out{len(options)}", "--example", "3", *options)
        assert result.exit_code == 0, result.stderr
        result.text = (folder / f"out{len(options)}" / "model.py").read_text()
        return result

    evaluated, trained = run(), run("--training")
    texts = [getattr(result, "text", result.stdout) for result in (evaluated, trained)]
    assert (evaluated.stderr, trained.stderr) == (MODE_CHANGED, "")
    assert texts[0] != texts[1]


def test_json_says_the_mode(fxplug):
    modes = [
        json.loads(fxplug("trace", "models.py:Net", "--json", *options).stdout)["training"]
        for options in ((), ("--training",))
    ]
    assert modes == [False, True]
