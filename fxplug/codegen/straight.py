"""Functions that are straight lines, which most are: linked from known statements instead of compiled."""

# Hot path: goes to the parts of a node directly, since its properties would cost a quarter of the time.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, cast

from fxplug.codegen.emitters import AUGMENTED, INFIX, CallEmitter, is_augmented, symbol_of
from fxplug.codegen.holders import PathPrinter
from fxplug.codegen.linking import LOCAL, MARK, NAME, Linker, learn, templates
from fxplug.codegen.literals import ArgumentPrinter, Marks, quoted_name
from fxplug.ir import PATH_OPCODES, Node, are_usable, is_plain_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxplug.codegen.globals import GlobalTable
    from fxplug.codegen.linking import Template

__all__ = ["are_straight", "link_body"]

_MOST_NODES = 1000
"""Longer functions are compiled: there, most names have numbers that need more than one byte, and little is gained."""

Reading = tuple[str, tuple[str, ...]]
"""The shape of an expression, and its operands."""

_CALL, _LAST_CALL = f"{MARK} = {MARK}.{MARK}({MARK})", f"{MARK} = {MARK}.{MARK}({MARK});  {MARK} = None"
"""Most statements of a network: the call of a module, and one that is the last to need its input."""
_SLOTS = ((LOCAL, 1), (NAME, 2), (LOCAL, 3), (LOCAL, 0), (LOCAL, 4))
"""Their slots: the instructions load what is called and its argument, and then store the result."""

_INFIX = {id(function): f"{MARK} = {MARK} {symbol} {MARK}" for function, symbol in INFIX.items()}
"""Id of a binary operator -> the shape of a statement that applies it to two locals."""
_IN_PLACE = {
    id(function): f"{MARK} = {MARK}; {MARK} {symbol} {MARK}" for function, symbol in AUGMENTED.items()
}
"""The same for operators such as ``+=``, whose result is the first operand under another name."""


def are_straight(nodes: Sequence[Node]) -> bool:
    """Return whether a function for these nodes is a list of statements that can be linked, as far as can be said."""
    return (
        0 < len(nodes) <= _MOST_NODES
        and nodes[-1]._op == "output"
        and len(nodes[-1]._args) == 1
        and not [node for node in nodes if node._region]
        and are_usable([node._name for node in nodes])
    )


def link_body(
    nodes: Sequence[Node],
    freed: dict[Node, list[Node]],
    head: str,
    holders: dict[str, str],
    table: GlobalTable,
    renamed: dict[str, str],
) -> Linker | None:
    """Return the statements of a function whose nodes `are_straight`, None when not all can be linked.

    Args:
        nodes: In order.
        freed: For each node, those whose values are not needed once it has run.
        head: The ``def`` of the function, whose first parameter is the root.
        holders: Prefix of a path -> the local that is to hold what is found there.
        table: Receives the globals.
        renamed: Name of an input's node -> that of its parameter, where they differ.
    """
    try:
        linker = _Emitter(freed, head, holders, table).emit(nodes, renamed)
    except (SyntaxError, ValueError, MemoryError):
        return None  # Python does not take the head: whoever compiles the source hears so.
    if linker.missing and learn(linker.missing, len(nodes)):
        linker = _Emitter(freed, head, holders, table).emit(nodes, renamed)
    return None if linker.missing else linker


