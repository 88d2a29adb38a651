"""Parameters that have a value while a program is traced: what is given, and the checks that hold the caller to it."""

from __future__ import annotations

import math
import operator
from collections import abc
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.capture.inputs import name_of
from fxplug.errors import TraceError
from fxplug.ir import split_stars
from fxplug.semantics.checks import check_equal, same_value
from fxplug.semantics.internals import assert_function

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from fxplug.capture.inputs import Input
    from fxplug.capture.proxy import Proxy, TracerBase

__all__ = [
    "PH",
    "PHBase",
    "PHWithMeta",
    "concrete_by_name",
    "is_checked",
    "notes_of",
    "record_check",
    "record_default",
]


class PHBase:
    """Stands in ``concrete_args`` for a value that stays an input."""

    def __repr__(self) -> str:
        return "PH"


PH = PHBase()
"""The placeholder that everybody uses."""


class PHWithMeta(PHBase):
    """A placeholder whose attributes are noted at the node of the input, in ``node.meta`` under their names.

    Args:
        ph_key: By which the node can be told from others.
    """

    def __init__(self, ph_key: str | None = None) -> None:
        self.ph_key = ph_key


def notes_of(placeholder: PHBase) -> dict[str, Any]:
    """Return what is to be noted at the node of an input."""
    if placeholder is PH:
        return {}
    values = {name: getattr(placeholder, name) for name in dir(placeholder) if not name.startswith("__")}
    return {name: value for name, value in values.items() if not callable(value)}


def concrete_by_name(
    function: Callable[..., Any], inputs: list[Input], given: Mapping[str, Any] | Sequence[Any] | None
) -> dict[str, Any]:
    """Return name of a parameter -> the value it was given, whether they were given by name or by position.

    Raises:
        TraceError: There is no such parameter, or there are more or fewer values than parameters.
    """
    if given is None:
        return {}
    if isinstance(given, (tuple, list)):
        return _by_position(function, inputs, list(cast("Sequence[Any]", given)))
    _check_mapping(function, given)
    by_name = {split_stars(name)[1]: value for name, value in cast("Mapping[str, Any]", given).items()}
    names = [entry.name for entry in inputs]
    unknown = sorted(set(by_name) - set(names))
    if unknown:
        raise TraceError(
            f"Cannot trace {name_of(function)!r}: concrete_args names {unknown}, but its parameters are {names}."
        )
    for entry in inputs:
        if entry.stars and entry.name in by_name:
            by_name[entry.name] = _checked_star(function, entry, by_name[entry.name])
    return by_name


def _check_mapping(function: Callable[..., Any], given: Any) -> None:
    if isinstance(given, abc.Mapping):
        wrong = [name for name in cast("Mapping[Any, Any]", given) if not isinstance(name, str)]
        if not wrong:
            return
        found = f"has the name {wrong[0]!r}, a {type(wrong[0]).__name__}"
    else:
        found = f"is {given!r}, a {type(given).__name__}"
    raise TraceError(
        f"Cannot trace {name_of(function)!r}: concrete_args {found}. Give a dict of parameter name -> value, or a "
        "tuple with one value for each parameter, fxplug.PH for those that stay inputs."
    )


def _by_position(function: Callable[..., Any], inputs: list[Input], values: list[Any]) -> dict[str, Any]:
    plain = [entry for entry in inputs if not entry.stars]
    rest = next((entry for entry in inputs if entry.stars == "*"), None)
    if len(values) < len(plain) or (len(values) > len(plain) and rest is None):
        raise TraceError(
            f"Cannot trace {name_of(function)!r}: concrete_args has {len(values)} values for its {len(plain)} "
            f"parameters {[entry.name for entry in plain]}. Give one for each, fxplug.PH for those that stay inputs."
        )
    found = {entry.name: value for entry, value in zip(plain, values, strict=False)}
    if rest is not None:
        found[rest.name] = tuple(values[len(plain) :])
    return found


def _checked_star(function: Callable[..., Any], entry: Input, value: Any) -> Any:
    if isinstance(value, PHBase):
        return value
    if entry.stars == "*" and isinstance(value, (tuple, list)):
        return tuple(cast("Sequence[Any]", value))
    if entry.stars == "**" and isinstance(value, dict):
        return cast("dict[str, Any]", value)
    wanted = "a tuple" if entry.stars == "*" else "a dict"
    raise TraceError(
        f"Cannot trace {name_of(function)!r}: concrete_args has a {type(value).__name__} for {entry.target}. Give "
        f"{wanted} with one element for each value that callers will pass."
    )


