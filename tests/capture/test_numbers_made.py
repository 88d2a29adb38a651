"""``int(...)`` and ``float(...)`` of what hangs on the inputs are part of the graph, if nothing needs the classes."""

import copy
import functools
import importlib
import math
import pickle
import sys
import types

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture import wrapping

MODES = ["symbolic", "shape", "value"]


def captured_in(mode, program, *inputs):
    return fxplug.symbolic_trace(program) if mode == "symbolic" else fxplug.trace(program, inputs, mode=mode)


def halves(x):
    columns = int(x.shape[1] * 0.5)
    return x[:, :columns] * float(x.shape[0]), torch.zeros(int(x.shape[0]), columns)


def squares(x):
    side = int(math.sqrt(x.numel()))
    return x.reshape(side, -1), x * float(side) / int(x.dim())


def windows(x):
    parts = x.view(x.shape[0], x.shape[1] // 2, 2).reshape(-1, 2)
    rows = int(parts.shape[0] / (x.shape[1] / 2))
    return parts.view(rows, -1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", [halves, squares, windows])
def test_sizes_that_are_made_whole_stay_sizes(mode, program):
    captured = captured_in(mode, program, torch.rand(2, 8))
    assert not [guard for guard in getattr(captured, "guards", ()) if "int(" in guard.text]
    again = [copy.deepcopy(captured), pickle.loads(pickle.dumps(captured))]
    for made in (captured, *again):
        for sizes in ((2, 8), (4, 4), (8, 2)):
            x = torch.rand(*sizes)
            torch.testing.assert_close(made(x), program(x))


@pytest.mark.parametrize("mode", ["symbolic", "value"])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * float(x.max()) + int(x.sum() * 10),
        lambda x: x[: int(x.argmin()) + 1].sum(),
        lambda x: x + float(x.sum() > 1) + int(x.isnan().any()),
    ],
    ids=["floats", "index", "truths"],
)
def test_numbers_of_tensors_are_those_of_each_call(mode, program):
    captured = captured_in(mode, program, torch.tensor([0.25, 0.5, 3.0]))
    for values in ([0.25, 0.5, 3.0], [9.0, -1.5, 0.0], [0.0, 0.0, 0.0]):
        x = torch.tensor(values)
        torch.testing.assert_close(captured(x), program(x))


@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_what_cannot_be_made_a_number_is_an_error_as_in_eager(mode):
    captured = captured_in(mode, lambda x: x * int(x.sum()), torch.ones(2))
    with pytest.raises(ValueError, match="NaN"):
        captured(torch.tensor([math.nan, 0.0]))


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_goes_on_where_its_pointer_is(mode):
    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(8, 2))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        def forward(self, x):
            start = int(self.pointer)
            self.rows[start : start + x.shape[0]] = x
            self.pointer[0] = (start + x.shape[0]) % 8
            return self.rows.sum()

    model, x = Queue(), torch.rand(2, 2)
    captured = captured_in(mode, copy.deepcopy(model), x)
    for _ in range(6):
        x = torch.rand(2, 2)
        torch.testing.assert_close(captured(x), model(x))
    torch.testing.assert_close(captured.rows, model.rows)


def test_a_number_that_python_needs_is_guarded():
    captured = fxplug.trace(lambda x: sum(x * i for i in range(int(x.shape[0] / 2))), (torch.ones(4),))
    assert [guard.text for guard in captured.guards if "int(" in guard.text] == ["int(x.shape[0] / 2) == 2"]
    torch.testing.assert_close(captured(torch.ones(5)), torch.ones(5))
    with pytest.raises(fxplug.GuardError):
        captured(torch.ones(6))


def test_what_takes_no_stand_in_gets_the_number():
    numpy = pytest.importorskip("numpy")
    captured = fxplug.trace(lambda x: x * float(numpy.log(int(x.shape[0]))), (torch.ones(4),))
    torch.testing.assert_close(captured(torch.ones(4)), torch.ones(4) * math.log(4))
    with pytest.raises(fxplug.GuardError):
        captured(torch.ones(6))


SOURCE = """
import numbers
import torch

class Plain:
    def __init__(self, n):
        self.n = n

def scaled(x, factor=2):
    half = int(x.shape[0] / 2)
    return x * half + {use}

def hidden(value):
    return 1.0 if type(value) is int else 0.0
"""


def module_of(use):
    module = types.ModuleType("made_for_test")
    exec(SOURCE.format(use=use), vars(module))
    return module


