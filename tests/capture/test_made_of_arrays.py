"""Tensors that programs make of arrays of NumPy: constants of the graph, unless something changes the array."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError

numpy = pytest.importorskip("numpy")

X = torch.tensor([[1, 2, 0], [0, 1, 1]])
ROWS = torch.rand(2, 3)
OFFSETS = numpy.array([0, 3, 5])
LARGE = numpy.zeros(1 << 18)
ROUNDED = numpy.array([0.5, 1.75, -2.5])


class Embedding(nn.Module):
    """As models of clicks have it: each column has rows of its own."""

    def __init__(self, make):
        super().__init__()
        self.offsets = numpy.array((0, 3, 5), dtype=numpy.int64)
        self.embedding = nn.Embedding(20, 4)
        self.make = make

    def forward(self, x):
        return self.embedding(x + self.make(self, x).unsqueeze(0))


MADE = {
    "new_tensor": lambda model, x: x.new_tensor(model.offsets),
    "new_tensor by name": lambda model, x: x.new_tensor(data=model.offsets),
    "new_tensor with a dtype": lambda model, x: x.new_tensor(model.offsets, dtype=torch.int64),
    "tensor": lambda model, x: torch.tensor(model.offsets),
    "tensor of a list": lambda model, x: torch.tensor([model.offsets])[0],
    "as_tensor": lambda model, x: torch.as_tensor(model.offsets),
    "asarray": lambda model, x: torch.asarray(model.offsets),
    "from_numpy": lambda model, x: torch.from_numpy(model.offsets),
}


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_an_array_of_a_module_is_a_constant(make, mode, check):
    model = Embedding(make)

    captured = fxplug.trace(model, (X,), mode=mode, check=check)

    assert captured.guards == ()
    torch.testing.assert_close(captured(X.flip(0)[:1]), model(X.flip(0)[:1]))


LIKE = {
    "rounded": lambda x: x.new_tensor(ROUNDED),
    "whole": lambda x: x.long().new_tensor(ROUNDED),
    "of a flag": lambda x: x.new_tensor(ROUNDED > 0),
    "half": lambda x: x.half().new_tensor(ROUNDED),
    "with a dtype": lambda x: x.new_tensor(ROUNDED, dtype=torch.float64),
    "with a device": lambda x: x.new_tensor(ROUNDED, device="cpu"),
    "with a gradient": lambda x: x.new_tensor(ROUNDED, requires_grad=True) * 2,
    "a list": lambda x: x.new_tensor([ROUNDED, ROUNDED]),
    "written to": lambda x: x.new_tensor(ROUNDED).add_(1) + x,
}


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("program", LIKE.values(), ids=LIKE.keys())
def test_a_new_tensor_is_like_the_one_that_is_asked(program, mode):
    captured = fxplug.trace(program, (ROWS,), mode=mode)

    for given in (ROWS, ROWS.double(), ROWS.half()):
        ours, wanted = captured(given), program(given)
        assert (ours.dtype, ours.requires_grad) == (wanted.dtype, wanted.requires_grad)
        assert torch.equal(captured(given), wanted)


def test_a_new_tensor_is_where_the_one_that_is_asked_is():
    captured = fxplug.trace(lambda x: x.new_tensor(ROUNDED), (ROWS,))

    assert captured(ROWS.to("meta")).is_meta


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_each_call_has_its_own(mode):
    captured = fxplug.trace(lambda x: torch.tensor(ROUNDED).add_(x.sum()), (ROWS,), mode=mode)

    assert torch.equal(captured(ROWS), captured(ROWS))


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_numbers_of_the_inputs_beside_an_array_are_not_constants(mode):
    def program(x):
        return x.new_tensor([numpy.array(1), x.shape[0]])

    with pytest.raises(TraceError) as refused:
        fxplug.trace(program, (ROWS,), mode=mode)
    assert refused.value.code == "FXP-T006"


# -- what changes an array


def changes_later(x):
    array = numpy.zeros(3, dtype="float32")
    tensor = torch.from_numpy(array)
    array[0] = 5
    return x + tensor


def changes_a_held_array(x):
    tensor = torch.as_tensor(LARGE)
    LARGE[0] += 1
    return x + tensor[0]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("program", [changes_later, changes_a_held_array])
def test_an_array_that_changes_behind_a_tensor_is_refused(program, mode, check):
    with pytest.raises(TraceError, match="changes an array of NumPy") as refused:
        fxplug.trace(program, (ROWS,), mode=mode, check=check)

    assert refused.value.code == "FXP-T061"


class Counts(nn.Module):
    def __init__(self, array, make):
        super().__init__()
        self.array = array
        self.make = make

    def forward(self, x):
        count = self.make(self.array)
        count += 1
        return x + count[0]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda array: torch.from_numpy(array)[:],
        torch.as_tensor,
        lambda array: torch.from_numpy(array[:2]),
    ],
    ids=["from_numpy", "as_tensor", "of a view"],
)
@pytest.mark.parametrize(("mode", "size"), [("value", 2), ("shape", 2), ("value", 1 << 18)])
def test_what_is_written_to_a_held_array_is_refused(make, mode, size, check):
    model = Counts(numpy.zeros(size), make)

    with pytest.raises(TraceError) as refused:
        fxplug.trace(model, (ROWS,), mode=mode, check=check)

    assert refused.value.code == "FXP-T055"
    assert not model.array.any()


@pytest.mark.parametrize("size", [2, 1 << 18])
def test_what_is_written_to_an_array_that_the_program_makes_is_recorded(size):
    def program(x):
        count = torch.from_numpy(numpy.zeros(size, dtype="float32"))
        count += x.sum()
        return x + count[0]

    captured = fxplug.trace(program, (ROWS,))

    assert torch.equal(captured(ROWS + 1), program(ROWS + 1))
