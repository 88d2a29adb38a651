"""A graph as the body of a function that people read.

The source is the one that runs, taken apart: paths are written where they are used, values are called after what they
are and take the place of what they are computed from, and what frees memory early is left out where that does it.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from dataclasses import dataclass, field
from operator import eq, ne
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from fxplug.capture.pytrees import InputTrees, OutputTree
from fxplug.codegen import as_identifier
from fxplug.codegen.formatting import FixedName, Remark, dotted
from fxplug.ir import printable
from fxplug.semantics.internals import unflatten_tree
from fxplug.storage.export.names import Names, UnreachableError
from fxplug.storage.faults import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fxplug.ir import Graph, Node, PythonCode

__all__ = ["Paths", "Program", "parameter_names", "read_program"]

_AMBIGUOUS = frozenset({"l", "O", "I"})
_SIZES = frozenset({"dim", "element_size", "get_device", "is_floating_point", "nelement", "numel", "size", "stride"})
_FACTS = frozenset({"device", "dtype", "layout", "ndim", "requires_grad", "shape"})


class Paths(Protocol):
    """What a graph's paths lead to."""

    def path(self, parts: list[str]) -> ast.expr:
        """Return the expression that reads a path."""
        ...

    def holds(self, parts: list[str]) -> bool:
        """Return whether a module holds what is at a path, so that reading it again gives the same."""
        ...


@dataclass
class Program:
    """The parts of a function."""

    arguments: ast.arguments
    """With ``self``."""
    returns: ast.expr | None
    body: list[ast.stmt] = field(default_factory=list[ast.stmt])


def parameter_names(graph: Graph) -> set[str]:
    """Return the names of the parameters of a graph's function."""
    return {node.target.lstrip("*") for node in graph.nodes if node.op == "placeholder"} | {
        entry.name for entry in getattr(graph._codegen, "parameters", ())  # pyright: ignore[reportPrivateUsage]
    }


def read_program(
    graph: Graph,
    names: Names,
    paths: Paths,
    *,
    finish: Callable[[ast.expr], list[ast.stmt]] | None = None,
) -> Program:
    """Return what a graph computes as the parts of a function.

    Args:
        graph: The graph; it is not changed.
        names: Receives the imports.
        paths: What the root holds.
        finish: Returns what stands at the end, given the result; by default it is returned.

    Raises:
        Refusal: Something in it cannot be written; the message names the node.
    """
    plain = copy.deepcopy(graph)
    for node in plain.nodes:
        node.type = None  # Annotations are read from the graph itself.
    code = plain.python_code("self")
    reader = _Reader(graph, code, names, paths)
    statements = list(reader.statements())
    function = reader.function
    _annotate(function, graph, names)
    writer = _Writer(statements, reader, names, finish or (lambda value: [ast.Return(value)]))
    body = writer.body or [ast.Pass()]
    output = next((node for node in graph.nodes if node.op == "output"), None)
    returns = names.annotation(output.type) if output is not None and output.type is not None else None
    shadowed = names.taken_imports()
    if shadowed:
        raise Refusal(f"the parameter {min(shadowed)!r} has the name of a module that the program needs. Rename it.")
    return Program(function.args, returns, body)


def _annotate(function: ast.FunctionDef, graph: Graph, names: Names) -> None:
    types = {node.target.lstrip("*"): node.type for node in graph.nodes if node.op == "placeholder"}
    arguments = function.args
    variable = [entry for entry in (arguments.vararg, arguments.kwarg) if entry is not None]
    for entry in (*arguments.args[1:], *arguments.kwonlyargs, *variable):
        kind = types.get(entry.arg)
        entry.annotation = None if kind is None else names.annotation(kind)


@dataclass
class _Line:
    """One statement that computes one value, or none."""

    statement: ast.stmt
    node: Node | None
    target: str | None
    """The value that it defines."""
    region: tuple[ast.withitem, ...] = ()
    asks: bool = False
    """Whether it only asks about a value."""


