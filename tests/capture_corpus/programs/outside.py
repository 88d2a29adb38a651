"""What programs keep from call to call outside of their modules: in globals, classes, functions, objects, iterators.

A graph has no place for it. Where the answer of a call hangs on the calls before it, the capture is refused; these
programs are counted apart.
"""

# ruff: noqa: PLW0603 - programs that assign globals are what this is about

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from functools import partial, wraps
from types import SimpleNamespace

import torch
from torch import nn

from capture_corpus.corpus import program
from capture_corpus.inputs import one

refused = partial(
    program, one, rows=(12,), outside=True, symbolic="FXP-T055", shape="FXP-T055", value="FXP-T055"
)
captured = partial(program, one, rows=(12,), outside=True)

CALLS = 0
SEEN: list = []
COUNTS: dict = {}
SIZES: set = set()
WINDOW: deque = deque()
IS_FIRST = True
HAS_TOLD = False
CURRENT = None
TABLE = None
TABLES: dict = {}
NUMBERS = itertools.count(1)
NATURALS = iter(())


class Slotted:
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


class Meter:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value)

    @property
    def count(self):
        return len(self.values)


SLOTTED, RECORD, SPACE, SCHEDULE, METER = Slotted(), Record(), SimpleNamespace(calls=0), Schedule(), Meter()


def naturals():
    number = 0
    while True:
        number += 1
        yield number


# -- globals


@refused(factory=True, state=lambda _: CALLS)
def global_number():
    global CALLS
    CALLS = 0

    def forward(x):
        global CALLS
        CALLS += 1
        return x * CALLS

    return forward


@refused(factory=True, state=lambda _: CALLS)
def global_number_of_a_helper():
    global CALLS
    CALLS = 0

    def count():
        global CALLS
        CALLS += 1

    def forward(x):
        count()
        return x * CALLS

    return forward


@refused(factory=True, state=lambda _: SEEN)
def global_list():
    SEEN.clear()

    def forward(x):
        SEEN.append(x)
        return torch.cat(SEEN)

    return forward


@refused(factory=True, state=lambda _: COUNTS)
def global_dict():
    COUNTS.clear()

    def forward(x):
        COUNTS["calls"] = COUNTS.get("calls", 0) + 1
        return x * COUNTS["calls"]

    return forward


@refused(factory=True, state=lambda _: SIZES)
def global_set():
    SIZES.clear()

    def forward(x):
        SIZES.add(len(SIZES))
        return x * len(SIZES)

    return forward


@refused(factory=True, state=lambda _: list(WINDOW))
def global_deque():
    WINDOW.clear()
    WINDOW.extend((1, 2, 3))

    def forward(x):
        WINDOW.rotate(1)
        return x * WINDOW[0]

    return forward


@refused(factory=True, state=lambda _: IS_FIRST)
def global_flag_of_the_first_call():
    global IS_FIRST
    IS_FIRST = True

    def forward(x):
        global IS_FIRST
        if IS_FIRST:
            IS_FIRST = False
            return x * 2
        return x * 3

    return forward


@refused(factory=True, state=lambda _: CURRENT)
def global_last_input():
    global CURRENT
    CURRENT = None

    def forward(x):
        global CURRENT
        out = x if CURRENT is None else x + CURRENT
        CURRENT = x * 1
        return out

    return forward


# -- objects


@refused(factory=True, state=lambda _: SLOTTED.calls)
def object_with_slots():
    SLOTTED.calls = 0

    def forward(x):
        SLOTTED.calls += 1
        return x * SLOTTED.calls

    return forward


@refused(factory=True, state=lambda _: RECORD.calls)
def object_of_a_dataclass():
    RECORD.calls = 0

    def forward(x):
        RECORD.calls += 1
        return x * RECORD.calls

    return forward


@refused(factory=True, state=lambda _: SPACE.calls)
def object_with_attributes_alone():
    SPACE.calls = 0

    def forward(x):
        SPACE.calls += 1
        return x * SPACE.calls

    return forward


@refused(factory=True, state=lambda _: METER.values)
def object_with_methods():
    METER.values.clear()

    def forward(x):
        METER.add(1)
        return x * METER.count

    return forward


