"""Functions that stay calls: which calls are recorded, wherever they are made, and what is left behind."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import gc
import inspect
import itertools
import math
import operator
import pickle
import sys
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.fx
from torch import nn

import fxplug
from fxplug.capture import Proxy, Tracer, wrap
from fxplug.capture.shims import shim_for
from fxplug.errors import TraceError

pytestmark = pytest.mark.usefixtures("pristine_module_class")


@wrap
def clip(x, limit: float = 1.0, *, scale=2):
    """Return something that depends on the values."""
    return x * scale if x.sum() > limit else x


def pair(first, second=None):
    if first.sum() > 0:
        return first
    return second


wrap("pair")


numbers = itertools.count()


@pytest.fixture
def module():
    """(source) -> a new Python module with that source; it and what it wrapped are gone after the test."""
    made = []

    def make(source, name=None):
        name = name or f"module_of_a_test_{next(numbers)}"
        python_module = sys.modules[name] = types.ModuleType(name)
        made.append(name)
        exec(compile(source, f"/tests/{name}.py", "exec"), vars(python_module))
        return python_module

    tables = [fxplug.capture.wrapping._names, torch.fx._symbolic_trace._wrapped_fns_to_patch]
    before = [dict(table) for table in tables]
    objects = dict(fxplug.capture.wrapping._objects)
    yield make
    for table, former in zip([*tables, fxplug.capture.wrapping._objects], [*before, objects], strict=True):
        table.clear()
        table.update(former)
    for name in made:
        sys.modules.pop(name, None)


def calls(graph):
    return [node.target for node in graph.find_nodes(op="call_function")]


def while_a_trace_runs(work, tracer=None):
    """Do something in another thread in the middle of a trace, and return what comes of it."""
    results = []

    def program(x):
        with ThreadPoolExecutor(1) as pool:
            results.append(pool.submit(work).result())
        return x

    (tracer or Tracer()).trace(program)
    return results[0]


# -- which calls are recorded


def test_decorated_function_stays_a_call():
    graph = Tracer().trace(lambda x: clip(x, scale=3) + 1)
    node = graph.find_nodes(op="call_function", target=clip)[0]

    assert [argument.name for argument in node.args] == ["x"]
    assert node.kwargs == {"scale": 3}
    assert len(graph.nodes) == 4


def test_function_that_is_wrapped_by_name_stays_a_call():
    assert calls(Tracer().trace(lambda x: pair(x, 1))) == [pair]


def test_name_may_be_wrapped_before_it_is_defined(module):
    other = module(
        "import fxplug\nfxplug.wrap('later')\ndef later(x):\n    return x if x.sum() > 0 else -x\n"
    )
    assert calls(Tracer().trace(lambda x: other.later(x + 1)))[1:] == [other.later]


class Holder:
    def __init__(self, function):
        self.function = function


def test_call_is_recorded_wherever_the_function_is_held(module):
    other = module("def run(function, x):\n    return function(x)\n")
    table, holder = {"clip": clip}, Holder(clip)

    def program(x, function=clip):
        local = clip
        x = table["clip"](holder.function(function(local(x))))
        (x,) = map(clip, [x])
        return functools.partial(clip, limit=2)(other.run(clip, x))

    assert calls(Tracer().trace(program, {"function": clip})).count(clip) == 7


def test_function_that_another_module_imported_stays_a_call(module):
    first = module(
        "import fxplug\n@fxplug.wrap\ndef leaf(x):\n    return x if x.sum() > 0 else -x\n", "first_of_two"
    )
    second = module("from first_of_two import leaf as renamed\ndef program(x):\n    return renamed(x)\n")
    assert calls(Tracer().trace(second.program)) == [first.leaf]


def test_method_stays_a_call_with_its_module_as_an_argument(capture):
    class Inner(nn.Module):
        @wrap
        def helper(self, x):
            return x * 2 if x.sum() > 0 else x

        def forward(self, x):
            return self.helper(x)

    root = nn.Sequential(Inner())
    captured = capture(root)
    assert calls(captured.graph) == [Inner.helper]
    assert [node.target for node in captured.graph.find_nodes(op="get_attr")] == ["0"]
    x = torch.tensor([1.0, -3.0])
    torch.testing.assert_close(captured(x), root(x))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: pair([x]),
        lambda x: pair((1, [x])),
        lambda x: pair({"k": [x]}),
        lambda x: pair(1, second={"k": x}),
        lambda x: pair(slice(x, None)),
        lambda x: pair(x.shape),
    ],
    ids=["list", "tuple", "dict", "keyword", "slice", "attribute"],
)
def test_traced_value_may_be_deep_inside_an_argument(call):
    assert pair in calls(Tracer().trace(call))


def test_call_without_a_traced_value_is_made():
    seen = []

    def program(x):
        seen.append(clip(torch.ones(2)))
        return x

    assert calls(Tracer().trace(program)) == []
    torch.testing.assert_close(seen[0], torch.full((2,), 2.0))


def test_call_outside_of_a_trace_is_made_with_proxies_too():
    proxy = Proxy(fxplug.Graph().placeholder("x"))
    assert wrap(lambda x: [x])(proxy) == [proxy]


def test_body_of_a_function_that_is_itself_traced_is_entered():
    @wrap
    def recursive(x, depth):
        return x if depth == 0 else recursive(x + 1, depth - 1)

    graph = Tracer().trace(recursive, {"depth": 2})
    assert calls(graph)[-2:] == [operator.add, recursive]


def test_body_of_a_root_with_starred_parameters_is_entered():
    @wrap
    def program(*values):
        return values[0] + 1

    assert "program" not in str(Tracer().trace(program))


def test_node_remembers_the_line_of_the_call():
    def program(x):
        y = x + 1
        return clip(y)  # the line

    node = Tracer().trace(program).find_nodes(op="call_function", target=clip)[0]
    assert node.origins[0].source().text == "return clip(y)  # the line"
    assert node.origins[0].caller is None


def test_error_inside_a_call_that_is_made_shows_the_line_in_the_function():
    with pytest.raises(TraceError, match=r"if x\.sum\(\) > limit"):
        Tracer().trace(clip)


def test_captured_call_is_made_when_the_graph_runs(capture):
    x = torch.tensor([-3.0, 1.0])
    module = capture(lambda x: clip(x, limit=-5))
    torch.testing.assert_close(module(x), x * 2)


def test_capturing_a_captured_module_again_gives_the_same_graph(capture, module):
    other = module(
        "import math, fxplug\nfrom math import sqrt\nfxplug.wrap('len')\nfxplug.wrap('int')\n"
        "fxplug.wrap('sqrt')\ndef program(x):\n    return math.floor(sqrt(len(x))) + int(x.size(0) / 2)\n"
    )

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = first

        def forward(self, x):
            return self.inner(x) + 1

    def helper(x):
        return x + 1

    first = capture(lambda x: clip(helper(other.program(x))), tracer=Tracer(autowrap_functions=(helper,)))
    assert {clip, helper, math.floor, math.sqrt, len, int} <= set(calls(first.graph))
    assert str(capture(first, tracer=Tracer(autowrap_modules=())).graph) == str(first.graph)
    assert calls(capture(Root()).graph)[:-1] == calls(first.graph)


# -- what is not written in Python


BUILTINS = """
import fxplug
from math import sqrt
fxplug.wrap("len")
fxplug.wrap("int")
fxplug.wrap("sqrt")
class Even(int): pass
def program(x):
    return len(x), int(x.size(0)), sqrt(x.size(1)), len([1, 2]), int("3")