_VALUES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)
"""What is compared by value; everything else has to be the very object."""


def record_check(tracer: TracerBase, path: str, proxy: Proxy, value: Any) -> None:
    """Record that an input has the value it was traced with: any other one is an error when the graph runs.

    Numbers, text, ranges, slices, sizes, dtypes, devices, layouts and memory formats have to be equal, and
    not-a-number has to be not-a-number. A bool is no number here, and the zeros of floats have a sign. Everything else
    has to be the very object.

    Args:
        tracer: Records the check.
        path: How the input is called in messages.
        proxy: Stands for the input.
        value: What it was traced with.

    Raises:
        TraceError: A tensor or module was given, whose identity does not outlast copying and moving.
    """
    if isinstance(value, (torch.Tensor, nn.Module)):
        raise TraceError(
            f"Cannot fix the parameter {path!r} to a {type(value).__name__}: a captured program holds tensors and "
            "modules as attributes. Bind it with functools.partial, or make it an attribute of the root.",
            code="FXP-T031",
        )
    text = repr(value)
    if value is None:  # Where another trace hears of it, unlike of functions of Python.
        same = tracer.create_proxy("call_function", same_value, (proxy, None), {})
    elif _is_compared_by_value(value):
        # Only not-a-number differs from itself.
        args = (proxy, value) if value == value else (proxy, proxy)  # noqa: PLR0124
        same = tracer.create_proxy(
            "call_function", operator.eq if args[1] is value else operator.ne, args, {}
        )
    else:
        if not (value is Ellipsis or callable(value) or _is_enum(value)):
            text = f"one particular {type(value).__qualname__}"
        # Not through create_arg: the object itself is meant, not what a graph would make of it.
        node = tracer.create_node("call_function", operator.is_, (proxy.node, value), {})
        same = tracer.proxy(node)
    message = f"{path} was fixed to {text} when the program was traced"
    tracer.create_proxy("call_function", assert_function, (same, message), {})
    for further in _further_checks(tracer, proxy, value):
        tracer.create_proxy("call_function", assert_function, (further, message), {})


def record_default(tracer: TracerBase, name: str, proxy: Proxy, value: Any, place: str) -> None:
    """Record the guard that an input has the default that it was traced with.

    Args:
        tracer: Records the guard.
        name: Of the input.
        proxy: Stands for it.
        value: The default, one that `is_checked`.
        place: Where the program asks about it, for the message.
    """
    text = f"{name} {'==' if _is_compared_by_value(value) else 'is'} {_shown(value)}, its default,{place}"
    # Not through create_arg, as above. Unlike functions of Python, this one is heard of when the captured program is
    # traced again.
    tracer.create_node("call_function", check_equal, (proxy.node, value, text, True), {})


def _shown(value: Any) -> str:
    return str(value) if _is_enum(value) else repr(value)


def is_checked(value: Any) -> bool:
    """Return whether `record_default` takes a value."""
    return value is None or _is_compared_by_value(value) or _is_enum(value)


def _further_checks(tracer: TracerBase, proxy: Proxy, value: Any) -> Iterator[Proxy]:
    """Record what tells an input from others that are equal to `value`.

    These are functions that a captured program still records when it is traced again.
    """
    if type(value) is bool:
        yield tracer.create_proxy("call_function", operator.is_not, (proxy, int(value)), {})
    elif isinstance(value, (int, float)) and value in {0, 1}:
        yield tracer.create_proxy("call_function", operator.is_not, (proxy, bool(value)), {})
    if isinstance(value, float) and value in {0.0}:  # The sign is what is asked for here.
        sign = tracer.create_proxy("call_function", math.copysign, (1.0, proxy), {})
        yield tracer.create_proxy("call_function", operator.eq, (sign, math.copysign(1.0, value)), {})


def _is_compared_by_value(value: Any) -> bool:
    return isinstance(value, _VALUES)


def _is_enum(value: Any) -> bool:
    return any(base.__module__ == "enum" for base in type(value).__mro__)
