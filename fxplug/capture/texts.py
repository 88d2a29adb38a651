"""Names in texts, by which code finds attributes too: ``getattr(self, "training")``, ``vars(self)["training"]``."""

from __future__ import annotations

import dis
import inspect
import re
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

__all__ = ["names_in_getters", "names_in_texts"]

_BY_TEXT = frozenset(
    {
        *("__dict__", "__getattribute__", "__getattr__", "attrgetter", "format", "format_map", "getattr"),
        *("getattr_static", "getmembers", "hasattr", "methodcaller", "vars"),
    }
)
"""Names of what finds attributes by texts."""
_WORD = re.compile(r"[^\W\d]\w*")
_FIELD = re.compile(r"\{([^{}]*)\}")
_SPACE = re.compile(r"\s")
_LONGEST = 200
"""Longer texts are none of names."""
_GETTERS = (attrgetter, methodcaller)
_MATCH_CLASS = dis.opmap["MATCH_CLASS"]


def names_in_texts(code: CodeType) -> frozenset[str]:
    """Return the names in the texts with which a function may look for attributes.

    They are those in all of its texts, where it calls something that takes such texts, and those in the patterns of
    classes (``case Module(training=True)``).
    """
    found: set[str] = set()
    if not _BY_TEXT.isdisjoint(code.co_names):
        for text in _texts_in(code):
            # A message is no name, but for what it is filled with.
            parts = _FIELD.findall(text) if _SPACE.search(text) else (text,)
            found.update(word for part in parts for word in _WORD.findall(part))
    patterns = [constant for constant in code.co_consts if _is_tuple_of_texts(constant)]
    if patterns and _MATCH_CLASS in code.co_code[::2]:
        found.update(name for names in patterns for name in names)
    return frozenset(found)


def names_in_getters(values: Iterable[Any]) -> frozenset[str]:
    """Return the names that those of some objects look for which `operator` makes: `attrgetter`, `methodcaller`."""
    found: set[str] = set()
    for value in values:
        if type(value) in _GETTERS:
            given = value.__reduce__()[1]
            found.update(word for part in given if isinstance(part, str) for word in _WORD.findall(part))
    return frozenset(found)


def _texts_in(code: CodeType) -> list[str]:
    # The first constant of a function is what describes it; since Python 3.13 a flag says whether there is one.
    flag = getattr(inspect, "CO_HAS_DOCSTRING", None)
    is_described = not code.co_name.startswith("<") if flag is None else bool(code.co_flags & flag)
    constants = code.co_consts[1:] if is_described else code.co_consts
    nested = [part for constant in constants if _is_tuple_of_texts(constant) for part in constant]
    return [text for text in (*constants, *nested) if isinstance(text, str) and len(text) <= _LONGEST]


def _is_tuple_of_texts(constant: Any) -> bool:
    return isinstance(constant, tuple) and all(
        isinstance(part, str) for part in cast("tuple[Any, ...]", constant)
    )