def questions():
    return (
        isinstance(3, int), isinstance("3", (str, int)), issubclass(bool, int), type(3) == int, {int: 1}[type(3)],
        int.from_bytes(b"\\x01", "big"), int("7"), repr(int), int | None, len("abc"), int.__name__,
        type("Odd", (int,), {})(5) + 1, isinstance(Even(4), int), [*map(int, "12")], sqrt(4),
    )
"""


def test_builtins_are_recorded_by_name(module):
    other = module(BUILTINS)
    graph = Tracer().trace(other.program)

    assert [target for target in calls(graph) if target in {len, int, math.sqrt}] == [len, int, math.sqrt]
    assert graph.output_node().args[0][3:] == (2, 3)


def test_builtins_of_python_are_never_touched(module):
    module(BUILTINS)
    before = dict(vars(builtins))
    assert while_a_trace_runs(lambda: dict(vars(builtins))) == before


def test_globals_are_as_before_after_a_trace(module):
    other = module(BUILTINS)
    before = dict(vars(other))
    Tracer().trace(other.program)
    assert vars(other) == before
    with pytest.raises(TraceError):
        Tracer().trace(lambda x: x if x else -x)
    assert vars(other) == before
    assert vars(other).keys() == before.keys()


def test_stand_ins_answer_other_threads_like_what_they_stand_for(module):
    other = module(BUILTINS)
    expected = other.questions()
    assert while_a_trace_runs(other.questions) == expected
    assert while_a_trace_runs(lambda: other.int is int) is False
    assert other.questions() == expected


def test_stand_in_that_is_passed_on_is_recorded_as_what_it_stands_for(module):
    other = module(
        "import fxplug\nfxplug.wrap('len')\n@fxplug.wrap\ndef leaf(x, key, kind):\n    return x\n"
        "fxplug.wrap('int')\ndef program(x):\n    return leaf(x, len, kind=[int])\n"
    )
    node = Tracer().trace(other.program).find_nodes(op="call_function")[0]
    assert node.args[1] is len
    assert node.kwargs["kind"] == [int]
    assert node.kwargs["kind"][0] is int


def test_builtin_that_one_module_wrapped_is_what_it_was_in_others(module):
    module("import fxplug\nfxplug.wrap('len')\n")
    seen = []

    def program(x):
        seen.append(len([x, x]))
        return x + 1

    assert len not in calls(Tracer().trace(program))
    assert seen == [2]
    with pytest.raises(TraceError, match="FXP-T003"):
        Tracer().trace(lambda x: len(x))  # noqa: PLW0108 - the function itself is no program


def test_function_that_is_not_written_in_python_may_be_passed_itself(module):
    other = module(
        "import cmath, fxplug\nfxplug.wrap(cmath.exp)\nfxplug.wrap(len)\ndef program(x):\n    return len(x)\n"
    )
    assert calls(Tracer().trace(other.program)) == [len]
    assert calls(Tracer(autowrap_modules=()).trace(lambda x: -other.cmath.exp(x)))[:1] == [other.cmath.exp]
    assert type(other.cmath.exp) is types.BuiltinFunctionType


def test_what_others_put_into_a_module_while_a_trace_runs_stays(module):
    other = module("import fxplug\nfrom math import sqrt\nfxplug.wrap('len')\nfxplug.wrap('sqrt')\n")

    def program(x):
        other.len = other.sqrt = abs
        return x

    Tracer().trace(program)
    assert (other.len, other.sqrt) == (abs, abs)


# -- what is left behind, and what others see meanwhile


def test_function_is_untouched_after_a_trace():
    code, attributes = clip.__code__, dict(vars(clip))
    Tracer().trace(lambda x: -clip(x))
    assert clip.__code__ is code
    assert vars(clip) == attributes
    with pytest.raises(ZeroDivisionError):
        Tracer().trace(lambda x: 1 // 0)
    assert clip.__code__ is code


def test_decorator_gives_the_function_itself():
    def function(x):
        return x

    assert wrap(function) is function


def test_function_is_itself_for_other_threads_while_a_trace_runs():
    signature = inspect.signature(clip)

    def look():
        return (
            inspect.signature(clip),
            clip.__doc__,
            pickle.loads(pickle.dumps(clip)) is clip,
            inspect.getsource(clip),
            clip(torch.ones(2)).tolist(),
        )

    assert while_a_trace_runs(look) == (
        signature,
        "Return something that depends on the values.",
        True,
        inspect.getsource(clip),
        [2.0, 2.0],
    )
    assert pickle.loads(pickle.dumps(clip)) is clip


def test_local_function_is_not_kept_alive():
    def make():
        offset = 1

        @wrap
        def function(x):
            return function(x - offset) if x.sum() > 0 else x

        Tracer().trace(lambda x: -function(x))
        return weakref.ref(function)

    reference = make()
    gc.collect()
    assert reference() is None


def test_many_threads_trace_and_call_wrapped_functions(module):
    other = module(BUILTINS)
    serial, expected = str(Tracer().trace(other.program)), other.questions()
    ended, problems = threading.Event(), []

    def call():
        while not ended.is_set():
            if other.questions() != expected or clip(torch.ones(1)).item() != 1:
                problems.append("a call differs")

    def trace(_):
        return str(Tracer().trace(other.program))

    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as pool:
            running = [pool.submit(call) for _ in range(2)]
            graphs = set(pool.map(trace, range(40)))
            ended.set()
            for result in running:
                result.result()
    finally:
        sys.setswitchinterval(former)
    assert graphs == {serial}
    assert problems == []
    assert "int" not in vars(other)


# -- a tracer's own


def test_functions_of_a_tracer_stay_calls_for_this_tracer_alone():
    def helper(x):
        return x * 2

    def program(x):
        return helper(x)

    seen = []

    def nested(x):
        seen.append(calls(Tracer().trace(program)))
        return helper(x)

    tracer = Tracer(autowrap_functions=(helper,))
    assert calls(tracer.trace(program)) == [helper]
    assert helper not in calls(Tracer().trace(program))
    assert calls(tracer.trace(nested)) == [helper]
    assert helper not in seen[0]


def test_two_tracers_at_once_keep_what_is_theirs():
    def helper(x):
        return x * 2

    seen, first = [], threading.Lock()

    def program(x):
        if first.acquire(blocking=False):
            with ThreadPoolExecutor(1) as pool:
                seen.append(pool.submit(lambda: calls(Tracer().trace(program))).result())
        return helper(x)

    assert calls(Tracer(autowrap_functions=(helper,)).trace(program)) == [helper]
    assert helper not in seen[0]


def test_functions_of_math_stay_calls_by_default(module):
    other = module("import math\nfrom math import ceil\ndef run(x):\n    return math.sqrt(ceil(x))\n")
    imported = module("import math\ndef helper(x):\n    return math.floor(x)\n")

    def program(x):
        return math.cos(imported.helper(x.shape[0]))

    assert [target for target in calls(Tracer().trace(program)) if target.__module__ == "math"] == [
        math.floor,
        math.cos,
    ]
    assert calls(Tracer().trace(other.run)) == [math.ceil, math.sqrt]
    assert type(math.sqrt) is types.BuiltinFunctionType
    with pytest.raises(TraceError):
        Tracer(autowrap_modules=()).trace(program)


def test_functions_of_a_python_module_stay_calls(module):
    helpers = module("def double(x):\n    return x * 2\ndef _hidden(x):\n    return x * 3\n")
    user = module(
        f"from {helpers.__name__} import double, _hidden\ndef program(x):\n    return double(_hidden(x))\n"
    )
    assert calls(Tracer(autowrap_modules=(helpers,)).trace(user.program)) == [
        operator.mul,
        helpers.double,
    ]


def test_builtin_among_the_functions_of_a_tracer():
    def program(x):
        return len(x)

    assert calls(Tracer(autowrap_functions=(len,)).trace(program)) == [len]


def test_trace_of_torch_fx_records_its_own_wrapped_functions_inside_a_trace(module):
    other = module(
        "import torch.fx\n@torch.fx.wrap\ndef leaf(x):\n    return x if x.sum() > 0 else -x\n"
        "def program(x):\n    return leaf(x)\n"
    )
    inner = []

    def outer(x):
        inner.append(torch.fx.Tracer().trace(other.program))
        return other.program(x)

    assert calls(Tracer().trace(outer)) == [other.leaf]
    assert [node.op for node in inner[0].nodes] == ["placeholder", "call_function", "output"]


# -- what libraries told torch.fx


TOLD = """
from math import sqrt
from {package} import wrap

