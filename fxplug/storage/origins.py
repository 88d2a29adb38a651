"""Origins of nodes as data: lines, callers, modules and whole origins stand in tables, and name one another by number.

An origin is mostly shared: consecutive nodes come from the same call of the same module, and most of what led there is
the same for all of them. So each part is turned into data, and back, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.ir import MadeBy, ModuleScope, Origin, SourceLine
from fxplug.ir.origins import origins_in
from fxplug.storage.faults import Codes, Refusal, checked, have_forms, places

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fxplug.ir.origins import StoredOrigin

__all__ = ["LARGEST_DEPTH", "ORIGIN_COLUMNS", "ORIGIN_TABLES", "OriginReader", "OriginWriter"]

ORIGIN_TABLES = ("lines", "callers", "scopes", "origins")
"""Fields of a graph that hold the tables."""
ORIGIN_COLUMNS = ("line", "caller", "scope", "history")
"""What the parts of an origin's row are; the last one is left out where there is none."""
LARGEST_DEPTH = 10_000
"""How many callers, and how many modules, may lie around a node."""

_NUMBER = (int, type(None))
_LINE = frozenset({(str, int, str)})
_CALLER = frozenset({(int, kind) for kind in _NUMBER})
_SCOPE = frozenset({(str, str, kind) for kind in _NUMBER})
_PASS = frozenset({(str, str, bool)})
_PLACES = [(line, caller, scope) for line in _NUMBER for caller in _NUMBER for scope in _NUMBER]
_ORIGIN = frozenset({(*kinds, *more) for kinds in _PLACES for more in ((), (str,), (list,))})
_MOST_PARTS = 4
_TABLES = tuple(
    zip(
        ORIGIN_TABLES,
        (_LINE, _CALLER, _SCOPE, _ORIGIN),
        ("A line", "A caller", "A module path", "An origin"),
        strict=True,
    )
)
"""What the rows of each table are made of, and how messages call one."""


class _Interner:
    """Numbers values in the order in which they first appear."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: tuple[Any, ...]) -> int:
        """Return the number of a row, which is all strings and integers."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(list(key))
        return number


