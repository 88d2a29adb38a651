"""The instructions of a function, decoded once for all questions about it.

Nothing here knows torch, so that it is tested on every Python without it.
"""

from __future__ import annotations

import dis
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["instructions_of"]

_decoded: dict[int, tuple[weakref.ref[CodeType], tuple[dis.Instruction, ...]]] = {}
"""Id -> code, and its instructions, of what was read last."""
_MOST_DECODED = 16


def instructions_of(code: CodeType) -> tuple[dis.Instruction, ...]:
    """Return the instructions of a function, as `dis` has them.

    Who looks at a function asks several questions about its code, one after the other, and to decode it takes longer
    than to answer any of them. Those of all functions would take much memory, and are not kept.
    """
    known = _decoded.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    found = tuple(dis.get_instructions(code))
    while len(_decoded) >= _MOST_DECODED:
        _decoded.pop(next(iter(_decoded), 0), None)
    _decoded[id(code)] = weakref.ref(code), found
    return found
