"""Code objects of generated functions, put together from statements that CPython has compiled before.

Generated programs consist of many statements of few shapes, such as ``a = b.c(d);  d = None``. Each shape is compiled
once, by CPython itself; its bytecode, in which names and constants go by number, is the template of all statements of
that shape. A function is then linked: every statement's numbers are put into its template, which takes about a tenth
of the time that it takes to compile the source.

What comes out equals what ``compile`` makes of the source, except that instructions know their lines and not their
columns. This holds for versions of CPython whose code objects are known here; elsewhere, and wherever a statement is of
a shape that is not understood, nothing is linked and the source is compiled.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections import defaultdict
from functools import lru_cache
from itertools import count
from operator import itemgetter
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from types import FunctionType

__all__ = ["CAN_LINK", "MARK", "Linker", "Template", "fill", "head_code", "learn", "templates"]

CAN_LINK = sys.implementation.name == "cpython" and sys.version_info[:2] == (3, 11)
"""Whether this Python is one whose code objects are known here."""

MARK = "\0"
"""Stands, in a shape, for an operand: a local, an attribute's name behind a dot, or the text of a quoted constant.

No printed value holds it, since Python escapes it."""

LOCAL, NAME, CONST, _GLOBAL, _CALLED_GLOBAL = range(5)
_MOST_TEMPLATES = 4096
"""So many shapes are kept; a program that goes on to make new ones begins again."""
_MOST_NEW = 3
"""One of so many statements may be of a new shape: to learn one takes longer than to compile a statement."""
_LONGEST = 1000
"""No template is kept of a shape that is longer, such as one with a list of many numbers in it."""
_WIDEST = 255
"""The largest argument of an instruction that needs no prefix."""


_Slot = tuple[int, int]
"""For an instruction whose argument is the number of a name or constant: which table has the number, and the place
among the operands, or, behind those, among what all statements of the shape have in common."""


class Template(NamedTuple):
    """The bytecode of all statements of one shape."""

    pattern: bytes
    """Bytecode, as a format for the slots' numbers."""
    parts: tuple[bytes, ...]
    """The same, split before the instruction of each slot; every part but the first begins with it."""
    slots: tuple[_Slot, ...]
    """What is put in, in the order of the instructions."""
    common: tuple[Any, ...]
    """Keys of names and constants that the shape itself mentions."""
    stack: int
    """How much of the stack the statement needs."""
    lines: bytes
    """What the table of lines says of it."""
    shape: str
    """The text, with marks for the operands."""


_PATTERN, _LINES, _STACK = (
    itemgetter(Template._fields.index(name)) for name in ("pattern", "lines", "stack")
)
"""Faster than the names by more than the length of a statement."""


def _numbers(first: Iterable[Any] = ()) -> defaultdict[Any, int]:
    """Return what numbers names or constants in the order in which they are first asked for, `first` before all."""
    following = count()
    # Not a class with __missing__: this stays inside of Python's own code.
    return defaultdict(following.__next__, zip(first, following, strict=False))


class _Globals(dict[Any, int]):
    """The arguments of instructions that read globals: the number of the name, and a bit that prepares a call."""

    def __init__(self, names: dict[Any, int], bit: int) -> None:
        super().__init__()
        self._names = names
        self._bit = bit

    def __missing__(self, key: Any) -> int:
        found = self[key] = self._names[key] << 1 | self._bit
        return found


class _Tables:
    """The names and constants of one function."""

    def __init__(self, local_names: Sequence[str]) -> None:
        self.local_names = _numbers(local_names)
        self.names = _numbers()
        self.constants = _numbers([_key_of(None)])  # Without a docstring, None comes first.
        self.by_kind: tuple[dict[Any, int], ...] = (
            self.local_names,
            self.names,
            self.constants,
            _Globals(self.names, 0),
            _Globals(self.names, 1),
        )


def _key_of(constant: Any) -> Any:
    """Return what two constants have in common that CPython keeps once: text by itself, others by type and digits."""
    return constant if type(constant) is str else (type(constant), repr(constant), constant)


