"""Where a node came from: source positions and module paths, decoded only when somebody reads them.

A tracer stores the code object and the instruction offset of the frames it saw. Turning an offset into a line
walks the line table of the function, so doing it for every node of a long function would make tracing
quadratic; doing it when the origin is read does not.
"""

from __future__ import annotations

import linecache
import os
import threading
import weakref
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType

__all__ = ["DerivedOrigins", "MadeBy", "ModuleScope", "Origin", "SourceLine", "StoredOrigin", "origins_in"]


class ModuleScope:
    """One module on the way from the root to the place where a node was made; never changed once made."""

    __slots__ = ("_inside", "kind", "parent", "path")

    def __init__(self, path: str, kind: Any, parent: ModuleScope | None = None) -> None:
        self.path = path
        """Dotted path below the root; empty for the root itself."""
        self.kind = kind
        """The module's class, or its qualified name where the origin was read from a file."""
        self.parent = parent
        """The enclosing module."""
        self._inside: dict[str, tuple[str, Any]] | None = None

    def stack(self) -> dict[str, tuple[str, Any]]:
        """Return path -> (path, class) from the outermost module inward, as ``meta["nn_module_stack"]`` holds it."""
        parent = self.parent
        if parent is None:
            return {self.path: (self.path, self.kind)}
        # Many scopes lie in one, and a plugin that makes notes asks for the stack of every node while it is traced.
        if parent._inside is None:
            parent._inside = parent.stack()
        return {**parent._inside, self.path: (self.path, self.kind)}


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A decoded source position."""

    filename: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The stripped source line; empty when the source is not at hand."""
        try:
            # A file may name whatever it likes as the source, a pipe that never ends among it.
            if self.filename not in linecache.cache and not os.path.isfile(self.filename):
                return ""
            return linecache.getline(self.filename, self.line).strip()
        except ValueError:  # A name that no file system can hold, before Python 3.13.
            return ""

    def __str__(self) -> str:
        return f"{self.filename}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class MadeBy:
    """What made or changed a node after it was captured."""

    name: str
    """Full name of a pass, or ``"replace_pattern"`` and ``"decompose"`` for what rewrites by itself."""
    provider: str = ""
    """Distribution and version that the pass comes from; empty where nobody said."""
    inside: bool = False
    """Whether the node is only a part of what took a node's place: no former node had its value."""

    def __str__(self) -> str:
        return f"{self.name} of {self.provider}" if self.provider else self.name


_Table: TypeAlias = "tuple[weakref.ref[CodeType], list[int], list[tuple[int, int, int | None]]]"
_lines: dict[int, _Table] = {}
"""Id of a code object -> where its lines begin, in bytes, and its table of lines: who asks for one asks for others."""


def _line_at(code: CodeType, offset: int) -> int:
    """Return the number of the line that an instruction belongs to; the first one of the function where there is none.

    Going through the table of lines takes as long as it is long, so it is done once.
    """
    known = _lines.get(id(code))
    if known is None:
        key, table = id(code), list(code.co_lines())
        reference = weakref.ref(code, lambda _, kept=_lines: kept.pop(key, None))
        known = _lines[key] = reference, [start for start, *_ in table], table
    place = bisect_right(known[1], offset) - 1
    start, end, number = known[2][place] if place >= 0 else (0, 0, None)
    return number if number is not None and start <= offset < end else code.co_firstlineno


