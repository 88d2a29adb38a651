"""Origins of nodes as data: frames, modules and whole origins stand in tables, and a node names its origins by number.

An origin is mostly shared: consecutive nodes come from the same call of the same module, and most of what led there is
the same for all of them. So each part is turned into data, and back, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.ir import MadeBy, ModuleScope, Origin, SourceLine
from fxplug.storage.faults import Refusal, checked, places

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["OriginReader", "OriginWriter"]

Numbers = tuple[int, ...]


class _Interner:
    """Numbers values in the order in which they first appear."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, value: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number


class OriginWriter:
    """Describes the origins of one graph, which must live as long: parts are known by their identity."""

    def __init__(self) -> None:
        self._frames, self._modules, self._origins = _Interner(), _Interner(), _Interner()
        self._positions: dict[tuple[int, int], Numbers] = {}
        self._callers: dict[int, Numbers] = {}
        self._scopes: dict[int, Numbers] = {}
        self._known: dict[int, int] = {}

    def tables(self) -> dict[str, list[Any]]:
        """Return the tables, for what was described so far."""
        return {
            "frames": self._frames.values,
            "modules": self._modules.values,
            "origins": self._origins.values,
        }

    def modules(self, number: int) -> list[Any]:
        """Return path and class of the modules of an origin that was taken in, from the outermost inward."""
        return [self._modules.values[module] for module in self._origins.values[number][1]]

    def describe(self, origin: Origin) -> int:
        """Take in an origin and return its number."""
        number = self._known.get(id(origin))
        if number is None:
            number = self._known[id(origin)] = self._number(origin)
        return number

    def _number(self, origin: Origin) -> int:
        frames = (*self._position(origin), *self._chain(origin.caller))
        modules = self._scope(origin.module)
        row: list[Any] = [list(frames), list(modules), origin.made_by]
        history = tuple([(entry.name, entry.provider, entry.inside) for entry in origin.history])
        # One name says it all for what has been made once and by nobody in particular.
        if history == ((origin.made_by, "", False),):
            history = ()
        if history:
            row.append([list(entry) for entry in history])
        return self._origins.number((frames, modules, origin.made_by, history), row)

    def _chain(self, caller: Origin | None) -> Numbers:
        """Return the frames from a caller outward."""
        known = () if caller is None else self._callers.get(id(caller))
        if known is None:
            frames: list[int] = []
            origin = caller
            while origin is not None:
                frames += self._position(origin)
                origin = origin.caller
            known = self._callers[id(caller)] = tuple(frames)
        return known

    def _position(self, origin: Origin) -> Numbers:
        key = id(origin.code), origin.offset
        known = self._positions.get(key)
        if known is None:
            frame = origin.source()
            row = () if frame is None else (frame.filename, frame.line, frame.function)
            known = self._positions[key] = (self._frames.number(row, list(row)),) if row else ()
        return known

    def _scope(self, scope: ModuleScope | None) -> Numbers:
        known = () if scope is None else self._scopes.get(id(scope))
        if known is None and scope is not None:
            names = [
                (path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}")
                for path, kind in scope.stack().values()
            ]
            known = self._scopes[id(scope)] = tuple(
                [self._modules.number(name, list(name)) for name in names]
            )
        return known or ()


class OriginReader:
    """Restores the origins of one graph.

    Args:
        frames: The table of frames, as JSON.
        modules: The table of modules.
        origins: The table of origins.

    Raises:
        Refusal: A table is damaged.
    """

    def __init__(self, frames: Any, modules: Any, origins: Any) -> None:
        self._frames = [
            SourceLine(*_row(row, (str, int, str), "A frame")) for row in checked(frames, list, "The frames")
        ]
        self._modules: list[tuple[str, str]] = [
            (path, kind)
            for path, kind in (
                _row(row, (str, str), "A module path") for row in checked(modules, list, "The module paths")
            )
        ]
        self._callers: dict[Numbers, Origin | None] = {(): None}
        self._scopes: dict[Numbers, ModuleScope | None] = {(): None}
        self._origins = [self._origin(row) for row in checked(origins, list, "The origins")]

    def fetch(self, numbers: Any) -> list[Origin]:
        """Return the origins with the given numbers.

        Raises:
            Refusal: There is none with such a number.
        """
        count = len(self._origins)
        return [
            self._origins[places(number, count, "The number of an origin")]
            for number in checked(numbers, list, "origins")
        ]

    def _origin(self, data: Any) -> Origin:
        kinds: tuple[Any, ...] = (list, list, (str, type(None)))
        has_history = len(checked(data, list, "An origin")) == len(kinds) + 1
        row = _row(data, (*kinds, list) if has_history else kinds, "An origin")
        frames = self._numbers(row[0], self._frames, "The number of a frame")
        modules = self._numbers(row[1], self._modules, "The number of a module")
        rows = [_row(entry, (str, str, bool), "A pass") for entry in (row[3] if has_history else ())]
        history = tuple([MadeBy(*entry) for entry in rows])
        return Origin(
            self._frames[frames[0]] if frames else None,
            caller=_known(self._callers, frames[1:], self._chain),
            module=_known(self._scopes, modules, self._scope),
            made_by=None if history else row[2],
            history=history,
        )

    @staticmethod
    def _numbers(data: list[Any], table: list[Any], what: str) -> Numbers:
        limit = len(table)
        for number in data:
            if type(number) is not int or not 0 <= number < limit:
                places(number, limit, what)
        return tuple(data)

    def _chain(self, frames: Numbers) -> Origin | None:
        origin: Origin | None = None
        for number in reversed(frames):
            origin = Origin(self._frames[number], caller=origin)
        return origin

    def _scope(self, modules: Numbers) -> ModuleScope | None:
        # Not by recursion: how deep it is, is the file's word.
        scope, outside = self._scopes.get(modules[:-1]), modules[:-1]
        if scope is None and outside:
            for number in outside:
                scope = ModuleScope(*self._modules[number], scope)
            self._scopes[outside] = scope
        return ModuleScope(*self._modules[modules[-1]], scope)


def _known(table: dict[Numbers, Any], key: Numbers, make: Callable[[Numbers], Any]) -> Any:
    if key not in table:
        table[key] = make(key)
    return table[key]


def _row(data: Any, kinds: tuple[Any, ...], what: str) -> list[Any]:
    row = checked(data, list, what)
    if tuple(map(type, row)) == kinds:
        return row
    if len(row) != len(kinds):
        raise Refusal(f"{what} has {len(row)} parts, not {len(kinds)}. The file is damaged.")
    return [checked(value, kind, what) for value, kind in zip(row, kinds, strict=True)]
