"""A limit on rewrites: whoever rewrites asks before each one, so that a search can find the one that does harm.

Patterns and decompositions ask by themselves, passes through `fxplug.PassContext.allows`. As long as nobody has set a
limit, every answer is yes. LLVM's ``-opt-bisect-limit`` and the debug counters of MLIR serve the same end.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from fxplug.ir import Node

__all__ = ["Rewrite", "RewriteLimit", "allows_rewrite", "is_limited"]


@dataclass(frozen=True)
class Rewrite:
    """One rewrite that somebody asked for."""

    what: str
    """What was to be done, e.g. ``"fold"``."""
    node: str
    """Name of the node that was to be rewritten; the last one of several."""
    occurrence: int = 0
    """How many equal ones had been asked for before."""


class RewriteLimit:
    """Allows the first so many rewrites, or one certain rewrite, and no others, as long as it is `applied`.

    Args:
        first: How many are allowed; None allows all.
        only: The one that is allowed; None for any.
    """

    def __init__(self, first: int | None = None, only: Rewrite | None = None) -> None:
        self.first, self.only = first, only
        self.asked: list[Rewrite] = []
        """Every rewrite that was asked for, in order; those that were allowed come first where `first` is given."""
        self.last_node: Node | None = None
        """The node of the last one that was allowed."""
        self.allowed = 0
        """How many were allowed."""
        self._seen: dict[tuple[str, str], int] = {}

    @contextmanager
    def applied(self) -> Generator[None]:
        """Ask this limit, in this thread, while the context lasts."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def allows(self, node: Node, what: str) -> bool:
        """Note a rewrite and return whether it may be done."""
        what = str(what)  # Reports hold it as text, whatever it is.
        key = what, node.name
        occurrence = self._seen.get(key, 0)
        self._seen[key] = occurrence + 1
        rewrite = Rewrite(what, node.name, occurrence)
        self.asked.append(rewrite)
        allowed = (self.first is None or self.allowed < self.first) and self.only in {None, rewrite}
        if allowed:
            self.allowed += 1
            self.last_node = node
        return allowed


_CURRENT: ContextVar[RewriteLimit | None] = ContextVar("rewrite_limit", default=None)


def is_limited() -> bool:
    """Return whether anybody has a say in rewrites: asking of each of thousands takes its time."""
    return _CURRENT.get() is not None


def allows_rewrite(node: Node, what: str) -> bool:
    """Return whether a rewrite may be done; whoever is answered no leaves the node as it is.

    Args:
        node: What is about to be rewritten.
        what: What is about to be done to it, in a word or two.
    """
    limit = _CURRENT.get()
    return limit is None or limit.allows(node, what)
