"""Objects of installed libraries that a program finds are state; containers that refuse to be changed are put back."""

import sys
import types
from collections import OrderedDict, deque
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceWarning

X = torch.tensor([1.0, 2.0, 3.0])
MODES = ["symbolic", "shape", "value"]
SOURCE = """
class Scheduler:
    calls = 0

    def __init__(self):
        self.step_index = None
        self.outputs = []
        self.asked = 0

    def step(self, x):
        self.step_index = 0 if self.step_index is None else self.step_index + 1
        return x * (self.step_index + 1)

    def average(self, x):
        self.outputs.append(x)
        return sum(self.outputs)

    def scale(self, x):
        self.asked += 1
        return x * 2
"""


@pytest.fixture
def scheduler():
    """An object of a class whose module is installed where pip installs."""
    name = "scheduler_of_a_library"
    made = types.ModuleType(name)
    made.__file__ = str(Path(torch.__file__).parents[1] / f"{name}.py")
    exec(compile(SOURCE, made.__file__, "exec"), vars(made))
    sys.modules[name] = made
    yield made.Scheduler()
    del sys.modules[name]


class Pipeline:
    def __init__(self, scheduler):
        self.scheduler = scheduler

    def run(self, x):
        return self.scheduler.step(x)


def programs_with(scheduler):
    pipeline = Pipeline(scheduler)

    def with_default(x, held=scheduler):
        return held.step(x)

    return [
        lambda x: scheduler.step(x),  # noqa: PLW0108 - finds the object, not the method
        lambda x: pipeline.run(x),  # noqa: PLW0108
        lambda x: with_default(x),  # noqa: PLW0108
        pipeline.run,
        scheduler.step,
        lambda x: scheduler.average(x),  # noqa: PLW0108
    ]


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("mode", MODES)
def test_what_an_object_of_a_library_counts_is_refused_and_put_back(scheduler, mode, number):
    program = programs_with(scheduler)[number]
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(program, None if mode == "symbolic" else (X,), mode=mode, check=False)

    assert caught.value.code == "FXP-T055"
    assert scheduler.step_index is None
    assert scheduler.outputs == []
    assert torch.equal(program(X), X)


@pytest.mark.parametrize("mode", MODES)
def test_what_no_result_hangs_on_is_put_back_without_an_error(scheduler, mode):
    with pytest.warns(TraceWarning, match="asked"):
        captured = fxplug.trace(
            lambda x: scheduler.scale(x),  # noqa: PLW0108
            None if mode == "symbolic" else (X,),
            mode=mode,
        )

    assert scheduler.asked == 0
    assert torch.equal(captured(X), X * 2)


class FrozenDict(OrderedDict):
    def update(self, *_, **__):
        raise RuntimeError("frozen")

    __setitem__ = __delitem__ = pop = setdefault = update


class FrozenTable(dict):
    def update(self, *_, **__):
        raise RuntimeError("frozen")

    __setitem__ = clear = update


class FrozenList(list):
    def __setitem__(self, *_):
        raise RuntimeError("frozen")


class FrozenSet(set):
    def update(self, *_):
        raise RuntimeError("frozen")

    clear = update


class FrozenDeque(deque):
    def extend(self, *_):
        raise RuntimeError("frozen")

    clear = extend


def frozen_dict():
    made = FrozenDict()
    OrderedDict.__setitem__(made, "scale", 2.0)
    OrderedDict.__setitem__(made, "shift", 1.0)
    return made


FROZEN = {
    "ordered dict": frozen_dict,
    "dict": lambda: FrozenTable(scale=2.0, shift=1.0),
    "list": lambda: FrozenList([2.0, 1.0]),
    "set": lambda: FrozenSet({2.0}),
    "deque": lambda: FrozenDeque([2.0, 1.0]),
}


class Configured(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(x) * float(len(self.config))


@pytest.mark.parametrize("make", FROZEN.values(), ids=FROZEN)
@pytest.mark.parametrize("mode", ["shape", "value"])
def test_containers_that_refuse_to_be_changed_are_left_alone(make, mode):
    model = Configured(make())
    captured = fxplug.trace(model, (torch.rand(2, 3),), mode=mode)

    assert type(model.config) is type(make())
    assert model.config == make()
    x = torch.rand(4, 3)
    torch.testing.assert_close(
        captured(x), nn.functional.batch_norm(x, None, None, training=True) * len(make())
    )


@pytest.mark.parametrize("make", FROZEN.values(), ids=FROZEN)
@pytest.mark.parametrize("mode", ["shape", "value"])
def test_what_is_written_past_their_methods_is_put_back(make, mode):
    class Writes(Configured):
        def forward(self, x):
            if isinstance(self.config, dict):
                kind = OrderedDict if isinstance(self.config, OrderedDict) else dict
                kind.__setitem__(self.config, "shift", 5.0)
            elif isinstance(self.config, set):
                set.add(self.config, 5.0)
            else:
                kind = list if isinstance(self.config, list) else deque
                kind.__setitem__(self.config, 0, 5.0)
            return x * 2

    model = Writes(make())
    with pytest.warns(TraceWarning, match="config"):
        fxplug.trace(model, (torch.rand(2, 3),), mode=mode, check=False)

    assert model.config == make()
    assert list(model.config) == list(make())
