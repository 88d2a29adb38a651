"""Functions in which there is nothing to look for: all that they do is call modules of their object, methods and torch.

Most forwards of networks are like that. What is looked for elsewhere (see `fxplug.capture.hazards`) is then known not
to be there: they ask nothing that no traced value hears, they find no other code than that of modules, whose calls are
heard of, and they hand on nothing but numbers, tensors and what they were given themselves. Each instruction has to be
one that is known; any other one, of a newer Python perhaps, makes a function one that is looked through.
"""

from __future__ import annotations

import dis
import inspect
import weakref
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from fxplug.capture.containers import PLAIN, is_of_library
from fxplug.capture.conversions import CONVERSIONS
from fxplug.capture.hazards import FILE_OF_CONTAINERS, OF_SEQUENCES, scan_of
from fxplug.capture.world import modes_named, world_found_by, world_kept_by
from fxplug.semantics.internals import global_hook_tables, is_run_as_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "MissedProgramError",
    "PlainPart",
    "holds_values",
    "is_layer_of_torch",
    "is_plain_program",
    "layout_of",
    "plain_parts",
]


class _Reads(NamedTuple):
    """What a plain function reads."""

    called: frozenset[str]
    """Names of its object whose values it calls at once."""
    tested: frozenset[str]
    """Those whose values it only compares with None, or takes for a condition."""
    used: frozenset[str]
    """All others."""
    found: tuple[tuple[str, ...], ...]
    """The names by which it finds something among globals: that of a module, and those of attributes."""


