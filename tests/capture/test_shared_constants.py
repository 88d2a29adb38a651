"""Constants that share their memory, and weights of modules that the root does not have: found before they are used."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import TraceError, TraceWarning

MODES = ["value", "shape"]


def on(value):
    return torch.linspace(-1, value, 12).reshape(3, 4)


def rows(count):
    return list(torch.rand(count, 4).split(1))


def results(program, calls=3):
    found = []
    for call in range(calls):
        result = program(on(call + 1.0))
        found.append([part.detach().clone() for part in (result if isinstance(result, tuple) else (result,))])
    return found


def made(make):
    torch.manual_seed(0)
    return make()


def check_captured(make, mode, change=lambda captured: captured):
    """Look whether what is captured computes in several calls what the program computes from the same state."""
    captured = change(fxplug.trace(made(make), (on(1.0),), mode=mode))
    for ours, theirs in zip(results(captured), results(made(make)), strict=True):
        torch.testing.assert_close(ours, theirs)


def in_variables():
    first, second = torch.rand(2, 4)
    return lambda x: x * first + second


def in_a_list():
    square = torch.rand(4, 4)
    held = [square, square.t()]
    return lambda x: x @ held[0] @ held[1]


def in_a_dict():
    held = dict(zip("ab", torch.rand(2, 4), strict=True))
    return lambda x: x * held["a"] + held["b"]


def in_defaults_of_functions():
    frequencies = 2.0 ** torch.linspace(0, 3, 4)
    functions = [lambda x, frequency=frequency: torch.sin(x * frequency) for frequency in frequencies]
    return lambda x: torch.cat([function(x) for function in functions], -1)


def in_own_defaults():
    first, second = torch.rand(2, 4)

    def program(x, first=first, *, second=second):
        return x * first + second

    return program


def in_a_partial():
    first, second = torch.rand(2, 4)
    return partial(lambda x, first, second: x * first + second, first=first, second=second)


def returned():
    held = rows(2)
    return lambda x: (x * held[0], held[1])


class InSlots:
    __slots__ = ("first", "second")
    third, fourth = torch.linspace(0, 1, 8).reshape(2, 4)

    def __init__(self):
        self.first, self.second = torch.rand(2, 4)

    def __call__(self, x):
        return x * self.first + self.second * self.third - self.fourth


class InAModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = list(torch.linspace(0, 0.3, 3))
        self.halves = torch.split(torch.rand(4, 4), 2)

    def forward(self, x):
        for step in self.steps:
            x = x + step
        return torch.cat([x @ half.t() for half in self.halves], -1)


FOUND = [
    in_variables,
    in_a_list,
    in_a_dict,
    in_defaults_of_functions,
    in_own_defaults,
    in_a_partial,
    returned,
    InSlots,
    InAModule,
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", FOUND)
def test_constants_that_share_memory_are_constants(make, mode):
    check_captured(make, mode)


def test_a_capture_keeps_nothing_that_it_has_not_recorded():
    first, second = torch.rand(2, 4)
    unused = torch.rand(4)
    held = {"second": second, "unused": unused}
    captured = fxplug.trace(lambda x: x * first + held["second"], (on(1.0),))
    gone = weakref.ref(unused)

    del unused, held["unused"]
    gc.collect()

    assert gone() is None
    assert captured(on(2.0)).shape == (3, 4)


# -- one of them is written to


def written_as_a_whole():
    whole = torch.zeros(2, 4)
    held = [whole, whole[0]]

    def program(x):
        before = held[1] * 2
        held[0].add_(x.sum())
        return x * held[1] + before

    return program


def written_by_a_view():
    whole = torch.rand(2, 4)
    held = (whole, whole[0], whole.t())

    def program(x):
        held[2].add_(x.mean())
        result = x @ held[2] @ held[0]
        held[1].mul_(0.5)
        return result + held[0][0] + held[1]

    return program


def written_by_item():
    whole = torch.zeros(3, 4)
    held = [whole[0], whole[1]]

    def program(x):
        whole[0] = x.sum(0)
        held[1][:] = held[0] + 1
        return x * whole[1]

    return program


class RowsOfABuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(3, 4))
        self.rows = [self.table[0], self.table[1]]

    def forward(self, x):
        self.table.add_(x.mean())
        result = x * self.rows[0]
        self.rows[1].add_(1)
        return result + self.table[1]


class WrittenByAHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.rows = rows(2)
        self.rows[0].zero_()
        self.layer.register_forward_hook(self.count)

    def count(self, layer, given, result):
        self.rows[0].add_(1)

    def forward(self, x):
        with torch.no_grad():
            return self.layer(x) * self.rows[1] + self.rows[0]


WRITTEN = [written_as_a_whole, written_by_a_view, written_by_item, RowsOfABuffer]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [*WRITTEN, WrittenByAHook])
def test_what_is_written_to_one_is_seen_in_the_others(make, mode):
    check_captured(make, mode)


@pytest.mark.parametrize("make", WRITTEN)
def test_copies_and_files_of_captured_programs_share_the_memory_too(make, tmp_path):
    def saved(captured):
        fxplug.save(captured, tmp_path / "program.fxp")
        return fxplug.load(tmp_path / "program.fxp")

    check_captured(make, "value", copy.deepcopy)
    check_captured(make, "value", saved)


@pytest.mark.parametrize("make", WRITTEN)
def test_what_a_capture_writes_is_put_back(make):
    program = made(make)
    fxplug.trace(program, (on(1.0),))
    for ours, theirs in zip(results(program), results(made(make)), strict=True):
        torch.testing.assert_close(ours, theirs)


class AssignsTheBuffer(RowsOfABuffer):
    def forward(self, x):
        result = x * self.rows[0]
        self.table = self.table + 1
        return result


class AssignsTheBufferOfAnAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(3, 4))
        self.row = self.table[0]

    def forward(self, x):
        result = x * self.row
        self.table = self.table + 1
        return result


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [AssignsTheBuffer, AssignsTheBufferOfAnAttribute])
def test_a_buffer_is_not_assigned_where_the_program_reads_its_memory_by_another_tensor(make, mode):
    with pytest.raises(TraceError, match="FXP-T009"):
        fxplug.trace(make(), (on(1.0),), mode=mode, check=False)


# -- what shares the memory and was not there before


def test_a_row_of_the_table_that_an_example_is_a_row_of_is_refused():
    table = torch.rand(2, 3, 4)
    held = [table[1]]
    with pytest.raises(TraceError, match="memory of an example") as refused:
        fxplug.trace(lambda x: x + held[0], (table[0],))
    assert refused.value.code == "FXP-T061"


def test_a_view_that_another_thread_makes_is_refused():
    table, held = torch.rand(5, 4), [torch.ones(4)]

    def program(x):
        def choose():
            held[0] = table[int(x.sum().abs()) % 5]

        thread = threading.Thread(target=choose)
        thread.start()
        thread.join()
        return x * table[0] * held[0]

    with pytest.raises(TraceError, match="FXP-T061"):
        fxplug.trace(program, (on(2.0),), check=False)


class HookThatChooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.table, self.chosen = torch.rand(5, 4), [torch.ones(4)]
        self.layer.register_forward_hook(self.choose)

    def choose(self, layer, given, result):
        self.chosen[0] = self.table[int(result.sum().abs() * 10) % 5]

    def forward(self, x):
        return self.layer(x) * self.chosen[0]


class HookThatChoosesOfWhatIsRead(HookThatChooses):
    def forward(self, x):
        return self.layer(x) * self.table[0] * self.chosen[0]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("kind", [HookThatChooses, HookThatChoosesOfWhatIsRead])
def test_a_view_that_a_hook_of_a_layer_leaves_is_refused_where_the_layer_is_a_call(
    kind, check, with_whole_layers
):
    refused_as_a_call(kind, check, with_whole_layers)


def refused_as_a_call(kind, check, manager):
    for mode, code in {"value": "FXP-T061", "shape": "FXP-T066", "symbolic": "FXP-T010"}.items():
        with pytest.raises(TraceError, match=code):
            fxplug.trace(kind(), (on(2.0),), mode=mode, check=check, manager=manager)


def check_hook(kind, captured):
    """Look whether a captured program and a copy of it do what eager does; return for which inputs there are guards."""
    guarded = set()
    for one in (copy.deepcopy(captured), captured):
        program = made(kind)
        for value in (2.0, 3.0, -4.0, 2.0):
            wanted = program(on(value))
            try:
                found = one(on(value))
            except fxplug.GuardError:
                guarded.add(value)
                continue
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(
                torch.autograd.grad(found.sum(), one.layer.weight),
                torch.autograd.grad(wanted.sum(), program.layer.weight),
            )
    return guarded


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("mode", ["value", "symbolic"])
@pytest.mark.parametrize("kind", [HookThatChooses, HookThatChoosesOfWhatIsRead])
def test_a_view_that_a_hook_of_a_layer_leaves_is_that_of_each_call(kind, mode, check):
    program = made(kind)
    with pytest.warns(TraceWarning, match="'chosen'"):
        captured = fxplug.trace(program, (on(2.0),), mode=mode, check=check)
    assert torch.equal(program.chosen[0], torch.ones(4))
    assert check_hook(kind, captured) == set()


class HookThatChoosesOneThatIsThere(HookThatChooses):
    def __init__(self):
        super().__init__()
        self.rows = rows(5)

    def choose(self, layer, given, result):
        self.chosen[0] = self.rows[int(result.sum().abs() * 10) % 5]


class HookThatChoosesForAnAttribute(HookThatChoosesOneThatIsThere):
    def choose(self, layer, given, result):
        self.chosen = [self.rows[int(result.sum().abs() * 10) % 5]]

    def forward(self, x):
        return self.layer(x) * self.rows[0] * self.rows[1] * self.chosen[0]


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("kind", [HookThatChoosesOneThatIsThere, HookThatChoosesForAnAttribute])
def test_a_tensor_that_a_hook_of_a_layer_chooses_is_refused_where_the_layer_is_a_call(
    kind, check, with_whole_layers
):
    refused_as_a_call(kind, check, with_whole_layers)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("kind", [HookThatChoosesOneThatIsThere, HookThatChoosesForAnAttribute])
def test_a_tensor_that_a_hook_of_a_layer_chooses_is_guarded(kind, check):
    program = made(kind)
    with pytest.warns(TraceWarning, match="'chosen'"):
        captured = fxplug.trace(program, (on(2.0),), check=check)
    assert torch.equal(program.chosen[0], torch.ones(4))
    assert check_hook(kind, captured) == {3.0, -4.0}

    # Without values, nothing tells which one it is.
    for mode, code in {"shape": "FXP-T066", "symbolic": "FXP-T010"}.items():
        with pytest.raises(TraceError, match=code):
            fxplug.trace(program, (on(2.0),), mode=mode, check=check)


class HookThatExchangesMemory(HookThatChooses):
    def choose(self, layer, given, result):
        self.chosen[0].data = result.detach().mean(0)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_memory_that_a_hook_of_a_layer_gives_a_tensor_is_refused_where_the_layer_is_a_call(
    mode, check, with_whole_layers
):
    program = HookThatExchangesMemory()
    (tensor,), memory = program.chosen, program.chosen[0].data_ptr()
    with pytest.raises(TraceError, match="FXP-T061"):
        fxplug.trace(program, (on(2.0),), mode=mode, check=check, manager=with_whole_layers)
    assert program.chosen[0] is tensor
    assert tensor.data_ptr() == memory


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("mode", [*MODES, "symbolic"])
def test_memory_that_a_hook_of_a_layer_gives_a_tensor_is_that_of_each_call(mode, check):
    program = made(HookThatExchangesMemory)
    (tensor,), memory = program.chosen, program.chosen[0].data_ptr()
    captured = fxplug.trace(program, (on(2.0),), mode=mode, check=check)
    assert program.chosen[0] is tensor
    assert tensor.data_ptr() == memory
    assert torch.equal(tensor, torch.ones(4))
    assert check_hook(HookThatExchangesMemory, captured) == set()

    reference = made(HookThatExchangesMemory)
    reference(on(2.0))
    torch.testing.assert_close(tensor, reference.chosen[0])  # It is in the captured program, too.


def test_memory_that_another_thread_gives_a_tensor_is_refused():
    held = [torch.ones(4)]

    def program(x):
        def choose():
            held[0].data = x.mean(0)

        thread = threading.Thread(target=choose)
        thread.start()
        thread.join()
        return x * held[0]

    with pytest.raises(TraceError, match="FXP-T061"):
        fxplug.trace(program, (on(2.0),), check=False)


# -- what is said of a tensor that is refused


def test_the_message_names_a_tensor_that_has_the_memory_of_an_example_and_what_holds_it():
    table = torch.rand(2, 3, 4, dtype=torch.float64)
    held = [table[1]]

    def program(x):
        return x + held[0]

    with pytest.raises(TraceError) as refused:
        fxplug.trace(program, (table[0],))
    said = refused.value.message
    assert "a tensor of shape (3, 4) and dtype torch.float64, which 'held' in program holds, at" in said


def test_the_message_speaks_of_hooks_where_one_has_made_the_tensor(with_whole_layers):
    with pytest.raises(TraceError, match="in a hook of a layer") as refused:
        fxplug.trace(HookThatExchangesMemory(), (on(2.0),), check=False, manager=with_whole_layers)
    assert "of shape (4,) and dtype torch.float32, which 'self' in forward holds," in refused.value.message


def test_the_message_speaks_of_no_hook_where_nothing_tells_who_has_made_the_tensor():
    def program(x):
        return x * torch.frombuffer(bytearray(16), dtype=torch.float32)

    with pytest.raises(TraceError, match="it was not found before the program ran") as refused:
        fxplug.trace(program, (on(2.0),))
    assert "shape (4,) and dtype torch.float32 at" in refused.value.message
    assert "hook" not in refused.value.message


# -- weights of modules that the root does not have


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)


torch.manual_seed(1)
GLOBAL = Parts()
DEEP = nn.Sequential(nn.Sequential(nn.Sequential(GLOBAL, Parts())))


def weight_of_a_global(x):
    return F.linear(x, GLOBAL.first.weight)


def all_weights_of_a_global(x):
    return GLOBAL.first(x).sum() + 1e-2 * sum((weight**2).sum() for weight in GLOBAL.parameters())


def weight_before_the_call(x):
    return GLOBAL.first(x @ GLOBAL.first.weight)


def weights_far_down(x):
    return F.linear(x, DEEP[0][0][1].second.weight) + sum(weight.sum() for weight in DEEP.parameters())


class InAContainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = [{"parts": Parts()}]

    def forward(self, x):
        parts = self.held[0]["parts"]
        return F.linear(x, parts.first.weight, parts.second.bias)


GLOBALS = [weight_of_a_global, all_weights_of_a_global, weight_before_the_call, weights_far_down]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", GLOBALS)
def test_weights_of_modules_in_globals_are_read(program, mode):
    check_captured(lambda: program, mode)


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_modules_in_containers_are_read(mode):
    check_captured(InAContainer, mode)


def test_gradients_reach_weights_of_modules_that_the_root_does_not_have():
    program = InAContainer()
    captured = fxplug.trace(program, (on(1.0),))
    weight = program.held[0]["parts"].first.weight
    ours, theirs = (torch.autograd.grad(one(on(2.0)).sum(), weight) for one in (captured, program))
    torch.testing.assert_close(ours, theirs)


class AssignsAWeight(InAContainer):
    def forward(self, x):
        parts = self.held[0]["parts"]
        parts.first.weight = nn.Parameter(parts.first.weight * 2)
        return F.linear(x, parts.first.weight)


class AssignsAnAttribute(InAContainer):
    def __init__(self):
        super().__init__()
        self.held[0]["parts"].first.scale = torch.ones(4)

    def forward(self, x):
        first = self.held[0]["parts"].first
        first.scale = first.scale + 1
        return x * first.scale


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [(AssignsAWeight, "weight", "FXP-T009"), (AssignsAnAttribute, "scale", "FXP-T055")],
)
def test_what_is_assigned_to_modules_in_containers_is_refused_and_put_back(kind, name, code, mode):
    program = kind()
    before = getattr(program.held[0]["parts"].first, name)
    with pytest.raises(TraceError) as refused:
        fxplug.trace(program, (on(1.0),), mode=mode, check=False)
    assert refused.value.code == code
    assert getattr(program.held[0]["parts"].first, name) is before