def helper(x, *, k=1):
    return x if x.sum() > 0 else k

wrap("helper")
wrap("len")
wrap("sqrt")

@wrap
def decorated(x, pairs):
    return x if x else pairs

def program(x, y):
    a = helper(x, k=[y, 2])
    b = decorated(3, pairs=[(y, 1)])
    c = decorated(0, [])
    return a, b, c, len(x), sqrt(y), len("ab")
"""


@pytest.mark.parametrize("package", ["torch.fx", "fxplug"])
def test_graph_equals_that_of_torch_fx(module, package):
    expected = module(TOLD.format(package="torch.fx"))
    ours = module(TOLD.format(package=package))
    reference = torch.fx.Tracer().trace(expected.program)
    graph = Tracer().trace(ours.program)

    def described(graph):
        return [
            (
                node.op,
                node.name,
                getattr(node.target, "__name__", node.target),
                str(node.args),
                str(node.kwargs),
            )
            for node in graph.nodes
        ]

    assert described(graph) == described(reference)
    assert [node.meta.get("is_wrapped") for node in graph.nodes] == [
        node.meta.get("is_wrapped") for node in reference.nodes
    ]


def test_name_that_a_library_told_torch_fx_and_does_not_have_is_ignored(module):
    module("import torch.fx\ntorch.fx.wrap('nothing')\n")
    assert calls(Tracer().trace(lambda x: x)) == []


def test_methods_that_torch_fx_keeps_as_calls_are_kept(monkeypatch):
    class Boxes:
        def area(self, scale):
            return scale if scale.sum() > 0 else 0

        def __len__(self):
            return 3

    own = vars(Boxes)["area"]
    code = own.__code__
    monkeypatch.setattr(
        torch.fx._symbolic_trace,
        "_wrapped_methods_to_patch",
        [
            (Boxes, "area"),
            (torch.Tensor, "take"),
        ],  # No special method: Python never takes back the slots of those.
    )
    boxes = Boxes()
    tensor = torch.arange(3)
    seen = []

    def program(x):
        seen.append((boxes.area(torch.ones(1)), tensor.take(torch.tensor(1))))
        return tensor.take(x)

    graph = Tracer().trace(program)
    assert [node.target for node in graph.find_nodes(op="call_method")] == ["take"]
    assert seen[0][1].item() == 1
    assert vars(Boxes)["area"] is own
    assert own.__code__ is code
    assert "take" not in vars(torch.Tensor)
    with pytest.raises(TraceError, match="Boxes"):
        Tracer().trace(lambda x: -boxes.area(x))  # Recorded, and a Boxes is nothing that a graph can hold.


# -- errors


class Registered(type):
    """A metaclass."""


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (3, r"Cannot wrap 3: it is a int, which cannot be called\. Pass a function, or the name of one\."),
        (nn.ReLU(), r"Cannot wrap ReLU\(\): it is a module\. Make it a leaf \(leaf_modules"),
        (nn.ReLU().forward, r"it is a bound method\. Wrap the function behind it, ReLU\.forward\."),
        (
            Registered("Kind", (), {}),
            r"it is a class with a metaclass, Registered\. Wrap a function that makes",
        ),
    ],
    ids=["number", "module", "method", "class"],
)
def test_what_cannot_be_kept_is_refused(what, message):
    with pytest.raises(TraceError, match=message) as caught:
        wrap(what)
    assert caught.value.code == "FXP-T020"


def test_name_inside_a_function_is_refused():
    with pytest.raises(
        TraceError, match=r"Cannot wrap 'clip' by its name inside 'test_name_inside.*pass the function itself"
    ):
        wrap("clip")


def test_name_that_does_not_exist_is_refused_when_a_trace_starts(module):
    other = module("import fxplug\nfxplug.wrap('mispelt')\n")
    with pytest.raises(
        TraceError, match=rf"module '{other.__name__}' called wrap\('mispelt'\), but has no such name"
    ):
        Tracer().trace(lambda x: x)
    other.mispelt = 3
    with pytest.raises(
        TraceError, match=r"called wrap\('mispelt'\), which is 3: it is a int, which cannot be called"
    ):
        Tracer().trace(lambda x: x)
    other.mispelt = abs
    assert len(Tracer().trace(lambda x: x).nodes) == 2


def test_name_of_a_module_that_is_still_being_imported_is_waited_for(module):
    other = module("import fxplug\nfxplug.wrap('later')\n")
    other.__spec__ = types.SimpleNamespace(_initializing=True)
    assert len(Tracer().trace(lambda x: x).nodes) == 2


def test_name_of_a_module_that_is_gone_is_nobodys_concern(module):
    other = module("import fxplug\nfxplug.wrap('mispelt')\n")
    del sys.modules[other.__name__]
    assert len(Tracer().trace(lambda x: x).nodes) == 2


def test_function_of_a_tracer_that_cannot_be_kept_is_refused():
    with pytest.raises(TraceError, match=r"Cannot keep calls of ReLU\(\): it is a module"):
        Tracer(autowrap_functions=(nn.ReLU(),)).trace(lambda x: x)


# -- where a traced value may hide


@dataclasses.dataclass(frozen=True)
class Parcel:
    value: object
    other: int = 0


@fxplug.wrap
def unpacked(parcel):
    return parcel.value * 2


@fxplug.wrap
def counted(values):
    return len(values)


def test_a_traced_value_in_a_dataclass_is_found():
    module = fxplug.symbolic_trace(lambda x: unpacked(Parcel(x)))

    assert [node.target for node in module.graph.nodes if node.meta.get("is_wrapped")] == [unpacked]
    assert module(torch.ones(1)).item() == 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x: counted({x}),
        lambda x: counted(frozenset([x])),
        lambda x: counted({x: 1}),
        lambda x: counted([{(1, x): 1}]),
    ],
    ids=["set", "frozenset", "key", "inside a key"],
)
def test_a_traced_value_where_no_graph_can_hold_it_is_refused(program):
    with pytest.raises(
        TraceError, match=r"Cannot record a (value of type|dict)|is looked up as a key.*FXP-T043"
    ):
        fxplug.symbolic_trace(program)


def test_exceptions_cannot_be_wrapped():
    with pytest.raises(TraceError, match=r"it is an exception.*FXP-T020"):
        fxplug.wrap(LookupError)


def test_stand_in_of_a_class_passes_assigned_attributes_on():
    class Counter:
        made = 0

    shim = shim_for(Counter, always=True)
    shim.made += 1
    shim.extra = 1
    assert (Counter.made, Counter.extra) == (1, 1)
    del shim.extra
    assert not hasattr(Counter, "extra")


# -- functions of libraries that are kept for torch.fx, on example inputs

LEVELS = """
import torch.fx

