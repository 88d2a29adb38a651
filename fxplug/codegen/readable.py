"""Generated source for people: where values come from in the program, and what they are like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fxplug.ir import is_plain_name, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.ir import Node, SourceStyle

__all__ = ["annotate", "as_identifier", "described"]

_RED, _GREEN, _DIM, _RESET = "\033[31m", "\033[2m\033[32m", "\033[2m", "\033[0m"
_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)')


def as_identifier(text: str) -> str:
    """Return a name that can stand in source, near to any text."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text) or "_"
    return name if is_plain_name(name) else f"_{name}"


def described(node: Node, style: SourceStyle) -> str:
    """Return an annotation that says what a node's value is like, empty where that is not known."""
    text = node.tensor_text(stride=style.include_stride, device=style.include_device) if style.verbose else ""
    if not text:
        return ""
    quoted = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'{_RED}"{quoted}"{_RESET}' if style.colored else f'"{quoted}"'


def annotate(
    statements: list[str], names: list[str], nodes: Iterable[Node], style: SourceStyle
) -> tuple[list[str], list[str]]:
    """Add comments and annotations to the body of a function.

    Args:
        statements: The lines.
        names: Name of the node for each line.
        nodes: The nodes.
        style: What is added.

    Returns:
        Lines and names with what was added; the statements compute what they did.
    """
    by_name = {node.name: node for node in nodes}
    texts: list[str] = []
    text_names: list[str] = []
    position, last = "", ""
    for statement, name in zip(statements, names, strict=True):
        node = by_name.get(name)
        if node is not None and name != last:
            former, position = position, _position(node)
            indent = statement[: len(statement) - len(statement.lstrip(" "))]
            history = printable(", ".join(map(str, dict.fromkeys(map(str, node.history)))))
            for comment in (
                position if position != former else "",
                f"Made by: {history}" if history else "",
                _notes(node, style),
            ):
                if comment:
                    texts.append(f"{indent}{_painted(f'# {comment}', _GREEN, style)}")
                    text_names.append("")
        texts.append(_annotated(statement, node, style))
        text_names.append(name)
        last = name
    return texts, text_names


def _annotated(statement: str, node: Node | None, style: SourceStyle) -> str:
    body, separator, freed = statement.rpartition(";  ")
    if style.colored and separator:
        statement = f"{body}{separator}{_DIM}{freed}{_RESET}"
    if node is None or node.op == "output":
        return statement
    head, equals, rest = statement.partition(" = ")
    text = described(node, style)
    return f"{head} : {text}{equals}{rest}" if text and head.lstrip(" ") == node.name else statement


def _painted(text: str, color: str, style: SourceStyle) -> str:
    return f"{color}{text}{_RESET}" if style.colored else text


def _position(node: Node) -> str:
    """Return the innermost line of the program that a node came from."""
    lines = (node.stack_trace or "").splitlines() if node.op not in {"placeholder", "output"} else []
    for number in range(len(lines) - 1, -1, -1):
        found = _FRAME.fullmatch(lines[number])
        if found is not None:
            code = "".join(lines[number + 1 : number + 2]).strip()
            text = f"File: {found['file']}:{found['line']} in {found['function']}"
            return printable(f"{text}, code: {code}" if code else text)
    return ""


def _notes(node: Node, style: SourceStyle) -> str:
    notes = node.meta if style.additional_meta else {}
    return printable(", ".join([f"{key}: {notes[key]}" for key in style.additional_meta if key in notes]))
