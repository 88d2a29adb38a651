"""The operator suite on OpenVINO, and the page that says what came of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from fxplug.testing import operator_cases, run_operator_suite
from fxplug_openvino import OpenVINOBackend

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"
SLICE = (
    "aten.add.Tensor",
    "aten.sub.Tensor",
    "aten.div.Tensor_mode",
    "aten.max.dim",
    "aten.avg_pool2d.default",
)

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
)

needs_page = pytest.mark.skipif(not PAGE.exists(), reason="run tools/openvino_operators.py")


def rows():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if line.startswith("| `aten.")
    ]
    return {row[0].strip("`"): row[1:] for row in cells}


@needs_page
def test_the_page_has_a_row_for_every_operator_of_the_suite():
    missing = {case.operator for case in operator_cases()} - rows().keys()

    assert missing == set(), "run tools/openvino_operators.py"


@needs_page
def test_the_page_says_that_at_least_180_operators_are_covered_and_none_is_wrong():
    covered = {name.split(".")[1] for name, row in rows().items() if len(set(row[1].split(" of "))) == 1}

    assert len(covered) >= 180
    assert [name for name, row in rows().items() if "different" in row[2] or "failed" in row[2]] == []


@needs_engine
def test_the_engine_covers_a_slice_of_the_suite_as_the_page_says():
    coverage = run_operator_suite(
        OpenVINOBackend(), "openvino", open_batch=OpenVINOBackend(dynamic_batch=True), operators=SLICE
    )
    known = rows() if PAGE.exists() else {}

    assert coverage.wrong == ()
    assert len(coverage.covered) == len(SLICE)
    for name, dtypes, cells, others in coverage.rows():
        assert known.get(name, [dtypes, cells, others]) == [dtypes, cells, others]


@needs_engine
@pytest.mark.parametrize("divisor", [7, -7])
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_large_whole_numbers_are_divided_exactly(divisor, mode):
    import fxplug
    from fxplug.lower import lower

    values = torch.tensor([2**31 - 1, -(2**31) + 1, 2**30 + 3, 2**24 + 1, -(2**24) - 1, 7, -7, 6, -6, 0])

    def program(x):
        return torch.div(x, divisor, rounding_mode=mode)

    lowered = lower(
        fxplug.symbolic_trace(program), OpenVINOBackend(), (values,), name="openvino", strict=True
    )
    assert torch.equal(lowered.module(values), program(values))


@needs_engine
def test_a_result_that_is_wanted_and_not_computed_stays_in_pytorch():
    import fxplug
    from fxplug.lower import plan_lowering

    def program(x):
        return torch.native_group_norm(x, None, None, 2, 4, 9, 2, 1e-5)[1]

    report = plan_lowering(
        fxplug.symbolic_trace(program), OpenVINOBackend(), "openvino", (torch.rand(2, 4, 3, 3),)
    )
    assert any("is not computed by OpenVINO" in node.reason for node in report.nodes)
