"""Comparisons by identity are found in the bytecode of the running Python."""

from __future__ import annotations

import dis
import importlib.util
import operator
import sys
from pathlib import Path

import pytest

import fxplug

PATH = Path(fxplug.__file__).with_name("capture") / "identity.py"


@pytest.fixture(scope="module")
def identity():
    # Its package needs torch; the module itself does not.
    spec = importlib.util.spec_from_file_location("identity_without_torch", PATH)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def tests_in(identity):
    return identity.tests_in


def compared(x, mask=None):
    if mask is not None:
        x = x * mask
    return x


def in_an_expression(x, mask=None):
    return x if mask is None else x * mask


def as_a_value(x, mask=None):
    is_missing = mask is None
    return x, is_missing


def the_other_way_round(x, mask=None):
    return None is mask


def under_another_name(x, mask=None):
    other = mask
    return x if other is None else other


def in_a_walrus(x, mask=None):
    return x if (other := mask) is None else other


def by_keyword(x, *, mask=None):
    return x if mask is None else mask


def in_a_pattern(x, mask=None):
    match mask:
        case None:
            return x
        case _:
            return mask


def in_an_inner_function(x, mask=None):
    def is_missing():
        return mask is None

    return is_missing


def in_a_comprehension(x, mask=None):
    return [part for part in x if mask is None]


@pytest.mark.parametrize(
    "function",
    [
        compared,
        in_an_expression,
        as_a_value,
        the_other_way_round,
        under_another_name,
        in_a_walrus,
        by_keyword,
        in_a_pattern,
        in_an_inner_function,
        in_a_comprehension,
    ],
)
def test_comparison_with_none_is_found(tests_in, function):
    found = tests_in(function.__code__)

    assert list(found) == ["mask"]
    assert found["mask"].is_for_none
    assert found["mask"].question.format(name="mask") == "'mask' is None"
    assert "None" in found["mask"].line.text


def of_a_flag(x, flag=True):
    return x if flag is True else None


def of_an_item(batch):
    mask = batch["mask"]
    return batch if mask is None else mask


def of_what_get_gives(batch):
    mask = batch.get("mask")
    return batch if mask is None else mask


def of_a_mapping(batch):
    match batch:
        case {"x": x}:
            return x
        case _:
            return batch


@pytest.mark.parametrize(
    ("function", "question"),
    [
        (of_a_flag, "'flag' is True"),
        (of_an_item, "a part of 'batch' is None"),
        (of_what_get_gives, "a part of 'batch' is None"),
        (of_a_mapping, "'batch' is a mapping"),
    ],
)
def test_other_comparisons_are_found(tests_in, function, question):
    found = tests_in(function.__code__)

    assert [test.question.format(name=name) for name, test in found.items()] == [question]
    assert not any(test.is_for_none for test in found.values())


def by_a_local_function(x, mask=None):
    def helper(value):
        return x if value is None else value

    return helper(mask)


def in_a_loop(x, mask=None):
    for part in (x, mask):
        if part is None:
            return x
    return mask


def in_a_generator(x, mask=None):
    return all(part is not None for part in (x, mask))


@pytest.mark.parametrize("function", [by_a_local_function, in_a_loop, in_a_generator])
def test_comparison_of_what_a_parameter_may_have_become_is_found(tests_in, function):
    found = tests_in(function.__code__)

    assert sorted(found) == ["mask", "x"]
    assert all(test.is_indirect and test.is_for_none for test in found.values())


def of_a_variable(x):
    found = None
    return x if found is None else found


def of_an_attribute(self, x):
    return x if self.bias is None else self.bias


def of_two_variables(x, y):
    return x is y


def of_equality(x, mask=None):
    return x == None or mask != None  # noqa: E711


@pytest.mark.parametrize("function", [of_a_variable, of_an_attribute, of_two_variables, of_equality])
def test_nothing_else_is_taken_for_one(tests_in, function):
    assert tests_in(function.__code__) == {}


def of_an_element(batch):
    return 0 if batch["mask"] is None else 1


def of_an_attribute_of_an_input(batch):
    return 0 if batch.mask is None else 1


def of_an_attribute_with_a_name(batch):
    mask = batch.mask
    return 0 if mask is None else 1


@pytest.mark.parametrize(
    "function",
    [
        of_an_element,
        of_an_attribute_of_an_input,
        of_an_attribute_with_a_name,
    ],
)
def test_what_is_looked_up_where_it_is_compared_is_a_part(tests_in, function):
    found = tests_in(function.__code__)

    assert list(found) == ["batch"]
    assert found["batch"].question == "a part of {name!r} is None"
    assert not found["batch"].is_for_none


# -- what a call has returned


