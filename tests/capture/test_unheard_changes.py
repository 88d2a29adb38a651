"""What changes modules, weights and gradients past every assignment is put back when a capture ends."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import GuardError, TraceError

X = torch.linspace(1, 2, 6).reshape(2, 3)
WITH_EXAMPLES = ("shape", "shape, checked", "value", "value, checked")


class Does(nn.Module):
    """Does something with its parts, and calls them."""

    def __init__(self, act):
        super().__init__()
        self.act = act
        self.parts = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def forward(self, x):
        self.act(self.parts, x)
        return self.parts(x)


def state_of(root):
    return {
        name: (id(value), value.dtype, type(value.data), value.detach().clone())
        for name, value in root.state_dict(keep_vars=True).items()
    }


def is_as_before(root, before):
    after = state_of(root)
    return after.keys() == before.keys() and all(
        after[name][:3] == before[name][:3] and torch.equal(after[name][3], before[name][3])
        for name in before
    )


SAME = {
    "device": lambda parts, x: parts.to(x.device),
    "dtype": lambda parts, x: parts.to(x.dtype),
    "float": lambda parts, x: parts.float(),
    "cpu": lambda parts, x: parts[1].cpu(),
}
OTHER = {
    "double": lambda parts, x: parts.double().float(),
    "half": lambda parts, x: parts.half().float(),
    "apply": lambda parts, x: parts._apply(lambda tensor: tensor * 2),
    "swap": lambda parts, x: torch.utils.swap_tensors(parts[0].weight, nn.Parameter(torch.zeros(3, 3))),
}


@pytest.mark.parametrize("capture_as", WITH_EXAMPLES, indirect=True)
@pytest.mark.parametrize("act", SAME)
def test_a_conversion_that_changes_nothing_can_be_captured(capture_as, act):
    root = Does(SAME[act]).eval()
    before = state_of(root)

    captured = capture_as(root)

    assert is_as_before(root, before)
    assert type(captured(X)) is torch.Tensor
    assert torch.equal(captured(X), root(X))


@pytest.mark.parametrize("act", OTHER)
def test_a_conversion_that_changes_something_is_refused_and_put_back(capture_as, act):
    root = Does(OTHER[act]).eval()
    before = state_of(root)

    with pytest.raises(TraceError, match="FXP-T"):
        capture_as(root)

    assert is_as_before(root, before)


class Learns(nn.Module):
    """Computes gradients while it runs."""

    def __init__(self, learn):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.learn = learn

    def forward(self, x):
        with torch.enable_grad():
            self.learn(self.linear, self.linear(x.detach()).sum())
        return self.linear(x)


LEARNING = {
    "backward": lambda linear, loss: loss.backward(),
    "function": lambda linear, loss: torch.autograd.backward([loss]),
    "anew": lambda linear, loss: (linear.zero_grad(), loss.backward()),
}


@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("way", LEARNING)
def test_gradients_of_weights_are_as_they_were(capture_as, way, has_gradients):
    root = Learns(LEARNING[way])
    if has_gradients:
        for weight in root.parameters():
            weight.grad = torch.full_like(weight, 5)
    before = [weight.grad for weight in root.parameters()]

    try:
        capture_as(root)
    except TraceError as error:
        assert error.code.startswith("FXP-T")  # noqa: PT017 - what matters is what is left

    for weight, gradient in zip(root.parameters(), before, strict=True):
        assert weight.grad is gradient
        assert gradient is None or torch.equal(gradient, torch.full_like(weight, 5))


@pytest.mark.parametrize("capture_as", WITH_EXAMPLES, indirect=True)
@pytest.mark.parametrize("has_gradient", [False, True])
def test_gradients_of_tensors_in_closures_are_as_they_were(capture_as, has_gradient):
    weight = torch.ones(3, requires_grad=True)
    if has_gradient:
        weight.grad = torch.full_like(weight, 5)
    before = weight.grad

    def program(x):
        (x * weight).sum().backward()
        return x * 2

    capture_as(program)

    assert weight.grad is before
    assert before is None or torch.equal(before, torch.full_like(weight, 5))


class Grows(nn.Module):
    """Changes what its containers hold."""

    def __init__(self, act):
        super().__init__()
        self.act = act
        self.several = nn.ModuleList([nn.ReLU(), nn.Sigmoid()])
        self.named = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
        self.chain = nn.Sequential(nn.ReLU(), nn.Tanh())

    def forward(self, x):
        self.act(self)
        for part in (*self.several, *self.named.values()):
            x = part(x)
        return self.chain(x) * len(self.several)


def add_in_place(root):
    root.several += [nn.Tanh()]


def drop_item(root):
    del root.named["a"]


def drop_place(root):
    del root.several[0]


CHANGES = {
    "append": lambda root: root.several.append(nn.Tanh()),
    "extend": lambda root: root.several.extend([nn.Tanh()]),
    "insert": lambda root: root.several.insert(0, nn.Tanh()),
    "+=": add_in_place,
    "pop": lambda root: root.several.pop(0),
    "del": drop_place,
    "add_module": lambda root: root.several.add_module("7", nn.Tanh()),
    "append to a chain": lambda root: root.chain.append(nn.Tanh()),
    "insert into a chain": lambda root: root.chain.insert(0, nn.Tanh()),
    "pop from a chain": lambda root: root.chain.pop(0),
    "set": lambda root: root.named.__setitem__("z", nn.Tanh()),
    "update": lambda root: root.named.update({"z": nn.Tanh()}),
    "del by name": drop_item,
    "pop by name": lambda root: root.named.pop("a"),
    "clear": lambda root: root.named.clear(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_containers_of_modules_that_are_changed_are_refused_and_put_back(capture_as, change):
    root = Grows(CHANGES[change])
    before = [name for name, _ in root.named_modules()]

    with pytest.raises(TraceError, match="FXP-T"):
        capture_as(root)

    assert [name for name, _ in root.named_modules()] == before


class Caches(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    @functools.cached_property
    def doubled(self):
        return self.weight * 2

    def forward(self, x):
        return x * self.doubled


@pytest.mark.filterwarnings("ignore::fxplug.errors.TraceWarning")
def test_a_cached_property_keeps_no_traced_value(capture_as):
    root = Caches()
    captured = capture_as(root)

    assert "doubled" not in vars(root)
    assert torch.equal(captured(X), root(X))


class Acts(nn.Module):
    """Has a layer write to a tensor that it makes."""

    def __init__(self, act, form):
        super().__init__()
        self.act = act
        self.form = form

    def forward(self, x):
        return self.form(self.act, x)


def read_behind(act, x):
    made = -torch.ones(3)
    act(made)
    return x + made * 2


def read_result(act, x):
    made = -torch.ones(3)
    return x * act(made) * 2 + made


def read_part(act, x):
    made = -torch.ones(3)
    part = made[:2]
    act(made)
    return x * made + part.sum()


class AddsOne(nn.Module):
    def forward(self, value):
        return value.add_(1)


@pytest.mark.parametrize("form", [read_behind, read_result, read_part])
@pytest.mark.parametrize(
    "act",
    [nn.ReLU(inplace=True), nn.SiLU(inplace=True), nn.ELU(inplace=True), nn.ReLU(), AddsOne()],
    ids=repr,
)
def test_a_layer_that_writes_to_a_tensor_made_by_the_program_writes_to_a_new_one_each_time(
    capture_as, act, form
):
    root = Acts(act, form)
    captured = capture_as(root)

    for _ in range(3):
        assert torch.equal(captured(X), root(X))


def switch_back(x):
    torch.set_grad_enabled(False)
    kept = x * 2
    torch.set_grad_enabled(True)
    return kept + x * 3


def test_switching_gradients_back_by_a_statement_is_no_matter_of_course(capture_as):
    captured = capture_as(switch_back)

    assert captured(X.clone().requires_grad_()).requires_grad
    with torch.no_grad(), pytest.raises(GuardError, match="is_grad_enabled"):
        captured(X)


def test_assigning_past_everything_in_a_symbolic_trace_is_an_error_with_a_code():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.ones(3))

        def forward(self, x):
            self._buffers["count"] = self.count + 1
            return x + self.count

    with pytest.raises(TraceError, match="FXP-T009"):
        fxplug.symbolic_trace(Root())
