"""What Python accepts as the parameters of a function, asked of placeholders."""

from __future__ import annotations

import keyword
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fxplug.ir.node import Node

__all__ = ["find_parameter_faults", "is_plain_name", "split_stars"]

_UNASSIGNABLE = frozenset({*keyword.kwlist, "__debug__"})


def is_plain_name(text: str) -> bool:
    """Return whether `text` can stand in source as an identifier and is read as that very text."""
    if text in _UNASSIGNABLE or not text.isidentifier():
        return False
    # Python reads other letters than ASCII in their normal form, which would be another name.
    return text.isascii() or unicodedata.normalize("NFKC", text) == text


def split_stars(target: str) -> tuple[str, str]:
    """Return the stars in front of a placeholder's target, and the parameter's name."""
    name = target.lstrip("*")
    return target[: len(target) - len(name)], name


def find_parameter_faults(placeholders: Iterable[Node], keyword_only: frozenset[str]) -> Iterator[str]:
    """Yield a sentence for each placeholder that Python would not accept as a parameter where it stands.

    Args:
        placeholders: In order.
        keyword_only: Names of those that callers must pass by keyword; behind ``*args`` all are.
    """
    seen: set[str] = set()
    rank, star = 0, False
    with_default: str | None = None
    for node in placeholders:
        stars, name = split_stars(str(node.target))
        if not is_plain_name(name) or len(stars) > 2:
            yield (
                f"placeholder {node.name!r} has the target {node.target!r}, which is not a parameter name; set "
                "node.target to a Python identifier"
            )
            continue
        if name in seen:
            yield f"two placeholders have the target {name!r}; give each parameter its own name"
        seen.add(name)
        own = {"*": 1, "**": 3}.get(stars, 2 if star or name in keyword_only else 0)
        if own < rank or (own == rank and stars):
            yield (
                f"placeholder {node.name!r} ({node.target}) may not stand behind the others; the order is: plain ones, "
                "*args, keyword-only ones, **kwargs"
            )
        rank, star = max(rank, own), star or stars == "*"
        if stars and node.args:
            yield f"placeholder {node.name!r} ({node.target}) has a default, which starred ones cannot have"
        elif node.args:
            with_default = node.name if own == 0 else with_default
        elif own == 0 and with_default is not None:
            yield f"placeholder {node.name!r} has no default, but stands behind {with_default!r}, which has one"
