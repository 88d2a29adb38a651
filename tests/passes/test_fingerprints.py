"""Fingerprints: equal where the same would run, in every process; different where anything else would."""

from __future__ import annotations

import enum
import functools
import inspect
import math
import operator
import os
import subprocess
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torch
from torch.nn import functional

import fxplug
from fxplug.errors import FingerprintError
from fxplug.passes import DeadCode, FuseConvBN, PassRecord, Pipeline, PipelineStep
from fxplug.passes.fingerprints import canonical_form


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Marks(enum.Enum):
    FIRST = object()


class Flags(enum.Flag):
    A = 1
    B = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Inner:
    rate: float = 0.5
    names: frozenset[str] = frozenset({"x", "y"})


@dataclass
class Other:
    rate: float = 0.5
    names: frozenset[str] = frozenset({"x", "y"})


RECORD = PassRecord("p", DeadCode, "Does something.")
STEP = PipelineStep("quant:p", RECORD, {"bits": 8}, "fxplug-quant 1.0")


def of_option(value):
    return Pipeline("mine", [replace(STEP, options={"value": value})]).fingerprint()


def test_it_is_a_sha256_that_stays_the_same():
    first = Pipeline("mine", [STEP]).fingerprint()

    assert len(bytes.fromhex(first)) == 32
    assert Pipeline("mine", [replace(STEP)]).fingerprint() == first


# -- what it depends on ----------------------------------------------------------------------------------------

OTHER_SETTINGS: dict[str, Any] = {
    "name": "other",
    "steps": [replace(STEP, name="p")],
    "on_error": "rollback",
    "verify": "numeric",
    "rtol": 0.5,
    "atol": 0.5,
    "time_limit": 5.0,
    "hard_time_limit": 5.0,
}
"""Argument of a pipeline -> another value than by default; an argument that is not here fails the test below."""


@pytest.mark.parametrize("argument", list(inspect.signature(Pipeline).parameters))
def test_every_argument_of_a_pipeline_counts(argument):
    plain: dict[str, Any] = {"name": "mine", "steps": [STEP]}

    changed = Pipeline(**{**plain, argument: OTHER_SETTINGS[argument]})

    assert changed.fingerprint() != Pipeline(**plain).fingerprint()


OTHER_STEPS: dict[str, Any] = {
    "name": "quant:q",
    "record": replace(RECORD, factory=FuseConvBN),
    "options": {"bits": 4},
    "provider": "fxplug-quant 1.1",
    "time_limit": 5.0,
    "hard_time_limit": 5.0,
}


@pytest.mark.parametrize("name", [entry.name for entry in fields(PipelineStep)])
def test_every_field_of_a_step_counts(name):
    changed = replace(STEP, **{name: OTHER_STEPS[name]})

    assert Pipeline("mine", [changed]).fingerprint() != Pipeline("mine", [STEP]).fingerprint()


SAID_ONLY = {
    "summary": "Text.",
    "before": ("a",),
    "after": ("b",),
    "pipelines": ("inference",),
    "options": Inner,
}
"""Fields of a record that say something about a pass, or that have done their work when a pipeline is there."""
OTHER_RECORDS: dict[str, Any] = {
    "name": "q",
    "factory": FuseConvBN,
    "phase": "finish",
    "preserves": frozenset({"shapes"}),
    "idempotent": True,
    "tolerance": 0.5,
    "replaces_parameters": True,
}


@pytest.mark.parametrize("name", [entry.name for entry in fields(PassRecord)])
def test_what_a_record_says_of_its_work_counts_and_nothing_else(name):
    value = {**SAID_ONLY, **OTHER_RECORDS}[name]
    changed = Pipeline("mine", [replace(STEP, record=replace(RECORD, **{name: value}))]).fingerprint()

    assert (changed == Pipeline("mine", [STEP]).fingerprint()) is (name in SAID_ONLY)


def test_the_order_counts():
    other = replace(STEP, name="q")

    assert Pipeline("m", [STEP, other]).fingerprint() != Pipeline("m", [other, STEP]).fingerprint()


def test_the_version_of_fxplug_counts(monkeypatch):
    before = Pipeline("mine", [STEP]).fingerprint()
    monkeypatch.setattr(fxplug, "__version__", "9.9.9")

    assert Pipeline("mine", [STEP]).fingerprint() != before


def test_the_order_of_options_does_not_count():
    first, second = ({"a": 1, "b": 2}, {"b": 2, "a": 1})

    assert (
        Pipeline("m", [replace(STEP, options=first)]).fingerprint()
        == Pipeline("m", [replace(STEP, options=second)]).fingerprint()
    )


