"""On which line of a TOML file a key stands, for messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["line_of"]

_PART = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")


def line_of(text: str, key: tuple[str | int, ...]) -> int | None:
    """Return the line, counted from 1, on which a key or the table or list around it stands.

    This is a search in the text, good enough for messages: inside a list or an inline table, the first line
    that assigns the last name of `key` is taken.

    Args:
        text: A TOML file.
        key: The path of a key; positions in lists are integers.

    Returns:
        None when no part of `key` is found.
    """
    names = tuple(part for part in key if isinstance(part, str))
    best: tuple[int, int] | None = None
    inside: int | None = None
    for line, path in _assignments(text):
        if names[: len(path)] == path and (best is None or len(path) > best[0]):
            best = (len(path), line)
        if inside is None and path[: len(names)] == names:
            inside = line  # `key` is a table that only its parts name.
    if best is None:
        return inside
    depth, line = best
    return line if depth == len(names) else _line_inside(text, line, names[-1])


def _assignments(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header is not None:
            table = _parts(header[1])
            yield number, table
            continue
        key = _KEY.match(line)
        if key is not None:
            yield number, (*table, *_parts(key[1]))


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, dotted))


def _line_inside(text: str, first: int, name: str) -> int:
    wanted = re.compile(rf"""(?<![\w-])["']?{re.escape(name)}["']?\s*=""")
    for number, line in enumerate(text.splitlines()[first - 1 :], first):
        if number > first and (_HEADER.match(line) or _KEY.match(line)):
            break
        if wanted.search(line):
            return number
    return first