class Levels:
    def __init__(self, top):
        self.top = top

    def clip(self, x):
        return x.clamp(max=self.top)

@torch.fx.wrap
def levels(x):
    return Levels(x.shape[0] + 1), x.shape[0]

@torch.fx.wrap
def clip(x, levels):
    return levels.clip(x)

@torch.fx.wrap
def kept(x):
    return x + 1

def program(x):
    found, count = levels(x)
    return clip(kept(x), found) * count
"""


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_functions_that_hide_objects_from_torch_fx_are_looked_through_on_examples(module, mode):
    made = module(LEVELS)
    captured = fxplug.trace(made.program, (torch.tensor([1.0, 5.0]),), mode=mode)

    assert made.kept in calls(captured.graph)
    assert not {made.levels, made.clip} & set(calls(captured.graph))
    for x in (torch.tensor([1.0, 5.0]), torch.tensor([9.0, 2.0, 3.0, 4.0, 5.0])):
        assert torch.equal(captured(x), made.program(x))


@pytest.mark.parametrize(("mode", "code"), [("shape", "FXP-T066"), ("value", "FXP-T063")])
def test_what_stands_against_looking_through_a_function_for_torch_fx_is_said(module, mode, code):
    pytest.importorskip("numpy")
    made = module(LEVELS.replace("return Levels(x.shape[0] + 1)", "return Levels(x.numpy().max())"))
    with pytest.raises(TraceError, match="numpy") as caught:
        fxplug.trace(made.program, (torch.tensor([1.0, 5.0]),), mode=mode)

    assert caught.value.code == code


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_functions_that_a_user_keeps_are_not_looked_through(module, mode):
    made = module(LEVELS)
    fxplug.wrap(made.levels)
    try:
        with pytest.raises(TraceError) as caught:
            fxplug.trace(made.program, (torch.tensor([1.0, 5.0]),), mode=mode)
    finally:
        fxplug.capture.wrapping._functions.discard(made.levels)

    assert caught.value.code == "FXP-T062"
