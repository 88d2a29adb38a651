"""What a frame is calling, read from its bytecode."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from fxplug.capture.callsites import called_by, expects_sizes

holder = types.ModuleType("holder")
holder.hex = hex


class Asking:
    """Asks who wants to have a number."""

    def __init__(self):
        self.callees: list = []

    def __index__(self):
        self.callees.append(called_by(sys._getframe(1)))
        return 0


class Shaped:
    def __init__(self, asking):
        self.shape = (asking,)


@pytest.fixture
def asking():
    return Asking()


def local(x):
    function = hex
    return function(x)


def enclosed(x):
    function = hex

    def inner():
        return function(x)

    return inner()


FOUND = {
    "builtin": (lambda x: [hex(x)], hex),
    "attribute_of_a_module": (lambda x: [holder.hex(x)], hex),
    "variable": (local, hex),
    "variable_of_an_enclosing_function": (enclosed, hex),
    "argument": (lambda x, function=hex: function(x), hex),
    "nested_arguments": (lambda x: holder.hex(Shaped(x).shape[0]), hex),
    "call_among_the_arguments": (lambda x: holder.hex(max([x, x], key=id)), hex),
    "several_arguments": (lambda x: range(0, x, 1 + 2 * 3), range),
    "starred": (lambda x: hex(*(x,)), hex),
    "double_starred": (lambda x, named={}: int(x, **named), int),
    "keyword": (lambda x: round(2, ndigits=x), round),
    "method": (lambda x: ["ab".center(x)], "center"),
    "method_of_a_call": (lambda x: bytearray(3).insert(x, 2), "insert"),
    "more_than_255_names": (None, hex),
}


@pytest.mark.parametrize(("call", "callee"), FOUND.values(), ids=FOUND.keys())
def test_callee_is_found(asking, call, callee):
    if call is None:
        names = "".join(f"y{number} = other.y{number}\n    " for number in range(300))
        namespace: dict = {"other": types.SimpleNamespace(**{f"y{number}": 0 for number in range(300)})}
        exec(f"def call(x):\n    {names}return hex(x)", namespace)
        call = namespace["call"]
    call(asking)
    assert asking.callees[-1] == callee


MEETING_WAYS = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="the compiler writes the call twice, once behind each of the two"
)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: [1, 2][x],
        lambda x: [1, 2][x:],
        lambda x: hex(x if x is not None else 2),
        lambda x: hex(x or x),
        lambda x: [*range(1)] * x,
        pytest.param(lambda x: (hex if x is not None else oct)(x), marks=MEETING_WAYS),
        pytest.param(lambda x: (holder if x is not None else oct).hex(x), marks=MEETING_WAYS),
    ],
    ids=["item", "slice", "condition", "or", "operator", "callee", "holder"],
)
def test_what_is_not_plain_to_see_is_not_guessed(asking, use):
    use(asking)
    assert asking.callees[-1] is None


class Sizes:
    def __init__(self):
        self.answers: list = []

    def __index__(self):
        self.answers.append(expects_sizes(sys._getframe(1)))
        return 1


@pytest.mark.parametrize(
    ("use", "answer"),
    [
        (lambda x: torch.zeros(x, 3), True),
        (lambda x: torch.rand(x, 3, dtype=torch.float32), True),
        (lambda x: torch.ones(1, 3).expand(x, 3), True),
        (lambda x: torch.ones(3).new_zeros(x, 3), True),
        (lambda x: torch.eye(x, 2), False),
        (lambda x: [*range(x)], False),
        (lambda x: [torch.zeros(2)].insert(x, torch.zeros(3)), False),
    ],
    ids=["zeros", "rand", "expand", "new_zeros", "eye", "range", "insert"],
)
def test_functions_that_take_sizes_one_by_one(use, answer):
    sizes = Sizes()
    use(sizes)
    assert set(sizes.answers) == {answer}
