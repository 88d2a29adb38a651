"""Plain programs that make objects of their own classes, which hold values: these are Python's own in a trace, too."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import sys
import typing
import warnings

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture.interception import own_code
from fxplug.capture.plain_code import reads_of_plain_method
from fxplug.capture.plain_functions import plain_parts
from fxplug.capture.plain_objects import is_plain_class
from fxplug.errors import TraceWarning

X = torch.linspace(-2, 2, 12).reshape(3, 4)

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="it is not told what is called at once")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.linspace(1, 2, 4))
        self.factor = 3


def net_of(forward):
    torch.manual_seed(0)
    return type("Using", (Net,), {"forward": forward})().eval()


class Pair:
    scale = 2

    def __init__(self, first, second=1):
        self.first, self.second = first, second

    @property
    def total(self):
        return self.first + self.second * self.scale

    def swap(self):
        self.first, self.second = self.second, self.first
        return self

    def grow(self, by):
        self.first += by

    def is_wide(self):
        return self.first.shape[-1] > 3


class Scaled(Pair):
    def __init__(self, first, second, by):
        super().__init__(first, second)
        self.by = by

    def grow(self, by):
        super().grow(by * self.by)

    def __call__(self, y):
        return self.first * y

    def __len__(self):
        return 2


class Slotted:
    __slots__ = ("kept",)

    def __init__(self, kept):
        self.kept = kept


class Stack:
    def __init__(self):
        self.values, self.count = [], 0

    def push(self, value):
        self.values.append(value)
        self.count += 1

    def total(self):
        found = 0
        for value in self.values:
            found = found + value
        return found / self.count


@dataclasses.dataclass
class Features:
    low: torch.Tensor
    high: torch.Tensor | None = None
    by: int = 2
    parts: list = dataclasses.field(default_factory=list)

    def joined(self):
        return self.low * self.by if self.high is None else self.low + self.high


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: torch.Tensor


@dataclasses.dataclass(slots=True, order=True)
class Ordered:
    number: int
    value: typing.Any = None


@dataclasses.dataclass
class WithMore:
    value: torch.Tensor

    def __post_init__(self):
        self.doubled = self.value * 2


class Named(typing.NamedTuple):
    left: torch.Tensor
    right: torch.Tensor | int = 2

    def product(self):
        return self.left * self.right


Point = collections.namedtuple("Point", "x y")  # noqa: PYI024 - it is a class, too


def holds_and_gives(self, x):
    pair = Pair(self.layer(x), x)
    return pair.total * pair.second


def assigns(self, x):
    pair = Pair(self.layer(x), x)
    pair.grow(x)
    pair.grow(self.weight)
    return pair.swap().total - pair.first


def derives(self, x):
    scaled = Scaled(self.layer(x), x, self.factor)
    scaled.grow(1)
    return scaled(x) + len(scaled) if scaled else x


def has_slots(self, x):
    return Slotted(self.layer(x)).kept + 1


def counts(self, x):
    stack = Stack()
    for layer in (self.layer, self.other):
        stack.push(layer(x))
    return stack.total()


def fields(self, x):
    found = Features(self.layer(x))
    more = Features(found.joined(), high=x, by=3)
    more.parts.append(found.joined())
    return more.joined() + more.parts[0] * more.by


def fields_of_other_dataclasses(self, x):
    return Frozen(self.layer(x)).value + WithMore(x).doubled * Ordered(2, x).value


def names_fields(self, x):
    named = Named(self.layer(x), right=x)
    left, right = named
    point = Point(left, 3)
    return named.product() * point._replace(y=2).y + right * point.x


def replaces_fields(self, x):
    return Named(self.layer(x))._replace(right=x).product() + Point(x, 1)._asdict()["x"]


def asks_for_the_class(self, x):
    pair = Pair(self.layer(x), x)
    found = pair.first if isinstance(pair, Pair) and not isinstance(x, Pair) else x
    return found * 2 if isinstance(pair, (Named, Scaled)) else found


def asks_for_a_size(self, x):
    pair = Pair(self.layer(x))
    return pair.first * 2 if pair.is_wide() else pair.first


def one_in_another(self, x):
    outer = Pair(Pair(self.layer(x), x), 2)
    outer.first.grow(x)
    return outer.first.total * outer.second


def holds_a_module(self, x):
    return Pair(self.layer, x).first(x)


def compares_them(self, x):
    one, other = Frozen(x), Frozen(x)
    return self.layer(x) if one == other and one is not other else x


def through_a_helper(self, x):
    return total_of(Pair(self.layer(x), x), [Slotted(x)])


def total_of(pair, others):
    return pair.total + sum(other.kept for other in others)


PLAIN = [
    holds_and_gives,
    assigns,
    derives,
    has_slots,
    counts,
    fields,
    fields_of_other_dataclasses,
    names_fields,
    replaces_fields,
    asks_for_the_class,
    asks_for_a_size,
    one_in_another,
    through_a_helper,
    compares_them,
]


@pytest.mark.parametrize("forward", PLAIN)
@pytest.mark.parametrize("check", [True, False])
def test_objects_that_hold_values_are_not_listened_to(forward, check, captured_both_ways):
    captured_both_ways(net_of(forward), X, X.neg(), check=check)


def program_with_objects(x):
    return Pair(x.sin(), x).total


def test_a_function_may_be_the_program(plainly):
    captured = fxplug.trace(program_with_objects, (X,))
    assert plainly == [captured]
    torch.testing.assert_close(captured(X.neg()), program_with_objects(X.neg()))


class Returned:
    def __init__(self, value):
        self.value = value


def is_it_wide(x):
    return x * 2 if Pair(x).is_wide() else x


def test_what_is_asked_by_a_method_is_guarded(plainly):
    captured = fxplug.trace(is_it_wide, (X,))
    assert plainly == [captured]
    with pytest.raises(fxplug.GuardError):
        captured(torch.zeros(3, 3))


# -- what is listened to

SEEN = []


class Counting:
    made = 0
    values: typing.ClassVar[list] = []

    def __init__(self, value):
        self.value = value
        Counting.made += 1


class Sharing:
    values: typing.ClassVar[list] = []

    def __init__(self, value):
        self.value = value
        self.values.append(1)


class Answering:
    def __init__(self, value):
        self.value = value

    def __getattr__(self, name):
        return self.value + 1


class Setting:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value + 1)

    def __init__(self, value):
        self.value = value


class Described:
    class Field:
        def __get__(self, owner, kind=None):
            return owner.value + 1

    value_and_more = Field()

    def __init__(self, value):
        self.value = value


class Made:
    def __new__(cls, value):
        made = object.__new__(cls)
        made.value = value + 1
        return made


class Meta(type):
    def __call__(cls, value):
        return value + 1


class OfMeta(metaclass=Meta):
    pass


class Writing:
    def __init__(self, value):
        self.value = value

    def mark(self, target):
        target.seen = 1


class Putting:
    def __init__(self, value):
        self.value = value

    def put(self, value):
        self.value = value


class Rebinding:
    def __init__(self, value):
        self.value = value

    def put(self, target):
        self = target  # noqa: PLW0642 - that is the point
        self.value = 2


class Noting:
    def __init__(self, value):
        self.value = value
        SEEN.append(1)


class Closed:
    def __init__(self, value):
        self.value = value

    def __del__(self):
        SEEN.append(2)


class Derived(Returned):
    def __getattribute__(self, name):
        return super().__getattribute__(name) * 2


class Overridden(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = 1


class Property:
    def __init__(self, value):
        self.held = value

    @property
    def value(self):
        return self.held

    @value.setter
    def value(self, value):
        self.held = value + 1

    def set(self, value):
        self.value = value


class Comparing:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        SEEN.append(3)
        return True

    __hash__ = None


class Factory:
    calls = 0

    def __call__(self):
        SEEN.append(4)
        return []


@dataclasses.dataclass
class WithFactory:
    value: torch.Tensor
    parts: list = dataclasses.field(default_factory=Factory())


def counted(kind, name="__init__"):
    """A class with something around one of its functions."""
    function = vars(kind)[name]

    @functools.wraps(function)
    def around(*args, **options):
        SEEN.append(5)
        return function(*args, **options)

    setattr(kind, name, around)
    return kind


@counted
@dataclasses.dataclass
class WithMoreAround:
    value: torch.Tensor


@dataclasses.dataclass
class ComparedAround:
    value: torch.Tensor


counted(ComparedAround, "__eq__")


class ReplacedAround(typing.NamedTuple):
    value: torch.Tensor


counted(ReplacedAround, "_replace")


class SharingParts(typing.NamedTuple):
    value: torch.Tensor
    parts: list = []  # noqa: RUF012 - that is the point


SharingOthers = collections.namedtuple("SharingOthers", "value parts", defaults=[SEEN])  # noqa: PYI024


class Calling(typing.NamedTuple):
    value: torch.Tensor
    note: typing.Any = SEEN.append


class Rows:
    def __init__(self, value):
        self.value = value

    def __getitem__(self, number):
        return self.value[number]


def is_gone_through(self, x):
    return torch.stack([row * 2 for row in Rows(self.layer(x))])


def has_something_around_its_init(self, x):
    return WithMoreAround(self.layer(x)).value


def has_something_around_its_comparison(self, x):
    return self.layer(x) if ComparedAround(x) == ComparedAround(x) else x


def has_something_around_what_replaces(self, x):
    return ReplacedAround(x)._replace(value=self.layer(x)).value


def shares_a_default(self, x):
    found = SharingParts(self.layer(x))
    found.parts.append(1)
    return found.value * len(found.parts)


def shares_a_default_by_another_way(self, x):
    found = SharingOthers(self.layer(x))
    found.parts.append(1)
    return found.value


def calls_a_default(self, x):
    found = Calling(self.layer(x))
    found.note(1)
    return found.value


def counts_in_the_class(self, x):
    return Counting(self.layer(x)).value * Counting.made


def shares_a_list(self, x):
    return Sharing(self.layer(x)).value * len(Sharing(x).values)


def answers_for_what_it_lacks(self, x):
    return Answering(self.layer(x)).other


def sets_otherwise(self, x):
    return Setting(self.layer(x)).value


def has_descriptors(self, x):
    return Described(self.layer(x)).value_and_more


def is_made_otherwise(self, x):
    return Made(self.layer(x)).value


def is_of_another_metaclass(self, x):
    return OfMeta(self.layer(x))


def marks_the_module(self, x):
    Writing(x).mark(self)
    return self.layer(x) * self.seen


def calls_with_the_module(self, x):
    Putting.put(self, 2)
    return self.layer(x) * self.value


def calls_by_another_name(self, x):
    kind = Putting
    kind.put(self.layer, 2)
    return self.layer(x)


def binds_its_object_to_another(self, x):
    Rebinding(x).put(self.layer)
    return self.layer(x)


def notes_outside(self, x):
    return Noting(self.layer(x)).value


def is_closed(self, x):
    return Closed(self.layer(x)).value


def reads_otherwise(self, x):
    return Derived(self.layer(x)).value


def has_a_setter(self, x):
    found = Property(self.layer(x))
    found.set(x)
    return found.value


def compares_otherwise(self, x):
    return self.layer(x) if Comparing(x) == Comparing(x) else x


def has_another_factory(self, x):
    return WithFactory(self.layer(x)).value


def assigns_from_outside(self, x):
    found = Writing(x)
    found.value = self.layer(x)
    return found.value


def is_returned(self, x):
    return Returned(self.layer(x))


def is_handed_to_torch(self, x):
    return torch.add(self.layer(x), Returned(x).value, alpha=len(str(type(Returned(1)))) * 0 + 1)


def is_a_module(self, x):
    return self.layer(x) * Overridden().value


OTHERS = [
    is_gone_through,
    has_something_around_its_init,
    has_something_around_its_comparison,
    has_something_around_what_replaces,
    shares_a_default,
    shares_a_default_by_another_way,
    calls_a_default,
    counts_in_the_class,
    shares_a_list,
    answers_for_what_it_lacks,
    sets_otherwise,
    has_descriptors,
    is_made_otherwise,
    is_of_another_metaclass,
    marks_the_module,
    calls_with_the_module,
    calls_by_another_name,
    binds_its_object_to_another,
    notes_outside,
    is_closed,
    reads_otherwise,
    has_a_setter,
    compares_otherwise,
    has_another_factory,
    assigns_from_outside,
    is_returned,
    is_handed_to_torch,
    is_a_module,
]


@pytest.mark.parametrize("forward", OTHERS)
def test_objects_that_do_more_are_listened_to(forward, plainly):
    net = net_of(forward)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)  # What it changes elsewhere is told.
        captured = None
        with contextlib.suppress(fxplug.TraceError):  # It is said that it cannot be captured.
            captured = fxplug.trace(net, (X,))
    assert set(plainly) == {None}
    if captured is not None:
        found, expected = captured(X.neg()), net(X.neg())
        torch.testing.assert_close(getattr(found, "value", found), getattr(expected, "value", expected))


def reads_a_field_of_a_tensor(self, x):
    try:
        return x.first + Pair(x).first
    except AttributeError:
        return self.layer(x)


def test_a_field_that_a_tensor_is_asked_for_is_missed_there(plainly):
    net = net_of(reads_a_field_of_a_tensor)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X.neg()), net(X.neg()))


class Node:
    def __init__(self, node):
        self.node = node


def has_a_field_that_traced_values_have(self, x):
    found = Node(self.layer(x)).node
    try:
        x.node  # noqa: B018 - it is asked whether there is one
    except AttributeError:
        return found
    return x


def test_a_field_of_the_name_that_traced_values_have(plainly):
    net = net_of(has_a_field_that_traced_values_have)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X.neg()), net(X.neg()))


def doubled(x):
    yield x * 2


def reads_what_no_object_of_its_own_has(self, x):
    return self.layer(x) if doubled(x).gi_running else x


def test_attributes_of_other_objects_are_listened_to(plainly):
    net = net_of(reads_what_no_object_of_its_own_has)
    with contextlib.suppress(fxplug.TraceError):
        fxplug.trace(net, (X,))
    assert set(plainly) == {None}


SPOOFED = """
import dataclasses

