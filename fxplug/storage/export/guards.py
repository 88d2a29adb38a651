"""Guards as a method that checks the inputs, and as functions that check what is computed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from fxplug.codegen.formatting import FixedName, dotted
from fxplug.ir import printable
from fxplug.semantics.surroundings import depth_of, tensor_at
from fxplug.storage.export.programs import Program, read_program

if TYPE_CHECKING:
    from fxplug.execute import GraphModule
    from fxplug.ir.guards import Guard, StateGuard
    from fxplug.storage.export.names import Names
    from fxplug.storage.export.programs import Paths

__all__ = ["CHECKS_FILE", "check_program", "guard_call"]

CHECKS_FILE = '''\
"""What a captured program checks while it runs: that it is used as it was captured."""


def fail(text, found=""):
    """Say that the program was captured for something else."""
    more = f", and {found}" if found else ""
    raise ValueError(f"The program was captured for {text}{more}.")


def check_true(value, text):
    """Check that a value is true."""
    if not value:
        fail(text)


def check_equal(value, expected, text):
    """Check that a value is what it was when the program was captured."""
    if not same_value(value, expected):
        fail(text, f"now it is {value!r}")


def check_length(value, expected, text):
    """Check that there are as many parts as when the program was captured."""
    if len(value) != expected:
        fail(text, f"now there are {len(value)}")


def check_like(value, expected, text):
    """Check that a tensor can stand in the place of another one."""
    found, wanted = (
        (one.dtype, tuple(one.shape), str(one.device)) for one in (value, expected)
    )
    if found != wanted:
        fail(text, "now there is {} of {} on {}".format(*found))


def check_raises(function, kind, text, _, args, kwargs):
    """Check that a call fails as it did when the program was captured."""
    try:
        if isinstance(function, str):
            getattr(args[0], function)(*args[1:], **kwargs)
        else:
            function(*args, **kwargs)
    except kind:
        return
    fail(text, "now it does not")


def check_unchanged(value, expected, text):
    """Check that a list, dict or another container holds what it held before a call."""
    if not holds_the_same(value, expected):
        fail(text, "now it holds something else")


def holds_the_same(value, expected):
    """Return whether two containers hold the very same values."""
    if value is expected:
        return True
    if type(value) is not type(expected):
        return False
    if isinstance(value, dict):
        value, expected = list(value.items()), list(expected.items())
    if isinstance(value, (list, tuple)):
        if len(value) != len(expected):
            return False
        return all(holds_the_same(*pair) for pair in zip(value, expected))
    is_plain = isinstance(value, (bool, int, float, complex, str, bytes))
    return is_plain and repr(value) == repr(expected)


def the_same(value):
    """Return what is given: a list that several calls receive."""
    return value


def are_distinct(*values):
    """Return whether no two of the values are the same object."""
    return len(set(map(id, values))) == len(values)


def parts_of(value, like):
    """Return the parts of a nested input, which must be made like another one."""
    from torch.utils import _pytree as pytree

    if pytree.tree_structure(value) != pytree.tree_structure(like):
        fail(f"nested inputs that are made like {like!r}, with values for None")
    return pytree.tree_leaves(value)


def attribute_names(value):
    """Return the names of the attributes that an object has to itself, in order."""
    return list(vars(value))


def same_value(value, expected):
    """Return whether two plain values are the same, with the same sign of zero."""
    if type(value) is not type(expected):
        both = isinstance(value, tuple) and isinstance(expected, tuple)
        return both and tuple(value) == tuple(expected)
    if isinstance(value, float):
        return value.hex() == expected.hex()
    return bool(value == expected)
'''


def check_program(module: GraphModule, names: Names, paths: Paths) -> Program | None:
    """Return the method that checks the inputs of a call, None when nothing is to be checked.

    Args:
        module: The captured program.
        names: Receives the imports.
        paths: What the module holds.
    """
    guards = module.guard_set
    if guards is not None and guards.on_failure == "ignore":
        return None
    warns = guards is not None and guards.on_failure == "warn"
    first = _state_checks(module, names, paths, warns=warns)
    if guards is None or guards.graph is None:
        return Program(_any_arguments(), None, _finished(first)) if first else None

    def finish(result: ast.expr) -> list[ast.stmt]:
        answers = result.elts if isinstance(result, (ast.Tuple, ast.List)) else []
        return [
            _unless(answer, _text(guard), names, warns=warns)
            for answer, guard in zip(answers, guards.guards, strict=False)
        ]

    program = read_program(guards.graph, names, paths, finish=finish, reuses_names=False)
    program.body = _inlined(program.body)
    program.body = _finished([*first, *program.body])
    return program


def guard_call(name: str, arguments: ast.arguments) -> ast.stmt:
    """Return the statement that calls the method with the arguments of ``forward``."""
    args: list[ast.expr] = [FixedName(entry.arg) for entry in arguments.args[1:]]
    if arguments.vararg is not None:
        args.append(ast.Starred(FixedName(arguments.vararg.arg)))
    keywords = [ast.keyword(entry.arg, FixedName(entry.arg)) for entry in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        keywords.append(ast.keyword(None, FixedName(arguments.kwarg.arg)))
    return ast.Expr(ast.Call(ast.Attribute(FixedName("self"), name), args, keywords))


def _any_arguments() -> ast.arguments:
    return ast.arguments([], [ast.arg("self")], ast.arg("_args"), [], [], ast.arg("_kwargs"), [])


def _state_checks(module: GraphModule, names: Names, paths: Paths, *, warns: bool) -> list[ast.stmt]:
    """Return what checks that modules, weights and torch are as they were when the program asked."""
    training = module.graph.captured_training
    found: list[ast.stmt] = []
    if training is not None:
        text = f"self.training is {training}"
        found.append(_unless(_is_switched(dotted("self.training"), on=training), text, names, warns=warns))
    for guard in module.graph.state_guards:
        condition = _state_condition(module, guard, names, paths)
        if condition is not None:
            found.append(_unless(condition, _text(guard.guard), names, warns=warns))
    return found


def _state_condition(module: GraphModule, guard: StateGuard, names: Names, paths: Paths) -> ast.expr | None:
    """Return what is to hold; None where the module does not have what was asked."""
    first, *path, name = guard.steps
    if first == "torch":
        arguments = [names.value(argument) for argument in guard.arguments]
        asked: ast.expr = ast.Call(dotted(f"{names.torch()}.{name}"), arguments, [])
    elif name == "training":
        asked = ast.Attribute(paths.path(path[: depth_of(module, path)]), name)
    elif tensor_at(module, path) is None:
        return None
    else:
        asked = ast.Attribute(paths.path(path), name)
        if name == "stride":
            asked = ast.Call(asked, [], [])
    if isinstance(guard.expected, bool):
        return _is_switched(asked, on=guard.expected)
    return ast.Compare(asked, [ast.Eq()], [names.value(guard.expected)])


def _is_switched(flag: ast.expr, *, on: bool) -> ast.expr:
    return flag if on else ast.UnaryOp(ast.Not(), flag)


def _text(guard: Guard) -> str:
    return printable(guard.text)


def _unless(condition: ast.expr, text: str, names: Names, *, warns: bool) -> ast.stmt:
    wrong = condition
    message = ast.Constant(f"The program was captured for {text}.")
    if not warns:
        return _Unless(wrong, [ast.Raise(ast.Call(names.builtin("ValueError"), [message], []))], [])
    call = ast.Call(
        dotted(f"{names.name('warnings')}.warn"), [message], [ast.keyword("stacklevel", ast.Constant(3))]
    )
    return _Unless(wrong, [ast.Expr(call)], [])


class _Unless(ast.If):
    """Does something where a condition does not hold."""


_OPPOSITES: dict[type, type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def _negated(condition: ast.expr) -> ast.expr:
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return condition.operand
    other = _OPPOSITES.get(type(condition.ops[0])) if isinstance(condition, ast.Compare) else None
    if isinstance(condition, ast.Compare) and other is not None:
        return ast.Compare(condition.left, [other()], condition.comparators)
    return ast.UnaryOp(ast.Not(), condition)


def _finished(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements with conditions that say what is wrong."""
    return [
        ast.If(_negated(statement.test), statement.body, []) if isinstance(statement, _Unless) else statement
        for statement in body
    ]


