"""From a graph to the source of one Python function: one statement for each node, values freed after their last use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.codegen.emitters import AUGMENTED, ExpressionEmitter, symbol_of
from fxplug.codegen.globals import GlobalTable
from fxplug.codegen.literals import ArgumentPrinter
from fxplug.codegen.signature import signature_of
from fxplug.errors import CodegenError
from fxplug.ir import PLAIN, Node, PythonCode, Region, common_depth, exact_text, is_plain_name, is_reserved

if TYPE_CHECKING:
    from fxplug.ir import Graph

__all__ = ["CodeGen"]

_INDENT = "    "


class CodeGen:
    """Generates the forward function of a graph.

    Names, attribute paths and constants of a graph are data: none of them is ever copied into the source
    unless it is a valid identifier or an exact builtin literal.
    """

    def generate(self, graph: Graph, root_module: str = "self") -> PythonCode:
        """Return the source of a function that computes `graph`.

        Args:
            graph: The graph; it is not changed.
            root_module: Wish for the name of the first parameter, which holds the root.

        Raises:
            CodegenError: A placeholder or a node has a name that cannot stand in source.
        """
        root_module = exact_text(root_module)
        if not is_plain_name(root_module):
            raise CodegenError(
                f"Cannot generate code: {root_module!r} cannot be the name of the root's parameter. Use an identifier."
            )
        try:
            return self._generate(graph, root_module)
        except RecursionError as error:
            raise CodegenError(
                "Cannot generate code: an argument is nested too deeply. Put the inner parts into nodes of their own."
            ) from error

    def _generate(self, graph: Graph, root_module: str) -> PythonCode:
        nodes = list(graph.nodes)
        signature = signature_of(nodes, graph.keyword_only)
        parameters = {parameter.name for parameter in signature.parameters}
        names = {node: node.name for node in nodes}
        taken = {*names.values(), *parameters}
        root = root_module
        while root in taken:
            root = f"_fxp_{root}"
        taken.add(root)
        table = GlobalTable(taken)
        printer = ArgumentPrinter(table, names)
        body = _Body(printer, ExpressionEmitter(printer, table, root), last_uses(nodes))
        renamed = [
            (entry.node.name, entry.name) for entry in signature.parameters if entry.name != entry.node.name
        ]
        if renamed:
            # All at once: the new name of one parameter may be the old name of another.
            new, old = (", ".join(names) for names in zip(*renamed, strict=True))
            body.add(f"{new} = {old}", new if len(renamed) == 1 else "")
        for node in nodes:
            body.emit(node)
        header = signature.text(printer, "forward", root)
        source = "\n".join([header, *(body.statements or [f"{_INDENT}pass"]), ""])
        lines = {number + 2: name for number, name in enumerate(body.line_names) if name}
        return PythonCode(source, table.globals, "forward", lines)


def last_uses(nodes: list[Node]) -> dict[Node, list[Node]]:
    """Return, for each node, the nodes whose values are not needed once it has run."""
    freed: dict[Node, list[Node]] = {}
    seen: set[Node] = set()
    for node in reversed(nodes):
        ending = [used for used in node.all_input_nodes if used not in seen]
        seen.update(ending)
        if not node.users and node.op not in {"placeholder", "output"}:
            ending.append(node)
        if ending:
            freed[node] = ending
    return freed


class _Body:
    """Collects the statements of the function and keeps track of the open ``with`` blocks."""

    def __init__(
        self, printer: ArgumentPrinter, emitter: ExpressionEmitter, freed: dict[Node, list[Node]]
    ) -> None:
        self.statements: list[str] = []
        self.line_names: list[str] = []
        self._printer = printer
        self._emitter = emitter
        self._freed = freed
        self._region: Region = PLAIN
        self._indent = _INDENT

    def add(self, statement: str, name: str = "") -> None:
        self.statements.append(self._indent + statement)
        self.line_names.append(name)

    def emit(self, node: Node) -> None:
        if node.op == "placeholder":
            return
        if node.op == "output":
            self._enter(PLAIN)
            if not node.args:
                raise CodegenError(
                    f"Cannot generate code: output {node.name!r} returns nothing. Give it one argument, the result."
                )
            self.add(f"return {self._printer.text(node.args[0])}", node.name)
            return
        name = node.name
        if not is_plain_name(name) or is_reserved(name):
            raise CodegenError(
                f"Cannot generate code: a node is named {name!r}, which cannot be the name of a value. "
                "Assign node.name."
            )
        if node.region is not self._region:
            self._enter(node.region)
        statement = self._statement(node)
        ending = self._freed.get(node)
        if ending is not None:
            statement += f";  {' = '.join([value.name for value in ending])} = None"
        self.add(statement, node.name)

    def _statement(self, node: Node) -> str:
        symbol = (
            symbol_of(AUGMENTED, node.target)
            if node.op == "call_function" and _is_binary_of_node(node)
            else None
        )
        if symbol is not None:
            receiver = self._printer.text(node.args[0])
            # The receiver's name keeps its old binding when somebody reads it later: rebinding could hide a
            # new object.
            return f"{node.name} = {receiver}; {node.name} {symbol} {self._printer.text(node.args[1])}"
        annotation = f" : {self._printer.text(node.type)}" if node.type is not None else ""
        return f"{node.name}{annotation} = {self._emitter.expression(node)}"

    def _enter(self, region: Region) -> None:
        depth = common_depth(self._region, region)
        for entry in region[depth:]:
            self._indent = _INDENT * (depth + 1)
            context = self._printer.text(entry.context)
            arguments = self._printer.call_arguments(entry.arguments, {})
            self.add(f"with {context}({arguments}):")
            depth += 1
        self._indent = _INDENT * (len(region) + 1)
        self._region = region


def _is_binary_of_node(node: Node) -> bool:
    return len(node.args) == 2 and not node.kwargs and isinstance(node.args[0], Node)
