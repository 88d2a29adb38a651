"""Python source as people write it: lines that are not too long, broken as ruff and black break them.

Only what generated programs consist of is known: one call, operator or display for each statement, nested as arguments
are. What would have to be broken anywhere else is left on its line, with a mark that keeps formatters from trying.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["FixedName", "Remark", "dotted", "format_statements", "quoted"]

_WIDTH = 88
_INDENT = "    "
_SKIP = "  # fmt: skip"
_ATOM = 20
_PRECEDENCE: dict[type, int] = {
    ast.Not: 3, ast.Gt: 4, ast.GtE: 4, ast.Lt: 4, ast.LtE: 4, ast.Eq: 4, ast.NotEq: 4, ast.Is: 4, ast.IsNot: 4,
    ast.In: 4, ast.NotIn: 4, ast.BitOr: 5, ast.BitXor: 6, ast.BitAnd: 7, ast.LShift: 8, ast.RShift: 8, ast.Add: 9,
    ast.Sub: 9, ast.Mult: 10, ast.Div: 10, ast.FloorDiv: 10, ast.Mod: 10, ast.MatMult: 10, ast.USub: 11, ast.UAdd: 11,
    ast.Invert: 11, ast.Pow: 12,
}  # fmt: skip
_SYMBOLS: dict[type, str] = {
    ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.BitOr: "|", ast.BitXor: "^", ast.BitAnd: "&",
    ast.LShift: "<<", ast.RShift: ">>", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//",
    ast.Mod: "%", ast.MatMult: "@", ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not ", ast.Pow: "**",
}  # fmt: skip


class Remark(ast.stmt):
    """A comment that has its own line; no text leaves an empty line."""

    _fields = ()

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class FixedName(ast.Name):
    """A name of the file, such as that of an import; others are those of values, which may be called differently."""

    _fields = ("id",)


def dotted(path: str) -> ast.expr:
    """Return the expression for a dotted path of identifiers."""
    first, *rest = path.split(".")
    found: ast.expr = FixedName(first)
    for part in rest:
        found = ast.Attribute(found, part)
    return found


def quoted(value: str | bytes) -> str:
    """Return a literal with the quotes that formatters prefer: double ones, unless others need fewer escapes."""
    text = repr(value)
    prefix = "b" if text[0] == "b" else ""
    body, quote = text[len(prefix) + 1 : -1], text[-1]
    if quote == '"':
        return text
    singles, doubles = body.count("\\'"), body.count('"')
    if doubles > singles:
        return text
    plain = body.replace("\\'", "'").replace('"', '\\"')
    return f'{prefix}"{plain}"'


# -- expressions in one line


def _number(value: complex) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, int) and abs(value) >= 10**300:
        return f"{'-' if value < 0 else ''}0x{abs(value):X}"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value).replace("e+", "e")


def _constant(node: ast.Constant) -> str:
    value: Any = node.value
    if isinstance(value, (str, bytes)):
        return quoted(value)
    return "..." if value is ... else _number(value)


def _precedence(node: ast.expr) -> int:
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return _PRECEDENCE[type(node.op)]
    if isinstance(node, ast.Compare):
        return _PRECEDENCE[type(node.ops[0])]
    if isinstance(node, ast.Constant) and _constant(node).startswith("-"):
        return _PRECEDENCE[ast.USub]
    return _ATOM


def _operand(node: ast.expr, least: int) -> str:
    text = _flat(node)
    return f"({text})" if _precedence(node) < least else text


def _is_simple_power(node: ast.expr) -> bool:
    """Return whether an operand of ``**`` stands without spaces."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_simple_power(node.operand)
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, (ast.Name, ast.Attribute)) and _is_simple_power(node.value)
    return isinstance(node, ast.Name) or (
        isinstance(node, ast.Constant) and type(node.value) in {int, float, complex}
    )


def _binary(node: ast.BinOp) -> str:
    strength, symbol = _PRECEDENCE[type(node.op)], _SYMBOLS[type(node.op)]
    is_power = isinstance(node.op, ast.Pow)
    left = _operand(node.left, strength + 1 if is_power else strength)
    # Behind a power, a sign needs no parentheses.
    right = _operand(node.right, _PRECEDENCE[ast.USub] if is_power else strength + 1)
    hugs = (
        is_power and _is_simple_power(node.left) and _is_simple_power(node.right) and not left.startswith("(")
    )
    return f"{left}{symbol}{right}" if hugs else f"{left} {symbol} {right}"


