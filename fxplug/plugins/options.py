"""What there is to be said about the fields of a dataclass that holds settings: types, defaults, descriptions."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

__all__ = ["OptionInfo", "attribute_docstrings", "describe_options"]


@dataclass(frozen=True)
class OptionInfo:
    """One option."""

    name: str
    type: str
    """As the class writes it."""
    default: Any = None
    """None, too, when there is none and the option has to be given."""
    required: bool = False
    description: str = ""
    """From the docstring below the field; empty when there is none."""


def describe_options(options: type[Any] | None) -> tuple[OptionInfo, ...]:
    """Return what there is to be known about each field that a dataclass takes.

    Args:
        options: The dataclass; None for no options.
    """
    if options is None:
        return ()
    texts = attribute_docstrings(options)
    return tuple(
        OptionInfo(
            entry.name,
            _type_text(entry),
            _default_of(entry),
            entry.default is MISSING and entry.default_factory is MISSING,
            texts.get(entry.name, ""),
        )
        for entry in fields(options)
        if entry.init
    )


def attribute_docstrings(kind: type[Any]) -> dict[str, str]:
    """Return the texts that stand below the attributes of a class and of those it derives from, each as one line."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        texts.update(_own_docstrings(base))
    return texts


def _own_docstrings(kind: type[Any]) -> dict[str, str]:
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (
        OSError,
        TypeError,
        SyntaxError,
        ValueError,
    ):  # A class without source, as of an interactive session.
        return {}
    if not isinstance(body, ast.ClassDef):
        return {}
    texts: dict[str, str] = {}
    for attribute, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(attribute, ast.AnnAssign)
            and isinstance(attribute.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            texts[attribute.target.id] = " ".join(text.value.value.split())
    return texts


def _type_text(entry: Field[Any]) -> str:
    kind: Any = entry.type
    return kind if isinstance(kind, str) else inspect.formatannotation(kind)


def _default_of(entry: Field[Any]) -> Any:
    if entry.default is not MISSING:
        return entry.default
    return None if entry.default_factory is MISSING else entry.default_factory()
