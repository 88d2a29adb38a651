"""How the host says no to a plugin while it loads it."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["PluginWarning", "Refused", "check_name", "in_sentences", "is_text_list"]

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class PluginWarning(UserWarning):
    """A plugin was skipped, or one of its observers failed; the message says which, why and what to do."""


class Refused(Exception):  # noqa: N818 - a verdict, which never leaves the host
    """A plugin cannot take part; the message says why, in a clause."""


def check_name(name: Any, what: str) -> None:
    """Refuse what is no name of lower-case words joined by hyphens.

    Args:
        name: What was given.
        what: Says in the message whose name it is.

    Raises:
        Refused: It is none.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise Refused(f"{what} is named {name!r}; names are lower-case words joined by hyphens")


def is_text_list(value: Any) -> bool:
    """Return whether a value is a list or tuple of texts."""
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


def in_sentences(reason: str, remedy: str) -> str:
    """Return a reason, which may be a clause or end in a question, and what to do about it, as sentences."""
    ends = not remedy or reason.endswith((".", "?"))
    return f"{reason}{'' if ends else '.'} {remedy}".strip()