def fill(shapes: str, operands: Sequence[str]) -> str:
    """Return the text for shapes with their operands.

    Raises:
        ValueError: There are more operands than marks, or fewer.
    """
    texts = shapes.split(MARK)
    if len(texts) != len(operands) + 1:
        raise ValueError(f"{len(texts) - 1} marks and {len(operands)} operands")
    filled = [""] * (len(texts) + len(operands))
    filled[::2] = texts
    filled[1::2] = operands
    return "".join(filled)


def _head_code(head: str) -> CodeType:
    return compile(f"{head} pass", "<fxplug-generated-head>", "exec", dont_inherit=True)


_known_head_code = lru_cache(maxsize=256)(_head_code)


def head_code(head: str) -> CodeType:
    """Return code that defines a function with this head, and without a body."""
    # A default may be of any length: what is kept outlives the program that it belongs to.
    return (_known_head_code if len(head) <= _LONGEST else _head_code)(head)


def _stub_of(code: CodeType) -> CodeType:
    """Return the code of the function that such code defines."""
    return next(value for value in code.co_consts if isinstance(value, CodeType))


class Linker:
    """Collects the statements of one function as numbers, and makes its code object and its source of them.

    Args:
        head: The ``def``, which is the first line.
    """

    def __init__(self, head: str) -> None:
        self._head = head
        self._source: str | None = None
        self._head_code = head_code(head)
        self._stub = stub = _stub_of(self._head_code)
        self.function_name = stub.co_name
        """As the head has it."""
        self._tables = tables = _Tables(stub.co_varnames)
        self._by_kind = tables.by_kind
        self.templates: list[Template] = []
        """What the statements are of, a line each."""
        self.numbers: list[int] = []
        """What is put into the slots of the templates, one after the other."""
        self.line_names: list[str] = []
        """For each line the name of the node that it computes."""
        self.local_names: dict[str, int] = tables.local_names
        """The number of each local; asked for a new one, it gives the next number."""
        self.names: dict[str, int] = tables.names
        """The number of each attribute and global, likewise."""
        self.missing: set[str] = set()
        """Shapes that were met and have no template yet."""

    def add(self, shape: str, operands: tuple[str, ...], name: str) -> None:
        """Add a line.

        Args:
            shape: Of the statement.
            operands: For the marks in it, in order.
            name: Of the node that it computes.
        """
        template = templates.get(shape)
        if template is None:
            self.missing.add(shape)
            return
        keys = operands + template.common
        by_kind = self._by_kind
        self.numbers.extend([by_kind[table][keys[place]] for table, place in template.slots])
        self.templates.append(template)
        self.line_names.append(name)

    def code(self, filename: str) -> CodeType:
        """Return the code object of the function.

        Args:
            filename: Where tracebacks find the source.
        """
        numbers, used = self.numbers, self.templates
        try:
            # All at once, since each use of a format takes as long as several of its fields.
            code = b"".join(map(_PATTERN, used)) % tuple(numbers)
            lines = b"".join(map(_LINES, used))
        except OverflowError:  # There are numbers that need more than one byte.
            pieces = self._pieces()
            code, lines = b"".join(pieces), b"".join([_lines_of(len(piece)) for piece in pieces])
        stack = max(map(_STACK, used))
        return _code_of(code, lines, stack, self._tables, self._stub, filename)

    def _pieces(self) -> list[bytes]:
        """Return the bytecode of each statement."""
        found: list[bytes] = []
        start = 0
        for template in self.templates:
            end = start + len(template.slots)
            numbers = self.numbers[start:end]
            start = end
            narrow = max(numbers, default=0) <= _WIDEST
            found.append(template.pattern % tuple(numbers) if narrow else _wide(template, numbers))
        return found

    def define(self, namespace: dict[str, Any], filename: str) -> FunctionType:
        """Return the function.

        Args:
            namespace: Its globals.
            filename: Where tracebacks find the source.
        """
        exec(self._head_code, namespace)  # noqa: S102 - the head of a generated function
        function = cast("FunctionType", namespace.pop(self.function_name))
        function.__code__ = self.code(filename)
        return function

    def source(self) -> str:
        """Return the source of the function."""
        if self._source is None:
            body = "\n    ".join([template.shape for template in self.templates])
            self._source = f"{self._head}\n    {fill(body, self._operands())}\n"
        return self._source

    def lines(self) -> dict[int, str]:
        """Return the number of each line with the name of the node that it computes."""
        return {number: name for number, name in enumerate(self.line_names, 2) if name}

    def _operands(self) -> list[str]:
        """Return the operands of all statements in the order in which the source has them."""
        by_kind = [list(self._tables.local_names), list(self._tables.names), list(self._tables.constants)]
        left = iter(self.numbers)
        found: list[str] = []
        for template in self.templates:
            operands = [""] * template.shape.count(MARK)
            for table, place in template.slots:
                number = next(left)
                if place < len(operands):
                    operands[place] = by_kind[table][number]
            found += operands
        return found