def _compare(node: ast.Compare) -> str:
    strength = _PRECEDENCE[type(node.ops[0])] + 1
    parts = [_operand(node.left, strength)]
    for operator, operand in zip(node.ops, node.comparators, strict=True):
        parts += [_SYMBOLS[type(operator)], _operand(operand, strength)]
    return " ".join(parts)


def _attribute(node: ast.Attribute) -> str:
    text = _operand(node.value, _ATOM)
    if isinstance(node.value, ast.Constant) and type(node.value.value) is int:
        text = f"({text})"
    return f"{text}.{node.attr}"


def _subscript(node: ast.Subscript) -> str:
    index = node.slice
    inner = _flat(index)
    if isinstance(index, ast.Tuple) and len(index.elts) > 0:
        inner = inner[1:-1]
    return f"{_operand(node.value, _ATOM)}[{inner}]"


def _slice(node: ast.Slice) -> str:
    bounds = [node.lower, node.upper] if node.step is None else [node.lower, node.upper, node.step]
    gap = "" if all(bound is None or isinstance(bound, (ast.Name, ast.Constant)) for bound in bounds) else " "
    texts = ["" if bound is None else _flat(bound) for bound in bounds]
    found = texts[0]
    for text in texts[1:]:
        found += f"{gap if found and found[-1] != ':' else ''}:{gap if text else ''}{text}"
    return found


def _keyword(node: ast.keyword) -> str:
    return f"**{_flat(node.value)}" if node.arg is None else f"{node.arg}={_flat(node.value)}"


def _parts(node: ast.expr) -> tuple[str, list[ast.AST], str] | None:
    """Return opening, elements and closing of what may be broken at its brackets."""
    if isinstance(node, ast.Call):
        return f"{_operand(node.func, _ATOM)}(", [*node.args, *node.keywords], ")"
    if isinstance(node, ast.Tuple):
        return "(", list(node.elts), ")"
    if isinstance(node, ast.List):
        return "[", list(node.elts), "]"
    if isinstance(node, ast.Set):
        return "{", list(node.elts), "}"
    if isinstance(node, ast.Dict):
        pairs = [_Pair(key, value) for key, value in zip(node.keys, node.values, strict=True)]
        return "{", list(pairs), "}"
    return None


@dataclass
class _Pair(ast.AST):
    key: ast.expr | None
    value: ast.expr


def _bracketed(node: ast.expr) -> str:
    opening, elements, closing = cast("tuple[str, list[ast.AST], str]", _parts(node))
    comma = "," if isinstance(node, ast.Tuple) and len(elements) == 1 else ""
    return f"{opening}{', '.join(map(_flat, elements))}{comma}{closing}"


def _generator(node: ast.GeneratorExp) -> str:
    (loop,) = node.generators
    return f"{_flat(node.elt)} for {_flat(loop.target)} in {_flat(loop.iter)}"


_FLAT: dict[type, Callable[[Any], str]] = {
    ast.Name: lambda node: node.id,
    FixedName: lambda node: node.id,
    ast.Constant: _constant,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.keyword: _keyword,
    ast.Starred: lambda node: f"*{_flat(node.value)}",
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.UnaryOp: lambda node: f"{_SYMBOLS[type(node.op)]}{_operand(node.operand, _precedence(node))}",
    ast.GeneratorExp: _generator,
    _Pair: lambda node: (
        f"**{_flat(node.value)}" if node.key is None else f"{_flat(node.key)}: {_flat(node.value)}"
    ),
    **dict.fromkeys((ast.Call, ast.Tuple, ast.List, ast.Set, ast.Dict), _bracketed),
}


def _flat(node: ast.AST) -> str:
    writer = _FLAT.get(type(node))
    return ast.unparse(node) if writer is None else writer(node)


# -- expressions in several lines


