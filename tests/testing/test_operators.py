"""The operator suite: its cases run in eager, differ from run to run, and tell right from wrong engines."""

from __future__ import annotations

import json

import pytest
import torch

from fxplug.errors import BackendError, ConfigError
from fxplug.lower import EagerBackend, Profile, Support
from fxplug.testing import NotApplicableError, operator_cases, operator_cells, run_operator_suite

SOME = ("aten.add.Tensor", "aten.relu", "aten.max.dim", "aten.mm.default")
CONSTANT = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "fill"}
"""Operators whose results say nothing about the values of their inputs."""


class Refusing(EagerBackend):
    def supports(self, node, context):
        if node.target is torch.ops.aten.relu.default:
            return Support(ok=False, reason="no relu")
        return super().supports(node, context)


class Fixed(EagerBackend):
    def profile(self, example_inputs):
        return Profile.of(example_inputs)


def outcomes(coverage):
    return {entry.operator: {result.outcome for result in entry.results} for entry in coverage.operators}


def test_there_are_cases_for_at_least_180_operators():
    assert len({case.operator.split(".")[1] for case in operator_cases()}) >= 250


def test_no_two_cases_have_the_same_name():
    names = [cell.name for cell in operator_cells()]

    assert len(set(names)) == len(names)


def test_every_case_has_inputs_that_change_what_comes_out():
    silent = set()
    for case in operator_cases():
        first, second = next(operator_cells([case])).runs()
        if all(torch.equal(one, other) for one, other in zip(first.expected, second.expected, strict=True)):
            # A single number may well be above a bound both times; the other ranks are not.
            cells = [cell for cell in operator_cells([case]) if not cell.dynamic]
            pairs = [cell.runs() for cell in cells]
            if not any(
                not torch.equal(one, other)
                for one_run, other_run in pairs
                for one, other in zip(one_run.expected, other_run.expected, strict=True)
            ):
                silent.add(case.name.removeprefix("aten.").partition(".")[0] + f" ({case.note})")

    assert {name for name in silent if name.partition(" ")[0] not in CONSTANT} == {
        "isnan (of integers)",
        "isinf (of integers)",
        "isfinite (of integers)",
        "pow (0)",
    }


def test_sizes_that_are_left_open_differ_from_run_to_run_in_the_first_dimension_of_all_inputs():
    for cell in operator_cells(dtypes=[torch.float32]):
        if cell.dynamic:
            first, second = cell.runs()
            assert {value.shape[0] for value in first.inputs} == {2}, cell.name
            assert {value.shape[0] for value in second.inputs} == {3}, cell.name
            assert [value.shape[1:] for value in first.inputs] == [value.shape[1:] for value in second.inputs]


def test_the_reference_backend_covers_what_it_is_tried_with():
    coverage = run_operator_suite(EagerBackend(), "eager", operators=SOME)

    assert len(coverage.covered) == len(coverage.operators) == 4
    assert {result.outcome for result in coverage.results} == {"equal"}
    assert coverage.summary.startswith("eager: 4 of 4 operators are covered, ")


def test_a_call_that_is_refused_does_not_count_and_says_why():
    coverage = run_operator_suite(Refusing(), "picky", operators=SOME)
    found = outcomes(coverage)

    assert found.pop("aten.relu.default") == {"refused"}
    assert set(map(frozenset, found.values())) == {frozenset({"equal"})}
    assert coverage.wrong == ()
    (row,) = [row for row in coverage.rows() if row[0] == "aten.relu.default"]
    assert row[1] == ""
    assert row[2].startswith("0 of ")
    assert row[3] == "refused (float32, rank 0, static): no relu"


def test_what_is_wrong_in_one_dtype_is_found_and_the_others_count():
    def engine(program):
        made = [list(program.module(*run)) for run in program.runs]
        return [[value + 1 if value.dtype is torch.int32 else value for value in results] for results in made]

    coverage = run_operator_suite(engine, "off", operators=["aten.add.Tensor"])
    wrong = {result.cell.dtype for result in coverage.wrong}

    assert wrong == {torch.int32}
    assert coverage.covered == ()
    assert "i32" not in coverage.operators[0].dtypes
    assert "f32" in coverage.operators[0].dtypes
    assert "instead of" in coverage.wrong[0].reason


def test_an_engine_that_always_returns_the_first_results_is_found_out():
    def engine(program):
        first = program.module(*program.runs[0])
        return [first for _ in program.runs]

    coverage = run_operator_suite(engine, "stuck", operators=["aten.mm.default"])

    assert coverage.covered == ()
    assert {result.outcome for result in coverage.results} == {"different"}


def test_an_engine_that_raises_fails_the_cell_alone():
    def engine(program):
        if any(run.dtype is torch.bool for run in program.runs[0]):
            raise ValueError("no bits")
        return [program.module(*run) for run in program.runs]

    coverage = run_operator_suite(engine, "loud", operators=["aten.add.Tensor"])

    assert {result.cell.dtype for result in coverage.wrong} == {torch.bool}
    assert coverage.wrong[0].outcome == "failed"
    assert "no bits" in coverage.wrong[0].reason


def test_a_dtype_that_the_engine_lacks_does_not_apply():
    def engine(program):
        if any(run.dtype is torch.float64 for run in program.runs[0]):
            raise BackendError("no doubles here")
        return [program.module(*run) for run in program.runs]

    coverage = run_operator_suite(engine, "single", operators=["aten.relu"])

    assert coverage.outside() == ("it does not compute with float64: no doubles here",)
    assert len(coverage.covered) == 1
    assert "f64" not in coverage.covered[0].dtypes


def test_a_backend_for_fixed_sizes_is_not_asked_for_open_ones():
    coverage = run_operator_suite(Fixed(), "fixed", operators=["aten.relu"])

    assert {result.outcome for result in coverage.results if result.cell.dynamic} == {"outside"}
    assert len(coverage.covered) == 1


def test_what_the_caller_leaves_out_does_not_apply():
    coverage = run_operator_suite(
        EagerBackend(), "eager", operators=["aten.relu"], outside={"not finite": "it keeps no infinities"}
    )

    assert coverage.outside() == ("it keeps no infinities",)


def test_an_engine_that_cannot_be_asked_covers_nothing():
    def engine(program):
        raise NotApplicableError("no device")

    coverage = run_operator_suite(engine, "absent", operators=["aten.relu"])

    assert coverage.covered == coverage.wrong == ()
    assert "no device" in coverage.outside()


def test_the_table_is_there_as_markdown_and_as_data():
    coverage = run_operator_suite(Refusing(), "picky", operators=["aten.relu", "aten.add.Tensor"])
    text = coverage.to_markdown()

    assert "| operator | dtypes | cells that equal eager | others |" in text
    assert "| `aten.relu.default` |  | 0 of " in text
    assert "| `aten.add.Tensor` | f32 f64 f16 bf16 i64 i32 u8 bool | " in text
    data = json.loads(json.dumps(coverage.to_data()))
    assert data["covered"] == ["aten.add.Tensor"]
    assert data["operators"]["aten.relu.default"][0] == {
        "case": "",
        "dtype": "float32",
        "rank": 0,
        "dynamic": False,
        "outcome": "refused",
        "reason": "no relu",
    }


def test_an_operator_without_a_case_is_an_error():
    with pytest.raises(ConfigError, match=r"for .aten\.nothing.: it has no case of it"):
        run_operator_suite(EagerBackend(), "eager", operators=["aten.nothing"])
