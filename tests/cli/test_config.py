"""``fxplug config`` and ``fxplug explain``."""

from __future__ import annotations

import json

import pytest

PARTS = (
    "import torch\nfrom torch import nn\n"
    "def scale(x):\n    return x * 3\n"
    "class Block(nn.Module):\n    def forward(self, x):\n        return x + 1\n"
    "class Net(nn.Module):\n"
    "    def __init__(self):\n        super().__init__()\n        self.block = Block()\n"
    "    def forward(self, x):\n"
    "        return scale(self.block(x)) if x.shape[0] > 1 else x\n"
    "def inputs():\n    return (torch.ones(2, 3),)\n"
    "def by_name():\n    return {'x': torch.ones(2, 3)}\n"
)


@pytest.fixture
def configured(folder, monkeypatch):
    """A configuration in the working directory, and a model that it speaks of."""
    monkeypatch.delenv("FXPLUG_CONFIG")
    (folder / "parts.py").write_text(PARTS)
    (folder / "fxplug.toml").write_text(
        '[trace]\nleaf_modules = ["parts.Block"]\nleaf_functions = ["parts:scale"]\n'
        '[pipelines.fast]\npasses = ["fuse-conv-bn", "dead-code"]\n'
    )
    return folder / "fxplug.toml"


def test_show_prints_every_value_with_its_source(fxplug, configured):
    lines = fxplug("config", "show").stdout.splitlines()
    found = {line.split()[0]: line.split()[1:] for line in lines if line}

    assert lines[0] == f"configuration: {configured}"
    assert found["trace.leaf_modules"] == ['["parts.Block"]', f"{configured}:2"]
    assert found["trace.mode"] == ["not", "set", "default"]
    assert found["plugins.strict"] == ["false", "default"]
    assert found["pipelines.fast.on_error"] == ['"raise"', "default"]
    assert found["FXPLUG_LOAD_PLUGINS"] == ["''"]
    assert found["FXPLUG_STRICT"] == ["not", "set"]


def test_show_says_the_same_to_programs(fxplug, configured, monkeypatch):
    monkeypatch.setenv("FXPLUG_STRICT", "1")
    data = json.loads(fxplug("config", "show", "--json").stdout)
    values = {value["key"]: value for value in data["values"]}

    assert data["file"] == str(configured)
    assert data["environment"]["FXPLUG_STRICT"] == "1"
    assert values["plugins.strict"] == {
        "key": "plugins.strict",
        "value": True,
        "source": "FXPLUG_STRICT",
        "note": "",
    }
    assert values["pipelines.fast.passes"]["value"] == ["fuse-conv-bn", "dead-code"]


def test_show_without_any_file(fxplug):
    assert fxplug("config", "show").stdout.startswith("configuration: none\n")


def test_check_says_what_was_checked(fxplug, configured):
    result = fxplug("config", "check")

    assert result.exit_code == 0
    assert f"  - keys and values of {configured}\n" in result.stdout
    assert "  - pipeline fast, its order and options: fuse-conv-bn, dead-code\n" in result.stdout
    assert result.stdout.endswith("Nothing is wrong.\n")


def test_check_lists_all_that_is_wrong_and_fails(fxplug, configured):
    configured.write_text(
        '[trace]\nmodes = 3\nleaf_functions = ["parts:scael"]\n[pipelines.fast]\npasses = ["ded-code"]\n'
    )
    result = fxplug("config", "check")
    data = json.loads(fxplug("config", "check", "--json").stdout)

    assert result.exit_code == 1
    assert result.stdout.splitlines()[:3] == [
        f"{configured}:2: error: there is no key 'modes' in [trace]. Did you mean 'mode'?",
        (
            f"{configured}:5: error: There is no pass named 'ded-code'. Did you mean 'dead-code'? The name stands at "
            f"{configured}:5."
        ),
        (
            f"{configured}:3: warning: 'trace.leaf_functions' holds 'parts:scael', which names nothing: parts has no "
            "'scael'. Did you mean 'scale'?"
        ),
    ]
    assert result.stdout.endswith("2 errors, 1 warning.\n")
    assert [(found["severity"], found["source"]["line"]) for found in data["findings"]] == [
        ("error", 2),
        ("error", 5),
        ("warning", 3),
    ]


def test_warnings_alone_do_not_fail(fxplug, configured):
    configured.write_text('[trace]\nleaf_functions = ["fxp_nowhere:x"]\n')

    result = fxplug("config", "check")
    assert result.exit_code == 0
    assert result.stdout.endswith("0 errors, 1 warning.\n")


def test_globs_of_modules_are_checked_against_a_model(fxplug, configured):
    configured.write_text(
        '[trace]\nleaf_modules = [\n"parts.Block",\n"block",\n"parts.Blok",\n]\nthrough_modules = ["x.*"]\n'
    )

    assert fxplug("config", "check").stdout.endswith("Nothing is wrong.\n")
    result = fxplug("config", "check", "--model", "parts.py:Net")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:2] == [
        (
            f"{configured}:7: warning: 'trace.through_modules' holds 'x.*', which matches no module of Net. Available: "
            "'block', 'parts.Block'."
        ),
        (
            f"{configured}:5: warning: 'trace.leaf_modules' holds 'parts.Blok', which matches no module of Net. Did "
            "you mean 'parts.Block'?"
        ),
    ]


