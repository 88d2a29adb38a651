"""What calls that stay calls write to tensors from before the capture: all of it is put back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxplug
from fxplug.errors import TraceError, TraceWarning

X = torch.linspace(-1, 1, 6).reshape(3, 2)
OUTSIDE = torch.zeros(())


def decay_behind_its_back(module, args, result):
    module.weight.data.mul_(0.9)


def decay_in_other_memory(module, args, result):
    module.weight.data = module.weight.data * 0.9


def count(module, args, result):
    module.calls += 1


def count_in_other_memory(module, args, result):
    module.calls.data = module.calls + 1


def count_outside(module, args, result):
    OUTSIDE.add_(1)


def decay_before(module, args):
    with torch.no_grad():
        module.weight.mul_(0.9)


def normalise(module, args, result):
    return module.norm(result)


class Hooked(nn.Module):
    def __init__(self, hook):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.norm = nn.BatchNorm1d(2)
        self.layer.register_buffer("calls", torch.zeros(()))
        before = hook is decay_before
        (self.layer.register_forward_pre_hook if before else self.layer.register_forward_hook)(hook)

    def forward(self, x):
        return self.layer(x) * 2


def state_of(module):
    return [value.clone() for value in module.state_dict().values()]


def equal(found, wanted):
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    "hook",
    [
        decay_behind_its_back,
        decay_in_other_memory,
        count,
        count_in_other_memory,
        decay_before,
        normalise,
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_hooks_of_layers_leave_nothing_behind(capture_as, hook, training):
    root = Hooked(hook)
    root.layer.norm.train(not training)
    before, eager = state_of(root), copy.deepcopy(root)
    captured = capture_as(root)
    assert equal(state_of(root), before)
    for _ in range(2):
        assert torch.equal(captured(X), eager(X))
    assert equal(state_of(root), state_of(eager))


def test_what_hooks_count_outside_is_put_back(capture_unchecked):
    OUTSIDE.zero_()
    captured = capture_unchecked(Hooked(count_outside))
    assert OUTSIDE == 0
    captured(X)
    assert OUTSIDE == 1


def give_gradients(module, args, result):
    for weight in module.parameters():
        weight.grad = torch.ones_like(weight)


def freeze(module, args, result):
    module.bias.requires_grad_(requires_grad=False)


def double_gradients(module, args, result):
    module.weight.register_hook(lambda gradient: gradient * 2)


def exchange_and_freeze(module, args, result):
    give_gradients(module, args, result)
    decay_in_other_memory(module, args, result)
    freeze(module, args, result)


@pytest.mark.parametrize("hook", [give_gradients, freeze, double_gradients, exchange_and_freeze])
@pytest.mark.parametrize("has_gradients", [True, False])
def test_what_else_hooks_of_layers_give_to_weights_is_put_back(capture_as, hook, has_gradients):
    root = Hooked(hook)
    if has_gradients:
        nn.functional.linear(X, root.layer.weight, root.layer.bias).sum().backward()

    def looked_at():
        weights = root.parameters()
        return [(weight.grad, weight.requires_grad, len(weight._backward_hooks or ())) for weight in weights]

    before, values = looked_at(), state_of(root)
    captured = capture_as(root)
    for (found, *others), (former, *wanted) in zip(looked_at(), before, strict=True):
        assert found is former
        assert others == wanted
    assert equal(state_of(root), values)
    reference = Hooked(hook)
    reference.load_state_dict(root.state_dict())
    for inputs in (X, X + 1):
        assert torch.equal(captured(inputs), reference(inputs))


class OtherMemory(nn.Module):
    """A tensor that the module holds anyhow gets other memory where nobody listens."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.plain, self.listed = torch.ones(2), [torch.ones(2)]
        self.row = self.plain[:1]
        self.layer.register_forward_hook(self.exchange)

    def exchange(self, module, args, result):
        for tensor in (self.plain, *self.listed, OUTSIDE):
            tensor.data = result.detach().mean(0)

    def forward(self, x):
        return self.layer(x) + self.row


