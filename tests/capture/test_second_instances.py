"""A program asks through a second instance, a hook, an operator or a text as through anything else."""

from __future__ import annotations

import functools
import operator
from types import MethodType

import pytest
import torch
from torch import is_grad_enabled as grad_asked
from torch import nn

from fxplug.errors import GuardError, TraceError

X = torch.linspace(1, 2, 6).reshape(2, 3)


class Step(nn.Module):
    """Has a step that others replace."""

    def forward(self, x):
        return self.step(x)

    def step(self, x):
        return x * 1


class AsksForGradients(Step):
    def step(self, x):
        return x * 2 if grad_asked() else x * 3


class Quiet(nn.Module):
    def compute(self, x):
        return x * 1


class Asking(nn.Module):
    def compute(self, x):
        return x * 2 if self.training else x * 3

    def __getitem__(self, key):
        return 2 if self.training else 3

    def __len__(self):
        return 2 if self.training else 3

    def __iter__(self):
        return iter([2 if self.training else 3])

    def __enter__(self):
        return 2 if self.training else 3

    def __exit__(self, *error):
        pass

    def __getattr__(self, name):
        if name == "made_up":
            return 2 if self.training else 3
        return super().__getattr__(name)


class Holder(nn.Module):
    """Calls a method of what it holds."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner.compute(x)


class Far(nn.Module):
    """The same at some distance."""

    def __init__(self, inner):
        super().__init__()
        self.near = nn.Module()
        self.near.inner = inner

    def forward(self, x):
        return self.near.inner.compute(x)


class Calling(nn.Module):
    """Calls a function that it holds with itself."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def ask(module, x):
    return x * 2 if module.training else x * 3


def with_other_method():
    second = Step()
    second.step = MethodType(ask, second)
    return nn.Sequential(Step(), second)


def hooked(hook, *, first=False, root=False):
    def make():
        module = Step()
        (module.register_forward_pre_hook if first else module.register_forward_hook)(hook)
        return module if root else nn.Sequential(Step(), module)

    return make


class Table(nn.Module):
    """Calls what stands in a dict of a part of it."""

    def __init__(self):
        super().__init__()
        self.inner = Asking()
        self.part = nn.Module()
        self.part.table = {"a": self.inner.compute}

    def forward(self, x):
        return self.part.table["a"](x)


class Cached(nn.Module):
    @functools.cached_property
    def factor(self):
        return 2 if self.training else 3

    def forward(self, x):
        return x * self.factor


def by_pattern(module, x):
    match module:
        case nn.Module(training=True):
            return x * 2
    return x * 3


def in_loop(module, x):
    for factor in module.inner:
        x = x * factor
    return x


def in_with(module, x):
    with module.inner as factor:
        return x * factor


training_of = operator.attrgetter("training")
WAYS = {
    "getattr": lambda module, x: x * 2 if getattr(module, "training", False) else x * 3,
    "pattern": by_pattern,
    "vars": lambda module, x: x * 2 if vars(module)["training"] else x * 3,
    "table": lambda module, x: x * 2 if module.__dict__["training"] else x * 3,
    "attrgetter": lambda module, x: x * 2 if operator.attrgetter("training")(module) else x * 3,
    "a kept attrgetter": lambda module, x: x * 2 if training_of(module) else x * 3,
    "format": lambda module, x: x * 2 if f"{module.training}" == "True" else x * 3,
}
OPERATORS = {
    "item": lambda module, x: x * module.inner[0],
    "len": lambda module, x: x * len(module.inner),
    "loop": in_loop,
    "with": in_with,
    "attribute": lambda module, x: x * module.inner.made_up,
    "methodcaller": lambda module, x: operator.methodcaller("compute", x)(module.inner),
}


def operated(function):
    def make():
        root = Calling(function)
        root.inner = Asking()
        return root

    return make


FLAGS = {
    "held": lambda: nn.Sequential(Holder(Quiet()), Holder(Asking())),
    "held further away": lambda: nn.Sequential(Far(Quiet()), Far(Asking())),
    "function": lambda: nn.Sequential(Calling(lambda module, x: x * 1), Calling(ask)),
    "method": with_other_method,
    "hook": hooked(lambda module, args, result: ask(module, result)),
    "hook of the root": hooked(lambda module, args, result: ask(module, result), root=True),
    "hook before": hooked(lambda module, args: (ask(module, args[0]),), first=True),
    "bound method in a dict": Table,
    "cached property": Cached,
    **{f"by {name}": functools.partial(Calling, way) for name, way in WAYS.items()},
    **{f"by operator {name}": operated(way) for name, way in OPERATORS.items()},
}


@pytest.mark.filterwarnings("ignore:While tracing:fxplug.errors.TraceWarning")
@pytest.mark.parametrize("program", FLAGS)
def test_flags_are_guarded_whoever_reads_them(capture_unchecked, program):
    root = FLAGS[program]().train()
    try:
        captured = capture_unchecked(root)
    except TraceError:  # What a symbolic trace cannot answer.
        assert capture_unchecked.keywords["mode"] == "symbolic"
        return
    root.eval()
    captured.eval()

    with pytest.raises(GuardError, match="training"):
        captured(X)


