"""Attributes that are called like globals are no globals, and globals are found by whatever way leads to them."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError

X = torch.linspace(1, 2, 6).reshape(2, 3)
OPTIMIZER = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)


def loss():
    return X.sum()


class Helper:
    @staticmethod
    def total():
        return X.sum()


helpers = ModuleType("helpers_of_this_test")
helpers.X = X
exec("def total(): return X.sum()", vars(helpers))
inner = ModuleType("package_of_this_test")
inner.helpers = helpers


class Holding(nn.Module):
    """Has attributes that are called like functions, classes and tensors of this file."""

    def __init__(self):
        super().__init__()
        self.loss, self.Helper, self.X, self.OPTIMIZER, self.helpers = 3, 4, 5, 6, 7
        self.step = self.total = 8

    def forward(self, given):
        return (
            given * self.loss + self.Helper + self.X + self.OPTIMIZER + self.step + self.helpers * self.total
        )


@pytest.mark.parametrize("mode", ["symbolic", "value", "shape"])
def test_attributes_that_are_called_like_globals_lead_to_none(mode):
    captured = fxplug.trace(Holding(), (X,), mode=mode)
    assert torch.equal(captured(X + 1), Holding()(X + 1))


def by_name(given):
    return given * loss()


def by_class(given):
    return given * Helper.total()


def by_inner_function(given):
    def scaled():
        return given * loss()

    return scaled()


def by_inner_class(given):
    class Local:
        factor = loss()

    return given * Local.factor


def by_module(given):
    return given * helpers.total()


def by_attribute_of_module(given):
    return given * helpers.X


def by_own_module(given):
    return given * sys.modules[__name__].loss()


def by_text(given):
    return given * getattr(sys.modules[__name__], "loss")()  # noqa: B009 - the text is what is tested


def by_import(given):
    import importlib

    return given * importlib.import_module(__name__).loss()


def by_import_for_an_inner_function(given):
    import importlib

    own = importlib.import_module(__name__)

    def scaled():
        return given * own.loss()

    return scaled()


class ByHeldModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = sys.modules[__name__]

    def forward(self, given):
        return given * self.own.loss()


@pytest.mark.parametrize(
    "program",
    [
        by_name,
        by_class,
        by_inner_function,
        by_inner_class,
        by_module,
        by_attribute_of_module,
        by_own_module,
        by_text,
        by_import,
        by_import_for_an_inner_function,
        ByHeldModule(),
    ],
    ids=lambda program: getattr(program, "__name__", "held module"),
)
def test_examples_that_a_program_finds_are_refused_by_whatever_way_it_finds_them(program):
    with pytest.raises(TraceError, match=r"finds (it )?by itself") as info:
        fxplug.trace(program, (X,), check=False)
    assert info.value.code == "FXP-T061"
