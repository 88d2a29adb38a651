"""``fxplug pipelines show``, and what ``fxplug optimize`` changes in a pipeline and says of it."""

from __future__ import annotations

import json

import pytest

from fxplug.plugins import PluginManager

FAST = ("--example", "1x3x8x8", "--no-measure")
CONFIG = """
[pipelines.mine]
passes = ["dead-code", { name = "fuse-conv-bn", time_limit = 30 }]
on_error = "rollback"
hard_time_limit = 60
"""


def test_a_pipeline_is_shown_with_its_fingerprint(fxplug):
    expected = PluginManager(candidates=[], environ={}).resolve_pipeline("inference").fingerprint()

    text = fxplug("pipelines", "show", "inference").stdout

    assert f"fingerprint:      {expected}" in text
    assert "on_error:         raise" in text
    assert "time_limit:       none" in text
    assert [
        name
        for name in ("dead-code", "remove-identities", "fuse-conv-bn", "onednn-fuse", "propagate-shapes")
        if name not in text
    ] == []


def test_limits_of_the_configuration_are_shown(fxplug, folder):
    (folder / "fxplug.toml").write_text(CONFIG)

    text = fxplug("pipelines", "show", "mine", "--config", "fxplug.toml").stdout
    data = json.loads(fxplug("pipelines", "show", "mine", "--json", "--config", "fxplug.toml").stdout)

    assert "time_limit=30" in text
    assert (data["on_error"], data["time_limit"], data["hard_time_limit"]) == ("rollback", None, 60)
    assert [(entry["name"], entry["time_limit"]) for entry in data["passes"]] == [
        ("dead-code", None),
        ("fuse-conv-bn", 30),
    ]
    assert len(data["fingerprint"]) == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[pipelines.mine]\npasses = []\ntime_limit = 0\n",
            "'pipelines.mine.time_limit' is 0.0. Give a number",
        ),
        ('[pipelines.mine]\npasses = []\ntime_limit = "x"\n', "time_limit"),
        (
            '[pipelines.mine]\npasses = [{ name = "dead-code", time_limit = -1 }]\n',
            "as time_limit of pass 'dead-code' at",
        ),
        (
            '[pipelines.mine]\npasses = [{ name = "dead-code", time_limt = 1 }]\n',
            "'time_limt' was given",
        ),
    ],
)
def test_a_limit_that_is_wrong_is_refused(fxplug, folder, text, message):
    (folder / "fxplug.toml").write_text(text)

    result = fxplug("pipelines", "show", "mine", "--config", "fxplug.toml")

    assert result.exit_code != 0
    assert message in " ".join((result.output + result.stderr).split())


def test_an_unknown_pipeline_offers_the_nearest(fxplug):
    assert "Did you mean 'inference'?" in fxplug("pipelines", "show", "inferense").stderr


# -- optimize ------------------------------------------------------------------------------------------------------


def test_a_pass_is_left_out_for_one_run(fxplug):
    result = fxplug("optimize", "models.py:net", *FAST, "--disable", "fuse-conv-bn")

    assert "4 ran, 1 changed the model: onednn-fuse" in result.stdout


def test_a_setting_counts(fxplug, folder):
    result = fxplug("optimize", "models.py:net", *FAST, "--set", "fuse-conv-bn.time_limit=1e-9")

    assert result.exit_code == 1
    assert "Pass 'fuse-conv-bn' of fxplug" in (result.output + result.stderr)
    assert "its time_limit is 1e-09 s" in " ".join((result.output + result.stderr).split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--disable", "fuse-conv"], "There is no pass named 'fuse-conv'. Did you mean 'fuse-conv-bn'?"),
        (["--set", "fuse-conv-bn"], "Cannot read --set fuse-conv-bn: write PASS.OPTION=VALUE"),
        (["--set", "fuse-conv-bn.bits=3"], "it takes no options, but 'bits' was given"),
        (
            ["--set", "fuse-conv-bn.time_limit=3", "--disable", "fuse-conv-bn"],
            "the pass 'fuse-conv-bn' does not run. Leave the setting out.",
        ),
    ],
)
def test_an_override_that_is_wrong_is_refused_before_the_model_is_loaded(fxplug, arguments, message):
    result = fxplug("optimize", "models.py:failing", *FAST, *arguments)

    assert result.exit_code != 0
    assert message in " ".join((result.output + result.stderr).split())
    assert "no weights here" not in (result.output + result.stderr)


def test_reports_tell_of_nodes_bytes_and_fingerprint(fxplug, folder):
    result = fxplug("optimize", "models.py:net", *FAST, "--out", "out")
    data = json.loads((folder / "out" / "report.json").read_text())
    text = (folder / "out" / "report.md").read_text()
    (line,) = [
        line for line in result.stdout.splitlines() if "fuse-conv-bn" in line and line.startswith("ok")
    ]
    fused = data["passes"][2]

    assert data["fingerprint"] == (
        PluginManager(candidates=[], environ={}).resolve_pipeline("inference").fingerprint()
    )
    # Conv2d(3, 4, 3) with a bias and BatchNorm2d(4): 112 + 16 numbers of four bytes, and a counter of eight.
    assert [fused[key] for key in ("nodes_made", "nodes_erased", "nodes_edited")] == [0, 1, 1]
    assert (fused["bytes_before"], fused["bytes_after"]) == (4 * 128 + 8, 4 * 112)
    assert line.endswith(("1 erased, 1 edited; 520 B → 448 B", "1 erased, 1 edited; 520 B -> 448 B"))
    assert "| 1 erased, 1 edited | 520 B → 448 B |" in text
    assert f"`{data['fingerprint']}`" in text