def _code_of(
    code: bytes, lines: bytes, stack: int, tables: _Tables, stub: CodeType, filename: str
) -> CodeType:
    local_names = tuple(tables.local_names)
    return stub.replace(
        co_code=_PROLOGUE + code,
        co_linetable=_FIRST_LINE + lines,
        co_varnames=local_names,
        co_nlocals=len(local_names),
        co_names=tuple(tables.names),
        co_consts=tuple([key if type(key) is str else key[2] for key in tables.constants]),
        co_stacksize=stack,
        co_filename=filename,
    )


def _wide(template: Template, numbers: Sequence[int]) -> bytes:
    """Return the bytecode of a statement whose numbers may be of any size."""
    found = [template.parts[0]]
    for part, number in zip(template.parts[1:], numbers, strict=True):
        if number > _WIDEST:
            found += [
                bytes((_EXTENDED, number >> shift & _WIDEST)) for shift in (24, 16, 8) if number >> shift
            ]
        found += (part[:1], bytes((number & _WIDEST,)), part[2:])
    return b"".join(found)


def _lines_of(size: int) -> bytes:
    """Return what the table of lines says of so many bytes of bytecode that are those of the next line."""
    units = size // 2
    return b"".join(
        [bytes((_NO_COLUMNS | min(units - start, 8) - 1, 0 if start else 2)) for start in range(0, units, 8)]
    )


_NO_COLUMNS = 0x80 | 13 << 3
_FIRST_LINE = bytes((_NO_COLUMNS, 0))


# -- templates

templates: dict[str, Template | None] = {}
"""Shape -> template; None for a shape that is not understood."""


