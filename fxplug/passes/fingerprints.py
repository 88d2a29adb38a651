"""What a pipeline is, in one number that is the same in every process and on every machine."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, Flag
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.errors import FingerprintError
from fxplug.semantics.internals import OpOverload, OpOverloadPacket

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fxplug.passes.base import PassRecord, PipelineStep

__all__ = ["canonical_form", "pipeline_fingerprint"]

_FORMAT = 1
"""Grows when the canonical form changes."""
_NOT_RUN = frozenset({"summary", "before", "after", "pipelines", "options", "factory"})
"""Fields of a record that do not change what runs once the order is found, or that are looked at by themselves."""
_FUNCTIONAL = "torch.nn.functional"
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class _NoFormError(Exception):
    """A value has no canonical form."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason


def pipeline_fingerprint(settings: Mapping[str, Any], steps: Sequence[PipelineStep]) -> str:
    """Return the SHA-256 of everything that a pipeline runs, in hexadecimal digits.

    Every field of the steps takes part, and of their records what is done and not what is said about it. Code is taken
    to be what distribution and version say it is.

    Args:
        settings: Name and settings of the pipeline.
        steps: The passes, in order; they are not made for this.

    Raises:
        FingerprintError: An option has a value without a canonical form; the message names pass and option.
    """
    subject = f"Cannot take the fingerprint of pipeline {settings.get('name')!r}: "
    form = [
        "fxplug",
        _FORMAT,
        sys.modules["fxplug"].__version__,
        [[name, _settled(settings[name], f"{subject}its {name}")] for name in sorted(settings)],
        [_step_form(step, subject) for step in steps],
    ]
    return hashlib.sha256(json.dumps(form, separators=(",", ":")).encode("ascii")).hexdigest()


def canonical_form(value: Any) -> Any:
    """Return lists, text and numbers that are equal for two values when they are equal, and in every process.

    Sets are sorted; floats keep their bits but for the kinds of not-a-number; functions and classes are what their
    qualified name finds.

    Args:
        value: Of plain types, enums, paths, dataclasses, or a function or class that can be imported; also inside
            containers.

    Raises:
        FingerprintError: It has none; the message says where.
    """
    return _settled(value, "Cannot take the canonical form: the value")


def _settled(value: Any, subject: str) -> Any:
    try:
        return _form(value, "")
    except _NoFormError as error:
        place = f" at {error.place}" if error.place else ""
        raise FingerprintError(
            f"{subject} has no canonical form{place}: {error.reason}. Use numbers, text, enums, paths, containers or "
            "dataclasses of these, or functions and classes that can be imported by their name."
        ) from None
    except RecursionError:
        raise FingerprintError(f"{subject} has no canonical form: it contains itself.") from None


def _step_form(step: PipelineStep, subject: str) -> list[Any]:
    form: list[Any] = []
    for entry in fields(step):
        value = getattr(step, entry.name)
        if entry.name == "record":
            form.append([entry.name, _record_form(value, f"{subject}the record of pass {step.name!r}")])
        elif entry.name == "options":
            options: Mapping[str, Any] = value
            form.append(
                [
                    entry.name,
                    [
                        [name, _settled(options[name], f"{subject}option {name!r} of pass {step.name!r}")]
                        for name in sorted(options)
                    ],
                ]
            )
        else:
            form.append([entry.name, _settled(value, f"{subject}{entry.name} of pass {step.name!r}")])
    return form


def _record_form(record: PassRecord, subject: str) -> list[Any]:
    factory: Any = record.factory
    try:
        form: list[Any] = [["factory", _form(factory, "")]]
    except (
        _NoFormError
    ):  # A lambda or a local class: there is one of each name in a version of a distribution.
        made_by = factory if hasattr(factory, "__qualname__") else type(factory)
        form = [["factory", f"{made_by.__module__}:{made_by.__qualname__}"]]
    form += [
        [entry.name, _settled(getattr(record, entry.name), subject)]
        for entry in fields(record)
        if entry.name not in _NOT_RUN
    ]
    return form