class OriginWriter:
    """Describes the origins of one graph, which must live as long: parts are known by their identity."""

    def __init__(self) -> None:
        self._lines, self._callers, self._scopes = _Interner(), _Interner(), _Interner()
        self._origins: list[list[Any]] = []
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, int] = {}
        self._known_lines: dict[tuple[int, int], int | None] = {}
        # Number, and how many lie around it.
        self._known_callers: dict[int, tuple[int | None, int]] = {}
        self._known_scopes: dict[int, tuple[int | None, int]] = {}
        self._kinds: dict[int, str] = {}

    def tables(self) -> dict[str, list[Any]]:
        """Return the tables, for what was described so far."""
        tables = (self._lines.values, self._callers.values, self._scopes.values, self._origins)
        return dict(zip(ORIGIN_TABLES, tables, strict=True))

    def modules(self, number: int) -> list[Any]:
        """Return path and class of the modules of an origin that was taken in, from the outermost inward."""
        found: list[Any] = []
        scope = self._origins[number][2]
        while scope is not None:
            path, kind, scope = self._scopes.values[scope]
            found.append([path, kind])
        return found[::-1]

    def describe(self, stored: StoredOrigin) -> int | list[int]:
        """Take in the origins that a node stores; return the number of the only one, or the numbers of all.

        Raises:
            Refusal: More callers or modules lie around one than a file may say.
        """
        if type(stored) is Origin:
            return self._describe(stored)
        if type(stored) is list:
            return self._describe(origins_in(stored)[0])
        numbers = [self._describe(origin) for origin in origins_in(stored)]
        return numbers[0] if len(numbers) == 1 else numbers

    def _describe(self, origin: Origin) -> int:
        number = self._known.get(id(origin))
        if number is None:
            number = self._known[id(origin)] = self._number(origin)
        return number

    def _number(self, origin: Origin) -> int:
        code = id(origin.code), origin.offset
        line = self._known_lines[code] if code in self._known_lines else self._line(origin)
        caller = None if origin.caller is None else self._caller(origin.caller)
        scope = None if origin.module is None else self._scope(origin.module)
        history: tuple[tuple[str, str, bool], ...] = ()
        key: tuple[Any, ...] = line, caller, scope
        if origin.history:
            history = tuple([(entry.name, entry.provider, entry.inside) for entry in origin.history])
            key = (*key, history)
        number = self._numbers.get(key)
        if number is None:
            row: list[Any] = [line, caller, scope]
            if history:
                # One name says it all for what has been made once and by nobody in particular.
                is_plain = len(history) == 1 and history[0][1:] == ("", False)
                row.append(history[0][0] if is_plain else [list(entry) for entry in history])
            number = self._numbers[key] = len(self._origins)
            self._origins.append(row)
        return number

    def _caller(self, caller: Origin) -> int | None:
        """Return the number of a caller; those around it are taken in first."""
        known = self._known_callers.get(id(caller))
        if known is not None:
            return known[0]
        pending: list[Origin] = []
        origin: Origin | None = caller
        while origin is not None and id(origin) not in self._known_callers:
            pending.append(origin)
            origin = origin.caller
        outer, depth = (None, 0) if origin is None else self._known_callers[id(origin)]
        while pending:
            origin = pending.pop()
            line = self._line(origin)
            if line is not None:
                depth = _deeper(depth)
                outer = self._callers.number((line, outer))
            self._known_callers[id(origin)] = outer, depth
        return outer

    def _line(self, origin: Origin) -> int | None:
        key = id(origin.code), origin.offset
        if key in self._known_lines:
            return self._known_lines[key]
        frame = origin.source()
        number = None if frame is None else self._lines.number((frame.filename, frame.line, frame.function))
        self._known_lines[key] = number
        return number

    def _scope(self, scope: ModuleScope) -> int | None:
        """Return the number of a module; those around it are taken in first."""
        known = self._known_scopes.get(id(scope))
        if known is not None:
            return known[0]
        pending: list[ModuleScope] = []
        inside: ModuleScope | None = scope
        around = None
        while inside is not None and around is None:
            pending.append(inside)
            inside = inside.parent
            around = self._known_scopes.get(id(inside))
        outer, depth = around or (None, 0)
        for inside in reversed(pending):
            depth = _deeper(depth)
            outer = self._scopes.number((inside.path, self._kind(inside.kind), outer))
            self._known_scopes[id(inside)] = outer, depth
        return outer

    def _kind(self, kind: Any) -> str:
        if isinstance(kind, str):
            return kind
        name = self._kinds.get(id(kind))
        if name is None:
            name = self._kinds[id(kind)] = f"{kind.__module__}.{kind.__qualname__}"
        return name


def _deeper(depth: int) -> int:
    if depth >= LARGEST_DEPTH:
        raise Refusal(
            f"an origin has more than {LARGEST_DEPTH:,} callers or modules around it, which no file may say.",
            Codes.TOO_LARGE,
        )
    return depth + 1


