"""Settings of torch that a program changes and puts back: what it computes meanwhile is what it computes in eager."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fxplug.errors import TraceError

X = torch.ones(3)


def made(x):
    torch.set_default_dtype(torch.float64)
    y, z = torch.ones(3), torch.arange(3.0)
    torch.set_default_dtype(torch.float32)
    return x + y, z


def made_elsewhere(x):
    torch.set_default_device("meta")
    y = torch.ones(3)
    torch.set_default_device("cpu")
    return x * 2, y.shape[0], torch.zeros(2)


def of_its_arguments(x):
    torch.set_default_dtype(torch.float64)
    y = x * 2 + x
    torch.set_default_dtype(torch.float32)
    return y


def only_between(x):
    torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)
    return (x > 0) / 2


def deterministic(x):
    torch.use_deterministic_algorithms(True)
    y = x.cumsum(0)
    torch.use_deterministic_algorithms(False)
    return y


@pytest.fixture(autouse=True)
def _settings():
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_autocast_enabled("cpu", False)


@pytest.mark.parametrize("program", [made, made_elsewhere, of_its_arguments, only_between, deterministic])
def test_what_does_not_hang_on_them_is_recorded(capture_as, program):
    expected, found = program(X), capture_as(program)(X)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)


def divided(x):
    torch.set_default_dtype(torch.float64)
    y = (x > 0) / 2
    torch.set_default_dtype(torch.float32)
    return y


def with_a_fraction(x):
    torch.set_default_dtype(torch.float64)
    y = (x > 0) * 0.5
    torch.set_default_dtype(torch.float32)
    return y


def softened(x):
    torch.set_default_tensor_type(torch.DoubleTensor)
    y = F.softmax(x, 0)
    torch.set_default_tensor_type(torch.FloatTensor)
    return y


def cast(x):
    torch.set_autocast_enabled("cpu", True)
    y = x.view(1, 3) @ x.view(3, 1)
    torch.set_autocast_enabled("cpu", False)
    return y


def precise(x):
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    y = x.view(1, 3) @ x.view(3, 1)
    torch.set_float32_matmul_precision(former)
    return y


@pytest.mark.parametrize("program", [divided, with_a_fraction, softened, cast, precise])
@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_what_may_hang_on_them_is_refused(capture_as, program):
    with pytest.raises(TraceError, match="and computes something before it puts it back") as info:
        capture_as(program)
    assert info.value.code == "FXP-T050"
    assert "test_settings_for_a_while" in info.value.message
    assert torch.get_default_dtype() is torch.float32
