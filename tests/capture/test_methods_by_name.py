"""Functions that a program calls by names that stand elsewhere than where it finds their objects."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import nn

import fxplug
from fxplug import TraceError
from fxplug.capture.examples.tracer import ExampleTracer

count = 0


def step() -> int:
    global count  # noqa: PLW0603 - state that is in no module is what this is about
    count += 1
    return count


def stepped(x: torch.Tensor) -> torch.Tensor:
    return x * step()


class Acting:
    """Its objects keep state outside of all modules."""

    def act(self, x):
        return x * step()

    @property
    def value(self):
        return step()


class Inherited(Acting):
    pass


class Calling:
    def __call__(self, x):
        return x * step()


class CallingToo(Calling):
    pass


class Counted:
    def __init__(self):
        self.number = step()


class CountedToo(Counted):
    def __init__(self):
        super().__init__()
        self.other = 1


class CountedInNew:
    def __new__(cls):
        found = super().__new__(cls)
        found.number = step()
        return found


class Kind(type):
    def __call__(cls, *args: Any):
        made = super().__call__(*args)
        made.number = step()
        return made


class OfKind(metaclass=Kind):
    number = 0


class Pair(NamedTuple):
    one: int

    def act(self, x):
        return x * step()


class PairToo(Pair):
    pass


class Entered:
    def __enter__(self):
        return step()

    def __exit__(self, *_: object):
        return None


class EnteredToo(Entered):
    pass


class Registry:
    known: dict[str, Any] = {"stepped": stepped}  # noqa: RUF012 - it belongs to the class

    @classmethod
    def get(cls, name):
        return cls.known[name]


class Holder:
    def __init__(self):
        self.inner, self.function, self.table = Acting(), stepped, {"a": [stepped]}


KINDS = {"acting": Inherited, "calling": CallingToo}
HELD = Holder()
MAKE = functools.partial(Acting)


def inherited(x):
    return Inherited().act(x)


def inherited_call(x):
    return CallingToo()(x)


def inherited_maker(x):
    return x * CountedToo().number


def made_by_new(x):
    return x * CountedInNew().number


def made_by_its_class(x):
    return x * OfKind().number


def named_tuple(x):
    return PairToo(1).act(x)


def inherited_context(x):
    with EnteredToo() as number:
        return x * number


def static(x):
    return Registry.get("stepped")(x)


def class_in_a_table(x):
    return KINDS["acting"]().act(x)


def called_class_in_a_table(x):
    return KINDS["calling"]()(x)


def class_in_a_partial(x):
    return MAKE().act(x)


def _make():
    return Inherited()


def made_elsewhere(x):
    return _make().act(x)


def _act_on(thing, x):
    return thing.act(x)


def handed_on(x):
    return _act_on(HELD.inner, x)


def _call_function_of(holder, x):
    return holder.function(x)


def function_of_what_is_handed_on(x):
    return _call_function_of(HELD, x)


def _call_in_table_of(holder, x):
    return holder.table["a"][0](x)


def table_of_what_is_handed_on(x):
    return _call_in_table_of(HELD, x)


def _value_of(thing):
    return thing.value


def property_of_what_is_handed_on(x):
    return x * _value_of(Inherited())


PARTS = {"a": functools.partial(stepped), "b": [functools.partial(HELD.inner.act)]}


def partial_in_a_table(x):
    return PARTS["a"](x)


def partial_of_a_method_in_a_list(x):
    return PARTS["b"][0](x)


class Settings:
    def __init__(self):
        self.calling, self.entered = CallingToo(), EnteredToo()


SETTINGS = Settings()


def _call_setting_of(settings, x):
    return settings.calling(x)


def called_object_of_what_is_handed_on(x):
    return _call_setting_of(SETTINGS, x)


def _enter_setting_of(settings, x):
    with settings.entered as number:
        return x * number


def context_of_what_is_handed_on(x):
    return _enter_setting_of(SETTINGS, x)


def class_in_a_closure():
    class Local:
        def act(self, x):
            return x * step()

    return lambda x: Local().act(x)


class Block(nn.Module):
    def act(self, x):
        return x * step()

    def forward(self, x):
        return x


class HandsOnAModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return _act_on(self.block, x)


class HandsOnModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block()])

    def forward(self, x):
        for block in self.blocks:
            x = _act_on(block, x)
        return x


class PicksAModule(HandsOnModules):
    def pick(self):
        return self.blocks[0]

    def forward(self, x):
        return self.pick().act(x)


class HandsOnAnObject(nn.Module):
    def __init__(self):
        super().__init__()
        self.helper = Holder()

    def forward(self, x):
        return _call_function_of(self.helper, x)


class HoldsAClass(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = Inherited

    def forward(self, x):
        return self.kind().act(x)


class HasAClass(nn.Module):
    kind = Inherited

    def forward(self, x):
        return self.kind().act(x)


FUNCTIONS = [
    *(
        inherited,
        inherited_call,
        inherited_maker,
        made_by_new,
        made_by_its_class,
        named_tuple,
        inherited_context,
    ),
    *(static, class_in_a_table, called_class_in_a_table, class_in_a_partial, made_elsewhere, handed_on),
    *(function_of_what_is_handed_on, table_of_what_is_handed_on, property_of_what_is_handed_on),
    *(partial_in_a_table, partial_of_a_method_in_a_list, called_object_of_what_is_handed_on),
    context_of_what_is_handed_on,
]
MODULES = [HandsOnAModule, HandsOnModules, PicksAModule, HandsOnAnObject, HoldsAClass, HasAClass]
MAKERS = [
    *(pytest.param(lambda function=function: function, id=function.__name__) for function in FUNCTIONS),
    *(pytest.param(kind, id=kind.__name__) for kind in (*MODULES, class_in_a_closure)),
]


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("make", MAKERS)
def test_state_outside_of_modules_is_found_behind_any_name(make, mode):
    with pytest.raises(TraceError) as refused:
        fxplug.trace(make(), None if mode == "symbolic" else (torch.ones(2),), mode=mode, check=False)
    assert refused.value.code == "FXP-T055"
    assert "count" in str(refused.value)


class AsksForTheClass(nn.Module):
    def act(self, x):
        return x * 2 if type(x) is torch.Tensor else x * 3

    def forward(self, x):
        return x


class HandsOnOneThatAsks(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = AsksForTheClass()

    def forward(self, x):
        return _act_on(self.block, x)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_question_for_a_class_behind_a_name_elsewhere_is_answered(mode):
    captured = fxplug.trace(HandsOnOneThatAsks(), (torch.ones(2),), mode=mode, check=False)

    assert captured(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_a_question_for_a_class_behind_a_name_elsewhere_is_refused_without_examples():
    with pytest.raises(TraceError) as refused:
        fxplug.symbolic_trace(HandsOnOneThatAsks())
    assert refused.value.code == "FXP-T040"


class Resizing(nn.Module):
    def shrink(self, x):
        return x[: int(x.shape[0] * 0.5)]

    def forward(self, x):
        return x


def test_conversions_behind_a_name_elsewhere_are_part_of_the_graph():
    class HandsOn(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Resizing()

        def forward(self, x):
            return _shrink_by(self.block, x)

    captured = fxplug.symbolic_trace(HandsOn())

    assert captured(torch.ones(6)).shape == (3,)
    assert captured(torch.ones(9)).shape == (4,)


def _shrink_by(block, x):
    return block.shrink(x)


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("name", ["torch_tools", "numpy_like", "fx"])
def test_packages_whose_names_begin_like_those_of_libraries_are_looked_at(name, mode, monkeypatch):
    source = """
