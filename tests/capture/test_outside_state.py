"""What a program keeps outside of its modules is put back, and refused where the next call answers by it."""

# ruff: noqa: PLW0603 - programs that assign globals are what this is about

from __future__ import annotations

import itertools
import types
import warnings
from collections import Counter, deque
from dataclasses import dataclass
from functools import lru_cache, partial, singledispatch, singledispatchmethod, wraps

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError, TraceWarning

X = torch.ones(2, 3)
MODES = ["symbolic", "shape", "value"]

COUNT = 0
CALLS = 0
LAST = None
TABLE = None
STORED: dict = {}
WARNED = False
FIRST = True
MADE: dict = {}
CACHE: list = []
SEEN: list = []
STATE = {"calls": 0}
COUNTS: Counter = Counter()
WINDOW: deque = deque([1, 2, 3])
NAMES: set = set()
SPACE = types.SimpleNamespace(calls=0)
CONTEXT = types.SimpleNamespace(scale=None)
NUMBERS = itertools.count(1)
CYCLE = itertools.cycle([1.0, 2.0, 3.0])
NESTED = {"inner": [[0]]}


def naturals():
    number = 0
    while True:
        number += 1
        yield number


NATURALS = naturals()
next(NATURALS)


class Meter:
    def __init__(self):
        self.calls, self.values = 0, []

    def update(self):
        self.calls += 1

    def add(self, value):
        self.values.append(value)
        return len(self.values)


class Slots:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0


@dataclass
class Record:
    calls: int = 0


class Schedule:
    def __init__(self):
        self.step = 0

    def __call__(self):
        self.step += 1
        return 0.5**self.step


METER, SLOTS, RECORD, SCHEDULE = Meter(), Slots(), Record(), Schedule()


def make_counter():
    count = 0

    def step():
        nonlocal count
        count += 1
        return count

    return step


STEP = make_counter()
STEPS = {"step": make_counter()}


def counting(function):
    calls = 0

    @wraps(function)
    def wrapper(*args):
        nonlocal calls
        calls += 1
        return function(*args) * calls

    return wrapper


@counting
def decorated(x):
    return x + 1


def with_attribute(x):
    with_attribute.calls += 1
    return x * with_attribute.calls


with_attribute.calls = 0


def with_new_attribute(x):
    with_new_attribute.calls = getattr(with_new_attribute, "calls", 0) + 1
    return x * with_new_attribute.calls


def with_default(x, kept={"calls": 0}):  # noqa: B006
    kept["calls"] += 1
    return x * kept["calls"]


def bump():
    global COUNT
    COUNT += 1


def add_to(kept, value):
    kept.append(value)
    return len(kept)


# -- programs of which the next call is another one


def global_number(x):
    global COUNT
    COUNT += 1
    return x * COUNT


def global_number_by_a_helper(x):
    bump()
    return x * COUNT


def global_list(x):
    CACHE.append(x)
    return torch.cat(CACHE)


def length_of_a_list(x):
    CACHE.append(1)
    return x * len(CACHE)


def list_by_another_name(x):
    held = CACHE
    held.append(1)
    return x * len(held)


def list_passed_on(x):
    return x * add_to(CACHE, 1)


def list_in_a_dict(x):
    NESTED["inner"][0][0] += 1
    return x * NESTED["inner"][0][0]


def global_dict(x):
    STATE["calls"] += 1
    return x * STATE["calls"]


def new_key(x):
    STORED["calls"] = STORED.get("calls", 0) + 1
    return x * STORED["calls"]


def global_counter(x):
    COUNTS["calls"] += 1
    return x * COUNTS["calls"]


def global_set(x):
    NAMES.add(len(NAMES))
    return x * len(NAMES)


def global_deque(x):
    WINDOW.rotate(1)
    return x * WINDOW[0]


def emptied(x):
    return x * WINDOW.popleft()


def slotted_object(x):
    SLOTS.calls += 1
    return x * SLOTS.calls


def record(x):
    RECORD.calls += 1
    return x * RECORD.calls


def namespace(x):
    SPACE.calls += 1
    return x * SPACE.calls


def method_of_an_object(x):
    METER.update()
    return x * METER.calls


def answer_of_a_method(x):
    return x * METER.add(1)


def callable_object(x):
    return x * SCHEDULE()


