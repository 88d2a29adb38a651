"""What a function imports where it runs: it finds that by no global."""

from __future__ import annotations

import dis
import sys
from importlib.util import resolve_name
from typing import TYPE_CHECKING, Any

from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

__all__ = ["imported_by"]

_IMPORT = dis.opmap["IMPORT_NAME"]
_NOTHING: Any = object()


def imported_by(code: CodeType, package: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield what a function, or one in it, imports, as far as it is there already.

    Args:
        code: Of the function.
        package: Where it stands, for relative imports; None where that is unknown.

    Yields:
        The name of a module, that of something in it (empty for the module itself), and what it is.
    """
    for constant in code.co_consts:
        if hasattr(constant, "co_consts"):
            yield from imported_by(constant, package)
    if _IMPORT not in code.co_code[::2]:
        return
    entries = [entry for entry in instructions_of(code) if entry.opname not in {"CACHE", "EXTENDED_ARG"}]
    for index, entry in enumerate(entries):
        if entry.opcode != _IMPORT or index < _ARGUMENTS:
            continue
        level, names = entries[index - 2].argval, entries[index - 1].argval
        path = _path(str(entry.argval), level, package)
        module = sys.modules.get(path)
        if module is None:
            continue
        yield path, "", module
        for name in names or ():
            value = vars(module).get(name, _NOTHING)
            if value is not _NOTHING:
                yield path, name, value


_ARGUMENTS = 2
"""So many constants are on the stack of an import: how far up it starts, and what it takes from the module."""


def _path(name: str, level: Any, package: Any) -> str:
    if not level or not isinstance(level, int):
        return name
    try:
        return resolve_name("." * level + name, package or "")
    except (ImportError, ValueError):
        return ""
