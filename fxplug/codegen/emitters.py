"""One small emitter for each opcode: node in, expression or statement out."""

# Hot path: goes to the parts of a node directly, since its properties would cost a quarter of the time.
# pyright: reportPrivateUsage=false
from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from fxplug.errors import CodegenError
from fxplug.ir import Node, is_plain_name, qualified_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.codegen.globals import GlobalTable
    from fxplug.codegen.holders import PathPrinter
    from fxplug.codegen.literals import ArgumentPrinter

__all__ = ["AUGMENTED", "INFIX", "PREFIX", "CallEmitter", "ExpressionEmitter", "is_augmented", "symbol_of"]

INFIX: dict[Any, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.matmul: "@",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
"""Binary operators of the operator module and how they are written."""

PREFIX: dict[Any, str] = {operator.neg: "-", operator.pos: "+", operator.invert: "~"}
"""Unary operators."""

AUGMENTED: dict[Any, str] = {
    operator.iadd: "+=",
    operator.isub: "-=",
    operator.imul: "*=",
    operator.itruediv: "/=",
    operator.ifloordiv: "//=",
    operator.imod: "%=",
    operator.ipow: "**=",
    operator.imatmul: "@=",
    operator.ilshift: "<<=",
    operator.irshift: ">>=",
    operator.iand: "&=",
    operator.ior: "|=",
    operator.ixor: "^=",
}
"""In-place operators, written as augmented assignments."""


_SYMBOLS = {
    id(table): {id(key): symbol for key, symbol in table.items()} for table in (INFIX, PREFIX, AUGMENTED)
}


def symbol_of(table: dict[Any, str], function: Any) -> str | None:
    """Return how a table writes a function: the very function, not one that claims to be equal."""
    return _SYMBOLS[id(table)].get(id(function))


class CallEmitter:
    """Turns a call of a function or method into an expression.

    Args:
        printer: Prints arguments.
        table: Receives the callables.
    """

    def __init__(self, printer: ArgumentPrinter, table: GlobalTable) -> None:
        self._printer = printer
        self._table = table

    def call_method(self, node: Node) -> str:
        """Return the expression for a ``call_method`` node.

        Raises:
            CodegenError: It has no first argument.
        """
        if not node._args:
            raise CodegenError(
                f"Cannot generate code: node {node._name!r} calls the method {node._target!r} of nothing. Its first "
                "argument must be what the method is called on."
            )
        receiver, *rest = node._args
        callee = self._printer.attribute(self._printer.receiver(receiver), node._target)
        return f"{callee}({self._printer.call_arguments(tuple(rest), node._kwargs)})"

    def call_function(self, node: Node) -> str:
        """Return the expression for a ``call_function`` node."""
        target, args, printer = node._target, node._args, self._printer
        if not node._kwargs:
            count = len(args)
            if count == 2:
                symbol = symbol_of(INFIX, target)
                if symbol is not None:
                    return f"{printer.operand(args[0])} {symbol} {printer.operand(args[1])}"
                if target is operator.getitem:
                    return f"{printer.operand(args[0])}[{printer.text(args[1])}]"
                if target is getattr and type(args[1]) is str and is_plain_name(args[1]):
                    return f"{printer.receiver(args[0])}.{args[1]}"
            elif count == 1 and (symbol := symbol_of(PREFIX, target)) is not None:
                return f"{symbol}{printer.operand(args[0])}"
        hint = qualified_name(target).replace(".", "_")
        return f"{self._table.refer(target, hint)}({printer.call_arguments(args, node._kwargs)})"


class ExpressionEmitter(CallEmitter):
    """Turns a node into the expression that computes it.

    Args:
        printer: Prints arguments.
        table: Receives the callables.
        paths: Prints attribute paths of the root.
    """

    def __init__(self, printer: ArgumentPrinter, table: GlobalTable, paths: PathPrinter[str]) -> None:
        super().__init__(printer, table)
        self._paths = paths

    def by_opcode(self) -> dict[str, Callable[[Node], str]]:
        """Return, for any opcode but placeholder and output, what gives the expression for a node."""
        # Not kept: the emitter would hold itself by it, and live on with all that it knows.
        return {
            "get_attr": self._get_attr,
            "call_function": self.call_function,
            "call_method": self.call_method,
            "call_module": self._call_module,
        }

    def _get_attr(self, node: Node) -> str:
        return self._paths.text(node._target)

    def _call_module(self, node: Node) -> str:
        path, args = node._target, node._args
        callee = self._paths.text(path)
        if len(args) == 1 and args[0].__class__ is Node and not node._kwargs:
            return f"{callee}({args[0]._name})"  # What most calls of a module look like.
        return f"{callee}({self._printer.call_arguments(args, node._kwargs)})"


def is_augmented(node: Node) -> bool:
    """Return whether a node is written as an augmented assignment, such as ``a += b``."""
    return (
        node._op == "call_function"
        and len(node._args) == 2
        and not node._kwargs
        and isinstance(node._args[0], Node)
        and symbol_of(AUGMENTED, node._target) is not None
    )
