"""The exception tree."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from fxplug import errors
from fxplug.errors import FxplugError, GraphError, UnknownNameError, VerificationError, did_you_mean, shown

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, FxplugError) and kind.__module__ == errors.__name__
]


def test_every_error_class_has_a_code_of_its_own():
    codes = [kind.__dict__["code"] for kind in CLASSES]

    assert len(set(codes)) == len(CLASSES) > 15


def test_every_error_class_is_public():
    assert {kind.__name__ for kind in CLASSES} <= set(errors.__all__)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.TraceError, ValueError),
        (errors.GraphError, RuntimeError),
        (errors.InvalidArgumentError, TypeError),
        (errors.UnknownNameError, LookupError),
        (errors.ConfigError, ValueError),
        (errors.StorageError, ValueError),
        (errors.CodegenError, RuntimeError),
    ],
    ids=lambda kind: kind.__name__,
)
def test_errors_can_be_caught_as_the_builtin_that_fits(kind, builtin):
    assert issubclass(kind, builtin)


def test_the_text_of_an_error_ends_in_its_code():
    assert str(GraphError("Cannot do it.")) == "Cannot do it. [FXP-G000]"
    assert str(GraphError("Cannot do it.", code="FXP-G999")) == "Cannot do it. [FXP-G999]"
    assert GraphError.code == "FXP-G000"


def test_a_verification_error_carries_its_findings():
    assert VerificationError("Bad.", iter(["one", "two"])).findings == ("one", "two")
    assert VerificationError("Bad.").findings == ()


def test_near_names_are_offered():
    assert did_you_mean("fuse-conv", ["fuse-conv-bn", "dead-code"]) == "Did you mean 'fuse-conv-bn'?"
    assert did_you_mean("ab", ["abd", "abc"]) in {
        "Did you mean 'abd' or 'abc'?",
        "Did you mean 'abc' or 'abd'?",
    }


def test_all_names_are_listed_when_none_is_near():
    assert did_you_mean("zzz", ["beta", "alpha", "beta"]) == "Available: 'alpha', 'beta'."
    assert did_you_mean("zzz", []) == "None is available."


def test_an_unknown_name_is_reported_with_the_nearest_known_ones():
    error = UnknownNameError("pass", "dead-cod", ["dead-code", "shapes"], note="See fxplug passes list.")

    assert (error.kind, error.name, error.known) == ("pass", "dead-cod", ("dead-code", "shapes"))
    assert str(error) == (
        "There is no pass named 'dead-cod'. Did you mean 'dead-code'? See fxplug passes list. [FXP-F001]"
    )


@pytest.mark.parametrize(
    "error",
    [
        GraphError("Cannot do it.", code="FXP-G999"),
        VerificationError("Bad.", ["one"]),
        UnknownNameError("pass", "x", ["y"], note="See there."),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, lambda error: pickle.loads(pickle.dumps(error))],
    ids=["copy", "pickle"],
)
def test_errors_survive_the_way_out_of_another_process(error, duplicate):
    other = duplicate(error)

    assert type(other) is type(error)
    assert str(other) == str(error)
    assert vars(other) == vars(error)


class Unspeakable:
    def __repr__(self):
        raise ValueError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", r"'a\nb'"),
        (list(range(99)), f"{str(list(range(99)))[:77]}..."),
        (Unspeakable(), "<Unspeakable>"),
    ],
    ids=["short", "long", "without repr"],
)
def test_values_are_shown_in_one_short_line(value, text):
    assert shown(value) == text
    assert len(shown(value)) <= 80
