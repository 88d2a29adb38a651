"""Code that does nothing but call what its object holds, functions that it finds by their names, and methods of values.

Each instruction has to be one that is known; any other one, of a newer Python perhaps, makes it code that is looked
through.
"""

from __future__ import annotations

import dis
import inspect
import sys
from itertools import takewhile
from types import CodeType
from typing import TYPE_CHECKING, NamedTuple

from fxplug.capture.bytecode import read_once
from fxplug.capture.conversions import CONVERSIONS
from fxplug.capture.default_dtype import asks_default_dtype
from fxplug.capture.hazards import OF_SEQUENCES, Scan, scan_of
from fxplug.capture.plain_assignments import assigns_elsewhere, names_uncalled
from fxplug.capture.plain_contexts import begin_of_values, contexts_entered, without_handlers
from fxplug.capture.world import modes_named
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

__all__ = [
    "ATTRIBUTES_OF_TENSORS",
    "OF_CONTAINERS",
    "Reads",
    "reads_method",
    "reads_of",
    "reads_of_function",
    "reads_of_plain_method",
]


class Reads(NamedTuple):
    """What a plain function reads."""

    called: frozenset[str]
    """Names of its object whose values it calls at once."""
    tested: frozenset[str]
    """Those whose values it only compares with None, or takes for a condition."""
    used: frozenset[str]
    """All others; ``"layer.weight"`` is what a module that its object holds has."""
    found: tuple[tuple[str, ...], ...]
    """The names by which it finds something among globals: that of a module, and those of attributes."""
    looped: frozenset[str] = frozenset()
    """Names of its object whose values it goes through, and calls what it finds there."""
    methods: frozenset[str] = frozenset()
    """Names of methods of other values that it calls."""
    attributes: frozenset[str] = frozenset()
    """Names of attributes of other values that it reads otherwise."""
    inherited: frozenset[str] = frozenset()
    """Names of methods of its object that it calls as ``super()`` finds them."""
    optional: frozenset[str] = frozenset()
    """Those of its object that it reads by ``getattr``, with a constant for where there is none."""
    takes_apart: bool = False
    """Whether it reads elements of other values, unpacks, compares or measures them, or makes texts of them."""
    classes: tuple[tuple[str, ...], ...] = ()
    """Names, as those of what is found, of classes for which it asks with ``isinstance``."""
    needs_examples: bool = False
    """Whether it does with values what only a run on examples tells: compares them with None, or goes through them."""
    delegated: frozenset[tuple[str, str]] = frozenset()
    """Names of its object, and of methods of the values under them that it calls."""
    hands_on: bool = False
    """Whether it does more with its object, or with what is in it, than to read attributes and to call."""
    compares: bool = False
    """Whether it asks whether something is what a variable holds."""
    contexts: tuple[tuple[str, ...], ...] = ()
    """Names, as those of what is found, of what is called for a context that is entered."""
    uncalled: frozenset[str] = frozenset()
    """Names of globals that it reads, and may do something else with than to call them at once."""
    asked_for: frozenset[tuple[str, str]] = frozenset()
    """Names of its object, empty for itself, and of attributes of which it asks whether the value under them has it."""

    @property
    def goes_into_values(self) -> bool:
        """Whether code may run that values bring along: that of what their methods are, or of their elements."""
        more = self.methods or self.attributes or self.inherited or self.delegated
        return self.takes_apart or bool(self.looped or more)

    def with_values(self, names: Collection[tuple[str, str]]) -> Reads:
        """Return the same, with methods called of values under some names of its object that are no modules.

        Args:
            names: Some of `delegated`.
        """
        return self._replace(
            used=self.used.union(held for held, _ in names),
            methods=self.methods.union(method for _, method in names),
        )


