"""What counts as equal, and what is said about what does not."""

from __future__ import annotations

import math
from collections import UserDict, UserList, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fxplug.analyze.comparison import compare, describe
from fxplug.api import Check, Tolerance
from fxplug.errors import ConfigError


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Record:
    logits: torch.Tensor
    count: int


def reasons(expected, actual, **tolerance):
    return {
        entry.path: entry.reason
        for entry in compare(expected, actual, Tolerance(**tolerance))
        if entry.reason
    }


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, math.nan, math.inf, -math.inf]),
        torch.tensor([True, False]),
        torch.tensor(3),
        torch.empty(0, 2),
        torch.tensor([1 + 2j]),
        torch.tensor([1.0], dtype=torch.float16),
        torch.eye(3).to_sparse(),
        {"a": [torch.ones(2), (None, 3, "text")]},
        Pair(torch.ones(1), 2),
        Record(torch.ones(1), 4),
        math.nan,
    ],
    ids=str,
)
def test_a_value_equals_itself(value):
    comparisons = list(compare(value, value, Tolerance()))

    assert comparisons
    assert all(entry.passed and entry.max_abs_error == 0 for entry in comparisons)


def test_the_path_leads_to_what_differs():
    expected = {"a": [torch.zeros(2), Pair(torch.zeros(1), 2)], "b": Record(torch.zeros(1), 4)}
    actual = {"a": [torch.zeros(2), Pair(torch.ones(1), 3)], "b": Record(torch.zeros(1), 5)}

    assert list(reasons(expected, actual)) == [
        "output['a'][1].left",
        "output['a'][1].right",
        "output['b'].count",
    ]


def test_the_worst_element_is_named_with_both_values_and_what_was_allowed():
    expected = torch.zeros(2, 3)
    actual = expected.clone()
    actual[0, 1], actual[1, 2] = 0.5, -2.0

    assert reasons(expected, actual) == {
        "output": "2 of 6 elements are off, most of all at [1, 2]: -2 instead of 0 (allowed error: 0.0001 + 0.0001 * "
        "abs(expected))"
    }


def test_errors_are_absolute_and_relative_to_the_largest_magnitude():
    (entry,) = compare(torch.tensor([0.0, 10.0]), torch.tensor([1e-5, 10.0]), Tolerance())

    assert entry.passed
    assert entry.max_abs_error == pytest.approx(1e-5)
    assert entry.max_rel_error == pytest.approx(1e-6)


def test_the_allowed_error_grows_with_the_expected_value_of_the_same_element():
    assert not reasons(torch.tensor([100.0]), torch.tensor([100.005]))
    assert reasons(torch.tensor([100.0, 1.0]), torch.tensor([100.0, 1.005]))
    assert not reasons(torch.tensor([1.0]), torch.tensor([1.005]), atol=0.01)
    assert not reasons(torch.tensor([1.0]), torch.tensor([1.005]), rtol=0.01)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_value_that_is_no_number_is_never_close(wrong):
    assert reasons(torch.tensor([1.0]), torch.tensor([wrong]), atol=1e9)
    assert reasons(torch.tensor([wrong]), torch.tensor([1.0]), atol=1e9, rtol=1.0)


def test_integers_and_booleans_have_to_be_equal_whatever_is_allowed():
    assert reasons(torch.tensor([1]), torch.tensor([2]), atol=10.0)
    assert reasons(torch.tensor([True]), torch.tensor([False]), atol=10.0)


@pytest.mark.parametrize(
    ("actual", "reason"),
    [
        (torch.zeros(2, dtype=torch.float64), "its dtype is torch.float64 and should be torch.float32"),
        (torch.zeros(1, 2), "its shape is [1, 2] and should be [2]"),
        (torch.zeros(2).to_sparse(), "its layout is torch.sparse_coo and should be torch.strided"),
        (torch.zeros(2, device="meta"), "its device is meta and should be cpu"),
        ((torch.zeros(2),), "it is a tuple and should be a float32[2]"),
        (None, "it is a NoneType and should be a float32[2]"),
    ],
    ids=["dtype", "shape", "layout", "device", "container", "nothing"],
)
def test_what_is_no_number_has_to_agree_too(actual, reason):
    assert reasons(torch.zeros(2), actual) == {"output": reason}


def test_containers_have_to_agree():
    one = torch.zeros(1)

    assert reasons([one], (one,)) == {"output": "it is a tuple and should be a list"}
    assert reasons([one, one], [one]) == {"output": "it has 1 elements (0) and should have 2 elements (0, 1)"}
    assert reasons({"a": one}, {"b": one}) == {
        "output": "it has 1 elements ('b') and should have 1 elements ('a')"
    }
    assert not reasons({"a": 1, "b": one}, {"b": one, "a": 1})


