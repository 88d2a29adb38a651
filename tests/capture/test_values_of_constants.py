"""Shape mode has no values of what hangs on the inputs; those of constants, weights and buffers it can know."""

import copy
import pickle

import pytest
import torch
from torch import nn

import fxplug


class Model(nn.Module):
    def __init__(self, program):
        super().__init__()
        self.program = program
        self.norm = nn.BatchNorm1d(4)
        self.plain = torch.tensor([2.0, 3.0])
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.register_buffer("sigma", torch.tensor(2.5))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("places", torch.tensor([0, 1, 1, 0]))

    def forward(self, x):
        return self.program(self, x)


def after_a_norm(self, x):
    return self.norm(x) * self.count.item()


def with_a_filled_constant(self, x):
    return x + torch.full((4,), self.plain[0]) + torch.full((4,), self.count, dtype=torch.float64)


KNOWN = {
    "a number of a constant": lambda self, x: x * torch.tensor([1.0, 2.0]).sum().item(),
    "a question about a constant": lambda self, x: x if torch.tensor([1.0, 2.0]).sum() > 2 else -x,
    "a weight": lambda self, x: x / self.weight.sum().item(),
    "a weight and a buffer": lambda self, x: x * (self.weight.detach() * self.sigma).max().item(),
    "float": lambda self, x: x * float(self.sigma),
    "int": lambda self, x: x[:, : int(self.count)],
    "item": lambda self, x: x[:, : self.count.item()],
    "a list": lambda self, x: x * self.plain.tolist()[1],
    "a flag": lambda self, x: x * 2 if self.flag else x,
    "a comparison": lambda self, x: x * 2 if self.sigma > 2 else x,
    "a range": lambda self, x: sum(x * number for number in range(int(self.count))),
    "equal tensors": lambda self, x: x if torch.equal(self.places, self.places.flip(0)) else -x,
    "places": lambda self, x: x[:, self.places.nonzero().flatten()],
    "a size": lambda self, x: x[:, :3] + torch.arange(self.count),
    "a filled tensor": lambda self, x: x + x.new_full((x.shape[0], 1), self.sigma),
    "filled with what it says": lambda self, x: (
        x.new_full((4,), x.sum()) + torch.full_like(x, fill_value=self.flag)
    ),
    "a filled constant": with_a_filled_constant,
    "in no_grad": torch.no_grad()(lambda self, x: x * self.weight.sum().item()),
    "after a norm": after_a_norm,
}


@pytest.mark.parametrize("name", KNOWN)
def test_numbers_of_constants_and_buffers_are_known(name):
    model = Model(KNOWN[name])
    before = copy.deepcopy(model.state_dict())
    captured = fxplug.trace(model, (torch.rand(2, 4),), mode="shape")
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key])
    reference = copy.deepcopy(model)
    for rows in (2, 3):
        x = torch.rand(rows, 4)
        torch.testing.assert_close(captured(x), reference(x))


def test_numbers_follow_what_modules_hold():
    captured = fxplug.trace(Model(lambda self, x: x * float(self.sigma)), (torch.rand(2, 4),), mode="shape")
    captured.sigma.fill_(7)
    torch.testing.assert_close(captured(torch.ones(2, 4)), torch.full((2, 4), 7.0))


GUARDED = {
    "a flag": ("flag", False),
    "a comparison": ("sigma", 1.0),
    "a range": ("count", 2),
    "equal tensors": ("places", torch.tensor([0, 1, 0, 0])),
}


@pytest.mark.parametrize("name", GUARDED)
def test_what_was_asked_of_buffers_is_guarded(name):
    buffer, value = GUARDED[name]
    captured = fxplug.trace(Model(KNOWN[name]), (torch.rand(2, 4),), mode="shape")
    for made in (copy.deepcopy(captured), captured):
        with torch.no_grad():
            getattr(made, buffer).copy_(torch.as_tensor(value))
        with pytest.raises(fxplug.GuardError):
            made(torch.rand(2, 4))


def test_what_was_asked_is_guarded_once_it_is_pickled():
    captured = fxplug.trace(Asking(), (torch.rand(2),), mode="shape")
    again = pickle.loads(pickle.dumps(captured))
    torch.testing.assert_close(again(torch.ones(2)), torch.full((2,), 2.0))
    again.flag.fill_(False)
    with pytest.raises(fxplug.GuardError):
        again(torch.ones(2))


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("flag", torch.tensor(True))

    def forward(self, x):
        return x * 2 if self.flag else x


def counted(self, x):
    self.count += 1
    return x * 2 if self.count > 3 else x


def counted_by_a_view(self, x):
    self.places[:1].add_(1)
    return x * self.places.sum().item()


def written(self, x):
    table = torch.zeros(3)
    table[0] = x[0, 0]
    return x * table.sum().item()


def written_by_a_view(self, x):
    table = torch.zeros(3)
    table.view(3)[0] = 5
    total = table.sum()
    del table
    return x * total.item()


def written_to_by_a_layer(self, x):
    return self.norm(x) * self.norm.running_mean.sum().item()


def written_where_it_is_kept(self, x):
    held = self.plain.view(2)
    torch.add(self.plain, 1, out=self.plain)
    return x * held.sum().item()


def made_of_an_input(self, x):
    return x * (self.plain[0] * x).sum().item()


def drawn(self, x):
    return x * torch.rand(3).sum().item()


def in_autocast(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x * (self.weight[None] @ self.weight[:, None]).item()


UNKNOWN = [
    *(
        counted,
        counted_by_a_view,
        written,
        written_by_a_view,
        written_to_by_a_layer,
        written_where_it_is_kept,
    ),
    *(made_of_an_input, drawn, in_autocast),
]


@pytest.mark.parametrize("program", UNKNOWN)
def test_what_is_written_drawn_or_given_is_not_known(program):
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(Model(program), (torch.rand(2, 4),), mode="shape")
    assert caught.value.code == "FXP-T066"


def test_weights_without_data_have_no_values():
    model = Model(KNOWN["a weight"]).to("meta")
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(model, (torch.empty(2, 4, device="meta"),), mode="shape")
    assert caught.value.code == "FXP-T066"


def test_an_attribute_that_is_exchanged_meanwhile_is_no_other_one():
    class Exchanged(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.tensor([1.0, 2.0]))

        def forward(self, x):
            before = self.table
            self.table = torch.tensor([5.0, 6.0])
            return x * before.sum().item()

    model = Exchanged()
    captured = fxplug.trace(model, (torch.rand(2),), mode="shape")
    reference = copy.deepcopy(model)
    for _ in range(2):
        torch.testing.assert_close(captured(torch.ones(2)), reference(torch.ones(2)))
