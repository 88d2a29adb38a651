"""Values of a written program: what they are called, how long they live, and which need no name."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fxplug.codegen import as_identifier
from fxplug.codegen.formatting import FixedName, Remark
from fxplug.ir import is_plain_name, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fxplug.ir import Node

__all__ = ["Line", "Writer"]

_AMBIGUOUS = frozenset({"l", "O", "I"})
_SIZES = frozenset(
    {"dim", "element_size", "get_device", "is_floating_point", "nelement", "numel", "size", "stride"}
)
_FACTS = frozenset({"device", "dtype", "layout", "ndim", "requires_grad", "shape"})


@dataclass
class Line:
    """One statement that computes one value, or none."""

    statement: ast.stmt
    node: Node | None
    target: str | None
    """The value that it defines."""
    region: tuple[ast.withitem, ...] = ()
    asks: bool = False
    """Whether it only asks about a value."""


class Writer:
    """Gives values their names, and puts the statements together.

    Args:
        lines: The statements.
        inputs: Value -> name of the parameter that holds it.
        forbidden: Names that no variable may have.
        finish: Returns what stands at the end, given the result.
        reuses_names: Whether a value takes the place of one that is not needed any more.
    """

    def __init__(
        self,
        lines: list[Line],
        inputs: dict[str, str],
        forbidden: set[str],
        finish: Callable[[ast.expr], list[ast.stmt]],
        *,
        reuses_names: bool,
    ) -> None:
        self.body: list[ast.stmt] = []
        """What was put together."""
        self._lines = lines = _with_questions_inlined(lines)
        self._finish = finish
        self._forbidden = forbidden | set(inputs.values())
        self._last = _last_uses(lines)
        self._reuses_names = reuses_names
        self._current = dict(inputs)
        """Value -> name of the variable that holds it."""
        self._plain: set[str] = set()
        """Values that are sizes and the like, of which it does not matter how long they live."""
        self._scope = ""
        self._inputs = frozenset(inputs)
        self._open: list[tuple[tuple[ast.withitem, ...], list[ast.stmt]]] = [((), self.body)]
        number = 0
        while number < len(lines):
            number += self._write(number)

    def _write(self, number: int) -> int:
        """Write one statement, or two that belong together; return how many."""
        line = self._lines[number]
        following = self._lines[number + 1] if number + 1 < len(self._lines) else None
        if following is not None and isinstance(following.statement, ast.AugAssign):
            self._augmented(number, line, following)
            return 2
        body = self._block(line)
        self._remark(line, body)
        statement = line.statement
        if isinstance(statement, ast.Return):
            body += self._finish(self._renamed(cast("ast.expr", statement.value)))
        elif isinstance(statement, ast.Assign) and line.target is not None:
            self._assign(number, line, statement, body)
        else:
            self._other(statement, body)
        return 1

    def _block(self, line: Line) -> list[ast.stmt]:
        """Return the list to which a statement belongs, opening ``with`` blocks as needed."""
        while self._open[-1][0] != line.region[: len(self._open[-1][0])]:
            self._open.pop()
        for depth in range(len(self._open[-1][0]), len(line.region)):
            block: list[ast.stmt] = []
            item = ast.withitem(self._renamed(line.region[depth].context_expr))
            self._open[-1][1].append(ast.With([item], block))
            self._open.append((line.region[: depth + 1], block))
        return self._open[-1][1]

    def _remark(self, line: Line, body: list[ast.stmt]) -> None:
        node = line.node
        origin = node.origins[0] if node is not None and node.origins else None
        scope = origin.module.path if origin is not None and origin.module is not None else ""
        if node is not None and node.op == "call_module":
            scope = node.target.rpartition(".")[0]
        if node is not None and node.op != "output" and scope != self._scope:
            self._scope = scope
            # No empty line at the beginning of a block.
            body += [Remark("")] if body else []
            body += [Remark(printable(scope)[:60])] if scope else []

    def _assign(self, number: int, line: Line, statement: ast.Assign, body: list[ast.stmt]) -> None:
        name = cast("str", line.target)
        ending = self._ending(number, statement.value)
        value = self._renamed(statement.value)
        is_plain = self._is_plain(statement.value) or (line.node is not None and line.node.op == "get_attr")
        if is_plain:
            self._plain.add(name)
        if name not in self._last:
            for dead in ending:
                self._current.pop(dead)
            body.append(_as_assignment(value))
            return
        heir = next(
            (dead for dead in ending if not is_plain and self._may_hand_on(dead, statement.value)), None
        )
        left = [
            self._current.pop(dead)
            for dead in ending
            if dead != heir and dead not in self._plain | self._inputs
        ]
        for dead in ending:
            self._current.pop(dead, None) if dead != heir else None
        variable = self._current.pop(heir) if heir is not None else self._variable(line, name)
        self._current[name] = variable
        body.append(ast.Assign([FixedName(variable)], value))
        self._delete(number, left, body)

    def _augmented(self, number: int, line: Line, following: Line) -> None:
        body = self._block(line)
        self._remark(line, body)
        name = cast("str", line.target)
        receiver = cast("ast.Assign", line.statement).value
        added = cast("ast.AugAssign", following.statement)
        value = self._renamed(added.value)
        ending = self._ending(number + 1, added.value)
        own = receiver.id if isinstance(receiver, ast.Name) else ""
        # A name that somebody reads later keeps its binding, which could be another object then.
        if self._reuses_names and self._last.get(own) == number and own not in ending:
            variable = self._current.pop(own)
        else:
            variable = self._variable(line, name)
            body.append(ast.Assign([FixedName(variable)], self._renamed(receiver)))
        self._current[name] = variable
        body.append(ast.AugAssign(FixedName(variable), added.op, value))
        left = [
            self._current.pop(dead)
            for dead in ending
            if dead not in self._plain | self._inputs and dead != name
        ]
        if name not in self._last:
            self._current.pop(name)
        self._delete(number + 1, left, body)

    def _other(self, statement: ast.stmt, body: list[ast.stmt]) -> None:
        """Write what defines several values, or what a transformer of the code put there."""
        statement = copy.deepcopy(statement)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if isinstance(statement, ast.Assign):
            statement.value = self._renamed(statement.value)
        else:
            statement = self._renamed(statement)
        for part in target.elts if isinstance(target, ast.Tuple) else []:
            if isinstance(part, ast.Name) and part.id not in self._last:
                part.id = "_"
            elif isinstance(part, ast.Name):
                self._current[part.id] = part.id = self._free(part.id)
        body.append(statement)

    def _delete(self, number: int, variables: list[str], body: list[ast.stmt]) -> None:
        following = self._lines[number + 1].statement if number + 1 < len(self._lines) else None
        if variables and following is not None and not isinstance(following, ast.Return):
            body.append(ast.Delete([FixedName(variable) for variable in dict.fromkeys(variables)]))

    def _ending(self, number: int, value: ast.expr) -> list[str]:
        """Return the values that an expression reads for the last time, in order."""
        if not self._reuses_names:
            return []
        found = [name for name in dict.fromkeys(_loads(value)) if self._last.get(name) == number]
        return [name for name in found if name in self._current]

    def _may_hand_on(self, name: str, value: ast.expr) -> bool:
        return name not in self._plain and isinstance(value, (ast.Call, ast.BinOp)) and not _is_size(value)

    def _is_plain(self, value: ast.expr) -> bool:
        if _is_size(value) or (isinstance(value, ast.Attribute) and value.attr in _FACTS):
            return True
        loads = list(_loads(value))
        return not isinstance(value, ast.Call) and bool(loads) and all(name in self._plain for name in loads)

    def _renamed(self, node: Any) -> Any:
        return _Renamer(self._current).visit(copy.deepcopy(node))

    def _variable(self, line: Line, name: str) -> str:
        node = line.node
        if node is not None and node.op == "call_module" and node.target.count(".") > 1:
            holder = as_identifier(node.target.rpartition(".")[0].replace(".", "_"))
            if self._is_free(holder):
                return holder
        return self._free(name)

    def _is_free(self, name: str) -> bool:
        return name not in self._forbidden and name not in self._current.values() and name not in _AMBIGUOUS

    def _free(self, name: str) -> str:
        found, number = name, 1
        while not self._is_free(found):
            found, number = f"{name}_{number}", number + 1
        return found


def _with_questions_inlined(lines: list[Line]) -> list[Line]:
    """Put what only asks about a value, as its sizes, into the statement behind it, if nothing else reads it."""
    uses = Counter(name for line in lines for name in _loads(line.statement))
    uses.update(name for line in lines for item in line.region for name in _loads(item))
    found: list[Line] = []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else None
        if following is None or not _is_question(line) or following.region != line.region:
            found.append(line)
            continue
        name, value = cast("str", line.target), cast("ast.Assign", line.statement).value
        if uses[name] != 1 or name not in set(_loads(following.statement)):
            found.append(line)
            continue
        # What is asked and then denied reads better in two lines.
        is_denied = isinstance(getattr(following.statement, "value", None), ast.UnaryOp)
        if isinstance(following.statement, ast.AugAssign) or following.target == name or is_denied:
            found.append(line)
            continue
        following.statement = _Insertion(name, value).visit(following.statement)
        following.asks = line.asks or following.asks
    return found


def _is_question(line: Line) -> bool:
    statement = line.statement
    if not isinstance(statement, ast.Assign) or line.target is None:
        return False
    value = statement.value
    is_fact = isinstance(value, ast.Attribute) and value.attr in _FACTS and isinstance(value.value, ast.Name)
    line.asks = line.asks or is_fact or _is_size(value)
    return line.asks and (is_fact or _is_size(value) or isinstance(value, (ast.Subscript, ast.Compare)))


class _Insertion(ast.NodeTransformer):
    def __init__(self, name: str, value: ast.expr) -> None:
        self._name = name
        self._value = value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._value if type(node) is ast.Name and node.id == self._name else node


def _as_assignment(value: ast.expr) -> ast.stmt:
    """Return the statement that runs an expression, which may be an assignment to an attribute."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "setattr":
        name = (
            value.args[1].value if len(value.args) == 3 and isinstance(value.args[1], ast.Constant) else None
        )
        if isinstance(name, str) and is_plain_name(name) and not name.startswith("__"):
            target: list[ast.expr] = [ast.Attribute(value.args[0], name)]
            return ast.Assign(target, value.args[2])
    return ast.Expr(value)


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if type(node) is ast.Name and isinstance(node.ctx, ast.Load):
            node.id = self._names.get(node.id, node.id)
        return node


def _is_size(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute):
        return value.func.attr in _SIZES
    return isinstance(value.func, ast.Name) and value.func.id in {
        "len",
        "getattr",
        "type",
        "isinstance",
        "int",
        "float",
    }


def _loads(node: ast.AST) -> Iterable[str]:
    """Yield the names of values that are read; those of imports come from elsewhere and have no context."""
    for part in ast.walk(node):
        if type(part) is ast.Name and isinstance(part.ctx, ast.Load):
            yield part.id


def _last_uses(lines: list[Line]) -> dict[str, int]:
    last: dict[str, int] = {}
    for number, line in enumerate(lines):
        statement = line.statement
        value = (
            statement.value if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Return)) else statement
        )
        for item in line.region:
            last.update(dict.fromkeys(_loads(item), number))
        if value is not None:
            last.update(dict.fromkeys(_loads(value), number))
    return last
