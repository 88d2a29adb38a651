"""The signature of a generated function, read off the placeholders."""

# Hot path: goes to the parts of a node directly, since its properties would cost a quarter of the time.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.errors import CodegenError
from fxplug.ir import find_parameter_faults, split_stars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fxplug.codegen.literals import ArgumentPrinter
    from fxplug.ir import Node

__all__ = ["Parameter", "Signature", "function_head", "signature_of"]


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

    def parameter_texts(self, printer: ArgumentPrinter, describe: Callable[[Node], str]) -> list[str]:
        """Return each parameter as it stands in a signature, with a ``"*"`` before those passed by keyword.

        Args:
            printer: Prints annotations and defaults.
            describe: Gives the annotation of a parameter that has none, or nothing.
        """
        parts: list[str] = []
        opened = False
        for parameter in self.parameters:
            if parameter.keyword_only and not opened:
                parts.append("*")
            opened = opened or parameter.keyword_only or parameter.stars == "*"
            node = parameter.node
            annotation = printer.text(node.type) if node.type is not None else describe(node)
            part = parameter.stars + parameter.name
            if annotation:
                part += f" : {annotation}"
            if parameter.has_default:
                part += f" = {printer.text(node.args[0])}"
            parts.append(part)
        return parts

    def renamed(self) -> dict[str, str]:
        """Return the name of the node -> that of the parameter, where a node could not be named as its parameter is."""
        return {entry.node.name: entry.name for entry in self.parameters if entry.name != entry.node.name}

    def returns_text(self, printer: ArgumentPrinter) -> str:
        """Return the annotation of the result with its arrow, empty where there is none."""
        return f" -> {printer.text(self.returns)}" if self.returns is not None else ""


def function_head(name: str, parameters: Sequence[str], returns: str, *, expanded: bool = False) -> str:
    """Return a ``def`` statement.

    Args:
        name: Of the function.
        parameters: As they stand in a signature.
        returns: Annotation of the result with its arrow, or empty.
        expanded: Whether each parameter gets a line of its own.
    """
    if not expanded:
        return f"def {name}({', '.join(parameters)}){returns}:"
    inner = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"def {name}(\n{inner}){returns}:"


def signature_of(nodes: Iterable[Node], keyword_only: frozenset[str] = frozenset()) -> Signature:
    """Return the signature that the placeholders among `nodes` declare.

    Raises:
        CodegenError: Python would not accept the parameters; the message names each that is wrong.
    """
    placeholders: list[Node] = []
    returns: Any = None
    for node in nodes:
        op = node._op
        if op == "placeholder":
            placeholders.append(node)
        elif op == "output":
            returns = node._type
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
