"""What users may change about generated code: hooks of the generator, and transformers of the finished body."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from fxplug.errors import CodegenError
from fxplug.ir import is_plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fxplug.ir import CodeTransformer

__all__ = ["call_hook", "check_globals", "hook_text", "is_overridden", "transform_body"]

_INDENT = "    "


def is_overridden(instance: object, base: type, name: str) -> bool:
    """Return whether `instance` has another method `name` than `base`: of its class, or its own."""
    return getattr(getattr(instance, name), "__func__", None) is not getattr(base, name)


def call_hook(hook: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a hook with those options that it takes: many were written before there were any."""
    parameters = inspect.signature(hook).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        options = {name: value for name, value in options.items() if name in parameters}
    return hook(*args, **options)


def hook_text(what: str, text: object) -> str:
    """Return what a hook gave, which must be text.

    Raises:
        CodegenError: It is something else.
    """
    if not isinstance(text, str):
        raise CodegenError(
            f"Cannot generate code: {what} gave a {type(text).__name__} where text is needed. Make it return text."
        )
    return text


def check_globals(given: Iterable[tuple[str, Any]], taken: set[str]) -> dict[str, Any]:
    """Return the globals that a code generator adds, by name.

    Args:
        given: Pairs of name and value.
        taken: Names that the function binds itself.

    Raises:
        CodegenError: A name is no identifier, or is one of `taken`.
    """
    found: dict[str, Any] = {}
    for name, value in given:
        if not is_plain_name(name):
            raise CodegenError(
                f"Cannot generate code: additional_globals of the code generator names {name!r}, which is no "
                "identifier. Use another name."
            )
        if name in taken:
            raise CodegenError(
                f"Cannot generate code: a node or parameter is named {name!r}, which the code generator uses for a "
                "global of its own (additional_globals). Assign node.name."
            )
        found[name] = value
    return found


def transform_body(
    transformer: CodeTransformer, statements: list[str], names: list[str]
) -> tuple[list[str], list[str]]:
    """Hand the body of a function to a transformer.

    Args:
        transformer: Gets the lines without the indentation that all have in common.
        statements: The lines, indented.
        names: Name of the node for each line.

    Returns:
        The lines that take their place, indented, and the names; a line that the transformer did not keep has none.
    """
    lines = [statement[len(_INDENT) :] + "\n" for statement in statements]
    name_of = {id(line): name for line, name in zip(lines, names, strict=True)}
    texts: list[str] = []
    text_names: list[str] = []
    pending = ""
    for element in transformer(list(lines)):
        *ended, pending = (pending + hook_text("a code transformer (graph.on_generate_code)", element)).split(
            "\n"
        )
        texts.extend(ended)
        text_names.extend([name_of.get(id(element), "")] * len(ended))
    if pending:
        texts.append(pending)
        text_names.append("")
    return [_INDENT + text if text else "" for text in texts], text_names
