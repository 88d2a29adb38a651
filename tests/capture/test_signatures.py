"""The parameters of what is traced are those that Python says it has, also where they are read off the code."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fxplug.capture.inputs import inputs_of

STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def told(function: Any) -> list[tuple[Any, ...]]:
    """Return what `inspect.signature` says of each parameter."""
    return [
        (
            name,
            STARS.get(parameter.kind, ""),
            parameter.default,
            parameter.kind is inspect.Parameter.KEYWORD_ONLY,
            parameter.kind is inspect.Parameter.POSITIONAL_ONLY,
        )
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def found(function: Any) -> list[tuple[Any, ...]]:
    return [
        (entry.name, entry.stars, entry.default, entry.keyword_only, entry.positional_only)
        for entry in inputs_of(function)
    ]


@st.composite
def heads(draw: Any) -> str:
    """Return the parameters of a function, in every mix that Python takes."""
    counts = [draw(st.integers(0, 2)) for _ in range(3)]
    names = iter("abcdefghi")
    only, usual = ([next(names) for _ in range(count)] for count in counts[:2])
    required = draw(st.integers(0, len(only) + len(usual)))
    front = [name if place < required else f"{name}={place}" for place, name in enumerate([*only, *usual])]
    parts = [*front[: len(only)], *(["/"] if only else []), *front[len(only) :]]
    named = [next(names) + draw(st.sampled_from(["", "=7"])) for _ in range(counts[2])]
    has_star = draw(st.booleans())
    if has_star or named:
        parts.append("*rest" if has_star else "*")
    parts += named
    if draw(st.booleans()):
        parts.append("**more")
    return ", ".join(parts)


def made(head: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(f"def function({head}):\n    inner = 0\n    return inner", namespace)
    return namespace["function"]


@given(heads())
def test_parameters_are_those_of_the_signature(head):
    function = made(head)

    assert found(function) == told(function)


@given(heads())
def test_a_method_is_told_without_its_object(head):
    function = made(f"self, {head}" if "/" not in head else head)
    method = function.__get__(object())
    try:
        expected = told(method)
    except ValueError:  # There is no place for the object.
        return

    assert found(method) == expected


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def plain(x, scale=2, *, shift: int = 3):
    return x * scale + shift


def signed(*args: Any) -> Any:
    return args


signed.__signature__ = inspect.signature(plain)


class Callable:
    def __call__(self, x, y=1):
        return x + y


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(decorated(plain), id="behind a decorator"),
        pytest.param(signed, id="with a signature of its own"),
        pytest.param(functools.partial(plain, scale=4), id="partial"),
        pytest.param(Callable(), id="object"),
        pytest.param(Callable().__call__, id="method"),
        pytest.param(decorated(Callable.__call__).__get__(Callable()), id="decorated method"),
    ],
)
def test_what_says_its_signature_otherwise_is_asked(function):
    assert found(function) == told(function)


def test_defaults_that_were_changed_count():
    function = made("a, b=1, *, c=2")
    function.__defaults__ = (5, 6)
    function.__kwdefaults__ = {}

    assert found(function) == told(function)


def test_annotations_are_objects_or_what_their_names_stand_for():
    def function(x: torch.Tensor, y: int, z) -> None: ...

    entries = inputs_of(function)

    # Annotations are text in this file: resolving it would run code, so that only names are looked up.
    assert [(entry.annotation, entry.declared) for entry in entries] == [
        (None, torch.Tensor),
        (None, int),
        (None, None),
    ]
    function.__annotations__ = {"x": torch.Tensor}
    assert [entry.annotation for entry in inputs_of(function)] == [torch.Tensor, None, None]