def last_input(x):
    global LAST
    out = x if LAST is None else x + LAST
    LAST = x * 2
    return out


def first_call(x):
    global FIRST
    if FIRST:
        FIRST = False
        return x * 2
    return x * 3


def function_attribute(x):
    return with_attribute(x)


def new_function_attribute(x):
    return with_new_attribute(x)


def mutable_default(x):
    return with_default(x)


def nonlocal_in_a_helper(x):
    return x * STEP()


def nonlocal_in_a_dict(x):
    return x * STEPS["step"]()


def nonlocal_in_a_decorator(x):
    return decorated(x)


def number_of_itertools(x):
    return x * next(NUMBERS)


def cycled(x):
    return x * next(CYCLE)


def generated(x):
    return x * next(NATURALS)


def bounds_a_guard(x):
    global COUNT
    COUNT += 1
    return x if x.shape[0] > COUNT else -x


class OfItsClass(nn.Module):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return x * self.calls


class OfItsClassByName(nn.Module):
    calls = 0

    def forward(self, x):
        OfItsClassByName.calls += 1
        return x * OfItsClassByName.calls


class NewOfItsClass(nn.Module):
    def forward(self, x):
        kind = type(self)
        kind.calls = getattr(kind, "calls", 0) + 1
        return x * kind.calls


class ListOfItsClass(nn.Module):
    kept = []  # noqa: RUF012

    def forward(self, x):
        self.kept.append(1)
        return x * len(self.kept)


class ClassMethod(nn.Module):
    calls = 0

    @classmethod
    def step(cls):
        cls.calls += 1
        return cls.calls

    def forward(self, x):
        return x * self.step()