def __create_fn__():
    def __eq__(self, other):
        seen.append(self.value)
        return True
    return __eq__

@dataclasses.dataclass
class Spoofed:
    value: object
"""


def test_what_only_looks_like_a_function_of_a_dataclass_is_none():
    namespace = {"__name__": __name__, "seen": []}
    exec(SPOOFED, namespace)  # What is run so has no file, as what dataclasses make.
    kind = namespace["Spoofed"]
    assert is_plain_class(kind)
    kind.__eq__ = namespace["__create_fn__"]()
    assert not is_plain_class(kind)


class Gone(Pair):
    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


def makes_one_that_changes(self, x):
    return Gone(self.layer(x)).total


def test_a_special_method_that_is_gone_is_not_looked_for(plainly, monkeypatch):
    net = net_of(makes_one_that_changes)
    fxplug.trace(net, (X,), check=False)
    monkeypatch.delattr(Gone, "__getattribute__")
    monkeypatch.setattr(Gone, "__getitem__", lambda self, number: self.first, raising=False)
    captured = fxplug.trace(net, (X,), check=False)
    assert plainly == [None, None]
    torch.testing.assert_close(captured(X.neg()), net.layer(X.neg()) + 2)


def test_a_method_that_binds_its_object_to_another_is_not_plain():
    # What is assigned to modules is heard of, too, so that no answer tells of it.
    assert reads_of_plain_method(Rebinding.put.__code__) is None
    assert reads_of_plain_method(Writing.mark.__code__) is None
    assert reads_of_plain_method(Pair.grow.__code__) is not None


def keeps_the_class(x):
    kind = Putting
    return kind(x).value


def calls_the_class(x):
    return Putting(x).value


def test_a_class_that_is_not_called_where_it_is_found_is_not_plain():
    parts = [
        plain_parts(function, None, own_code, with_methods=True, on_examples=True)
        for function in (keeps_the_class, calls_the_class)
    ]
    assert [one is None for one in parts] == [True, False]


@pytest.mark.parametrize(
    "kind", [int, list, nn.Linear, torch.Tensor, Exception, typing.Protocol, Meta, OfMeta]
)
def test_classes_that_are_not_plain(kind):
    assert not is_plain_class(kind)


@pytest.mark.parametrize("kind", [Pair, Scaled, Slotted, Features, Frozen, Ordered, WithMore, Named, Point])
def test_classes_that_are_plain(kind):
    assert is_plain_class(kind)


def test_a_class_of_which_an_object_was_copied_stays_plain():
    copy.deepcopy(Pair(1))
    assert is_plain_class(Pair)


def test_a_class_that_is_changed_is_looked_at_again(plainly, monkeypatch):
    net = net_of(holds_and_gives)
    fxplug.trace(net, (X,), check=False)
    monkeypatch.setattr(Pair, "__getattribute__", object.__getattribute__, False)
    captured = fxplug.trace(net, (X,), check=False)
    assert [one is None for one in plainly] == [False, True]
    torch.testing.assert_close(captured(X), net(X))
