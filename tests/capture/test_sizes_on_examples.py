"""Sizes that a program gives on example inputs to functions that take them: whether others are taken, too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import fft, nn
from torch.fft import irfft

import fxplug
from fxplug.errors import GuardError

X, OTHER = torch.rand(2, 4, 8), torch.rand(3, 5, 10)

TRANSFORMS = {
    "by name": lambda x: torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1]),
    "by place": lambda x: torch.fft.irfft(torch.fft.rfft(x), x.size(-1)),
    "of a module": lambda x: fft.irfft(fft.rfft(x), n=x.shape[-1]),
    "of a name": lambda x: irfft(fft.rfft(x), n=x.shape[-1]),
    "two sizes": lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[-2:]),
    "a tuple": lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=(x.size(-2), x.size(-1))),
    "computed": lambda x: torch.fft.rfft(x, n=2 * x.shape[-1]).real,
    "frequencies": lambda x: x + torch.fft.fftfreq(x.shape[-1]),
    "a power": lambda x: torch.linalg.matrix_power(torch.eye(3) * 2, x.shape[0]),
}


class SpectralConvolution(nn.Module):
    """The layer of Fourier neural operators."""

    def __init__(self, modes=3):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.rand(4, 4, modes, dtype=torch.cfloat))

    def forward(self, x):
        found = torch.fft.rfft(x)
        out = torch.zeros(x.shape[0], 4, x.size(-1) // 2 + 1, dtype=torch.cfloat)
        out[:, :, : self.modes] = torch.einsum("bix,iox->box", found[:, :, : self.modes], self.weight)
        return torch.fft.irfft(out, n=x.size(-1))


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("program", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_transforms_take_other_sizes(program, mode):
    captured = fxplug.trace(program, (X,), mode=mode)

    assert {guard.text for guard in captured.guards} <= {"x.dim() == 3"}
    torch.testing.assert_close(captured(OTHER), program(OTHER))


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_an_operator_of_fourier_takes_every_resolution(mode):
    model, finer = SpectralConvolution(), torch.rand(5, 4, 16)

    captured = fxplug.trace(model, (X,), mode=mode)

    torch.testing.assert_close(captured(finer), model(finer))


def test_what_is_called_is_looked_up_where_it_was_read():
    def program(x):
        return (torch if x.dim() == 3 else math).fft.irfft(torch.fft.rfft(x), n=x.shape[-1])

    captured = fxplug.trace(program, (X,))

    torch.testing.assert_close(captured(X + 1), program(X + 1))
    with pytest.raises(GuardError, match=r"x.shape\[2\] == 8"):
        captured(OTHER)


def test_a_number_that_another_function_reads_is_guarded():
    def program(x):
        steps = x.shape[-1]
        table = [0.5] * 20
        return torch.fft.irfft(torch.fft.rfft(x), n=steps) * table[steps]

    captured = fxplug.trace(program, (X,))

    with pytest.raises(GuardError, match=r"x.shape\[2\] == 8"):
        captured(OTHER)
