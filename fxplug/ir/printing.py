"""Tables of nodes as plain text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fxplug.ir.naming import qualified_name
from fxplug.ir.text import plain_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.ir.node import Node

__all__ = ["TABLE_HEADER", "format_table", "node_rows", "print_table"]

TABLE_HEADER = ("opcode", "name", "target", "args", "kwargs")


def node_rows(nodes: Iterable[Node]) -> list[tuple[str, str, str, str, str]]:
    """Return opcode, name, target, args and kwargs of each node as text."""
    return [
        (
            node.op,
            node.name,
            node.target if isinstance(node.target, str) else qualified_name(node.target),
            plain_text(node.args),
            plain_text(node.kwargs),
        )
        for node in nodes
    ]


def format_table(nodes: Iterable[Node]) -> str:
    """Return a table of nodes with aligned columns and a header."""
    rows = [TABLE_HEADER, *node_rows(nodes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(TABLE_HEADER))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def print_table(nodes: Iterable[Node]) -> None:
    """Write a table of nodes to standard output."""
    sys.stdout.write(format_table(nodes) + "\n")
