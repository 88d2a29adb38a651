"""What a capture changes and the next call reads: the program is traced a second time, and must be the same one."""

from __future__ import annotations

import logging
import random
import sys
import threading
import warnings
from array import array
from collections import ChainMap, defaultdict
from contextvars import ContextVar, copy_context
from functools import partial
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import nn

import fxplug
from fxplug.analyze.comparison import MismatchError
from fxplug.api.checking import check_capture
from fxplug.capture import Tracer
from fxplug.capture.examples.tracer import ExampleTracer
from fxplug.capture.quiet import quiet
from fxplug.errors import TraceError, TraceWarning

X = torch.ones(2, 3)


def state_of(root):
    """Return what the modules below a root hold, as text."""
    return repr(
        [
            (path, {name: value for name, value in vars(module).items() if name != "_modules"})
            for path, module in root.named_modules()
        ]
    )


class Holder(nn.Module):
    """Holds what the programs use."""

    def __init__(self):
        super().__init__()
        self.first, self.step, self.kept, self.other = True, 0, None, None
        self.ones, self.table, self.items = torch.ones(2, 3), {}, []
        self.weight = nn.Parameter(torch.full((3,), 3.0))
        self.experts = nn.ParameterList([torch.zeros(3), torch.zeros(3)])
        self.register_buffer("count", torch.ones(()))
        self.layer, self.norm, self.batch = nn.Linear(3, 3), nn.LayerNorm(3), nn.BatchNorm1d(3)


def only_first(self, x):
    if self.first:
        self.first = False
        return x + 1
    return x


def counted(self, x):
    self.step = self.step + 1
    return x * self.step


def previous_for_ones(self, x):
    out = x + self.ones
    self.ones = x
    return out


def previous_or_itself(self, x):
    out = x + (x if self.kept is None else self.kept)
    self.kept = x
    return out


def previous_if_it_can_be_added(self, x):
    try:
        out = x + self.kept
    except Exception:
        out = x * 1
    self.kept = x * 2
    return out


def computed_from_the_previous(self, x):
    out = x if self.kept is None else self.kept.relu() * x
    self.kept = x * 2
    return out


def previous_by_two_calls(self, x):
    out = x if self.kept is None else x + self.kept
    self.kept = self.other
    self.other = x * 2
    return out


def previous_in_a_dict(self, x):
    out = x + sum(self.table.values())
    self.table = {"last": x * 2}
    return out


def sizes_of_the_previous(self, x):
    out = x * (2 if self.kept is None else self.kept[0])
    self.kept = x.shape
    return out


def sum_in_place(self, x):
    if self.kept is None:
        self.kept = torch.zeros(3)
    self.kept[0] += x.sum()
    return x + self.kept


def made_of_a_buffer_that_changes(self, x):
    if self.kept is None:
        self.kept = self.count * 2
    self.count += 1
    return x * self.kept


def made_of_a_buffer_that_a_layer_changes(self, x):
    if self.kept is None:
        self.kept = self.batch.running_mean * 2
    return self.batch(x) + self.kept


def constant_that_the_second_call_changes(self, x):
    if self.kept is None:
        self.kept = torch.ones(3)
    else:
        self.kept.add_(1)
    return x * self.kept


def another_parameter_of_the_same_values(self, x):
    expert = self.experts[0 if self.kept is None else 1]
    self.kept = True
    return x + expert


def every_fourth(self, x):
    self.step += 1
    if self.step > 3:
        self.step = 0
        return x * 2
    return x


def one_expert_after_the_other(self, x):
    self.step = 1 - self.step
    return x + self.experts[self.step]


def tensor_of_the_second_call(self, x):
    out = x * self.ones
    self.ones = torch.full((2, 3), 5.0)
    return out


def asked_only_at_the_second_call(self, x):
    if self.kept and x.dim() == 3:
        return -x
    self.kept = True
    return x * 2


def result_of_the_first_call_is_changed_by_the_second(self, x):
    if self.kept is not None:
        self.kept += 1
    self.kept = x * 2
    return self.kept


def asks_a_tensor_only_at_the_second_call(self, x):
    if self.kept and x.requires_grad:
        return -x
    self.kept = True
    return x * 2


def layer_that_is_changed_after_its_call(self, x):
    out = self.norm(x)
    self.norm.eps = 10.0
    return out


def hook_that_is_left(self, x):
    out = self.layer(x)
    self.layer.register_forward_hook(lambda module, args, result: result * 2)
    return out


