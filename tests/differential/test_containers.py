"""Containers of classes of their own."""

from __future__ import annotations

from collections import OrderedDict, defaultdict

import pytest
import torch

import fxplug


class Sequence(list):
    pass


class Coordinates(tuple):
    __slots__ = ()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: OrderedDict(x=x),
        lambda x: defaultdict(list, x=x),
        lambda x: Sequence([x]),
        lambda x: Coordinates([x]),
        lambda x: [torch.Size([2, 3]), x],
    ],
    ids=["OrderedDict", "defaultdict", "list", "tuple", "torch.Size"],
)
def test_containers_keep_their_class(make):
    module = fxplug.symbolic_trace(make)

    assert [type(value) for value in tree(module(5))] == [type(value) for value in tree(make(5))]


def tree(value):
    """Yield a value and what it contains."""
    yield value
    if isinstance(value, (list, tuple, dict)):
        for element in value.values() if isinstance(value, dict) else value:
            yield from tree(element)
