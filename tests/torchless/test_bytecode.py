"""What the bytecode says about the reason of a question, on the running Python."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import fxplug

PATH = Path(fxplug.__file__).with_name("capture") / "bytecode.py"


@pytest.fixture(scope="module")
def bytecode():
    # Its package needs torch; the module itself does not.
    spec = importlib.util.spec_from_file_location("bytecode_without_torch", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Probe:
    """Notes what is found when it is asked for its truth value, and answers as an assertion wants it."""

    def __init__(self, bytecode):
        self.bytecode = bytecode
        self.found = []

    def __bool__(self):
        frame = sys._getframe(1)
        assertion = self.bytecode.find_assertion(frame.f_code, frame.f_lasti)
        self.found.append(None if assertion is None else (assertion.passes_if, assertion.message))
        return True if assertion is None else assertion.passes_if

    def __gt__(self, other):
        return self


@pytest.fixture
def found(bytecode):
    """(source) -> what is found at each question that it asks. pytest gives other bytecode to assertions of its own."""

    def ask(source):
        probe = Probe(bytecode)
        exec(source, {"probe": probe})
        return probe.found

    return ask


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("assert probe", [(True, None)]),
        ("assert probe, 'with a message'", [(True, "with a message")]),
        ("assert probe, f'computed {probe}'", [(True, None)]),
        ("assert probe > 0", [(True, None)]),
        ("assert probe > 0, 'compared'", [(True, "compared")]),
        ("assert not probe", [(False, None)]),
        ("assert not probe > 0, 'negated'", [(False, "negated")]),
        ("assert probe and probe, 'both'", [(True, "both"), (True, "both")]),
        ("assert probe and not probe, 'one'", [(True, "one"), (False, "one")]),
        ("if not probe:\n    raise AssertionError", [(True, None)]),
        ("if not probe > 0:\n    raise AssertionError('raised')", [(True, "raised")]),
        ("if probe:\n    pass\nelse:\n    raise AssertionError()", [(True, None)]),
    ],
)
def test_assertion(found, source, expected):
    assert found(source) == expected


def test_only_the_last_of_alternatives_has_to_hold(found):
    assert found("assert probe or probe") == [None]
    assert found("assert not probe or probe, 'second'") == [None, (True, "second")]


@pytest.mark.parametrize(
    "source",
    [
        "if probe:\n    pass",
        "if not probe:\n    raise ValueError",
        "probe or None",
        "not probe",
        "bool(probe)",
        "assert bool(probe)",
        "[1 for _ in range(1) if probe]",
        "_ = 1 if probe else 2",
        "_ = 1 if probe else AssertionError",
        "_ = AssertionError if not probe else 2",
        "while not probe:\n    pass",
        "if not probe:\n    print(AssertionError)",
        "if not probe:\n    AssertionError",
    ],
)
def test_other_conditions_are_none(found, source):
    assert found(source) == [None]


def test_assertion_far_down_a_long_function(found):
    lines = "\n".join(f"    name{index} = {index}" for index in range(400))
    source = f"def program():\n{lines}\n    assert probe and probe > 0, 'far'\n{lines}\nprogram()"

    assert found(source) == [(True, "far"), (True, "far")]


def test_parts_that_are_long(found):
    parts = " and ".join(["probe"] * 400)

    assert found(f"assert {parts}, 'all'") == [(True, "all")] * 400


class Unpacked:
    def __init__(self, bytecode):
        self.bytecode = bytecode

    def __iter__(self):
        frame = sys._getframe(1)
        self.count = self.bytecode.unpacked_count(frame.f_code, frame.f_lasti)
        return iter(range(self.count or 0))


@pytest.mark.parametrize("count", [1, 2, 255, 256, 70000])
def test_number_of_names(bytecode, count):
    names = ", ".join(f"name{index}" for index in range(count))
    value = Unpacked(bytecode)
    exec(f"{names}, = value", {"value": value})

    assert value.count == count


def test_loops_and_starred_names_have_no_number(bytecode):
    value = Unpacked(bytecode)
    for _ in value:
        pass
    assert value.count is None
    _, *_ = [0, *value]
    assert value.count is None


# -- variables that are read later, and parameters that are changed


def run(source, bytecode):
    """Run a function of which a line asks, and return what it returns."""

    def ask():
        frame = sys._getframe(1)
        return bytecode.is_read_later(frame.f_code, frame.f_lasti, "value")

    space = {"ask": ask}
    exec(source, space)
    return space["program"](1)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("value = [1]; found = ask(); return found, value", True),
        ("value = [1]; found = ask(); return found, 0", False),
        ("value = [1]; found = ask(); value = 2; return found, value", False),
        ("value = [1]; found = ask(); del value; return found, 0", False),
        ("value = [1]; return ask(), (value, given)", True),
        ("value = [1]; return (ask(), value)", True),
        ("value = [1]; pair = value, value, ask(); return pair[2], 0", True),
        ("value = given; found = ask()\n if given > 5: return found, value\n return found, 0", True),
        (
            "value = given; found = ask()\n if given > 5: value = 3\n else: value = 4\n return found, value",
            False,
        ),
        ("value = given\n for _ in range(1):\n  found = ask(); value = 2\n return found, 0", False),
        ("value = given\n for _ in range(1):\n  given = value; found = ask()\n return found, 0", True),
        ("value = given\n for _ in range(1):\n  value = 2; found = ask()\n return found, value", True),
        ("value = given; found = ask(); return found, [value for _ in range(2)]", True),
        ("value = given; other = lambda: value; found = ask(); return found, 0", True),
        (
            "value = given\n try: found = ask()\n except ValueError: return True, value\n return found, 0",
            True,
        ),
        ("value = given; found = ask(); raise KeyError(value) if given > 5 else LookupError(found)", None),
    ],
)
def test_whether_a_variable_is_read_later(bytecode, body, expected):
    source = f"def program(given):\n {body}"
    if expected is None:
        with pytest.raises(LookupError) as caught:
            run(source, bytecode)
        assert caught.value.args == (True,)
        return

    assert run(source, bytecode)[0] is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("first[0] = 1", {"first"}),
        ("first[second] = 1", {"first"}),
        ("first.append(second)", {"first"}),
        ("del first['key']", {"first"}),
        ("if second: first.update(key=second)", {"first"}),
        ("first[0] += 1", set()),
        ("return first[0] + second", set()),
        ("out = []; out.append(first); return out", set()),
        ("first = list(first); first[0] = second; return first", set()),
        ("out = {}; out[first] = second; return out", set()),
        ("out = {}; out[0] = first; out[second] = first; return out", set()),
        ("first.add_(second)", set()),
    ],
)
def test_parameters_that_are_plainly_changed(bytecode, body, expected):
    space = {}
    exec(f"def program(first, second):\n {body}", space)

    assert bytecode.changed_parameters(space["program"].__code__) == expected


def test_names_that_are_read_as_globals(bytecode):
    many = "; ".join(f"a{number}.b{number}" for number in range(400))
    body = "len(given.first); global third; third = given.second(); return fourth.fifth"
    space = {}
    exec(f"def program(given):\n {many}; {body}", space)
    code = space["program"].__code__

    assert bytecode.globals_read(code) == {"len", "fourth", *(f"a{number}" for number in range(400))}
    assert bytecode.globals_read(compile("first.second", "", "eval")) == {"first"}
    assert bytecode.globals_read((lambda given: given.first).__code__) == set()