class _Reader(ast.NodeTransformer):
    """Reads generated source: what locals of the generator stand for, and what its globals are."""

    def __init__(self, graph: Graph, code: PythonCode, names: Names, paths: Paths) -> None:
        self.function = cast("ast.FunctionDef", ast.parse(code.src).body[0])
        self.root = self.function.args.args[0].arg
        self.nodes = {node.name: node for node in graph.nodes}
        self.parameters = parameter_names(graph)
        self.renamed: dict[str, str] = {}
        """Name of a placeholder -> its parameter, where they differ."""
        self._code = code
        self._names = names
        self._paths = paths
        self._holders: dict[str, list[str]] = {}
        self._node: Node | None = None
        self.function.args.args[0].arg = "self"
        for defaults in (self.function.args.defaults, self.function.args.kw_defaults):
            defaults[:] = [None if default is None else self.visit(default) for default in defaults]

    def statements(self) -> Iterator[_Line]:
        """Yield the statements in order, those of ``with`` blocks among them."""
        yield from self._read(self.function.body, ())

    def _read(self, body: list[ast.stmt], region: tuple[ast.withitem, ...]) -> Iterator[_Line]:
        last = 0
        for statement in body:
            same_line, last = statement.lineno == last, statement.end_lineno or 0
            self._node = self.nodes.get(self._code.lines.get(statement.lineno, ""))
            if isinstance(statement, ast.Pass) or (same_line and _frees(statement)):
                continue
            if isinstance(statement, ast.With):
                (item,) = statement.items
                entered = ast.withitem(self.visit(item.context_expr))
                yield from self._read(statement.body, (*region, entered))
            elif isinstance(statement, ast.Assign) and self._is_bookkeeping(statement):
                continue
            else:
                target = _defined(statement)
                yield _Line(self.visit(statement), self._node, target, region)

    def _is_bookkeeping(self, statement: ast.Assign) -> bool:
        """Take in names that the generator gives to parameters and to modules."""
        target, value = statement.targets[0], statement.value
        if len(statement.targets) == 1 and isinstance(target, ast.Name):
            path = self._path(value)
            node = self.nodes.get(target.id)
            # What a module holds is read where it is needed.
            if path and (node is None or (node.op == "get_attr" and self._paths.holds(path))):
                self._holders[target.id] = path
                return True
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        pairs = [
            (one.id, other.id)
            for one, other in zip(targets, values, strict=False)
            if isinstance(one, ast.Name) and isinstance(other, ast.Name)
        ]
        if len(pairs) != len(targets) or not all(
            self._is_input(one) and other in self.parameters and one != other for one, other in pairs
        ):
            return False
        self.renamed.update(pairs)
        return True

    def _is_input(self, name: str) -> bool:
        return name in self.nodes and self.nodes[name].op == "placeholder"

    # -- expressions

    def _path(self, node: ast.expr) -> list[str] | None:
        """Return the path below the root that an expression reads."""
        parts: list[str] = []
        while True:
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
            elif _is_getattr(node):
                parts.append(cast("Any", node).args[1].value)
                node = cast("Any", node).args[0]
            else:
                break
        if not isinstance(node, ast.Name):
            return None
        if node.id == self.root:
            return parts[::-1]
        held = self._holders.get(node.id)
        return None if held is None else [*held, *parts[::-1]]

    def visit(self, node: ast.AST) -> Any:
        """Return what an expression or statement becomes."""
        if isinstance(node, (ast.Attribute, ast.Call)) or (type(node) is ast.Name and isinstance(node.ctx, ast.Load)):
            path = self._path(node)
            if path:
                return self._paths.path(path)
        return super().visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:  # noqa: N802 - ast calls it so
        """Shorten paths of libraries."""
        path = _dotted_path(node)
        if path is not None and path[0] in self._code.globals and path[0] not in self.nodes:
            value: Any = self._code.globals[path[0]]
            is_library = isinstance(value, ModuleType)
            for part in path[1:]:
                value = getattr(value, part)
            # What torch.ops holds is found there alone.
            return self._names.at(path, value) if is_library else self._refer(value)
        node.value = self.visit(node.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802
        """Replace globals by what they are; values keep their names."""
        if isinstance(node.ctx, ast.Store) or node.id not in self._code.globals or node.id in self.nodes:
            return node
        return self._refer(self._code.globals[node.id])

    def _refer(self, value: Any) -> ast.expr:
        try:
            return self._names.value(value)
        except UnreachableError as error:
            where = "" if self._node is None else f"node {self._node.name!r} uses a value that "
            raise Refusal(
                f"{where or 'a parameter has a default that '}{error}. Use what a module that can be imported holds "
                "under a name of its own."
            ) from None

    def visit_Compare(self, node: ast.Compare) -> ast.expr:  # noqa: N802
        """Write comparisons with what is usually asked for by ``is`` as calls: that is no slip here."""
        self.generic_visit(node)
        sides = (node.left, *node.comparators)
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)) and any(
            isinstance(side, ast.Constant) and (side.value is None or isinstance(side.value, bool)) for side in sides
        ):
            return ast.Call(self._refer(eq if isinstance(node.ops[0], ast.Eq) else ne), list(sides), [])
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:  # noqa: N802
        """Write structures out that the generator leaves to functions."""
        held = self._code.globals.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if isinstance(held, OutputTree):
            return self._built(held, self.visit(node.args[0]))
        if isinstance(held, InputTrees):
            return self._taken_apart(held, node.args[0])
        self.generic_visit(node)
        if self._names.is_check(node.func) and isinstance(node.args[-1], ast.Constant) and node.args[-1].value in {True, False}:
            del node.args[-1]  # Whether the program can run again is of no use here.
        if self._names.is_check(node.func):
            node.args = [_without_place(part) for part in node.args]
        return node

    def _built(self, tree: OutputTree, leaves: ast.expr) -> ast.expr:
        elements = leaves.elts if isinstance(leaves, (ast.List, ast.Tuple)) else [leaves]
        if len(elements) != tree.spec.num_leaves:
            raise Refusal("its result has another structure than the function returns. Capture it again.")
        marks = [_Mark(number) for number in range(len(elements))]
        return self._with_marks(unflatten_tree(cast("list[Any]", marks), tree.spec), elements)

    def _with_marks(self, value: Any, elements: list[ast.expr]) -> ast.expr:
        if type(value) is _Mark:
            return elements[value.number]
        if type(value) in {tuple, list}:
            parts = [self._with_marks(part, elements) for part in value]
            return ast.Tuple(parts) if type(value) is tuple else ast.List(parts)
        if type(value) is dict:
            items = cast("dict[Any, Any]", value).items()
            return ast.Dict([self._refer(key) for key, _ in items], [self._with_marks(one, elements) for _, one in items])
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return ast.Call(self._refer(type(value)), [self._with_marks(part, elements) for part in value], [])
        raise Refusal(
            f"it returns a {type(value).__module__}.{type(value).__qualname__}, which cannot be written out. Let it "
            "return tuples, lists and dicts."
        )

    def _taken_apart(self, trees: InputTrees, values: ast.expr) -> ast.expr:
        pytree = self._names.pytree()
        parts: list[ast.expr] = []
        inputs = cast("ast.Tuple", values).elts
        for spec, value in zip(trees.specs.values(), inputs, strict=True):
            skeleton = self._refer(unflatten_tree([None] * spec.num_leaves, spec))
            structure = ast.Call(ast.Attribute(dotted(pytree), "tree_structure"), [skeleton], [])
            parts.append(ast.Call(ast.Attribute(structure, "flatten_up_to"), [self.visit(value)], []))
        if len(parts) == 1:
            return parts[0]
        return ast.List([ast.Starred(part) for part in parts])

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:  # noqa: N802
        """Write slices with colons."""
        self.generic_visit(node)
        index = node.slice
        if isinstance(index, ast.Tuple) and len(index.elts) > 1:
            index.elts = [_with_colons(part) for part in index.elts]
        else:
            node.slice = _with_colons(index)
        return node