def fails_at_its_second_call(self, x):
    if self.kept is not None:
        raise LookupError
    self.kept = 1
    return x * 2


def leaves_at_its_second_call(self, x):
    if self.kept is not None:
        sys.exit()
    self.kept = 1
    return x * 2


REFUSED = {
    only_first: "first",
    counted: "step",
    previous_for_ones: "ones",
    previous_or_itself: "kept",
    previous_if_it_can_be_added: "kept",
    computed_from_the_previous: "kept",
    previous_by_two_calls: "kept",
    previous_in_a_dict: "table",
    sum_in_place: "kept",
    made_of_a_buffer_that_changes: "kept",
    made_of_a_buffer_that_a_layer_changes: "kept",
    constant_that_the_second_call_changes: "kept",
    another_parameter_of_the_same_values: "kept",
    every_fourth: "step",
    one_expert_after_the_other: "step",
    tensor_of_the_second_call: "ones",
    result_of_the_first_call_is_changed_by_the_second: "kept",
    layer_that_is_changed_after_its_call: "norm.eps",
    hook_that_is_left: "layer",
    fails_at_its_second_call: "kept",
    leaves_at_its_second_call: "kept",
}


def module_of(forward):
    return type(forward.__name__.title().replace("_", ""), (Holder,), {"forward": forward})()


@pytest.mark.parametrize("forward", REFUSED)
def test_a_program_that_is_another_one_at_its_next_call_is_refused(capture_as, forward):
    root = nn.Sequential(module_of(forward))
    before = state_of(root)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TraceWarning)
        with pytest.raises(TraceError, match="next call") as refused:
            capture_as(root)

    assert refused.value.code == "FXP-T055"
    assert f"'0.{REFUSED[forward]}'" in str(refused.value)
    assert state_of(root) == before
    assert not root[0].layer._forward_hooks


@pytest.mark.parametrize("options", [{"mode": "shape"}, {"mode": "value"}, {"mode": "value", "check": False}])
@pytest.mark.parametrize(
    "forward", [sizes_of_the_previous, asked_only_at_the_second_call, asks_a_tensor_only_at_the_second_call]
)
def test_a_program_that_asks_in_another_way_at_its_next_call_is_refused(forward, options):
    for on_guard_failure in ("error", "recapture"):
        if forward is sizes_of_the_previous and on_guard_failure == "error":
            continue  # With the same sizes in all calls it is right, as below.
        with pytest.raises(TraceError) as refused:
            fxplug.trace(module_of(forward), (X,), **options, on_guard_failure=on_guard_failure)
        assert refused.value.code == "FXP-T055"


@pytest.mark.filterwarnings("ignore:While tracing, forward:fxplug.errors.TraceWarning")
@pytest.mark.parametrize("options", [{"mode": "shape"}, {"mode": "value"}, {"mode": "value", "check": False}])
def test_one_that_answers_by_the_sizes_of_the_call_before_takes_no_others(options):
    rows = torch.rand(2, 3)
    captured = fxplug.trace(module_of(sizes_of_the_previous), (rows,), **options)
    model = module_of(sizes_of_the_previous)
    for _ in range(3):
        torch.testing.assert_close(captured(rows), model(rows))
    with pytest.raises(fxplug.GuardError):
        captured(torch.rand(3, 3))

    with pytest.raises(TraceError) as refused:  # The second call does something else than the first.
        fxplug.trace(module_of(sizes_of_the_previous), (torch.rand(4, 3),), **options)
    assert refused.value.code == "FXP-T055"


def test_the_message_names_the_class_and_the_line(capture_as):
    with pytest.raises(TraceError) as refused:
        capture_as(module_of(only_first))
    text = str(refused.value)
    assert "forward of OnlyFirst, at " in text
    assert "test_next_call.py" in text
    assert (
        "('self.first = False'), keeps something in the attribute 'first' of OnlyFirst that its next" in text
    )


def test_the_message_names_what_the_program_reads(capture_as):
    def answers(self, x):
        self.first = "called"
        self.step += 1
        return x * self.step

    with pytest.raises(TraceError, match="in the attribute 'step'"):
        capture_as(module_of(answers))


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_an_input_that_cannot_be_told_from_what_was_left_is_refused(mode):
    def forward(self, x):
        out = x + self.table.get("last", x)
        self.table["last"] = x
        return out

    with pytest.raises(TraceError) as refused:
        fxplug.trace(module_of(forward), (nn.Parameter(X),), mode=mode, check=False)
    assert refused.value.code == "FXP-T055"


