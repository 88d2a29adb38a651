"""What other tools make of a captured module with guards: none of them loses the guards without a word."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.export import Dim

import fxplug
from fxplug.errors import GuardError


class Asks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, scale=2):
        if x.shape[0] > 3:
            x = x * 2
        return self.layer(x) * scale + x.shape[0]


X = torch.linspace(-1, 1, 15).reshape(5, 3)
FEW = torch.ones(2, 3)


@pytest.fixture(name="model")
def fixture_model():
    return Asks().eval()


@pytest.fixture(name="captured")
def fixture_captured(model):
    return fxplug.trace(model, (X,))


def saved(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), saved, nn.DataParallel],
    ids=["deepcopy", "pickle", "torch.save", "DataParallel"],
)
def test_copies_have_the_guards(model, captured, copied):
    other = copied(captured)

    torch.testing.assert_close(other(X), model(X))
    with pytest.raises(GuardError, match=r"x\.shape\[0\] > 3"):
        other(FEW)


def test_a_compiled_module_has_the_guards(model, captured):
    torch._dynamo.reset()
    compiled = torch.compile(captured, backend="eager")

    torch.testing.assert_close(compiled(X), model(X))
    with pytest.raises(GuardError, match=r"x\.shape\[0\] > 3"):
        compiled(FEW)
    torch._dynamo.reset()


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_module_has_the_guards(model, captured, strict):
    exported = torch.export.export(captured, (X,), dynamic_shapes=({0: Dim.AUTO},), strict=strict).module()

    for rows in (4, 5, 7):
        x = torch.full((rows, 3), 0.5)
        torch.testing.assert_close(exported(x), model(x))
    with pytest.raises(AssertionError, match="Guard failed"):
        exported(FEW)


def test_a_module_that_is_exported_for_one_size_says_so(model, captured):
    exported = torch.export.export(captured, (X,)).module()

    torch.testing.assert_close(exported(X), model(X))
    with pytest.raises(AssertionError, match="Guard failed"):
        exported(FEW)


def test_weights_are_given_for_a_call(model, captured):
    values = {name: value * 1.5 for name, value in model.state_dict().items()}

    torch.testing.assert_close(
        torch.func.functional_call(captured, values, (X,)), torch.func.functional_call(model, values, (X,))
    )
    with pytest.raises(GuardError):
        torch.func.functional_call(captured, values, (FEW,))


def test_weights_are_converted_and_loaded(model, captured):
    converted = copy.deepcopy(captured).to(torch.float64)
    torch.testing.assert_close(converted(X.double()), copy.deepcopy(model).double()(X.double()))

    other = Asks().eval()
    captured.load_state_dict(other.state_dict(), strict=True)
    torch.testing.assert_close(captured(X), other(X))


@pytest.mark.parametrize("asks", [False, True], ids=["plain", "with guards"])
def test_any_number_of_modules_is_compiled_in_one_process(asks):
    compiled = []

    def backend(given, examples):
        compiled.append(given)
        return given

    def program_of(number):
        return lambda x: x + number if not asks or x.shape[0] > 3 else x

    torch._dynamo.reset()
    count = torch._dynamo.config.recompile_limit + 2
    for number in range(count):
        captured = fxplug.trace(program_of(number), (X,), mode="value" if asks else "symbolic")
        torch.testing.assert_close(torch.compile(captured, backend=backend)(X), X + number)
    torch._dynamo.reset()

    assert len(compiled) == count
