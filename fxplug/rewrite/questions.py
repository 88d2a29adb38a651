"""Asking functions of the user's about a match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.capture.sources import line_of_program
from fxplug.errors import PatternError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.ir import Node

__all__ = ["asked", "named"]


def named(function: Any) -> str:
    """Return what a function is called, for people."""
    return str(
        getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)
    )


def asked(word: str, function: Callable[..., Any], args: tuple[Any, ...], node: Node | None) -> Any:
    """Return what a function of the user's says.

    Args:
        word: What the function is: ``"condition"``, ``"callback"``, ``"filter"`` or ``"predicate"``.
        function: Is called. What all but a callback return is taken as true or false.
        args: What it is called with.
        node: The one at which the match begins, where that is known.

    Raises:
        PatternError: It failed.
    """
    try:
        answer = function(*args)
        return answer if word == "callback" else bool(answer)
    except Exception as error:
        about = f" for {args[0]!r}" if word == "predicate" else ""
        raise PatternError(
            f"Cannot search for the pattern: the {word} {named(function)} raised {type(error).__name__}: "
            f"{error}{about}{_place_of(node)}. Nothing was changed. Mend the {word}: it must answer for every place "
            "that is like the pattern."
        ) from error


def _place_of(node: Node | None) -> str:
    if node is None:
        return ""
    line = line_of_program(frame for origin in node.origins[:1] for frame in origin.frames())
    return f", at the node {node.name!r}{'' if line is None else f' ({line})'}"