class Object:
    def __getitem__(self, key):
        return 2 if grad_asked() else 3

    def __matmul__(self, other):
        return 2 if grad_asked() else 3


class Attribute:
    def __get__(self, owner, kind=None):
        return 2 if grad_asked() else 3


class Computed(nn.Module):
    attribute = Attribute()

    def forward(self, x):
        return x * self.attribute


def held(function, value):
    def make():
        root = Calling(function)
        root.value = value
        return root

    return make


class Listing(nn.Module):
    """Calls what stands in a list of a part of it that is a plain module."""

    def __init__(self, function):
        super().__init__()
        self.part = nn.Module()
        self.part.table = [function]

    def forward(self, x):
        return self.part.table[0](x)


MODES = {
    "second instance": lambda: nn.Sequential(Step(), AsksForGradients()),
    "hook": hooked(lambda module, args, result: result * 2 if grad_asked() else result * 3),
    "item": held(lambda module, x: x * module.value[0], Object()),
    "operator": held(lambda module, x: x * (module.value @ 1), Object()),
    "descriptor": Computed,
    "computed name": held(lambda module, x: x * 2 if getattr(module, "val" + "ue")() else x * 3, grad_asked),
    "function of the second": lambda: nn.Sequential(
        Calling(lambda module, x: x * 1), Calling(lambda module, x: x * 2 if grad_asked() else x * 3)
    ),
    "list of a part of the second": lambda: nn.Sequential(
        Listing(lambda x: x * 1), Listing(lambda x: x * 2 if grad_asked() else x * 3)
    ),
}


@pytest.mark.parametrize("program", MODES)
def test_modes_are_guarded_whoever_asks_for_them(capture_unchecked, program):
    captured = capture_unchecked(MODES[program]())

    with torch.no_grad(), pytest.raises(GuardError, match="is_grad_enabled"):
        captured(X)


CALLS = [0]


class Counts(Step):
    def step(self, x):
        CALLS[0] += 1
        return x * CALLS[0]


def test_a_counter_of_a_second_class_with_the_same_forward_is_refused(capture_unchecked):
    CALLS[0] = 0

    with pytest.raises(TraceError, match="FXP-T055"):
        capture_unchecked(nn.Sequential(Step(), Counts()))

    assert CALLS == [0]


class Drops(Step):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def step(self, x):
        self.linear._parameters["bias"] = None
        return self.linear(x)


def test_what_a_second_class_with_the_same_forward_changes_is_put_back(capture_unchecked):
    root = nn.Sequential(Step(), Drops())

    with pytest.raises(TraceError, match="FXP-T010"):
        capture_unchecked(root)

    assert root[1].linear.bias is not None


def test_a_forward_that_has_been_exchanged_is_read_again(capture_unchecked):
    class Changed(nn.Module):
        def forward(self, x):
            return x * 1

    capture_unchecked(nn.Sequential(Changed()))
    Changed.forward = lambda self, x: x * 2 if self.training else x * 3
    captured = capture_unchecked(nn.Sequential(Changed()))

    with pytest.raises(GuardError, match="training"):
        captured.eval()(X)


class Direct(nn.Module):
    """Runs the forward of a layer past its call."""

    def __init__(self, layer, way):
        super().__init__()
        self.layers = nn.ModuleList([layer])
        self.layer = layer
        self.way = way

    def forward(self, x):
        return self.way(self, x)


def each(module, x):
    for layer in module.layers:
        x = layer.forward(x)
    return x


DIRECT = {
    "forward": lambda module, x: module.layer.forward(x),
    "inner": lambda module, x: module.layer._call_impl(x),
    "loop": each,
}


@pytest.mark.parametrize("way", DIRECT)
@pytest.mark.parametrize("layer", [nn.Dropout, functools.partial(nn.BatchNorm1d, 3)])
def test_layers_of_torch_whose_forward_is_called_directly_are_guarded(capture_unchecked, layer, way):
    root = Direct(layer(), DIRECT[way])
    try:
        captured = capture_unchecked(root)
    except TraceError:
        return

    with pytest.raises(GuardError, match="training"):
        captured.eval()(X)


class Inherits(nn.Linear):
    def forward(self, x):
        return super().forward(x)


def test_a_forward_that_calls_the_inherited_one_guards_no_layers_beside_it(capture_unchecked):
    root = nn.Sequential(Inherits(3, 3), nn.Dropout())
    captured = capture_unchecked(root)

    assert torch.equal(captured.eval()(X), root.eval()(X))


def test_a_message_that_speaks_of_training_is_no_question(capture_unchecked):
    def check(module, x):
        if not hasattr(module, "layer"):
            raise ValueError("it has no layer, which is needed in training")
        return module.layer(x)

    root = Calling(check)
    root.layer = nn.Dropout()
    captured = capture_unchecked(root)

    assert torch.equal(captured.eval()(X), root.eval()(X))
