"""Contexts of torch that a program enters: nodes know them, and everything that handles a graph keeps them."""

from __future__ import annotations

import contextlib
import copy
import pickle

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import fxplug
from fxplug.capture import Tracer
from fxplug.errors import TraceError
from fxplug.ir import RegionEntry

NO_GRAD = RegionEntry(torch.no_grad)
AUTOCAST = RegionEntry(torch.autocast, ("cpu", torch.bfloat16, True, True))


def region_of(module, name):
    return next(node.region for node in module.graph.nodes if node.name == name)


def quiet(x):
    with torch.no_grad():
        return x * 2


def loud(x):
    with torch.no_grad(), torch.enable_grad():
        return x * 2


def set_as_context(x):
    with torch.set_grad_enabled(False):
        return x * 2


def inference(x):
    with torch.inference_mode():
        return x * 2


def no_inference(x):
    with torch.inference_mode(), torch.inference_mode(False):
        return x * 2


def mixed(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()


def mixed_by_device_module(x):
    with torch.amp.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        return x @ x.t()


def off_inside(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
        with torch.autocast("cpu", enabled=False):
            return x @ x.t() + y


@torch.no_grad()
def decorated(x):
    return x * 2


@torch.set_grad_enabled(False)
def decorated_by_set(x):
    return x * 2


@torch.inference_mode()
def decorated_by_inference(x):
    return x * 2


@torch.autocast("cpu", dtype=torch.bfloat16)
def decorated_by_autocast(x):
    return x @ x.t()


def decorated_inside(x):
    @torch.set_grad_enabled(False)
    def inner(value):
        return value * 2

    return inner(x), x * 3


def by_exit_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        y = x @ x.t()
    return x + 1, y


class Quiet(torch.no_grad):
    """A context that derives from one of torch."""


def derived(x):
    with Quiet():
        return x * 2


PROGRAMS = [
    quiet,
    loud,
    set_as_context,
    inference,
    no_inference,
    mixed,
    mixed_by_device_module,
    off_inside,
    decorated,
    decorated_by_set,
    decorated_by_inference,
    decorated_by_autocast,
    decorated_inside,
    by_exit_stack,
    derived,
]
AMBIENT = [contextlib.nullcontext, torch.no_grad, torch.enable_grad, torch.inference_mode]


def properties(result):
    results = result if isinstance(result, tuple) else (result,)
    return [(one.dtype, one.requires_grad, one.is_inference(), one.tolist()) for one in results]


@pytest.mark.parametrize("ambient", AMBIENT, ids=["plain", "no_grad", "enable_grad", "inference_mode"])
@pytest.mark.parametrize("program", PROGRAMS, ids=[program.__name__ for program in PROGRAMS])
def test_captured_program_runs_in_the_regions_of_the_program(capture, program, ambient):
    module = capture(program)
    with ambient():
        x = torch.linspace(0.5, 1, 6).reshape(2, 3)
        x = x if ambient is torch.inference_mode else x.requires_grad_()
        expected = properties(program(x))
        assert properties(module(x)) == expected
        assert properties(fxplug.Interpreter(module).run(x)) == expected


def test_nodes_know_what_is_entered_around_them(capture):
    def program(x):
        before = x + 1
        with torch.no_grad():
            inside = before * 2
            with torch.autocast("cpu", dtype=torch.bfloat16):
                innermost = inside @ inside
        return innermost - 1

    module = capture(program)
    assert region_of(module, "add") == ()
    assert region_of(module, "mul") == (NO_GRAD,)
    assert region_of(module, "matmul") == (NO_GRAD, AUTOCAST)
    assert region_of(module, "sub") == ()
    assert [node.region for node in module.graph.nodes if node.op in {"placeholder", "output"}] == [(), ()]


def test_what_the_caller_has_entered_is_no_part_of_the_program(capture):
    with torch.no_grad():
        module = capture(lambda x: x * 2)
    assert region_of(module, "mul") == ()


def test_leaf_modules_know_their_region(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            with torch.no_grad():
                frozen = self.linear(x)
            return frozen + self.linear(x)

    module = capture(Root())
    assert [node.region for node in module.graph.find_nodes(op="call_module")] == [(NO_GRAD,), ()]
    module(torch.ones(2, 3)).sum().backward()
    assert module.linear.weight.grad.tolist() == [[2, 2, 2]] * 3


def test_python_is_told_the_truth_inside_a_region(capture):
    def program(x):
        with torch.no_grad():
            return x * (2 if torch.is_grad_enabled() else 3)

    assert capture(program)(torch.ones(1)).item() == 3


def test_contexts_of_others_just_run(capture):
    entered = []

    @contextlib.contextmanager
    def noted():
        entered.append(True)
        yield

    def program(x):
        with noted():
            return x * 2

    module = capture(program)
    assert entered == [True]
    assert region_of(module, "mul") == ()


def statement(x):
    torch.set_grad_enabled(False)
    return x * 2


def pair_of_statements(x):
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y


def entered_late(x):
    context = torch.set_grad_enabled(False)
    y = x * 2
    with context:
        return y + 1


def never_left(x):
    torch.no_grad().__enter__()
    return x * 2


def crossed(x):
    first, second = torch.no_grad(), torch.autocast("cpu")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    y = x @ x
    second.__exit__(None, None, None)
    return y


@pytest.mark.parametrize("program", [statement, never_left, crossed])
def test_what_is_no_block_is_refused_and_undone(capture, program):
    with pytest.raises(TraceError, match=r"Use it .*with.*\[FXP-T050\]$"):
        capture(program)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_refusal_shows_the_statement(capture):
    with pytest.raises(TraceError) as caught:
        capture(statement)
    assert f"{__file__}:{statement.__code__.co_firstlineno + 1}" in str(caught.value)


def around_a_statement(x):
    with torch.no_grad():
        torch.set_grad_enabled(True)
        return x * 2


def test_statement_inside_of_a_block_is_refused(capture):
    with pytest.raises(TraceError, match="FXP-T050"):
        capture(around_a_statement)


@pytest.mark.parametrize("program", [pair_of_statements, entered_late])
def test_statements_that_end_where_they_began_are_regions(capture, program):
    module = capture(program)
    x = torch.ones(2, requires_grad=True)

    assert region_of(module, "mul") == (RegionEntry(torch.set_grad_enabled, (False,)),)
    assert module(x).requires_grad is program(x).requires_grad is False
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_derivatives_are_kept_in_their_level(capture):
    def derivative(x):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            return forward_ad.unpack_dual(dual.sin()).tangent.clone()

    captured = fxplug.trace(derivative, (torch.ones(3),))
    assert torch.allclose(captured(torch.zeros(3)), torch.ones(3))


def test_regions_end_where_a_program_fails(capture):
    def failing(x):
        with torch.no_grad():
            raise LookupError

    def caught(x):
        with contextlib.suppress(LookupError):
            failing(x)
        return x * 2

    with pytest.raises(LookupError):
        capture(failing)
    assert torch.is_grad_enabled()
    assert region_of(capture(caught), "mul") == ()


def test_traces_of_other_threads_are_not_in_the_region(capture):
    import threading

    inside = threading.Event()
    leave = threading.Event()
    found = []

    def other():
        with torch.no_grad():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    try:
        found.append(region_of(capture(lambda x: x * 2), "mul"))
    finally:
        leave.set()
        thread.join()
    assert found == [()]


# -- what handles a graph


class Regions(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        with torch.no_grad():
            unused = x * 3  # noqa: F841 - for dead-code removal
            y = self.linear(x).relu()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return y @ x.t()


@pytest.fixture
def captured():
    root = Regions()
    return fxplug.GraphModule(root, Tracer().trace(root))


def regions(module):
    return [node.region for node in module.graph.nodes]


def check_same(module, other):
    x = torch.linspace(0.5, 1, 6).reshape(2, 3).requires_grad_()
    assert properties(other(x)) == properties(module(x))
    assert module(x).dtype is torch.bfloat16


@pytest.mark.parametrize(
    "remake",
    [
        copy.copy,
        copy.deepcopy,
        lambda module: pickle.loads(pickle.dumps(module)),
        lambda module: fxplug.Transformer(module).transform(),
        fxplug.symbolic_trace,
        lambda module: fxplug.GraphModule(module, copy.deepcopy(module.graph)),
    ],
    ids=["copy", "deepcopy", "pickle", "Transformer", "traced again", "graph"],
)
def test_regions_survive(captured, remake):
    other = remake(captured)
    assert regions(other) == regions(captured)
    check_same(captured, other)


def test_regions_survive_a_file(captured, tmp_path):
    fxplug.save(captured, tmp_path / "module.fxplug")
    other = fxplug.load(tmp_path / "module.fxplug")
    assert regions(other) == regions(captured)
    check_same(captured, other)


def test_regions_survive_a_folder(captured, tmp_path, monkeypatch):
    captured.to_folder(tmp_path / "with_regions")
    monkeypatch.syspath_prepend(tmp_path)
    import with_regions

    check_same(captured, with_regions.FxModule())


def test_generated_code_enters_each_region_once(captured):
    source = captured.code
    assert source.count("with torch.no_grad():") == 1
    assert source.count("with torch.autocast('cpu', torch.bfloat16, True, True):") == 1
    assert "with torch.no_grad():" in captured.print_readable(print_output=False)


def test_dead_code_goes_and_regions_stay(captured):
    before = copy.deepcopy(captured)
    captured.graph.eliminate_dead_code()
    assert not captured.graph.find_nodes(op="call_function", target=torch.mul)
    assert "* 3" not in captured.code
    check_same(before, captured)


def test_replaced_calls_are_in_the_region_of_what_they_replace(captured):
    fxplug.replace_pattern(captured, lambda x: x.relu(), lambda x: x.sigmoid())
    assert [node.region for node in captured.graph.find_nodes(op="call_method", target="sigmoid")] == [
        (NO_GRAD,)
    ]


def test_pattern_with_a_region_matches_that_region_alone(capture):
    def program(x):
        with torch.no_grad():
            y = torch.relu(x)
        return torch.relu(y)

    def pattern(x):
        with torch.no_grad():
            return torch.relu(x)

    module = capture(program)
    assert len(fxplug.replace_pattern(module, pattern, lambda x: x.sigmoid())) == 1
    assert len(module.graph.find_nodes(op="call_function", target=torch.relu)) == 1
