"""Plain programs that handle errors: they are plain as long as none is raised, and are listened to if one is."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

import fxplug
from fxplug.api import plain_capture
from fxplug.errors import TraceWarning

X = torch.linspace(-2, 2, 12).reshape(3, 4)
pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="older Pythons handle errors in another way"
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.weight = nn.Parameter(torch.linspace(1, 2, 4))
        self.table = {"one": 1, "two": 2}


def net_of(forward):
    torch.manual_seed(0)
    return type("Handling", (Net,), {"forward": forward})().eval()


def around_a_call(self, x):
    try:
        y = self.layer(x)
    except ValueError:
        return x
    return y + 1


def any_error(self, x):
    try:
        return self.layer(x) @ self.weight
    except:  # noqa: E722
        return x


def with_an_else_and_a_finally(self, x):
    try:
        y = self.layer(x)
    except (RuntimeError, KeyError) as error:
        raise ValueError("no layer") from error
    else:
        y = y * 2
    finally:
        x = x + 1
    return x * y


def returned_through_a_finally(self, x):
    y = x
    try:
        return self.layer(x)
    finally:
        y = y + 1


def one_in_another(self, x):
    try:
        try:
            y = self.layer(x)
        except TypeError:
            y = x
        y = y * self.weight
    except Exception:
        y = x - 1
    return y.relu()


def in_a_loop(self, x):
    for number, block in enumerate(self.blocks):
        try:
            if number == 1:
                continue
            x = block(x)
        except RuntimeError:
            break
    return x


def asks_for_a_size(self, x):
    try:
        if x.shape[1] != 4:
            raise ValueError("of another width")  # noqa: TRY301
        y = self.layer(x)
    except ValueError:
        y = x
    return y * 2


def in_a_function(self, x):
    return attempted(self.layer(x)) + 1


def attempted(x):
    try:
        return x.sin()
    except RuntimeError:
        return x


def around_a_context(self, x):
    try:
        return without_gradients(x)
    except RuntimeError:
        return x


def without_gradients(x):
    with torch.no_grad():
        return x * 2


def looks_something_up(self, x):
    try:
        factor = self.table["two"]
    except KeyError:
        factor = 1
    return x * factor


def found_by_a_dtype(self, x):
    table = {torch.float32: 2, torch.float64: 3}
    try:
        factor = table[x.dtype]
    except KeyError:
        factor = 100
    return x * factor


PLAIN = [
    around_a_call,
    any_error,
    with_an_else_and_a_finally,
    returned_through_a_finally,
    one_in_another,
    in_a_loop,
    asks_for_a_size,
    in_a_function,
    around_a_context,
    looks_something_up,
    found_by_a_dtype,
]


@pytest.mark.parametrize("forward", PLAIN)
@pytest.mark.parametrize("check", [True, False])
def test_handlers_that_do_not_run_are_not_listened_to(forward, check, captured_both_ways):
    before = forward.__code__, dict(vars(forward))
    captured_both_ways(net_of(forward), X, X.neg(), check=check)
    assert (forward.__code__, vars(forward)) == before


def whole_program(x):
    try:
        return x.sin() + 1
    except RuntimeError:
        return x


def test_a_function_may_be_the_program(plainly):
    captured = fxplug.trace(whole_program, (X,))
    assert plainly == [captured]
    torch.testing.assert_close(captured(X.neg()), whole_program(X.neg()))


def raised_by_the_program(self, x):
    try:
        if x.shape[1] == 4:
            raise ValueError("of this width")  # noqa: TRY301
        y = self.layer(x)
    except ValueError:
        y = x * 3
    return y + 1


def raised_by_torch(self, x):
    try:
        y = x @ x
    except RuntimeError:
        y = x @ x.mT
    return y + 1


def raised_by_a_layer(self, x):
    try:
        y = self.layer(x.mT)
    except RuntimeError:
        y = self.layer(x)
    return y + 1


def raised_by_a_function(self, x):
    try:
        y = never(x)
    except LookupError:
        y = x * 4
    return y


def never(x):
    raise KeyError("never")


def raised_by_a_table(self, x):
    try:
        factor = self.table["three"]
    except KeyError:
        factor = 3
    return x * factor


def raised_on_the_way_to_a_finally(self, x):
    y = x
    for number in range(2):
        try:
            if number == 1:
                raise ValueError  # noqa: TRY301
            y = y + 1
        except ValueError:
            y = y * 5
        finally:
            y = y - 1
    return y


def not_found_by_a_dtype(self, x):
    try:
        factor = {torch.float64: 3}[x.dtype]
    except KeyError:
        factor = 100
    return x * factor


def attribute_that_is_not_there(self, x):
    try:
        y = x.numbers()
    except AttributeError:
        y = x * 2
    return y


def element_that_is_not_there(self, x):
    try:
        y = x[7]
    except IndexError:
        y = x[0]
    return y


def parts_that_are_too_many(self, x):
    try:
        y, z = x
    except ValueError:
        y, z = x[0], x[1]
    return y + z


def what_no_traced_value_does(self, x):
    try:
        y = "%x" % x.shape[0]  # noqa: UP031
    except Exception:
        y = "none"
    return x * len(y)


RAISING = [
    raised_by_the_program,
    raised_by_torch,
    raised_by_a_layer,
    raised_by_a_function,
    raised_by_a_table,
    raised_on_the_way_to_a_finally,
    not_found_by_a_dtype,
    attribute_that_is_not_there,
    element_that_is_not_there,
    parts_that_are_too_many,
    what_no_traced_value_does,
]


def around(inner):
    """A forward that calls a method of another module, and would handle its errors, too."""

    def forward(self, x):
        try:
            return self.inner.run(x)
        except (LookupError, ValueError, RuntimeError, AttributeError):
            return x - 100

    inner_kind = type("Inner", (Net,), {"run": inner, "forward": inner})

    def make():
        net = net_of(forward)
        torch.manual_seed(0)
        net.inner = inner_kind().eval()
        return net

    return make


def around_a_module(inner):
    """The same, where the other module is called."""

    def forward(self, x):
        try:
            return self.inner(x) + 1
        except Exception:
            return x - 100

    def make():
        net = net_of(forward)
        net.inner = net_of(inner)
        return net

    return make


@pytest.mark.parametrize("forward", RAISING)
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("place", [None, around, around_a_module])
def test_handlers_that_run_are_never_passed_over(forward, check, place, plainly):
    net = net_of(forward) if place is None else place(forward)()
    expected = net(X)
    before = forward.__code__, dict(vars(forward))
    try:
        captured = fxplug.trace(net, (X,), check=check)
    except fxplug.TraceError:
        captured = None  # It is said that it cannot be captured.
    assert plainly == [None]
    assert (forward.__code__, vars(forward)) == before
    if captured is not None:
        torch.testing.assert_close(captured(X), expected, rtol=0, atol=0)


NOTED = []


def notes_what_it_catches(self, x):
    try:
        int("a")
    except ValueError:
        NOTED.append(x)
        self.table["three"] = 3
        x = x * 2
    return self.layer(x)


def notes_what_it_catches_in_a_function(self, x):
    return noting(self.layer(x))


def noting(x):
    try:
        return {}[x.dtype]
    except KeyError:
        torch.set_grad_enabled(False)
        NOTED.append(x)
        return x


def asks_where_it_catches(self, x):
    try:
        [].index(3)
    except ValueError:
        return x * 2 if type(x) is torch.Tensor else x * 3
    return x


@pytest.mark.parametrize("forward", [notes_what_it_catches, notes_what_it_catches_in_a_function])
def test_no_handler_runs_in_a_plain_trace(forward, plainly):
    net = net_of(forward)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore", TraceWarning)  # What it changes elsewhere is told.
        with contextlib.suppress(fxplug.TraceError):
            fxplug.trace(net, (X,), check=False)
        assert plainly == [None]
        patch.setattr(fxplug.api.capturing, "_capture_once", None)  # Nothing but the plain way.
        with contextlib.suppress(TypeError):
            fxplug.trace(net, (X,), check=False)
    assert NOTED == []
    assert net.table == {"one": 1, "two": 2}
    assert torch.is_grad_enabled()


def test_what_a_handler_asks_is_guarded():
    net = net_of(asks_where_it_catches)
    captured = fxplug.trace(net, (X,))
    torch.testing.assert_close(captured(X), net(X))
    with pytest.raises(fxplug.GuardError, match="type"):
        captured(nn.Parameter(X))


def tries_an_attribute(self, x):
    y = 0
    try:
        y = x.mT
        y = 1
    except RuntimeError:
        return x * 2
    return x + y


def tries_an_attribute_of_what_is_computed(self, x):
    try:
        is_one = self.layer(x).T is x
    except RuntimeError:
        return x * 2
    return x + 1 if is_one else x - 1


@pytest.mark.parametrize("forward", [tries_an_attribute, tries_an_attribute_of_what_is_computed])
def test_attributes_that_nobody_uses_are_read_all_the_same(forward, plainly, listened_to, recorded):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    assert recorded(captured) == recorded(listened_to(net, X))
    if plainly == [captured] and forward is tries_an_attribute:
        with pytest.raises(fxplug.GuardError, match="which the program catches"):
            captured(X[0])


def test_an_attribute_that_nobody_uses_raises_its_error():
    def forward(self, x):
        x.mT  # noqa: B018
        return x + 1

    with pytest.raises(RuntimeError, match="mT"):
        fxplug.trace(net_of(forward), (X[0],), check=False)
    with pytest.raises(RuntimeError, match="mT"):
        fxplug.trace(net_of(forward), (X,))(X[0])


def test_who_may_have_asked_for_a_class_by_trying_gets_a_guard(listened_to):
    def forward(self, x):
        try:
            y = x.relu()
        except AttributeError:
            y = x
        return y

    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    wanted = "type(x) is torch.Tensor"
    assert wanted in [guard.text for guard in captured.guards]
    assert wanted in [guard.text for guard in listened_to(net, X).guards]


@pytest.mark.parametrize("forward", [raised_by_torch, raised_by_a_layer, element_that_is_not_there])
def test_what_only_the_run_raises_is_listened_to(forward, plainly):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X), rtol=0, atol=0)


def test_a_program_that_handles_errors_runs_whatever_is_known_from_sizes(plainly, monkeypatch):
    ran, run = [], plain_capture.run_plainly
    monkeypatch.setattr(plain_capture, "run_plainly", lambda *args: ran.append(args) or run(*args))
    captured = fxplug.trace(net_of(around_a_call), (X,), check=False)
    assert plainly == [captured]
    assert len(ran) == 1


def raises_for_negatives(x):
    try:
        if bool(x.sum() < 0):
            raise ValueError("below zero")  # noqa: TRY301
        return x.sin()
    except ValueError:
        return x * 0


def test_other_threads_handle_their_errors_meanwhile():
    stopped, failed, done = threading.Event(), [], []

    def call():
        while not stopped.is_set():
            try:
                done.append(float(raises_for_negatives(X - 10).sum()))
            except ValueError as error:
                failed.append(error)

    thread = threading.Thread(target=call)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for _ in range(30):
            captured = fxplug.trace(raises_for_negatives, (X + 10,), check=False)
    finally:
        stopped.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not failed
    assert done
    assert set(done) == {0.0}
    torch.testing.assert_close(captured(X + 20), (X + 20).sin())


def tries_without_using_it(self, x):
    try:
        x.view(2, -1)
    except RuntimeError:
        return x
    return x + 1


def tries_a_shape(self, x):
    try:
        y = x @ self.weight.expand(4, 4)
    except RuntimeError:
        y = x * 2
    return y.relu()


def tries_in_a_function(self, x):
    return tried(x) * 2


def tried(x):
    try:
        return x.reshape(4, 3)
    except RuntimeError:
        return x


@pytest.mark.parametrize(
    ("forward", "other"),
    [
        (tries_without_using_it, torch.ones(4, 3).T),
        (tries_a_shape, torch.ones(3, 5)),
        (tries_in_a_function, torch.ones(3, 5)),
    ],
)
def test_an_error_that_the_program_would_have_caught_is_told_where_it_comes_later(
    forward, other, plainly, listened_to, recorded
):
    net = net_of(forward)
    captured, heard = fxplug.trace(net, (X,)), listened_to(net, X)
    assert plainly == [captured]
    assert recorded(captured) == recorded(heard)
    told = []
    for one in (captured, heard):
        with pytest.raises(fxplug.GuardError, match="which the program catches") as raised:
            one(other)
        told.append(str(raised.value))
    assert told[0] == told[1]
    assert [guard.text for guard in captured.guards] == [guard.text for guard in heard.guards]


NUMBERS = {
    "quotient": lambda net, x: 1 / (x.shape[0] - 7),
    "rest": lambda net, x: 5 % (x.shape[0] - 7),
    "whole quotient": lambda net, x: 5 // (x.shape[0] - 7),
    "bits": lambda net, x: 1 << (x.shape[0] - 8),
    "size": lambda net, x: x.size(x.shape[0] - 12),
    "of an element": lambda net, x: 1 / (x.sum().item() - 21),
    "both": lambda net, x: divmod(3, x.shape[0] - 7),
    "rounded": lambda net, x: round(1 / (x.shape[0] - 7)),
    "power": lambda net, x: 0 ** (x.shape[0] - 8),
}


def tries_numbers(self, x):
    try:
        self.compute(x)
    except (ZeroDivisionError, ValueError, IndexError):
        return x * 100
    return x * 2


@pytest.mark.parametrize("way", ["plain", "listened to"])
@pytest.mark.parametrize("name", NUMBERS)
def test_an_attempt_with_numbers_that_nobody_uses_is_made(name, way, listened_to):
    net = type("Handling", (Net,), {"compute": NUMBERS[name], "forward": tries_numbers})().eval()
    long, short = torch.arange(12.0), torch.arange(7.0)
    captured = (
        fxplug.trace(net, (long,), check=False) if way == "plain" else listened_to(net, long, check=False)
    )
    torch.testing.assert_close(captured(long), net(long))
    with pytest.raises(fxplug.GuardError, match="which the program catches"):
        captured(short)


def contexts_and_handlers(self, x):
    with torch.no_grad():
        try:
            y = self.layer(x)
        except RuntimeError:
            y = x
    return y


def makes_an_error_of_another(self, x):
    try:
        return self.layer(x.mT)
    except RuntimeError as error:
        raise LookupError("no such width") from error


def test_functions_that_enter_contexts_and_handle_errors_are_listened_to(plainly):
    net = net_of(contexts_and_handlers)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    assert not captured(X).requires_grad


def test_an_error_of_the_program_comes_through():
    with pytest.raises(LookupError, match="no such width"):
        fxplug.trace(net_of(makes_an_error_of_another), (X,), check=False)


def test_gradients_are_as_before_where_an_error_leaves_a_context_in_a_function():
    def failing(net, x):
        with torch.no_grad():
            return x @ x

    def forward(self, x):
        try:
            return without(self, x)
        except RuntimeError:
            return self.layer(x)

    without = failing
    net = net_of(forward)
    captured = fxplug.trace(net, (X,), check=False)
    assert torch.is_grad_enabled()
    torch.testing.assert_close(captured(X), net(X))
    assert captured(X).requires_grad


@pytest.mark.parametrize("source", ["handles", "does not"])
def test_nothing_of_a_program_is_kept_behind_its_trace(source):
    body = {
        "handles": "try:\n        return x.relu()\n    except RuntimeError:\n        return x",
        "does not": "return x.relu()",
    }[source]
    namespace = {}
    exec(f"def helper(x):\n    {body}\ndef program(x):\n    return helper(x) + 1\n", namespace)
    program = namespace.pop("program")
    kept = weakref.ref(program)
    namespace["helper"].__globals__["kept_by_helper"] = program
    fxplug.trace(program, (X,), check=False)
    del program, namespace
    gc.collect()
    assert kept() is None
