"""Arrays of NumPy as indices of tensors, and beside a dtype or a device that hangs on an input."""

import copy

import pytest
import torch
from torch import nn

import fxplug

np = pytest.importorskip("numpy")

MODES = ["symbolic", "shape", "value"]
ROWS = np.array([1, 0, 1])
MASK = np.array([True, False, True, False])


def captured_in(mode, program, *inputs):
    return fxplug.symbolic_trace(program) if mode == "symbolic" else fxplug.trace(program, inputs, mode=mode)


def by_rows(x):
    return x[ROWS], x[ROWS.astype(np.int16)], x[-1, np.array([2, 0])]


def by_mask(x):
    return x[:, MASK], x[..., MASK].sum(), x[np.array([0, 1]), MASK[:2].astype(int)]


def by_plane(x):
    return x[:2, :2][np.array([[True, False], [True, True]])], x[np.array([[0, 1], [1, 0]])]


def writing(x):
    y = x.clone()
    y[:, np.array([0, 2])] = 0
    y[ROWS] += 1
    y[:, MASK] = x[:, MASK] * 2
    return y


def changing_later(x):
    rows = np.array([0, 1])
    first = x[rows]
    rows[:] = 1
    return first, x[rows]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", [by_rows, by_mask, by_plane, writing, changing_later])
def test_arrays_select_what_they_select_in_eager(mode, program):
    captured = captured_in(mode, program, torch.randn(3, 4))
    for made in (captured, copy.deepcopy(captured)):
        for rows in (3, 5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(made(x), program(x))
    if program is changing_later:
        return  # In eager, the gradient goes where the array points by then.
    x = torch.randn(3, 4, requires_grad=True)
    torch.testing.assert_close(gradient(captured, x), gradient(program, x))


def gradient(run, x):
    result = run(x)
    parts = result if isinstance(result, tuple) else (result,)
    return torch.autograd.grad(sum(part.sum() for part in parts), x)


@pytest.mark.parametrize("mode", MODES)
def test_a_mask_that_does_not_fit_is_an_error_as_in_eager(mode):
    captured = captured_in(mode, by_mask, torch.randn(3, 4))
    with pytest.raises((IndexError, fxplug.GuardError)):
        captured(torch.randn(3, 5))


@pytest.mark.parametrize("mode", MODES)
def test_an_array_that_goes_on_from_call_to_call_is_refused(mode):
    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = np.array([0, 1])

        def forward(self, x):
            self.rows += 1
            return x[self.rows]

    model = Moving()
    with pytest.raises(fxplug.TraceError) as caught:
        captured_in(mode, model, torch.randn(9, 2))
    assert caught.value.code == "FXP-T055"
    assert model.rows.tolist() == [0, 1]


@pytest.mark.parametrize("mode", MODES)
def test_what_is_no_index_is_refused_as_before(mode):
    @fxplug.wrap
    def kept(x, rows):
        return x[rows]

    def by_floats(x):
        return x[np.array([0.0, 1.0])]

    for program in (by_floats, lambda x: kept(x, ROWS)):
        with pytest.raises(fxplug.TraceError) as caught:
            captured_in(mode, program, torch.randn(3, 4))
        assert caught.value.code == "FXP-T006"


@pytest.mark.parametrize("make", [torch.as_tensor, torch.asarray, torch.tensor])
def test_a_tensor_of_an_array_takes_dtype_and_device_of_an_input_without_examples(make):
    values = np.arange(4)

    def program(x):
        return x * make(values, dtype=x.dtype, device=x.device) + make(values, device=x.device)

    captured = fxplug.symbolic_trace(program)
    for dtype in (torch.float32, torch.float64, torch.int64):
        x = torch.ones(2, 4, dtype=dtype)
        torch.testing.assert_close(captured(x), program(x))


def test_numbers_of_numpy_are_numbers_without_examples_where_they_compute_alike():
    captured = fxplug.symbolic_trace(lambda x: x * np.int64(3) + x[np.int64(1)] * np.float64(0.5))
    x = torch.randn(3)
    torch.testing.assert_close(captured(x), x * 3 + x[1] * 0.5)
    with pytest.raises(fxplug.TraceError) as caught:  # The product with a size would be a number of 32 bits.
        fxplug.symbolic_trace(lambda x: x * (x.shape[0] * np.float32(0.1)))
    assert caught.value.code == "FXP-T006"
