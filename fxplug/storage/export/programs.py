"""A graph as the body of a function that people read.

The source is the one that runs, taken apart: paths are written where they are used, values are called after what they
are and take the place of what they are computed from, and what frees memory early is left out where that does it.
"""

from __future__ import annotations

import ast
import copy
import re
from dataclasses import dataclass, field
from operator import eq, is_, is_not, ne, not_
from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from fxplug.capture.pytrees import InputTrees, OutputTree
from fxplug.codegen.formatting import FixedName
from fxplug.semantics.internals import unflatten_tree
from fxplug.storage.export.fused_layers import write_fused_calls
from fxplug.storage.export.names import Names, UnreachableError
from fxplug.storage.export.variables import Line, Writer
from fxplug.storage.faults import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug.ir import Graph, Node, PythonCode

__all__ = ["Paths", "Program", "parameter_names", "read_program"]


class Paths(Protocol):
    """What a graph's paths lead to."""

    def path(self, parts: list[str]) -> ast.expr:
        """Return the expression that reads a path."""
        ...

    def holds(self, parts: list[str]) -> bool:
        """Return whether a module holds what is at a path, so that reading it again gives the same."""
        ...

    def find(self, parts: list[str]) -> Any:
        """Return the module or tensor at a path, None where there is none."""
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
        entry.name
        for entry in getattr(graph._codegen, "parameters", ())  # pyright: ignore[reportPrivateUsage]
    }


def read_program(
    graph: Graph,
    names: Names,
    paths: Paths,
    *,
    finish: Callable[[ast.expr], list[ast.stmt]] | None = None,
    reuses_names: bool = True,
) -> Program:
    """Return what a graph computes as the parts of a function.

    Args:
        graph: The graph; it is not changed.
        names: Receives the imports.
        paths: What the root holds.
        finish: Returns what stands at the end, given the result; by default it is returned.
        reuses_names: Whether a value takes the place of one that is not needed any more.

    Raises:
        Refusal: Something in it cannot be written; the message names the node.
    """
    if "self" in parameter_names(graph):
        raise Refusal("a parameter is called 'self', as the first parameter of a method is. Rename it.")
    plain = copy.deepcopy(graph)
    for node in plain.nodes:
        node.type = None  # Annotations are read from the graph itself.
    write_fused_calls(plain, paths.find)
    code = plain.python_code("self")
    reader = _Reader(plain, code, names, paths)
    statements = list(reader.statements())
    function = reader.function
    _annotate(function, graph, names)
    writer = Writer(
        statements,
        reader.inputs(),
        names.used(),
        finish or (lambda value: [ast.Return(value)]),
        reuses_names=reuses_names,
    )
    body = writer.body or [ast.Pass()]
    output = next((node for node in graph.nodes if node.op == "output"), None)
    returns = names.annotation(output.type) if output is not None and output.type is not None else None
    shadowed = names.taken_imports()
    if shadowed:
        raise Refusal(
            f"the parameter {min(shadowed)!r} has the name of something that the program imports. Rename it."
        )
    return Program(function.args, returns, body)