class _Emitter:
    """Writes each node as shapes and operands."""

    def __init__(
        self, freed: dict[Node, list[Node]], head: str, holders: dict[str, str], table: GlobalTable
    ) -> None:
        self._linker = linker = Linker(head)
        self._freed = freed
        self._table = table
        self._holders = holders
        root = next(iter(linker.local_names))
        self._marks = Marks()
        self._printer = ArgumentPrinter(table, self._marks)
        self._paths = PathPrinter[Reading](partial(_attribute, table), _local, root, holders)
        self._calls = CallEmitter(self._printer, table)
        self._bases: dict[str, int | None] = {"": 0}

    def emit(self, nodes: Sequence[Node], renamed: dict[str, str]) -> Linker:
        """Write all nodes, and return the result."""
        if renamed:
            self._bind(renamed)
        linker, freed = self._linker, self._freed
        local_names, names, put = linker.local_names, linker.names, linker.numbers.extend
        use, line_names, bases = linker.templates.append, linker.line_names, self._bases
        known = _known(_CALL, _SLOTS[:-1]), _known(_LAST_CALL, _SLOTS)
        call, last_call = cast("tuple[Template, Template]", known)
        plain: set[str] = set()
        usual = "" if None in known else "call_module"
        for node in nodes:
            op = node._op
            if op == "placeholder":
                continue
            ending = freed.get(node)
            args = node._args
            if (
                op == usual
                and len(args) == 1
                and args[0].__class__ is Node
                and not node._kwargs
                and node._type is None
                and (ending is None or len(ending) == 1)
            ):
                prefix, dot, attribute = node._target.rpartition(".")
                base = bases[prefix] if prefix in bases else self._base(prefix, node)
                if attribute not in plain and is_plain_name(attribute):
                    plain.add(attribute)
                if base is not None and attribute in plain and (prefix or not dot):
                    name = node._name
                    line_names.append(name)
                    given = (base, names[attribute], local_names[args[0]._name], local_names[name])
                    put(given if ending is None else (*given, local_names[ending[0]._name]))
                    use(call if ending is None else last_call)
                    continue
            if op != "call_function" or not self._emit_infix(node, ending):
                self._emit_any(node, ending)
        return linker

    def _bind(self, renamed: dict[str, str]) -> None:
        """Let the values of parameters go by the names of their nodes."""
        ended = [old for old in renamed.values() if old not in renamed]
        # Python numbers them as they are written, and the instructions may store the last one first.
        list(map(self._linker.local_names.__getitem__, renamed))
        marks = ", ".join([MARK] * len(renamed))
        shape = f"{marks} = {marks}{_freeing(len(ended)) if ended else ''}"
        name = next(iter(renamed)) if len(renamed) == 1 else ""
        self._linker.add(shape, (*renamed, *renamed.values(), *ended), name)

    def _base(self, prefix: str, node: Node) -> int | None:
        """Return the number of the local that holds the module at a path, None when none does."""
        base = None
        if prefix in self._holders:
            shape, operands = self._paths.base(prefix)
            self._emit_pending(node)
            base = self._linker.local_names[operands[0]] if shape == MARK else None
        self._bases[prefix] = base
        return base

    def _emit_infix(self, node: Node, ending: list[Node] | None) -> bool:
        """Write ``a + b`` or ``a += b`` and their like for two nodes; return whether the node is such a one."""
        args = node._args
        if len(args) != 2 or node._kwargs or node._type is not None:
            return False
        if args[0].__class__ is not Node or args[1].__class__ is not Node:
            return False
        name, target = node._name, id(node._target)
        shape = _INFIX.get(target)
        if shape is not None:
            operands = (name, args[0]._name, args[1]._name)
        elif (shape := _IN_PLACE.get(target)) is not None:
            operands = (name, args[0]._name, name, args[1]._name)
        else:
            return False
        if ending is not None:
            shape += _freeing(len(ending))
            operands += tuple([value._name for value in ending])
        self._linker.add(shape, operands, name)
        return True

    def _emit_any(self, node: Node, ending: list[Node] | None) -> None:
        shape, operands = self._statement(node)
        self._emit_pending(node)
        if ending is not None and node._op != "output":
            shape += _freeing(len(ending))
            operands += tuple([value._name for value in ending])
        self._linker.add(shape, operands, node._name)

    def _emit_pending(self, node: Node) -> None:
        for holder, (shape, operands) in self._paths.pending:
            self._linker.add(f"{MARK} = {shape}", (holder, *operands), node._name)
        self._paths.pending.clear()

    def _statement(self, node: Node) -> Reading:
        op, name, printer, taken = node._op, node._name, self._printer, self._marks.taken
        if op == "output":
            return f"return {printer.text(node._args[0])}", taken()
        if is_augmented(node):
            receiver = printer.text(node._args[0])
            operands = (name, *taken(), name)
            shape = f"{MARK} = {receiver}; {MARK} {symbol_of(AUGMENTED, node._target)} {printer.text(node._args[1])}"
            return shape, operands + taken()
        annotation = f" : {printer.text(node._type)}" if node._type is not None else ""
        if op in PATH_OPCODES:
            shape, operands = self._paths.text(node._target)
            if op == "call_module":
                shape = f"{shape}({printer.call_arguments(node._args, node._kwargs)})"
            return f"{MARK}{annotation} = {shape}", (name, *operands, *taken())
        shape = self._calls.call_function(node) if op == "call_function" else self._calls.call_method(node)
        return f"{MARK}{annotation} = {shape}", (name, *taken())


def _attribute(table: GlobalTable, base: Reading, name: str) -> Reading:
    # Not a method: emitters would hold themselves by it, and live on with all that they know.
    shape, operands = base
    if is_plain_name(name):
        return f"{shape}.{MARK}", (*operands, name)
    getter = table.refer(getattr)
    if name.isascii() and name.isalnum():  # Such as the number of a part of a sequence.
        return f'{getter}({shape}, "{MARK}")', (*operands, name)
    return f"{getter}({shape}, {quoted_name(name)})", operands


def _known(shape: str, slots: tuple[tuple[int, int], ...]) -> Template | None:
    """Return the template of a shape if its slots are those that are expected."""
    template = templates.get(shape)
    return template if template is not None and template.slots == slots else None


def _local(name: str) -> Reading:
    return MARK, (name,)


@lru_cache(maxsize=64)
def _freeing(count: int) -> str:
    """Return the end of a statement behind which so many values are not needed any more."""
    return f";  {f'{MARK} = ' * count}None"