# -- values --------------------------------------------------------------------------------------------------


def _form(value: Any, place: str) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, Enum):  # First, since it may be a number or text as well.
        # Several flags together have a name or none, as the version of Python has it.
        member = value.value if isinstance(value, Flag) else value.name
        return ["enum", _name_of(type(value), place), _form(member, place)]
    if isinstance(value, (int, float, complex, str, bytes, bytearray)):
        return _of_class(value, _plain_form(value), place)
    if isinstance(value, (list, tuple)):
        items = [_form(item, f"{place}[{index}]") for index, item in enumerate(cast("list[Any]", value))]
        return _of_class(value, items, place)
    if isinstance(value, (set, frozenset)):
        found = [_form(item, f"{place}{{}}") for item in cast("set[Any]", value)]
        return _of_class(value, sorted(found, key=_text), place)
    if isinstance(value, Mapping):
        pairs = [
            [_form(key, f"{place} key {key!r}"), _form(item, f"{place}[{key!r}]")]
            for key, item in cast("Mapping[Any, Any]", value).items()
        ]
        return _of_class(value, pairs, place)
    return _object_form(value, place)


def _text(form: Any) -> str:
    return json.dumps(form, separators=(",", ":"))


def _plain_form(value: complex | str | bytes | bytearray) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.hex(value)
    return [float.hex(value.real), float.hex(value.imag)]


def _of_class(value: Any, content: Any, place: str) -> list[Any]:
    """Return the form of a value whose class says what kind of container or number it is."""
    kind: type[Any] = type(value)
    if getattr(value, "__dict__", None):
        raise _NoFormError(place, f"the {kind.__qualname__} has attributes besides what it holds")
    name = kind.__name__ if kind.__module__ == "builtins" else _name_of(kind, place)
    return [name, content]


def _object_form(value: Any, place: str) -> list[Any]:
    if isinstance(value, PurePath):
        return ["path", value.as_posix()]
    if isinstance(value, _TORCH_VALUES):
        return ["torch", str(value)]
    if isinstance(value, (OpOverload, OpOverloadPacket)):
        return ["operator", str(value)]
    if isinstance(value, re.Pattern):
        return ["pattern", _form(value.pattern, place), value.flags]
    if is_dataclass(value) and not isinstance(value, type):
        return ["dataclass", _name_of(type(value), place), _field_forms(value, place)]
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, dict(sorted(value.keywords.items())))
        return ["partial", *(_form(part, f"{place} (partial)") for part in cast("Iterable[Any]", parts))]
    if callable(value):
        return ["callable", _name_of(value, place)]
    raise _NoFormError(place, f"it is a {type(value).__module__}.{type(value).__qualname__}")


def _field_forms(value: Any, place: str) -> list[Any]:
    names = [entry.name for entry in fields(value)]
    more = sorted(set(getattr(value, "__dict__", ())) - set(names))
    if more:
        raise _NoFormError(
            place, f"the {type(value).__qualname__} has the attribute {more[0]!r} besides its fields"
        )
    return [[name, _form(getattr(value, name), f"{place}.{name}".lstrip("."))] for name in names]


def _name_of(value: Any, place: str) -> str:
    """Return the qualified name of a function or class, which has to find that very object."""
    path = getattr(value, "__qualname__", None)
    name = getattr(value, "__name__", None)
    # What torch makes in C does not say where it is found.
    for module, path_there in (
        (getattr(value, "__module__", None), path),
        ("torch", name),
        (_FUNCTIONAL, name),
    ):
        if not isinstance(path_there, str) or not isinstance(module, str):
            continue
        found: Any = sys.modules.get(module)
        for part in path_there.split("."):
            found = getattr(found, part, None)
        if found is not None and type(found) is type(value) and found == value:
            return f"{module}:{path_there}"
    shown = f"{getattr(value, '__module__', '')}.{path}" if path else f"a {type(value).__qualname__}"
    raise _NoFormError(place, f"{shown} cannot be found again by its name")
