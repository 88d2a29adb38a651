"""Inputs by name (`example_kwargs`), for all that runs a model on examples."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import ConfigError
from fxplug.plugins import PluginManager

X, BIAS = torch.ones(2, 3), torch.full((3,), 2.0)
EMPTY = PluginManager(candidates=[], environ={})


class Model(nn.Module):
    """Takes its inputs by position and by name, and one by name alone."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, scale=1.0, bias=None, *, offset=None):
        y = self.linear(x) * scale
        if bias is not None:
            y = y + bias
        return y if offset is None else y + offset


class Swapped(Model):
    """The same parameters in another order."""

    def forward(self, x, bias=None, scale=1.0):
        return super().forward(x, scale, bias)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().eval()


@pytest.mark.parametrize(
    ("args", "kwargs"), [((X,), {"bias": BIAS}), (None, {"bias": BIAS, "x": X}), (X, {"bias": BIAS})]
)
def test_optimize_takes_inputs_by_name(model, args, kwargs):
    result = fxplug.optimize(model, args, example_kwargs=kwargs, measure=False, manager=EMPTY)

    assert result.check.passed
    for given in (X, X * 2):
        assert torch.allclose(result.module(given, bias=BIAS * 3), model(given, bias=BIAS * 3))
        assert torch.allclose(result.module(given, 1.0, BIAS), model(given, bias=BIAS))


def test_it_makes_a_difference_what_is_given_by_name(model):
    with_bias = fxplug.optimize(model, X, example_kwargs={"bias": BIAS}, measure=False, manager=EMPTY)
    without = fxplug.optimize(model, X, example_kwargs={}, measure=False, manager=EMPTY)

    assert torch.allclose(with_bias.module(X, bias=BIAS), without.module(X) + BIAS)


def test_what_runs_a_model_beside_it_takes_inputs_by_name(model):
    given = {"example_kwargs": {"bias": BIAS}, "manager": EMPTY}

    assert fxplug.compare(model, model, X, **given).passed
    assert not fxplug.bisect(model, X, **given).found
    for measured in (fxplug.cost(model, X, **given), fxplug.profile(model, X, runs=1, warm_up=0, **given)):
        assert "add" in {row.name for row in measured.rows("node")}
    assert fxplug.plan(model, X, backend="eager", **given)
    assert fxplug.estimate(model, X, "nvidia-h200-sxm", **given)


def test_a_graph_module_takes_inputs_by_name(model):
    captured = fxplug.trace(model, (X,), example_kwargs={"bias": BIAS})
    result = fxplug.optimize(captured, X, example_kwargs={"bias": BIAS}, measure=False, manager=EMPTY)

    assert torch.allclose(result.module(X, bias=BIAS), model(X, bias=BIAS))


FUNCTIONS = {
    "optimize": lambda model, *args, **kwargs: fxplug.optimize(model, *args, **kwargs, manager=EMPTY),
    "bisect": lambda model, *args, **kwargs: fxplug.bisect(model, *args, **kwargs, manager=EMPTY),
    "compare": lambda model, *args, **kwargs: fxplug.compare(model, model, *args, **kwargs, manager=EMPTY),
    "cost": lambda model, *args, **kwargs: fxplug.cost(model, *args, **kwargs, manager=EMPTY),
    "plan": lambda model, *args, **kwargs: fxplug.plan(
        model, *args, **kwargs, backend="eager", manager=EMPTY
    ),
    "profile": lambda model, *args, **kwargs: fxplug.profile(model, *args, **kwargs, manager=EMPTY),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_names_that_the_model_does_not_know_are_refused(model, name):
    with pytest.raises(ConfigError) as caught:
        FUNCTIONS[name](model, X, example_kwargs={"biass": BIAS})

    assert caught.value.message == (
        "Cannot call Model with the example inputs (1 by position, ['biass'] by name): got an unexpected keyword "
        "argument 'biass'. Give example_inputs as the arguments of a call, in a tuple, and example_kwargs as a dict."
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs_by_name_alone_are_refused(model, name):
    with pytest.raises(
        ConfigError, match="Cannot use example_kwargs for 'offset': Model takes it by name alone"
    ):
        FUNCTIONS[name](model, X, example_kwargs={"offset": BIAS})


def test_a_value_that_is_given_twice_is_refused(model):
    with pytest.raises(ConfigError, match="multiple values for argument 'x'"):
        fxplug.optimize(model, X, example_kwargs={"x": X})


def test_what_is_no_dict_is_refused(model):
    with pytest.raises(ConfigError, match="Cannot use a list as example_kwargs: give a dict"):
        fxplug.optimize(model, X, example_kwargs=[BIAS])


def test_modules_that_take_names_at_other_positions_are_not_compared(model):
    with pytest.raises(
        ConfigError, match=r"\['bias'\] are parameters at other positions in Swapped than in Model"
    ):
        fxplug.compare(model, Swapped().eval(), X, example_kwargs={"bias": BIAS}, manager=EMPTY)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1], "Cannot use a list as example_kwargs: give a dict of parameter name -> value."),
        ({1: 2}, "Cannot use 1 as a name in example_kwargs: give a dict of parameter name -> value."),
    ],
    ids=["list", "number"],
)
def test_what_is_no_dict_of_names_is_refused_by_trace(given, message):
    with pytest.raises(fxplug.TraceError, match=re.escape(message)) as refused:
        fxplug.trace(lambda x: x + 1, (torch.ones(2),), example_kwargs=given)

    assert refused.value.code == "FXP-T064"
