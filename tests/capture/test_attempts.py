"""What a program tries, and would have gone on without: the other way is never taken without a word."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import GuardError
from fxplug.semantics.checks import check_true

FOUR, THREE = torch.arange(4.0), torch.arange(3.0)


def in_halves(x):
    return x.view(2, -1)


def asks(x):
    try:
        x.view(2, -1)
    except RuntimeError:
        return x * 5
    return x * 2


def asks_a_function(x):
    try:
        in_halves(x)
        is_even = True
    except RuntimeError:
        is_even = False
    return x * 2 if is_even else x * 5


def needs(x):
    try:
        y = x.view(2, -1)
    except RuntimeError:
        y = x * 5
    return y * 2


def asks_no_error(x):
    try:
        x.sin()
    finally:
        x = x * 2
    return x


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def captured_in(mode, root):
    return fxplug.trace(root, None if mode == "symbolic" else (FOUR,), mode=mode)


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("program", [asks, asks_a_function, needs])
def test_what_could_be_done_is_done_in_every_call(mode, program):
    captured = captured_in(mode, program)
    optimised = fxplug.optimize(Model(program).eval(), (FOUR,), mode=mode, measure=False)
    captured.graph.eliminate_dead_code()

    for module in (captured, optimised.module):
        assert torch.equal(module(FOUR), program(FOUR))
        with pytest.raises(RuntimeError, match="invalid for input of size 3"):
            module(THREE)


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("program", [asks, asks_a_function, needs])
def test_what_cannot_be_done_is_refused_with_the_line(mode, program):
    captured = captured_in(mode, program)
    for run in (captured, fxplug.Interpreter(captured).run, copy.deepcopy(captured), nn.Sequential(captured)):
        with pytest.raises(GuardError) as refused:
            run(THREE)
        assert refused.value.code == "FXP-T060"
        assert (
            "view raises RuntimeError (shape '[2, -1]' is invalid for input of size 3), which the program catches"
            in str(refused.value)
        )
        assert f"{__file__}:{program.__code__.co_firstlineno + 2}" in str(refused.value)
        assert type(refused.value.__cause__) is RuntimeError


def test_an_error_that_the_program_does_not_catch_is_its_own():
    def program(x):
        try:
            return x.view(2, -1)
        except (KeyError, ValueError):
            return x

    with pytest.raises(RuntimeError, match="invalid for input of size 3") as caught:
        fxplug.symbolic_trace(program)(THREE)
    assert type(caught.value) is RuntimeError


class OwnError(Exception):
    pass


def test_errors_that_are_none_of_the_call_are_their_own():
    def program(x):
        y = x.sin()
        try:
            return y.exp().cos()
        except Exception:
            return x

    class Stops(fxplug.Interpreter):
        def run_node(self, n):
            if n.target == "cos":
                raise OwnError
            return super().run_node(n)

    module = fxplug.symbolic_trace(program)
    x = FOUR.clone().requires_grad_()
    with pytest.raises(OwnError):
        Stops(module).run(x)
    torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False).sum().backward()
    assert torch.isfinite(x.grad).all()


@fxplug.wrap
def fails(x):
    raise KeyError("own")


def test_errors_of_what_a_rewrite_put_there_are_their_own():
    def program(x):
        try:
            return x.sin()
        except KeyError:
            return x

    module = fxplug.symbolic_trace(program)
    assert fxplug.replace_pattern(module, lambda x: x.sin(), lambda x: fails(x))  # noqa: PLW0108 - is traced
    with pytest.raises(KeyError, match="own"):
        module(FOUR)


@pytest.mark.parametrize("policy", ["warn", "ignore", "eager", "recapture"])
def test_whoever_wants_no_error_of_guards_gets_that_of_the_call(policy):
    def program(x):
        return needs(x) if x.shape[0] < 8 else x

    captured = fxplug.trace(program, (FOUR,), on_guard_failure=policy)
    with pytest.raises(RuntimeError, match="invalid for input of size 3") as caught:
        captured(THREE)
    assert type(caught.value) is RuntimeError


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_it_is_listed(mode):
    line = asks.__code__.co_firstlineno + 2

    assert [guard.text for guard in captured_in(mode, asks).guards] == [
        f"view raising nothing at {__file__}:{line} in asks ('x.view(2, -1)')"
    ]


def test_what_failed_is_guarded_to_fail():
    captured = fxplug.trace(asks, (THREE,))

    assert torch.equal(captured(THREE), THREE * 5)
    with pytest.raises(GuardError, match="raising RuntimeError"):
        captured(FOUR)


@pytest.mark.parametrize("program", [needs, asks_no_error])
def test_what_is_read_or_not_caught_needs_no_check(program):
    captured = fxplug.symbolic_trace(program)

    assert not captured.graph.find_nodes(op="call_function", target=check_true)


def test_the_nodes_that_nothing_uses():
    graph = fxplug.symbolic_trace(lambda x, y: (x.sin(), x.cos(), x * 2)[2]).graph

    assert [node.name for node in graph.nodes.without_users()] == ["y", "sin", "cos", "output"]


# -- refusals of the trace itself


def picks(x):
    try:
        return [x, x * 2][x.shape[0] % 2]
    except (IndexError, ValueError):
        return x * 5


def picks_in_a_method(x):
    try:
        return [x, x * 2].pop(x.shape[0] % 2)
    except Exception:
        return x * 5


def picks_and_raises_another(x):
    try:
        return "ab"[x.shape[0] % 2]
    except ValueError as error:
        raise KeyError("no such letter") from error


class Assigning(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        with contextlib.suppress(Exception):
            self.mean = self.mean + x.mean()
            return x * self.mean
        return x * 5


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (picks, "FXP-T002"),
        (picks_in_a_method, "FXP-T002"),
        (picks_and_raises_another, "FXP-T002"),
        (Assigning(), "FXP-T009"),
    ],
    ids=["subscript", "method", "another error", "buffer"],
)
def test_a_refusal_that_the_program_catches_is_one_all_the_same(program, code):
    with pytest.raises(fxplug.TraceError, match=r"caught this error") as caught:
        fxplug.symbolic_trace(program)
    assert caught.value.code == code


def test_an_error_of_a_trace_within_the_program_may_be_caught():
    def asks_for_a_number(x):
        return range(x.shape[0])

    def program(x):
        try:
            fxplug.symbolic_trace(asks_for_a_number)
        except fxplug.TraceError:
            return x * 2
        return x

    assert torch.equal(fxplug.symbolic_trace(program)(FOUR), FOUR * 2)


class RefusalOfItsOwn(fxplug.TraceError):
    """One that a program raises itself."""


def raises_its_own(x):
    try:
        raise RefusalOfItsOwn("no")  # noqa: TRY301 - as a library does that builds upon this one
    except RefusalOfItsOwn:
        return x * 2


def gives_wrong_arguments(x):
    try:
        fxplug.trace(raises_its_own, (torch.ones(1),), mode="none")
    except fxplug.TraceError:
        return x * 2
    return x


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("program", [raises_its_own, gives_wrong_arguments])
def test_errors_of_the_kind_that_refuse_nothing_may_be_caught(program, mode):
    examples = None if mode == "symbolic" else (FOUR,)
    assert torch.equal(fxplug.trace(program, examples, mode=mode)(FOUR), FOUR * 2)


def test_what_torch_finds_out_by_trying_is_no_refusal():
    def program(x):
        return torch.zeros(4).expand(x.shape[0], -1) + torch.full((x.shape[0], 1), 2.0)

    assert torch.equal(fxplug.symbolic_trace(program)(torch.ones(3, 2)), torch.full((3, 4), 2.0))


class NegativeError(RuntimeError):
    """An error of the program that one of Python's own classes catches."""


@fxplug.wrap
def checked_root(x):
    if bool((x < 0).any()):
        raise NegativeError("negative")
    return x.sqrt()


def roots(x):
    try:
        return checked_root(x)
    except RuntimeError:
        return x * 2


def inverts(x):
    try:
        return torch.linalg.inv(x)
    except Exception:
        return x * 2


@pytest.mark.parametrize("mode", ["symbolic", "value", "shape"])
@pytest.mark.parametrize(
    ("program", "good", "bad"),
    [(roots, torch.eye(3), -torch.eye(3)), (inverts, torch.eye(3), torch.zeros(3, 3))],
    ids=["own", "of torch"],
)
def test_errors_of_classes_derived_from_those_that_are_caught_are_caught_too(program, good, bad, mode):
    if mode == "shape" and program is roots:
        pytest.skip("there are no values to ask for")
    module = (
        fxplug.symbolic_trace(program) if mode == "symbolic" else fxplug.trace(program, (good,), mode=mode)
    )

    torch.testing.assert_close(module(good), program(good))
    with pytest.raises(GuardError, match=r"which the program catches at"):
        module(bad)