class OriginReader:
    """Restores the origins of one graph.

    Args:
        tables: The fields of the graph; see `ORIGIN_TABLES`.

    Raises:
        Refusal: A table is damaged.
    """

    def __init__(self, tables: dict[str, Any]) -> None:
        lines, callers, scopes, origins = (
            _rows(tables[name], kinds, f"The {name}", what) for name, kinds, what in _TABLES
        )
        self._lines = [SourceLine(*row) for row in lines]
        self._callers: list[Origin] = []
        around = _Enclosing(callers, self._callers, "The number of a caller")
        for line, outer in callers:
            code = self._lines[places(line, len(self._lines), "The number of a line")]
            self._callers.append(Origin(code, -1, around.find(outer)))
        self._scopes: list[ModuleScope] = []
        around = _Enclosing(scopes, self._scopes, "The number of a module path")
        for path, kind, outer in scopes:
            self._scopes.append(ModuleScope(path, kind, around.find(outer)))
        self._origins: list[Origin] = []
        limits = len(lines), len(callers), len(scopes)
        for row in origins:
            line, caller, scope = row[:3]
            if not (
                (line is None or 0 <= line < limits[0])
                and (caller is None or 0 <= caller < limits[1])
                and (scope is None or 0 <= scope < limits[2])
            ):
                _refuse_places(row, limits)
            self._origins.append(self._origin(line, caller, scope, row[3] if len(row) > 3 else ()))

    def fetch(self, numbers: Any) -> StoredOrigin:
        """Return the origins with the given numbers, or the one with the given number, as a node stores them.

        Raises:
            Refusal: There is none with such a number.
        """
        made = self._origins
        if type(numbers) is int and 0 <= numbers < len(made):  # Almost always.
            return made[numbers]
        if type(numbers) is int:
            numbers = [numbers]
        found = tuple(
            [
                made[places(number, len(made), "The number of an origin")]
                for number in checked(numbers, list, "origins")
            ]
        )
        return found[0] if len(found) == 1 else found or None

    def _origin(self, line: int | None, caller: int | None, scope: int | None, passes: Any) -> Origin:
        code = None if line is None else self._lines[line]
        around = None if caller is None else self._callers[caller]
        inside = None if scope is None else self._scopes[scope]
        if type(passes) is str:
            return Origin(code, -1, around, inside, passes)
        history = (
            tuple([MadeBy(*entry) for entry in _rows(passes, _PASS, "The passes", "A pass")])
            if passes
            else ()
        )
        return Origin(code, -1, around, inside, history=history)


def _refuse_places(row: list[Any], limits: tuple[int, ...]) -> None:
    """Refuse a row of origins that names what is in no table; the message names the first such number."""
    whats = ("The number of a line", "The number of a caller", "The number of a module path")
    for number, limit, what in zip(row, limits, whats, strict=False):
        if number is not None:
            places(number, limit, what)


class _Enclosing:
    """Finds what lies around an entry of a table that is being made, and sees to it that none lies too deep.

    Args:
        rows: Of the table.
        made: The entries that were made so far.
        what: Names the number of an entry in messages.
    """

    def __init__(self, rows: list[Any], made: list[Any], what: str) -> None:
        self._made = made
        self._what = what
        # Where there are no more entries than that, none lies deeper.
        self._depths: list[int] | None = [] if len(rows) > LARGEST_DEPTH else None

    def find(self, number: int | None) -> Any:
        """Return what lies around the next entry.

        Raises:
            Refusal: There is nothing with that number, or more lies around it than a file may say.
        """
        depths = self._depths
        if number is None:
            if depths is not None:
                depths.append(1)
            return None
        around = self._made[places(number, len(self._made), self._what)]
        if depths is not None:
            depths.append(_deeper(depths[number]))
        return around


def _rows(data: Any, kinds: frozenset[tuple[Any, ...]], name: str, what: str) -> list[Any]:
    """Return the rows of a table after checking how many parts each has, and of which types."""
    rows: list[Any] = checked(data, list, name)
    if not have_forms(rows, kinds):
        for row in rows:
            _row(row, kinds, what)
    return rows


def _row(data: Any, kinds: frozenset[tuple[Any, ...]], what: str) -> list[Any]:
    """Return a row after checking how many parts it has, and of which types."""
    row: list[Any] = checked(data, list, what)
    if len(row) > _MOST_PARTS or tuple(map(type, row)) not in kinds:
        found = ", ".join(type(part).__name__ for part in row[: _MOST_PARTS + 1])
        raise Refusal(f"{what} is made of [{found}], which none is. The file is damaged.")
    return row
