"""Texts of any kind as parts of DOT that stand for themselves."""

from __future__ import annotations

import html
import re

__all__ = ["html_text", "identifier", "quoted", "record", "shortened", "tooltip", "visible"]

# What a record label gives a meaning to. Backslash is among them, and so is the ampersand, which begins an entity.
_MEANINGFUL = {**{sign: f"\\{sign}" for sign in '\\"{}|<>'}, "&": "&amp;"}
# Graphviz reads no quoted text of more than 16384 bytes, but sums of them; a quote must stay with its backslash.
_PIECE = re.compile(r"(?:[^\\]|\\.){1,2000}", re.DOTALL)
# Graphviz drops these: a space at an end of a field, and one that follows another.
_DROPPED_SPACE = re.compile(r"^ | $|(?<= ) ")


def record(rows: list[list[str]], longest: int, direction: str = "TB") -> str:
    """Return rows below each other, the cells of a row side by side, as a label for a node of shape ``record``.

    Args:
        rows: Texts of any kind.
        longest: What is longer is cut.
        direction: Where the graph goes: from left to right, Graphviz turns records by a quarter.
    """
    cells = [[_in_record(shortened(cell, longest)) for cell in row] for row in rows]
    label = "|".join(row[0] if len(row) == 1 else "{" + "|".join(row) + "}" for row in cells)
    return _literal(label if direction == "LR" else "{" + label + "}")


def quoted(text: str, longest: int = 80) -> str:
    """Return a quoted text that stands for itself where no record is meant."""
    shown = visible(shortened(text, longest)).replace("&", "&amp;")
    return _literal(shown.replace("\\", "\\\\").replace('"', '\\"'))


def tooltip(text: str, longest: int) -> str:
    """Return a quoted text that stands for itself as a tooltip, in which Graphviz looks for escapes twice."""
    return quoted(visible(shortened(text, longest)).replace("\\", "\\\\"), 8 * longest)


def identifier(name: str) -> str:
    """Return the name of a node in the picture; names of nodes are identifiers, so nothing in them has a meaning."""
    return _literal(name)


def html_text(text: str, longest: int) -> str:
    """Return a text that stands for itself inside a label in angle brackets."""
    # Graphviz looks for escapes once more in what entities stand for, and takes a closing bracket for the end of CDATA.
    shown = html.escape(visible(shortened(text, longest))).replace("\\", "&#92;&#92;").replace("]", "&#93;")
    return _DROPPED_SPACE.sub("&#160;", shown)


def shortened(text: str, longest: int) -> str:
    """Return a text of no more than `longest` characters; an ellipsis says that there was more."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def visible(text: str) -> str:
    """Return `text` with what a picture cannot show, line ends among it, in the form of Python's escapes."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def _in_record(text: str) -> str:
    literal = "".join(_MEANINGFUL.get(sign, sign) for sign in visible(text))
    return _DROPPED_SPACE.sub(r"\\ ", literal)


def _literal(content: str) -> str:
    return " + ".join(f'"{piece}"' for piece in _PIECE.findall(content)) or '""'
