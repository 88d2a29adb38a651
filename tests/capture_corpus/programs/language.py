"""Python itself: functions, loops, generators, classes, and libraries that know nothing of tensors."""

from __future__ import annotations

import bisect
import concurrent.futures
import contextlib
import copy
import enum
import functools
import itertools
import math
import operator
import statistics
from dataclasses import dataclass

import torch

from capture_corpus.corpus import program
from capture_corpus.inputs import cube, larger, one, positive, ramp, tracked, two, vector


@program(one)
def lambdas_in_a_list(x):
    for function in [lambda value, k=k: value * k for k in (2, 3)]:
        x = function(x)
    return x


@program(one)
def closure_over_a_value(x):
    scale = x.mean()

    def centred(value):
        return value - scale

    return centred(x) * centred(scale + 1)


def _running(values):
    total = 0
    for value in values:
        total = total + value
        yield total


@program(one, symbolic="FXP-T005")
def generator(x):
    return torch.stack(list(_running(x.unbind(1))))


@program(vector)
def generator_that_is_sent_values(x):
    def scaled():
        scale = 1.0
        while True:
            scale = yield x * scale

    values = scaled()
    first = next(values)
    return first + values.send(3.0)


@program(one, symbolic="FXP-T005")
def yield_from(x):
    def rows(value):
        yield from value.unbind(0)
        yield value.sum(0)

    return torch.stack([*rows(x)])


def _power(x, exponent):
    return x if exponent == 1 else x * _power(x, exponent - 1)


@program(one)
def recursion(x):
    return _power(x, 5)


@program(one, symbolic="FXP-T005")
def comprehensions(x):
    rows = {index: row for index, row in enumerate(x.unbind(0)) if index != 5}
    return [value for row in rows.values() for value in (row, row * 2)], {len(rows)}


@program(cube, symbolic="FXP-T005")
def zip_and_map(x):
    parts = map(torch.mul, x.unbind(0), x.flip(0).unbind(0))
    pairs = itertools.product(parts, (1, 2))
    return [part * scale for part, scale in pairs]


@program(vector, others=lambda: (ramp(6),), symbolic="FXP-T005")
def pairs_of_rows(x):
    values = [right - left for left, right in itertools.pairwise(x)]
    return torch.stack(list(itertools.accumulate(values)))


@program(two)
def swap_and_star(x, y):
    x, y = y, x
    first, *rest = [x, y, x + y]
    return first, rest


@program(one)
def walrus(x):
    return y * 2 + y if (y := x + 1) is not None else x


@program(one)
def global_function_table(x):
    for name in ("relu", "tanh"):
        x = getattr(torch, name)(x)
    return operator.methodcaller("mul", 2)(operator.itemgetter(0)(x))


@dataclass
class Point:
    x: torch.Tensor
    y: torch.Tensor

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)

    def __matmul__(self, other):
        return self.x @ other.x.t() + self.y @ other.y.t()


@program(two)
def operators_of_a_class(x, y):
    total = Point(x, y) + Point(y, x)
    return total @ Point(x, x)