def _inlined(body: list[ast.stmt]) -> list[ast.stmt]:
    """Put values that are read once into the expressions that read them: questions are short."""
    while True:
        found = next(((number, place) for number, place in _single_uses(body)), None)
        if found is None:
            return body
        number, place = found
        statement: Any = body[number]
        body[place] = _Substitution(statement.targets[0].id, statement.value).visit(body[place])
        del body[number]


def _single_uses(body: list[ast.stmt]) -> Any:
    """Yield places of assignments with the places of the only statements that read what they assign."""
    for number, statement in enumerate(body):
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name = statement.targets[0].id
        readers = [
            (place, part)
            for place, other in enumerate(body)
            for part in ast.walk(other)
            if isinstance(part, ast.Name)
            and part.id == name
            and place != number
            and part not in _targets(other)
        ]
        written = sum(name == getattr(target, "id", "") for other in body for target in _targets(other))
        if len(readers) == 1 and written == 1 and readers[0][0] > number:
            yield number, readers[0][0]


def _targets(statement: ast.stmt) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else []


class _Substitution(ast.NodeTransformer):
    def __init__(self, name: str, value: ast.expr) -> None:
        self._name = name
        self._value = value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._value if node.id == self._name else node

    def visit_FixedName(self, node: FixedName) -> ast.expr:
        return self._value if node.id == self._name else node
