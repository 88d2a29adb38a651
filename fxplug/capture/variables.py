"""What a traced function keeps for its next call: the variables that it closes over, and attributes of its own."""

from __future__ import annotations

from itertools import pairwise
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from fxplug.capture.bytecode import read_once
from fxplug.capture.containers import Containers
from fxplug.capture.iterators import goes_on, position_of
from fxplug.errors import TraceError
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from types import CellType

__all__ = ["Variables"]


_READING = frozenset({"LOAD_ATTR", "LOAD_CLASSDEREF", "LOAD_DEREF", "LOAD_METHOD"})
_ADDING = frozenset({"add", "append", "appendleft", "clear", "extend", "insert", "update"})


@read_once
def _names_read(code: CodeType) -> frozenset[str]:
    """Return the names of variables and attributes that a function does something else with than to add to them."""
    entries = [
        entry for entry in instructions_of(code) if entry.opname not in {"CACHE", "EXTENDED_ARG", "NOP"}
    ]
    found = {
        entry.argval
        for entry, following in pairwise([*entries, *entries[-1:]])
        if entry.opname in _READING and following.argval not in _ADDING
    }
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names_read(constant)
    return frozenset(found)


def _is_namespace(value: Any) -> bool:
    """Return whether a value is the globals of a module, in which a trace puts things of its own."""
    return isinstance(value, dict) and "__builtins__" in value


class Variables:
    """Remembers what a function closes over, to put it back.

    Args:
        root: What is traced; a module has nothing of the kind that matters here.
    """

    def __init__(self, root: Any) -> None:
        function = root.__func__ if isinstance(root, MethodType) else root
        self._cells: list[tuple[str, CellType, Any]] = []
        # Objects are not looked into: a function may close over anything that has a life of its own.
        self._containers = Containers(objects=False)
        self._function = function if isinstance(function, FunctionType) else None
        if self._function is None:
            return
        for name, cell in zip(
            self._function.__code__.co_freevars, self._function.__closure__ or (), strict=True
        ):
            try:
                self._cells.append((name, cell, cell.cell_contents))
            except ValueError:  # Not filled yet.
                continue
        self._iterators = [
            (name, value, position_of(value)) for name, _, value in self._cells if goes_on(value)
        ]
        held = {**vars(self._function), **{name: value for name, _, value in self._cells}}
        if not held:
            return
        # What a program only adds to has no say in what it computes: that is for whoever looks at it afterwards.
        names = _names_read(self._function.__code__)
        read = {name: value for name, value in held.items() if name in names and not _is_namespace(value)}
        self._containers.remember(self._function.__qualname__, read)

    def restore(self) -> TraceError | None:
        """Put everything back.

        Returns:
            What to say if the program has changed something: the captured program would answer every call as this one.
        """
        function = self._function
        if function is None:
            return None
        changed = [name for name, cell, before in self._cells if _contents(cell) is not before]
        for _, cell, before in self._cells:
            cell.cell_contents = before
        changed += [change.name for change in self._containers.restore()]
        changed += [name for name, value, before in self._iterators if position_of(value) != before]
        self._cells.clear()
        if not changed:
            return None
        place = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
        return TraceError(
            f"Cannot trace: {function.__qualname__} ({place}) changes {changed[0]!r}, which it keeps for its next "
            "call. The graph has no place for it, and would answer every call as the first one. Pass it as an input "
            "and return the new one, or use a module with a buffer.",
            code="FXP-T055",
        )


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return Variables