@dataclass
class _Mark:
    number: int


def _without_place(node: ast.expr) -> ast.expr:
    """Return the text of a guard without the line that asked: whoever reads it has another program."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return node
    return ast.Constant(re.sub(r" \(asked at .*\)$", "", node.value, flags=re.DOTALL))


def _frees(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant) and statement.value.value is None


def _defined(statement: ast.stmt) -> str | None:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    target = statement.target if isinstance(statement, ast.AugAssign) else target
    return target.id if isinstance(target, ast.Name) else None


def _is_getattr(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) == 2
        and isinstance(node.args[1], ast.Constant)
        and isinstance(node.args[1].value, str)
    )


def _dotted_path(node: ast.expr) -> list[str] | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *parts[::-1]] if isinstance(node, ast.Name) else None


def _with_colons(node: ast.expr) -> ast.expr:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "slice"):
        return node
    if len(node.args) != 3 or not all(isinstance(part, (ast.Name, ast.Constant)) for part in node.args):
        return node
    lower, upper, step = (
        None if isinstance(part, ast.Constant) and part.value is None else part for part in node.args
    )
    return ast.Slice(lower, upper, step)


# -- names of values


class _Writer:
    """Gives values their names, and puts the statements together."""

    def __init__(
        self, lines: list[_Line], reader: _Reader, names: Names, finish: Callable[[ast.expr], list[ast.stmt]]
    ) -> None:
        self.body: list[ast.stmt] = []
        self._lines = lines = _with_questions_inlined(lines)
        self._reader = reader
        self._finish = finish
        self._forbidden = names.used() | reader.parameters
        self._last = _last_uses(lines)
        self._current: dict[str, str] = {}
        """Value -> name of the variable that holds it."""
        self._plain: set[str] = set()
        """Values that are sizes and the like, of which it does not matter how long they live."""
        self._scope = ""
        for name, node in reader.nodes.items():
            if node.op == "placeholder":
                self._current[name] = reader.renamed.get(name, name)
        for parameter in reader.parameters:
            self._current.setdefault(parameter, parameter)
        self._inputs = set(self._current)
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

    def _block(self, line: _Line) -> list[ast.stmt]:
        """Return the list to which a statement belongs, opening ``with`` blocks as needed."""
        while self._open[-1][0] != line.region[: len(self._open[-1][0])]:
            self._open.pop()
        for depth in range(len(self._open[-1][0]), len(line.region)):
            block: list[ast.stmt] = []
            item = ast.withitem(self._renamed(line.region[depth].context_expr))
            self._open[-1][1].append(ast.With([item], block))
            self._open.append((line.region[: depth + 1], block))
        return self._open[-1][1]

    def _remark(self, line: _Line, body: list[ast.stmt]) -> None:
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

    def _assign(self, number: int, line: _Line, statement: ast.Assign, body: list[ast.stmt]) -> None:
        name = cast("str", line.target)
        ending = self._ending(number, statement.value)
        value = self._renamed(statement.value)
        is_plain = self._is_plain(statement.value) or (line.node is not None and line.node.op == "get_attr")
        if is_plain:
            self._plain.add(name)
        if name not in self._last:
            for dead in ending:
                self._current.pop(dead)
            body.append(ast.Expr(value))
            return
        heir = next((dead for dead in ending if not is_plain and self._may_hand_on(dead, statement.value)), None)
        left = [self._current.pop(dead) for dead in ending if dead != heir and dead not in self._plain | self._inputs]
        for dead in ending:
            self._current.pop(dead, None) if dead != heir else None
        variable = self._current.pop(heir) if heir is not None else self._variable(line, name)
        self._current[name] = variable
        body.append(ast.Assign([FixedName(variable)], value))
        self._delete(number, left, body)

    def _augmented(self, number: int, line: _Line, following: _Line) -> None:
        body = self._block(line)
        self._remark(line, body)
        name = cast("str", line.target)
        receiver = cast("ast.Assign", line.statement).value
        added = cast("ast.AugAssign", following.statement)
        value = self._renamed(added.value)
        ending = self._ending(number + 1, added.value)
        own = receiver.id if isinstance(receiver, ast.Name) else ""
        # A name that somebody reads later keeps its binding, which could be another object then.
        if self._last.get(own) == number and own not in ending:
            variable = self._current.pop(own)
        else:
            variable = self._variable(line, name)
            body.append(ast.Assign([FixedName(variable)], self._renamed(receiver)))
        self._current[name] = variable
        body.append(ast.AugAssign(FixedName(variable), added.op, value))
        left = [self._current.pop(dead) for dead in ending if dead not in self._plain | self._inputs and dead != name]
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
            if isinstance(part, ast.Name):
                self._current[part.id] = part.id = self._free(part.id)
        body.append(statement)

    def _delete(self, number: int, variables: list[str], body: list[ast.stmt]) -> None:
        following = self._lines[number + 1].statement if number + 1 < len(self._lines) else None
        if variables and following is not None and not isinstance(following, ast.Return):
            body.append(ast.Delete([FixedName(variable) for variable in dict.fromkeys(variables)]))

    def _ending(self, number: int, value: ast.expr) -> list[str]:
        """Return the values that an expression reads for the last time, in order."""
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

    def _variable(self, line: _Line, name: str) -> str:
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


def _with_questions_inlined(lines: list[_Line]) -> list[_Line]:
    """Put what only asks about a value, as its sizes, into the statement behind it, if nothing else reads it."""
    uses = Counter(name for line in lines for name in _loads(line.statement))
    uses.update(name for line in lines for item in line.region for name in _loads(item))
    found: list[_Line] = []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else None
        if following is None or not _is_question(line) or following.region != line.region:
            found.append(line)
            continue
        name, value = cast("str", line.target), cast("ast.Assign", line.statement).value
        if uses[name] != 1 or name not in set(_loads(following.statement)):
            found.append(line)
            continue
        if isinstance(following.statement, ast.AugAssign) or following.target == name:
            found.append(line)
            continue
        following.statement = _Insertion(name, value).visit(following.statement)
        following.asks = line.asks or following.asks
    return found


def _is_question(line: _Line) -> bool:
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

    def visit_Name(self, node: ast.Name) -> ast.expr:  # noqa: N802 - ast calls it so
        return self._value if type(node) is ast.Name and node.id == self._name else node


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:  # noqa: N802 - ast calls it so
        if type(node) is ast.Name and isinstance(node.ctx, ast.Load):
            node.id = self._names.get(node.id, node.id)
        return node


def _is_size(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute):
        return value.func.attr in _SIZES
    return isinstance(value.func, ast.Name) and value.func.id in {"len", "getattr", "type", "isinstance", "int", "float"}


def _loads(node: ast.AST) -> Iterable[str]:
    """Yield the names of values that are read; those of imports come from elsewhere and have no context."""
    for part in ast.walk(node):
        if type(part) is ast.Name and isinstance(part.ctx, ast.Load):
            yield part.id


def _last_uses(lines: list[_Line]) -> dict[str, int]:
    last: dict[str, int] = {}
    for number, line in enumerate(lines):
        statement = line.statement
        value = statement.value if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Return)) else statement
        for item in line.region:
            last.update(dict.fromkeys(_loads(item), number))
        if value is not None:
            last.update(dict.fromkeys(_loads(value), number))
    return last


