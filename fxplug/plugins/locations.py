"""On which line of a TOML file each key and each element of a list stands, for messages."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Key", "line_of", "lines_of", "lines_without"]

Key = tuple[str | int, ...]
"""The path of a value: names of tables and keys, and positions in lists."""

_BLANK = re.compile(r"(?:\s+|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' + r"|'''.*?'''(?:'{0,2})" + r'|"(?:\\.|[^"\\\n])*"' + r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}\n#]*")


def lines_of(text: str) -> dict[Key, int]:
    """Return the line, counted from 1, of every table, key and element of a list in a TOML file.

    Args:
        text: What a TOML parser has accepted; anything else gives an incomplete answer.
    """
    return _Scanner(text).scan()


def line_of(lines: Mapping[Key, int], key: Key) -> int | None:
    """Return the line on which a key stands, or else the table or list around it.

    Args:
        lines: See `lines_of`.
        key: The path of a key.

    Returns:
        None when no part of `key` is in the file.
    """
    while key:
        if key in lines:
            return lines[key]
        key = key[:-1]
    return None


def lines_without(lines: Mapping[Key, int], key: Key) -> dict[Key, int]:
    """Return the lines that are left when the element of a list is taken out, and those behind it move up."""
    place, position = len(key) - 1, key[-1] if key else ""
    if not isinstance(position, int):
        return dict(lines)
    left: dict[Key, int] = {}
    for other, line in lines.items():
        index = other[place] if len(other) > place and other[:place] == key[:place] else None
        if isinstance(index, int) and index > position:
            left[(*other[:place], index - 1, *other[place + 1 :])] = line
        elif index != position:
            left[other] = line
    return left


class _Scanner:
    """Walks through a TOML file once. What the values are does not matter, only where they begin."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[Key, int] = {}
        self._last_elements: dict[Key, int] = {}
        """Path of a list of tables -> position of the one that was begun last."""

    def scan(self) -> dict[Key, int]:
        """Return the line of every path."""
        table: Key = ()
        while not self._is_over():
            before = self._place
            if self._take("[["):
                table = self._begin_element(self._key())
                self._take("]]")
            elif self._take("["):
                table = self._inside(self._key())
                self._note(table, before)
                self._take("]")
            else:
                self._pair(table)
            if self._place == before:  # No TOML.
                break
        return self._lines

    def _is_over(self) -> bool:
        self._skip_blank()
        return self._place >= len(self._text)

    def _skip_blank(self) -> None:
        match = _BLANK.match(self._text, self._place)
        self._place = match.end() if match is not None else self._place

    def _take(self, mark: str) -> bool:
        self._skip_blank()
        if not self._text.startswith(mark, self._place):
            return False
        self._place += len(mark)
        return True

    def _take_match(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self._text, self._place)
        if match is None:
            return None
        self._place = match.end()
        return match[0]

    def _note(self, key: Key, place: int) -> None:
        line = bisect_left(self._newlines, place) + 1
        for length in range(1, len(key) + 1):
            self._lines.setdefault(key[:length], line)

    def _begin_element(self, parts: tuple[str, ...]) -> Key:
        path = (*self._inside(parts[:-1]), *parts[-1:])
        self._last_elements[path] = self._last_elements.get(path, -1) + 1
        element = (*path, self._last_elements[path])
        self._note(element, self._place - 1)
        return element

    def _inside(self, parts: tuple[str, ...]) -> Key:
        """Return the path that the name of a table means: inside lists of tables it is their last element."""
        path: Key = ()
        for part in parts:
            path = (*path, part)
            if path in self._last_elements:
                path = (*path, self._last_elements[path])
        return path

    def _key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            self._skip_blank()
            bare = self._take_match(_BARE)
            quoted = self._take_match(_STRING) if bare is None else None
            if bare is None and quoted is None:
                break
            parts.append(bare if bare is not None else _unquoted(quoted or ""))
            if not self._take("."):
                break
        return tuple(parts)

    def _pair(self, table: Key) -> None:
        self._skip_blank()
        place = self._place
        path = (*table, *self._key())
        self._note(path, place)
        if self._take("="):
            self._value(path)

    def _value(self, path: Key) -> None:
        if self._take("["):
            position = 0
            while not self._is_over() and not self._take("]"):
                before = self._place
                self._note((*path, position), before)
                self._value((*path, position))
                self._take(",")
                position += 1
                if self._place == before:
                    return
        elif self._take("{"):
            while not self._is_over() and not self._take("}"):
                before = self._place
                self._pair(path)
                self._take(",")
                if self._place == before:
                    return
        elif self._take_match(_STRING) is None:
            self._take_match(_SCALAR)


def _unquoted(text: str) -> str:
    try:
        return json.loads(text) if text.startswith('"') else text.strip("'")
    except ValueError:  # An escape that only TOML knows.
        return text.strip('"')