def _expand(node: ast.AST, before: str, after: str, indent: str) -> list[str]:
    """Return the lines of an expression that stands between two texts.

    Raises:
        _TooWideError: It cannot be broken so that it fits.
    """
    line = f"{indent}{before}{_flat(node)}{after}"
    if len(line) <= _WIDTH:
        return [line]
    if isinstance(node, ast.keyword):
        return _expand(node.value, f"{before}{'**' if node.arg is None else f'{node.arg}='}", after, indent)
    if isinstance(node, ast.Starred):
        return _expand(node.value, f"{before}*", after, indent)
    if isinstance(node, _Pair):
        if node.key is None:
            return _expand(node.value, f"{before}**", after, indent)
        return _expand(node.value, f"{before}{_flat(node.key)}: ", after, indent)
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and not before and len(after) < 2:
        *pieces, last = _pieces(node.value, _WIDTH - len(indent) - 3)
        return [*(f"{indent}{quoted(piece)}" for piece in pieces), f"{indent}{quoted(last)}{after}"]
    parts = _parts(cast("ast.expr", node))
    if parts is None or not parts[1]:
        raise _TooWideError
    opening, elements, closing = parts
    first, inner = f"{indent}{before}{opening}", indent + _INDENT
    if len(first) > _WIDTH:
        raise _TooWideError
    together = f"{inner}{', '.join(map(_flat, elements))}"
    # A call takes its arguments to one line of their own first; a display has one line for each element.
    if isinstance(node, ast.Call) and len(together) <= _WIDTH:
        lines = [together]
    else:
        alone = (
            isinstance(node, ast.Call) and len(elements) == 1 and isinstance(elements[0], ast.GeneratorExp)
        )
        end = "" if alone else ","
        in_display = not isinstance(node, ast.Call)
        lines = [line for part in elements for line in _element(part, end, inner, in_display=in_display)]
    return [first, *lines, f"{indent}{closing}{after}"]


def _element(node: ast.AST, after: str, indent: str, *, in_display: bool) -> list[str]:
    """Return the lines of an element: in a display, a text of several pieces stands in brackets of its own."""
    lines = _expand(node, "", after, indent)
    if not in_display or not isinstance(node, ast.Constant) or len(lines) == 1:
        return lines
    return [f"{indent}(", *_expand(node, "", "", indent + _INDENT), f"{indent}){after}"]


def _pieces(text: str, width: int) -> list[str]:
    """Return parts of a text, cut behind spaces, whose literals are not wider than that where words allow it."""
    found = [""]
    for word in re.findall(r"\S+\s*|\s+", text):
        if found[-1] and len(quoted(found[-1] + word)) - 2 > width:
            found.append("")
        found[-1] += word
    return found


class _TooWideError(Exception):
    """A line cannot be broken."""


def _statement_lines(node: ast.expr, before: str, indent: str, after: str = "") -> list[str]:
    line = f"{indent}{before}{_flat(node)}{after}"
    if len(line) <= _WIDTH:
        return [line]
    try:
        return _expand(node, before, after, indent)
    except _TooWideError:
        inner = f"{indent}{_INDENT}{_flat(node)}"
        may_stand_alone = isinstance(node, (ast.BinOp, ast.Compare))
        if may_stand_alone and not after and before and len(inner) <= _WIDTH and not _ends_in_brackets(node):
            return [f"{indent}{before}(", inner, f"{indent})"]
    return [line + _SKIP]


def _ends_in_brackets(node: ast.expr) -> bool:
    return _flat(node)[-1:] in {")", "]", "}"} or _flat(node)[:1] in {"(", "[", "{"}


# -- statements


def format_statements(statements: Iterable[ast.stmt], indent: str = "") -> list[str]:
    """Return the lines of statements, none of them longer than 88 characters where that is possible."""
    lines: list[str] = []
    for statement in statements:
        lines += _STATEMENTS[type(statement)](statement, indent)
    return lines


def _assign(node: ast.Assign, indent: str) -> list[str]:
    targets = "".join(f"{_target(target)} = " for target in node.targets)
    return _statement_lines(node.value, targets, indent)


def _target(node: ast.expr) -> str:
    return _flat(node)[1:-1] if isinstance(node, ast.Tuple) and len(node.elts) > 1 else _flat(node)


def _augmented(node: ast.AugAssign, indent: str) -> list[str]:
    return _statement_lines(node.value, f"{_flat(node.target)} {_SYMBOLS[type(node.op)]}= ", indent)


