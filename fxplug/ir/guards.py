"""Guards: what was assumed about the inputs, and about what is around a program, while it was captured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

__all__ = ["Guard", "StateGuard"]


@dataclass(frozen=True)
class Guard:
    """Something that the captured program relies on: a question that the program asked, with its answer."""

    text: str
    """The predicate, as an expression over the inputs: ``"x.shape[0] > 1"``."""
    line: str = ""
    """Where the program asked: file, line and function; empty where no line did."""
    source: str = ""
    """The text of that line."""

    def __str__(self) -> str:
        where = f" (asked at {self.line}: {self.source!r})" if self.line else ""
        return f"{self.text}{where}"


@dataclass(frozen=True)
class StateGuard:
    """What the program was told when it asked something besides its inputs, which may have another answer later."""

    asked: str
    """``"self.block.training"``, ``"self.weight.dtype"`` or ``"torch.is_autocast_enabled"``."""
    arguments: tuple[Any, ...]
    """With which a function of torch was asked."""
    expected: Any
    """The answer."""
    line: str = ""
    """Where the program asked; empty where that is not known."""
    source: str = ""
    """The text of that line."""

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """The names on the way to what was asked: ``("self", "block", "training")``."""
        return tuple(self.asked.split("."))

    @property
    def guard(self) -> Guard:
        """The guard, as others are shown."""
        asked = self.asked
        if self.steps[0] == "torch":
            asked = f"{asked}({', '.join(map(repr, self.arguments))})"
        form = "is" if self.expected is None or isinstance(self.expected, bool) else "=="
        return Guard(f"{asked} {form} {self.expected}", self.line, self.source)

    def below(self, path: str) -> StateGuard:
        """Return the same guard for a root that has the module at `path`."""
        if self.steps[0] != "self" or not path:
            return self
        return replace(self, asked=f"self.{path}.{self.asked.removeprefix('self.')}")
