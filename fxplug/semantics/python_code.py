"""What a function written in Python may do besides computing its result, read off its bytecode.

A closed list says what is known to be harmless, as everywhere: whatever else stands in a function is a reason.
"""

from __future__ import annotations

import builtins
import inspect
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from fxplug.ir import Graph, effects, qualified_name
from fxplug.ir.instructions import instructions_of
from fxplug.semantics.internals import OpOverload, OpOverloadPacket, schema_of

if TYPE_CHECKING:
    import dis
    from collections.abc import Iterator, Mapping

    from fxplug.ir import Effect

__all__ = ["is_plain_constant", "reason_against_function"]

_CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
_CLASSES: tuple[Any, ...] = (
    *(
        bool,
        int,
        float,
        complex,
        str,
        tuple,
        list,
        dict,
        set,
        frozenset,
        range,
        slice,
        enumerate,
        zip,
        reversed,
    ),
    *(torch.Tensor, torch.Size, torch.no_grad, torch.enable_grad),
)
"""Classes that may be named, and called."""
_READ_NAMES = "shape dtype device layout ndim itemsize nbytes T mT H mH real imag is_cuda is_cpu is_quantized"
_READS = frozenset(_READ_NAMES.split())
"""Attributes of tensors."""
_ANSWER_NAMES = (
    "__len__ allclose can_cast dim element_size equal get_device is_complex is_floating_point is_nonzero is_same_size "
    "is_signed item ndimension nelement numel promote_types result_type size sym_numel sym_size tolist"
)
_ANSWERS = frozenset(_ANSWER_NAMES.split())
"""What tensors may be asked that returns no tensor: inputs that are accepted have the same dtypes and sizes, and what
reads elements is no operator. Strides, addresses and the like differ among inputs of one size."""
_CONVERSION_NAMES = "bfloat16 bool byte char double float half int long new_tensor short type"
_CONVERSIONS = frozenset(_CONVERSION_NAMES.split())
"""Methods that no operator is named after, and that return tensors, or say what dtype they have."""
_REFLECTIVE = frozenset({getattr, hasattr, hash, setattr, delattr})
"""Builtins that reach what nobody can see here."""
_SILENT_NAMES = "CACHE COPY_FREE_VARS EXTENDED_ARG MAKE_CELL NOP NOT_TAKEN PRECALL PUSH_NULL RESUME"
_SILENT = frozenset(_SILENT_NAMES.split())
_HARMLESS_STORES = ("STORE_FAST", "STORE_SUBSCR", "STORE_SLICE", "DELETE_FAST", "DELETE_SUBSCR")
_REFUSED = (
    *("STORE_", "DELETE_", "IMPORT_", "YIELD_", "SEND", "GET_A", "LOAD_BUILD", "LOAD_SUPER", "LOAD_NAME"),
    *("LOAD_CLASS", "LOAD_LOCALS", "LOAD_FROM", "SETUP_ANNOTATIONS", "PRINT_"),
)
_MISSING: Any = object()


