"""The signature of a generated function, read off the placeholders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.codegen.literals import is_plain_name
from fxplug.errors import CodegenError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.codegen.literals import ArgumentPrinter
    from fxplug.ir import Node

__all__ = ["Parameter", "Signature", "signature_of"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a generated function."""

    name: str
    """Without stars."""
    stars: str
    """``""``, ``"*"`` or ``"**"``."""
    node: Node
    """The placeholder."""
    keyword_only: bool = False
    """Whether callers must name it."""

    @property
    def has_default(self) -> bool:
        """Whether the parameter may be left out."""
        return bool(self.node.args)


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters in order, and the annotation of the result."""

    parameters: tuple[Parameter, ...]
    returns: Any = None

    def text(self, printer: ArgumentPrinter, function_name: str, root: str) -> str:
        """Return the ``def`` line."""
        parts = [root]
        opened = False
        for parameter in self.parameters:
            if parameter.keyword_only and not opened:
                parts.append("*")
            opened = opened or parameter.keyword_only or parameter.stars == "*"
            annotation = parameter.node.type
            part = parameter.stars + parameter.name
            if annotation is not None:
                part += f" : {printer.text(annotation)}"
            if parameter.has_default:
                part += f" = {printer.text(parameter.node.args[0])}"
            parts.append(part)
        arrow = f" -> {printer.text(self.returns)}" if self.returns is not None else ""
        return f"def {function_name}({', '.join(parts)}){arrow}:"


def signature_of(nodes: Iterable[Node], keyword_only: frozenset[str] = frozenset()) -> Signature:
    """Return the signature that the placeholders among `nodes` declare.

    Raises:
        CodegenError: A placeholder's target is no parameter name, or two have the same.
    """
    parameters: list[Parameter] = []
    returns: Any = None
    seen: set[str] = set()
    for node in nodes:
        if node.op == "output":
            returns = node.type
        if node.op != "placeholder":
            continue
        name = str(node.target).lstrip("*")
        stars = str(node.target)[: len(node.target) - len(name)]
        if not is_plain_name(name) or len(stars) > 2:
            raise CodegenError(
                f"Cannot generate code: placeholder {node.name!r} has the target {node.target!r}, which is "
                "not a parameter name. Set node.target to a Python identifier."
            )
        if name in seen:
            raise CodegenError(
                f"Cannot generate code: two placeholders have the target {name!r}. Give each parameter its "
                "own name."
            )
        seen.add(name)
        parameters.append(Parameter(name, stars, node, name in keyword_only and not stars))
    return Signature(tuple(parameters), returns)