def test_memory_that_hooks_give_to_tensors_is_put_back(capture_as):
    OUTSIDE.zero_()
    root = OtherMemory()
    tensors = (root.plain, *root.listed, OUTSIDE)
    places = [tensor.data_ptr() for tensor in tensors]
    captured = capture_as(root)
    assert [tensor.data_ptr() for tensor in tensors] == places
    assert not any(tensor.is_meta for tensor in tensors)
    assert torch.equal(root.plain, torch.ones(2))
    reference = copy.deepcopy(root)
    for inputs in (X, X + 1, X[:1]):
        assert torch.equal(captured(inputs), reference(inputs))
        assert torch.equal(captured.layer.weight, reference.layer.weight)
    OUTSIDE.data = torch.zeros(())


def test_a_hook_that_gives_a_tensor_other_memory_is_refused_without_data_where_the_layer_is_a_call(
    with_whole_layers,
):
    root = Hooked(decay_in_other_memory)
    before, memory = state_of(root), root.layer.weight.data_ptr()
    with pytest.raises(TraceError, match=r"'layer\.weight', was given other memory .* in a hook") as refused:
        fxplug.trace(root, (X,), mode="shape", check=False, manager=with_whole_layers)
    assert refused.value.code == "FXP-T061"
    assert equal(state_of(root), before)
    assert root.layer.weight.data_ptr() == memory


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_leave_nothing_behind(capture_as, reentrant):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

        def forward(self, x):
            return checkpoint(self.block, x * 1, use_reentrant=reentrant)

    root = Root()
    before, eager = state_of(root), copy.deepcopy(root)
    captured = capture_as(root)
    assert equal(state_of(root), before)
    for module in (captured, eager):
        module(X.clone().requires_grad_()).sum().backward()
    assert equal(state_of(root), state_of(eager))


def test_a_checkpoint_of_what_counts_is_refused_where_it_would_count_once(capture_as, request):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)

        def forward(self, x):
            return checkpoint(lambda y: self.norm(self.layer(y)), x, use_reentrant=False)

    if request.node.callspec.params["capture_as"] == "symbolic":
        with (
            pytest.warns(TraceWarning),
            pytest.raises(TraceError, match="a second time where gradients") as info,
        ):
            capture_as(Root())
        assert info.value.code == "FXP-T054"
    else:  # The function is made again in each call, and counts twice.
        root = Root()
        before, eager = state_of(root), copy.deepcopy(root)
        captured = capture_as(root)
        assert equal(state_of(root), before)
        for module in (captured, eager):
            module(X).sum().backward()
        assert equal(state_of(root), state_of(eager))
        assert root.norm.num_batches_tracked == 2
    with pytest.warns(TraceWarning):
        captured = capture_as(Root().eval())
    assert captured(X).requires_grad


@fxplug.wrap
def add_up(x):
    OUTSIDE.add_(x.sum())
    return x * 2


def test_kept_functions_leave_nothing_behind(capture_unchecked):
    OUTSIDE.zero_()
    captured = capture_unchecked(lambda x: add_up(x) + 1)
    assert OUTSIDE == 0
    captured(X + 1)
    assert torch.equal(OUTSIDE, (X + 1).sum())


def double_gradient(weight):
    weight.grad.mul_(2)


