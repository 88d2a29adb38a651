"""Values as JSON, exactly: what comes back has the same type and the same bits.

``None``, bools, strings, small integers and finite floats stand for themselves, an array of one integer for the node
with that number. Everything else is an object with one key that says what it is:

============  ============================================================================================
``$list``     elements of a list
``$tensor``   a tensor of the module, by its number (only where tensors belong: not in notes)
``$tuple``    elements of a tuple; ``$size`` those of a `torch.Size`
``$dict``     pairs of key and value; ``$ordered`` likewise, of a `collections.OrderedDict`
``$returns``  name of a class in `torch.return_types`, and the elements
``$slice``    start, stop, step; ``$range`` likewise
``$int``      an integer beyond 2**53, hexadecimal, since other readers of JSON would round it
``$float``    infinities and NaNs, as the 16 hexadecimal digits of their bits
``$complex``  real and imaginary part
``$bytes``    base64
``$ellipsis`` ``...``
``$torch``    a constant such as ``torch.float32``, ``torch.channels_last``, ``torch.strided``
``$device``   a device, e.g. ``cuda:0``
``$finfo``    `torch.finfo` of a dtype; ``$iinfo`` likewise
``$record``   name and fields of a record that fxplug itself defines
``$constant`` name of a type that a plugin declares, number of the value, and what the plugin keeps of it
``$name``     a function or class, see `fxplug.storage.targets`
``$enum``     name of the class, and of the member
``$fields``   name of a namedtuple's or dataclass's class, and pairs of field and value
============  ============================================================================================
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import functools
import math
import struct
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch

from fxplug.analyze import TensorMetadata
from fxplug.ir import NodeRef, immutable_dict, immutable_list
from fxplug.storage.faults import Codes, Refusal, checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.storage.targets import TargetTable

__all__ = ["MAXIMAL_DEPTH", "Decoder", "Encoder"]

MAXIMAL_DEPTH = 100
"""How deeply containers may be nested."""

_MOST_COLLISIONS = 1000
"""How many keys of one dict may have a hash that another one has, too."""
_LARGEST_PLAIN_INT = 2**53
_PLAIN = frozenset({type(None), bool, str})
_AS_THEY_ARE = _PLAIN | {int, float}
"""Exact types whose values in JSON stand for themselves."""
_CONSTANT_TYPES = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
_CONSTANTS: dict[str, Any] = {
    str(value): value for value in vars(torch).values() if isinstance(value, _CONSTANT_TYPES)
}
_NAMED_KINDS = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, torch.nn.Module)
"""What is referred to by name, or not at all: no plugin needs to be asked about it."""
_RECORDS: dict[str, Any] = {"TensorMetadata": TensorMetadata}
_RETURNS: dict[str, Any] = {
    name: kind
    for name, kind in vars(torch.return_types).items()
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "n_sequence_fields")
}
"""What operators return that return several values by name, such as a sort."""


def _fields_of(kind: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of a class of namedtuples or a dataclass, None for another."""
    if not isinstance(kind, type):
        return None
    if issubclass(kind, tuple):
        return getattr(kind, "_fields", None)
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


_HOLDING = (list, set, frozenset, bytearray, bytes, str, int, float, complex)
"""What else a value may be, and hold something that is in none of its fields."""


def _holds(value: Any, name: str) -> bool:
    """Return whether a value has an attribute, without asking a ``__getattr__`` of its class."""
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return True


@functools.lru_cache(maxsize=256)
def _slots_of(kind: type[Any]) -> frozenset[str]:
    """Return the names for whose values instances of a class have a place of their own."""
    members = [(name, member) for cls in kind.__mro__ for name, member in vars(cls).items()]
    return frozenset(name for name, member in members if isinstance(member, types.MemberDescriptorType))


def _float_bits(value: float) -> str:
    return struct.pack(">d", value).hex()


def _empty(kind: type[Any]) -> Any:
    """Return an instance of a class without running anything of it."""
    base: Any = OrderedDict if issubclass(kind, OrderedDict) else dict if issubclass(kind, dict) else object
    return base.__new__(kind)


