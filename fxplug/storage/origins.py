"""Origins of nodes as data: lines, callers, modules and whole origins stand in tables, and name one another by number.

An origin is mostly shared: consecutive nodes come from the same call of the same module, and most of what led there is
the same for all of them. So each part is turned into data, and back, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.ir import MadeBy, ModuleScope, Origin, SourceLine
from fxplug.storage.faults import Codes, Refusal, checked, places

if TYPE_CHECKING:
    from collections.abc import Hashable

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

    def describe(self, origin: Origin) -> int:
        """Take in an origin and return its number.

        Raises:
            Refusal: More callers or modules lie around it than a file may say.
        """
        number = self._known.get(id(origin))
        if number is None:
            number = self._known[id(origin)] = self._number(origin)
        return number

    def _number(self, origin: Origin) -> int:
        line = self._line(origin)
        caller = None if origin.caller is None else self._caller(origin.caller)
        scope = None if origin.module is None else self._scope(origin.module)
        if origin.history:
            history = tuple([(entry.name, entry.provider, entry.inside) for entry in origin.history])
            key = line, caller, scope, history
        else:
            history, key = (), (line, caller, scope)
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
        while inside is not None and id(inside) not in self._known_scopes:
            pending.append(inside)
            inside = inside.parent
        outer, depth = (None, 0) if inside is None else self._known_scopes[id(inside)]
        while pending:
            inside = pending.pop()
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
            checked(tables[name], list, f"The {name}") for name in ORIGIN_TABLES
        )
        self._lines = [SourceLine(*_row(row, _LINE, "A line")) for row in lines]
        self._callers: list[Origin] = []
        self._scopes: list[ModuleScope] = []
        depths: list[int] = []
        for row in callers:
            line, outer = _row(row, _CALLER, "A caller")
            around = self._outer(outer, self._callers, depths, "The number of a caller")
            self._callers.append(
                Origin(self._lines[places(line, len(self._lines), "The number of a line")], -1, around)
            )
        depths = []
        for row in scopes:
            path, kind, outer = _row(row, _SCOPE, "A module path")
            enclosing = self._outer(outer, self._scopes, depths, "The number of a module path")
            self._scopes.append(ModuleScope(path, kind, enclosing))
        self._origins = [self._origin(row) for row in origins]

    @staticmethod
    def _outer(number: int | None, made: list[Any], depths: list[int], what: str) -> Any:
        """Return what lies around the next entry of a table, and note how deep that lies."""
        if number is None:
            depths.append(1)
            return None
        around = made[places(number, len(made), what)]
        depths.append(_deeper(depths[number]))
        return around

    def fetch(self, numbers: Any) -> list[Origin]:
        """Return the origins with the given numbers, or the one with the given number.

        Raises:
            Refusal: There is none with such a number.
        """
        found = self._origins
        if type(numbers) is int:
            return [found[places(numbers, len(found), "The number of an origin")]]
        return [
            found[places(number, len(found), "The number of an origin")]
            for number in checked(numbers, list, "origins")
        ]

    def _origin(self, data: Any) -> Origin:
        row = _row(data, _ORIGIN, "An origin")
        line: Any = row[0]
        caller: Any = row[1]
        scope: Any = row[2]
        code = None if line is None else self._lines[places(line, len(self._lines), "The number of a line")]
        if caller is not None:
            caller = self._callers[places(caller, len(self._callers), "The number of a caller")]
        if scope is not None:
            scope = self._scopes[places(scope, len(self._scopes), "The number of a module path")]
        if len(row) == len(ORIGIN_COLUMNS) - 1:
            return Origin(code, -1, caller, scope)
        made_by = row[3]
        if type(made_by) is str:
            return Origin(code, -1, caller, scope, made_by)
        history = tuple([MadeBy(*_row(entry, _PASS, "A pass")) for entry in made_by])
        return Origin(code, -1, caller, scope, history=history)


def _row(data: Any, kinds: frozenset[tuple[Any, ...]], what: str) -> list[Any]:
    """Return a row after checking how many parts it has, and of which types."""
    row: list[Any] = checked(data, list, what)
    if len(row) > 4 or tuple(map(type, row)) not in kinds:
        found = ", ".join(type(part).__name__ for part in row[:5])
        raise Refusal(f"{what} is made of [{found}], which none is. The file is damaged.")
    return row
