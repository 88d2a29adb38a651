"""Programs with constant conditions, checks of torch and writes, captured on examples without being listened to.

PYTEST_DONT_REWRITE: an ``assert`` of theirs is to be one, and not what pytest makes of it.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import _assert, nn

import fxplug
from fxplug.plugins import Config, PluginManager, TraceConfig

X = torch.linspace(-1, 1, 8).view(2, 4)


class Block(nn.Module):
    """A block as libraries have them: most of what it could do is behind flags."""

    def __init__(self, *, flag=False, held=None, sizes=(4, 4), momentum=None):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.flag, self.held, self.sizes, self.momentum = flag, held, sizes, momentum
        self.register_buffer("mean", torch.linspace(0, 1, 4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        _assert(x.ndim == 2, f"expected 2 dimensions (got {x.ndim})")
        if self.flag and not torch.jit.is_scripting():
            x = torch.cat(list(x.unbind()), 0).view(self.sizes[0], -1)
        extra = getattr(self, "extra", None)
        if extra is not None:
            x = extra(x)
        if self.training and self.momentum is not None:
            self.steps.add_(int(self.momentum))
        if self.held is not None:
            x = self.held(x)
        return F.layer_norm(self.layer(x), self.sizes[1:], self.mean)


class Net(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*blocks)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.blocks(x))


def guards_of(captured):
    return {str(guard) for guard in captured.guards if not str(guard).startswith("type(x)")}


def test_what_flags_switch_off_is_not_looked_at(plainly, listened_to):
    net = Net(Block(), Block(held=nn.Linear(4, 4))).eval()
    captured = fxplug.trace(net, (X,))
    other = listened_to(net, X)
    assert plainly != [None]
    assert captured.code == other.code
    assert guards_of(captured) == guards_of(other)
    torch.testing.assert_close(captured(X * 2), net(X * 2))
    for wrong in (X[0], X[None]):
        with pytest.raises(fxplug.GuardError):
            captured(wrong)


def test_blocks_of_one_class_may_differ_in_their_flags(plainly):
    blocks = Block(), Block(flag=True), Block()
    net = Net(*blocks).eval()
    captured = fxplug.trace(net, (torch.ones(4, 4),))
    assert plainly == [captured]
    torch.testing.assert_close(captured(torch.ones(4, 4)), net(torch.ones(4, 4)))
    with pytest.raises(fxplug.GuardError, match=r"len\("):  # Of `x.unbind()`.
        captured(torch.ones(8, 4))


@pytest.mark.parametrize("extra", [nn.Linear(4, 4), torch.relu])
def test_what_a_block_has_besides_is_called(extra):
    net = Net(Block(), Block()).eval()
    net.blocks[1].extra = extra
    captured = fxplug.trace(net, (X,))
    torch.testing.assert_close(captured(X), net(X))
    assert len(captured.graph.nodes) > len(fxplug.trace(Net(Block(), Block()).eval(), (X,)).graph.nodes)


def test_flags_of_training_are_guarded_as_where_it_is_listened_to(plainly, listened_to):
    net = Net(Block(), Block(momentum=3)).eval()
    captured, other = fxplug.trace(net, (X,)), listened_to(net, X)
    assert plainly != [None]
    assert captured.graph.captured_training is other.graph.captured_training is False
    assert captured.graph.state_guards == other.graph.state_guards != ()
    captured.blocks.get_submodule("1").train()
    with pytest.raises(fxplug.GuardError, match="training"):
        captured(X)


def in_the_root(self, x):
    return self.blocks(x) * 2 if self.training else self.blocks(x)


def by_getattr(self, x):
    return self.blocks(x) * 2 if getattr(self, "training", False) else self.blocks(x)


def as_a_number(self, x):
    return self.blocks(x) * getattr(self, "training", 2)


class Parent(Net):
    def forward(self, x):
        return self.helped(x) * 3 if self.training else self.helped(x)

    def helped(self, x):
        return self.blocks(x) + 5 if self.training else self.blocks(x)


class Child(Parent):
    def forward(self, x):
        return super().forward(x) + 1

    def helped(self, x):
        return super().helped(x) - 1


@pytest.mark.parametrize("forward", [in_the_root, by_getattr, as_a_number, Child.forward])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_the_flag_of_a_module_is_known_however_it_is_read(forward, depth, mode, plainly):
    kind = Child if forward is Child.forward else type("Net", (Net,), {"forward": forward})
    net = kind(nn.Linear(4, 4)).eval()
    net = net if not depth else nn.Sequential(net, nn.Linear(4, 4)).eval()
    captured = fxplug.symbolic_trace(net) if mode == "symbolic" else fxplug.trace(net, (X,), check=False)
    assert None not in plainly
    torch.testing.assert_close(captured(X), net(X))
    captured.train()
    with pytest.raises(fxplug.GuardError, match="training"):
        captured(X)


def test_symbolic_traces_know_the_flags_too():
    net = Net(Block(), Block(momentum=3)).eval()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fxplug.capture.tracer.plain_program", lambda *args, **options: None)
        other = fxplug.symbolic_trace(net)
    captured = fxplug.symbolic_trace(net)
    assert captured.code == other.code
    assert captured.graph.state_guards == other.graph.state_guards != ()
    assert captured.graph.captured_training is other.graph.captured_training is False


def test_modules_in_training_are_captured_as_they_are(plainly):
    net = Net(Block(momentum=3)).train()
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    assert int(net.blocks[0].steps) == 0
    captured(X)
    assert int(captured.blocks.get_submodule("0").steps) == 3


def test_a_check_that_fails_is_an_error_of_the_program():
    with pytest.raises(AssertionError, match="expected 2 dimensions"):
        fxplug.trace(Net(Block()).eval(), (X[0],))


class Checking(Net):
    def forward(self, x):
        y = self.blocks(x)
        _assert(y.shape[1] == x.shape[1], "as wide as before")
        torch._assert(x.size(0) < 5, f"{x.size(0)} is too many")
        return y


def test_checks_of_sizes_are_guarded(plainly, listened_to):
    net = Checking(nn.Linear(4, 4)).eval()
    captured = fxplug.trace(net, (X,))
    assert plainly != [None]
    assert guards_of(captured) == guards_of(listened_to(net, X))
    with pytest.raises(fxplug.GuardError):
        captured(torch.ones(5, 4))


class OfValues(Net):
    def forward(self, x):
        _assert((x < 2).all(), "too large")
        return self.blocks(x)


def test_checks_of_values_are_guarded(plainly, listened_to):
    net = OfValues(nn.Linear(4, 4)).eval()
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    assert captured.code == listened_to(net, X).code
    torch.testing.assert_close(captured(X), net(X))
    with pytest.raises(fxplug.GuardError, match="all"):
        captured(X + 9)


# -- writes


class Writing(nn.Module):
    """Writes to what it computes, and reads weights by itself."""

    def __init__(self, write):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)
        self.drop, self.passing, self.flat = nn.Dropout(), nn.Identity(), nn.Flatten(0)
        self.scale = nn.Parameter(torch.linspace(-1, 2, 4))
        self.register_buffer("shift", torch.linspace(-1, 2, 4))
        self.write = 0
        type(self).forward = write


def to_a_result(self, x):
    y = self.act(self.layer(x) * self.scale)
    return y + 1 if y.ndim == 2 else y


def to_a_result_by_methods(self, x):
    return self.layer(x).mul_(self.scale).sub_(1).sigmoid_()


def to_an_out(self, x):
    y = self.layer(x) * self.scale
    torch.add(x, 1, out=y)
    return y


def to_a_result_that_is_resized(self, x):
    y = self.layer(x) * self.scale
    torch.resize_as_(y, x[:1])
    return y


def to_an_input(self, x):
    x.mul_(2)
    return self.layer(x) * self.scale if x.ndim == 2 else x


def to_what_layers_pass(self, x):
    y = self.act(self.passing(self.drop(self.layer(x) * self.scale)))
    return y + self.act(self.act(self.layer(x)))


def to_an_input_that_layers_pass(self, x):
    y = self.act(self.passing(self.drop(x)))
    return self.layer(y) * self.scale if y.ndim == 2 else x


def to_a_weight_that_layers_pass(self, x):
    y = self.act(self.passing(self.drop(self.shift)))
    return self.layer(x) * self.scale + y


def to_a_weight_that_is_flattened(self, x):
    y = self.act(self.flat(self.scale.view(2, 2)))
    return self.layer(x) * self.scale + y


def to_a_weight(self, x):
    y = self.scale.view(2, 2)
    y.mul_(2)
    return self.layer(x) * self.scale


def to_a_weight_by_a_layer(self, x):
    y = self.act(self.scale.view(1, -1))
    return self.layer(x) * self.scale + y


def to_a_weight_and_asks(self, x):
    y = self.scale.view(2, 2)
    y += 1
    return self.layer(x) * self.scale if x.ndim == 2 else x


def to_a_weight_and_asks_of_what_is_computed(self, x):
    y = self.scale.view(2, 2)
    y += 1
    z = x.unsqueeze(0).squeeze(0)
    return self.layer(z) * self.scale if z.ndim == 2 else x


def to_a_weight_by_a_layer_and_asks_of_what_is_computed(self, x):
    y = self.act(self.scale.view(1, -1))
    z = x.unsqueeze(0).squeeze(0)
    return self.layer(z) * self.scale + y if z.ndim == 2 else x


def to_a_weight_by_a_layer_and_asks(self, x):
    y = self.act(self.scale.view(1, -1))
    return self.layer(x) * self.scale + y if x.ndim == 2 else x


def to_a_weight_behind_a_question(self, x):
    y = self.layer(x) if x.ndim == 2 else x
    self.scale.unsqueeze(0).add_(1)
    return y * self.scale


def weights_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize(
    ("write", "is_plain"),
    [
        *(
            (to_a_result, True),
            (to_a_result_by_methods, True),
            (to_an_input, True),
            (to_what_layers_pass, True),
            (to_an_input_that_layers_pass, True),
            (to_a_weight, False),
            (to_an_out, False),
        ),
        *(
            (to_a_weight_by_a_layer, False),
            (to_a_weight_that_layers_pass, False),
            (to_a_weight_that_is_flattened, False),
            (to_a_weight_and_asks, False),
            (to_a_weight_behind_a_question, False),
            (to_a_weight_by_a_layer_and_asks, False),
            (to_a_weight_and_asks_of_what_is_computed, False),
            (to_a_weight_by_a_layer_and_asks_of_what_is_computed, False),
            (to_a_result_that_is_resized, False),
        ),
    ],
)
@pytest.mark.parametrize("leaves", ["layers", "functions"])
def test_what_is_written_to_must_be_no_weight(write, is_plain, leaves, plainly):
    trace = TraceConfig(through_modules=("*",) if leaves == "functions" else ())
    manager = PluginManager(config=Config(trace=trace), candidates=())
    net = type("Writing", (Writing,), {})(write).eval().requires_grad_(False)
    twin, weights, x = copy.deepcopy(net), weights_of(net), X.clone()
    captured = fxplug.trace(net, (x,), manager=manager, check=False)
    assert (plainly != [None]) is is_plain
    for name, now in weights_of(net).items():
        assert torch.equal(weights[name], now)
    assert torch.equal(x, X)
    torch.testing.assert_close(captured(X.clone()), twin(X.clone()))
    for name, now in weights_of(captured).items():
        torch.testing.assert_close(weights_of(twin)[name], now)


def to_a_result_and_asks(self, x):
    y = self.act(self.layer(x) * self.scale)
    return y + 1 if y.shape[1] == 4 else y


def checks_that_end_the_run(captured):
    """Of each check, whether the program cannot be run instead where it fails."""
    checks = [
        node for node in captured.graph.nodes if getattr(node.target, "__name__", "").startswith("check_")
    ]
    return [node.args[-1] is False for node in checks]


def to_an_input_by_layers_and_asks(self, x):
    y = self.act(self.passing(x))
    z = self.layer(y) * self.scale
    return z if z.shape[1] == 4 else y


def test_what_is_checked_behind_a_write_to_an_input_ends_the_run(plainly):
    net = type("Writing", (Writing,), {})(to_an_input_by_layers_and_asks).eval()
    captured = fxplug.trace(net, (X.clone(),), on_guard_failure="eager")
    assert plainly == [captured]
    assert checks_that_end_the_run(captured) == [True]


def test_what_is_checked_behind_a_write_to_a_result_lets_the_program_run_again(plainly):
    net = type("Writing", (Writing,), {})(to_a_result_and_asks).eval()
    captured = fxplug.trace(net, (X,), on_guard_failure="eager")
    assert plainly == [captured]
    assert checks_that_end_the_run(captured) == [False]
    torch.testing.assert_close(captured(X), net(X))


def to_an_input_between_questions(self, x):
    y = self.layer(x)
    left, right = y.chunk(2, dim=-1)
    y = y + left[..., :1] if y.dtype == x.dtype else y
    x += 1
    left, right = self.act(y + x).chunk(2, dim=-1)
    z = left if left.dtype == torch.float32 and left.shape[0] == 2 else right
    return z * 2


def test_what_is_checked_behind_a_write_to_an_input_does_not(plainly):
    net = type("Writing", (Writing,), {})(to_an_input_between_questions).eval()
    given = X.clone()
    captured = fxplug.trace(net, (given,))
    assert plainly == [captured]
    assert torch.equal(given, X)
    found = checks_that_end_the_run(captured)
    assert found == sorted(found)
    assert {*found} == {False, True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fxplug.api.capturing.capture_plainly", lambda *args: None)
        assert checks_that_end_the_run(fxplug.trace(net, (X.clone(),))) == found
    torch.testing.assert_close(captured(X.clone()), net(X.clone()))


class WritingToCopies(nn.Module):
    def forward(self, x):
        y = x.contiguous()
        y += 1
        z = y @ y.transpose(-2, -1)
        return z if z.shape[0] == 2 else z * 0


@pytest.mark.parametrize("way", ["plain", "listened"])
def test_what_is_a_copy_of_the_example_may_be_another_input_itself(plainly, way):
    example = torch.randn(4, 2).t()
    with pytest.MonkeyPatch.context() as patch:
        if way == "listened":
            patch.setattr("fxplug.api.capturing.capture_plainly", lambda *args: None)
        captured = fxplug.trace(WritingToCopies(), (example,), on_guard_failure="eager")
    assert plainly == ([captured] if way == "plain" else [])
    assert checks_that_end_the_run(captured) == [True]
    torch.testing.assert_close(captured(example), WritingToCopies()(example))
    with pytest.raises(fxplug.GuardError):
        captured(torch.randn(3, 4))


class WritingToDiagonals(nn.Module):
    def forward(self, x):
        y = x.diagonal(dim1=-2, dim2=-1)
        y += 1
        z = x @ x
        return z if z.dtype == torch.float32 else x


def test_a_view_of_an_input_that_is_known_by_its_memory_alone_is_one(plainly):
    given = torch.randn(3, 3)
    captured = fxplug.trace(WritingToDiagonals(), (given,), check=False)
    assert plainly == [captured]
    assert checks_that_end_the_run(captured) == [True]
