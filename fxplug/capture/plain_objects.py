"""Classes of a program whose objects hold values and do nothing else: what runs of them is read as all plain code is.

A program may make such objects, call their methods and read what they hold. They are Python's own in a trace as they
are in eager: nobody has to hear of them. What they hold is assigned by their methods alone, to the object itself, so
that nothing else, such as a module, is changed by that.
"""

from __future__ import annotations

import collections
import dataclasses
import reprlib
from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple

from fxplug.capture.bytecode import read_once
from fxplug.capture.plain_holdings import is_constant, is_library_class
from fxplug.capture.proxy import Attribute, Proxy
from fxplug.ir.instructions import instructions_of
from fxplug.semantics.kinds import TENSOR_NAMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from types import CodeType

__all__ = ["codes_of_plain_class", "functions_of_plain_class", "is_plain_class", "names_of_plain_class"]


def is_plain_class(kind: Any) -> bool:
    """Return whether a class is one of a program, and Python runs nothing of it by itself but functions in it.

    What these do is not looked at. Named tuples and dataclasses are such classes, too.
    """
    return _functions_in(kind) is not None


def functions_of_plain_class(kind: type) -> list[FunctionType]:
    """Return all functions of a class that is such a one, which are methods of its objects."""
    return _functions_in(kind) or []


def codes_of_plain_class(kind: type) -> set[int]:
    """Return the ids of the code of all functions of a class, those included that Python has made for a dataclass."""
    functions = [value for base in kind.__mro__[:-1] for value in base.__dict__.values()]
    return {id(one.__code__) for one in functions if type(one) is FunctionType}


def names_of_plain_class(kind: type) -> frozenset[str]:
    """Return the names under which objects of a class have something, and neither tensors nor traced values have."""
    held = [name for base in kind.__mro__ for name in base.__dict__ if not _is_special(name)]
    assigned = map(_names_assigned, [function.__code__ for function in functions_of_plain_class(kind)])
    names = frozenset(held).union(getattr(kind, _FIELDS, ()), *assigned)
    return names - TENSOR_NAMES - _OF_PROXIES


_OF_PROXIES = frozenset({"attr", "node", "root", "tracer", *vars(Proxy), *vars(Attribute)})
"""Under these names a traced value has something where a tensor has nothing."""


def _functions_in(kind: Any) -> list[FunctionType] | None:
    if type(kind) is not type:
        return None
    bases = [base for base in kind.__mro__ if base is not object]
    is_tuple = bases[-1:] == [tuple]
    if is_tuple:
        bases.pop()
    found: list[FunctionType] = []
    for base in bases:
        is_other = is_tuple and (len(bases) > 1 or type(base.__dict__.get("_fields")) is not tuple)
        if is_other or is_library_class(base) or not _has_plain_fields(base):
            return None
        for name, value in base.__dict__.items():
            if _is_of_python(name, value, base.__dict__.get(_FIELDS, ()), is_tuple=is_tuple):
                continue
            is_getter = type(value) is property and value.fset is None and value.fdel is None
            function = value.fget if is_getter else value
            is_named = name in _RUN_BY_PYTHON or not _is_special(name)
            if is_named and type(function) is FunctionType and not function.__dict__:
                found.append(function)
            elif not (is_named and is_constant(value)):
                return None
    return found


def _is_of_python(name: str, value: Any, fields: Collection[str], *, is_tuple: bool) -> bool:
    """Return whether something in a class was put there by Python, and runs nothing of a program.

    Args:
        name: Under which it is there.
        value: What it is.
        fields: The names of those of a dataclass.
        is_tuple: Whether it is the class of a named tuple.
    """
    kind = type(value)
    if kind is MemberDescriptorType or (is_tuple and kind is _Field):
        return True
    function = value.__func__ if kind in {classmethod, staticmethod} else value
    if type(function) is not FunctionType:
        return name in _OF_CLASSES and kind is not property and kind.__module__ in _OF_PYTHON
    code = function.__code__
    if is_tuple and name in _OF_TUPLES:
        is_new = name == "__new__" and (code.co_filename, code.co_name) == _NEW
        return code.co_filename == collections.__file__ or (
            is_new and _are_constants(function.__defaults__ or ())
        )
    return name in _OF_DATACLASSES and _is_made_for_fields(function, fields)


def _is_made_for_fields(function: FunctionType, fields: Collection[str]) -> bool:
    """Return whether Python has made a function for a dataclass: it names fields, and what it compares them with."""
    code = function.__code__
    if code.co_filename in _AROUND_TEXTS:  # It looks whether an object is part of itself.
        inside: Any = function.__dict__.get("__wrapped__")
        return type(inside) is FunctionType and _is_made_for_fields(inside, fields)
    is_made = code.co_filename == "<string>" and getattr(code, "co_qualname", "").startswith(_MAKER)
    return is_made and all(name in fields or name in _NAMED_IN_MADE for name in code.co_names)


def _has_plain_fields(kind: type) -> bool:
    """Return whether fields that are not given are constants or new containers; True of classes without fields."""
    fields: Iterable[Any] = kind.__dict__.get(_FIELDS, {}).values()
    defaults = [field.default for field in fields if field.default is not dataclasses.MISSING]
    defaults += kind.__dict__.get("_field_defaults", {}).values()
    return _are_constants(defaults) and all(field.default_factory in _FACTORIES for field in fields)


def _are_constants(values: Iterable[Any]) -> bool:
    return all(map(is_constant, values))


_FIELDS = "__dataclass_fields__"
_FACTORIES = (dataclasses.MISSING, dict, list)


class _Sample(NamedTuple):
    value: int


_Field: type = type(vars(_Sample)["value"])
_OF_CLASSES = frozenset(
    {
        *("__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__"),
        *("__firstlineno__", "__hash__", "__match_args__", "__module__", "__orig_bases__", "__slotnames__"),
        *("__slots__", "__static_attributes__", "__weakref__", "_field_defaults", "_fields"),
    }
)
_OF_PYTHON = frozenset({"builtins", "dataclasses"})
_OF_TUPLES = frozenset(
    {"__getnewargs__", "__new__", "__replace__", "__repr__", "_asdict", "_make", "_replace"}
)
_NEW = "<string>", "<lambda>"
"""Of what the code of ``__new__`` of a named tuple is, and its name."""
_OF_DATACLASSES = frozenset(
    {
        *(
            "__delattr__",
            "__eq__",
            "__ge__",
            "__gt__",
            "__hash__",
            "__init__",
            "__le__",
            "__lt__",
            "__repr__",
        ),
        "__setattr__",
    }
)
_MAKER = "__create_fn__.<locals>."
_AROUND_TEXTS = (dataclasses.__file__, reprlib.__file__)
_NAMED_IN_MADE = frozenset(
    {
        *(
            "FrozenInstanceError",
            "NotImplemented",
            "__class__",
            "__delattr__",
            "__post_init__",
            "__qualname__",
        ),
        *("__setattr__", "cls", "hash", "super", "type"),
    }
)
"""What functions of dataclasses name besides fields."""
_RUN_BY_PYTHON = frozenset({"__bool__", "__call__", "__init__", "__len__", "__post_init__"})
"""What a class may say of its objects that is not called by its name: it is read as its methods are.

Who has ``__getitem__`` is gone through until that raises an error, which nothing does that stands for a tensor."""


def _is_special(name: str) -> bool:
    return name[:2] == "__" == name[-2:]


@read_once
def _names_assigned(code: CodeType) -> frozenset[str]:
    return frozenset(entry.argval for entry in instructions_of(code) if entry.opname == "STORE_ATTR")