count = 0

class Helper:
    def act(self, x):
        global count
        count += 1
        return x * count

HELPER = Helper()
"""
    tools = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), vars(tools))
    monkeypatch.setitem(sys.modules, name, tools)
    monkeypatch.setitem(globals(), "tools", tools)

    tools.inner = types.ModuleType(f"{name}.inner")
    tools.inner.around, tools.inner.call = tools, tools.HELPER.act

    for program in (_by_tools, _by_inner_tools):
        with pytest.raises(TraceError) as refused:
            fxplug.trace(program, None if mode == "symbolic" else (torch.ones(2),), mode=mode, check=False)
        assert refused.value.code == "FXP-T055"


def _by_tools(x):
    return _act_on(tools.HELPER, x)  # noqa: F821 - the test puts it there


def _by_inner_tools(x):
    return tools.inner.around.inner.call(x)  # noqa: F821 - as above


class HoldsTablesOfItsOwn:
    """Its attributes are called as those of modules are."""

    def __init__(self):
        self._modules, self._parameters, self._buffers = {"one", "two"}, 3, None

    def act(self, x):
        return x * len(self._modules)


TABLES = HoldsTablesOfItsOwn()


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_an_object_may_have_attributes_called_like_the_tables_of_modules(mode):
    captured = fxplug.trace(_act_on_tables, None if mode == "symbolic" else (torch.ones(2),), mode=mode)

    assert captured(torch.ones(2)).tolist() == [2.0, 2.0]


def _act_on_tables(x):
    return TABLES.act(x)


class Linked:
    """One of many objects that all lead to one another."""

    value = 2


def test_many_objects_that_lead_to_one_another_are_looked_at_once():
    objects = [Linked() for _ in range(3000)]
    for number, one in enumerate(objects):
        one.next = objects[(number * 7 + 1) % len(objects)]
        one.others = [objects[(number * step) % len(objects)] for step in range(1, 10)]
    first = objects[0]

    captured = fxplug.trace(lambda x: _through_links(first, x), (torch.ones(2),))

    assert captured(torch.ones(2)).tolist() == [2.0, 2.0]


def _through_links(thing, x):
    return x * thing.next.others[0].next.value


def test_objects_that_say_to_be_tensors_end_no_process():
    lying = mock.Mock(spec=torch.Tensor)

    captured = fxplug.trace(lambda x: x * 2 if lying is not None else x, (torch.ones(2),))

    assert captured(torch.ones(2)).tolist() == [2.0, 2.0]


def test_what_a_constructor_calls_by_name_is_no_method_of_the_root(monkeypatch):
    reached = []
    hear = ExampleTracer.on_function_reached
    monkeypatch.setattr(
        ExampleTracer,
        "on_function_reached",
        lambda self, function, *rest: (reached.append(function), hear(self, function, *rest))[1],
    )

    class Named:
        def __init__(self):
            super().__init__()
            self.name = 2

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.number = 3 * step()

        def forward(self, x):
            return x * Named().name

    captured = fxplug.trace(Root(), (torch.ones(2),))

    assert captured(torch.ones(2)).tolist() == [2.0, 2.0]
    assert Named.__init__ in reached
    assert Root.__init__ not in reached
