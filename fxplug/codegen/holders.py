"""Attribute paths of the root as expressions; modules deep below the root are read once and kept in a local."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

from fxplug.ir import is_plain_name, is_reserved

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

__all__ = ["PathPrinter", "name_holders"]

ExpressionT = TypeVar("ExpressionT")


def name_holders(paths: Iterable[str], taken: set[str], given: Container[str] = ()) -> dict[str, str]:
    """Return a local name for every module below the root's own attributes from which several paths read.

    Reading ``layer1.0`` once for the ten paths that begin with it makes the source shorter, which Python compiles
    faster, and the calls quicker.

    Args:
        paths: Dotted paths, one for each use.
        taken: Names that the function has; the new ones are added.
        given: More names that are not free.
    """
    counts = Counter([path.rpartition(".")[0] for path in paths])
    for prefix in [prefix for prefix in counts if prefix.count(".") >= _DEEPEST]:
        counts.update(_steps_to(prefix))
    holders: dict[str, str] = {}
    for prefix, count in counts.items():
        if count > 1 and "." in prefix:
            holders[prefix] = name = _free_name(prefix, taken, given)
            taken.add(name)
    return holders


_DEEPEST = 50
"""Attributes that one expression reads in one another: Python compiles at most some two hundred parentheses."""


def _steps_to(prefix: str) -> dict[str, int]:
    """Return the prefixes of a deep path at which it is to be interrupted, and that they are wanted."""
    parts = prefix.split(".")
    return {".".join(parts[:end]): 2 for end in range(_DEEPEST, len(parts), _DEEPEST)}


def _free_name(prefix: str, taken: set[str], given: Container[str]) -> str:
    base = prefix.replace(".", "_")
    if not (base.isascii() and base.isidentifier()):
        base = re.sub(r"[^A-Za-z0-9_]", "_", base)
    if not is_plain_name(base) or is_reserved(base) or base in taken or base.startswith("__"):
        base = f"_fxp_{base}"
    name, number = base, 0
    while name in taken or name in given:
        number += 1
        name = f"{base}_{number}"
    return name


class PathPrinter(Generic[ExpressionT]):
    """Prints dotted paths.

    Args:
        attribute: Gives the expression for an attribute of any name of an expression.
        local: Gives the expression for a local.
        root: Name of the parameter that holds the root.
        holders: Prefix of a path -> the local that is to hold what is found there (see `name_holders`).
    """

    def __init__(
        self,
        attribute: Callable[[ExpressionT, str], ExpressionT],
        local: Callable[[str], ExpressionT],
        root: str,
        holders: dict[str, str],
    ) -> None:
        self._attribute = attribute
        self._local = local
        self._holders = holders
        self._root = local(root)
        self.known: dict[str, ExpressionT] = {}
        """Path -> the expression that was given for it."""
        self.pending: list[tuple[str, ExpressionT]] = []
        """Locals that must be bound before the expressions that were printed last are reached, each with what it is to
        hold; whoever writes these statements empties it."""

    def text(self, path: str) -> ExpressionT:
        """Return an expression that reads `path`."""
        known = self.known.get(path)
        if known is not None:
            return known
        prefix, dot, name = path.rpartition(".")
        known = self.known[path] = self._attribute(self.base(prefix) if dot else self._root, name)
        return known

    def base(self, prefix: str) -> ExpressionT:
        """Return an expression that reads the module at `prefix`."""
        known = self.known.get(prefix)
        return self._open(prefix) if known is None else known

    def _open(self, prefix: str) -> ExpressionT:
        """Return the expression for a prefix that is met for the first time."""
        text, end = self._root, -1
        while end < len(prefix):
            start = end + 1
            end = prefix.find(".", start)
            end = len(prefix) if end < 0 else end
            walked = prefix[:end]
            known = self.known.get(walked)
            if known is None:
                known = self._attribute(text, prefix[start:end])
                holder = self._holders.get(walked)
                if holder is not None:
                    self.pending.append((holder, known))
                    known = self._local(holder)
                self.known[walked] = known
            text = known
        return text