def test_values_that_cannot_be_compared_are_no_match():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError("no")

        __hash__ = None

    assert reasons(Odd(), Odd()) == {"output": "the two Odds cannot be compared (RuntimeError: no)"}


def test_a_check_sums_up():
    values = compare([torch.zeros(1), torch.zeros(1)], [torch.zeros(1), torch.ones(1)], Tolerance())
    check = Check(tuple(values))

    assert not check.passed
    assert check.max_abs_error == 1
    assert [entry.path for entry in check.failures] == ["output[1]"]
    assert Check(()).passed


def test_a_share_of_the_largest_magnitude_may_be_allowed():
    expected = torch.tensor([0.0, 10.0])
    actual = torch.tensor([0.5, 10.0])

    (close,) = compare(expected, actual, Tolerance(0.0, 0.0, share=0.05))
    (far,) = compare(expected, actual, Tolerance(0.0, 0.0, share=0.04))

    assert close.passed
    assert far.reason.endswith("(allowed error: 0.04 * largest magnitude)")


def test_integers_have_no_share():
    (entry,) = compare(torch.tensor([1, 10]), torch.tensor([2, 10]), Tolerance(share=0.5))

    assert entry.reason.endswith("(allowed error: none)")


def test_values_may_be_left_out():
    kinds = Tolerance(values=False)

    assert all(entry.passed for entry in compare((torch.ones(2), 3), (torch.zeros(2), 4), kinds))
    assert not all(entry.passed for entry in compare(torch.ones(2), torch.ones(3), kinds))
    assert not all(entry.passed for entry in compare((1,), [1], kinds))


def test_a_share_is_a_number_that_is_not_negative():
    with pytest.raises(ConfigError, match="share = -1"):
        Tolerance(share=-1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64])
def test_large_integers_are_told_apart(dtype):
    number = 2**62
    expected, actual = (torch.tensor([1, number + more], dtype=dtype) for more in (0, 1))

    (entry,) = compare(expected, actual, Tolerance())

    assert entry.reason == (
        f"1 of 2 elements are off, most of all at [1]: {number + 1} instead of {number} (allowed error: none)"
    )
    assert entry.max_abs_error == 1.0
    assert next(compare(expected, expected.clone(), Tolerance())).passed


def test_tensors_without_data_are_compared_by_what_they_have():
    meta = torch.empty(3, device="meta")

    assert next(compare(meta, torch.empty(3, device="meta"), Tolerance())).passed
    assert not next(compare(meta, torch.empty(4, device="meta"), Tolerance())).passed


def test_it_is_counted_what_was_compared():
    values = [torch.ones(2, 3), torch.ones(0, 3), torch.empty(3, device="meta"), 1]

    check = Check(tuple(compare(values, values, Tolerance())))
    assert [entry.elements for entry in check.comparisons] == [6, 0, 0, 1]
    assert check.elements == 7
    assert Check(tuple(compare(values, values, Tolerance(values=False)))).elements == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_compared_part_by_part():
    first = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    second = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
    assert all(one.passed for one in compare(first, first.clone(), Tolerance()))
    assert [one.path for one in compare(first, second, Tolerance()) if not one.passed] == ["output[1]"]
    shorter = torch.nested.nested_tensor([torch.ones(2)])
    assert not all(one.passed for one in compare(first, shorter, Tolerance()))
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    (kind,) = compare(first, jagged, Tolerance())
    assert "should be a nested tensor (torch.strided)" in kind.reason
    (plain,) = compare(torch.ones(2), first, Tolerance())
    assert "should be a plain tensor" in plain.reason
    assert describe(first) == "float32 of 2 tensors"


def test_what_holds_itself_is_compared_once():
    first, second = ({"x": torch.full((2,), value)} for value in (1.0, 2.0))
    first["self"], second["self"] = first, second

    found = list(compare(first, second, Tolerance()))

    assert [(entry.path, entry.passed) for entry in found] == [("output['x']", False)]
    assert [entry.passed for entry in compare(first, first, Tolerance())] == [True]


@pytest.mark.parametrize(
    "around",
    [lambda x: UserDict({"x": x}), lambda x: UserList([x]), lambda x: deque([x])],
    ids=["dict", "list", "deque"],
)
def test_tensors_in_what_is_like_a_dict_or_a_list_are_compared(around):
    wanted, found = around(torch.ones(2)), around(torch.tensor([1.0, 3.0]))

    assert [entry.passed for entry in compare(wanted, around(torch.ones(2)), Tolerance())] == [True]
    assert [entry.passed for entry in compare(wanted, found, Tolerance())] == [False]


def test_tensors_without_data_are_not_compared():
    with FakeTensorMode() as mode:
        tensor = mode.from_tensor(torch.ones(2))

    (entry,) = compare(tensor, tensor.clone(), Tolerance())

    assert entry.passed
    assert entry.elements == 0