_HARMLESS = frozenset(
    {
        *("CACHE", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME", "TO_BOOL", "EXTENDED_ARG"),
        "BEFORE_WITH",
        *("COPY", "DUP_TOP", "DUP_TOP_TWO", "POP_TOP", "ROT_TWO", "ROT_THREE", "ROT_FOUR", "SWAP"),
        *("CALL", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_KW", "CALL_METHOD", "KW_NAMES"),
        *("BUILD_CONST_KEY_MAP", "BUILD_LIST", "BUILD_MAP", "BUILD_TUPLE"),
        *("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST", "RETURN_VALUE", "STORE_FAST"),
        *("BINARY_OP", "COMPARE_OP", "UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_NOT", "UNARY_POSITIVE"),
        *("LOAD_ASSERTION_ERROR", "RAISE_VARARGS"),
        "STORE_ATTR",  # To what was looked at before.
        *(
            f"{prefix}_{name}"
            for prefix in ("BINARY", "INPLACE")
            for name in (
                "ADD",
                "FLOOR_DIVIDE",
                "MATRIX_MULTIPLY",
                "MULTIPLY",
                "POWER",
                "SUBTRACT",
                "TRUE_DIVIDE",
            )
        ),
        *("JUMP_FORWARD", "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP"),
        *("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE"),
    }
)
"""Instructions that read no attribute and no variable, of all Pythons: a traced value hears of each."""
_TAKING_APART = frozenset(
    {
        *("BINARY_SUBSCR", "BINARY_SLICE", "BUILD_SLICE", "UNPACK_SEQUENCE"),
        *("BUILD_STRING", "CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_VALUE", "FORMAT_WITH_SPEC"),
    }
)
_ON_EXAMPLES = frozenset(
    {
        *(
            "CALL_FUNCTION_EX",
            "CONTAINS_OP",
            "DICT_MERGE",
            "DICT_UPDATE",
            "FOR_ITER",
            "GET_ITER",
            "LIST_APPEND",
        ),
        *(
            "LIST_EXTEND",
            "LIST_TO_TUPLE",
            "MAP_ADD",
            "POP_JUMP_BACKWARD_IF_FALSE",
            "POP_JUMP_BACKWARD_IF_TRUE",
        ),
        *("COPY_FREE_VARS", "LOAD_CLOSURE", "MAKE_CELL", "MAKE_FUNCTION", "RETURN_GENERATOR", "STORE_SUBSCR"),
        *("GET_YIELD_FROM_ITER", "JUMP_BACKWARD_NO_INTERRUPT", "SEND", "YIELD_VALUE"),
    }
)
"""Those of values that may be containers which the program has made: what they do to traced ones is heard of."""
_LOOPING = frozenset({"END_FOR", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "POP_ITER"})
_STORE_AND_LOAD = "STORE_FAST_LOAD_FAST"
_LOADING = frozenset(
    {
        *("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST"),
        *("LOAD_DEREF", _STORE_AND_LOAD),
    }
)
_WITHOUT_EFFECT = frozenset({"CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "NOP", "PRECALL", "RESUME"})
_GOING_THROUGH = ("iterator", "pair", "key", "element", "modules", "items", "index")
"""What is on top of the stack where elements are taken."""
_INDICES = frozenset({"LOAD_CONST", "LOAD_FAST"})
_ANY_ELEMENT = "<element>"
"""Stands for the variable of an element that is called at once."""
_OF_MODULES = {"children": "modules", "values": "modules", "items": "items"}
"""Methods of an object that give the modules in it -> what is on top of the stack where they are called."""
_TAKEN_FROM_BELOW = {
    **dict.fromkeys(("BINARY_OP", "BINARY_SUBSCR", "COMPARE_OP", "CONTAINS_OP", "IS_OP"), 2),
    **dict.fromkeys(
        ("LOAD_ATTR", "LOAD_METHOD", "UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_NOT", "UNARY_POSITIVE"), 1
    ),
    **dict.fromkeys(("FORMAT_VALUE", "GET_ITER", "LIST_TO_TUPLE"), 2),
    **dict.fromkeys(("LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "PUSH_NULL"), 0),
}
"""How many values an instruction takes from the stack at most."""
_TAKEN_AS_SAID = {
    **dict.fromkeys(("BUILD_LIST", "BUILD_SLICE", "BUILD_STRING", "BUILD_TUPLE", "COPY", "SWAP"), 0),
    **dict.fromkeys(("BUILD_CONST_KEY_MAP", "LIST_APPEND", "LIST_EXTEND"), 1),
    **dict.fromkeys(("CALL", "PRECALL"), 2),
}
"""How many more it takes than its argument says."""
_FINDING = ("super", "super()")
"""What is there where ``super()`` finds a method."""
_READING = ("getattr", "getattr of self", "getattr name", "getattr default")
"""The same for ``getattr``."""
_HASATTR = ("hasattr", "hasattr of self", "hasattr of held", "hasattr name")
"""The same for ``hasattr``."""
_ASKED = frozenset({"getattr", "hasattr", "len"})
"""Functions of Python whose calls are heard of in whole programs that are plain."""
_CALLED = frozenset({"abs", "len", "max", "min"})
"""Those that call methods of what they are given."""
OF_CONTAINERS = frozenset(
    {
        *CONVERSIONS,
        *(
            "all",
            "any",
            "bool",
            "dict",
            "enumerate",
            "isinstance",
            "list",
            "range",
            "reversed",
            "round",
            "str",
        ),
        *("sum", "tuple", "type", "zip"),
    }
)
"""Those that a traced value hears of when it is among what they are given, and that are harmless to anything else."""
_OF_CLASS = ("__class__",)
"""What a method closes over that says ``super()``."""
_OF_PAIR = 2
_OF_GETATTR = 3
"""How many arguments it is given where an attribute may be missing."""
ATTRIBUTES_OF_TENSORS = frozenset({"T", "device", "dtype", "mT", "ndim", "shape"})
"""Attributes of tensors that have no code, and say nothing of gradients, memory or how they were made."""
_AWAITING = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@read_once
def reads_of(code: CodeType) -> Reads | None:
    """Return what a plain method reads, by its code; None where it is no plain one."""
    return _read(code, code.co_varnames[0] if code.co_argcount else None)


@read_once
def reads_of_function(code: CodeType) -> Reads | None:
    """Return the same for a function whose first parameter is as the others are."""
    return _read(code, None)


@read_once
def reads_of_plain_method(code: CodeType) -> Reads | None:
    """Return the same for a method of a plain class, whose object holds what it assigns to it."""
    return _read(code, None, holder=code.co_varnames[0]) if code.co_argcount else None


def _read(
    code: CodeType, own: str | None, *, holder: str | None = None, is_inner: bool = False
) -> Reads | None:
    """Return what a function reads.

    Args:
        code: Of the function.
        own: Its parameter that is its object.
        holder: That to which it may assign attributes.
        is_inner: Whether another one makes it: of a comprehension, of a ``def`` or of a ``lambda``.
    """
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    if not _is_read_alone(code, is_inner=is_inner):
        return None
    scan = scan_of(code)
    finds_super = is_inner and "super" in scan.globals  # That of its own first argument.
    if finds_super or _asks_otherwise(code, scan):
        return None
    entries = without_handlers(code, list(instructions_of(code)))
    contexts = None if entries is None else contexts_entered(entries)
    if entries is None or contexts is None or (classes := _classes_named(entries, scan.globals)) is None:
        return None
    if contexts and code.co_flags & inspect.CO_GENERATOR:
        return None  # Others would be in its contexts until it is asked for more.
    if assigns_elsewhere(entries, holder) or (holder is not None and holder in code.co_cellvars):
        return None
    known = _called_with_stars(entries), names_uncalled(entries, classes)
    reader = _Reader(own, classes, contexts, known)
    if scan.tests or scan.comparisons or inner or not scan.globals.isdisjoint(OF_CONTAINERS):
        reader.needs_examples = True
    if not all(map(reader.take, entries)):
        return None
    parts: list[Reads] = []
    for one in inner:
        name = own if own in one.co_freevars else None
        part = _read(one, name, is_inner=True)
        if part is None:
            return None
        parts.append(part)
    return reader.reads(parts)


def _is_read_alone(code: CodeType, *, is_inner: bool) -> bool:
    """Return whether a function closes over nothing of another one, awaits nothing, and names its parameters."""
    if not (is_inner or code.co_freevars in {(), _OF_CLASS}) or code.co_flags & _AWAITING:
        return False
    # Its object may be among the others.
    return bool(code.co_argcount) or not code.co_flags & inspect.CO_VARARGS


def _asks_otherwise(code: CodeType, scan: Scan) -> bool:
    """Return whether a function asks, or calls, in ways that nobody hears of in a plain program."""
    if scan.asks - _ASKED - {"type"} or scan.forwards or scan.is_blind:
        return True
    if "finfo" in scan.names and asks_default_dtype(code):
        return True
    return any(modes_named(scan.names)) or not scan.names.isdisjoint(OF_SEQUENCES)


def _classes_named(entries: list[dis.Instruction], names: Collection[str]) -> frozenset[int] | None:
    """Return the offsets at which names of classes are read for a question; None where ``type`` does anything else."""
    asked = _classes_asked(entries) if "isinstance" in names else frozenset[int]()
    compared = _classes_compared(entries) if "type" in names else frozenset[int]()
    return None if compared is None else asked | compared


def _classes_asked(entries: list[dis.Instruction]) -> frozenset[int]:
    """Return the offsets at which names of classes are read for a call of ``isinstance``, and for nothing else."""
    entries = [entry for entry in entries if entry.opname not in _WITHOUT_EFFECT]
    found: set[int] = set()
    for index, entry in enumerate(entries):
        if entry.opname not in {"CALL", "CALL_FUNCTION"} or entry.arg != _OF_PAIR:
            continue
        second = begin_of_values(entries, index, 1)
        first = None if second is None else begin_of_values(entries, second, 1)
        asked = entries[first - 1] if first else entry
        if second is None or first is None or asked.opname != "LOAD_GLOBAL" or asked.argval != "isinstance":
            continue
        classes, targets = entries[second:index], entries[first : index + 1]
        is_read = {one.opname for one in classes} <= {"LOAD_GLOBAL", "LOAD_ATTR", "BUILD_TUPLE"}
        if is_read and not any(one.is_jump_target for one in targets):
            found.update(one.offset for one in classes if one.opname == "LOAD_GLOBAL")
    return frozenset(found)


def _called_with_stars(entries: list[dis.Instruction]) -> frozenset[int]:
    """Return the offsets at which attributes of a variable are read to be called with ``*`` or ``**``."""
    entries = [entry for entry in entries if entry.opname not in _WITHOUT_EFFECT]
    found: set[int] = set()
    for index, entry in enumerate(entries):
        if entry.opname != "CALL_FUNCTION_EX":
            continue
        begin = begin_of_values(entries, index, 1 + ((entry.arg or 0) & 1))
        if begin is None or any(one.is_jump_target for one in entries[begin : index + 1]):
            continue
        opnames = [one.opname for one in entries[max(begin - len(_OF_CALLEE), 0) : begin]]
        if opnames == _OF_CALLEE:
            found.add(entries[begin - 1].offset)
    return frozenset(found)


_OF_CALLEE = ["PUSH_NULL", "LOAD_FAST", "LOAD_ATTR"]


def _classes_compared(entries: list[dis.Instruction]) -> frozenset[int] | None:
    """Return the same where ``type(x) is A`` and ``type(x) is not A`` ask; None where anything else is done with it."""
    entries = [entry for entry in entries if entry.opname not in _WITHOUT_EFFECT]
    found: set[int] = set()
    for index, entry in enumerate(entries):
        if entry.argval != "type" or not entry.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")):
            continue
        call, rest = entries[index + 1 : index + 3], entries[index + 3 :]
        is_of_variable = [one.opname for one in call] in (
            ["LOAD_FAST", "CALL"],
            ["LOAD_FAST", "CALL_FUNCTION"],
        )
        names = list(takewhile(lambda one: one.opname == "LOAD_ATTR", rest[1:]))
        ends = rest[1 + len(names) :][:1]
        is_of_class = bool(ends) and rest[0].opname == "LOAD_GLOBAL" and ends[0].opname == "IS_OP"
        targets = any(one.is_jump_target for one in (*call, *rest[: len(names) + 2]))
        if not (is_of_variable and call[1].arg == 1 and is_of_class) or targets:
            return None
        found.add(rest[0].offset)
    return frozenset(found)


class _Reader:
    """Follows what is on top of the stack through code that runs from its beginning to its end.

    Args:
        own: The name of the first parameter, the object of a method.
        classes: Offsets at which names are read of classes that are asked for.
        contexts: The same of what is called for a context.
        known: Offsets at which attributes are read that are called with ``*`` or ``**``, and names of globals that are
            not called at once.
    """

    def __init__(
        self,
        own: str | None,
        classes: frozenset[int],
        contexts: frozenset[int],
        known: tuple[frozenset[int], frozenset[str]],
    ) -> None:
        self._own = own
        self._called_with_stars, self._uncalled = known
        self._found: dict[tuple[str, ...], None] = {}
        self._classes: dict[tuple[str, ...], None] = {}
        self._contexts: dict[tuple[str, ...], None] = {}
        self._at = {**dict.fromkeys(classes, self._classes), **dict.fromkeys(contexts, self._contexts)}
        """Offset at which a global is read -> where its names are kept, if not among what is found."""
        self._kept_in = self._found
        """The same for that which was read last."""
        self._top = ""
        """``"self"``, ``"held"`` (an attribute of it), ``"held, None"``, ``"None"`` (and any other value below),
        ``"iterator"`` (over an attribute of it, or over itself), ``"element"`` (of that), ``"modules"`` (a method that
        gives these), ``"global"`` (or an attribute of one), ``"super"`` (the class), ``"super()"``."""
        self._name = ""
        """Of the attribute."""
        self._before = ""
        """The instruction before."""
        self._called: set[str] = set()
        self._tested: set[str] = set()
        self._used: set[str] = set()
        self._looped: set[str] = set()
        self._source = ""
        """What is gone through: the name of an attribute, or of a method with parentheses; of itself nothing."""
        self._loops: list[tuple[str, str]] = []
        """That, and the variable that holds an element of it; nothing for that of a comprehension."""
        self._methods: set[str] = set()
        self._attributes: set[str] = set()
        self._inherited: set[str] = set()
        self._delegated: set[tuple[str, str]] = set()
        self._asked_for: set[tuple[str, str]] = set()
        self._optional: set[str] = set()
        self._takes_apart = False
        self._elements: set[str] = set()
        """Variables that hold elements of what is gone through."""
        self._variables: set[str] = set()
        """Those that hold something else, or with which something else is done than to call what they hold."""
        self._above: list[int] = []
        """How many values lie on the stack above each element that is about to be called."""
        self._is_called = False
        """Whether what comes of an attribute is called."""
        self._enumerates = False
        """Whether what was loaded last is given to ``enumerate``."""
        self._counts = False
        """Whether it is given to ``len``."""
        self._gives_pairs = False
        """Whether what is gone through are pairs of names and elements."""
        self.needs_examples = False
        self._hands_on = False
        self._compares = False
        self._chain: tuple[str, ...] = ()
        """Names of a global, and of attributes of it in one another."""
        self._ways: dict[str, Callable[[dis.Instruction, str], bool]] = {
            **dict.fromkeys(_GOING_THROUGH, self._go_through),
            **dict.fromkeys(_FINDING, self._find_inherited),
            **dict.fromkeys(_READING, self._read_optional),
            **dict.fromkeys(_HASATTR, self._ask_for_attribute),
        }

    def reads(self, inner: Iterable[Reads]) -> Reads | None:
        """Return what was read; None where what is gone through may be more than called.

        Args:
            inner: What functions in this one read.
        """
        for source, element in self._loops:
            # With elements of which more is done than that they are called, they are to be constants, and no modules.
            is_of_modules = element and element not in self._variables
            is_own = not source or source.endswith("()")
            (self._looped if is_of_modules or is_own else self._used).add(source)
            self.needs_examples |= not is_of_modules
            self._hands_on |= is_own and not is_of_modules
        for part in inner:
            self._take_over(part)
        called, tested, used = frozenset(self._called), frozenset(self._tested), frozenset(self._used)
        of_values = frozenset(self._looped), frozenset(self._methods), frozenset(self._attributes)
        more = frozenset(self._inherited), frozenset(self._optional), self._takes_apart
        rest = *of_values, *more, tuple(self._classes), self.needs_examples
        more = frozenset(self._delegated), self._hands_on, self._compares, tuple(self._contexts)
        names = self._uncalled, frozenset(self._asked_for)
        return Reads(called, tested, used, tuple(self._found), *rest, *more, *names)

    def _take_over(self, part: Reads) -> None:
        """Note what a function in this one reads."""
        self._found.update(dict.fromkeys(part.found))
        self._classes.update(dict.fromkeys(part.classes))
        self._contexts.update(dict.fromkeys(part.contexts))
        for known, more in (
            (self._called, part.called),
            (self._tested, part.tested),
            (self._used, part.used),
            (self._looped, part.looped),
            (self._methods, part.methods),
            (self._attributes, part.attributes),
            (self._inherited, part.inherited),
            (self._optional, part.optional),
        ):
            known.update(more)
        self._delegated |= part.delegated
        self._asked_for |= part.asked_for
        self._uncalled |= part.uncalled
        self._takes_apart |= part.takes_apart
        self._hands_on |= part.hands_on
        self._compares |= part.compares

    def take(self, entry: dis.Instruction) -> bool:
        """Follow an instruction; return whether it is one of a plain function."""
        name, top = entry.opname, self._top
        if top == "global" and (
            entry.is_jump_target or name not in {"LOAD_ATTR", "LOAD_METHOD", *_WITHOUT_EFFECT}
        ):
            self._kept_in[self._chain] = None
        if self._above and not self._stays_below(entry):
            return False
        if (follow := self._ways.get(top)) is not None and name not in _WITHOUT_EFFECT:
            return follow(entry, top)
        if entry.is_jump_target and top and not (top == "iterator" and name in _WITHOUT_EFFECT):
            # Something else may be there when the code comes from elsewhere.
            self._note_use(is_used=True)
            return top != "self" and top not in self._ways and self._follow(entry, "")
        if name in _WITHOUT_EFFECT:
            return True
        if top == "self" and name not in {"GET_ITER", "LOAD_ATTR", "LOAD_METHOD"}:
            self._hands_on = self.needs_examples = True
            return self._follow(entry, "")
        return self._go_on(entry, top) or self._follow(entry, top)

    def _go_on(self, entry: dis.Instruction, top: str) -> bool:
        """Follow the instructions that go on with the object, or with what it holds, in ways that are known.

        Returns:
            Whether it is one of these. What is done otherwise to an attribute is noted.
        """
        name = entry.opname
        if top in {"self", "held"} and name == "GET_ITER":
            self._source = self._name if top == "held" else ""
            self._top, self._gives_pairs = "iterator", False
            return True
        if top == "held" and name in {"CALL", "CALL_FUNCTION"} and self._enumerates and entry.arg == 1:
            self._source = self._name
            self._top = "items"
            return True
        if top == "held" and name in {"CALL", "CALL_FUNCTION"} and self._counts and entry.arg == 1:
            self._note_use(is_used=False)
            self._top = ""
            return True
        if top == "held" and self._is_called and name in _INDICES and entry.argval not in {None, self._own}:
            self._top = "index"
            self._variables.update([entry.argval] if name == "LOAD_FAST" else ())
            return True
        if top == "held" and self._is_of_module(entry):
            self._name += f".{entry.argval}"
            self._takes_apart = True
            return True
        if top == "held" and self._is_method_of(entry):
            self._delegated.add((self._name, str(entry.argval)))
            self._top = ""
            return True
        if top == "held":
            self._note_use(
                is_used=not (name == "TO_BOOL" or name.startswith("POP_JUMP") or _loads_none(entry))
            )
        elif top == "held, None":
            self._note_use(is_used=name != "IS_OP")
        return False

    def _is_method_of(self, entry: dis.Instruction) -> bool:
        """Return whether a method is read off an attribute of the object, to be called."""
        return reads_method(entry) and not entry.argval.startswith("__")

    def _is_of_module(self, entry: dis.Instruction) -> bool:
        """Return whether an attribute is read off an attribute of the object that is none of tensors."""
        is_read = entry.opname == "LOAD_ATTR" and not reads_method(entry) and "." not in self._name
        return is_read and entry.argval not in ATTRIBUTES_OF_TENSORS and not entry.argval.startswith("_")

    def _go_through(self, entry: dis.Instruction, top: str) -> bool:
        """Follow the instructions that take an element and call it: with nothing else is more done than is looked at.

        Returns:
            Whether it is one of these.
        """
        name, self._top = entry.opname, ""
        if top == "iterator":
            if name == "CALL":  # That of a comprehension.
                self._loops.append((self._source, ""))
                return entry.arg == 0
            self._top = "pair" if self._gives_pairs else "element"
            return name == "FOR_ITER"
        if entry.is_jump_target:
            return False
        if top == "index":
            if name != "BINARY_SUBSCR":  # The index is computed.
                self._used.add(self._name)
                return self._follow(entry, "")
            self._loops.append((self._name, _ANY_ELEMENT))
            self._above.append(0)
            return True
        if top in {"modules", "items"}:  # The method was read, and is called.
            if name != "GET_ITER" and not (name in {"CALL", "CALL_METHOD"} and entry.arg == 0):
                self._looped.add(self._source)
                self._hands_on = self.needs_examples = True
                return self._follow(entry, "")
            self._top, self._gives_pairs = "iterator" if name == "GET_ITER" else top, top == "items"
            return True
        if top == "pair":
            self._top = "key"
            return name == "UNPACK_SEQUENCE" and entry.arg == _OF_PAIR
        if top == "key":
            self._top = "element"
            self._variables.add(entry.argval)
        else:
            self._elements.add(entry.argval)
            self._loops.append((self._source, entry.argval))
        return name == "STORE_FAST" and entry.argval != self._own

    def _stays_below(self, entry: dis.Instruction) -> bool:
        """Follow what lies on the stack above an element that is to be called.

        Returns:
            Whether the element is not touched until it is called.
        """
        name, argument = entry.opname, entry.arg or 0
        if name in _WITHOUT_EFFECT - {"PRECALL"} or name == "KW_NAMES":
            return True
        taken = _TAKEN_FROM_BELOW.get(name)
        if taken is None:
            more = _TAKEN_AS_SAID.get(name)
            taken = None if more is None else argument + more
        if taken is None or entry.is_jump_target:
            return False
        is_call = name == "CALL" and argument == self._above[-1]
        if not is_call and name != "PRECALL" and taken > self._above[-1]:
            return False
        if is_call:
            self._above.pop()
        if name != "PRECALL":
            effect = -argument - 1 if name == "CALL" else dis.stack_effect(entry.opcode, entry.arg)
            self._above = [count + effect for count in self._above]
        return True

    def _find_inherited(self, entry: dis.Instruction, top: str) -> bool:
        """Follow the instructions that find a method with ``super()``.

        Returns:
            Whether it is one of these.
        """
        if entry.is_jump_target:
            return False
        if top == "super":
            self._top = "super()"
            return entry.opname in {"CALL", "CALL_FUNCTION"} and not entry.arg
        self._top = ""
        self._inherited.add(entry.argval)
        return entry.opname == "LOAD_METHOD"

    def _read_optional(self, entry: dis.Instruction, top: str) -> bool:
        """Follow the instructions of ``getattr(self, "name", constant)``.

        Returns:
            Whether it is one of these.
        """
        name, value = entry.opname, entry.argval
        if entry.is_jump_target:
            return False
        if top == "getattr":
            self._top = "getattr of self"
            return name == "LOAD_FAST" and value == self._own
        if top == "getattr of self":
            self._top, self._name = "getattr name", value
            return name == "LOAD_CONST" and type(value) is str
        if top == "getattr name":
            self._top = "getattr default"
            return name == "LOAD_CONST" and (value is None or type(value) in {bool, int, float})
        self._top = ""
        self._optional.add(self._name)
        return name in {"CALL", "CALL_FUNCTION"} and entry.arg == _OF_GETATTR

    def _ask_for_attribute(self, entry: dis.Instruction, top: str) -> bool:
        """Follow the instructions of ``hasattr(self, "name")`` and ``hasattr(self.layer, "name")``.

        Returns:
            Whether it is one of these.
        """
        name, value = entry.opname, entry.argval
        if entry.is_jump_target:
            return False
        if top == "hasattr":
            self._top, self._name = "hasattr of self", ""
            return name == "LOAD_FAST" and value == self._own
        if name == "LOAD_ATTR" and top == "hasattr of self" and not reads_method(entry):
            self._top, self._name = "hasattr of held", value
            return not value.startswith("__")
        if top == "hasattr name":
            self._top = ""
            return name in {"CALL", "CALL_FUNCTION"} and entry.arg == _OF_PAIR
        self._top = "hasattr name"
        self._asked_for.add((self._name, value))
        return name == "LOAD_CONST" and type(value) is str

    def _note_use(self, *, is_used: bool) -> None:
        """Note what becomes of the attribute that was read last."""
        if self._top.startswith("held"):
            (self._used if is_used else self._tested).add(self._name)

    def _follow(self, entry: dis.Instruction, top: str) -> bool:
        name, self._top = entry.opname, ""
        before, self._before = self._before, name
        if name in _WITHOUT_EFFECT:
            return True
        if name in _LOADING:
            return self._load(entry, before)
        if name == "LOAD_GLOBAL":
            top = entry.argval if entry.argval in {"getattr", "hasattr", "super"} else "global"
            self._top, self._chain = top, (entry.argval,)
            self._kept_in = self._at.get(entry.offset, self._found)
            self._takes_apart |= entry.argval in _CALLED
            return True
        if name in {"LOAD_ATTR", "LOAD_METHOD"}:
            return self._read_attribute(entry, top)
        if _loads_none(entry):
            self._top = "held, None" if top == "held" else "None"
            return True
        if name == "IS_OP" or name.endswith(("IF_NONE", "IF_NOT_NONE")):
            self.needs_examples |= not top.startswith("held")
            is_known = (
                name != "IS_OP"
                or top.endswith("None")
                or (top == "global" and self._kept_in is self._classes)
            )
            return is_known or self._compares_with_variable(before)
        if name in {"STORE_FAST", "STORE_DEREF"}:
            self._variables.add(entry.argval)
            return entry.argval != self._own
        if name in _TAKING_APART or (name == "BINARY_OP" and entry.argrepr.startswith("[")):
            self._takes_apart = True
            return True
        if name in _ON_EXAMPLES or (name in _LOOPING and not self._loops):
            self._takes_apart = self.needs_examples = True
            return True
        return name in _HARMLESS or name in _LOOPING

    def _compares_with_variable(self, before: str) -> bool:
        """Return whether something is compared by identity with a variable, which was loaded last, and note it."""
        is_one = before in _LOADING
        self._compares |= is_one
        return is_one

    def _load(self, entry: dis.Instruction, before: str) -> bool:
        names = entry.argval if isinstance(entry.argval, tuple) else (entry.argval,)
        if before == "PUSH_NULL" and self._elements.issuperset(names) and len(names) == 1:
            self._above.append(0)
            return True
        self._variables.update(names)
        self._enumerates = before == "LOAD_GLOBAL" and self._chain == ("enumerate",)
        self._counts = before == "LOAD_GLOBAL" and self._chain == ("len",)
        if self._own is None or self._own not in names:
            return "__class__" not in names
        self._top, self._is_called = "self", before == "PUSH_NULL"
        is_stored = entry.opname == _STORE_AND_LOAD and names[0] == self._own
        return names.count(self._own) == 1 and names[-1] == self._own and not is_stored

    def _read_attribute(self, entry: dis.Instruction, top: str) -> bool:
        name: str = entry.argval
        if name.startswith("__"):
            return False
        if top == "global":
            self._top, self._chain = "global", (*self._chain, name)
            return True
        is_method = reads_method(entry) or (top == "self" and entry.offset in self._called_with_stars)
        if top != "self":
            (self._methods if is_method else self._attributes).add(name)
            return True
        if is_method and name in _OF_MODULES:
            self._source = f"{name}()"
            self._top = _OF_MODULES[name]
        elif is_method:
            self._called.add(name)
        else:
            self._top, self._name = "held", name
        return True


def _loads_none(entry: dis.Instruction) -> bool:
    return entry.opname == "LOAD_CONST" and entry.argval is None


def reads_method(entry: dis.Instruction) -> bool:
    """Return whether an attribute is read to be called at once; newer Pythons have no instruction of its own for it."""
    is_flagged = sys.version_info >= (3, 12) and entry.opname == "LOAD_ATTR" and bool((entry.arg or 0) & 1)
    return entry.opname == "LOAD_METHOD" or is_flagged
