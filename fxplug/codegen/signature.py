"""The signature of a generated function, read off the placeholders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.errors import CodegenError
from fxplug.ir import find_parameter_faults, split_stars

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
        CodegenError: Python would not accept the parameters; the message names each that is wrong.
    """
    placeholders: list[Node] = []
    returns: Any = None
    for node in nodes:
        if node.op == "placeholder":
            placeholders.append(node)
        elif node.op == "output":
            returns = node.type
    faults = list(find_parameter_faults(placeholders, keyword_only))
    faults += [
        f"the default of placeholder {node.name!r} is a node, which has no value yet when the function is made; use a "
        "constant"
        for node in placeholders
        if node.all_input_nodes
    ]
    if faults:
        raise CodegenError(f"Cannot generate code: {'; '.join(faults)}.")
    parameters: list[Parameter] = []
    star = False
    for node in placeholders:
        stars, name = split_stars(node.target)
        parameters.append(Parameter(name, stars, node, not stars and (star or name in keyword_only)))
        star = star or stars == "*"
    return Signature(tuple(parameters), returns)