def _annotate(function: ast.FunctionDef, graph: Graph, names: Names) -> None:
    types = {node.target.lstrip("*"): node.type for node in graph.nodes if node.op == "placeholder"}
    arguments = function.args
    variable = [entry for entry in (arguments.vararg, arguments.kwarg) if entry is not None]
    for entry in (*arguments.args[1:], *arguments.kwonlyargs, *variable):
        kind = types.get(entry.arg)
        entry.annotation = None if kind is None else names.annotation(kind)


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
            defaults[:] = [default and self.visit(default) for default in cast("list[Any]", defaults)]

    def statements(self) -> Iterator[Line]:
        """Yield the statements in order, those of ``with`` blocks among them."""
        yield from self._read(self.function.body, ())

    def inputs(self) -> dict[str, str]:
        """Return value -> name of the parameter that holds it, once the statements were read."""
        found = {name: self.renamed.get(name, name) for name in self.nodes if self._is_input(name)}
        return {**{parameter: parameter for parameter in self.parameters}, **found}

    def _read(self, body: list[ast.stmt], region: tuple[ast.withitem, ...]) -> Iterator[Line]:
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
                yield Line(self.visit(statement), self._node, target, region)

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
        if isinstance(node, (ast.Attribute, ast.Call)) or (
            type(node) is ast.Name and isinstance(node.ctx, ast.Load)
        ):
            path = self._path(node)
            if path:
                return self._paths.path(path)
        return super().visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Shorten paths of libraries."""
        path = _dotted_path(node)
        if path is not None and path[0] in self._code.globals and path[0] not in self.nodes:
            value: Any = self._code.globals[path[0]]
            is_library = isinstance(value, ModuleType)
            for part in path[1:]:
                value = getattr(value, part)
            # What torch.ops holds is found there alone.
            return self._found(lambda: self._names.at(path, value)) if is_library else self._refer(value)
        node.value = self.visit(node.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace globals by what they are; values keep their names."""
        if isinstance(node.ctx, ast.Store) or node.id not in self._code.globals or node.id in self.nodes:
            return node
        return self._refer(self._code.globals[node.id])

    def _refer(self, value: Any) -> ast.expr:
        return self._found(lambda: self._names.value(value))

    def _found(self, find: Callable[[], ast.expr]) -> ast.expr:
        try:
            return find()
        except UnreachableError as error:
            where = "" if self._node is None else f"node {self._node.name!r} uses a value that "
            raise Refusal(
                f"{where or 'a parameter has a default that '}{error}. Use what a module that can be imported holds "
                "under a name of its own."
            ) from None

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Write comparisons with what is usually asked for by ``is`` as calls: that is no slip here."""
        self.generic_visit(node)
        sides = (node.left, *node.comparators)
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)) and any(
            isinstance(side, ast.Constant) and (side.value is None or isinstance(side.value, bool))
            for side in sides
        ):
            return ast.Call(self._refer(eq if isinstance(node.ops[0], ast.Eq) else ne), list(sides), [])
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Write structures out that the generator leaves to functions."""
        held = self._global(node.func)
        if isinstance(held, OutputTree):
            return self._built(held, self.visit(node.args[0]))
        if isinstance(held, InputTrees):
            return self._taken_apart(held, node.args[0])
        self.generic_visit(node)
        if (
            self._names.is_check(node.func)
            and isinstance(node.args[-1], ast.Constant)
            and node.args[-1].value in {True, False}
        ):
            del node.args[-1]  # Whether the program can run again is of no use here.
        asked = self._asked(held, node)
        if asked is not None:
            return asked
        if self._names.is_check(node.func):
            node.args = [_without_place(part) for part in node.args]
        return node

    def _global(self, node: ast.expr) -> Any:
        """Return what an expression finds among the globals, None where it is none of them."""
        path = _dotted_path(node)
        if path is None or path[0] in self.nodes:
            return None
        found = self._code.globals.get(path[0])
        for part in path[1:]:
            found = getattr(found, part, None)
        return found

    def _asked(self, function: Any, node: ast.Call) -> ast.expr | None:
        """Return a question of the operator module as it is asked in a program."""
        if len(node.args) == 1 and function is not_:
            return ast.UnaryOp(ast.Not(), node.args[0])
        sign = (
            {is_: ast.Is(), is_not: ast.IsNot()}.get(function)
            if isinstance(function, BuiltinFunctionType)
            else None
        )
        return (
            ast.Compare(node.args[0], [sign], node.args[1:])
            if sign is not None and len(node.args) == 2
            else None
        )

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
            return ast.Dict(
                [self._refer(key) for key, _ in items], [self._with_marks(one, elements) for _, one in items]
            )
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return ast.Call(
                self._refer(type(value)), [self._with_marks(part, elements) for part in value], []
            )
        raise Refusal(
            f"it returns a {type(value).__module__}.{type(value).__qualname__}, which cannot be written out. Let it "
            "return tuples, lists and dicts."
        )

    def _taken_apart(self, trees: InputTrees, values: ast.expr) -> ast.expr:
        parts: list[ast.expr] = []
        inputs = cast("ast.Tuple", values).elts
        for spec, value in zip(trees.specs.values(), inputs, strict=True):
            skeleton = self._refer(unflatten_tree([None] * spec.num_leaves, spec))
            function = FixedName(self._names.check("parts_of"))
            parts.append(ast.Call(function, [self.visit(value), skeleton], []))
        if len(parts) == 1:
            return parts[0]
        return ast.List([ast.Starred(part) for part in parts])

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
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
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is None
    )


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
