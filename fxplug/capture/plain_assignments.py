"""What plain code assigns attributes to, and what of its globals it does more with than to call them at once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fxplug.capture.plain_contexts import begin_of_values

if TYPE_CHECKING:
    import dis
    from collections.abc import Collection, Iterable

__all__ = ["assigns_elsewhere", "names_uncalled"]

_WITHOUT_EFFECT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "RESUME"})


def assigns_elsewhere(entries: Iterable[dis.Instruction], holder: str | None) -> bool:
    """Return whether a function assigns attributes to anything but what a variable was given, or does that to itself.

    Args:
        entries: Its instructions.
        holder: The variable; None where there is none.
    """
    effective = [entry for entry in entries if entry.opname not in _WITHOUT_EFFECT]
    for index, entry in enumerate(effective):
        is_stored = entry.opname.startswith(("DELETE_FAST", "STORE_FAST")) and holder in _variables_of(entry)
        if is_stored or (entry.opname == "STORE_ATTR" and not _is_to(effective, index, holder)):
            return True
    return False


def _is_to(entries: list[dis.Instruction], at: int, holder: str | None) -> bool:
    """Return whether an attribute is assigned to what is in a variable, by ``self.x = y`` or ``self.x += y``."""
    before, computed = entries[at - 1], entries[at - 2]
    if holder is None or entries[at].is_jump_target:
        return False
    if _loads(before, holder):
        return True
    if (before.opname, before.arg) != ("SWAP", 2) or computed.opname != "BINARY_OP":
        return False
    begin = begin_of_values(entries, at - 2, 2)
    if not begin or any(one.is_jump_target for one in entries[begin : at + 1]):
        return False
    copied = entries[begin]
    return copied.opname == "COPY" and copied.arg == 1 and _loads(entries[begin - 1], holder)


def _loads(entry: dis.Instruction, variable: str) -> bool:
    """Return whether an instruction leaves what is in a variable on top of the stack."""
    return "LOAD_FAST" in entry.opname and _variables_of(entry)[-1] == variable


def _variables_of(entry: dis.Instruction) -> tuple[str, ...]:
    return entry.argval if isinstance(entry.argval, tuple) else (entry.argval,)


def names_uncalled(entries: Iterable[dis.Instruction], classes: Collection[int]) -> frozenset[str]:
    """Return the names of globals that are read for anything else than to be called at once, or asked for.

    Args:
        entries: The instructions of a function.
        classes: Offsets at which names are read of classes that are asked for.
    """
    is_told = sys.version_info >= (3, 11)
    return frozenset(
        entry.argval
        for entry in entries
        if entry.opname == "LOAD_GLOBAL"
        and not (is_told and (entry.arg or 0) & 1)
        and entry.offset not in classes
    )
