"""Attributes of traced values that a program assigns: refused, but for what a class of proxies keeps for itself."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture import GraphAppendingTracer, Proxy, TracePolicy, Tracer
from fxplug.errors import TraceError, TraceWarning


class Box:
    def __init__(self, value):
        self.value = value


@fxplug.wrap
def boxed(x):
    return Box(x)


def data(x):
    y = x.clone()
    y.data = x * 2
    return y


def requires_grad(x):
    y = x.clone()
    y.requires_grad = True
    return y


def field(x):
    box = boxed(x)
    box.value = x * 2
    return box.value


def inner(x):
    box = boxed(x)
    box.value.data = x * 2
    return box


def by_name(x):
    setattr(x, "grad", None)  # noqa: B010 - what the test is about
    return x


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (data, "data"),
        (requires_grad, "requires_grad"),
        (field, "value"),
        (inner, "data"),
        (by_name, "grad"),
    ],
)
def test_assigning_an_attribute_is_refused(capture, program, name):
    with pytest.raises(
        TraceError, match=rf"the attribute '{name}' of .*is assigned at .*in {program.__name__} "
    ) as e:
        capture(program)
    assert e.value.code == "FXP-T015"
    assert "copy_" in str(e.value)


def test_a_program_that_catches_the_refusal_is_refused_all_the_same(capture):
    def program(x):
        with contextlib.suppress(ValueError):
            x.data = x * 2
        return x

    with pytest.raises(TraceError, match="FXP-T015"):
        capture(program)


@pytest.mark.parametrize("shapes", [False, True])
def test_freezing_a_parameter_is_refused(capture, shapes):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            self.weight.requires_grad = False
            return x * self.weight

    with pytest.raises(TraceError, match=r"'requires_grad' of .*FXP-T015"):
        capture(Root(), tracer=Tracer(param_shapes_constant=shapes))


def test_an_update_in_place_of_an_attribute_is_recorded(capture):
    def program(x):
        y = x.clone()
        y.data += 1
        y.data *= 3
        return y

    module = capture(program)
    assert module(torch.ones(1)).item() == program(torch.ones(1)).item() == 6


def test_proxies_made_by_hand_refuse_it_too():
    graph = fxplug.Graph()
    proxy = Proxy(graph.placeholder("x"), GraphAppendingTracer(graph))

    with pytest.raises(TraceError, match="FXP-T015"):
        proxy.data = 3


class Noted(Proxy):
    default = None

    def __init__(self, node, tracer=None):
        super().__init__(node, tracer)
        self.data = "mine"
        self.notes = []

    def rename(self, name):
        self.name = name

    @property
    def grad(self):
        return self._grad_note

    @grad.setter
    def grad(self, value):
        self._grad_note = value


def test_a_class_of_proxies_keeps_what_it_wants():
    graph = fxplug.Graph()
    proxy = Noted(graph.placeholder("x"))
    proxy.rename("mine too")
    proxy.kind = proxy.default = 3
    proxy.grad = 5

    assert (proxy.data, proxy.name, proxy.kind, proxy.default, proxy.grad) == ("mine", "mine too", 3, 3, 5)
    assert proxy.notes == []
    with pytest.raises(TraceError, match="FXP-T015"):
        proxy.requires_grad = True
    assert len(graph.nodes) == 1


def test_proxies_with_something_mixed_in_refuse_what_programs_assign():
    class Mixin:
        def remember(self):
            self.seen = True
            return self

    policy = TracePolicy(proxy_mixins=lambda node, kind, context: (Mixin,))

    def program(x):
        assert x.remember().seen
        x.data = x + 1
        return x

    with pytest.raises(TraceError, match="FXP-T015"):
        Tracer(policy=policy).trace(program)


def test_node_and_tracer_may_be_exchanged():
    graph = fxplug.Graph()
    proxy, other = Proxy(graph.placeholder("x")), graph.placeholder("y")
    proxy.node = other

    assert (proxy + 1).node.args == (other, 1)


class Assigning(nn.Module):
    def __init__(self, assign):
        super().__init__()
        self.register_buffer("state", torch.zeros(2))
        self.assign = assign

    def forward(self, x):
        return self.assign(self, x)


def assign_and_return(module, x):
    module.state = x * 2
    return module.state[:1]


def assign_input(module, x):
    module.state = x
    return x * 2


def assign_copy(module, x):
    module.state = x.clone()
    return module.state * 2


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("assign", [assign_and_return, assign_input])
def test_a_buffer_that_is_to_be_a_tensor_of_others_is_told_of(assign, mode):
    with pytest.warns(
        TraceWarning, match="to the buffer 'state' a tensor that it was given or that it returns"
    ):
        captured = fxplug.trace(Assigning(assign), (torch.ones(2),), mode=mode)
    eager = Assigning(assign)
    for x in (torch.ones(2), torch.ones(2) * 3):
        assert torch.equal(captured(x), eager(x))
        assert torch.equal(captured.state, eager.state)
    with pytest.raises(TraceError, match="would not make them one tensor") as info:
        fxplug.trace(Assigning(assign), (torch.ones(2),), mode=mode, on_mutation="error")
    assert info.value.code == "FXP-T067"


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_buffer_that_is_assigned_need_not_be_read_before(mode):
    captured = fxplug.trace(Assigning(assign_copy), (torch.ones(2),), mode=mode)
    assert torch.equal(captured(torch.ones(2) * 3), torch.full((2,), 6.0))
    assert torch.equal(captured.state, torch.full((2,), 3.0))