HOOKS = {
    "register_hook": lambda weight: weight.register_hook(lambda grad: grad * 2),
    "register_post_accumulate_grad_hook": lambda weight: weight.register_post_accumulate_grad_hook(
        double_gradient
    ),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("before", [0, 1])
def test_hooks_that_a_program_puts_on_weights_are_no_more_than_in_eager(capture_as, name, before):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            for _ in range(before):
                HOOKS[name](self.weight)

        def forward(self, x):
            HOOKS[name](self.weight)
            return x * self.weight

    found = []
    for program in (Root(), capture_as(Root())):
        for _ in range(2):
            program(X).sum().backward()
            found.append(program.weight.grad.clone())
    assert equal(found[:2], found[2:])


class Watching(nn.Module):
    """Reads behind a layer what a hook of the layer has made."""

    def __init__(self, made):
        super().__init__()
        self.layer, self.made, self.box = nn.Linear(2, 2), made, {}
        self.layer.register_forward_hook(self.watch)

    def watch(self, module, args, result):
        self.statistic = self.made(result)
        self.box["statistic"] = self.statistic

    def forward(self, x):
        result = self.layer(x)
        return result - (self.statistic if x.shape[0] > 1 else self.box["statistic"])


MADE = {
    "made": lambda y: y.mean(),
    "made without gradients": lambda y: y.detach().mean(0),
    "a view": lambda y: y[:1].detach(),
}


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", MADE)
def test_what_a_hook_makes_is_no_constant(name, rows, check, mode, with_whole_layers):
    root = Watching(MADE[name])
    with pytest.raises(TraceError, match="hook of a layer") as info:
        fxplug.trace(root, (X[:rows],), mode=mode, check=check, manager=with_whole_layers)
    assert info.value.code == "FXP-T061"
    assert not hasattr(root, "statistic")
    assert not root.box


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", MADE)
def test_what_a_hook_makes_is_made_in_each_call_with_the_layer_entered(name, rows, check, mode):
    root = Watching(MADE[name])
    with pytest.warns(TraceWarning, match="'(statistic|box)'"):
        captured = fxplug.trace(root, (X[:rows],), mode=mode, check=check)
    assert not hasattr(root, "statistic")
    assert not root.box

    for module in (copy.deepcopy(captured), captured):
        reference = Watching(MADE[name])
        reference.layer.load_state_dict(module.layer.state_dict())
        for inputs in (X, X[1:2], -X, torch.rand(1, 2), torch.rand(5, 2)):
            if (len(inputs) > 1) != (rows > 1):  # It would be read from somewhere else.
                with pytest.raises(fxplug.GuardError, match=r"x\.shape\[0\]"):
                    module(inputs)
                continue
            found, wanted = module(inputs), reference(inputs)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(
                torch.autograd.grad(found.square().sum(), module.layer.weight),
                torch.autograd.grad(wanted.square().sum(), reference.layer.weight),
            )


def test_the_result_of_a_layer_may_come_by_a_hook():
    with pytest.warns(TraceWarning, match="While tracing, forward (assigned|changed)"):
        captured = fxplug.trace(Watching(lambda y: y), (X,))
    assert torch.equal(captured(X), torch.zeros_like(X))


def branching(module, args, result):
    return torch.cond(result.sum() > 0, torch.sin, torch.cos, (result,))


def test_hooks_may_call_functions_with_functions():
    root = Hooked(branching)
    with torch.no_grad():
        assert torch.equal(fxplug.trace(root, (X,), check=False)(X), root(X))


@pytest.mark.parametrize("has_run", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
def test_without_examples_no_hook_has_left_anything(capture, has_run, rows):
    root = Watching(lambda y: y.mean())
    if has_run:
        root(X)
    if rows == 1:
        root.forward = lambda x: root.layer(x) - root.box["statistic"]
    else:
        root.forward = lambda x: root.layer(x) - root.statistic
    with pytest.raises(TraceError, match="hook") as info:
        capture(root)
    assert info.value.code == "FXP-T010"


def test_hooks_that_leave_nothing_for_the_program_are_fine(capture):
    root = Hooked(count)
    root.layer.register_forward_hook(lambda module, args, result: setattr(module, "seen", 1))
    assert torch.equal(capture(root)(X), root(X))


def test_errors_of_a_program_that_have_nothing_to_do_with_its_hooks_are_its_own(capture):
    root = Hooked(count)
    root.forward = lambda x: root.layer(x) + {}["missing"]
    with pytest.raises(KeyError, match="missing"):
        capture(root)