# -- values ----------------------------------------------------------------------------------------------------

DIFFERENT: list[Any] = [
    None,
    True,
    1,
    1.0,
    "1",
    b"1",
    bytearray(b"1"),
    1j,
    complex(-0.0, 1),
    0.0,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    0.1,
    math.nextafter(0.1, 1),
    10**40,
    (),
    [],
    {},
    set(),
    frozenset(),
    (1,),
    [1],
    ((1,),),
    {1},
    {"1"},
    {"a": 1},
    {"a": "1"},
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    Colour.RED,
    Colour.BLUE,
    Marks.FIRST,
    Flags.A,
    Flags.A | Flags.B,
    Level.LOW,
    Path("a/b"),
    "a/b",
    torch.float32,
    "torch.float32",
    torch.float16,
    torch.device("cpu"),
    torch.device("cuda", 1),
    torch.channels_last,
    torch.strided,
    torch.Size([1]),
    Inner(),
    Inner(0.25),
    Inner(names=frozenset({"x"})),
    Other(),
    Inner,
    operator.add,
    torch.add,
    torch.relu,
    functional.relu,
    torch.nn.ReLU,
    len,
    torch.ops.aten.add,
    torch.ops.aten.add.Tensor,
    functools.partial(operator.add, 1),
    functools.partial(operator.add, 2),
]


def test_different_values_have_different_forms():
    found = [str(canonical_form(value)) for value in DIFFERENT]

    assert [
        (DIFFERENT[found.index(form)], value)
        for value, form in zip(DIFFERENT, found, strict=True)
        if DIFFERENT[found.index(form)] is not value
    ] == []


def test_equal_values_have_equal_forms():
    assert canonical_form(float("nan")) == canonical_form(-math.nan)
    assert canonical_form({3, 1, "a"}) == canonical_form({"a", 1, 3})
    assert canonical_form(Path("a") / "b") == canonical_form(PurePosixPath("a/b"))
    assert canonical_form(Inner(names=frozenset({"y", "x"}))) == canonical_form(Inner())


class Plain:
    pass


def decorated(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


def loop():
    made: list[Any] = []
    made.append(made)
    return made


@dataclass
class Sloppy:
    name: str = ""
    more: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.hidden = object()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "option 'value' of pass 'quant:p' has no canonical form: it is a builtins.object."),
        (lambda: None, r"<lambda> cannot be found again by its name"),
        (decorated(math.floor), "math.floor cannot be found again by its name"),
        (Plain(), r"it is a \S*Plain\."),
        (Plain().__init__, "cannot be found again by its name"),
        ({"a": [1, object()]}, r"no canonical form at \['a'\]\[1\]: it is a builtins.object"),
        ({object()}, r"no canonical form at \{\}: it is"),
        (Sloppy(), "the Sloppy has the attribute 'hidden' besides its fields"),
        (loop(), "it contains itself"),
        (torch.ones(2), r"it is a torch.Tensor"),
    ],
)
def test_a_value_without_a_form_is_an_error_that_names_pass_and_option(value, reason):
    with pytest.raises(FingerprintError, match=reason) as caught:
        of_option(value)

    assert "'value' of pass 'quant:p'" in str(caught.value)
    assert "0x" not in str(caught.value)
    assert str(caught.value).endswith("[FXP-P020]")


# -- processes ---------------------------------------------------------------------------------------------------

PROGRAM = """
import enum, pathlib
from dataclasses import dataclass, field
import torch
from fxplug.passes import DeadCode, PassRecord, Pipeline, PipelineStep
from fxplug.plugins import PluginManager

class Mode(enum.Enum):
    A = "a"

@dataclass
class Rules:
    layers: frozenset = frozenset({"a", "b", "c", "d", "e"})
    by_name: dict = field(default_factory=lambda: {"x": {1, 2, 3}, "y": {"p", "q", "r"}})

options = {
    "rules": Rules(), "mode": Mode.A, "names": {"one", "two", "three", "four"}, "dtype": torch.float16,
    "path": pathlib.Path("a/b"), "zero": -0.0, "nan": float("nan"), "function": torch.relu, "kind": torch.nn.ReLU,
    "mixed": {None, 1, "a", (2, "b"), 2.5},
}
record = PassRecord("p", DeadCode, "Test.", preserves=frozenset({"shapes", "effects", "others"}))
print(Pipeline("mine", [PipelineStep("p", record, options)]).fingerprint())
print(PluginManager(candidates=[], environ={}).resolve_pipeline("inference").fingerprint())
"""


def test_it_is_the_same_in_every_process():
    def run(seed):
        found = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return found.stdout.split()

    assert run("1") == run("2") == run("77")