def test_check_of_a_file_that_is_not_there(fxplug):
    result = fxplug("config", "check", "--config", "missing.toml")

    assert result.exit_code == 1
    assert "Cannot read the configuration missing.toml" in result.stdout


@pytest.mark.parametrize(("options", "top"), [((), {"plugins", "trace"}), (("--pyproject",), {"tool"})])
def test_the_schema_is_json(fxplug, options, top):
    schema = json.loads(fxplug("config", "schema", *options).stdout)

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert top <= set(schema["properties"])


# -- explain -----------------------------------------------------------------------------------------------------


def facts(result):
    assert result.exit_code == 0, result.stderr
    return [tuple(part.strip() for part in line.split("  ", 1)) for line in result.stdout.splitlines()]


def test_a_leaf_is_explained_with_the_line_of_its_glob(fxplug, configured):
    arguments = ("explain", "leaf", "parts.py:Net", "block")

    assert facts(fxplug(*arguments)) == [
        ("module", "block (parts.Block)"),
        ("leaf", "yes: it stays one node"),
        ("decided by", f"trace.leaf_modules = 'parts.Block' at {configured}:2"),
    ]
    assert json.loads(fxplug(*arguments, "--json").stdout)["decided_by"] == {
        "by": "configuration",
        "answer": True,
        "name": "trace.leaf_modules = 'parts.Block'",
        "provider": "",
        "source": f"{configured}:2",
    }


def test_a_pass_is_explained(fxplug, configured):
    found = facts(fxplug("explain", "pass", "dead-code", "--pipeline", "fast"))

    assert found[:2] == [
        ("pass", "dead-code"),
        ("what it does", "Removes nodes whose value nobody uses and that have no effect."),
    ]
    assert found[-2:] == [
        ("runs in", f"pipeline 'fast', 2 of 2; listed at {configured}:5"),
        ("", "after 'fuse-conv-bn': 'fuse-conv-bn' is listed earlier, and both are of phase 'optimize'"),
    ]
    data = json.loads(fxplug("explain", "pass", "dead-code", "--json").stdout)
    assert [place["pipeline"] for place in data["places"]] == ["fast", "inference"]


@pytest.mark.parametrize(
    "example",
    [("--example", "2x3"), ("--example-from", "parts.py:inputs"), ("--example-from", "parts.py:by_name")],
)
def test_a_node_is_explained(fxplug, configured, folder, example):
    found = facts(fxplug("explain", "node", "parts.py:Net", "scale", *example))

    assert ("args", "(block,)") in found
    assert ("inside", "the root (parts.Net)") in found
    assert ("kept as a call by", f"trace.leaf_functions = 'parts:scale' at {configured}:3") in found
    assert ("effect", "unknown, so anything is expected") in found
    data = json.loads(fxplug("explain", "node", "parts.py:Net", "block", *example, "--json").stdout)
    assert data["source"] == f"{folder / 'parts.py'}:13 in forward"
    assert data["leaf"]["decided_by"]["source"] == f"{configured}:2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("leaf", "parts.py:Net", "blok"), "There is no module named 'blok'. Did you mean 'block'?"),
        (("pass", "ded-code"), "There is no pass named 'ded-code'. Did you mean 'dead-code'?"),
        (
            ("node", "parts.py:Net", "scael", "--example", "2x3"),
            "no node named 'scael'. Did you mean 'scale'?",
        ),
        (("node", "parts.py:Net", "x", "--example", "2", "--example-from", "a.py:b"), "exclude each other"),
    ],
)
def test_names_that_mean_nothing_are_wrong_usage(fxplug, configured, arguments, message):
    result = fxplug("explain", *arguments)

    assert result.exit_code == 2
    assert message in result.stderr


def test_a_leaf_function_that_is_not_there_is_named_with_its_line(fxplug, configured):
    configured.write_text('[trace]\nleaf_functions = [\n  "parts:scael",\n]\n')

    result = fxplug("trace", "parts.py:Net", "--example", "2x3")

    assert result.exit_code == 2
    assert (
        f"that trace.leaf_functions at {configured}:3 names as 'parts:scael': parts has no" in result.stderr
    )


def test_options_of_the_default_pipeline_are_checked_before_the_model_is_loaded(fxplug, configured):
    configured.write_text('[pipelines.inference]\npasses = [\n  { name = "dead-code", level = 3 },\n]\n')

    result = fxplug("optimize", "nowhere.py:Net", "--example", "2x3")

    assert result.exit_code == 2
    assert f"options of pass 'dead-code' at {configured}:3: it takes no options" in result.stderr
