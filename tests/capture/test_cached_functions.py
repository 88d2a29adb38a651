"""Functions whose results are kept (`functools.lru_cache`): nothing of a trace stays in their caches."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import nn

import fxplug

X = torch.tensor([1.0, 2.0, 3.0])
MODES = ["symbolic", "shape", "value"]


def captured_in(mode, root):
    return fxplug.trace(root, None if mode == "symbolic" else (X,), mode=mode)


@functools.cache
def table(count):
    return torch.arange(count).float()


@functools.lru_cache(maxsize=8)
def tripled(count):
    return table(count) * 3


@functools.cache
def twice(count):
    return count * 2


def by_name(x):
    return x + tripled(3)


def by_size(x):
    return x + table(x.shape[0])


def number_by_size(x):
    return x * twice(x.shape[0])


def by_closure():
    @functools.cache
    def inner(count):
        return table(count) + 1

    return lambda x: x + inner(3), inner


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    @functools.lru_cache(maxsize=4)  # noqa: B019 - that is what programs do
    def scaled(self, factor):
        return self.weight * factor

    @staticmethod
    @functools.cache
    def offset():
        return torch.ones(3)

    def forward(self, x):
        return x * self.scaled(2.0) + self.offset()


@pytest.fixture(autouse=True)
def empty():
    for function in (table, tripled, twice, Model.scaled, Model.offset):
        function.cache_clear()


def is_plain(value):
    return type(value) is torch.Tensor and type(value.sum().item()) is float


@pytest.mark.parametrize(
    ("mode", "program"), [*((mode, by_name) for mode in MODES), ("shape", by_size), ("value", by_size)]
)
def test_a_call_after_the_trace_gets_a_tensor_of_its_own(mode, program):
    expected = {by_name: torch.tensor([1.0, 5.0, 9.0]), by_size: torch.tensor([1.0, 3.0, 5.0])}[program]
    captured = captured_in(mode, program)

    assert is_plain(table(3))
    assert is_plain(tripled(3))
    assert torch.equal(captured(X), expected)
    assert torch.equal(program(X), expected)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_numbers_that_stand_for_sizes_stay_in_no_cache(mode):
    captured = captured_in(mode, number_by_size)

    assert type(twice(3)) is int
    assert torch.equal(captured(X), number_by_size(X))


@pytest.mark.parametrize("mode", MODES)
def test_methods_and_closures_are_found_too(mode):
    model = Model()
    program, inner = by_closure()
    captured, other = captured_in(mode, model), captured_in(mode, program)

    assert type(model.scaled(2.0)) is torch.Tensor
    assert model.scaled(2.0).grad_fn is not None
    assert is_plain(Model.offset())
    assert is_plain(inner(3))
    assert torch.equal(captured(X), model(X))
    assert torch.equal(other(X), program(X))


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_fails_leaves_nothing(mode):
    def program(x):
        y = x + tripled(3)
        raise LookupError(y.shape)

    with pytest.raises(LookupError):
        captured_in(mode, program)

    assert is_plain(tripled(3))


@pytest.mark.parametrize("mode", MODES)
def test_what_was_kept_before_stays_and_is_a_constant(mode):
    before = tripled(3)
    misses = tripled.cache_info().misses
    captured = captured_in(mode, by_name)

    assert tripled(3) is before
    assert tripled.cache_info().misses == misses
    assert torch.equal(captured(X * 2), by_name(X * 2))


def test_optimize_captures_a_program_that_has_run():
    class Cached(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                x = x * 2
            return x + tripled(3)

    model = Cached().eval()
    result = fxplug.optimize(model, (X,), measure=False)

    assert torch.equal(result.module(X), model(X))


# -- functions that compute numbers of numbers


@functools.lru_cache(maxsize=8)
def tiles(sizes, count, *, rest=0):
    batch, rows = sizes
    if rows % count != 0:
        raise ValueError("rows do not divide")
    return [batch, count, rows // count + rest], {"rows": rows}, (None, "tiles")


def by_tiles(x):
    sizes, held, _ = tiles(x.shape, 2)
    return x.reshape(sizes) * held["rows"]


def by_tiles_with_a_name(x):
    sizes, _, (_, name) = tiles(count=2, sizes=tuple(x.shape))
    return x.reshape(sizes) + len(name)


@pytest.mark.parametrize("program", [by_tiles, by_tiles_with_a_name])
@pytest.mark.parametrize("mode", ["shape", "value"])
def test_what_is_computed_of_sizes_alone_is_captured_for_all(mode, program):
    captured = fxplug.trace(program, (torch.rand(3, 4),), mode=mode)
    again = fxplug.trace(captured, (torch.rand(3, 4),), mode=mode)
    for shape in ((3, 4), (1, 8), (5, 2)):
        x = torch.rand(shape)
        for made in (captured, again):
            assert torch.equal(made(x), program(x))
    with pytest.raises(fxplug.GuardError, match="% 2"):
        captured(torch.rand(3, 5))
    tiles.cache_clear()
    assert all(type(size) is int for size in tiles((3, 4), 2)[0])


def test_caches_can_be_looked_at_while_a_trace_runs():
    found = []

    def program(x):
        y = by_tiles(x)
        found.append(tiles.cache_info().maxsize)
        tiles.cache_clear()
        return y

    fxplug.trace(program, (torch.rand(3, 4),), check=False)
    assert set(found) == {8}


SCALES = {"scale": 2}


@functools.cache
def scaled_by_setting(count):
    return count * SCALES["scale"]


@functools.cache
def table_of_numbers(count):
    return torch.arange(count).tolist()


@functools.cache
def listed(count):
    return [count]


@functools.cache
def unhashable(counts):
    return counts[0]


def test_what_was_kept_under_other_settings_stays(monkeypatch):
    scaled_by_setting.cache_clear()
    assert scaled_by_setting(3) == 6
    monkeypatch.setitem(SCALES, "scale", 5)
    captured = fxplug.trace(lambda x: x * scaled_by_setting(x.shape[0]), (X,))

    assert torch.equal(captured(X), X * 6)
    with pytest.raises(fxplug.GuardError, match=r"x.shape\[0\] == 3"):
        captured(torch.ones(4))


def test_what_needs_torch_is_computed_for_one_number():
    captured = fxplug.trace(lambda x: x + sum(table_of_numbers(x.shape[0])), (X,))

    assert torch.equal(captured(X), X + 3)
    with pytest.raises(fxplug.GuardError, match=r"x.shape\[0\] == 3"):
        captured(torch.ones(4))


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_what_is_kept_and_changed_is_refused(mode):
    def program(x):
        counts = listed(x.shape[0])
        counts.append(1)
        return x * sum(counts)

    with pytest.raises(fxplug.TraceError, match="listed") as caught:
        fxplug.trace(program, (X,), mode=mode, check=False)
    assert caught.value.code == "FXP-T055"
    assert listed(3) == [3]


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_arguments_by_which_nothing_is_kept_raise_their_error(mode):
    def program(x):
        try:
            return x * unhashable([x.shape[0]])
        except TypeError:
            return x + 1

    captured = fxplug.trace(program, (X,), mode=mode)
    assert torch.equal(captured(X), X + 1)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_an_error_of_a_function_whose_results_are_kept_is_its_own(mode):
    with pytest.raises(ValueError, match="do not divide"):
        fxplug.trace(by_tiles, (torch.rand(3, 5),), mode=mode)


@functools.cache
def noise(count):
    return torch.randn(count)


@functools.cache
def filled(count):
    values = torch.zeros(count)
    nn.init.normal_(values)
    return {"values": values.tanh()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kept", [lambda: noise(3), lambda: filled(3)["values"]], ids=["drawn", "filled"])
def test_random_numbers_that_are_kept_are_refused(mode, kept):
    noise.cache_clear()
    filled.cache_clear()

    with pytest.raises(fxplug.TraceError, match=r"draws random numbers once and keeps them .*FXP-T055"):
        captured_in(mode, lambda x: x + kept())


@pytest.mark.parametrize("mode", MODES)
def test_random_numbers_beside_what_is_kept_are_drawn_in_each_call(mode):
    captured = captured_in(mode, lambda x: torch.rand_like(x) + tripled(3))

    assert not torch.equal(captured(X), captured(X))


@pytest.mark.parametrize("mode", MODES)
def test_random_numbers_that_were_kept_before_are_constants(mode):
    noise.cache_clear()
    before = noise(3)
    captured = captured_in(mode, lambda x: x + noise(3))

    assert noise(3) is before
    assert torch.equal(captured(X), X + before)


@functools.lru_cache
def root_of(count):
    return math.ceil(math.sqrt(count))


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_functions_of_math_are_part_of_what_is_computed(mode):
    captured = fxplug.trace(lambda x: x * root_of(x.shape[0] * 4), (torch.ones(4, 2),), mode=mode)

    for rows in (4, 9, 5):
        assert torch.equal(
            captured(torch.ones(rows, 2)), torch.ones(rows, 2) * math.ceil(math.sqrt(rows * 4))
        )


# -- what is changed after it was returned


class Step:
    def __init__(self):
        self.number = 1


@functools.lru_cache(maxsize=8)
def kept(kind):
    if kind == "tensor":
        made = torch.zeros(3)
        made[0] = 1
        return made.add_(1)
    return {
        "view": lambda: torch.ones(6)[::2],
        "list": lambda: [1],
        "dict": lambda: {"number": 1},
        "object": Step,
        "iterator": lambda: iter([1, 2, 3, 4, 5, 6]),
        "nested": lambda: ([torch.ones(3)], {"inner": [1]}),
    }[kind]()


def writes(x, kept):
    scale = kept("tensor")
    result = x * scale
    scale.add_(1)
    return result


def writes_to_a_view_of_it(x, kept):
    scale = kept("view")
    result = x * scale
    scale[1:].mul_(2)
    return result


def adds_to_a_list(x, kept):
    numbers = kept("list")
    numbers.append(1)
    return x * len(numbers)


def counts_in_a_dict(x, kept):
    numbers = kept("dict")
    numbers["number"] += 1
    return x * numbers["number"]


def counts_in_an_object(x, kept):
    step = kept("object")
    step.number += 1
    return x * step.number


def takes_from_an_iterator(x, kept):
    return x * next(kept("iterator"))


def writes_in_a_list(x, kept):
    (scale,), _ = kept("nested")
    result = x * scale
    scale.zero_()
    return result


def adds_to_an_inner_list(x, kept):
    _, table = kept("nested")
    table["inner"].append(1)
    return x * len(table["inner"])


CHANGES = [
    *(writes, writes_to_a_view_of_it, adds_to_a_list, counts_in_a_dict, counts_in_an_object),
    *(takes_from_an_iterator, writes_in_a_list, adds_to_an_inner_list),
]


class Holding(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change
        self.kept = functools.cache(kept.__wrapped__)

    def forward(self, x):
        return self.change(x, self.kept)


@pytest.mark.parametrize("make", [lambda change: lambda x: change(x, kept), Holding], ids=["found", "held"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", CHANGES)
def test_results_that_are_kept_and_changed_are_refused(change, mode, make):
    kept.cache_clear()

    with pytest.raises(fxplug.TraceError, match=r"changes what kept .*has returned") as caught:
        fxplug.trace(make(change), None if mode == "symbolic" else (X,), mode=mode, check=False)

    assert caught.value.code == "FXP-T055"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cache", [functools.cache, functools.lru_cache(maxsize=8)])
@pytest.mark.parametrize(
    "change", [adds_to_a_list, counts_in_a_dict, counts_in_an_object, adds_to_an_inner_list]
)
def test_results_that_were_kept_before_are_put_back(change, mode, cache):
    own = cache(kept.__wrapped__)
    change(X, own)

    with pytest.raises(fxplug.TraceError, match="changes what kept") as caught:
        fxplug.trace(lambda x: change(x, own), None if mode == "symbolic" else (X,), mode=mode, check=False)

    assert caught.value.code == "FXP-T055"
    assert torch.equal(change(X, own), X * 3)


@pytest.mark.parametrize("mode", MODES)
def test_results_that_are_kept_and_only_read_or_copied_are_captured(mode):
    def program(x):
        scale = kept("tensor").clone()
        scale.add_(1)
        numbers = [*kept("list"), 2]
        return x * scale * kept("tensor") * sum(numbers) * kept("object").number + kept("nested")[0][0]

    kept.cache_clear()
    captured = captured_in(mode, program)
    for _ in range(2):
        assert torch.equal(captured(X), program(X))


def names_of_calls(captured):
    return [
        getattr(node.target, "__name__", node.target) for node in captured.graph.nodes if "call" in node.op
    ]


def test_looking_after_results_records_nothing():
    kept.cache_clear()
    assert names_of_calls(fxplug.symbolic_trace(lambda x: x * kept("tensor"))) == ["mul"]
    for mode in ("shape", "value"):
        kept.cache_clear()
        captured = fxplug.trace(lambda x: x * kept("tensor"), (X,), mode=mode)
        assert names_of_calls(captured) == ["zeros", "setitem", "add_", "mul"]
