"""The operator suite on networks of TensorRT, and the page that says what came of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from fxplug.testing import operator_cases, run_operator_suite

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"
MAKE = "run tools/tensorrt_operators.py"
SLICE = (
    "aten.add.Tensor",
    "aten.bitwise_and.Tensor",
    "aten.convolution.default",
    "aten.max.dim",
    "aten.native_layer_norm.default",
    "aten.softmax.int",
)


def rows():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [
        [cell.strip() for cell in line.removeprefix("| ").removesuffix("|").split(" | ")]
        for line in lines
        if line.startswith("| `aten.")
    ]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_the_page_has_a_row_for_every_operator_of_the_suite_and_no_other():
    assert {case.operator for case in operator_cases()} == rows().keys(), MAKE


def test_the_page_says_that_at_least_180_operators_are_covered_and_none_is_wrong():
    covered = {name.split(".")[1] for name, row in rows().items() if len(set(row[1].split(" of "))) == 1}

    assert len(covered - {name.split(".")[1] for name, row in rows().items() if row[2]}) >= 180
    assert [name for name, row in rows().items() if "different" in row[2] or "failed" in row[2]] == []


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed"
)
def test_a_slice_of_the_suite_comes_out_as_the_page_says():
    from fxplug_tensorrt.testing import NetworkEngine

    coverage = run_operator_suite(
        NetworkEngine(), "tensorrt", open_batch=NetworkEngine(open_batch=True), operators=SLICE
    )

    assert coverage.wrong == ()
    lines = set(PAGE.read_text(encoding="utf-8").splitlines())
    made = [line for line in coverage.to_markdown().splitlines() if line.startswith("| `aten.")]
    assert len(made) == len(SLICE)
    assert [line for line in made if line not in lines] == [], MAKE