@pytest.mark.parametrize(
    ("use", "is_heard"),
    [
        ("0", True),
        ("isinstance(factor, int) + isinstance(factor, (float, int))", True),
        ("int('3') + int() + int('11', base=2) + float('1.5')", True),
        ("(type(factor) is int)", False),
        ("torch.zeros(1, dtype=int).sum() + x.to(float).sum().to(x.dtype)", False),
        ("sum(map(int, ['1', '2']))", False),
        ("{int: 1.0}[type(factor)]", False),
        ("issubclass(int, numbers.Number)", False),
        ("issubclass(int, (str, numbers.Number)) + isinstance((int, float), tuple)", False),
        ("[kind for kind in (int,) if kind is int and type(factor) is kind].__len__()", False),
    ],
)
def test_the_classes_are_left_alone_where_code_of_the_module_needs_them(use, is_heard):
    module = module_of(use)
    if is_heard:
        del module.hidden
    captured = fxplug.trace(module.scaled, (torch.ones(4),))
    assert any("int(" in guard.text for guard in captured.guards) is not is_heard
    torch.testing.assert_close(captured(torch.ones(4)), module.scaled(torch.ones(4)))
    assert "int" not in vars(module)
    assert "float" not in vars(module)


def closed_over(function):
    def helper(value):
        return function(value)

    return helper


class Holder:
    def __call__(self, value):
        return self.function(value)


class Slotted:
    __slots__ = ("function",)

    def __call__(self, value):
        return self.function(value)


@pytest.mark.parametrize("keep", ["closure", "partial", "attribute", "slot", "registry", "cache"])
def test_functions_are_found_behind_what_holds_them(keep):
    module = module_of("helper(2)" if keep == "slot" else "helper(factor)")
    hidden = vars(module).pop("hidden")
    holders = {
        "closure": lambda: closed_over(hidden),
        "partial": lambda: functools.partial(hidden),
        "attribute": Holder,
        "slot": Slotted,
        "registry": lambda: functools.singledispatch(hidden),
        "cache": lambda: functools.lru_cache(hidden),
    }
    module.helper = holders[keep]()
    if keep in {"attribute", "slot"}:
        module.helper.function = hidden
    captured = fxplug.trace(module.scaled, (torch.ones(4),))
    torch.testing.assert_close(captured(torch.ones(4)), torch.ones(4) * 2 + 1)


HIDING = """
from collections import deque

HELPERS = {"first": deque()}


def helps(function):
    HELPERS["first"].append([function])


@helps
def hidden(value):
    return 2 if type(value) is int else 5


def scaled(x):
    return x * int(x.shape[0]) * HELPERS["first"][0][0](3)
"""


@pytest.mark.parametrize("mode", MODES)
def test_functions_are_found_in_the_file_of_a_module_whatever_holds_them(mode, tmp_path, monkeypatch):
    (tmp_path / "module_that_hides.py").write_text(HIDING)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("module_that_hides")
    monkeypatch.delitem(sys.modules, "module_that_hides")
    if mode == "symbolic":
        with pytest.raises(fxplug.TraceError) as caught:
            captured_in(mode, module.scaled)
        assert caught.value.code == "FXP-T002"
        return
    captured = fxplug.trace(module.scaled, (torch.ones(4),), mode=mode, check=False)
    torch.testing.assert_close(captured(torch.ones(4)), torch.ones(4) * 8)


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_module_is_looked_through_once(is_heard, monkeypatch):
    module = module_of("0")
    if is_heard:
        del module.hidden
    calls = "".join(f"def f{i}(x):\n    return x * int(x.shape[0])\n" for i in range(9))
    exec(
        calls + "def scaled(x):\n    return " + "".join(f"f{i}(" for i in range(9)) + "x" + ")" * 9,
        vars(module),
    )
    looked = []
    original = wrapping.conversions_heard_in
    monkeypatch.setattr(
        wrapping, "conversions_heard_in", lambda *args: looked.append(args) or original(*args)
    )
    captured = fxplug.trace(module.scaled, (torch.ones(2),), check=False)
    assert len(looked) == 1
    torch.testing.assert_close(captured(torch.ones(2)), torch.full((2,), 512.0))


@pytest.mark.parametrize("mode", MODES)
def test_a_function_that_is_found_late_has_the_classes(mode):
    module = module_of("0")
    hidden = vars(module).pop("hidden")

    class Late(nn.Module):
        def forward(self, x):
            return x

    Late.forward = hidden_forward(hidden, module)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.late = Late()

        def forward(self, x):
            return self.late(module.scaled(x))

    model, x = Model(), torch.ones(4)
    if mode == "symbolic":  # There it is a number that nobody knows.
        with pytest.raises(fxplug.TraceError) as caught:
            captured_in(mode, model, x)
        assert caught.value.code == "FXP-T002"
        return
    torch.testing.assert_close(captured_in(mode, model, x)(x), model(x))


def hidden_forward(hidden, module):
    source = "def forward(self, x):\n    return x + (1.0 if type(len('ab')) is int else 0.0)"
    made = {}
    exec(source, vars(module), made)
    return made["forward"]
