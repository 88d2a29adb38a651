"""What cannot be traced because of how it was asked for: errors that name the thing and the remedy."""

from __future__ import annotations

import copy
import functools
import math

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture import PH, Tracer
from fxplug.errors import TraceError


def program(x, d=None):
    return x if d is None else x * 2


@pytest.mark.parametrize(
    ("given", "found"),
    [("d", "is 'd', a str"), (3, "is 3, a int"), ({"d"}, "is {'d'}, a set"), ({1: 2}, "the name 1, a int")],
    ids=["text", "number", "set", "name"],
)
def test_concrete_args_of_another_kind(given, found):
    with pytest.raises(TraceError, match=rf"trace 'program': concrete_args .*{found}\. Give a dict"):
        fxplug.symbolic_trace(program, given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": 3}, r"policy is 3, a int\. Pass a fxplug\.TracePolicy"),
        ({"autowrap_modules": (3,)}, r"autowrap_modules holds 3, a int\. Pass a tuple of Python modules"),
        ({"autowrap_modules": math}, r"autowrap_modules is <module 'math'.*Pass a tuple"),
        ({"autowrap_functions": torch.relu}, r"autowrap_functions is <built-in.*Pass a tuple of functions"),
        ({"autowrap_functions": ("relu",)}, r"autowrap_functions holds 'relu', a str"),
    ],
)
def test_settings_of_a_tracer(settings, message):
    with pytest.raises(TraceError, match=message):
        Tracer(**settings)


def test_a_tracer_that_was_not_set_up():
    class Bare(Tracer):
        def __init__(self):
            pass

    with pytest.raises(TraceError, match=r"__init__ of .*Bare does not set up.*super\(\)\.__init__\(\)"):
        Bare().trace(program)


@pytest.mark.parametrize(
    "function", [torch.relu, functools.partial(torch.add, other=1)], ids=["c", "partial"]
)
def test_a_function_without_a_signature(function):
    with pytest.raises(TraceError, match=r"does not know its signature .*such as a lambda"):
        fxplug.symbolic_trace(function)


@fxplug.wrap
def kept(x, values):
    return x


def cyclic(value=None):
    values = [value]
    values.append({"more": values})
    return values


class Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.identity = nn.Identity()

    def forward(self, x, named=False):
        return self.identity(input=cyclic(x)) if named else self.identity(cyclic(x))


@pytest.mark.parametrize(
    ("root", "concrete"),
    [
        (program, {"d": cyclic(PH)}),
        (cyclic, None),
        (lambda x, d: cyclic(x), {"d": [PH]}),
        (lambda x: kept(x, cyclic()), None),
        (lambda x: kept(1, cyclic(x)), None),
        (lambda x: x.view(cyclic()), None),
        (Leaf(), {"named": False}),
        (Leaf(), {"named": True}),
    ],
    ids=["concrete", "returned", "nested", "beside", "wrapped", "method", "leaf", "named"],
)
def test_what_contains_itself(root, concrete):
    with pytest.raises(TraceError, match=r"Cannot record .*contains itself.*\[FXP-T006\]$"):
        fxplug.symbolic_trace(root, concrete)


def test_what_stands_in_two_places_does_not_contain_itself(capture):
    def twice(x):
        part = [x]
        return kept(x, [part, part, {"a": part}])

    assert capture(twice)(torch.ones(1)).item() == 1


def test_parameter_called_self_beside_a_structure():
    with pytest.raises(TraceError, match=r"'values' a structure: .*called 'self'.*\[FXP-T031\]$"):
        Tracer().trace(lambda self, values: values[0] + self, {"values": [PH]})


class Starred(nn.Module):
    def forward(*args):
        return args[1] + len(args)


def test_forward_without_self(capture):
    with pytest.raises(
        TraceError, match=r"forward': its starred parameter receives the object.*self.*FXP-T008"
    ):
        capture(Starred())
    module = fxplug.symbolic_trace(Starred(), {"args": (PH, PH)})
    assert module(1, 2) == Starred()(1, 2) == 4


# -- scripted modules


class Inner(nn.Module):
    def forward(self, x):
        return x + 1


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2


@pytest.fixture(scope="module", params=["scripted", "traced"])
def compiled(request):
    if request.param == "traced":
        return torch.jit.trace(Inner(), torch.ones(2))
    return torch.jit.script(Inner())


pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def test_copies_of_scripted_submodules_are_called(capture, compiled):
    for inner in (compiled, copy.deepcopy(compiled)):
        assert capture(Outer(inner))(torch.ones(1)).item() == 4


def test_scripted_root_is_refused(compiled):
    with pytest.raises(TraceError, match=r"scripted module.*Trace the module that was scripted.*FXP-T014"):
        fxplug.symbolic_trace(compiled)
