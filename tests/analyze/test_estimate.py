"""Estimates are the longer of two divisions, and say that they are estimates."""

from __future__ import annotations

import pytest
import torch

import fxplug
from fxplug import DeviceRecord
from fxplug.analyze import BUILTIN_DEVICES
from fxplug.plugins import PluginManager

NONE = PluginManager(candidates=[], environ={})
SLOW = DeviceRecord("slow", {"float32": 100.0, "float16": 400.0}, 1000.0, 10**6, "Made up.")


def test_each_call_is_bound_by_arithmetic_or_by_memory():
    def program(a, b):
        return torch.relu(a @ b)

    estimated = fxplug.estimate(program, (torch.ones(10, 10), torch.ones(10, 10)), SLOW, manager=NONE)

    product, relu = estimated.nodes
    assert (product.compute_seconds, product.memory_seconds, product.bound) == (10.0, 1.2, "compute")
    assert (relu.compute_seconds, relu.memory_seconds, relu.bound) == (0.0, 0.8, "memory")
    assert estimated.seconds == 10.8
    assert str(estimated) == "at least 1.08e+04 ms on slow, estimated from data-sheet figures, not measured"


@pytest.mark.parametrize(
    ("dtype", "seconds"), [(torch.float16, 100 / 400), (torch.float32, 100 / 100), (torch.float64, 100 / 100)]
)
def test_the_rate_is_that_of_the_dtype_or_the_lowest(dtype, seconds):
    def program(a, b):
        return a @ b

    inputs = (torch.ones(1, 10, dtype=dtype), torch.ones(10, 10, dtype=dtype))
    (node,) = fxplug.estimate(program, inputs, SLOW, manager=NONE).nodes

    assert node.compute_seconds == seconds


def test_what_no_formula_knows_is_named():
    def program(a):
        return torch.outer(a, a)

    estimated = fxplug.estimate(program, torch.ones(10), SLOW, manager=NONE)

    assert [node.name for node in estimated.unknown] == ["outer"]
    assert estimated.seconds == pytest.approx(0.44)


def test_devices_of_fxplug_name_their_source():
    assert list(NONE.devices()) == [record.name for record in BUILTIN_DEVICES]
    for record in BUILTIN_DEVICES:
        assert "data sheet" in record.source
        assert {"float32", "float16", "bfloat16"} <= record.multiply_adds_per_second.keys()
