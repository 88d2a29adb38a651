"""Comparisons by identity in objects and made functions, and by functions of Python under other names."""

from __future__ import annotations

import builtins
import functools
import operator

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import GuardError, TraceError

ONE, TWO = torch.ones(2, 3), torch.full((2, 3), 2.0)
WIDE, TRANSPOSED = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2).t()


class Pair:
    def __init__(self, one, other):
        self.one, self.other = one, other

    def is_same(self):
        return self.one is self.other

    def is_any_same(self):
        return any(part is self.one for part in [self.other])


class Slotted:
    __slots__ = ("one", "other")

    def __init__(self, one, other):
        self.one, self.other = one, other

    def is_same(self):
        return self.one is self.other


def by_an_object(x, y):
    return x * 5 if Pair(x, y).is_same() else x + y


def by_an_object_with_slots(x, y):
    return x * 5 if Slotted(x, y).is_same() else x + y


def by_a_loop_in_an_object(x, y):
    return x * 5 if Pair(x, y).is_any_same() else x + y


def make_comparison():
    return lambda one, other: one is other


def by_a_function_made_when_it_runs(x, y):
    return x * 5 if make_comparison()(x, y) else x + y


def by_a_class_made_when_it_runs(x, y):
    class Both:
        def __init__(self, one, other):
            self.one, self.other = one, other

        def is_same(self):
            return self.one is self.other

    return x * 5 if Both(x, y).is_same() else x + y


OBJECTS = [
    by_an_object,
    by_an_object_with_slots,
    by_a_loop_in_an_object,
    by_a_function_made_when_it_runs,
    by_a_class_made_when_it_runs,
]


@pytest.mark.parametrize("program", OBJECTS)
def test_two_inputs_that_an_object_compares_are_checked_to_be_two(program):
    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(ONE, TWO), program(ONE, TWO))
    with pytest.raises(GuardError, match="is not"):
        captured(ONE, ONE)


@pytest.mark.parametrize("program", OBJECTS)
def test_what_a_call_has_returned_as_it_was_given_is_another_one_or_the_check_fails(program):
    def compares(x):
        return program(x, x.contiguous())

    captured = fxplug.symbolic_trace(compares)

    assert torch.equal(captured(TRANSPOSED), compares(TRANSPOSED))
    with pytest.raises(GuardError, match="is not"):
        captured(WIDE)


def test_what_holds_no_values_of_the_program_is_not_checked():
    def program(x, y):
        return x + y if Pair(nn.ReLU, nn.Tanh).is_same() else x - y

    captured = fxplug.symbolic_trace(program)

    assert torch.equal(captured(ONE, ONE), program(ONE, ONE))


# -- functions of Python under other names

same = operator.is_
TABLE = {"same": operator.is_, "id": id}


def by_an_alias(x):
    return x * 5 if same(x, x.contiguous()) else x + 1


def by_a_table(x):
    return x * 5 if TABLE["same"](x, x.contiguous()) else x + 1


def by_a_default_of_a_helper(x):
    def helper(one, other, equal=operator.is_):
        return equal(one, other)

    return x * 5 if helper(x, x.contiguous()) else x + 1


def by_a_partial(x, equal=functools.partial(operator.is_)):  # noqa: B008 - this is what is tested
    return x * 5 if equal(x, x.contiguous()) else x + 1


def by_the_text_of_a_name(x):
    return x * 5 if getattr(operator, "is" + "_")(x, x.contiguous()) else x + 1


def by_ids_in_a_table(x):
    ids = list(map(TABLE["id"], [x, x.contiguous()]))
    return x * 5 if ids[0] == ids[1] else x + 1


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.same = operator.is_

    def forward(self, x):
        return x * 5 if self.same(x, x.contiguous()) else x + 1


ALIASES = [
    by_an_alias,
    by_a_table,
    by_a_default_of_a_helper,
    by_a_partial,
    by_the_text_of_a_name,
    by_ids_in_a_table,
    Holds(),
]


