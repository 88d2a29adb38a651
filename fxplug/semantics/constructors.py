"""Calls of classes that only put their arguments into a container, and what is found in it."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections import OrderedDict
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fxplug.ir import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "ContainerParts",
    "can_be_made",
    "is_container_call",
    "is_dict_of_fields",
    "is_made_of_fields",
    "object_with",
    "only_holds",
    "parts_of_call",
    "parts_of_literal",
    "store_attributes",
    "stored_attributes",
]

_SEQUENCES: tuple[Any, ...] = (tuple, list, set, frozenset)
_MAPPINGS: tuple[Any, ...] = (dict, OrderedDict)
_OUTPUT_CLASSES = {"transformers.utils.generic": "ModelOutput", "diffusers.utils.outputs": "BaseOutput"}
"""Module -> class of a dataclass that is a dict of its fields besides, those that are None left out."""
_METHODS_OF_OUTPUTS = ("__new__", "__post_init__", "__setattr__", "__setitem__", "__getitem__", "to_tuple")
"""Those by which it is one."""
_FACTORIES: tuple[Any, ...] = (list, tuple, dict, set)
_MISSING: Any = dataclasses.MISSING


class _Single(NamedTuple):
    only: None


_READER_OF_A_FIELD: Any = type(inspect.getattr_static(_Single, "only"))
"""What reads a field of a named tuple by its name."""
_NAMES = ("__setattr__", "__post_init__", "__dataclass_builtins_object__", "object")


def only_holds(target: Any) -> bool:
    """Return whether a class keeps what its constructor is given as fields, and runs no other code.

    Named tuples and dataclasses whose constructors Python has written do; so do the classes of results of Transformers
    and Diffusers.
    """
    if not isinstance(target, type) or type(target).__call__ is not type.__call__:
        return False
    if isinstance(target.__getattribute__, FunctionType) or hasattr(target, "__del__"):
        return False
    if issubclass(target, tuple):
        made, names = target.__new__, getattr(target, "_fields", None)
        if not (names is not None and _is_written(made) and str(made.__module__).startswith("namedtuple_")):
            return False
        # A class that derives from one may do more when it is made, and hold something else under a name or a number.
        same = target.__init__ is object.__init__ and target.__getitem__ is tuple.__getitem__
        return same and all(
            type(inspect.getattr_static(target, name)) is _READER_OF_A_FIELD for name in names
        )
    if not dataclasses.is_dataclass(target):
        return False
    fields = dataclasses.fields(target)
    plain = all(field.init and field.default_factory in (_MISSING, *_FACTORIES) for field in fields)
    if not plain or not _is_written(target.__init__, *_NAMES, *(field.name for field in fields)):
        return False
    # A descriptor answers for the field, and may convert it; asked of the class, some return their default value.
    if any(hasattr(inspect.getattr_static(target, field.name, None), "__set__") for field in fields):
        return False
    return _is_output_class(target) or _is_bare(target)


def is_made_of_fields(kind: Any) -> bool:
    """Return whether a dataclass, called with all its fields, gives an object that has them, and does nothing else."""
    fields = dataclasses.fields(kind)
    names = [field.name for field in fields]
    is_called = type(kind).__call__ is type.__call__ and all(field.init for field in fields)
    if not is_called or not _is_written(kind.__init__, *_NAMES, *names) or not _is_called_with(kind, names):
        return False
    # What it would be read by is not what it holds.
    if isinstance(kind.__getattribute__, FunctionType):
        return False
    found = [inspect.getattr_static(kind, name, None) for name in names]
    if any(hasattr(one, "__set__") and not isinstance(one, MemberDescriptorType) for one in found):
        return False
    return _is_output_class(kind) or _is_bare(kind)


def _is_called_with(kind: Any, names: Sequence[str]) -> bool:
    """Return whether a constructor asks for nothing but the fields; an ``InitVar`` is not kept."""
    _, *parameters = inspect.signature(kind.__init__).parameters.values()
    return all(entry.name in names or entry.default is not entry.empty for entry in parameters)


def is_dict_of_fields(kind: Any) -> bool:
    """Return whether a dataclass is made as the results of Transformers are, whatever else its class has been given."""
    fields = [field.name for field in dataclasses.fields(kind)]
    is_called = type(kind).__call__ is type.__call__ and _is_written(kind.__init__, *_NAMES, *fields)
    return is_called and _is_output_class(kind, "__new__", "__post_init__", "__setattr__", "__setitem__")


def can_be_made(kind: type) -> bool:
    """Return whether all that an object of a class holds are attributes and slots, so that one can be made of these.

    Classes that derive from those of Python which hold something else (numbers, texts, containers, exceptions) are
    made by these.
    """
    held = [vars(base) for base in kind.__mro__[:-1]]
    if any(isinstance(names.get("__new__"), BuiltinFunctionType) for names in held):
        return False
    return all(isinstance(names.get("__dict__"), (GetSetDescriptorType, type(None))) for names in held)


def stored_attributes(value: Any) -> dict[str, Any]:
    """Return what is in the slots and the attributes of an object, by name, without what its class does when asked."""
    missing = object()
    slots = {name: _in_slot(slot, value, missing) for name, slot in _slots(type(value)).items()}
    found = {name: part for name, part in slots.items() if part is not missing}
    try:
        return {**found, **object.__getattribute__(value, "__dict__")}
    except AttributeError:  # Its class has slots alone.
        return found


def _slots(kind: type) -> dict[str, Any]:
    """Return the slots of a class, by name, those that it has from others included."""
    pairs = [pair for base in reversed(kind.__mro__) for pair in vars(base).items()]
    return {name: slot for name, slot in pairs if isinstance(slot, MemberDescriptorType)}


def _in_slot(slot: Any, value: Any, missing: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:  # Nothing is in it.
        return missing


def object_with(kind: type, /, **attributes: Any) -> Any:
    """Return an object of a dataclass that has some attributes, without what its constructor does.

    Raises:
        TypeError: The class is no dataclass.
    """
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"Cannot make an object of {kind!r}: it is no dataclass.")
    made = object.__new__(kind)
    store_attributes(made, attributes)
    return made


def store_attributes(made: Any, attributes: Mapping[str, Any]) -> None:
    """Put what `stored_attributes` finds into an object, without what its class does when it is assigned to."""
    slots = _slots(type(made))
    for name, value in attributes.items():
        if name in slots:
            slots[name].__set__(made, value)
        else:
            object.__getattribute__(made, "__dict__")[name] = value


def _is_bare(target: type) -> bool:
    """Return whether nothing but the constructor runs when an instance of a dataclass is made."""
    frozen = getattr(target, "__dataclass_params__").frozen  # noqa: B009 - no name of its type
    assigns = frozen or target.__setattr__ is object.__setattr__
    return assigns and target.__new__ is object.__new__ and not hasattr(target, "__post_init__")


def _is_output_class(target: type, *methods: str) -> bool:
    """Return whether a class is one of results, and has some methods, by default all that matter, from its library."""
    return any(
        (base := getattr(sys.modules.get(module), name, None)) is not None
        and issubclass(target, base)
        and all(getattr(target, method) is getattr(base, method) for method in methods or _METHODS_OF_OUTPUTS)
        for module, name in _OUTPUT_CLASSES.items()
    )


def _is_written(method: Any, *names: str) -> bool:
    """Return whether Python itself has written a method, as it does for dataclasses and named tuples.

    Args:
        method: A constructor.
        names: Those that it may use, if that is to be looked at: what is run by ``python -c`` looks like it else.
    """
    if not isinstance(method, FunctionType) or method.__code__.co_filename != "<string>":
        return False
    return not names or set(method.__code__.co_names).issubset(names)


def is_container_call(node: Node, kind_of: Callable[[Node], Any] | None = None) -> bool:
    """Return whether a call only puts values into a new container.

    Args:
        node: Any node.
        kind_of: Returns the class of the value of a node, None where it is not known. A tuple, list, set or dict
            that is made of one value takes that apart, which is a computation where it is a tensor.
    """
    if node.op != "call_function" or not isinstance(node.target, type):
        return False
    if node.target not in (*_SEQUENCES, *_MAPPINGS):
        return only_holds(node.target)
    if not any(isinstance(value, Node) for value in node.args):
        return True
    kinds = (
        [kind_of(value) for value in node.args if isinstance(value, Node)] if kind_of is not None else [None]
    )
    return all(isinstance(kind, type) and issubclass(kind, (*_SEQUENCES, *_MAPPINGS)) for kind in kinds)


# -- what is found in one


@dataclasses.dataclass(frozen=True)
class ContainerParts:
    """What a container holds, as arguments of a graph: nodes, plain values, and containers of them."""

    items: Mapping[Any, Any]
    """By what stands in brackets."""
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """By name."""


def parts_of_literal(value: Any) -> ContainerParts | None:
    """Return what a tuple, list or dict in the arguments of a node holds; None for anything else."""
    if isinstance(value, dict):
        return ContainerParts(cast("dict[Any, Any]", value))
    if not isinstance(value, (tuple, list)):
        return None
    parts = cast("Sequence[Any]", value)
    names: tuple[str, ...] = getattr(parts, "_fields", ())
    return ContainerParts(_by_place(parts), dict(zip(names, parts, strict=True)) if names else {})


def parts_of_call(node: Node, is_tensor: Callable[[Node], bool]) -> ContainerParts | None:
    """Return what the container that a call makes holds; None where that does not stand in its arguments.

    Args:
        node: One that `is_container_call` is true for.
        is_tensor: Whether the value of a node is a tensor.
    """
    target: Any = node.target
    if target in _SEQUENCES:
        given = node.args[0] if node.args else ()
        ordered = target in {tuple, list} and isinstance(given, (tuple, list)) and not node.kwargs
        return ContainerParts(_by_place(cast("Sequence[Any]", given))) if ordered else None
    if target in _MAPPINGS:
        pairs = _pairs(node.args[0] if node.args else ())
        return None if pairs is None else ContainerParts({**dict(pairs), **node.kwargs})
    try:
        bound = inspect.signature(target).bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):  # Running it tells.
        return None
    fields = dict(bound.arguments)
    if issubclass(target, tuple):
        names: tuple[str, ...] = cast("Any", target)._fields
        whole = all(name in fields for name in names)
        return ContainerParts(_by_place([fields[name] for name in names]), fields) if whole else None
    # A constructor may take more than it keeps (`dataclasses.InitVar`).
    fields = {field.name: fields[field.name] for field in dataclasses.fields(target) if field.name in fields}
    if not _is_output_class(target):
        return ContainerParts({}, fields)
    return _parts_of_output(target, fields, is_tensor)


def _parts_of_output(
    target: Any, fields: dict[str, Any], is_tensor: Callable[[Node], bool]
) -> ContainerParts | None:
    """Return what one of the dicts of fields holds: what is not None, in the order of the fields."""
    held = {field.name: fields.get(field.name, field.default) for field in dataclasses.fields(target)}
    held = {name: value for name, value in held.items() if value is not None and value is not _MISSING}
    # Such a class takes its only field apart where that is no tensor, and a node may stand for None.
    if not all(isinstance(value, Node) and is_tensor(value) for value in held.values()):
        return None
    return ContainerParts({**held, **_by_place(list(held.values()))}, held)


def _by_place(parts: Sequence[Any]) -> dict[Any, Any]:
    count = len(parts)
    return dict(zip(range(count), parts, strict=True)) | dict(zip(range(-count, 0), parts, strict=True))


def _pairs(value: Any) -> list[tuple[Any, Any]] | None:
    """Return keys and values of what a dict is made of; None where they do not stand there."""
    if isinstance(value, dict):
        return list(cast("dict[Any, Any]", value).items())
    if not isinstance(value, (tuple, list)):
        return None
    given = cast("Sequence[Any]", value)
    return list(map(tuple, given)) if all(map(_is_pair, given)) else None


def _is_pair(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or len(cast("Sequence[Any]", value)) != 2:
        return False
    return not isinstance(value[0], Node)
