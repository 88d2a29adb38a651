"""Sizes that a program gives on example inputs to functions that take them: whether others are taken, too."""

from __future__ import annotations

import json
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


# -- what takes numbers of Python alone


def needs(program, mode="value", inputs=(X,)):
    """Return what is guarded of a program that NumPy gives numbers, besides the class and the dimensions of inputs."""
    captured = fxplug.trace(program, inputs, mode=mode)
    torch.testing.assert_close(captured(*inputs), program(*inputs))
    texts = [guard.text.partition(" (asked")[0] for guard in captured.guards]
    return [text for text in texts if not text.startswith(("type(", "x.dim()"))]


def numpy_programs():
    numpy = pytest.importorskip("numpy")

    def of_unpacked(x):
        rows, columns, depth = x.shape
        return x.view(rows, columns, depth) * numpy.log(depth) + numpy.sqrt(columns)

    return {
        "of one size": (lambda x: x * numpy.log(x.shape[-1]), ["x.shape[2] == 8"]),
        "of a call": (lambda x: x / numpy.sqrt(x.size(-1)), ["x.size(-1) == 8"]),
        "of unpacked sizes": (of_unpacked, ["x.shape[1] == 4", "x.shape[2] == 8"]),
        "computed": (lambda x: x * numpy.log(2 * x.shape[1] + 1), ["x.shape[1] == 4"]),
        "a product": (lambda x: x.reshape(x.shape[0], numpy.prod(x.shape[1:])), []),
    }


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("name", ["of one size", "of a call", "of unpacked sizes", "computed", "a product"])
def test_numpy_needs_the_size_that_it_is_given(name, mode):
    program, guards = numpy_programs()[name]

    assert needs(program, mode) == guards


def test_numpy_needs_the_size_of_a_result():
    numpy = pytest.importorskip("numpy")

    def program(x):
        return x * numpy.log(x[:, 1:].shape[1])

    captured = fxplug.trace(program, (X,))

    torch.testing.assert_close(captured(X[:1]), program(X[:1]))
    with pytest.raises(GuardError, match=r"shape\[1\] == 3"):
        captured(OTHER)


def test_a_range_of_numpy_needs_its_length():
    numpy = pytest.importorskip("numpy")

    def program(x):
        rows, columns, _ = x.shape
        return x + torch.from_numpy(numpy.arange(columns))[:, None] * rows

    assert needs(program) == ["x.shape[1] == 4"]


@pytest.mark.parametrize("number", [3, 3.0])
def test_numpy_needs_the_number_that_it_is_given(number):
    numpy = pytest.importorskip("numpy")

    assert needs(lambda x, k, n: x * numpy.log(k) * n, inputs=(X, number, 2)) == [f"k == {number}"]


def test_where_nothing_says_which_number_is_needed_all_are_fixed():
    def program(x):
        return x * len(json.dumps({"rows": x.shape[0]}))

    assert needs(program) == ["x.shape == torch.Size([2, 4, 8])"]


def test_many_needed_numbers_are_fixed_at_once():
    numpy = pytest.importorskip("numpy")
    runs = []

    def program(x):
        runs.append(x)
        return x + sum(numpy.log(size) for size in x.shape)

    many = torch.ones([1] * 4 + [2] * 12)
    captured = fxplug.trace(program, (many,), check=False)

    assert len(runs) < 14
    torch.testing.assert_close(captured(many), program(many))
    with pytest.raises(GuardError):
        captured(many[..., :1])


def test_an_error_of_the_program_takes_one_more_run_for_a_number():
    runs = []

    def program(x):
        runs.append(x)
        for _ in range(x.shape[0]):
            x = x + 1
        return x.nothing

    with pytest.raises(AttributeError, match="nothing"):
        fxplug.trace(program, (X,))
    assert len(runs) == 3


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("again", ["value", "shape"])
def test_numbers_that_are_fixed_stay_so_when_a_captured_program_is_captured_again(mode, again):
    def program(x):
        return sum(x.flatten()[i] * i for i in range(x.numel())) if type(x) is torch.Tensor else x

    first = fxplug.trace(program, (torch.ones(2, 3),), mode=mode)
    module = fxplug.trace(first, (torch.ones(2, 3),), mode=again)

    assert module(torch.ones(3, 2)) == 15
    with pytest.raises(fxplug.GuardError, match=r"x\.numel\(\) == 6"):
        module(torch.ones(2, 4))
