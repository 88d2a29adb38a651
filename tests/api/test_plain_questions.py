"""Plain programs that ask of which class something is that modules hold, read nested constants, and call with stars."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn import Identity

import fxplug
from fxplug.errors import TraceWarning

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.nothing = nn.Linear(4, 4), nn.Identity()
        self.heads = nn.ModuleList([nn.Identity(), nn.Linear(4, 4)])
        self.weight = nn.Parameter(torch.linspace(1, 2, 4))
        self.schedule = {0: ([2, 2], (3, [4])), 1: ([1], (2, []))}
        self.steps = [[1, 2], [3], {"by": 2, "more": [5, 6]}]

    def scaled(self, x, plus=0, *, by):
        return x * by + plus

    @property
    def twice(self):
        return len(self.steps) * 2

    @property
    def width(self):
        return self.layer.in_features

    @property
    def half_of_weights(self):
        return self.weight / self.twice

    @property
    def has_heads(self):
        return len(self.heads) > 1

    @property
    def missing(self):
        return None

    @property
    def counted(self):
        reads.append(1)
        return 2

    @property
    def caller(self):
        return self.layer


def net_of(forward):
    torch.manual_seed(0)
    return type("Asking", (Net,), {"forward": forward})().eval()


def of_an_attribute(self, x):
    return self.layer(x) if isinstance(self.nothing, nn.Identity) else x


def of_an_element(self, x):
    if isinstance(self.heads[0], Identity) and not isinstance(self.heads[-1], (nn.Identity, nn.Conv2d)):
        x = self.heads[1](x)
    return x + 1


def of_a_weight(self, x):
    return x * self.weight if isinstance(self.weight, torch.Tensor) else x


def of_what_is_computed(self, x):
    return x + 1 if isinstance(self.layer(x) * 2, torch.Tensor) else x


def of_an_element_of_a_list(self, x):
    parts = [self.layer(x), 3]
    return parts[0] * parts[1] if isinstance(parts[1], int) and isinstance(parts[0], torch.Tensor) else x


def goes_through_nested_lists(self, x):
    for step in self.steps[:2]:
        for by in step:
            x = x * by
    return x + self.steps[2]["more"][-1] * self.steps[2]["by"]


def unpacks_nested_tuples(self, x):
    for number in range(2):
        schedule, (by, more) = self.schedule[number]
        for size in schedule:
            x = x + size
        x = x * by
        if more:
            x = x - more[0]
    return x


def wonders_whether_it_has_something(self, x):
    if hasattr(self, "table") or not hasattr(self, "heads"):
        return x
    return self.layer(x) if hasattr(self, "scaled") and not hasattr(self.layer, "in_channels") else x


def reads_a_property(self, x):
    return self.layer(x) * self.twice + self.width * self.half_of_weights


def asks_a_property(self, x):
    return self.layer(x) if self.has_heads and self.missing is None else x


def calls_a_layer_with_a_star(self, x):
    given = [x + 1]
    return self.layer(*given)


def calls_a_method_with_stars(self, x):
    options = {"by": 3}
    return self.scaled(*(self.layer(x), 1), **options) + self.scaled(x, **options)


def counts_on(self, x):
    count = x.shape[0]
    count *= 2
    count -= 1
    return self.layer(x) * count


def asks_what_a_dtype_holds(self, x):
    scores = self.layer(x)
    return scores.masked_fill(x > 0, torch.finfo(scores.dtype).min) + torch.iinfo(torch.int8).bits


def takes_a_dtype_unless_told(self, x):
    return masked(self.layer(x)) + masked(x, torch.float64)


def masked(x, dtype=torch.float32):
    return x.to(dtype).clamp(torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    "forward",
    [
        asks_what_a_dtype_holds,
        takes_a_dtype_unless_told,
        wonders_whether_it_has_something,
        reads_a_property,
        asks_a_property,
        calls_a_layer_with_a_star,
        calls_a_method_with_stars,
        counts_on,
        of_an_attribute,
        of_an_element,
        of_a_weight,
        of_what_is_computed,
        of_an_element_of_a_list,
        goes_through_nested_lists,
        unpacks_nested_tuples,
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_such_questions_are_not_listened_to(forward, check, captured_both_ways):
    captured_both_ways(net_of(forward), X, X.neg(), check=check)


class Meta(type):
    def __instancecheck__(cls, instance):
        return True


class Anything(metaclass=Meta):
    pass


def of_a_class_with_a_say(self, x):
    return self.layer(x) if isinstance(self.nothing, Anything) else x


def of_a_class_that_is_computed(self, x):
    return self.layer(x) if isinstance(self.nothing, type(self.nothing)) else x


def of_a_class_on_two_ways(self, x):
    return self.layer(x) if isinstance(self.nothing, nn.Identity if x.dim() == 2 else nn.Linear) else x


reads = []


def reads_a_property_that_counts(self, x):
    return x * self.counted


def calls_a_property(self, x):
    return self.caller(x)


def wonders_about_a_property(self, x):
    return x * 2 if hasattr(self, "counted") else x


def wonders_about_a_value(self, x):
    return x * 2 if hasattr(x, "relu") else x


def changes_an_inner_list(self, x):
    self.steps[0].append(7)
    return x * len(self.steps[0])


def changes_a_list_in_a_tuple(self, x):
    self.schedule[0][1][1].append(8)
    return self.layer(x)


@pytest.mark.parametrize(
    "forward",
    [
        of_a_class_with_a_say,
        of_a_class_that_is_computed,
        of_a_class_on_two_ways,
        reads_a_property_that_counts,
        calls_a_property,
        wonders_about_a_property,
        wonders_about_a_value,
        changes_an_inner_list,
        changes_a_list_in_a_tuple,
    ],
)
def test_other_questions_are_listened_to(forward, plainly):
    net = net_of(forward)
    before = copy.deepcopy((net.schedule, net.steps))
    expected = copy.deepcopy(net)(X)
    try:
        captured = fxplug.trace(net, (X,), check=False)
    except (fxplug.TraceError, fxplug.errors.TraceWarning):
        captured = None  # It is said what it does.
    assert plainly == [None]
    assert (net.schedule, net.steps) == before
    if captured is not None:
        torch.testing.assert_close(captured(X), expected)


def test_what_holds_itself_is_listened_to(plainly):
    net = net_of(goes_through_nested_lists)
    net.steps.append(net.steps)
    captured = fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))


class Wondering(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return x * 2 if hasattr(self.inner, "zip") else x + 1


class Answering:
    def __init__(self):
        self.asked = 0

    def __getattr__(self, name):
        self.asked += 1
        raise AttributeError(name)


def test_what_hides_a_layer_is_asked_nothing_in_a_plain_trace(plainly):
    net = nn.Sequential(Wondering(), Wondering()).eval()
    hiding = Answering()
    net[1].__dict__["inner"] = hiding
    before = hiding.asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fxplug.api.capturing, "_capture_once", None)  # Nothing but the plain way.
        with pytest.raises(TypeError):
            fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    assert hiding.asked == before


def test_texts_of_modules_are_looked_at_in_inner_functions_too(plainly):
    class Told(nn.Module):
        def extra_repr(self):
            TOLD.append(1)
            return ""

        def forward(self, x):
            return x

    def forward(self, x):
        def text_of(value):
            return str(value)

        return x * len(text_of(self.told))

    net = net_of(forward)
    net.told = Told()
    with contextlib.suppress(fxplug.TraceError, TraceWarning):
        fxplug.trace(net, (X,), check=False)
    assert plainly == [None]


TOLD = []