# -- programs that are the same at their next call


def only_counts(self, x):
    self.step += 1
    return x * 2


def counts_numbers(self, x):
    self.step += x.numel()
    return x * 2


def counts_what_it_has_computed(self, x):
    self.step = self.step + x.sum()
    return x * 2


def adds_up_what_it_has_computed(self, x):
    self.step += x.sum()
    return torch.stack([x, x])[0] * 2


def mask_that_is_made_once(self, x):
    if self.kept is None:
        self.kept = torch.ones(3)
    return x * (self.kept * 2)


def masks_that_are_made_once(self, x):
    if "mask" not in self.table:
        self.table["mask"] = (torch.ones(3) * 2, [torch.arange(3.0)])
    mask, rest = self.table["mask"]
    return x * mask + rest[0]


def table_of_a_parameter(self, x):
    if self.kept is None:
        self.kept = self.weight.detach() * 2
    return self.kept * x + self.kept.sum()


def table_that_is_made_anew(self, x):
    self.kept = self.weight.detach() * 2
    return x * self.kept


def kept_for_whoever_looks(self, x):
    self.kept = self.layer(x)
    self.items.append(self.kept)
    return self.kept * 2


def input_for_whoever_looks(self, x):
    self.kept, self.table = x, {"last": [x]}
    return x * 2


def function_that_is_made_anew(self, x):
    factor = 2
    self.kept = lambda value: value * factor
    return self.kept(x)


def flag_that_says_nothing(self, x):
    if self.first:
        self.first = False
        warnings.warn("once", stacklevel=1)
    return x * 2


def hook_at_a_layer_that_is_not_called(self, x):
    self.layer.register_forward_hook(lambda *_: None)
    return x * 2


SAME = {
    only_counts: "step",
    counts_what_it_has_computed: "step",
    adds_up_what_it_has_computed: "step",
    mask_that_is_made_once: "kept",
    masks_that_are_made_once: "table",
    table_of_a_parameter: "kept",
    table_that_is_made_anew: "kept",
    kept_for_whoever_looks: "items",
    input_for_whoever_looks: "kept",
    function_that_is_made_anew: "kept",
    flag_that_says_nothing: "first",
    hook_at_a_layer_that_is_not_called: None,
}


def captured_with_warnings(capture_as, root):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        captured = capture_as(root)
    return captured, [str(entry.message) for entry in caught if entry.category is TraceWarning]


@pytest.mark.parametrize("forward", SAME)
def test_a_program_that_is_the_same_at_its_next_call_is_captured_and_reported_once(capture_as, forward):
    root = module_of(forward)
    before, name = state_of(root), SAME[forward]
    captured, told = captured_with_warnings(capture_as, root)

    assert state_of(root) == before
    assert not root.layer._forward_hooks
    assert [text.count(f"'{name}'") for text in told if f"'{name}'" in text] == [1] * (name is not None)
    captured.graph.lint()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value in (X, X * 3, X - 2):
            torch.testing.assert_close(captured(value), root(value))


def test_numbers_that_are_counted_and_not_used(capture_as):
    root = module_of(counts_numbers)
    captured, told = captured_with_warnings(capture_as, root)
    assert "'step'" in told[0]
    assert torch.equal(captured(X * 3), X * 6)
    assert root.step == 0


def test_a_buffer_that_is_updated_beside_a_count(capture_as):
    def forward(self, x):
        self.step += 1
        self.count += 1
        return x * self.count

    root = module_of(forward)
    captured, _ = captured_with_warnings(capture_as, root)
    assert root.count.item() == 1
    assert [captured(X)[0, 0].item() for _ in range(2)] == [2, 3]


@pytest.mark.parametrize(
    "options", [{"mode": "symbolic"}, {"mode": "value"}, {"mode": "value", "check": False}]
)
def test_a_question_about_a_constant_that_is_made_once(options):
    def forward(self, x):
        if self.kept is None:
            self.kept = torch.ones(3)
        return x + 1 if self.kept.any() else x

    captured, _ = captured_with_warnings(lambda root: fxplug.trace(root, (X,), **options), module_of(forward))
    assert torch.equal(captured(X), X + 1)


# -- the second trace


KEPT = threading.Thread()
KEPT.told = []
"""What programs keep where no capture looks."""


