"""Plain programs that enter contexts of torch: ``with torch.no_grad():`` and the like."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn, no_grad
from torch.autograd import forward_ad

import fxplug
from fxplug.api import plain_run
from fxplug.capture.plain_code import reads_of, reads_of_function

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.act = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.weight = nn.Parameter(torch.linspace(1, 2, 4))
        self.yes, self.no = True, False


def net_of(forward):
    torch.manual_seed(0)
    return type("Entering", (Net,), {"forward": forward})().eval()


def around_a_part(self, x):
    y = self.layer(x)
    with torch.no_grad():
        z = self.act(self.norm(y))
    return z + y


def around_what_is_returned(self, x):
    with torch.no_grad():
        return self.layer(x)


def found_by_one_name(self, x):
    with no_grad():
        y = x * 2
    return self.layer(y)


def one_in_another(self, x):
    with torch.no_grad():
        y = self.layer(x)
        with torch.enable_grad():
            z = self.layer(y)
        y = y + z
    return y * z


def two_at_once(self, x):
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        y = self.layer(x)
    return y.relu()


def in_a_loop(self, x):
    for number, block in enumerate(self.blocks):
        with torch.no_grad():
            if number == 0:
                continue
            x = block(x)
    return x


def left_by_a_break(self, x):
    for number in range(4):
        with torch.no_grad():
            if number == 2:
                break
            x = x * number
    return self.layer(x)


def said_by_a_flag(self, x):
    with torch.set_grad_enabled(self.training):
        y = self.layer(x)
    return y + 1


def without_view_tracking(self, x):
    with torch.inference_mode():
        y = self.layer(x).view(-1)
    return y + 1


def in_half_precision(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = self.layer(x)
        z = y @ y.mT
    return z.float() + 1


def in_the_precision_of_an_input(self, x):
    with torch.autocast(device_type=x.device.type, enabled=False):
        return self.layer(x)


def asks_for_a_dtype_behind_a_context(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = self.layer(x)
    return y + 1 if y.dtype == torch.bfloat16 else y - 1


def behind_a_flag(self, x):
    if self.no:
        with torch.no_grad():
            return self.layer(x)
    if self.yes:
        with torch.no_grad():
            x = x + 1
    return self.layer(x)


def with_constants_and_weights(self, x):
    w = self.weight
    with torch.no_grad():
        y = x * self.weight + torch.arange(4)
    return y * w


def in_a_function(self, x):
    return handed_on(self.layer(x)) + 1


def handed_on(y):
    with torch.no_grad():
        return y.sin()


def asks_for_a_size_inside(self, x):
    with torch.no_grad():
        y = self.layer(x)
        if y.shape[1] == 4:
            y = y * 2
    return y


def asks_for_gradients_behind(self, x):
    with torch.no_grad():
        y = self.layer(x)
    return y + 1 if y.requires_grad else y - 1


def asks_for_elements_behind(self, x):
    with torch.no_grad():
        y = self.layer(x)
    return y + 1 if (y.abs() < 100).all() else y - 1


def writes_inside(self, x):
    with torch.no_grad():
        y = self.layer(x)
        y.add_(1)
        return y.mul_(2)


def may_raise_inside(self, x):
    with torch.no_grad():
        if x.shape[1] != 4:
            raise ValueError(f"of {x.shape[1]} features")
        return self.layer(x)


PLAIN = [
    around_a_part,
    around_what_is_returned,
    found_by_one_name,
    one_in_another,
    two_at_once,
    in_a_loop,
    left_by_a_break,
    said_by_a_flag,
    without_view_tracking,
    in_half_precision,
    in_the_precision_of_an_input,
    asks_for_a_dtype_behind_a_context,
    behind_a_flag,
    with_constants_and_weights,
    in_a_function,
    asks_for_a_size_inside,
    asks_for_gradients_behind,
    asks_for_elements_behind,
    writes_inside,
    may_raise_inside,
]


@pytest.mark.parametrize("forward", PLAIN)
@pytest.mark.parametrize("check", [True, False])
def test_contexts_are_kept_without_listening(forward, check, captured_both_ways):
    captured, heard = captured_both_ways(net_of(forward), X, X.neg(), check=check)
    assert captured.graph.state_guards == heard.graph.state_guards
    assert any(node.region for node in captured.graph.nodes)


@pytest.mark.parametrize(
    "forward", [around_a_part, around_what_is_returned, one_in_another, in_half_precision]
)
def test_a_symbolic_trace_keeps_the_same_contexts(forward, recorded):
    net = net_of(forward)
    assert recorded(fxplug.symbolic_trace(net)) == recorded(fxplug.trace(net, (X,)))


class Bare(nn.Module):
    """Without layers that are trained in another way: it is captured plainly in training, too."""

    def __init__(self):
        super().__init__()
        self.layer, self.act, self.norm = nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4)


@pytest.mark.parametrize("forward", [around_a_part, one_in_another, said_by_a_flag])
@pytest.mark.parametrize("is_training", [True, False])
def test_gradients_are_those_of_the_program(forward, is_training, plainly):
    net = type("Entering", (Bare,), {"forward": forward})().train(is_training)
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    grads = []
    for one in (net, captured):
        net.zero_grad()
        x = X.clone().requires_grad_()
        (one(x) + x).square().sum().backward()
        grads.append([None if weight.grad is None else weight.grad.clone() for weight in net.parameters()])
    for found, expected in zip(*grads, strict=True):
        assert (found is None) is (expected is None)
        if expected is not None:
            torch.testing.assert_close(found, expected)


class Derived(torch.no_grad):
    pass


@torch.no_grad()
def decorated_helper(x):
    return x.sin()


@torch.no_grad()
def around_a_forward(self, x):
    return self.layer(x).relu()


@torch.no_grad
def without_parentheses(self, x):
    return self.layer(x).relu()


@torch.inference_mode()
@torch.autocast("cpu", dtype=torch.bfloat16)
def around_one_another(self, x):
    return self.layer(x).float()


@torch.set_grad_enabled(False)
def around_what_says_otherwise(self, x):
    with torch.enable_grad():
        return self.layer(x) * self.weight


def around_a_helper(self, x):
    return decorated_helper(self.layer(x)) + x


class Inner(Net):
    @torch.no_grad()
    def forward(self, x):
        return self.norm(self.layer(x)) + self.more(x)

    @torch.enable_grad()
    def more(self, x):
        return x * self.weight


class Outer(Net):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(self.layer(x)) + self.inner(x)


@pytest.mark.parametrize(
    "forward",
    [
        around_a_forward,
        without_parentheses,
        around_one_another,
        around_what_says_otherwise,
        around_a_helper,
        Outer.forward,
    ],
    ids=["plain", "without parentheses", "two", "set", "helper", "inner"],
)
@pytest.mark.parametrize("check", [True, False])
def test_contexts_that_are_put_on_functions(forward, check, plainly, listened_to, recorded):
    net = Outer().eval() if forward is Outer.forward else net_of(forward)
    captured = fxplug.trace(net, (X,), check=check)
    assert plainly == [captured]
    assert recorded(captured) == recorded(listened_to(net, X))
    expected, found = net(X.neg()), captured(X.neg())
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert found.requires_grad is expected.requires_grad
    assert any(node.region for node in captured.graph.nodes)


def undecorated_helper(x):
    return x * 2


helper_without_gradients = torch.no_grad()(undecorated_helper)


def with_and_without(self, x):
    return undecorated_helper(self.layer(x)) + helper_without_gradients(self.layer(x))


def the_other_way_round(self, x):
    return helper_without_gradients(self.layer(x)) + undecorated_helper(self.layer(x))


@pytest.mark.parametrize("forward", [with_and_without, the_other_way_round])
def test_one_function_with_a_context_and_without(forward, listened_to, recorded):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,), check=False)
    assert [node.name for node in captured.graph.nodes if node.region]
    assert recorded(captured) == recorded(listened_to(net, X))


class Frozen(nn.Sequential):
    forward = torch.no_grad()(nn.Sequential.forward)


@pytest.mark.parametrize("is_root", [True, False])
def test_a_context_on_the_forward_of_a_container_is_kept(is_root, listened_to, recorded):
    frozen = Frozen(nn.Linear(4, 4), nn.ReLU())
    net = frozen if is_root else nn.Sequential(nn.Linear(4, 4), frozen)
    captured = fxplug.trace(net, (X,), check=False)
    assert not captured(X).requires_grad
    assert recorded(captured) == recorded(listened_to(net, X))
    assert recorded(fxplug.symbolic_trace(net)) == recorded(captured)


@torch.no_grad()
def whole_program(x, scale=None):
    return x * 2 if scale is None else x * scale


def test_a_function_with_a_context_on_it_may_be_the_program(plainly):
    captured = fxplug.trace(whole_program, (X,))
    assert plainly == [captured]
    assert [node.region for node in captured.graph.nodes if node.op == "call_function"] != [()]


def noting(function):
    def run(*args):
        return function(*args) + 1

    run.__wrapped__ = function
    return run


@noting
@torch.no_grad()
def put_on_beneath_another(self, x):
    return self.layer(x)


@torch.no_grad()
@noting
def put_on_another(self, x):
    return self.layer(x)


def with_an_attribute(self, x):
    return helper_with_an_attribute(x)


@torch.no_grad()
def helper_with_an_attribute(x):
    return x.sin()


helper_with_an_attribute.calls = 0


@Derived()
def derived_context(self, x):
    return self.layer(x)


@pytest.mark.parametrize(
    "forward", [put_on_beneath_another, put_on_another, with_an_attribute, derived_context], ids=range(4)
)
def test_other_decorators_are_listened_to(forward, plainly):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X.neg()), net(X.neg()))


class Own(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


SILENT = contextlib.nullcontext()


def with_one_of_its_own(self, x):
    with Own():
        return self.layer(x)


def with_one_derived(self, x):
    with Derived():
        return self.layer(x)


def with_one_that_is_kept(self, x):
    with SILENT:
        return self.layer(x)


def with_one_that_is_named(self, x):
    context = torch.no_grad()
    with context:
        return self.layer(x)


def with_what_it_returns(self, x):
    with torch.no_grad() as nothing:
        return self.layer(x) if nothing is None else x


def with_one_of_two(self, x):
    with torch.no_grad() if self.yes else torch.enable_grad():
        return self.layer(x)


def with_a_level_of_dual_numbers(self, x):
    with forward_ad.dual_level():
        return self.layer(x)


def with_what_a_method_of_one_gives(self, x):
    with torch.no_grad().clone():
        return self.layer(x)


def with_one_that_hangs_on_a_call(self, x):
    with torch.set_grad_enabled(bool(x.dim() > 5)):
        return self.layer(x)


def where_an_error_is_caught(self, x):
    try:
        with torch.no_grad():
            return self.layer(x)
    except ValueError:
        return x


def that_suppresses_errors(self, x):
    with contextlib.suppress(ValueError):
        x = self.layer(x)
    return x


@pytest.mark.parametrize(
    "forward",
    [
        with_one_of_its_own,
        with_one_derived,
        with_one_that_is_kept,
        with_one_that_is_named,
        with_what_it_returns,
        with_one_of_two,
        with_a_level_of_dual_numbers,
        with_what_a_method_of_one_gives,
        with_one_that_hangs_on_a_call,
        where_an_error_is_caught,
        that_suppresses_errors,
    ],
)
def test_other_contexts_are_listened_to(forward, plainly):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X.neg()), net(X.neg()))


def test_a_context_that_somebody_has_exchanged_is_listened_to(plainly, monkeypatch):
    entered = []
    enter = torch.no_grad.__enter__

    def noted(self):
        entered.append(self)
        return enter(self)

    monkeypatch.setattr(torch.no_grad, "__enter__", noted)
    captured = fxplug.trace(net_of(around_a_part), (X,))
    assert plainly == [None]
    assert entered
    assert any(node.region for node in captured.graph.nodes)


def asks_for_gradients_inside(self, x):
    y = self.layer(x)
    with torch.no_grad():
        z = y * 2
        return z + 1 if y.requires_grad else z - 1


def test_a_question_that_only_a_run_answers_is_listened_to_inside_of_a_context(plainly):
    net = net_of(asks_for_gradients_inside)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X), rtol=0, atol=0)


def writes_to_a_view(self, x):
    y = self.layer(x)
    with torch.no_grad():
        z = y[0]
    z += 1
    return y


def writes_to_what_is_seen(self, x):
    y = self.layer(x)
    with torch.no_grad():
        z = y.t()
        y.mul_(2)
    return z + 1


def writes_to_what_is_seen_later(self, x):
    y = self.layer(x)
    with torch.no_grad():
        z = y.flatten()
    nn.functional.relu(y, inplace=True)
    return z + 1


def writes_to_what_torch_has_seen(self, x):
    with torch.no_grad():
        y = self.layer(x.unsqueeze(0))
    y += self.weight
    return y


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    "forward",
    [writes_to_a_view, writes_to_what_is_seen, writes_to_what_is_seen_later, writes_to_what_torch_has_seen],
)
def test_an_error_that_hangs_on_a_context_is_the_program_s(forward, check):
    net = net_of(forward)
    with pytest.raises(RuntimeError, match="no_grad mode") as expected:
        net(X)
    with pytest.raises(RuntimeError, match="no_grad mode") as found:
        fxplug.trace(net, (X,), check=check)
    assert str(found.value).startswith(str(expected.value)[:60])


def writes_to_a_view_with_gradients(self, x):
    y = self.layer(x)[0]
    with torch.enable_grad():
        y.add_(self.weight)
    return y


def test_an_error_that_hangs_on_a_context_around_the_program_is_the_program_s():
    net = net_of(writes_to_a_view_with_gradients)
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="no_grad mode"):
            net(X)
        with pytest.raises(RuntimeError, match="no_grad mode"):
            fxplug.trace(net, (X,), check=False)


def raises(self, x):
    with torch.no_grad():
        return self.layer(x[:, :2])


def test_an_error_inside_of_a_context_comes_through_and_leaves_it():
    net = net_of(raises)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fxplug.trace(net, (X,), check=False)
    assert torch.is_grad_enabled()


def passes_on_what_it_is_given(self, x):
    with torch.no_grad():
        y = nn.functional.dropout(self.layer(x), 0.5, training=False)
        return self.act(y.float()[0] + 1) if self.no else y.contiguous().to(torch.float32)[0]


def test_what_passes_on_what_it_is_given_does_not_write(monkeypatch, plainly):
    monkeypatch.setattr("fxplug.api.plain_capture.run_plainly", None)
    captured = fxplug.trace(net_of(passes_on_what_it_is_given), (X,), check=False)
    assert plainly == [captured]


def test_nothing_stays_behind_a_trace():
    methods = [
        getattr(kind, name) for kind in (torch.no_grad, torch.autocast) for name in ("__enter__", "__exit__")
    ]
    codes = [method.__code__ for method in methods]
    fxplug.trace(net_of(two_at_once), (X,))
    assert [method.__code__ for method in methods] == codes
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("forward", [around_what_is_returned, one_in_another, in_the_precision_of_an_input])
def test_what_follows_from_sizes_is_not_run(forward, monkeypatch, plainly):
    monkeypatch.setattr(plain_run, "compute", None)
    monkeypatch.setattr("fxplug.api.plain_capture.run_plainly", None)
    captured = fxplug.trace(net_of(forward), (X,), check=False)
    assert plainly == [captured]


@pytest.mark.parametrize("forward", [in_half_precision, without_view_tracking])
def test_contexts_that_change_values_are_run_in(forward, monkeypatch):
    ran = []
    run = plain_run.run_plainly

    def noted(*args):
        ran.append(args[0])
        run(*args)

    monkeypatch.setattr("fxplug.api.plain_capture.run_plainly", noted)
    net = net_of(forward)
    fxplug.trace(net, (X,), check=False)
    assert len(ran) == 1
    assert ran == [net]


def test_under_autocast_nothing_follows_from_sizes(monkeypatch):
    ran = []
    run = plain_run.run_plainly
    monkeypatch.setattr("fxplug.api.plain_capture.run_plainly", lambda *args: (ran.append(1), run(*args)))
    net = net_of(in_the_precision_of_an_input)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fxplug.trace(net, (X,), check=False)
    assert ran


def asks_inside_first(self, x):
    with torch.autocast("cpu", enabled=False):
        y = torch.cat([2 * part for part in self.layer(x).split(2, 1)], 1)
    z = self.layer(y)
    return z if z.dtype == torch.bfloat16 else z + 1


def test_what_is_asked_first_in_a_context_tells_nothing_of_those_around_the_program():
    net = net_of(asks_inside_first)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured = fxplug.trace(net, (X,), check=False)
        torch.testing.assert_close(captured(X), net(X), rtol=0, atol=0)
        assert captured(X).dtype is torch.bfloat16


def test_contexts_are_read_from_code():
    assert reads_of(around_a_part.__code__).contexts == (("torch", "no_grad"),)
    assert set(reads_of(one_in_another.__code__).contexts) == {("torch", "no_grad"), ("torch", "enable_grad")}
    assert reads_of(in_half_precision.__code__).contexts == (("torch", "autocast"),)
    assert ("torch", "bfloat16") in reads_of(in_half_precision.__code__).found
    assert reads_of_function(handed_on.__code__).contexts == (("torch", "no_grad"),)
    for other in (with_one_that_is_kept, with_what_it_returns, where_an_error_is_caught, with_one_of_two):
        assert reads_of(other.__code__) is None
