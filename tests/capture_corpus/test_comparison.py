"""The comparison notices whatever a captured module may get wrong."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from torch import nn

from capture_corpus.comparison import judge
from capture_corpus.corpus import Program
from capture_corpus.inputs import larger, one, tracked
from fxplug.errors import GraphError, GuardError, TraceError, TraceWarning


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))
        self.seen = []

    def forward(self, x):
        self.calls += 1
        self.seen.append(x.detach() * 2)
        return {"out": x * self.weight + torch.rand(3), "x": x}


def program(make=Counting, inputs=tracked, **options):
    return Program("counting", "test", make, inputs, **options)


def unchanged(root, args, kwargs):
    return root


class Wrapper(nn.Module):
    """Runs a program and then does something wrong."""

    def __init__(self, root, fault):
        super().__init__()
        self.__dict__["root"], self.fault = root, fault

    def forward(self, *args, **kwargs):
        return self.fault(self.root, self.root(*args, **kwargs))


def kept(root, result):
    root.__dict__.setdefault("first", result)
    return result if root.first is result else {**root.first, "x": result["x"]}


def in_place_of_x(root, result):
    return {**result, "x": result["x"].clone()}


FAULTS = {
    "another value": lambda root, result: {**result, "out": result["out"] + 1e-4},
    "another dtype": lambda root, result: {**result, "out": result["out"].double()},
    "no gradient": lambda root, result: {**result, "out": result["out"].detach()},
    "another gradient": lambda root, result: {
        **result,
        "out": result["out"] + (root.weight - root.weight.detach()).sum(),
    },
    "another structure": lambda root, result: list(result.values()),
    "another order of keys": lambda root, result: dict(reversed(result.items())),
    "another class of number": lambda root, result: {**result, "count": 1.0},
    "a copy of the input": in_place_of_x,
    "a buffer that is not updated": lambda root, result: (root.calls.zero_(), result)[1],
    "a list that does not grow": lambda root, result: (root.seen.clear(), result)[1],
    "a changed input": lambda root, result: (result["x"].data.mul_(2), result)[1],
    "a parameter that is written": lambda root, result: (root.weight.data.mul_(2), result)[1],
    "the result of the first call": kept,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault):
    verdict = judge(program(), lambda root, args, kwargs: Wrapper(root, FAULTS[fault]))

    assert verdict.kind == "different", verdict


def test_a_program_equals_itself():
    verdict = judge(program(others=(larger,), flips=True), unchanged)

    assert (verdict.kind, verdict.residue) == ("equal", "")


def test_numbers_that_were_drawn_while_capturing_are_noticed():
    def capture(root, args, kwargs):
        factor = random.random()
        return lambda x: x * factor

    verdict = judge(program(lambda: lambda x: x * random.random(), one), capture)

    assert verdict.kind == "different"
    assert "random numbers" in verdict.residue


def test_a_result_that_is_kept_is_noticed_when_the_caller_writes_over_it():
    def capture(root, args, kwargs):
        constant = torch.ones(3)
        return lambda x: constant

    assert judge(program(lambda: lambda x: torch.ones(3), one), capture).kind == "different"


def test_a_result_that_was_computed_while_capturing_is_noticed():
    def capture(root, args, kwargs):
        answer = root(*args)
        return lambda x: answer.clone()

    verdict = judge(program(lambda: lambda x: x * 2, one), capture)

    assert (verdict.kind, verdict.detail[:12]) == ("different", "other values")


def test_another_answer_for_other_inputs_is_noticed():
    def capture(root, args, kwargs):
        return lambda x: x * 2

    assert judge(program(lambda: lambda x: x * x.shape[0], one), capture).kind == "equal"
    assert (
        judge(program(lambda: lambda x: x * x.shape[0], one, others=(larger,)), capture).kind == "different"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (GuardError("Other inputs."), "equal"),
        (GraphError("Another structure.", code="FXP-G020"), "equal"),
        (GraphError("Something else."), "failed"),
        (TraceError("Something else."), "failed"),
    ],
)
def test_only_a_guard_may_refuse_other_inputs(error, kind):
    def capture(root, args, kwargs):
        def run(x):
            if x.shape[0] != 2:
                raise error
            return x * 2

        return run

    assert judge(program(lambda: lambda x: x * x.shape[0], one, others=(larger,)), capture).kind == kind


def test_a_guard_may_not_refuse_the_inputs_of_the_capture():
    def capture(root, args, kwargs):
        def run(x):
            raise GuardError("Other inputs.")

        return run

    assert judge(program(lambda: lambda x: x, one), capture).kind == "failed"


def test_a_guard_may_refuse_inputs_that_the_capture_did_not_know():
    def capture(root, args, kwargs):
        def run(x):
            raise GuardError("Other inputs.")

        return run

    capture.knows_no_inputs = True
    verdict = judge(program(lambda: lambda x: x, one), capture)

    assert (verdict.kind, verdict.code, verdict.message) == (
        "refused",
        "FXP-T060",
        "Other inputs. [FXP-T060]",
    )


def test_a_refusal_has_the_code_of_its_error():
    def capture(root, args, kwargs):
        raise TraceError("No.", code="FXP-T001")

    verdict = judge(program(), capture)

    assert (verdict.kind, verdict.code) == ("refused", "FXP-T001")


def change_weight(root, args):
    root.weight.data.zero_()


def change_list(root, args):
    root.seen.append(1)


def change_input(root, args):
    args[0].data.zero_()


def draw(root, args):
    torch.rand(1)


@pytest.mark.parametrize("change", [change_weight, change_list, change_input, draw])
@pytest.mark.parametrize("is_refused", [False, True])
def test_what_a_capture_leaves_behind_is_noticed(change, is_refused):
    def capture(root, args, kwargs):
        change(root, args)
        if is_refused:
            raise TraceError("No.")
        return root

    assert judge(program(), capture).residue


def test_what_is_outside_of_the_program_is_compared_when_it_says_where():
    def make():
        def forward(x):
            forward.log.append(1)
            return x

        forward.log = []
        return forward

    def capture(root, args, kwargs):
        return lambda x: x

    assert judge(program(make, one), unchanged).kind == "equal"
    assert judge(program(make, one, state=lambda root: root.log), capture).kind == "different"


@pytest.mark.parametrize(("error", "kind"), [(KeyError("missing"), "equal"), (KeyError("other"), "refused")])
def test_the_error_of_an_illegal_program_must_come_through(error, kind):
    def forward(x):
        raise KeyError("missing")

    def capture(root, args, kwargs):
        raise error

    assert judge(program(lambda: forward, one, illegal=True), capture).kind == kind


def test_an_illegal_program_that_gives_a_result_is_different():
    def forward(x):
        raise KeyError("missing")

    assert judge(program(lambda: forward, one, illegal=True), lambda *_: lambda x: x).kind == "different"


@pytest.mark.parametrize(("attribute", "kind"), [("seen", "reported"), ("other", "different")])
def test_an_attribute_that_is_not_assigned_must_be_named_by_a_warning(attribute, kind):
    class Listing(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, x):
            self.seen.append(1)
            return x

    def capture(root, args, kwargs):
        warnings.warn(f"The attribute {attribute!r} is not assigned.", TraceWarning, stacklevel=1)
        return lambda x: x

    assert judge(program(Listing, one), capture).kind == kind


def test_an_error_when_the_captured_program_is_called_is_a_failure():
    def capture(root, args, kwargs):
        return lambda x: x.no_such_attribute

    assert judge(program(lambda: lambda x: x, one), capture).kind == "failed"
