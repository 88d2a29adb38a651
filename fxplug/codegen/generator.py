"""From a graph to the source of one Python function: one statement for each node, values freed after their last use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.codegen.emitters import AUGMENTED, ExpressionEmitter, symbol_of
from fxplug.codegen.globals import GlobalTable
from fxplug.codegen.holders import PathPrinter, name_holders
from fxplug.codegen.literals import ArgumentPrinter
from fxplug.codegen.signature import signature_of
from fxplug.errors import CodegenError
from fxplug.ir import PLAIN, Node, PythonCode, Region, common_depth, exact_text, is_plain_name, is_reserved

if TYPE_CHECKING:
    from fxplug.ir import Graph

__all__ = ["CodeGen"]

_INDENT = "    "
_READS = frozenset({"call_module", "get_attr"})
_NEVER_FREED = frozenset({"placeholder", "output"})


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
        names = {node: node.name for node in nodes}
        taken = {*names.values(), *(parameter.name for parameter in signature.parameters)}
        root = root_module
        while root in taken:
            root = f"_fxp_{root}"
        taken.add(root)
        targets = [node.target for node in nodes if node.op in _READS]
        holders = name_holders(targets, taken)
        table = GlobalTable(taken)
        printer = ArgumentPrinter(table, names)
        paths = PathPrinter(printer, root, holders)
        body = _Body(printer, ExpressionEmitter(printer, table, paths), paths.pending, names)
        renamed = [
            (entry.node.name, entry.name) for entry in signature.parameters if entry.name != entry.node.name
        ]
        if renamed:
            # All at once: the new name of one parameter may be the old name of another.
            new, old = (", ".join(names) for names in zip(*renamed, strict=True))
            body.add(f"{new} = {old}", new if len(renamed) == 1 else "")
        body.emit_all(nodes, last_uses(nodes))
        header = signature.text(printer, "forward", root)
        source = "\n".join([header, *(body.statements or [f"{_INDENT}pass"]), ""])
        lines = {number: name for number, name in enumerate(body.line_names, 2) if name}
        return PythonCode(source, table.globals, "forward", lines)


def last_uses(nodes: list[Node]) -> dict[Node, list[Node]]:
    """Return, for each node, the nodes whose values are not needed once it has run."""
    last: dict[Node, Node] = {}
    for node in nodes:
        for used in node.all_input_nodes:
            last.pop(used, None)  # The dict's order becomes the order of the last uses.
            last[used] = node
        if not node.users and node.op not in _NEVER_FREED:
            last[node] = node
    freed: dict[Node, list[Node]] = {}
    for used, node in last.items():
        ending = freed.get(node)
        if ending is None:
            freed[node] = [used]
        else:
            ending.append(used)
    return freed


class _Body:
    """Collects the statements of the function and keeps track of the open ``with`` blocks."""

    def __init__(
        self, printer: ArgumentPrinter, emitter: ExpressionEmitter, pending: list[str], names: dict[Node, str]
    ) -> None:
        self.statements: list[str] = []
        self.line_names: list[str] = []
        self._printer = printer
        self._emitter = emitter
        self._pending = pending
        self._names = names
        self._region: Region = PLAIN
        self._indent = _INDENT

    def add(self, statement: str, name: str = "") -> None:
        self.statements.append(self._indent + statement)
        self.line_names.append(name)

    def emit_all(self, nodes: list[Node], freed: dict[Node, list[Node]]) -> None:
        names, pending, emitters = self._names, self._pending, self._emitter.by_opcode
        statements, line_names = self.statements, self.line_names
        for node in nodes:
            op = node.op
            if op == "placeholder":
                continue
            if op == "output":
                self._emit_output(node)
                continue
            name = names[node]
            if is_reserved(name) or not is_plain_name(name):
                raise _unusable(name)
            if node.region is not self._region:
                self._enter(node.region)
            if op == "call_function" or node.type is not None:
                statement = self._statement(node, name)
            else:
                statement = f"{name} = {emitters[op](node)}"
            if pending:
                for reading in pending:
                    self.add(reading, name)
                pending.clear()
            ending = freed.get(node)
            if ending is None:
                statements.append(self._indent + statement)
            else:
                old = names[ending[0]] if len(ending) == 1 else " = ".join([names[value] for value in ending])
                statements.append(f"{self._indent}{statement};  {old} = None")
            line_names.append(name)

    def _emit_output(self, node: Node) -> None:
        self._enter(PLAIN)
        if not node.args:
            raise CodegenError(
                f"Cannot generate code: output {node.name!r} returns nothing. Give it one argument, the result."
            )
        self.add(f"return {self._printer.text(node.args[0])}", node.name)

    def _statement(self, node: Node, name: str) -> str:
        symbol = symbol_of(AUGMENTED, node.target) if node.op == "call_function" else None
        if symbol is not None and _is_binary_of_node(node):
            receiver = self._printer.text(node.args[0])
            # The receiver's name keeps its old binding when somebody reads it later: rebinding could hide a
            # new object.
            return f"{name} = {receiver}; {name} {symbol} {self._printer.text(node.args[1])}"
        annotation = f" : {self._printer.text(node.type)}" if node.type is not None else ""
        return f"{name}{annotation} = {self._emitter.expression(node)}"

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


def _unusable(name: str) -> CodegenError:
    return CodegenError(
        f"Cannot generate code: a node is named {name!r}, which cannot be the name of a value. Assign node.name."
    )


def _is_binary_of_node(node: Node) -> bool:
    return len(node.args) == 2 and not node.kwargs and isinstance(node.args[0], Node)
