"""``fxplug decompose``."""

from __future__ import annotations

import json

INPUT = ("--example", "2x3x8x8")


def test_operators_are_printed_as_code(fxplug):
    result = fxplug("decompose", "models.py:net", *INPUT)

    assert result.exit_code == 0, result.stderr
    assert "torch.ops.aten.convolution.default(x, conv_weight" in result.stdout


def test_operators_are_counted(fxplug):
    result = fxplug("decompose", "models.py:net", *INPUT, "--counts", "--to", "aten")

    assert result.exit_code == 0, result.stderr
    assert "    1  aten.convolution.default" in result.stdout.splitlines()


def test_sizes_stay_open_by_name(fxplug):
    fixed = fxplug("decompose", "models.py:net", *INPUT, "--guards").stdout
    result = fxplug("decompose", "models.py:net", *INPUT, "--guards", "--dynamic", "x.0=batch")

    assert "x.shape == (2, 3, 8, 8), the sizes of the example inputs" in fixed
    assert "x.shape[0] >= 2, as 'batch' is an open size" in result.stdout
    assert "x.shape == (2, 3, 8, 8)" not in result.stdout


def test_json_is_json(fxplug):
    result = fxplug("decompose", "models.py:net", *INPUT, "--json")

    assert json.loads(result.stdout)["format"] == "fxplug-graph"


def test_an_example_is_needed(fxplug):
    result = fxplug("decompose", "models.py:net")

    assert result.exit_code == 2
    assert "Say with which inputs: --example 1x3x224x224" in result.stderr


def test_wrong_sizes_say_how_they_are_written(fxplug):
    result = fxplug("decompose", "models.py:net", *INPUT, "--dynamic", "batch")

    assert result.exit_code == 2
    assert "'batch' is not INPUT.DIM=NAME, such as 0.0=batch" in result.stderr