def learn(shapes: Collection[str], statements: int) -> bool:
    """Compile shapes that are met for the first time, all in one go.

    Args:
        shapes: What is missing in `templates`.
        statements: How many statements the function has for which they are needed.

    Returns:
        Whether all of them can be linked now.
    """
    if len(shapes) * _MOST_NEW > statements + _MOST_NEW or max(map(len, shapes)) > _LONGEST:
        return False
    if not templates.keys().isdisjoint(shapes):
        return False  # They were met before, and not understood.
    if len(templates) + len(shapes) > _MOST_TEMPLATES:
        templates.clear()
    prefix = "_p"
    while any(prefix in shape for shape in shapes):
        prefix += "_"
    lists = [[f"{prefix}{number}" for number in range(shape.count(MARK))] for shape in shapes]
    source = "\n".join(
        f"def shape({', '.join(names)}):\n    {fill(shape, names)}"
        for shape, names in zip(shapes, lists, strict=True)
    )
    try:
        module = compile(source, "<fxplug-generated-shapes>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # The source itself is compiled then, and the error told.
    codes = [value for value in module.co_consts if isinstance(value, CodeType)]
    made = {
        shape: _checked(_template_of(shape, names, code, prefix), names, code)
        for shape, names, code in zip(shapes, lists, codes, strict=True)
    }
    templates.update(made)
    return None not in made.values()


def _checked(template: Template | None, names: list[str], code: CodeType) -> Template | None:
    """Return the template of a shape if linking gives what it was taken from."""
    if template is None:
        return None
    tables = _Tables(names)
    keys = (*names, *template.common)
    numbers = [tables.by_kind[table][keys[place]] for table, place in template.slots]
    if max(numbers, default=0) > _WIDEST or {*range(len(names))} - {place for _, place in template.slots}:
        return None
    piece = _wide(template, numbers)
    tail = code.co_code[len(_PROLOGUE) + len(piece) :]
    again = _code_of(piece + tail, template.lines, template.stack, tables, code, code.co_filename)
    same = all(getattr(again, part) == getattr(code, part) for part in _COMPARED)
    return template if same and piece == template.pattern % tuple(numbers) else None


_COMPARED = ("co_code", "co_consts", "co_names", "co_varnames", "co_nlocals")


def _template_of(shape: str, names: list[str], code: CodeType, prefix: str) -> Template | None:
    """Return the template that the compiled shape gives, None when there is something unknown in it."""
    raw = code.co_code
    end = len(raw) if shape.startswith("return ") else len(raw) - len(_EPILOGUE)
    if (
        code.co_flags != _FLAGS
        or getattr(code, "co_exceptiontable", b"")
        or raw[: len(_PROLOGUE)] != _PROLOGUE
    ):
        return None
    if len(names) > _WIDEST or raw[end:] not in {b"", _EPILOGUE}:
        return None
    reader = _Reader(code, names, prefix)
    parts, slots = [b""], list[_Slot]()
    for position in range(len(_PROLOGUE), end, 2):
        operation, argument = raw[position], raw[position + 1]
        if operation in _UNKNOWN or (operation in _NUMBERED and raw[position - 2] == _EXTENDED):
            return None
        slot = reader.slot(operation, argument)
        if slot is not None:
            slots.append(slot)
            parts.append(b"")
        parts[-1] += raw[position : position + 2]
    if reader.is_odd:
        return None
    first, *rest = parts
    pattern = _escaped(first) + b"".join([_escaped(part[:1]) + b"%c" + _escaped(part[2:]) for part in rest])
    lines = _lines_of(end - len(_PROLOGUE))
    return Template(
        pattern, tuple(parts), tuple(slots), tuple(reader.common), code.co_stacksize, lines, shape
    )


def _escaped(raw: bytes) -> bytes:
    return raw.replace(b"%", b"%%")


class _Reader:
    """Tells what the arguments of instructions refer to."""

    def __init__(self, code: CodeType, names: list[str], prefix: str) -> None:
        self._code = code
        self._operands = {name: number for number, name in enumerate(names)}
        self._prefix = prefix
        self.common: list[Any] = []
        self.is_odd = False
        """Whether an operand was met where none can be."""

    def slot(self, operation: int, argument: int) -> _Slot | None:
        """Return what an instruction refers to, None when that is nothing that goes by number."""
        code = self._code
        if operation in _LOCALS:
            return LOCAL, argument
        if operation == _LOAD_GLOBAL:
            name = code.co_names[argument >> 1]
            return self._slot(_CALLED_GLOBAL if argument & 1 else _GLOBAL, name)
        if operation in _NAMES:
            return self._slot(NAME, code.co_names[argument])
        if operation in _CONSTANTS:
            value = code.co_consts[argument]
            return None if value is None else self._slot(CONST, value)
        return None

    def _slot(self, table: int, value: Any) -> _Slot:
        number = self._operands.get(value) if type(value) is str else None
        if number is None:
            self.is_odd = self.is_odd or self._prefix in repr(value)
            number = len(self._operands) + len(self.common)
            self.common.append(_key_of(value) if table == CONST else value)
        return table, number


def _straight() -> None:
    pass


_LOAD_GLOBAL, _EXTENDED = dis.opmap["LOAD_GLOBAL"], dis.EXTENDED_ARG
_LOCALS, _NAMES, _CONSTANTS = frozenset(dis.haslocal), frozenset(dis.hasname), frozenset(dis.hasconst)
_NUMBERED = _LOCALS | _NAMES | _CONSTANTS
# Of a call with ``**{}`` Python numbers the constants in another order than the instructions use them in.
_UNKNOWN = frozenset((*dis.hasjrel, *dis.hasjabs, *dis.hasfree, dis.opmap["CALL_FUNCTION_EX"]))
_PROLOGUE, _EPILOGUE = _straight.__code__.co_code[:2], _straight.__code__.co_code[2:]
_FLAGS = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
