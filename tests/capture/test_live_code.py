"""Code without what cannot run, since constants of its object decide otherwise."""

from __future__ import annotations

import dis
import sys

import pytest
import torch
from torch import nn

from fxplug.capture.live_code import conditions_in, live_code
from fxplug.capture.plain_functions import plain_parts
from fxplug.capture.plain_programs import plain_program


def own_code(function):
    return function.__code__


def names_in(code):
    return {entry.argval for entry in dis.get_instructions(code) if entry.opcode in dis.hasname}


def answered(function, *answers):
    return live_code(function.__code__, answers)


def one_way_or_another(self, x):
    if self.flag:
        return x.sin()
    return x.cos()


def only_if_not(self, x):
    if not self.flag:
        x = x.sin()
    return x.cos()


def both(self, x):
    x = x.sin() if self.flag and not torch.jit.is_scripting() else x.cos()
    return x.tan()


def if_there_is_one(self, x):
    if self.held is not None:
        x = x.sin()
    return x.cos()


def if_it_has_one(self, x):
    held = getattr(self, "held", None)
    if held is not None:
        x = x.sin()
    return x.cos()


def in_a_loop(self, x):
    for _ in range(3):
        if self.flag:
            x = x.sin()
            continue
        x = x.cos()
    return x.tan()


def with_inner_code(self, x):
    if self.flag:
        x = torch.stack([x.sin() for _ in range(3)])
    return x.cos()


def test_what_is_not_reached_is_not_there():
    assert names_in(answered(one_way_or_another, True)) == {"flag", "sin"}
    assert names_in(answered(one_way_or_another, False)) == {"flag", "cos"}
    assert names_in(answered(only_if_not, True)) == {"flag", "cos"}
    assert names_in(answered(only_if_not, False)) == {"flag", "sin", "cos"}
    assert answered(one_way_or_another, None) is one_way_or_another.__code__


def test_one_condition_may_say_that_the_other_is_not_asked():
    named = {"flag", "torch", "jit", "is_scripting"}
    assert names_in(answered(both, False, None)) == {"flag", "cos", "tan"}
    assert names_in(answered(both, True, False)) == {*named, "sin", "tan"}
    assert names_in(answered(both, None, True)) == {*named, "cos", "tan"}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 compares with None in more instructions")
def test_what_is_none_and_what_is_missing_decide_too():
    assert names_in(answered(if_there_is_one, True)) == {"held", "cos"}
    assert names_in(answered(if_there_is_one, False)) == {"held", "sin", "cos"}
    assert names_in(answered(if_it_has_one, True)) == {"getattr", "cos"}


def test_loops_go_on():
    assert names_in(answered(in_a_loop, True)) == {"range", "flag", "sin", "tan"}
    assert names_in(answered(in_a_loop, False)) == {"range", "flag", "cos", "tan"}


def test_functions_and_texts_in_what_is_not_reached_are_gone():
    live = answered(with_inner_code, False)
    assert not any(hasattr(value, "co_code") for value in live.co_consts)
    assert "stack" not in live.co_names


def handles_errors(self, x):
    try:
        return x.sin() if self.flag else x
    except ValueError:
        return x


def stores_another_self(self, x):
    self = x
    return x.sin() if self.flag else x


def asks_what_was_called(self, x):
    return x.sin() if self.child(x).flag else x


def asks_what_is_computed(self, x):
    return x.sin() if self.flag + 1 else x


def stores_it_twice(self, x):
    held = getattr(self, "held", None)
    held = x.sin() if held is None else held
    if held is not None:
        x = x.cos()
    return x


def stores_it_in_a_parameter(self, x, held=None):
    if x.ndim > 1:
        held = getattr(self, "held", None)
    if held is not None:
        x = x.cos()
    return x


def stores_it_in_one_by_name(self, x, *, held=None):
    if held is not None:
        x = x.cos()
    held = getattr(self, "held", None)
    return x


def stores_it_behind_stars(self, x, *held):
    if x.ndim > 1:
        held = getattr(self, "held", None)
    return x if held is None else x.cos()


def asks_one_of_two(self, x):
    return x.sin() if (x if x.ndim > 1 else self).flag else x


def calls_one_of_two(self, x):
    return x.sin() if (x.is_cuda if x.ndim > 1 else torch.jit.is_scripting)() else x


@pytest.mark.parametrize(
    "function",
    [
        *(
            asks_one_of_two,
            asks_what_is_computed,
            asks_what_was_called,
            calls_one_of_two,
            stores_another_self,
        ),
        *(stores_it_behind_stars, stores_it_in_a_parameter, stores_it_in_one_by_name, stores_it_twice),
    ],
)
def test_other_conditions_are_left_alone(function):
    assert conditions_in(function.__code__) == ()


def names_of(code):
    return {name for name in code.co_names if name}


def test_what_handles_errors_is_reached_from_what_raises_them():
    code = handles_errors.__code__
    assert names_of(live_code(code, [False])) == {"flag", "ValueError"}
    assert live_code(code, [False]).co_exceptiontable == code.co_exceptiontable