def is_plain_constant(value: Any) -> bool:
    """Return whether a value never changes, and holds nothing that does."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(is_plain_constant, value))
    return isinstance(value, _CONSTANTS)


def reason_against_function(
    function: Any,
    *,
    owner_methods: frozenset[str] = frozenset(),
    has_owner: bool = False,
    may_write: bool = True,
) -> str:
    """Return what a function may do besides computing its result from its arguments; empty where it does nothing else.

    Args:
        function: Called with tensors and plain constants alone.
        has_owner: Whether its first parameter is an object that nobody else sees, whose attributes it may set.
        owner_methods: Names of the methods of this object that it may call.
        may_write: Whether it may write to tensors, its arguments among them, of which operators tell.
    """
    return _Reader(owner_methods, may_write=may_write).reason(function, has_owner=has_owner)


class _Reader:
    """Reads functions, and those that they call.

    Args:
        owner_methods: See `reason_against_function`.
        may_write: See `reason_against_function`.
    """

    def __init__(self, owner_methods: frozenset[str], *, may_write: bool) -> None:
        self._owner_methods = owner_methods
        self.may_write = may_write
        self._seen: set[FunctionType] = set()

    def reason(self, function: Any, *, has_owner: bool) -> str:
        """Return what a function may do besides; empty for nothing."""
        if not isinstance(function, FunctionType):
            return f"nobody can read what {qualified_name(function)} does"
        code = function.__code__
        if function in self._seen:
            return ""
        self._seen.add(function)
        given = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        if not all(map(is_plain_constant, given)):
            return (
                f"a default of {function.__qualname__} may change ({code.co_filename}:{code.co_firstlineno})"
            )
        owner = code.co_varnames[0] if has_owner and code.co_argcount else ""
        places = _Places(function)
        for part in _codes(code):
            if reason := _Walk(self, places, part, owner if part is code else "").reason():
                return f"{reason} ({code.co_filename}:{code.co_firstlineno})"
        return ""

    def reason_against_object(self, value: Any, name: str) -> str:
        """Return why something that a function names is not harmless; empty where it is.

        Args:
            value: What it names.
            name: How it names it.
        """
        if is_plain_constant(value) or any(value is known for known in _CLASSES):
            return ""
        if isinstance(value, type) and issubclass(value, BaseException) and _is_made_by_python(value):
            return ""
        effect = _effect(value) if _can_be_asked(value) else None
        if self.is_harmless(effect):
            return "" if _asks_only_sizes(value) else _reason_against_asking(name)
        if (
            isinstance(value, FunctionType)
            and effect is not None
            and effect.unknown
            and not _is_of_torch(value)
        ):
            return self.reason(value, has_owner=False)
        if callable(value):
            return f"it calls {name}, which may do something besides"
        return f"it reads {name}, which may change"

    def is_harmless(self, effect: Effect | None) -> bool:
        """Return whether what is known of a call is nothing but a computation, or a write that is allowed."""
        if effect is None or effect.unknown or effect.outside:
            return False
        return self.may_write or not effect.writes

    def allows_on_owner(self, name: str) -> bool:
        """Return whether a method of the object that belongs to the function may be called."""
        return name in self._owner_methods


def _can_be_asked(value: Any) -> bool:
    try:
        hash(value)
    except Exception:
        return False
    return callable(value) and value not in _REFLECTIVE and not isinstance(value, type)


def _is_made_by_python(kind: type[BaseException]) -> bool:
    """Return whether nobody's code runs when an exception is made."""
    makers: tuple[Any, ...] = (kind.__init__, kind.__new__)
    return type(kind) is type and not any(isinstance(maker, FunctionType) for maker in makers)