@pytest.mark.parametrize("root", ALIASES)
def test_comparisons_under_other_names_are_refused_without_examples(root):
    with pytest.raises(TraceError, match=r"\[FXP-T04[14]\]$"):
        fxplug.symbolic_trace(root)


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("root", ALIASES)
def test_comparisons_under_other_names_are_guarded_on_examples(root, mode):
    for first, second in ((WIDE, TRANSPOSED), (TRANSPOSED, WIDE)):
        captured = fxplug.trace(root, (first,), mode=mode, check=False)
        assert torch.equal(captured(first), root(first))
        with pytest.raises(GuardError, match=r" is (not )?\S"):
            captured(second)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_inputs_that_are_compared_under_another_name_are_guarded(mode):
    def program(x, y):
        return x * 5 if same(x, y) else x + y

    captured = fxplug.trace(program, (ONE, TWO), mode=mode)
    once = fxplug.trace(program, (ONE, ONE), mode=mode)

    assert torch.equal(captured(TWO, ONE), program(TWO, ONE))
    assert torch.equal(once(TWO, TWO), program(TWO, TWO))
    with pytest.raises(GuardError):
        captured(ONE, ONE)
    with pytest.raises(GuardError):
        once(ONE, TWO)


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize(
    "find",
    [lambda x, y: x in [y], lambda x, y: [y].index(x) == 0, lambda x, y: [y].count(x) == 1],
    ids=["in", "index", "count"],
)
def test_what_a_list_finds_by_identity_is_found(find, mode):
    def program(x):
        return x * 5 if find(x, x.contiguous()) else x + 1

    captured = fxplug.trace(program, (WIDE,), mode=mode)

    assert torch.equal(captured(WIDE + 1), program(WIDE + 1))
    with pytest.raises(GuardError):
        captured(TRANSPOSED)


# -- questions under other names

kind, can_be_called, has = type, callable, hasattr
KINDS = {torch.Tensor: 2.0, int: 3.0}


def by_type_under_another_name(x: torch.Tensor):
    return x * 5 if kind(x) is torch.Tensor else x + 1


def by_a_local_name(x: torch.Tensor):
    ask = type
    return x * 5 if ask(x) is torch.Tensor else x + 1


def by_the_module_builtins(x: torch.Tensor):
    return x * 5 if builtins.type(x) is torch.Tensor else x + 1


def by_a_map(x: torch.Tensor):
    return x * 5 if list(map(type, [x])) == [torch.Tensor] else x + 1


def by_a_dispatch(x: torch.Tensor):
    return x * KINDS.get(kind(x), 7.0)


def by_callable_under_another_name(x: torch.Tensor):
    return x * 5 if can_be_called(x) else x + 1


def by_hasattr_under_another_name(x: torch.Tensor):
    return x * 5 if has(x, "scale") else x + 1


def by_the_attribute(x: torch.Tensor):
    return x * 5 if x.__class__ is torch.Tensor else x + 1


def by_the_name_of_the_class(x: torch.Tensor):
    return x * len(x.__class__.__name__)


QUESTIONS = [
    by_type_under_another_name,
    by_a_local_name,
    by_the_module_builtins,
    by_a_map,
    by_a_dispatch,
    by_callable_under_another_name,
    by_hasattr_under_another_name,
    by_the_attribute,
    by_the_name_of_the_class,
]


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("program", QUESTIONS)
def test_questions_under_other_names_are_answered(program, mode):
    examples = None if mode == "symbolic" else (ONE,)
    captured = fxplug.trace(program, examples, mode=mode, check=False)

    assert torch.equal(captured(TWO), program(TWO))


def test_a_class_of_what_a_shape_capture_has_computed_is_that_of_tensors():
    captured = fxplug.trace(lambda x: x + len((x * 2).__class__.__mro__), (ONE,), mode="shape", check=False)

    assert torch.equal(captured(ONE), ONE + len(torch.Tensor.__mro__))


class Asks(nn.Module):
    def __init__(self):
        super().__init__()
        self.ask = type

    def forward(self, x: torch.Tensor):
        return x * 5 if self.ask(x) is torch.Tensor else x + 1


def asks_by_an_import(x: torch.Tensor):
    from builtins import type as ask

    return x * 5 if ask(x) is torch.Tensor else x + 1


@pytest.mark.parametrize("root", [Asks(), asks_by_an_import])
def test_questions_that_are_kept_elsewhere_are_refused_where_nothing_hears_of_them(root):
    with pytest.raises(TraceError, match=r"finds the function 'type' of Python.*\[FXP-T040\]$"):
        fxplug.symbolic_trace(root)
    with pytest.raises(TraceError, match=r"finds the function 'type' of Python.*\[FXP-T066\]$"):
        fxplug.trace(root, (ONE,), mode="shape")
    assert torch.equal(fxplug.trace(root, (ONE,))(TWO), root(TWO))


def test_a_number_that_is_asked_by_a_function_kept_elsewhere_is_fixed():
    asks = [type]

    def program(x):
        return x + (1 if asks[0](x.shape[0]) is int else 2)

    captured = fxplug.trace(program, (ONE,), check=False)

    assert torch.equal(captured(TWO), program(TWO))
