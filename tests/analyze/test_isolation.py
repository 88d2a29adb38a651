"""Copies, random states and the way back."""

from __future__ import annotations

import random
from collections import OrderedDict, UserDict, UserList, deque

import pytest
import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import fxplug
from fxplug.analyze.isolation import SavedState, copy_module, copy_values, forked_random_state, tensors_in


class Busy(nn.Module):
    """Leaves marks of every kind on itself."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("runs", torch.zeros(()))
        self.scale = torch.ones(1)
        self.history = []
        self.inner = nn.BatchNorm1d(2)

    def forward(self, x):
        self.runs += 1
        self.runs = self.runs + 1
        self.scale.mul_(2)
        self.weight.data.mul_(2)
        self.history.append(x)
        self.last = x
        return self.inner(x)


def test_a_module_is_what_it_was_after_a_call():
    model = Busy()
    runs, scale, history = model.runs, model.scale, model.history
    saved = SavedState(model)
    model(torch.randn(4, 2))
    assert model.runs is not runs
    saved.restore()

    assert model.runs is runs
    assert model.runs == 0
    assert model.scale is scale
    assert model.scale.tolist() == [1]
    assert model.history is history
    assert history == []
    assert not hasattr(model, "last")
    assert model.weight.tolist() == [1, 1]
    assert model.inner.num_batches_tracked == 0
    assert model.inner.running_mean.tolist() == [0, 0]


def test_handles_of_hooks_still_work_afterwards():
    model = nn.Linear(2, 2)
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    SavedState(model).restore()
    handle.remove()
    model(torch.ones(1, 2))

    assert calls == []
    assert isinstance(model._forward_hooks, OrderedDict)


def test_with_buffers_alone_attributes_and_parameters_stay_as_they_are():
    model = Busy()
    saved = SavedState(model, buffers_only=True)
    model(torch.randn(4, 2))
    saved.restore()

    assert model.weight.tolist() == [2, 2]
    assert hasattr(model, "last")
    assert model.inner.num_batches_tracked == 0


def test_a_buffer_that_changed_its_shape_gets_it_back():
    model = nn.Module()
    model.register_buffer("cache", torch.ones(2))
    saved = SavedState(model)
    model.cache.resize_(3)
    saved.restore()

    assert model.cache.tolist() == [1, 1]


def test_results_of_computations_are_copied_without_history():
    source = torch.ones(2, requires_grad=True)
    result = source * 2
    (copied,) = copy_values((result,))

    assert copied is not result
    assert copied.is_leaf
    assert copied.requires_grad
    assert copied.tolist() == [2, 2]


def test_shared_values_stay_shared_in_a_copy():
    tensor = torch.ones(2)
    copied = copy_values({"a": tensor, "b": [tensor]})

    assert copied["a"] is copied["b"][0]
    assert copied["a"] is not tensor


def test_a_module_with_a_computed_attribute_can_be_copied():
    model = nn.Linear(2, 2)
    model.doubled = model.weight * 2
    copied = copy_module(model)

    assert copied.weight is not model.weight
    assert torch.equal(copied.doubled, model.doubled)


def test_random_numbers_go_on_as_if_nothing_had_been_drawn():
    before = torch.get_rng_state(), random.getstate()
    with forked_random_state():
        first = torch.rand(3), random.random()
    with forked_random_state():
        second = torch.rand(3), random.random()

    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_containers_in_containers_and_the_tensors_in_them_are_given_back_each_time():
    model = nn.Identity()
    model.seen = {"sizes": [1], "last": deque([1, 2], maxlen=2)}
    model.cache = [torch.zeros(2), (torch.zeros(2),), {"key": torch.zeros(2)}]
    sizes, last, cached = model.seen["sizes"], model.seen["last"], model.cache[2]["key"]
    state = SavedState(model)

    for _ in range(2):
        model.seen["sizes"].append(3)
        model.seen["last"].append(3)
        model.cache[0].add_(1)
        model.cache[1][0].add_(1)
        model.cache[2]["key"].add_(1)
        model.cache[2]["more"] = cached
        state.restore()

        assert model.seen["sizes"] is sizes
        assert sizes == [1]
        assert model.seen["last"] is last
        assert list(last) == [1, 2]
        assert model.cache[2] == {"key": cached}
        assert model.cache[0].equal(torch.zeros(2))
        assert model.cache[1][0].equal(torch.zeros(2))
        assert cached.equal(torch.zeros(2))


def test_tensors_are_found_in_what_holds_itself():
    first, second = torch.ones(1), torch.zeros(1)
    around: dict[str, object] = {"first": first, "parts": [second]}
    around["self"] = around
    around["parts"].append(around)

    assert list(map(id, tensors_in(around))) == [id(first), id(second)]
    copied = copy_values((around,))[0]
    assert copied["self"] is copied
    assert copied["parts"][1] is copied


def test_tensors_are_found_in_what_is_like_a_dict_or_a_list():
    tensors = [torch.full((1,), float(number)) for number in range(4)]

    found = tensors_in((UserDict({"a": tensors[0]}), UserList(tensors[1:2]), deque(tensors[2:])))

    assert list(map(id, found)) == list(map(id, tensors))


def test_open_sizes_are_not_copied():
    environment = ShapeEnv()
    size = environment.create_unbacked_symint()

    assert copy_values({"n": [size]})["n"][0] is size


def test_parts_are_saved_although_parameters_are_left_out():
    model = nn.Sequential(Busy(), nn.Linear(2, 2))
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    saved = SavedState(model, buffers_only=True, parts=[model[0]])

    model(torch.randn(4, 2))
    with torch.no_grad():
        model[1].weight.zero_()
    saved.restore()

    assert model[0].history == []
    torch.testing.assert_close(dict(model.named_parameters())["0.weight"], before["0.weight"])
    assert not model[1].weight.any()


class Seeds(nn.Module):
    """Seeds torch, and draws from Python in a hook."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.register_forward_hook(lambda *_: random.random() and None)

    def forward(self, x):
        torch.manual_seed(7)
        return self.layer(x)


def seeds(x):
    torch.manual_seed(7)
    return x + 1


@pytest.mark.parametrize(
    ("program", "use"),
    [
        (Seeds(), fxplug.cost),
        (Seeds(), fxplug.shapes),
        (seeds, lambda captured, inputs: fxplug.decompose(captured, inputs, to="aten")),
    ],
    ids=["cost", "shapes", "decompose"],
)
def test_programs_that_are_looked_at_leave_random_numbers_as_they_were(program, use):
    captured = fxplug.trace(program, (torch.ones(1, 2),), check=False)
    torch.manual_seed(3)
    before = torch.get_rng_state(), torch.initial_seed(), random.getstate()
    use(captured, (torch.ones(1, 2),))

    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.initial_seed(), random.getstate()) == before[1:]
