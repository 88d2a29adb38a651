"""The operator suite on OpenVINO, and the page that says what came of it."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from fxplug.testing import operator_cases, run_operator_suite
from fxplug_openvino import OpenVINOBackend

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"
SLICE = (
    "aten.add.Tensor",
    "aten.sub.Tensor",
    "aten.div.Tensor_mode",
    "aten.max.dim",
    "aten.avg_pool2d.default",
    "aten.cumprod.default",
    "aten.im2col.default",
    "aten.embedding_bag.default",
)

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
)


def rows():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if line.startswith("| `aten.")
    ]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_the_page_has_a_row_for_every_operator_of_the_suite():
    missing = {case.operator for case in operator_cases()} - rows().keys()

    assert missing == set(), "run tools/openvino_operators.py"


def test_the_page_says_that_at_least_180_operators_are_covered_and_none_is_wrong():
    covered = {name.split(".")[1] for name, row in rows().items() if len(set(row[1].split(" of "))) == 1}

    assert len(covered) >= 180
    assert [name for name, row in rows().items() if "different" in row[2] or "failed" in row[2]] == []


@needs_engine
def test_the_engine_covers_a_slice_of_the_suite_as_the_page_says():
    coverage = run_operator_suite(
        OpenVINOBackend(), "openvino", open_batch=OpenVINOBackend(dynamic_batch=True), operators=SLICE
    )
    known = rows()

    assert coverage.wrong == ()
    assert len(coverage.covered) == len(SLICE)
    for name, dtypes, cells, others in coverage.rows():
        assert known[name] == [dtypes, cells, others]


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


@needs_engine
def test_signs_of_zeros_and_infinities_count():
    import fxplug
    from fxplug.lower import lower

    numbers = torch.tensor([0.0, -0.0, 1.5, -1.5, math.inf, -math.inf])

    def program(x, y):
        return torch.atan2(x, y), torch.copysign(x, y), torch.signbit(x), torch.copysign(x, -0.0)

    values = tuple(torch.cartesian_prod(numbers, numbers).unbind(1))
    lowered = lower(fxplug.symbolic_trace(program), OpenVINOBackend(), values, name="openvino", strict=True)
    for found, expected in zip(lowered.module(*values), program(*values), strict=True):
        torch.testing.assert_close(found, expected)
        if found.dtype is not torch.bool:
            assert torch.equal(found.signbit(), expected.signbit())


@needs_engine
def test_products_of_numbers_one_after_another_keep_their_order():
    import fxplug
    from fxplug.lower import lower, plan_lowering

    x = torch.tensor([0.0, 1e30, 1e30, 2.0] * 8)
    module = fxplug.symbolic_trace(lambda x: torch.cumprod(x, 0))
    lowered = lower(module, OpenVINOBackend(), (x,), name="openvino", strict=True)
    assert torch.equal(lowered.module(x), torch.cumprod(x, 0))

    (left,) = plan_lowering(module, OpenVINOBackend(), "openvino", (torch.ones(257),)).nodes
    assert "more than 256 numbers one after another" in left.reason


@needs_engine
@pytest.mark.parametrize("options", [{}, {"mode": "sum", "include_last_offset": True}])
def test_bags_may_be_empty_and_weighed(options):
    import fxplug
    from fxplug.lower import lower

    bag = nn.EmbeddingBag(7, 3, **options).eval()
    words, starts = torch.tensor([1, 2, 4, 5]), torch.tensor([0, 0, 3, 4])
    given = (words, starts, torch.rand(4)) if options else (words, starts)
    module = fxplug.trace(bag, given)
    lowered = lower(module, OpenVINOBackend(), given, name="openvino", strict=True)
    with torch.no_grad():
        torch.testing.assert_close(lowered.module(*given), bag(*given))
