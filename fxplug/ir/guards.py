"""Guards: what was assumed about the inputs while a program was captured."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Guard"]


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
