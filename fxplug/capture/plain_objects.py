"""Classes of a program whose objects hold values and do nothing else: what runs of them is read as all plain code is.

A program may make such objects, call their methods and read what they hold. They are Python's own in a trace as they
are in eager: nobody has to hear of them. What they hold is assigned by their methods alone, to the object itself, so
that nothing else, such as a module, is changed by that.
"""

from __future__ import annotations

import collections
import dataclasses
from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple

from fxplug.capture.bytecode import read_once
from fxplug.capture.plain_holdings import is_constant, is_library_class
from fxplug.capture.proxy import Attribute, Proxy
from fxplug.ir.instructions import instructions_of
from fxplug.semantics.kinds import TENSOR_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable
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
            if _is_of_python(name, value, is_tuple=is_tuple):
                continue
            is_getter = type(value) is property and value.fset is None and value.fdel is None
            function = value.fget if is_getter else value
            is_named = name in _RUN_BY_PYTHON or not _is_special(name)
            if is_named and type(function) is FunctionType and not function.__dict__:
                found.append(function)
            elif not (is_named and is_constant(value)):
                return None
    return found


def _is_of_python(name: str, value: Any, *, is_tuple: bool) -> bool:
    """Return whether something in a class was put there by Python, and runs nothing of a program."""
    kind = type(value)
    if kind is MemberDescriptorType or (is_tuple and kind is _Field):
        return True
    function = value.__func__ if kind in {classmethod, staticmethod} else value
    if type(function) is not FunctionType:
        return name in _OF_CLASSES and kind is not property and kind.__module__ in _OF_PYTHON
    inside: Any = function.__dict__.get("__wrapped__", function)
    code: Any = getattr(inside, "__code__", None)
    if is_tuple and name in _OF_TUPLES:
        return code.co_filename == collections.__file__ or (code.co_filename, code.co_name) == _NEW
    # A dataclass assigns fields, compares what its objects hold, and makes a text of that.
    return getattr(code, "co_filename", "") == "<string>" and code.co_qualname.startswith(_OF_DATACLASSES)


def _has_plain_fields(kind: type) -> bool:
    """Return whether the fields of a dataclass are given, constants, or new containers; True of other classes."""
    fields: Iterable[Any] = kind.__dict__.get(_FIELDS, {}).values()
    return all(
        (field.default is dataclasses.MISSING or is_constant(field.default))
        and field.default_factory in _FACTORIES
        for field in fields
    )


_FIELDS = "__dataclass_fields__"
_FACTORIES = (dataclasses.MISSING, dict, list)


class _Sample(NamedTuple):
    value: int


_Field: type = type(vars(_Sample)["value"])
_OF_CLASSES = frozenset(
    {
        *("__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__"),
        *("__firstlineno__", "__hash__", "__match_args__", "__module__", "__orig_bases__", "__slots__"),
        *("__static_attributes__", "__weakref__", "_field_defaults", "_fields"),
    }
)
_OF_PYTHON = frozenset({"builtins", "dataclasses"})
_OF_TUPLES = frozenset(
    {"__getnewargs__", "__new__", "__replace__", "__repr__", "_asdict", "_make", "_replace"}
)
_NEW = "<string>", "<lambda>"
"""Of what the code of ``__new__`` of a named tuple is, and its name."""
_OF_DATACLASSES = "__create_fn__.<locals>."
_RUN_BY_PYTHON = frozenset({"__bool__", "__call__", "__getitem__", "__init__", "__len__", "__post_init__"})
"""What a class may say of its objects that is not called by its name: it is read as its methods are."""


def _is_special(name: str) -> bool:
    return name[:2] == "__" == name[-2:]


@read_once
def _names_assigned(code: CodeType) -> frozenset[str]:
    return frozenset(entry.argval for entry in instructions_of(code) if entry.opname == "STORE_ATTR")
