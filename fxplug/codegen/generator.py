"""From a graph to the source of one Python function: one statement for each node, values freed after their last use."""

# Hot path: goes to the parts of a node directly, since its properties would cost a quarter of the time.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from fxplug.codegen.emitters import AUGMENTED, ExpressionEmitter, is_augmented, symbol_of
from fxplug.codegen.globals import GlobalTable
from fxplug.codegen.holders import PathPrinter, name_holders
from fxplug.codegen.hooks import call_hook, check_globals, hook_text, is_overridden, transform_body
from fxplug.codegen.linking import CAN_LINK
from fxplug.codegen.literals import ArgumentPrinter
from fxplug.codegen.readable import annotate, described
from fxplug.codegen.signature import Signature, function_head, signature_of
from fxplug.codegen.straight import are_straight, link_body
from fxplug.errors import CodegenError
from fxplug.ir import (
    PATH_OPCODES,
    PLAIN,
    PLAIN_STYLE,
    Node,
    PythonCode,
    Region,
    SourceStyle,
    common_depth,
    exact_text,
    is_plain_name,
    is_reserved,
    last_uses,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fxplug.ir import Argument, Graph

__all__ = ["CodeGen"]

_INDENT = "    "
_printing: ContextVar[Callable[[object], str]] = ContextVar("fxplug_printing", default=repr)
"""Prints values in the generation that runs in this thread, for hooks that do not hand their printer on."""


class CodeGen:
    r"""Generates the forward function of a graph.

    Names, attribute paths and constants of a graph are data: none of them is ever copied into the source
    unless it is a valid identifier or an exact builtin literal.

    A subclass may give the function another calling convention: `gen_fn_def` writes its first lines,
    `generate_output` its last, `process_inputs` and `process_outputs` say the same for values, and
    `additional_globals` brings what the new text refers to. What these hooks write is run as it is, so such a
    generator is code that you trust. It is set by a program (``graph.set_codegen``), and never comes from a graph or a
    file.

    Example:
        A function that takes its inputs in one list::

            class Listed(CodeGen):
                def gen_fn_def(self, free_vars, maybe_return_annotation):
                    names = ", ".join(free_vars)
                    return f"def forward(self, inputs):\n    {names}, = inputs"

                def process_inputs(self, *inputs):
                    return inputs[0]
    """

    def gen_fn_def(
        self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False
    ) -> str:
        """Return the beginning of the function ``forward``: the ``def``, and lines that bind the inputs.

        Args:
            free_vars: The parameters without the module, each as it stands in a signature (``"x : torch.Tensor"``,
                ``"scale = 2"``, ``"*rest"``); where some must be passed by keyword, ``"*"`` stands before them.
            maybe_return_annotation: ``" -> ..."``, or empty.
            expanded_def: Whether each parameter gets a line of its own.

        Returns:
            Source that names the module ``self``. Lines behind the first are indented.
        """
        parameters = free_vars if free_vars[:1] == ["self"] else ["self", *free_vars]
        return function_head("forward", parameters, maybe_return_annotation, expanded=expanded_def)

    def generate_output(
        self,
        output_args: Argument,
        *,
        descs: Sequence[str] | None = None,
        repr_fn: Callable[[object], str] | None = None,
    ) -> str:
        """Return the statement that returns the result, not indented.

        Args:
            output_args: The result as the output node has it. Nodes in it show as the names that hold their values.
            descs: Accepted for compatibility, and not used.
            repr_fn: Gives the expression for a value. Without it, what the running generation prints values with does:
                constants of the graph stay data.
        """
        return f"return {(repr_fn or _printing.get())(output_args)}"

    def process_inputs(self, *args: Any) -> Any:
        """Return the inputs of the graph for the inputs of the function.

        With the graph run as it stands, ``process_outputs(graph(*process_inputs(*inputs)))`` equals
        ``forward(*inputs)``.
        """
        return args

    def process_outputs(self, outputs: Any) -> Any:
        """Return what the function returns for what the graph returns (see `process_inputs`)."""
        return outputs

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Return names, with their values, that the text of the other hooks refers to."""
        return []

    def local_names(self) -> Iterable[str]:
        """Return names that the text of `gen_fn_def` binds beside the inputs of the graph; nothing else gets them."""
        return ()

    def generate(
        self, graph: Graph, root_module: str = "self", *, style: SourceStyle = PLAIN_STYLE
    ) -> PythonCode:
        """Return the source of a function that computes `graph`.

        Args:
            graph: The graph; it is not changed.
            root_module: Wish for the name of the first parameter, which holds the root.
            style: What is added for people who read the source.

        Raises:
            CodegenError: A placeholder or a node has a name that cannot stand in source, or a target of the wrong kind.
        """
        root_module = exact_text(root_module)
        if not is_plain_name(root_module):
            raise CodegenError(
                f"Cannot generate code: {root_module!r} cannot be the name of the root's parameter. Use an identifier."
            )
        try:
            return self._generate(graph, root_module, style)
        except RecursionError as error:
            raise CodegenError(
                "Cannot generate code: an argument is nested too deeply. Put the inner parts into nodes of their own."
            ) from error
        except (AttributeError, TypeError) as error:
            wrong = _wrong_target(graph)
            if wrong is None:
                raise
            raise wrong from error

    def _generate(self, graph: Graph, root_module: str, style: SourceStyle) -> PythonCode:
        nodes = graph.nodes.listed()
        signature = signature_of(nodes, graph.keyword_only)
        taken = {node._name for node in nodes}
        taken.update([entry.name for entry in signature.parameters], self.local_names())
        given = check_globals(self.additional_globals(), taken)
        root = root_module
        while root in taken or root in given:
            root = f"_fxp_{root}"
        taken.add(root)
        targets = [node._target for node in nodes if node._op in PATH_OPCODES]
        holders = name_holders(targets, taken, given)
        table = GlobalTable(taken, given)
        names: dict[Node, str] = {}
        printer = ArgumentPrinter(table, names)
        ends = last_uses(nodes)
        if CAN_LINK and style is PLAIN_STYLE and self._is_plain(graph) and are_straight(nodes):
            head = self._text_of_head(signature, printer, root, style)
            linker = link_body(nodes, ends, head, holders, table, signature.renamed())
            if linker is not None:
                return PythonCode.made_by(linker, table.globals, linker.function_name)
        names.update({node: node._name for node in nodes})
        paths = PathPrinter[str](printer.attribute, str, root, holders)
        body = _Body(printer, ExpressionEmitter(printer, table, paths), paths.pending, names)
        head = self._head(signature, printer, body, root, style)
        body.bind_renamed(signature)
        body.emit_all(nodes, ends, self._output_writer(printer))
        statements, line_names = body.statements, body.line_names
        if graph.code_transformer is not None:
            statements, line_names = transform_body(graph.code_transformer, statements, line_names)
        if style.verbose:
            statements, line_names = annotate(statements, line_names, nodes, style)
        source = "\n".join([head, *(statements or [f"{_INDENT}pass"]), ""])
        first = head.count("\n") + 2
        lines = {number: name for number, name in enumerate(line_names, first) if name}
        return PythonCode(source, table.globals, "forward", lines)

    def _is_plain(self, graph: Graph) -> bool:
        """Return whether nothing is changed about the functions that this class writes."""
        return graph.code_transformer is None and not any(
            is_overridden(self, CodeGen, hook) for hook in ("gen_fn_def", "generate_output")
        )

    def _head(
        self, signature: Signature, printer: ArgumentPrinter, body: _Body, root: str, style: SourceStyle
    ) -> str:
        """Return the first lines of the function."""
        if not is_overridden(self, CodeGen, "gen_fn_def"):
            return self._text_of_head(signature, printer, root, style)
        parameters, returns = _head_parts(signature, printer, style)
        if body.has_name("self") or any(entry.name == "self" for entry in signature.parameters):
            raise CodegenError(
                "Cannot generate code: a node or parameter is named 'self', which the code generator uses for the "
                "module (gen_fn_def). Assign node.name or node.target."
            )
        if root != "self":
            body.add(f"{root} = self")
        text = call_hook(self.gen_fn_def, parameters, returns, expanded_def=style.expanded_def)
        return hook_text("gen_fn_def of the code generator", text).strip("\n")

    def _text_of_head(
        self, signature: Signature, printer: ArgumentPrinter, root: str, style: SourceStyle
    ) -> str:
        parameters, returns = _head_parts(signature, printer, style)
        return function_head("forward", [root, *parameters], returns, expanded=style.expanded_def)

    def _output_writer(self, printer: ArgumentPrinter) -> Callable[[Argument], str]:
        """Return what writes the ``return`` statement."""
        if not is_overridden(self, CodeGen, "generate_output"):
            return lambda value: f"return {printer.text(value)}"

        def write(value: Argument) -> str:
            token = _printing.set(printer.text)
            try:
                text = call_hook(self.generate_output, value, repr_fn=printer.text)
            finally:
                _printing.reset(token)
            return hook_text("generate_output of the code generator", text)

        return write


class _Body:
    """Collects the statements of the function and keeps track of the open ``with`` blocks."""

    def __init__(
        self,
        printer: ArgumentPrinter,
        emitter: ExpressionEmitter,
        pending: list[tuple[str, str]],
        names: dict[Node, str],
    ) -> None:
        self.statements: list[str] = []
        self.line_names: list[str] = []
        self._printer = printer
        self._emitters = emitter.by_opcode()
        self._pending = pending
        self._names = names
        self._region: Region = PLAIN
        self._indent = _INDENT

    def has_name(self, name: str) -> bool:
        return name in self._names.values()

    def bind_renamed(self, signature: Signature) -> None:
        """Let the values of parameters go by the names of their nodes."""
        renamed = signature.renamed()
        if not renamed:
            return
        # All at once: the new name of one parameter may be the old name of another.
        statement = f"{', '.join(renamed)} = {', '.join(renamed.values())}"
        ended = [old for old in renamed.values() if old not in renamed]
        if ended:
            statement += f";  {' = '.join(ended)} = None"
        self.add(statement, next(iter(renamed)) if len(renamed) == 1 else "")

    def add(self, statement: str, name: str = "") -> None:
        self.statements.append(self._indent + statement)
        self.line_names.append(name)

    def emit_all(
        self, nodes: list[Node], freed: dict[Node, list[Node]], write_output: Callable[[Argument], str]
    ) -> None:
        names, pending, emitters = self._names, self._pending, self._emitters
        statements, line_names = self.statements, self.line_names
        for node in nodes:
            op = node._op
            if op == "placeholder":
                continue
            if op == "output":
                self._emit_output(node, write_output)
                continue
            name = names[node]
            if is_reserved(name) or not is_plain_name(name):
                raise _unusable(name)
            if node._region is not self._region:
                self._enter(node._region)
            if op == "call_function" or node._type is not None:
                statement = self._statement(node, name)
            else:
                statement = f"{name} = {emitters[op](node)}"
            if pending:
                for holder, reading in pending:
                    self.add(f"{holder} = {reading}", name)
                pending.clear()
            ending = freed.get(node)
            if ending is None:
                statements.append(self._indent + statement)
            else:
                old = names[ending[0]] if len(ending) == 1 else " = ".join([names[value] for value in ending])
                statements.append(f"{self._indent}{statement};  {old} = None")
            line_names.append(name)

    def _emit_output(self, node: Node, write_output: Callable[[Argument], str]) -> None:
        self._enter(PLAIN)
        if not node.args:
            raise CodegenError(
                f"Cannot generate code: output {node.name!r} returns nothing. Give it one argument, the result."
            )
        for line in write_output(node.args[0]).split("\n"):
            self.add(line, node.name)

    def _statement(self, node: Node, name: str) -> str:
        if is_augmented(node):
            receiver = self._printer.text(node._args[0])
            # The receiver's name keeps its old binding when somebody reads it later: rebinding could hide a
            # new object.
            symbol = symbol_of(AUGMENTED, node._target)
            return f"{name} = {receiver}; {name} {symbol} {self._printer.text(node._args[1])}"
        annotation = f" : {self._printer.text(node._type)}" if node._type is not None else ""
        return f"{name}{annotation} = {self._emitters[node._op](node)}"

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


def _wrong_target(graph: Graph) -> CodegenError | None:
    """Return the error for the first node that has no text for its target and needs one; None where all have."""
    for node in graph.nodes:
        if node._op != "call_function" and not isinstance(node._target, str):
            return CodegenError(
                f"Cannot generate code: node {node._name!r} ({node._op}) has the target {node._target!r}, which is not "
                "a string. Set node.target to a name or a dotted path."
            )
    return None


def _head_parts(signature: Signature, printer: ArgumentPrinter, style: SourceStyle) -> tuple[list[str], str]:
    """Return the parameters as they stand in the signature, and the annotation of the result."""
    parameters = signature.parameter_texts(printer, lambda node: described(node, style))
    return parameters, signature.returns_text(printer)
