"""What tells of the default dtype and is not asked for it: ``torch.finfo()`` takes that one if it is given none."""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.bytecode import read_once
from fxplug.capture.plain_contexts import begin_of_values
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["asks_default_dtype", "holds_what_asks"]

_NAMES = frozenset({"finfo", "torch.finfo"})
_BETWEEN = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL"})
_CALLS = frozenset({"CALL", "CALL_FUNCTION", "CALL_KW", "CALL_METHOD"})


@read_once
def asks_default_dtype(code: CodeType) -> bool:
    """Return whether a function names ``torch.finfo`` and may not give it a dtype: it may call it, or hand it on."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    entries = [entry for entry in instructions_of(code) if entry.opname not in _BETWEEN]
    named = {entry.offset for entry in entries if isinstance(entry.argval, str) and entry.argval in _NAMES}
    for index, entry in enumerate(entries):
        if named and entry.opname in _CALLS and entry.arg:
            begin = begin_of_values(entries, index, entry.arg)
            named.discard(entries[begin - 1].offset if begin else -1)
    return bool(named) or any(map(asks_default_dtype, inner))


def holds_what_asks(function: Any, names: Iterable[str]) -> bool:
    """Return whether a function has ``torch.finfo`` under another name, for a default, or closes over it.

    Args:
        function: The function.
        names: Of globals that it reads.
    """
    namespace = getattr(function, "__globals__", {})
    found = [namespace.get(name) for name in names if name not in _NAMES]
    found += getattr(function, "__defaults__", None) or ()
    found += (getattr(function, "__kwdefaults__", None) or {}).values()
    found += [_inside(cell) for cell in getattr(function, "__closure__", None) or ()]
    return any(value is torch.finfo for value in found)


def _inside(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # It has no value yet.
        return None