def _return(node: ast.Return, indent: str) -> list[str]:
    return [f"{indent}return"] if node.value is None else _statement_lines(node.value, "return ", indent)


def _with(node: ast.With, indent: str) -> list[str]:
    (item,) = node.items
    header = f"{indent}with {_flat(item.context_expr)}:"
    head = [header if len(header) <= _WIDTH else header + _SKIP]
    return head + format_statements(node.body, indent + _INDENT)


def _if(node: ast.If, indent: str) -> list[str]:
    header = f"{indent}if {_flat(node.test)}:"
    head = [header if len(header) <= _WIDTH else header + _SKIP]
    return head + format_statements(node.body, indent + _INDENT)


def _raise(node: ast.Raise, indent: str) -> list[str]:
    return _statement_lines(cast("ast.expr", node.exc), "raise ", indent)


def _function(node: ast.FunctionDef, indent: str) -> list[str]:
    parameters, returns = (
        _parameters(node.args),
        f" -> {_flat(node.returns)}" if node.returns is not None else "",
    )
    line = f"{indent}def {node.name}({', '.join(parameters)}){returns}:"
    head = [line]
    if len(line) > _WIDTH:
        inner = f"{indent}{_INDENT}{', '.join(parameters)}"
        variable = node.args.kwarg is not None or node.args.vararg is not None
        last = "" if variable and parameters[-1].startswith("*") else ","
        rows = [f"{indent}{_INDENT}{text}," for text in parameters[:-1]]
        rows.append(f"{indent}{_INDENT}{parameters[-1]}{last or ','}")
        head = [
            f"{indent}def {node.name}(",
            *([inner] if len(inner) <= _WIDTH else rows),
            f"{indent}){returns}:",
        ]
    names = _ambiguous(node.args)
    if names and len(head) == 1:
        # Whether it is found hangs on what is selected, and whether it is one too many, too.
        head[0] += "  # noqa: E741, RUF100"
    return head + format_statements(node.body, indent + _INDENT)


def _ambiguous(arguments: ast.arguments) -> bool:
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return any(entry.arg in {"l", "O", "I"} for entry in every)


def _parameters(arguments: ast.arguments) -> list[str]:
    texts: list[str] = []
    plain = arguments.args
    defaults: Sequence[ast.expr | None] = [
        *[None] * (len(plain) - len(arguments.defaults)),
        *arguments.defaults,
    ]
    texts += [_parameter(entry, default) for entry, default in zip(plain, defaults, strict=True)]
    if arguments.vararg is not None:
        texts.append(f"*{_parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        texts.append("*")
    texts += [
        _parameter(entry, default)
        for entry, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg is not None:
        texts.append(f"**{_parameter(arguments.kwarg, None)}")
    return texts


def _parameter(entry: ast.arg, default: ast.expr | None) -> str:
    if entry.annotation is None:
        return entry.arg if default is None else f"{entry.arg}={_flat(default)}"
    text = f"{entry.arg}: {_flat(entry.annotation)}"
    return text if default is None else f"{text} = {_flat(default)}"


def _for(node: ast.For, indent: str) -> list[str]:
    head = f"{indent}for {_target(node.target)} in {_flat(node.iter)}:"
    return [head, *format_statements(node.body, indent + _INDENT)]


def _delete(node: ast.Delete, indent: str) -> list[str]:
    line = f"{indent}del {', '.join(map(_flat, node.targets))}"
    if len(line) <= _WIDTH:
        return [line]
    return [
        f"{indent}del (",
        *(f"{indent}{_INDENT}{_flat(target)}," for target in node.targets),
        f"{indent})",
    ]


def _remark(node: Remark, indent: str) -> list[str]:
    return [f"{indent}# {node.text}" if node.text else ""]


_STATEMENTS: dict[type, Callable[[Any, str], list[str]]] = {
    ast.Assign: _assign,
    ast.AugAssign: _augmented,
    ast.Delete: _delete,
    ast.Expr: lambda node, indent: _statement_lines(node.value, "", indent),
    ast.For: _for,
    ast.FunctionDef: _function,
    ast.If: _if,
    ast.Pass: lambda _node, indent: [f"{indent}pass"],
    ast.Raise: _raise,
    ast.Return: _return,
    ast.With: _with,
    Remark: _remark,
}