class Watched(Holder):
    """Tells what it sees when it is called."""

    def __init__(self, changes):
        super().__init__()
        self.changes = changes

    def forward(self, x):
        KEPT.told.append((self.kept, random.getstate(), nn.functional.dropout(x, 0.5)))
        if self.changes:
            self.kept = 1
        return x * 2


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_the_program_runs_a_second_time_only_if_something_has_changed(mode, changes):
    root = Watched(changes)
    KEPT.told.clear()
    before = random.getstate(), torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        fxplug.trace(root, (X,), mode=mode, check=False)

    kept, states, drawn = zip(*KEPT.told, strict=True)
    KEPT.told.clear()
    assert kept == ((None, 1) if changes else (None,))
    assert set(states) == {before[0]} == {random.getstate()}
    assert mode == "symbolic" or all(torch.equal(one, drawn[0]) for one in drawn)
    assert torch.equal(torch.get_rng_state(), before[1])


def test_the_second_trace_draws_nothing_from_whoever_traces():
    states = []
    for changes in (False, True):
        torch.manual_seed(0)
        root = Watched(changes)
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TraceWarning)
            ExampleTracer((X,), {}).trace(root)
        states.append(torch.get_rng_state())
    KEPT.told.clear()
    assert torch.equal(*states)


def test_a_second_trace_that_draws_more_leaves_the_random_state():
    def forward(self, x):
        x = nn.functional.dropout(x, 0.5)
        if self.first:
            self.first = False
            return x
        return nn.functional.dropout(x, 0.5)

    root = module_of(forward)
    torch.manual_seed(0)
    nn.functional.dropout(X, 0.5)
    expected = torch.get_rng_state()
    torch.manual_seed(0)
    with pytest.raises(TraceError, match="FXP-T055"):
        ExampleTracer((X,), {}).trace(root)
    assert torch.equal(torch.get_rng_state(), expected)


LOGGER = logging.getLogger(__name__)


def says_something(self, x):
    print("printed")  # noqa: T201
    sys.stderr.write("written\n")
    sys.stderr.writelines(["lines\n"])
    LOGGER.warning("logged")
    self.step += 1
    return x * 2


def test_what_the_program_says_is_said_once(capture_as, capsys, caplog):
    streams = sys.stdout, sys.stderr, logging.Logger.handle
    with pytest.warns(TraceWarning):
        fxplug.trace(module_of(says_something), (X,), mode="value", check=False)

    said = capsys.readouterr()
    assert said.out == "printed\n"
    assert said.err == "written\nlines\n"
    assert caplog.messages == ["logged"]
    assert (sys.stdout, sys.stderr, logging.Logger.handle) == streams


def test_other_threads_are_heard_meanwhile(capsys):
    def others():
        print("another thread")  # noqa: T201

    with quiet():
        print("this thread")  # noqa: T201
        thread = threading.Thread(target=others)
        thread.start()
        thread.join()
    assert capsys.readouterr().out == "another thread\n"


def test_streams_that_are_exchanged_meanwhile_stay(monkeypatch):
    found, another = sys.stdout, object()
    with quiet(), quiet():
        monkeypatch.setattr(sys, "stdout", another)
    assert sys.stdout is another
    monkeypatch.undo()
    sys.stdout = found