def called():
    """Leave where it was called from in `FRAMES`."""
    frame = sys._getframe(1)
    FRAMES.append((frame.f_code, frame.f_lasti))
    return [None, None]


FRAMES = []


def stored():
    y = called()
    return 1 if y is None else y


def asked_at_once():
    return 1 if called() is None else 2


def asked_in_a_walrus():
    if (y := called()) is not None:
        return y
    return 1


def part_stored():
    y = called()[0]
    if y is None:
        return 1
    return 2


def part_asked_later():
    y = called()
    return 1 if y[1] is None else y


def taken_apart():
    one, other = called()
    if other is None:
        return one
    return other


def under_another_name_later():
    y = called()
    z = y
    return z is None


def in_a_closure():
    y = called()

    def inner():
        return y

    return 1 if y is None else inner


def asked_before(y=None):
    if y is None:
        y = called()
    return y


def another_is_asked(x=None):
    y = called()
    return y if x is None else x


def nothing_is_asked():
    y = called()
    return y[0], y[1]


def handed_on():
    return called()


WHOLE = [stored, asked_at_once, asked_in_a_walrus, under_another_name_later, in_a_closure]
PARTS = [part_stored, part_asked_later, taken_apart]
NEITHER = [asked_before, another_is_asked, nothing_is_asked, handed_on]


@pytest.mark.parametrize("function", [*WHOLE, *PARTS, *NEITHER])
def test_result_that_is_compared_later_is_found(identity, function):
    function()
    code, offset = FRAMES.pop()

    test = identity.test_of_result(code, offset)

    assert (test is not None) == (function not in NEITHER)
    assert test is None or (
        test.is_for_none == (function in WHOLE) and test.line.function == function.__name__
    )
    assert identity.is_result_returned(code, offset) == (function is handed_on)


# -- comparisons of any two values


SENTINEL = object()


def two_variables(x):
    y = x + 1
    return x if y is x else y


def a_call_and_a_variable(x):
    return x if x.contiguous() is x else None


def an_attribute_of_an_attribute(self, x):
    return x if self.weight is not self.inner.weight else None


def an_element(x, parts):
    return x if parts[0] is x else None


def an_element_of_an_attribute(self, layer):
    return layer if self.layers[-1] is layer else None


def a_class(x, y):
    return x if type(x) is type(y) else None


def by_an_operator(x, y):
    return operator.is_not(x, y)


def a_global(x):
    return x if x is SENTINEL else None


def an_attribute_of_a_global(self, x):
    return x if self.act is sys.exit else None


def inside(x):
    return any(part is x for part in [x])


def inside_of_its_own(x):
    return x, lambda y, z: y.real is z


COMPARISONS = {
    two_variables: [("y",), ("x",)],
    a_call_and_a_variable: [(), ("x",)],
    an_attribute_of_an_attribute: [("self", "weight"), ("self", "inner", "weight")],
    an_element: [("parts", "[]"), ("x",)],
    an_element_of_an_attribute: [("self", "layers", "[]"), ("layer",)],
    a_class: [("", "type"), ("", "type")],
    by_an_operator: [(), ()],
    a_global: [("x",), ("", "SENTINEL")],
    an_attribute_of_a_global: [("self", "act"), ("", "sys", "exit")],
    inside: [(), ("x",)],
    inside_of_its_own: [(), ()],
}


@pytest.mark.parametrize("function", COMPARISONS)
def test_comparisons_of_two_values_are_found_with_what_they_read(identity, function):
    (found,) = identity.comparisons_in(function.__code__)
    assert [found.one, found.other] == COMPARISONS[function]
    later = {two_variables: 2, by_an_operator: 0}.get(function, 1)
    assert found.line.line == function.__code__.co_firstlineno + later


def with_none(x):
    return x if x is None else x + 1


def with_what_is_heard(x, y):
    return x if x.dtype is y.dtype else y


@pytest.mark.parametrize("function", [with_none, with_what_is_heard, stored])
def test_comparisons_with_constants_and_of_metadata_are_others(identity, function):
    assert identity.comparisons_in(function.__code__) == ()


def in_a_loop(parts):
    first = None
    for part in parts:
        last = part.next()
        first = last
    end = first
    return end, end


def test_what_is_assigned_later_hangs_on_where_the_function_is(identity):
    code = in_a_loop.__code__
    entries = [entry for entry in dis.get_instructions(code) if entry.argval == "next"]
    assert identity.assigned_later(code, entries[0].offset) == {"first", "part", "last", "end"}
    assert identity.assigned_later(code, 0) == {"first", "part", "last", "end"}
    assert identity.assigned_later(code, len(code.co_code)) == frozenset()
    ends = [entry for entry in dis.get_instructions(code) if entry.argval == "end"]
    assert identity.assigned_later(code, ends[0].offset - 2) <= {"end"}
