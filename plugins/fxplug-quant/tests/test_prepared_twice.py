"""What was prepared can be converted or exported once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug_quant
from fxplug_quant.errors import QuantizationError

WAYS = [fxplug_quant.convert, fxplug_quant.export_canonical]


def prepared() -> fxplug_quant.Prepared:
    model, data = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval(), torch.randn(16, 8)
    return fxplug_quant.prepare(model, None, data).calibrate([data])


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_a_second_time_is_refused(first, second):
    one = prepared()
    module = first(one)
    data = torch.randn(16, 8)
    expected = module(data)
    with pytest.raises(QuantizationError, match="since it was prepared") as caught:
        second(one)
    assert caught.value.code == "FXP-Q005"
    assert torch.equal(module(data), expected)
