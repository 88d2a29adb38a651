"""The JSON members of a file: strict, and bounded before anything is made of them."""

from __future__ import annotations

import json
import re
from typing import Any

from fxplug.storage.faults import Codes, Refusal

__all__ = [
    "MOST_OBJECTS",
    "MOST_VALUES",
    "check_count",
    "check_values",
    "count_values",
    "parse_json",
    "quoted",
    "to_json",
]

MOST_VALUES = 40_000_000
"""How many values one member may hold, lists and objects included: Python needs about 100 bytes for each."""

MOST_OBJECTS = 800_000
"""How many modules, and how many tensors, one file may hold: a few letters make one, which takes thousands of bytes."""
_LETTERS = 16
_SHORT = frozenset({bool, int, float, type(None)})
"""Exact types of what counts as one value, and has none in it."""


def count_values(data: Any) -> int:
    """Return about how many values a part of a document is made of; long texts count as several."""
    count = 1 + len(data) // _LETTERS if isinstance(data, str) else 1
    pending = [data] if isinstance(data, (dict, list)) else []
    while pending:
        part = pending.pop()
        elements = part.values() if isinstance(part, dict) else part
        count += len(elements)
        for element in elements:
            if type(element) in _SHORT:  # Almost always.
                continue
            if isinstance(element, (dict, list)):
                pending.append(element)
            elif isinstance(element, str):
                count += len(element) // _LETTERS
    return count


def check_count(count: int, limit: int, what: str) -> None:
    """Refuse more of something than a file may hold.

    Raises:
        Refusal: There are more.
    """
    if count > limit:
        raise Refusal(
            f"it holds more than the {limit:,} {what} that are allowed. Keep parts of it in files of their own.",
            Codes.TOO_LARGE,
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_COMPACT = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def parse_json(content: bytes, name: str) -> Any:
    """Return what a JSON member holds.

    Raises:
        Refusal: It is no JSON, has a key twice, is nested too deeply, or holds too many values.
    """
    check_values(content, name)
    try:
        return _DECODER.decode(content.decode("utf-8"))
    except RecursionError as error:
        raise Refusal(f"{name} is no valid JSON: {error}. The file is damaged.", Codes.TOO_LARGE) from error
    except ValueError as error:
        raise Refusal(f"{name} is no valid JSON: {error}. The file is damaged.") from error


def check_values(content: bytes, name: str) -> None:
    """Refuse a JSON member of which it cannot be said at once that it holds no more values than it may.

    Raises:
        Refusal: There may be more; what separates values counts in texts, too.
    """
    if len(content) > MOST_VALUES and sum(content.count(sign) for sign in (b",", b"[", b"{")) > MOST_VALUES:
        raise Refusal(f"{name} holds more than the {MOST_VALUES:,} values that are allowed.", Codes.TOO_LARGE)


def quoted(text: str) -> str:
    """Return a text as JSON in ASCII."""
    return _COMPACT.encode(text)


def to_json(value: Any) -> bytes:
    """Return `value`, which does not contain itself, as JSON in ASCII.

    Raises:
        Refusal: A text in it would be another one when it is read.
    """
    text = _COMPACT.encode(value)
    if "\\ud" in text:
        _check_texts(value)
    return text.encode("ascii")


def _check_texts(value: Any) -> None:
    """Refuse two surrogates that JSON would join to one letter; each alone comes back as it is."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            if _PAIR.search(part):
                raise Refusal(
                    f"the text {ascii(part)[:_LONGEST]} holds two surrogates where it should hold the letter that they "
                    f"stand for. Write the letter: text.encode('utf-16', 'surrogatepass').decode('utf-16')."
                )
        elif isinstance(part, dict):
            pending += [*part, *part.values()]
        elif isinstance(part, (list, tuple)):
            pending += part


_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LONGEST = 80
