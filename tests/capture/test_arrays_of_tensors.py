"""What programs do with `x.numpy()` without example inputs: it is no tensor, and has methods of the same names."""

from __future__ import annotations

import pytest
import torch

import fxplug
from fxplug.errors import TraceError

numpy = pytest.importorskip("numpy")

X = torch.rand(3, 4)

REFUSED = {
    "back from a function of NumPy": (
        lambda x: torch.from_numpy(numpy.argsort(x.numpy()).copy()),
        "FXP-T068",
    ),
    "back from methods": (lambda x: torch.from_numpy(x.numpy().sum(1).astype("float32")), "FXP-T068"),
    "back at once": (lambda x: torch.from_numpy(x.detach().cpu().numpy()), "FXP-T068"),
    "a function of NumPy": (lambda x: torch.as_tensor(numpy.log(x.numpy() + 1)), "FXP-T002"),
    "asked for its class": (lambda x: -x if isinstance(x.numpy(), torch.Tensor) else x, "FXP-T040"),
    "a sum": (lambda x: -x if isinstance(x.numpy().sum(1), torch.Tensor) else x, "FXP-T040"),
    "a part": (lambda x: -x if torch.is_tensor(x.numpy()[0].max()) else x, "FXP-T040"),
    "negated": (lambda x: -x if torch.is_tensor((-x.numpy() * 2).mean(0)) else x, "FXP-T040"),
}


@pytest.mark.parametrize(("program", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_hangs_on_an_array_is_refused_with_its_line(program, code):
    with pytest.raises(TraceError, match=r"test_arrays_of_tensors.py:\d+") as refused:
        fxplug.symbolic_trace(program)

    assert refused.value.code == code


KEPT = {
    "the array": lambda x: x.numpy(),
    "methods": lambda x: x.numpy().sum(1).astype("float64"),
    "beside a tensor": lambda x: x * x.numpy().mean(),
}


@pytest.mark.parametrize("program", KEPT.values(), ids=KEPT.keys())
def test_methods_of_an_array_are_recorded(program):
    ours, wanted = fxplug.symbolic_trace(program)(X), program(X)

    assert type(ours) is type(wanted)
    assert numpy.array_equal(numpy.asarray(ours), numpy.asarray(wanted))


def test_a_tensor_beside_an_array_is_still_a_tensor():
    def program(x: torch.Tensor):
        product = x * x.numpy().mean()
        return product if isinstance(product, torch.Tensor) and isinstance(x.add(1), torch.Tensor) else -x

    assert torch.equal(fxplug.symbolic_trace(program)(X), program(X))