class HoldsAnIterator(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count(1)

    def forward(self, x):
        return x * next(self.numbers)


class HoldsAGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = {"all": naturals()}
        next(self.numbers["all"])

    def forward(self, x):
        return x * next(self.numbers["all"])


class HoldsASchedule(nn.Module):
    def __init__(self):
        super().__init__()
        self.schedule = Schedule()

    def forward(self, x):
        return x * self.schedule()


class HoldsAClosure(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = make_counter()

    def forward(self, x):
        return x * self.step()


class Scaled:
    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x * self.calls

    def method(self, x):
        return self(x)


FUNCTIONS = [
    *(global_number, global_number_by_a_helper, global_list, length_of_a_list, list_by_another_name),
    *(
        list_passed_on,
        list_in_a_dict,
        global_dict,
        new_key,
        global_counter,
        global_set,
        global_deque,
        emptied,
    ),
    *(slotted_object, record, namespace, method_of_an_object, answer_of_a_method, callable_object),
    *(last_input, first_call, function_attribute, new_function_attribute, mutable_default),
    *(nonlocal_in_a_helper, nonlocal_in_a_dict, nonlocal_in_a_decorator),
]
ITERATORS = [number_of_itertools, cycled, generated, HoldsAnIterator, HoldsAGenerator]
CLASSES = [
    OfItsClass,
    OfItsClassByName,
    NewOfItsClass,
    ListOfItsClass,
    ClassMethod,
    HoldsASchedule,
    HoldsAClosure,
]
OBJECTS = {
    "callable object": Scaled,
    "bound method": lambda: Scaled().method,
    "partial of an object": lambda: partial(Scaled()),
}
REFUSED = {
    **{function.__name__: lambda function=function: function for function in FUNCTIONS},
    **{kind.__name__: kind for kind in CLASSES},
    **OBJECTS,
}


def surroundings():
    """Return what the programs of this file could change."""
    kept = {name: value for name, value in globals().items() if name.isupper() and name not in OTHERS}
    fields = [vars(METER), vars(RECORD), vars(SCHEDULE), vars(SPACE), vars(CONTEXT), SLOTS.calls]
    closures = [STEP.__closure__, STEPS["step"].__closure__, decorated.__closure__]
    cells = [cell.cell_contents for closure in closures for cell in closure]
    classes = [getattr(kind, "calls", None) for kind in CLASSES]
    functions = [vars(with_attribute), vars(with_new_attribute), with_default.__defaults__]
    return repr([kept, fields, cells, classes, functions, ListOfItsClass.kept])


OTHERS = {"NUMBERS", "CYCLE", "NATURALS", "FUNCTIONS", "ITERATORS", "CLASSES", "OBJECTS", "REFUSED"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_next_call_answers_by_is_refused_and_put_back(name, mode):
    program = REFUSED[name]()
    before, own = surroundings(), repr(getattr(program, "__dict__", None))
    with pytest.raises(TraceError, match="next call") as refused:
        fxplug.trace(program, (X,), mode=mode, check=False)

    assert refused.value.code == "FXP-T055"
    assert "test_outside_state.py:" in str(refused.value)
    assert surroundings() == before
    assert repr(getattr(program, "__dict__", None)) == own


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", ITERATORS)
def test_what_an_iterator_gives_is_refused(make, mode):
    program = make() if isinstance(make, type) else make
    with pytest.raises(TraceError, match="next call") as refused:
        fxplug.trace(program, (X,), mode=mode, check=False)

    assert refused.value.code == "FXP-T055"
    assert "test_outside_state.py:" in str(refused.value)


# -- programs of which the next call is the same one


def tell_once():
    global WARNED
    if not WARNED:
        WARNED = True
        print("The weights are random.")  # noqa: T201


def warn_once(x):
    tell_once()
    return x * 2


def only_counts(x):
    global CALLS
    CALLS += 1
    return x * 2


def only_collects(x):
    SEEN.append(x)
    STATE["calls"] += 1
    METER.calls += 1
    SPACE.calls += 1
    return x * 2


def passes_by_a_global(x):
    global LAST
    LAST = x * 2
    return double_of_last()


def double_of_last():
    return LAST * 2


def passes_by_an_object(x):
    CONTEXT.scale = x.sum()
    CONTEXT.parts = [x, {"calls": 1}]
    return CONTEXT.parts[0] * CONTEXT.scale * CONTEXT.parts[1]["calls"]


def takes_what_it_puts(x):
    CACHE.append(x)
    CACHE.append(x + 1)
    return CACHE.pop() * CACHE.pop()


def table_made_once(x):
    global TABLE
    if TABLE is None:
        TABLE = torch.arange(3.0) + 1
    return x * TABLE


def tables_by_size(x):
    if "table" not in MADE:
        MADE["table"] = torch.arange(3.0) * 2, [torch.ones(3)]
    table, rest = MADE["table"]
    return x * table + rest[0]


def plain_by_size(x):
    if "sizes" not in MADE:
        MADE["sizes"] = (2, 3)
    return x * MADE["sizes"][1]


class CountsInItsClass(nn.Module):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return x * 2


class MakesItsTableInItsClass(nn.Module):
    table = None

    def forward(self, x):
        if type(self).table is None:
            type(self).table = torch.ones(3) * 3
        return x * self.table


REPORTED = {
    "warn_once": "the global 'WARNED'",
    "only_counts": "the global 'CALLS'",
    "only_collects": "the global 'SEEN'",
    "passes_by_a_global": "the global 'LAST'",
    "passes_by_an_object": "the attribute 'scale' of SimpleNamespace",
    "table_made_once": "the global 'TABLE'",
    "tables_by_size": "the global 'MADE'",
    "plain_by_size": "the global 'MADE'",
    "CountsInItsClass": "the attribute 'calls' of CountsInItsClass",
    "MakesItsTableInItsClass": "the attribute 'table' of MakesItsTableInItsClass",
}


def captured_with_warnings(program, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = fxplug.trace(program, (X,), **options)
    return module, [str(entry.message) for entry in caught if entry.category is TraceWarning]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REPORTED)
def test_what_no_call_answers_by_is_put_back_and_reported(name, mode, check):
    found = globals()[name]
    program = found() if isinstance(found, type) else found
    before = surroundings()
    module, told = captured_with_warnings(program, mode=mode, check=check)

    assert surroundings() == before
    assert any(REPORTED[name] in text and "test_outside_state.py:" in text for text in told), told
    assert all("It was put back" in text for text in told)
    for value in (X, X * 3):
        assert torch.equal(module(value), program(value))
    put_everything_back()
    assert surroundings() == before


def put_everything_back():
    globals().update(WARNED=False, CALLS=0, LAST=None, TABLE=None)
    for held in (SEEN, MADE, vars(CONTEXT)):
        held.clear()
    CONTEXT.scale = None
    STATE["calls"] = METER.calls = SPACE.calls = CountsInItsClass.calls = 0
    MakesItsTableInItsClass.table = None


@pytest.mark.parametrize("mode", MODES)
def test_an_assignment_is_an_error_where_that_is_wanted(mode):
    before = surroundings()
    with pytest.raises(
        TraceError, match=r"assigns the global 'CALLS' of the module .*CALLS \+= 1.*on_mutation"
    ) as refused:
        fxplug.trace(only_counts, (X,), mode=mode, on_mutation="error")

    assert refused.value.code == "FXP-T067"
    assert surroundings() == before


@lru_cache
def cached(size):
    return size * 2


def with_a_cache(x):
    return x * cached(3)


def reads_only(x):
    return x * STATE["calls"] * len(NAMES) * METER.calls * WINDOW[0]


def with_its_own_state(x):
    calls = [0]
    step = make_counter()
    numbers = itertools.count(2)
    meter = Meter()
    for _ in range(3):
        calls[0] += step()
        meter.add(calls[0])
    return x * calls[0] * next(numbers) * len(meter.values)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", [with_a_cache, reads_only, with_its_own_state, takes_what_it_puts])
def test_programs_that_leave_nothing_behind_are_captured(program, mode):
    before = surroundings()
    module = fxplug.trace(program, (X,), mode=mode)

    assert torch.equal(module(X * 2), program(X * 2))
    assert surroundings() == before


@pytest.mark.parametrize("mode", MODES)
def test_everything_is_put_back_when_the_program_fails(mode):
    def fails(x):
        only_collects(x)
        only_counts(x)
        raise LookupError

    before = surroundings()
    with pytest.raises(LookupError):
        fxplug.trace(fails, (X,), mode=mode)

    assert surroundings() == before


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_capture_can_be_taken_again(mode):
    texts = []
    for _ in range(2):
        with pytest.raises(TraceError) as refused:
            fxplug.trace(global_dict, (X,), mode=mode)
        texts.append(str(refused.value))

    assert texts[0] == texts[1]
    assert "changes what is in the global 'STATE' of the module" in texts[0]
    assert "fxplug.wrap" in texts[0]


def test_a_function_that_is_kept_as_a_call_may_keep_what_it_likes():
    def program(x):
        return global_number(x) + 1

    graph = fxplug.Tracer(autowrap_functions=(global_number,)).trace(program)
    assert [node.op for node in graph.nodes] == ["placeholder", "call_function", "call_function", "output"]
    assert COUNT == 0


def test_a_second_capture_sees_what_the_first_one_saw():
    first, told = captured_with_warnings(table_made_once, mode="value")
    second, told_again = captured_with_warnings(table_made_once, mode="value")

    assert TABLE is None
    assert first.code == second.code
    assert told == told_again


def test_the_nodes_of_the_second_look_are_told_to_nobody():
    heard = []
    policy = fxplug.TracePolicy(node_created=lambda node, context: heard.append(node.name))
    with pytest.warns(TraceWarning, match="'CALLS'"):
        graph = fxplug.Tracer(policy=policy).trace(only_counts)

    assert heard == [node.name for node in graph.nodes]


def dispatched(is_method):
    calls = [0]

    def counted(x):
        calls[0] += 1
        return x * calls[0]

    if not is_method:
        choose = singledispatch(lambda x: x)
        choose.register(torch.Tensor, counted)
        return lambda x: choose(x) + 0

    class Root(nn.Module):
        @singledispatchmethod
        def choose(self, x):
            return x

        choose.register(torch.Tensor, lambda self, x: counted(x))

        def forward(self, x):
            return self.choose(x)

    return Root()


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("is_method", [True, False])
def test_what_functions_keep_that_are_chosen_by_a_class_is_state(is_method, mode):
    with pytest.raises(TraceError, match="variable 'calls', which counted closes over") as refused:
        fxplug.trace(dispatched(is_method), (torch.ones(2),), mode=mode, check=False)
    assert refused.value.code == "FXP-T055"


class MakesAnAttribute(nn.Module):
    def forward(self, x):
        type(self).made = 3
        return x * type(self).made


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("check", [True, False])
def test_attributes_that_a_program_makes_of_its_class_are_taken_away_again(mode, check):
    with pytest.warns(TraceWarning, match="made"):
        captured = fxplug.trace(MakesAnAttribute(), (torch.ones(2),), mode=mode, check=check)

    assert not hasattr(MakesAnAttribute, "made")
    assert captured(torch.ones(2)).tolist() == [3, 3]