@program(two)
def reflected_operators(x, y):
    return [1 - x, 2 / y, 2**x, 5 // y, 7 % y, 1.5 * x, 3 + x, -x, +x, abs(x), ~(x > 0), True & (y > 0)]


@program(one)
def copies(x):
    y = copy.copy(x)
    z = copy.deepcopy(x)
    z += 1
    return x, y, z


@program(one)
def context_manager_that_swallows(x):
    with contextlib.suppress(ZeroDivisionError):
        x = x + 1
        x = x * (1 // 0)
    return x


@program(one, rows=(23,), symbolic="FXP-T001")
def libraries_of_python(x):
    sizes = [1, 3, 7]
    index = bisect.bisect(sizes, x.shape[0])
    return x * statistics.mean(sizes) + index + math.gcd(x.shape[1], 9) + math.comb(x.shape[1], 2)


@program(positive, rows=(23,), shape="FXP-T066")
def mathematics_of_a_value(x):
    return x * math.exp(x.mean()) + math.floor(x.max())


@program(vector, rows=(23,), symbolic="FXP-T005", shape="FXP-T066")
def statistics_of_values(x):
    return x - statistics.median(x.tolist())


@program(one, rows=(1,), value="FXP-T061")
def work_in_threads(x):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        left, right = pool.map(lambda factor: x * factor, (2, 3))
    return left + right


@program(tracked, rows=(33,))
def long_chain(x):
    for _ in range(1500):
        x = x + 0.001
    return x


@program(one, rows=(33,), symbolic="FXP-T040")
def deep_nest(x):
    nest = x
    for _ in range(200):
        nest = [nest]
    depth = 0
    while isinstance(nest, list):
        nest, depth = nest[0], depth + 1
    return nest * depth


@program(lambda: (ramp(64, 64),), rows=(34,))
def values_that_nobody_uses(x):
    for factor in range(20):
        x * factor
        unused = x @ x  # noqa: F841
    return x.sum()


@program(one)
def conditional_import(x):
    try:
        import no_such_package_at_all as package
    except ImportError:
        package = torch
    return package.sigmoid(x)


@program(one, others=larger, symbolic="FXP-T068")
def memoised_by_partial(x):
    scale = functools.partial(torch.mul, other=2)
    return functools.partial(scale, x)() + functools.partialmethod(torch.Tensor.sum, 0).func(x)


@program(one)
def deep_call_stack(x):
    def descend(value, depth):
        return value if depth == 0 else descend(value + 1, depth - 1)

    return descend(x, 100)


@program(one)
def class_made_inside(x):
    class Scaled:
        factor = x.mean()

        def __getitem__(self, index):
            return x[index] * self.factor

        def __iter__(self):
            return iter([self[0], self[1]])

        def __len__(self):
            return 2

    scaled = Scaled()
    first, second = scaled
    return first + second + scaled[-1] * len(scaled)


@program(one)
def descriptor_and_slots(x):
    class Box:
        __slots__ = ("value",)

        def __init__(self, value):
            self.value = value

        @property
        def doubled(self):
            return self.value * 2

    return Box(x).doubled


@program(one, others=larger, symbolic="FXP-T001")
def walrus_in_a_condition(x):
    return x * rows if (rows := x.shape[0]) > 3 else x - rows


@program(two, others=lambda: (two()[1], two()[0]), symbolic="FXP-T001", shape="FXP-T066")
def sorted_by_a_value(x, y):
    return sorted([x, y], key=lambda value: value.sum())[0]


@program(two, symbolic="FXP-T043")
def inputs_in_a_set(x, y):
    return x * len({x, y})


@program(one, symbolic="FXP-T043")
def results_as_keys(x):
    weights = {x: 1}
    weights[x + 1] = 2
    return x * len(weights) * weights[x]


@program(one)
def written_behind_a_return(x):
    made = []
    try:
        made.append(x * 2)
        return made[0]
    finally:
        made[0].add_(1)


@program(one, others=larger, symbolic="FXP-T042")
def text_of_a_size(x):
    return x * len("%s" % x.shape[0])  # noqa: UP031 - the operator is what is captured


class _Rows(enum.IntEnum):
    FEW = 1
    MANY = 2


@program(one, others=larger, symbolic="FXP-T001")
def member_found_by_a_size(x):
    return x * (3 if _Rows(min(x.shape[0], 2)) is _Rows.MANY else 4)


@program(one, others=positive, symbolic="FXP-T001", shape="FXP-T066")
def raised_out_of_a_loop(x):
    class Enough(Exception):  # noqa: N818 - it is no error
        pass

    try:
        for _ in range(3):
            x = x * 2
            if x.sum() > 20:
                raise Enough  # noqa: TRY301 - it is what is captured
    except Enough:
        return x + 100
    else:
        return x - 100


@program(one, others=larger, symbolic="FXP-T005")
def stacked_out_of_a_generator(x):
    return torch.stack([row * 2 for row in x]).sum()