class Noting(Tracer):
    """Keeps the targets of what it records."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
        self.noted.append(target)
        return super().create_node(kind, target, args, kwargs, name, type_expr)


@pytest.mark.parametrize("forward", [only_counts, table_of_a_parameter])
def test_what_a_tracer_keeps_for_itself_is_about_the_first_trace(forward):
    tracer = Noting()
    with pytest.warns(TraceWarning):
        graph = tracer.trace(module_of(forward))
    assert tracer.noted == [node.target for node in graph.nodes]


def test_values_that_were_traced_are_those_of_the_first_trace_afterwards(capture):
    class Keeping(Holder):
        def forward(self, x):
            self.kept = x * 2
            KEPT.told.append(self.kept)
            return self.kept + 1

    captured, _ = captured_with_warnings(capture, Keeping())
    first, second = KEPT.told
    KEPT.told.clear()
    assert first.node in [*captured.graph.nodes]
    assert second.node not in [*captured.graph.nodes]
    for value in (first, second):
        with pytest.raises(TraceError, match="the trace is over"):
            value + 1


def test_all_problems_are_found_once_in_a_program_that_counts():
    def forward(self, x):
        self.step += 1
        return x if x.sum() > 0 else -x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        with pytest.raises(TraceError) as refused:
            fxplug.trace(module_of(forward), (X,), mode="symbolic", on_error="collect")
    assert [problem.code for problem in refused.value.problems] == ["FXP-T001"]


def test_an_assignment_is_an_error_where_that_is_wanted(capture_as):
    for forward, code in ((only_counts, "FXP-T067"), (counted, "FXP-T055")):
        with pytest.raises(TraceError) as refused:
            fxplug.trace(module_of(forward), (X,), on_mutation="error", mode="value", check=False)
        assert refused.value.code == code


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_the_check_does_not_mind_an_attribute_that_is_given_another_tensor(mode):
    """It was put back, with a warning; the check took it for a buffer that the graph does not write."""

    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.zeros(2, 3)

        def forward(self, x):
            self.last = x * 2
            return x + 1

    root = Remembers()
    with pytest.warns(TraceWarning, match="'last'"):
        captured = fxplug.trace(root, (X,), mode=mode)

    assert torch.equal(captured(X), X + 1)
    assert not root.last.any()


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_the_check_compares_tensors_in_attributes_that_are_written_to(mode):
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.total = torch.zeros(2, 3)

        def forward(self, x):
            self.total += x
            return x + 1

    root = Adds()
    captured = fxplug.trace(root, (X,), mode=mode)
    captured(X)
    assert torch.equal(root.total, X)

    with pytest.raises(MismatchError, match="attribute total"):
        check_capture(root, fxplug.trace(lambda x: x + 1), (X,), {})


# -- other places


class Key:
    pass


KEY = Key()
WEAK: WeakKeyDictionary = WeakKeyDictionary()
CONTEXT = ContextVar("context", default=0)


def make_step():
    count = 0

    def step():
        nonlocal count
        count += 1
        return count

    return step


class Schedule:
    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        return self.count


def grown(held, value):
    held.append(value)
    return len(held)


def numpy_array():
    return pytest.importorskip("numpy").zeros(2, "int64")


def element(self, x):
    self.items[0] += 1
    return x * int(self.items[0])


def entry(self, x):
    self.items["calls"] += 1
    return x * self.items["calls"]


def entry_of_an_object(self, x):
    self.items[KEY] += 1
    return x * self.items[KEY]


def entry_that_is_called(self, x):
    return x * self.items["step"]()


def global_entry_of_an_object(self, x):
    WEAK[KEY] = WEAK.get(KEY, 0) + 1
    return x * WEAK[KEY]


def context_variable(self, x):
    CONTEXT.set(CONTEXT.get() + 1)
    return x * CONTEXT.get()


PLACES = {
    "array of NumPy": (numpy_array, element),
    "array of NumPy in a dict": (lambda: {"a": numpy_array()}, lambda self, x: first_of(self.items["a"], x)),
    "array": (lambda: array("i", [0]), element),
    "bytearray": (lambda: bytearray(1), element),
    "defaultdict": (lambda: defaultdict(int), entry),
    "ChainMap": (lambda: ChainMap({"calls": 0}), entry),
    "WeakKeyDictionary": (lambda: WeakKeyDictionary({KEY: 0}), entry_of_an_object),
    "object in a dict": (lambda: {"step": Schedule()}, entry_that_is_called),
    "method in a dict": (lambda: {"step": Schedule().__call__}, entry_that_is_called),
    "closure in a dict": (lambda: {"step": make_step()}, entry_that_is_called),
    "partial": (lambda: partial(grown, []), lambda self, x: x * self.items(1)),
    "global WeakKeyDictionary": (list, global_entry_of_an_object),
    "context variable": (list, context_variable),
}


def first_of(held, x):
    held[0] += 1
    return x * int(held[0])


@pytest.mark.parametrize("place", PLACES)
def test_whatever_the_next_call_answers_by_is_refused_and_put_back(capture_as, place):
    make, forward = PLACES[place]
    root = (
        module_of(forward)
        if forward.__name__ != "<lambda>"
        else type("Root", (Holder,), {"forward": forward})()
    )
    root.items = make()
    before = state_of(root), dict(WEAK), CONTEXT.get()
    texts = []
    for _ in range(2):
        with pytest.raises(TraceError, match="next call") as refused:
            capture_as(root)
        assert refused.value.code == "FXP-T055"
        texts.append(str(refused.value))

    assert (state_of(root), dict(WEAK), CONTEXT.get()) == before
    assert texts[0] == texts[1]
    with torch.no_grad():
        assert copy_context().run(root, X)[0, 0] == 1
    WEAK.clear()


def only_counts_in(self, x):
    self.items[0] += 1
    return x * 2


@pytest.mark.parametrize("place", ["array of NumPy", "array", "bytearray"])
def test_an_array_that_is_only_counted_in_is_put_back_and_reported(capture_as, place):
    root = module_of(only_counts_in)
    root.items = PLACES[place][0]()
    captured, told = captured_with_warnings(capture_as, root)
    assert len([text for text in told if "'items'" in text]) == 1
    assert root.items[0] == 0
    assert torch.equal(captured(X * 3), X * 6)


def test_an_array_that_is_made_anew_by_each_call(capture_as):
    numpy = pytest.importorskip("numpy")

    def forward(self, x):
        self.kept = numpy.arange(3.0)
        return x * float(self.kept[1:].sum())

    captured, told = captured_with_warnings(capture_as, module_of(forward))
    assert "'kept'" in told[0]
    assert torch.equal(captured(X), X * 3)


def test_an_array_whose_size_changes_is_put_back(capture_as):
    numpy = pytest.importorskip("numpy")

    def forward(self, x):
        self.items.resize(4, refcheck=False)
        return x * 2

    root = module_of(forward)
    root.items = numpy.arange(2)
    captured_with_warnings(capture_as, root)
    assert root.items.tolist() == [0, 1]


def passes_by_a_context_variable(self, x):
    CONTEXT.set(x * 2)
    return CONTEXT.get() + 1


def test_a_value_that_is_passed_by_a_context_variable(capture_as):
    before = CONTEXT.get()
    captured, told = captured_with_warnings(capture_as, module_of(passes_by_a_context_variable))
    assert CONTEXT.get() is before
    assert any("the global 'CONTEXT'" in text for text in told)
    assert torch.equal(captured(X * 3), X * 7)


# -- tables made of weights, and writes to what is computed from them


class KeepsBiases(nn.Module):
    """Keeps a table made of a weight, as attention layers do in eval mode."""

    def __init__(self, use):
        super().__init__()
        torch.manual_seed(0)
        self.use = use
        self.bias = nn.Parameter(torch.randn(3))
        self.kept: dict[torch.device, torch.Tensor] = {}

    def forward(self, x):
        if x.device not in self.kept:
            self.kept[x.device] = self.bias[torch.tensor([2, 0, 1])]
        return self.use(x, self.kept[x.device])


def adds_in_place(x, biases):
    y = x @ torch.eye(3) + biases
    y += 1
    y *= 2
    return y


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize(
    "use",
    [
        lambda x, biases: (x * 2 + biases).relu_(),
        lambda x, biases: torch.relu_(torch.add(x, biases)),
        lambda x, biases: nn.functional.relu(biases.mul(x), inplace=True),
        lambda x, biases: x * (x + biases).mean(0, keepdim=True).relu_(),
        lambda x, biases: x * (x + biases).softmax(1).view(3, 2).t().flatten().relu_().view(2, 3),
        adds_in_place,
    ],
    ids=["operator", "function", "method", "reduction", "views", "statements"],
)
def test_a_write_to_a_new_tensor_is_none_to_the_weights_behind_it(use, mode):
    x, module, original = torch.randn(2, 3), KeepsBiases(use).eval(), KeepsBiases(use).eval()
    with torch.no_grad():
        with pytest.warns(TraceWarning, match="changed what is in the attribute 'kept'"):
            captured = fxplug.trace(module, (x,), mode=mode)

        for _ in range(3):
            assert torch.equal(captured(x), original(x))


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize(
    "use",
    [
        lambda x, biases: x + biases.detach().add_(1),
        lambda x, biases: x + biases.view(1, 3).transpose(0, 1).mul_(2).t(),
        lambda x, biases: x + torch.add(x[0], biases, out=biases.data),
        lambda x, biases: x + (biases.chunk(1) + x.chunk(1))[0].add_(1),
    ],
    ids=["detach", "views", "out", "chunks"],
)
def test_a_write_to_the_table_through_views_is_refused(use, mode):
    module = KeepsBiases(use).eval()
    with torch.no_grad(), pytest.raises(TraceError) as caught:
        fxplug.trace(module, (torch.randn(2, 3),), mode=mode, check=False)

    assert caught.value.code == "FXP-T055"