@refused(factory=True, state=lambda _: SCHEDULE.step)
def object_that_is_called():
    SCHEDULE.step = 0
    return lambda x: x * SCHEDULE()


@refused()
class ScheduleOfAModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.schedule = Schedule()

    def forward(self, x):
        return x * self.schedule()


@refused(factory=True)
def object_that_is_the_program():
    class Counting:
        def __init__(self):
            self.calls = 0

        def __call__(self, x):
            self.calls += 1
            return x * self.calls

    return Counting()


# -- classes and functions


@refused(factory=True, state=lambda root: type(root).calls)
def number_of_a_class():
    class Counting(nn.Module):
        calls = 0

        def forward(self, x):
            type(self).calls += 1
            return x * self.calls

    return Counting()


@refused(factory=True, state=lambda root: type(root).seen)
def list_of_a_class():
    class Collecting(nn.Module):
        seen = []  # noqa: RUF012 - that all modules share it is the point

        def forward(self, x):
            self.seen.append(x)
            return torch.cat(self.seen)

    return Collecting()


@refused(factory=True, state=lambda root: vars(root.helper))
def attribute_of_a_function():
    def helper(x):
        helper.calls += 1
        return x * helper.calls

    helper.calls = 0

    def forward(x):
        return helper(x)

    forward.helper = helper
    return forward


@refused(factory=True, state=lambda root: root.helper.__defaults__)
def default_of_a_helper():
    def helper(x, kept=[]):  # noqa: B006 - that all calls share it is the point
        kept.append(x)
        return torch.cat(kept)

    def forward(x):
        return helper(x)

    forward.helper = helper
    return forward


@refused(factory=True)
def variable_of_a_helper():
    count = 0

    def helper():
        nonlocal count
        count += 1
        return count

    return lambda x: x * helper()


@refused(factory=True)
def variable_of_a_decorator():
    def counting(function):
        calls = 0

        @wraps(function)
        def wrapper(*args):
            nonlocal calls
            calls += 1
            return function(*args) * calls

        return wrapper

    @counting
    def helper(x):
        return x + 1

    return lambda x: helper(x) * 2


# -- iterators


@refused(factory=True)
def global_iterator():
    global NUMBERS
    NUMBERS = itertools.count(1)
    return lambda x: x * next(NUMBERS)


@refused(factory=True)
def global_generator():
    global NATURALS
    NATURALS = naturals()
    return lambda x: x * next(NATURALS)


@refused()
class IteratorOfAModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.factors = itertools.cycle([1.0, 2.0, 3.0])

    def forward(self, x):
        return x * next(self.factors)


@refused()
class GeneratorInADict(nn.Module):
    def __init__(self):
        super().__init__()
        self.sources = {"numbers": naturals()}

    def forward(self, x):
        return x * next(self.sources["numbers"])


# -- what no call answers by


@captured(factory=True, state=lambda _: HAS_TOLD)
def flag_of_a_warning():
    global HAS_TOLD
    HAS_TOLD = False

    def forward(x):
        global HAS_TOLD
        if not HAS_TOLD:
            HAS_TOLD = True
            print("The weights are random.")  # noqa: T201 - it tells people
        return x * 2

    return forward


@captured(factory=True, state=lambda _: CALLS)
def global_number_that_nothing_reads():
    global CALLS
    CALLS = 0

    def forward(x):
        global CALLS
        CALLS += 1
        return x * 2

    return forward


@captured(factory=True)
def value_passed_by_a_global():
    global CURRENT
    CURRENT = None

    def inner():
        return CURRENT + 1

    def forward(x):
        global CURRENT
        CURRENT = x * 2
        return inner()

    return forward


@captured(factory=True)
def global_table_made_once():
    global TABLE
    TABLE = None

    def forward(x):
        global TABLE
        if TABLE is None:
            TABLE = torch.arange(3.0) + 1
        return x * TABLE

    return forward


@captured(factory=True)
def global_tables_by_name():
    TABLES.clear()

    def forward(x):
        if "ones" not in TABLES:
            TABLES["ones"] = torch.ones(3) * 2
        return x * TABLES["ones"]

    return forward