def handles_errors_behind_a_flag(self, x):
    if self.flag:
        try:
            x = x.sin()
        except ValueError:
            x = x.cos()
    return x.neg()


def test_what_handles_errors_is_not_reached_where_nothing_raises_them():
    code = handles_errors_behind_a_flag.__code__
    assert names_of(live_code(code, [False])) == {"flag", "neg"}
    assert names_of(live_code(code, [True])) == names_of(code)


class Net(nn.Module):
    kind = "fixed"

    def __init__(self, **attributes):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        for name, value in attributes.items():
            setattr(self, name, value)


def unplain_behind_a_flag(self, x):
    if self.flag:
        x = x + len(list(x))
    return self.layer(x)


def unplain_behind_none(self, x):
    if self.flag is not None:
        x = x + len(list(x))
    return self.layer(x)


def unplain_where_it_has_one(self, x):
    flag = getattr(self, "flag", None)
    if flag is not None:
        x = x + len(list(x))
    return self.layer(x)


def returns_what_it_has(self, x):
    return self.layer(x), getattr(self, "held", None)


def returns_what_it_holds(self, x):
    return self.layer(x), self.held


def is_plain(forward, **attributes):
    net = type("Net", (Net,), {"forward": forward})(**attributes)
    return plain_parts(type(net).forward, net, own_code, with_methods=True) is not None


def test_what_a_module_holds_decides():
    assert is_plain(unplain_behind_a_flag, flag=False)
    assert is_plain(unplain_behind_a_flag, flag=0)
    assert is_plain(unplain_behind_a_flag, flag=None)
    assert not is_plain(unplain_behind_a_flag, flag=True)
    assert not is_plain(unplain_behind_a_flag, flag=nn.Parameter(torch.zeros(())))
    assert not is_plain(unplain_behind_a_flag, flag=[])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 compares with None in more instructions")
def test_what_a_module_has_not_decides():
    assert is_plain(unplain_behind_none, flag=None)
    assert not is_plain(unplain_behind_none, flag=nn.Linear(4, 4))
    assert is_plain(unplain_where_it_has_one)
    assert is_plain(unplain_where_it_has_one, flag=None)
    assert not is_plain(unplain_where_it_has_one, flag=nn.Linear(4, 4))
    assert not is_plain(unplain_where_it_has_one, flag=1)


@pytest.mark.parametrize("forward", [returns_what_it_has, returns_what_it_holds])
def test_what_is_handed_on_is_a_constant(forward):
    for held in (None, 1, "text", (1, (2.0, None)), torch.Size((1, 2)), nn.Parameter(torch.zeros(()))):
        assert is_plain(forward, held=held)
    for held in ([1], (1, [2]), (object(),), object(), nn.Linear(4, 4), torch.zeros(())):
        assert not is_plain(forward, held=held)
    assert is_plain(returns_what_it_has)
    assert not is_plain(returns_what_it_holds)


def test_what_a_module_holds_stands_before_what_its_class_holds():
    for flag in (False, True):
        kind = type("Net", (Net,), {"forward": unplain_behind_a_flag, "flag": not flag})
        net = kind(flag=flag)
        assert (plain_parts(kind.forward, net, own_code, with_methods=True) is not None) is not flag
        assert (plain_parts(kind.forward, kind(), own_code, with_methods=True) is not None) is flag
    kind = type("Net", (Net,), {"forward": returns_what_it_holds, "held": 1})
    assert plain_parts(kind.forward, kind(), own_code, with_methods=True) is not None
    assert plain_parts(kind.forward, kind(held=[1]), own_code, with_methods=True) is None


def test_each_module_decides_for_itself():
    kind = type("Net", (Net,), {"forward": unplain_behind_a_flag})
    nets = kind(flag=False), kind(flag=False), kind(flag=True)

    def is_plain_program(*modules):
        return plain_program(modules, own_code, lambda code: False, with_methods=True) is not None

    assert is_plain_program(*nets[:2])
    assert not is_plain_program(*nets)


def test_a_getattr_of_the_program_is_not_that_of_python():
    source = "def forward(self, x):\n    held = getattr(self, 'held', None)\n    return x if held is None else x * held"
    for added in ({}, {"getattr": lambda *given: 3.0}):
        namespace = {**globals(), **added}
        exec(source, namespace)
        assert is_plain(namespace["forward"]) is (not added and sys.version_info >= (3, 11))


def test_what_a_class_computes_decides_nothing():
    class Computing(Net):
        forward = unplain_behind_a_flag

        @property
        def flag(self):
            return False

    net = Computing()
    assert plain_parts(Computing.forward, net, own_code, with_methods=True) is None


def test_where_other_code_runs_it_may_change_what_decides():
    net = type("Net", (Net,), {"forward": unplain_behind_a_flag})(flag=False)
    assert plain_parts(type(net).forward, net, own_code) is None
