"""Functions of a large library are looked at when they are called, with the same answers as those of a small one."""

from __future__ import annotations

import importlib.util
import sys
import time
from types import ModuleType

import pytest
import torch

import fxplug
from fxplug.capture.unseen import CallsOfFunctionsPatch
from fxplug.errors import TraceError
from fxplug.plugins import Config, PluginCandidate, PluginManager, hookimpl

ONE, TWO = torch.ones(2, 3), torch.full((4, 3), 2.0)
MODES = ["symbolic", "shape", "value"]

SOURCE = """
import functools, random, weakref
from collections import namedtuple
from dataclasses import dataclass
import numpy
import torch
from torch import nn

GENERATOR = numpy.random.default_rng(0)
Pair = namedtuple("Pair", ["one", "two"])

def helper_computes(x):
    return torch.relu(x) * 2

def helper_draws(x):
    return x * random.random()

def helper_draws_arrays(x):
    return x * float(GENERATOR.random())

EXAMPLE = torch.ones(2, 3)

def two():
    return 2.0

class Source:
    def __init__(self, held):
        self.held = held

    def times(self, x):
        return x * (self.held() if callable(self.held) else self.held)

SOURCES = [Source(two), Source(EXAMPLE)]
REFERENCES = [weakref.ref(source) for source in SOURCES]

def finds_the_example(x):
    return REFERENCES[0]().times(x) + REFERENCES[1]().times(x)

def helper_asks(x):
    return x + 1 if type(x) is torch.Tensor else x * 3

def helper_asks_by_name(x):
    return x + 1 if hasattr(x, "mark") else x * 3

def helper_compares(x, mask=None):
    return x + 1 if x is x.contiguous() else x * 3

def helper_compares_with_none(x, mask=None):
    return x * 3 if mask is None else x + mask

def helper_is_given_another(x):
    return helper_compares_with_none(x, x * 2)

def helper_reads_length(x):
    return x * len(x)

def helper_sets(x):
    torch.manual_seed(3)
    return x + torch.rand(3)

def helper_makes_pairs(x):
    return Pair(x, x + 1).two * 2

@dataclass
class Record:
    value: object
    mask: object = None

    def result(self):
        return self.value * 3 if self.mask is None else self.value + self.mask

def helper_makes_records(x):
    return Record(x).result() + Record(x, x).result()

def around(function):
    @functools.wraps(function)
    def wrapper(self, x, mask=None):
        return function(self, x) * (1 if mask is None else 2)
    return wrapper

class Held:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor if self.factor is not None else x - 1

    @around
    def decorated(self, x):
        return self(x)

class Block(nn.Module):
    def __init__(self, kind, held):
        super().__init__()
        self.kind, self.held = kind, held

    def forward(self, x):
        x = globals_of(self.kind)(x)
        return self.held.decorated(x, x)

class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.blocks = nn.ModuleList([Block(kind, Held(2)), Block(kind, Held(None))])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return filler_0(x, False)

HELPERS = {name: value for name, value in list(globals().items()) if name.startswith("helper_")}

def globals_of(kind):
    return HELPERS.get("helper_" + kind, finds_the_example)
"""
KINDS = [
    line.split("helper_")[1].split("(")[0] for line in SOURCE.splitlines() if line.startswith("def helper_")
]


def _library(path, name, *, fillers):
    """Import a library that is installed, with functions that lead to one another."""
    chain = "\n".join(
        f"def filler_{number}(x, goes_on):\n    return filler_{number + 1}(x, goes_on) if goes_on else x\n"
        for number in range(fillers)
    )
    file = path / "site-packages" / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{chain}\ndef filler_{fillers}(x, goes_on):\n    return x\n{SOURCE}")
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    pytest.importorskip("numpy")
    path = tmp_path_factory.mktemp("libraries")
    names = ("small_library_of_models", "large_library_of_models")
    found = [_library(path, name, fillers=number) for name, number in zip(names, (1, 200), strict=True)]
    yield found
    for name in names:
        del sys.modules[name]


def outcome_of(model, mode):
    """Return what becomes of a model: the code of the error, or what was captured, and what it says."""
    try:
        captured = (
            fxplug.symbolic_trace(model) if mode == "symbolic" else fxplug.trace(model, (ONE,), mode=mode)
        )
    except TraceError as error:
        return error.code
    said = [(node.op, str(node.target)) for node in captured.graph.nodes]
    return said, *(captured(value).tolist() for value in (ONE, TWO))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_large_library_is_captured_as_a_small_one(kind, mode, libraries):
    small, large = (library.Model(kind).eval() for library in libraries)
    expected = outcome_of(small, mode)
    assert outcome_of(large, mode) == expected
    if not isinstance(expected, str) and mode == "value":
        assert expected[1] == small(ONE).tolist()


def test_only_calls_of_a_large_library_are_told_of(libraries, monkeypatch):
    told, install = [], CallsOfFunctionsPatch.install
    monkeypatch.setattr(CallsOfFunctionsPatch, "install", lambda self: (told.append(self), install(self)))
    counts = []
    for library in libraries:
        fxplug.trace(library.Model("computes").eval(), (ONE,), mode="value")
        counts.append(len(told))
    assert counts == [0, 1]


def test_a_method_is_looked_at_with_each_object(libraries):
    library = libraries[1]
    with pytest.raises(TraceError, match="FXP-T061"):
        fxplug.trace(library.Model("finds the example").eval(), (library.EXAMPLE,), check=False)


TIMES = []


def note_time():
    TIMES.append(time.time())


@pytest.mark.parametrize("mode", MODES)
def test_plugins_are_not_looked_at(mode, libraries):
    plugin = ModuleType("sample_plugin")
    plugin.fxplug_node_created = hookimpl(lambda node: note_time())
    candidate = PluginCandidate.of_module(plugin, "sample", version="1.0")
    manager = PluginManager(config=Config(), candidates=[candidate], environ={}, version="0.1.0")
    TIMES.clear()
    captured = fxplug.trace(
        libraries[1].Model("computes").eval(),
        None if mode == "symbolic" else (ONE,),
        mode=mode,
        manager=manager,
    )
    assert captured.graph.find_nodes(op="call_function", target=torch.relu)
    assert TIMES
