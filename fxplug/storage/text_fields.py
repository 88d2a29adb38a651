"""What a text reads when it is formatted: the fields of ``str.format`` name attributes."""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["is_plain_format"]

_DEEPEST = 2
"""How deeply fields are nested in fields; Python formats no more."""


def is_plain_format(text: str, hidden: Collection[str], depth: int = 1) -> bool:
    """Return whether the fields of a text read public attributes alone.

    Args:
        text: What ``str.format`` is called on.
        hidden: Names of attributes that are not public although they do not begin with an underscore.
        depth: How many fields this text is nested in, and one.
    """
    try:
        fields = [(name or "", spec or "") for _, name, spec, _ in string.Formatter().parse(text)]
    except ValueError:
        return False
    for name, spec in fields:
        attributes = re.split(r"[.\[\]]", name)[1:]
        if any(part.startswith("_") or part in hidden for part in attributes):
            return False
        if "{" in spec and (depth >= _DEEPEST or not is_plain_format(spec, hidden, depth + 1)):
            return False
    return True
