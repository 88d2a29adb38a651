"""Who shows graphs in notebooks: somebody above, who knows plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["notebook_bundle", "show_in_notebooks"]


class _Notebooks:
    """Holds who shows graphs; a holder, so that nothing is rebound at module level."""

    def __init__(self) -> None:
        self.show: Callable[[Any], dict[str, str | bytes]] = lambda _: {}


_notebooks = _Notebooks()


def show_in_notebooks(show: Callable[[Any], dict[str, str | bytes]]) -> None:
    """Let notebooks show graphs and graph modules as `show` says, which maps MIME types to contents, besides text."""
    _notebooks.show = show


def notebook_bundle(value: Any) -> dict[str, str | bytes]:
    """Return how a notebook shows a graph or a graph module besides its text; empty when nobody knows more."""
    return _notebooks.show(value)