class Encoder:
    """Turns values into JSON.

    Args:
        targets: Names functions and classes.
        add_tensor: Takes a tensor in and returns its number; where it is not given, tensors are refused.
    """

    def __init__(self, targets: TargetTable, add_tensor: Callable[[torch.Tensor], int] | None = None) -> None:
        self.targets = targets
        """Names functions, and knows what plugins bring."""
        self._add_tensor = add_tensor
        self._constants: dict[int, tuple[Any, int]] = {}
        self._is_in_constant = False

    def encode(self, value: Any, depth: int = 0) -> Any:
        """Return `value` as JSON.

        Raises:
            Refusal: It is, or contains, something that a file cannot hold.
        """
        kind = type(value)
        if kind in _PLAIN or (kind is int and -_LARGEST_PLAIN_INT <= value <= _LARGEST_PLAIN_INT):
            return value
        encoder = self._encoders.get(kind)
        if encoder is not None:
            return encoder(self, value, depth)
        if isinstance(value, torch.Tensor) and self._add_tensor is not None:
            return {"$tensor": self._add_tensor(value)}
        constant = self._constant_of_plugin(value, depth)
        if constant is None:
            constant = self._of_named_class(value, depth)
        if constant is not None:
            return constant
        is_named = callable(value) and not isinstance(value, (torch.nn.Module, torch.Tensor))
        if is_named and not self._is_in_constant:
            return {"$name": self.targets.name_of(value)}
        raise Refusal(
            f"a value of type {kind.__module__}.{kind.__qualname__} cannot be stored. Use tensors of the "
            f"module, plain Python values, torch's constants, and lists, tuples and dicts of them."
        )

    def _constant_of_plugin(self, value: Any, depth: int) -> Any:
        """Return a value of a type that a plugin declares as JSON, None for any other value."""
        if self._add_tensor is None or isinstance(value, _NAMED_KINDS):
            return None
        offer = self.targets.provision.constant_for(value)
        if offer is None:
            return None
        # The value is kept too, so that no other one gets its id.
        number = self._constants.setdefault(id(value), (value, len(self._constants)))[1]
        name, content = self.targets.provision.encode(offer, value)
        is_outermost, self._is_in_constant = not self._is_in_constant, True
        try:
            return {"$constant": [name, number, *self._all([content], depth)]}
        except Refusal as refusal:
            if not is_outermost:
                raise
            raise Refusal(
                f"encode of the constant {name!r} returned what a file cannot keep: {refusal} Report it to the "
                f"authors of {offer.distribution} {offer.version}."
            ) from refusal
        finally:
            self._is_in_constant = not is_outermost

    def _of_named_class(self, value: Any, depth: int) -> Any:
        """Return an enum's member, a namedtuple or a dataclass as JSON, None for any other value."""
        kind = type(value)
        if isinstance(value, enum.Enum):
            if kind.__members__.get(str(value.name)) is not value:
                raise Refusal(
                    f"{value!r} is no member of its own of {kind.__qualname__}. Name it in the class."
                )
            return {"$enum": [self.targets.annotation_name(kind), value.name]}
        names = _fields_of(kind)
        if names is None or self._is_in_constant:
            return None
        class_name = self.targets.annotation_name(kind)
        if not issubclass(kind, tuple) and issubclass(kind, _HOLDING):
            return None
        slots = {name for name in _slots_of(kind) if _holds(value, name)}
        unknown = (getattr(value, "__dict__", {}).keys() | slots) - set(names)
        if unknown:
            raise Refusal(
                f"a {kind.__qualname__} has {min(unknown)!r}, which is no field of the class. Make it a field."
            )
        missing = [name for name in names if not _holds(value, name)]
        if missing:
            raise Refusal(f"the field {missing[0]!r} of a {kind.__qualname__} was never set. Set it.")
        pairs = [[name, *self._all([getattr(value, name)], depth)] for name in names]
        if not isinstance(value, dict):
            return {"$fields": [class_name, pairs]}
        keys = list(cast("dict[Any, Any]", value))
        if not all(key in names and value[key] is getattr(value, key) for key in keys):
            raise Refusal(
                f"a {kind.__qualname__} holds other values under its keys than in its fields. Make them the same."
            )
        return {"$fields": [class_name, pairs, keys]}

    def _all(self, values: Any, depth: int) -> list[Any]:
        if depth >= MAXIMAL_DEPTH:
            raise Refusal(
                f"containers are nested more than {MAXIMAL_DEPTH} deep. Flatten the structure.",
                Codes.TOO_LARGE,
            )
        return [self.encode(value, depth + 1) for value in values]

    def _list(self, value: list[Any], depth: int) -> Any:
        return {"$list": self._all(value, depth)}

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        return {"$dict": [self._all(pair, depth) for pair in value.items()]}

    def _ordered(self, value: dict[Any, Any], depth: int) -> Any:
        return {"$ordered": [self._all(pair, depth) for pair in value.items()]}

    def _returns(self, value: Any, depth: int) -> Any:
        return {"$returns": [type(value).__name__, self._all(value, depth)]}

    def _float(self, value: float, _: int) -> Any:
        return value if math.isfinite(value) else {"$float": _float_bits(value)}

    def _constant(self, value: Any, _: int) -> Any:
        return {"$torch": str(value)}

    def _record(self, value: Any, depth: int) -> Any:
        return {"$record": [type(value).__name__, self._all(value, depth)]}

    # A table of the class: one of bound methods would tie the instance, and the weights it holds, into a cycle.
    _encoders: ClassVar[dict[type, Callable[[Any, Any, int], Any]]] = {
        int: lambda _self, value, _: {"$int": f"{value:x}"},  # A large one.
        float: _float,
        complex: lambda self, value, _: {
            "$complex": [self._float(value.real, 0), self._float(value.imag, 0)]
        },
        bytes: lambda _self, value, _: {"$bytes": base64.b64encode(value).decode("ascii")},
        type(Ellipsis): lambda _self, _value, _: {"$ellipsis": None},
        NodeRef: lambda _self, value, _: [value.index],
        tuple: lambda self, value, depth: {"$tuple": self._all(value, depth)},
        torch.Size: lambda self, value, depth: {"$size": self._all(value, depth)},
        list: _list,
        immutable_list: _list,
        dict: _dict,
        immutable_dict: _dict,
        OrderedDict: _ordered,
        slice: lambda self, value, depth: {"$slice": self._all((value.start, value.stop, value.step), depth)},
        range: lambda self, value, depth: {"$range": self._all((value.start, value.stop, value.step), depth)},
        torch.device: lambda _self, value, _: {"$device": str(value)},
        torch.finfo: lambda _self, value, _: {"$finfo": value.dtype},
        torch.iinfo: lambda _self, value, _: {"$iinfo": value.dtype},
        **dict.fromkeys(_CONSTANT_TYPES, _constant),
        **dict.fromkeys(_RECORDS.values(), _record),
        **dict.fromkeys(_RETURNS.values(), _returns),
    }


