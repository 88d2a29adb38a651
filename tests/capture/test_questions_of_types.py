"""Questions about the type of a traced value that reach it by a way of their own."""

from __future__ import annotations

import typing
from typing import Optional, Union

import pytest
import torch
from torch import nn

import fxplug

X = torch.linspace(-2, 2, 8).reshape(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4))


def net_of(forward):
    return type("Asking", (Net,), {"forward": forward})().eval()


def of_an_annotated_input(self, x: torch.Tensor):
    return x * 2 if isinstance(x, Optional[torch.Tensor]) else x * 3  # noqa: UP045 - what is tested


def of_a_result(self, x):
    return x * 2 if isinstance(self.layer(x), Union[torch.Tensor, int]) else x * 3  # noqa: UP007


def of_a_result_that_is_no_sequence(self, x):
    return x * 2 if isinstance(self.layer(x), typing.Sequence) else x * 3


def of_a_shape(self, x):
    return x * 2 if isinstance(x.shape, typing.Sequence) else x * 3


def of_a_list(self, x):
    return x * 2 if isinstance([x], typing.Sequence) else x * 3


def of_a_weight(self, x):
    return x * 2 if isinstance(self.weight, Optional[nn.Parameter]) else x * 3  # noqa: UP045


@pytest.mark.parametrize(
    "forward",
    [
        *(of_an_annotated_input, of_a_result, of_a_result_that_is_no_sequence),
        *(of_a_shape, of_a_list, of_a_weight),
    ],
)
def test_what_typing_has_for_classes_is_answered(forward):
    net = net_of(forward)
    for captured in (fxplug.symbolic_trace(net), fxplug.trace(net, (X,))):
        torch.testing.assert_close(captured(X), net(X))
    assert not isinstance(X, Optional[int])  # noqa: UP045 - it is as it was


def of_an_input(self, x):
    return x * 2 if isinstance(x, Optional[torch.Tensor]) else x * 3  # noqa: UP045


def of_a_weight_that_is_handed_on(self, x):
    w = self.weight.contiguous()
    return x * 2 if isinstance(w, Union[nn.Parameter, int]) else x * 3  # noqa: UP007


@pytest.mark.parametrize("forward", [of_an_input, of_a_weight_that_is_handed_on])
def test_what_is_not_certain_is_refused(forward):
    with pytest.raises(fxplug.TraceError, match="FXP-T040"):
        fxplug.symbolic_trace(net_of(forward))


def tries(self, x):
    try:
        return x.scale * x
    except AttributeError:
        return x * 3


def tries_in_a_function(self, x):
    try:
        return scaled(x)
    except Exception:
        return x * 3


def scaled(x):
    return x.scale * x


def tries_and_needs_nothing(self, x):
    try:
        scale = x.scale
    except AttributeError:
        return x * 3
    del scale
    return x * 2


@pytest.mark.parametrize("forward", [tries, tries_in_a_function, tries_and_needs_nothing])
def test_a_missing_attribute_is_noticed_where_the_program_catches_that(forward):
    net = net_of(forward)
    with pytest.raises(fxplug.GuardError, match="AttributeError"):
        fxplug.symbolic_trace(net)(X)
    torch.testing.assert_close(fxplug.trace(net, (X,))(X), X * 3)


def tries_what_a_tensor_has_not(self, x):
    y = self.layer(x)
    try:
        scale = y.scale
    except AttributeError:
        scale = 3
    return x * scale


def catches_something_else(self, x):
    try:
        return x.scale * x
    except KeyError:
        return x * 3


def test_other_tries_are_recorded():
    net = net_of(tries_what_a_tensor_has_not)
    torch.testing.assert_close(fxplug.symbolic_trace(net)(X), X * 3)
    captured = fxplug.symbolic_trace(net_of(catches_something_else))
    given = X.clone()
    given.scale = 2
    torch.testing.assert_close(captured(given), X * 2)