_HARMLESS = frozenset(
    {
        *("CACHE", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME", "TO_BOOL", "EXTENDED_ARG"),
        *("COPY", "DUP_TOP", "DUP_TOP_TWO", "POP_TOP", "ROT_TWO", "ROT_THREE", "ROT_FOUR", "SWAP"),
        *("CALL", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_KW", "CALL_METHOD", "KW_NAMES"),
        *("BUILD_CONST_KEY_MAP", "BUILD_LIST", "BUILD_MAP", "BUILD_TUPLE"),
        *("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST", "RETURN_VALUE", "STORE_FAST"),
        *("BINARY_OP", "COMPARE_OP", "UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_POSITIVE"),
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
_STORE_AND_LOAD = "STORE_FAST_LOAD_FAST"
_LOADING = frozenset(
    {
        *("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST"),
        _STORE_AND_LOAD,
    }
)
_WITHOUT_EFFECT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "RESUME"})
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OF_CLASSES = frozenset({"__annotate__", "__annotate_func__", "__dict__", "__weakref__"})
_QUIET_METHODS = frozenset({"__del__", "__init__", "__init_subclass__", "__new__", "__repr__"})
"""What a class may define of its own, and nobody calls where a module of it is called."""


_reads: dict[int, tuple[weakref.ref[CodeType], _Reads | None]] = {}


def _reads_of(code: CodeType) -> _Reads | None:
    """Return what a plain function reads, by its code; None where it is no plain one. Code is read once."""
    key = id(code)
    known = _reads.get(key)
    if known is None:
        known = _reads[key] = weakref.ref(code, lambda _: _reads.pop(key, None)), _read(code)
    return known[1]


def _read(code: CodeType) -> _Reads | None:
    is_closed = code.co_freevars or code.co_cellvars or code.co_flags & _SUSPENDED
    if is_closed or getattr(code, "co_exceptiontable", b"") or any(map(_is_code, code.co_consts)):
        return None
    scan = scan_of(code)
    asks = scan.asks or scan.tests or scan.pairs or scan.comparisons or scan.forwards or scan.is_blind
    if asks or any(modes_named(scan.names)) or not scan.names.isdisjoint({*CONVERSIONS, *OF_SEQUENCES}):
        return None
    reader = _Reader(code.co_varnames[0] if code.co_argcount else None)
    entries = list(dis.get_instructions(code))
    if not all(map(reader.take, entries)):
        return None
    return reader.reads()


def _is_code(value: Any) -> bool:
    return isinstance(value, CodeType)


class _Reader:
    """Follows what is on top of the stack through code that runs from its beginning to its end.

    Args:
        own: The name of the first parameter, the object of a method.
    """

    def __init__(self, own: str | None) -> None:
        self._own = own
        self._top = ""
        """``"self"``, ``"held"`` (an attribute of it), ``"held, None"``, ``"global"`` (or an attribute of one)."""
        self._name = ""
        """Of the attribute."""
        self._called: set[str] = set()
        self._tested: set[str] = set()
        self._used: set[str] = set()
        self._chain: tuple[str, ...] = ()
        """Names of a global, and of attributes of it in one another."""
        self._found: dict[tuple[str, ...], None] = {}

    def reads(self) -> _Reads:
        """Return what was read."""
        return _Reads(
            frozenset(self._called), frozenset(self._tested), frozenset(self._used), tuple(self._found)
        )

    def take(self, entry: dis.Instruction) -> bool:
        """Follow an instruction; return whether it is one of a plain function."""
        name, top = entry.opname, self._top
        if top == "global" and (
            entry.is_jump_target or name not in {"LOAD_ATTR", "LOAD_METHOD", *_WITHOUT_EFFECT}
        ):
            self._found[self._chain] = None
        if entry.is_jump_target and top:
            # Something else may be there when the code comes from elsewhere.
            self._note_use(is_used=True)
            return top != "self" and self._follow(entry, "")
        if name in _WITHOUT_EFFECT:
            return True
        if top == "self" and name not in {"LOAD_ATTR", "LOAD_METHOD"}:
            return False  # It hands itself on.
        if top == "held":
            self._note_use(
                is_used=not (name == "TO_BOOL" or name.startswith("POP_JUMP") or _loads_none(entry))
            )
        elif top == "held, None":
            self._note_use(is_used=name != "IS_OP")
        return self._follow(entry, top)

    def _note_use(self, *, is_used: bool) -> None:
        """Note what becomes of the attribute that was read last."""
        if self._top.startswith("held"):
            (self._used if is_used else self._tested).add(self._name)

    def _follow(self, entry: dis.Instruction, top: str) -> bool:
        name, self._top = entry.opname, ""
        if name in _WITHOUT_EFFECT:
            return True
        if name in _LOADING:
            return self._load(entry)
        if name == "LOAD_GLOBAL":
            self._top, self._chain = "global", (entry.argval,)
            return True
        if name in {"LOAD_ATTR", "LOAD_METHOD"}:
            return self._read_attribute(entry, top)
        if top == "held" and _loads_none(entry):
            self._top = "held, None"
            return True
        if name == "IS_OP":
            return top == "held, None"
        if name.endswith(("IF_NONE", "IF_NOT_NONE")):
            return top == "held"
        return name in _HARMLESS and not (name == "STORE_FAST" and entry.argval == self._own)

    def _load(self, entry: dis.Instruction) -> bool:
        names = entry.argval if isinstance(entry.argval, tuple) else (entry.argval,)
        if self._own is None or self._own not in names:
            return True
        self._top = "self"
        is_stored = entry.opname == _STORE_AND_LOAD and names[0] == self._own
        return names.count(self._own) == 1 and names[-1] == self._own and not is_stored

    def _read_attribute(self, entry: dis.Instruction, top: str) -> bool:
        name: str = entry.argval
        if name.startswith("__"):
            return False
        if top == "global":
            self._top, self._chain = "global", (*self._chain, name)
            return True
        if top != "self":
            return False
        if entry.opname == "LOAD_METHOD" or _is_method(entry):
            self._called.add(name)
        else:
            self._top, self._name = "held", name
        return True


def _loads_none(entry: dis.Instruction) -> bool:
    return entry.opname == "LOAD_CONST" and entry.argval is None


def _is_method(entry: dis.Instruction) -> bool:
    """Return whether an attribute is read to be called at once; newer Pythons have no instruction of its own for it."""
    return "LOAD_METHOD" not in dis.opmap and bool((entry.arg or 0) & 1)


# -- whole programs


def is_plain_program(
    modules: Iterable[nn.Module],
    code_of: Callable[[FunctionType], CodeType],
    is_remarkable: Callable[[CodeType], bool],
) -> bool:
    """Return whether all modules of a program are layers of torch or have plain forwards, and nothing runs around them.

    Args:
        modules: The root and all modules below it.
        code_of: Returns the own code of a function, whose code may be exchanged.
        is_remarkable: Returns whether there is more to know of a function, by its code.
    """
    if any(global_hook_tables()):
        return False
    known: dict[tuple[Any, ...], frozenset[str]] = {}
    layers = _own_layers
    for module in modules:
        kind = type(module)
        held = module.__dict__
        # A model has hundreds of layers.
        if kind in layers or _is_own_layer(kind):
            if is_run_as_written(held):
                continue
            return False
        if not _is_quiet(module) or not is_run_as_written(held):
            return False
        layout = layout_of(module)
        values = known.get(layout)
        if values is not None and holds_values(module, values):
            continue
        if kind.train is not nn.Module.train or kind.eval is not nn.Module.eval:
            return False
        parts = plain_parts(kind.forward, module, code_of)
        if parts is None or any(is_remarkable(part.code) for part in parts):
            return False
        known[layout] = frozenset[str]().union(*(part.values for part in parts))
    return True


class MissedProgramError(Exception):
    """A program that was taken for a plain one has layers entered, or modules that it does not hold."""


_own_layers: set[type] = set()


def is_layer_of_torch(kind: type) -> bool:
    """Return whether a class is one that `is_plain_program` takes for a layer: its forward is not looked at."""
    return kind in _own_layers and kind.__module__ != _CONTAINERS


_CONTAINERS = nn.Sequential.__module__


def _is_own_layer(kind: type) -> bool:
    """Return whether a class is one of those that torch has for layers, with nothing to be found out when it runs."""
    is_own = str(kind.__module__).startswith("torch.nn.modules.") and not issubclass(kind, LazyModuleMixin)
    if is_own:
        _own_layers.add(kind)
    return is_own


# -- what it finds

_quiet: dict[int, tuple[weakref.ref[CodeType], tuple[Any, ...]]] = {}
"""Id of code -> the modules of torch that it was found to be plain with."""


class PlainPart(NamedTuple):
    """A plain function."""

    function: FunctionType
    code: CodeType
    """Its own."""
    values: frozenset[str]
    """Names of its object whose values it does not call."""


def plain_parts(
    function: Any, receiver: Any, code_of: Callable[[FunctionType], CodeType]
) -> list[PlainPart] | None:
    """Return a plain function and the methods that it calls, which are plain too; None for others.

    Args:
        function: A function or method.
        receiver: The object whose method it is; None for a function.
        code_of: Returns the own code of a function, whose code may be exchanged.
    """
    if receiver is not None and not _is_quiet(receiver):
        return None
    found: list[PlainPart] = []
    waiting: list[Any] = [getattr(function, "__func__", function)]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if type(current) is not FunctionType:
            return None
        code = code_of(current)
        if id(code) in seen:
            continue
        seen.add(id(code))
        if code.co_filename == FILE_OF_CONTAINERS:
            continue  # It calls modules, and nothing else.
        # What libraries do in their modules, such as captured ones, is known in other ways.
        reads = None if type(receiver) in _layers else _reads_of(code)
        if reads is None or not _finds_torch_alone(current, code, reads):
            return None
        if reads.called or reads.tested or reads.used:
            methods = _methods_called(receiver, reads)
            if methods is None:
                return None
            waiting += methods
        found.append(PlainPart(current, code, reads.tested | reads.used))
    return found


def layout_of(module: nn.Module) -> tuple[Any, ...]:
    """Return what is the same for modules whose methods find the same, but for values that they do not call."""
    modules = module.__dict__["_modules"]
    return (type(module), *modules, *map(type, modules.values()))


def holds_values(module: nn.Module, names: Iterable[str]) -> bool:
    """Return whether what a module has under some names, other modules aside, holds nothing."""
    held = module.__dict__
    own, modules = held.get, held["_modules"]
    return all(name in modules or (name in held and type(own(name)) in _CONSTANTS) for name in names)


def _finds_torch_alone(function: FunctionType, code: CodeType, reads: _Reads) -> bool:
    """Return whether the globals that a function reads are modules of torch, and its defaults hold nothing."""
    defaults, named = function.__defaults__, function.__kwdefaults__
    if defaults is not None and not all(type(value) in PLAIN for value in defaults):
        return False
    if named is not None and not all(type(value) in PLAIN for value in named.values()):
        return False
    namespace = function.__globals__
    values = tuple([namespace.get(chain[0]) for chain in reads.found])
    key = id(code)
    known = _quiet.get(key)
    if known is not None and len(known[1]) == len(values) and all(map(is_, known[1], values)):
        return True
    if not all(map(_leads_to_torch, values, reads.found)):
        return False
    names = scan_of(code).names
    if any(True for _ in world_found_by(namespace, names)) or any(
        True for _ in world_kept_by(function, None, names)
    ):
        return False
    _quiet[key] = weakref.ref(code, lambda _: _quiet.pop(key, None)), values
    return True


def _leads_to_torch(value: Any, chain: tuple[str, ...]) -> bool:
    """Return whether there is a function of torch that computes, or a plain value, where the names lead to."""
    for name in chain[1:]:
        if type(value) is not ModuleType or not f"{value.__name__}.".startswith("torch."):
            return False
        value = vars(value).get(name)
    kind = type(value)
    if kind is FunctionType:
        return value.__module__ in {"torch.functional", "torch.nn.functional"}
    if kind is BuiltinFunctionType:
        return value.__module__ == "torch" if value.__self__ is None else value.__module__ in _COMPUTING
    return kind in {int, float, bool, torch.dtype} and len(chain) > 1


_COMPUTING = frozenset({"torch._C._fft", "torch._C._linalg", "torch._C._nn", "torch._C._special"})
"""Where the functions of torch are that compute, and that are written in C, besides those that are of no module."""


# -- what its object holds


class _Class:
    """What is known of a class of modules.

    Args:
        kind: The class.
        bases: Its own and those that it inherits from, of the program.
        sizes: How much each of them holds.
    """

    def __init__(self, kind: type, bases: Sequence[type], sizes: list[int]) -> None:
        self.bases, self.sizes = [weakref.ref(base) for base in bases], sizes
        self.own: dict[str, Any] = {}
        """Name -> what its own classes hold under it."""
        for base in reversed(bases):
            self.own.update(vars(base))
        self.is_quiet = type(kind) is type and not any(map(_runs_unnamed, self.own, self.own.values()))
        """Whether none of its methods runs without being named, besides those that make it."""
        self.sorted: dict[int, _Sorted] = {}
        """Id of what a function reads -> the names in it, sorted by where they lead."""

    def is_current(self) -> bool:
        """Return whether its classes hold as much as when this was made."""
        return self.sizes == [len(base.__dict__) for ref in self.bases if (base := ref()) is not None]


class _Sorted(NamedTuple):
    """The names that a function reads of its object, and that its class has or has not."""

    reads: _Reads
    methods: Sequence[str]
    called: Sequence[str]
    """Those that it calls and that no class has."""
    values: Sequence[str]
    """Those that it does not call."""


_classes: dict[int, tuple[weakref.ref[type], _Class]] = {}
"""By id: a dict of weak references makes one for every question."""
_layers: set[type] = set()
"""Classes of torch."""
_ScriptModule: type = torch.jit.ScriptModule


def _class_of(kind: type) -> _Class:
    key = id(kind)
    known = _classes.get(key)
    if known is None or not known[1].is_current():
        bases = [base for base in kind.__mro__ if not is_of_library(base.__module__)]
        found = _Class(kind, bases, [len(vars(base)) for base in bases])
        known = _classes[key] = weakref.ref(kind, lambda _: _classes.pop(key, None)), found
    return known[1]


def _runs_unnamed(name: str, value: Any) -> bool:
    is_special = name[:2] == "__" == name[-2:] and name not in _QUIET_METHODS
    return is_special and (callable(value) or hasattr(type(value), "__get__")) and name not in _OF_CLASSES


def _is_quiet(module: Any) -> bool:
    """Return whether nothing of a module runs but what is heard of, where it is called or compared with None."""
    kind = type(module)
    if kind in _layers:
        return True
    if not issubclass(kind, nn.Module) or issubclass(kind, _ScriptModule):
        return False
    if is_of_library(kind.__module__):
        _layers.add(kind)
        return True
    return _class_of(kind).is_quiet


def _methods_called(receiver: Any, reads: _Reads) -> list[Any] | None:
    """Return the methods that a function calls of its object; None where it finds something that leads to others."""
    if receiver is None:
        return None
    known = _class_of(type(receiver))
    names = known.sorted.get(id(reads))
    if names is None or names.reads is not reads:
        names = known.sorted[id(reads)] = _sorted(known, reads)
    held = receiver.__dict__
    modules = held["_modules"]
    own = known.own
    for name in names.called:
        module = modules.get(name)
        is_other = name in _OF_MODULES or (name in held and held[name] is not None)
        if is_other or not (module is None or _is_quiet(module)):
            return None
    for name in names.values:
        value = _value_of(held, own, name)
        if not (type(value) in PLAIN or (name not in reads.used and _is_quiet(value))):
            return None
    if any(name in held or type(own[name]) is not FunctionType for name in names.methods):
        return None
    return [own[name] for name in names.methods]


def _sorted(known: _Class, reads: _Reads) -> _Sorted:
    methods = [name for name in reads.called if name in known.own]
    called = [name for name in reads.called if name not in known.own]
    return _Sorted(reads, methods, called, [*(reads.tested | reads.used)])


_UNKNOWN = object()
_CONSTANTS = PLAIN - {torch.Tensor, nn.Parameter}


def _value_of(held: Mapping[str, Any], own: Mapping[str, Any], name: str) -> Any:
    """Return what Python finds as an attribute of a module; `_UNKNOWN` where it would run something to find it.

    Args:
        held: The module's own attributes.
        own: Name -> what its own classes hold under it.
        name: Of the attribute.
    """
    if name in own or name in held:
        # Nobody hears of reads of tensors that are no parameters and no buffers.
        value = held[name] if name not in own else _UNKNOWN if name in held else own[name]
        return value if type(value) in _CONSTANTS else _UNKNOWN
    if name in _OF_MODULES:
        return _UNKNOWN
    for table in ("_parameters", "_buffers", "_modules"):
        if name in held[table]:
            return held[table][name]
    return _UNKNOWN


_OF_MODULES = frozenset(dir(nn.Module))