class Decoder:
    """Turns JSON back into values, and makes nothing but what `Encoder` knows.

    Args:
        targets: Resolves functions and classes.
        fetch_tensor: Returns the tensor with a number; where it is not given, tensors are refused.
    """

    def __init__(
        self, targets: TargetTable, fetch_tensor: Callable[[Any], torch.Tensor] | None = None
    ) -> None:
        self.targets = targets
        """Names functions, and knows what plugins bring."""
        self._fetch_tensor = fetch_tensor
        self._constants: dict[int, tuple[str, Any]] = {}
        self._is_in_constant = False

    def decode(self, data: Any, depth: int = 0) -> Any:
        """Return the value that `data` stands for.

        Raises:
            Refusal: `data` is nothing that `Encoder` writes, or names a function that is not allowed.
        """
        kind = type(data)
        if kind in _AS_THEY_ARE:
            return data
        if kind is list and len(data) == 1 and type(data[0]) is int:
            self._check_not_in_constant("a node")
            return NodeRef(data[0])
        if kind is dict and len(data) == 1:
            ((tag, content),) = data.items()
            decoder = self._decoders.get(tag)
            if decoder is not None:
                return decoder(self, content, depth)
        raise Refusal(
            f"a value is written as {str(data)[:80]!r}, which no rule explains. The file is damaged."
        )

    def decode_plain(self, data: Any, depth: int = 0) -> list[Any]:
        """Return the values that a list stands for, which hold no nodes and no functions.

        Raises:
            Refusal: `data` is no list of what `Encoder` writes, or a value stands for something else.
        """
        is_outermost, self._is_in_constant = not self._is_in_constant, True
        try:
            return self._all(data, depth)
        finally:
            self._is_in_constant = not is_outermost

    def _all(self, data: Any, depth: int) -> list[Any]:
        if depth >= MAXIMAL_DEPTH:
            raise Refusal(
                f"containers are nested more than {MAXIMAL_DEPTH} deep. The file is damaged.", Codes.TOO_LARGE
            )
        return [
            element if type(element) in _AS_THEY_ARE else self.decode(element, depth + 1)
            for element in checked(data, list, "The content of a container")
        ]

    def _some(self, data: Any, depth: int, count: int) -> list[Any]:
        elements = self._all(data, depth)
        if len(elements) != count:
            raise Refusal(
                f"a value has {len(elements)} parts where {count} were expected. The file is damaged."
            )
        return elements

    def _ints(self, data: Any, depth: int) -> list[int]:
        return [checked(element, int, "A whole number") for element in self._all(data, depth)]

    def _dict(self, data: Any, depth: int) -> dict[Any, Any]:
        pairs = [self._some(pair, depth, 2) for pair in checked(data, list, "The content of a dict")]
        if len(pairs) > _MOST_COLLISIONS:
            self._check_hashes(pairs)
        try:
            result = dict(pairs)
        except TypeError as error:
            raise Refusal(f"a dict has a key that cannot be one: {error}. The file is damaged.") from error
        if len(result) != len(pairs):
            raise Refusal("a dict has the same key twice. The file is damaged.")
        return result

    @staticmethod
    def _check_hashes(pairs: list[Any]) -> None:
        """Refuse keys that were chosen to have the same hash: each would be compared with all others."""
        try:
            hashes = {hash(key) for key, _ in pairs}
        except TypeError:
            return  # The dict itself says it.
        if len(pairs) - len(hashes) > _MOST_COLLISIONS:
            raise Refusal(
                "a dict has keys that all have the same hash. The file is damaged.", Codes.TOO_LARGE
            )

    def _named(self, data: Any, _: int) -> Any:
        self._check_not_in_constant("a function")
        return self.targets.resolve(data)

    def _check_not_in_constant(self, what: str) -> None:
        # What decodes a constant is a plugin's, and was promised plain values.
        if self._is_in_constant:
            raise Refusal(
                f"a constant, or an argument of a region, is made of {what}, and not of plain values. The file is "
                "damaged."
            )

    def _tensor(self, data: Any, _: int) -> torch.Tensor:
        if self._fetch_tensor is None:
            raise Refusal("a tensor stands where none may be. The file is damaged.")
        return self._fetch_tensor(data)

    def _int(self, data: Any, _: int) -> int:
        try:
            return int(checked(data, str, "An integer"), 16)
        except ValueError as error:
            raise Refusal(f"an integer is written as {data[:40]!r}. The file is damaged.") from error

    def _float(self, data: Any, _: int) -> float:
        if type(data) is float:
            return data
        text = checked(data, str, "A float")
        try:
            return struct.unpack(">d", bytes.fromhex(text))[0]
        except (ValueError, struct.error) as error:
            raise Refusal(f"a float is written as {text[:40]!r}. The file is damaged.") from error

    def _complex(self, data: Any, depth: int) -> complex:
        real, imaginary = (
            checked(part, float, "A part of a complex number") for part in self._some(data, depth, 2)
        )
        return complex(real, imaginary)

    def _bytes(self, data: Any, _: int) -> bytes:
        try:
            return base64.b64decode(checked(data, str, "A byte string"), validate=True)
        except (binascii.Error, ValueError) as error:
            raise Refusal(f"a byte string is not base64: {error}. The file is damaged.") from error

    def _constant(self, data: Any) -> Any:
        constant = _CONSTANTS.get(checked(data, str, "The name of a constant"))
        if constant is None:
            raise Refusal(
                f"the constant {data!r} is unknown to torch {torch.__version__}. Install the torch version "
                f"that the file was written with."
            )
        return constant

    def _dtype(self, data: Any) -> torch.dtype:
        return cast("torch.dtype", checked(self._constant(f"torch.{data}"), torch.dtype, "A dtype"))

    def _limits(self, kind: Any, data: Any) -> Any:
        limits = kind(self._dtype(data))
        try:
            known = limits.dtype
        except NotImplementedError:  # torch makes one of packed dtypes, and cannot say of which.
            known = None
        if known != data:
            raise Refusal(f"the dtype {data!r} has no {kind.__name__}. The file is damaged.")
        return limits

    def _device(self, data: Any, _: int) -> torch.device:
        try:
            return torch.device(checked(data, str, "The name of a device"))
        except RuntimeError as error:
            raise Refusal(f"the device {data!r} is unknown to torch {torch.__version__}.") from error

    def _record(self, data: Any, depth: int) -> Any:
        name, fields = (*checked(data, list, "A record"), None, None)[:2]
        record = _RECORDS.get(name) if isinstance(name, str) else None
        if record is None:
            raise Refusal(
                f"the record {name!r} is unknown. The file was written by another version of fxplug."
            )
        return record(*self._some(fields, depth, len(record._fields)))

    def _returns(self, data: Any, depth: int) -> Any:
        name, elements = (*checked(data, list, "What an operator returns"), None, None)[:2]
        kind = _RETURNS.get(name) if isinstance(name, str) else None
        if kind is None:
            raise Refusal(
                f"torch {torch.__version__} has no torch.return_types.{name!s:.80}. Install the torch version that the "
                "file was written with."
            )
        return kind(self._some(elements, depth, kind.n_sequence_fields))

    def _constant_of_plugin(self, data: Any, depth: int) -> Any:
        parts = checked(data, list, "A constant")
        if self._fetch_tensor is None or len(parts) != 3:
            raise Refusal("a constant is not what one can be, or not where one can be. The file is damaged.")
        name, number = checked(parts[0], str, "The name of a constant"), checked(parts[1], int, "Its number")
        if number not in self._constants:
            (content,) = self.decode_plain(parts[2:], depth)
            self._constants[number] = name, self.targets.provision.decode(name, content)
        known, value = self._constants[number]
        if known != name:
            raise Refusal(f"constant {number} has two types. The file is damaged.")
        return value

    def _enum(self, data: Any, depth: int) -> Any:
        name, member = self._some(data, depth, 2)
        kind = self.targets.resolve_annotation(name)
        if not isinstance(kind, enum.EnumMeta) or type(member) is not str or member not in kind.__members__:
            raise Refusal(
                f"{name!r} has no member {member!r}. Use the version of it that the file was written with."
            )
        return kind.__members__[member]

    def _fields(self, data: Any, depth: int) -> Any:
        name, rows, keys = (*checked(data, list, "A value with fields"), None, None, None)[:3]
        kind = self.targets.resolve_annotation(name)
        pairs = [self._some(row, depth, 2) for row in checked(rows, list, "The fields of a value")]
        known, found = _fields_of(kind), [pair[0] for pair in pairs]
        if known is None or found != list(known):
            raise Refusal(
                f"{name!r} does not have the fields {found}. Use the version of it that the file was written with."
            )
        # Made without the constructor, as pickle does: nothing of the class is run.
        if issubclass(kind, tuple):
            return tuple.__new__(kind, [value for _, value in pairs])
        if issubclass(kind, dict) is not (keys is not None):
            raise Refusal(f"{name!r} is written as another kind of class than it is. The file is damaged.")
        value = _empty(kind)
        for field, content in pairs:
            object.__setattr__(value, field, content)
        for key in () if keys is None else checked(keys, list, "The keys of a value"):
            if checked(key, str, "A key") not in known:
                raise Refusal(f"{name!r} has no field {key!r} for a key. The file is damaged.")
            base = OrderedDict if isinstance(value, OrderedDict) else dict
            base.__setitem__(value, key, getattr(value, key))
        return value

    # A table of the class: one of bound methods would tie the instance, and the weights it holds, into a cycle.
    _decoders: ClassVar[dict[str, Callable[[Any, Any, int], Any]]] = {
        "$list": _all,
        "$tensor": _tensor,
        "$tuple": lambda self, data, depth: tuple(self._all(data, depth)),
        "$size": lambda self, data, depth: torch.Size(self._ints(data, depth)),
        "$dict": _dict,
        "$ordered": lambda self, data, depth: OrderedDict(self._dict(data, depth)),
        "$returns": _returns,
        "$slice": lambda self, data, depth: slice(*self._some(data, depth, 3)),
        "$range": lambda self, data, depth: range(*self._ints(data, depth)),
        "$int": _int,
        "$float": _float,
        "$complex": _complex,
        "$bytes": _bytes,
        "$ellipsis": lambda _self, _data, _: ...,
        "$torch": lambda self, data, _: self._constant(data),
        "$device": _device,
        "$finfo": lambda self, data, _: self._limits(torch.finfo, data),
        "$iinfo": lambda self, data, _: self._limits(torch.iinfo, data),
        "$record": _record,
        "$constant": _constant_of_plugin,
        "$name": _named,
        "$enum": _enum,
        "$fields": _fields,
    }