class Origin:
    """A source position, the calls that led to it, the module it lay in, and the passes that made the node, if any did.

    An origin is never changed once made; nodes share them freely.
    """

    __slots__ = ("caller", "code", "history", "module", "offset")

    def __init__(
        self,
        code: CodeType | SourceLine | None,
        offset: int = -1,
        caller: Origin | None = None,
        module: ModuleScope | None = None,
        made_by: str | None = None,
        *,
        history: tuple[MadeBy, ...] = (),
    ) -> None:
        self.code = code
        """The code object of the frame, or a position that was decoded already."""
        self.offset = offset
        """Offset in bytes of the instruction inside `code`."""
        self.caller = caller
        """The frame that called this one, up to the function that was traced."""
        self.module = module
        """The innermost module whose forward was running."""
        self.history = history if made_by is None else (*history, MadeBy(made_by))
        """What made or changed the node since it was captured, oldest first."""

    @property
    def made_by(self) -> str | None:
        """Name of the pass that made or changed the node last."""
        return self.history[-1].name if self.history else None

    def source(self) -> SourceLine | None:
        """Return the decoded position, None where there is none."""
        code = self.code
        if code is None or isinstance(code, SourceLine):
            return code
        return SourceLine(code.co_filename, _line_at(code, self.offset), code.co_name)

    def frames(self) -> Iterator[SourceLine]:
        """Yield positions from this frame outward."""
        origin: Origin | None = self
        while origin is not None:
            source = origin.source()
            if source is not None:
                yield source
            origin = origin.caller

    def stack_trace(self) -> str:
        """Return the frames as Python prints them in a traceback, outermost first."""
        lines: list[str] = []
        for frame in reversed(list(self.frames())):
            lines.append(f'  File "{frame.filename}", line {frame.line}, in {frame.function}')
            if frame.text:
                lines.append(f"    {frame.text}")
        return "\n".join(lines)

    def derived(self, made_by: str | MadeBy) -> Origin:
        """Return the origin of a node that the pass `made_by` put in this one's place, or changed.

        A pass that follows itself is noted once.
        """
        entry = MadeBy(made_by) if isinstance(made_by, str) else made_by
        history = self.history
        # Past the constructor: rewriting calls this for every node that is replaced.
        origin = Origin.__new__(Origin)
        origin.code, origin.offset = self.code, self.offset
        origin.caller, origin.module = self.caller, self.module
        if not history:
            origin.history = (entry,)
        else:
            origin.history = history if history[-1] == entry else (*history, entry)
        return origin

    def to_data(self) -> dict[str, Any]:
        """Return plain values from which `from_data` restores an equal origin, positions decoded."""
        scopes = [] if self.module is None else list(self.module.stack().values())
        history = [[entry.name, entry.provider, entry.inside] for entry in self.history]
        return {
            "frames": [[frame.filename, frame.line, frame.function] for frame in self.frames()],
            "modules": [
                [path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"]
                for path, kind in scopes
            ],
            "made_by": self.made_by,
            # One name says it all for what has been made once and by nobody in particular.
            **({"history": history} if history != [[self.made_by, "", False]] and history else {}),
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Origin:
        """Return the origin that `to_data` described."""
        scope: ModuleScope | None = None
        for path, kind in data["modules"]:
            scope = ModuleScope(path, kind, scope)
        frames = [SourceLine(filename, line, function) for filename, line, function in data["frames"]]
        origin: Origin | None = None
        for frame in reversed(frames[1:]):
            origin = cls(frame, caller=origin)
        history = tuple(MadeBy(*entry) for entry in data.get("history", ()))
        made_by = None if history else data["made_by"]
        return cls(
            frames[0] if frames else None, caller=origin, module=scope, made_by=made_by, history=history
        )


class DerivedOrigins:
    """Origins of a node that took the place of others, made when they are asked for: most never are.

    Copies of the node share one, and so have the same origins.
    """

    __slots__ = ("_made_by", "_origins", "_parents")

    def __init__(self, parents: Sequence[StoredOrigin], made_by: MadeBy) -> None:
        self._parents = parents
        """What the former nodes store, in the order in which they count."""
        self._made_by = made_by
        self._origins: tuple[Origin, ...] | None = None

    def all(self) -> tuple[Origin, ...]:
        """Return the origins, each with the entry of what put the node there."""
        origins = self._origins
        if origins is None:
            parents = dict.fromkeys(origin for parent in self._parents for origin in origins_in(parent))
            # Two threads may get here at a time; both then return what the first of them has stored.
            made = tuple([origin.derived(self._made_by) for origin in parents])
            with _lock:
                if self._origins is None:
                    self._origins, self._parents = made, ()
                origins = self._origins
        return origins


StoredOrigin: TypeAlias = "Origin | tuple[Origin, ...] | DerivedOrigins | list[Any] | None"
"""What a node stores of where it came from: one origin is by far the most frequent number, and needs no tuple.

A list holds what the origin of a call of a module is made of, until somebody reads it: most nodes of a network
are such calls. These are the code, the offset, the caller, the module around the call, the path and the class of its
module, and for what is done inside of it the code and offset of each function there; then the origin alone.
"""


def origins_in(stored: StoredOrigin) -> tuple[Origin, ...]:
    """Return the origins in what a node stores."""
    if stored is None:
        return ()
    if isinstance(stored, DerivedOrigins):
        return stored.all()
    if isinstance(stored, list):
        return (_read(stored),)
    return stored if isinstance(stored, tuple) else (stored,)


def _read(stored: list[Any]) -> Origin:
    """Return the origin that a list holds, or make it of what it holds: copies of the node share the list."""
    with _lock:
        if len(stored) > 1:
            code, offset, caller, around, path, kind, *inside = stored
            scope = ModuleScope(path, kind, around)
            origin = Origin(code, offset, caller, around if inside else scope)
            for code, offset in inside:
                origin = Origin(code, offset, origin, scope)
            stored[:] = [origin]
    return stored[0]


_lock = threading.Lock()