def _asks_only_sizes(target: Any) -> bool:
    """Return whether an operator, or a function or method that is named after one, returns tensors or what sizes tell.

    Args:
        target: What is called, or the name of a method of tensors.
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    packet: Any = target.overloadpacket if isinstance(target, OpOverload) else target
    if isinstance(packet, OpOverloadPacket):
        name = packet.__name__
    elif not isinstance(target, str) and getattr(torch, name, None) is not target:
        if getattr(torch.Tensor, name, None) is not target:
            return True  # What is no operator is known by itself.
    else:
        packet = getattr(torch.ops.aten, name, None)
    if name in _ANSWERS:
        return True
    if packet is None:
        return name in _CONVERSIONS or not hasattr(torch.Tensor, name)
    schemas = (schema_of(getattr(packet, overload)) for overload in packet.overloads())
    return any("Tensor" in str(result.type) for schema in schemas for result in schema.returns)


def _reason_against_asking(name: str) -> str:
    return f"it uses {name}, which inputs of the same dtypes and sizes may answer in another way"


def _effect(target: Any) -> Effect:
    graph = Graph()
    return effects.effect_of(graph.call_function(target, (graph.placeholder("x"),)))


def _is_of_torch(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").partition(".")[0] == "torch"


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and that of functions inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


class _Places:
    """Where a function finds what it names.

    Args:
        function: Not called.
    """

    def __init__(self, function: FunctionType) -> None:
        self._globals: Mapping[str, Any] = function.__globals__
        cells = function.__closure__ or ()
        self._cells = dict(zip(function.__code__.co_freevars, cells, strict=True))

    def of_global(self, name: str) -> Any:
        """Return what a global name stands for, or a sentinel."""
        return self._globals.get(name, getattr(builtins, name, _MISSING))

    def is_outer(self, name: str) -> bool:
        """Return whether a variable belongs to a function around the one that is read."""
        return name in self._cells

    def of_outer(self, name: str) -> Any:
        """Return what such a variable holds, or a sentinel."""
        try:
            return self._cells[name].cell_contents
        except ValueError:  # Not filled yet.
            return _MISSING


class _Walk:
    """Walks through the instructions of a function.

    Args:
        reader: Knows what is harmless.
        places: Where it finds what it names.
        code: Of the function, or of one inside of it.
        owner: Name of the parameter whose attributes it may set; empty for none.
    """

    def __init__(self, reader: _Reader, places: _Places, code: CodeType, owner: str) -> None:
        self._reader = reader
        self._places = places
        self._owner = owner
        self._entries = [entry for entry in instructions_of(code) if entry.opname not in _SILENT]
        self._generator = bool(code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))
        self._named: Any = _MISSING
        """What the last instruction has put on the stack, where that is known."""
        self._name = ""
        self._own = {
            str(entry.argval)
            for number, entry in enumerate(self._entries)
            if entry.opname == "STORE_ATTR" and self._is_owner(number - 1)
        }

    def reason(self) -> str:
        """Return why the code is not harmless; empty where it is."""
        if self._generator:
            return "it is asynchronous"
        for number, entry in enumerate(self._entries):
            if reason := self._reason_of(number, entry):
                return reason
        return self._closed()

    def _reason_of(self, number: int, entry: dis.Instruction) -> str:
        name = entry.opname
        if name in {"LOAD_ATTR", "LOAD_METHOD"}:
            return self._attribute(number, str(entry.argval))
        if reason := self._closed():
            return reason
        if self._catches(number, entry):
            return "it catches exceptions, of which there are others without data"
        if name == "LOAD_GLOBAL":
            return self._open(self._places.of_global(str(entry.argval)), str(entry.argval))
        if name in {"LOAD_DEREF", "LOAD_CLOSURE"} and self._places.is_outer(str(entry.argval)):
            return self._open(self._places.of_outer(str(entry.argval)), str(entry.argval))
        return self._against(number, entry)

    def _against(self, number: int, entry: dis.Instruction) -> str:
        name, text = entry.opname, str(entry.argval)
        if not self._reader.may_write and _writes(entry):
            return "it writes in place"
        if name == "STORE_ATTR" and self._is_owner(number - 1):
            return ""
        if name == "STORE_DEREF" and not self._places.is_outer(text):
            return ""
        if name.startswith(_HARMLESS_STORES):
            is_lost = self._owner and self._owner in (
                entry.argval if isinstance(entry.argval, tuple) else (text,)
            )
            return f"it gives {self._owner!r} another value" if is_lost and "FAST" in name else ""
        if not name.startswith(_REFUSED):
            return ""
        what = {
            "STORE_GLOBAL": "sets the global",
            "STORE_ATTR": "sets the attribute",
            "IMPORT_NAME": "imports",
        }
        return f"it {what.get(name, f'does {name} with')} {text!r}"

    def _catches(self, number: int, entry: dis.Instruction) -> bool:
        """Return whether an instruction begins what handles exceptions, other than the end of a ``with``."""
        if entry.opname != "PUSH_EXC_INFO":
            return entry.opname == "SETUP_FINALLY"  # Until Python 3.10.
        return self._entries[number + 1].opname != "WITH_EXCEPT_START"

    def _is_owner(self, number: int) -> bool:
        """Return whether an instruction ends with the object on the stack that belongs to the function."""
        entry = self._entries[number] if number >= 0 else None
        if entry is not None and self._entries[number + 1].is_jump_target:
            return False  # Another object may be there, too.
        if entry is None or not self._owner or "LOAD_FAST" not in entry.opname:
            return False
        return (entry.argval[-1] if isinstance(entry.argval, tuple) else entry.argval) == self._owner

    # -- what is named, and read of it

    def _open(self, value: Any, name: str) -> str:
        if value is _MISSING:
            return f"it reads {name!r}, which is not there"
        self._named, self._name = value, name
        return ""

    def _closed(self) -> str:
        """Return why what was named last is not harmless; nothing more is read of it."""
        value, self._named = self._named, _MISSING
        return "" if value is _MISSING else self._reader.reason_against_object(value, self._name)

    def _attribute(self, number: int, name: str) -> str:
        is_joined = self._entries[number].is_jump_target
        if self._is_owner(number - 1):
            allowed = name in self._own or self._reader.allows_on_owner(name)
            return "" if allowed else f"it reads {name!r} of {self._owner!r}"
        if isinstance(self._named, (ModuleType, type, OpOverloadPacket)) and not is_joined:
            found = getattr(self._named, name, _MISSING)
            return self._open(found, f"{self._name}.{name}")
        if reason := self._closed():
            return reason
        if name in _READS:
            return ""
        if not self._reader.is_harmless(_method_effect(name)):
            return f"it uses {name!r} of a value, which may do something besides"
        return "" if _asks_only_sizes(name) else _reason_against_asking(repr(name))


def _writes(entry: dis.Instruction) -> bool:
    """Return whether an instruction may change a value in place."""
    if entry.opname == "BINARY_OP":
        return entry.argrepr.endswith("=")
    return entry.opname.startswith(("INPLACE_", "STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"))


def _method_effect(name: str) -> Effect | None:
    if not hasattr(torch.Tensor, name):
        return None
    graph = Graph()
    return effects.effect_of(graph.call_method(name, (graph.placeholder("x"),)))
