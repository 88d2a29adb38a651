"""What is on around a program when it is captured, and when it is called: an answer is never that of the other one."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import fxplug


@contextlib.contextmanager
def made_by_default(dtype):
    former = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(former)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)


SURROUNDINGS = {
    "nothing": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "doubles": lambda: made_by_default(torch.float64),
    "halves": lambda: made_by_default(torch.float16),
    "without data": lambda: torch.device("meta"),
    "deterministic": deterministic,
}
number_type = torch.finfo


def called_alone(function):
    return function()


QUESTIONS = {
    "is_grad_enabled": lambda net, x: torch.is_grad_enabled(),
    "gradients": lambda net, x: (x * net.weight).requires_grad,
    "is_inference_mode_enabled": lambda net, x: torch.is_inference_mode_enabled(),
    "is_inference": lambda net, x: (x * 2).is_inference(),
    "is_autocast_enabled": lambda net, x: torch.is_autocast_enabled("cpu"),
    "product": lambda net, x: (x @ x.T).dtype == torch.float32,
    "layer": lambda net, x: net.layer(x).dtype == torch.float32,
    "get_default_dtype": lambda net, x: torch.get_default_dtype() == torch.float32,
    "finfo": lambda net, x: torch.finfo().bits == 32,
    "finfo under a name": lambda net, x: number_type().bits == 32,
    "finfo in a variable": lambda net, x: (found := torch.finfo)().bits + 0 * len(str(found)) == 32,
    "finfo with stars": lambda net, x: torch.finfo(*()).bits == 32,
    "finfo or another": lambda net, x: (torch.finfo if x.ndim else torch.iinfo)().bits == 32,
    "finfo by its name": lambda net, x: getattr(torch, "finfo")().bits == 32,  # noqa: B009 - that is the point
    "finfo for a default": lambda net, x, of=torch.finfo: of().bits == 32,
    "finfo handed on": lambda net, x: called_alone(torch.finfo).bits == 32,
    "finfo of the default": lambda net, x: torch.finfo(torch.get_default_dtype()).eps < 1e-6,
    "finfo of what is made": lambda net, x: torch.finfo(torch.ones(1).dtype).bits == 32,
    "ones": lambda net, x: torch.ones(1).dtype == torch.float32,
    "tensor": lambda net, x: torch.tensor(1.0).dtype == torch.float32,
    "full": lambda net, x: torch.full((1,), 1.0).dtype == torch.float32,
    "eye": lambda net, x: torch.eye(2).element_size() == 4,
    "twice": lambda net, x: (torch.arange(2.0) * 2).is_floating_point(),
    "quotient": lambda net, x: (x.long() / 2).dtype == torch.float32,
    "root": lambda net, x: x.long().sqrt().dtype == torch.float32,
    "result_type": lambda net, x: torch.result_type(x.long(), 1.5) == torch.float32,
    "device": lambda net, x: torch.zeros(1).device.type == "cpu",
    "is_meta": lambda net, x: torch.zeros(1).is_meta,
    "get_default_device": lambda net, x: torch.get_default_device().type == "cpu",
    "of what is in it": lambda net, x: (torch.tensor([1e-9, 1.0]) + 1 == 1).nonzero().shape[0] == 1,
    "how many": lambda net, x: len(torch.unique(torch.tensor([1e-9, 2e-9]) + 1)) == 1,
    "gradients of its own": lambda net, x: torch.zeros(1, requires_grad=True).mul(2).requires_grad,
    "is_leaf": lambda net, x: torch.ones(3, requires_grad=True).mul(1).is_leaf,
    "is_inference of its own": lambda net, x: torch.ones(1).is_inference(),
    "product of its own": lambda net, x: (torch.ones(4, 4) @ torch.ones(4, 4)).dtype == torch.float32,
    "deterministic": lambda net, x: torch.are_deterministic_algorithms_enabled(),
}


def unpacks(net, x):
    first, second = torch.unique(torch.tensor([1.0, 1 + 1e-9, 2.0]))
    return x + first - second


RESULTS = {
    "parts": unpacks,
    "pieces": lambda net, x: x * len(torch.unique(torch.tensor([1.0, 1 + 1e-9, 2.0])).split(1)),
    "number": lambda net, x: x.double() * torch.tensor(0.1).item(),
    "new": lambda net, x: x + torch.ones(4),
    "new numbers": lambda net, x: x + torch.tensor([0.1, 0.2, 0.3, 0.4]),
    "quotient": lambda net, x: x.long() / 2,
    "product": lambda net, x: x @ x.T,
    "layer": lambda net, x: net.layer(x) + net.weight,
    "alone": lambda net, x: torch.zeros(3),
    "steps": lambda net, x: torch.arange(0, 1, 0.5) * x.sum(),
    "as many": lambda net, x: torch.stack([x + r for r in torch.unique(torch.tensor([1e-9, 2e-9]) + 1)]).sum(
        0
    ),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(4, 4), nn.Parameter(torch.arange(4.0))
        nn.init.ones_(self.layer.weight)
        nn.init.ones_(self.layer.bias)


def asks(self, x):
    return x * 2 if self.ask(x) else x * 3


# A question is a method: a function that closes over one would not be plain.
PROGRAMS = {
    **{f"asks: {name}": {"ask": ask, "forward": asks} for name, ask in QUESTIONS.items()},
    **{f"gives: {name}": {"forward": give} for name, give in RESULTS.items()},
}


LISTENED_TO = {
    *("asks: is_grad_enabled", "asks: is_inference_mode_enabled", "asks: is_autocast_enabled"),
    *("asks: get_default_dtype", "asks: get_default_device", "asks: deterministic", "asks: result_type"),
    *(
        "asks: tensor",
        "asks: of what is in it",
        "asks: how many",
        "asks: gradients of its own",
        "asks: is_leaf",
        "asks: finfo",
        "asks: finfo of the default",
        "asks: finfo under a name",
        "asks: finfo in a variable",
        "asks: finfo with stars",
        "asks: finfo or another",
        "asks: finfo by its name",
        "asks: finfo for a default",
        "asks: finfo handed on",
    ),
    *("gives: number", "gives: new numbers", "gives: as many", "gives: parts", "gives: pieces"),
}
"""Those programs that have to be listened to."""


def x():
    return torch.arange(12.0, dtype=torch.float32, device="cpu").reshape(3, 4)


def called(program, value):
    """What a program gives, None where it raises an error of torch."""
    try:
        return program(value)
    except fxplug.GuardError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None


def are_alike(found, expected):
    kinds = [
        (one.shape, one.dtype, one.device, one.requires_grad, one.is_inference()) for one in (found, expected)
    ]
    return kinds[0] == kinds[1] and (found.is_meta or torch.equal(found.detach(), expected.detach()))


@pytest.mark.parametrize("way", ["plain", "listened to"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_answer_is_that_of_other_surroundings(name, way, plainly, listened_to):
    net = type("Net", (Net,), PROGRAMS[name])()
    capture = (
        (lambda one, *inputs, **more: fxplug.trace(one, inputs, **more)) if way == "plain" else listened_to
    )
    count = 0
    for first, around in SURROUNDINGS.items():
        given = x()
        try:
            with around():
                captured = capture(net, given, check=False)
        except (fxplug.TraceError, RuntimeError, NotImplementedError, ValueError):
            continue
        count += 1
        for second, other in SURROUNDINGS.items():
            with other():
                expected = called(net, x())
                try:
                    found = called(captured, x())
                except fxplug.GuardError:
                    continue
            assert (found is None) is (expected is None), (first, second)
            assert found is None or are_alike(found, expected), (first, second)
    assert count > 3
    assert any(plainly) is (way == "plain" and name not in LISTENED_TO)
