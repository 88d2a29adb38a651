"""Of what class the results of torch's functions, methods and attributes are, where that is certain without values."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.semantics.internals import BOOLEAN_DISPATCHED, OpOverload, schema_of
from fxplug.semantics.schemas import tensor_forms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "TENSOR",
    "TENSOR_METHODS",
    "TENSOR_MODULES",
    "TENSOR_NAMES",
    "Kind",
    "attribute_kind",
    "count_of_results",
    "function_kind",
    "kind_of_value",
    "method_kind",
    "module_kind",
    "part_kind",
    "tells_of_tensor",
]


@dataclass(frozen=True)
class Kind:
    """Of what class a value is, and what it holds if it is a container of values of one kind."""

    cls: type
    """The class."""
    part: Kind | None = None
    """What each element is."""


TENSOR = Kind(torch.Tensor)
_INT = Kind(int)
_FLOAT = Kind(float)
_BOOL = Kind(bool)
_SIZE = Kind(torch.Size, _INT)
_TENSORS = Kind(tuple, TENSOR)

TENSOR_NAMES: frozenset[str] = frozenset(dir(torch.Tensor))
"""The names of everything that a tensor has."""
TENSOR_METHODS: frozenset[str] = frozenset(
    name for name in TENSOR_NAMES if callable(getattr(torch.Tensor, name, None))
)
"""Those of its methods."""

TENSOR_MODULES: tuple[type[nn.Module], ...] = (
    nn.Linear,
    nn.Embedding,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
)
"""Modules that refuse anything but a tensor, and return a new one."""

_ATTRIBUTES: dict[str, Kind] = {
    "shape": _SIZE,
    "ndim": _INT,
    "itemsize": _INT,
    "nbytes": _INT,
    "output_nr": _INT,
    "dtype": Kind(torch.dtype),
    "device": Kind(torch.device),
    "layout": Kind(torch.layout),
    "requires_grad": _BOOL,
    "is_leaf": _BOOL,
    **dict.fromkeys(("T", "H", "mT", "mH", "data", "real", "imag"), TENSOR),
    **{
        name: _BOOL
        for name in TENSOR_NAMES
        if name.startswith("is_") and not callable(getattr(torch.Tensor, name, None))
    },
}
_METHODS: dict[str, Kind] = {
    "dim": _INT,
    "ndimension": _INT,
    "numel": _INT,
    "nelement": _INT,
    "element_size": _INT,
    "get_device": _INT,
    "storage_offset": _INT,
    "data_ptr": _INT,
    "is_floating_point": _BOOL,
    "is_complex": _BOOL,
    "is_contiguous": _BOOL,
    "is_signed": _BOOL,
    "is_inference": _BOOL,
    "is_pinned": _BOOL,
    "equal": _BOOL,
    "allclose": _BOOL,
    **dict.fromkeys(("contiguous", "cpu", "cuda", "new_tensor", "requires_grad_", "to", "type_as"), TENSOR),
    **dict.fromkeys(
        ("bfloat16", "bool", "byte", "char", "double", "float", "half", "int", "long", "short"), TENSOR
    ),
    **dict.fromkeys(("reshape", "reshape_as", "view", "view_as", "expand_as"), TENSOR),
}
"""Methods whose class no schema tells, or tells only of some forms."""

_TELLING = frozenset({name for name, kind in _METHODS.items() if kind is not TENSOR} | {"stride", "type"})


def tells_of_tensor(name: str) -> bool:
    """Return whether a method may give a number, an answer or text about a tensor; sizes are not counted."""
    return name in _TELLING


_OTHERS = frozenset(name for kind in (str, int, float, complex, list, tuple, dict, set) for name in dir(kind))
"""Names that not only tensors have."""

_UNCERTAIN = frozenset(
    {"item", "max", "min", "median", "mode", "nanmedian", "norm", "unique", "unique_consecutive"}
)

_ARITHMETIC = frozenset(
    getattr(operator, name)
    for stem in (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "lshift",
        "rshift",
        "and_",
        "or_",
        "xor",
    )
    for name in (stem, f"i{stem.rstrip('_')}")
)
_MATMUL = frozenset({operator.matmul, operator.imatmul})
_COMPARISONS = frozenset((operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge))
_UNARY = frozenset((operator.neg, operator.pos, operator.invert, operator.abs, abs))
_WHOLE = frozenset(
    (
        *(
            operator.add,
            operator.sub,
            operator.mul,
            operator.floordiv,
            operator.mod,
            operator.iadd,
            operator.isub,
        ),
        *(operator.imul, operator.ifloordiv, operator.imod),
    )
)
"""Operators that give an integer for two integers."""


def kind_of_value(value: Any) -> Kind:
    """Return the kind of a value that is there."""
    if isinstance(value, torch.Size):
        return _SIZE
    return Kind(type(value))


def attribute_kind(owner: Kind | None, name: str) -> Kind | None:
    """Return the kind of an attribute, None where it is not certain.

    Args:
        owner: What it is an attribute of; None where that is unknown. What no other value has tells a tensor then.
        name: Of the attribute.
    """
    if owner is not None and not issubclass(owner.cls, torch.Tensor):
        is_result = owner.cls.__module__ == "torch.return_types" and hasattr(owner.cls, name)
        return owner.part if is_result and name not in dir(tuple) else None
    if owner is None and name in _OTHERS:
        return None
    return _ATTRIBUTES.get(name)


def method_kind(owner: Kind | None, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Kind | None:
    """Return the kind of what a method returns, None where it is not certain.

    Args:
        owner: As in `attribute_kind`.
        name: Of the method.
        args: What it is called with, without the object itself.
        kwargs: What it is called with by name.
    """
    is_tensor = owner is not None and issubclass(owner.cls, torch.Tensor)
    if not is_tensor and (owner is not None or name in _OTHERS or name not in TENSOR_NAMES):
        return None
    if name in {"size", "stride"}:
        whole = _SIZE if name == "size" else Kind(tuple, _INT)
        return _INT if args or kwargs else whole
    if name == "type":
        return TENSOR if args or kwargs else Kind(str)
    if name in _METHODS:
        return _METHODS[name]
    return _named_kind(name)


def function_kind(target: Any, kinds: Sequence[Kind | None], kwargs: Mapping[str, Any]) -> Kind | None:
    """Return the kind of what a function returns, None where it is not certain.

    Args:
        target: The function.
        kinds: Those of its positional arguments, None for what is unknown.
        kwargs: What it is called with by name.
    """
    known = _operator_kind(target, kinds)
    if known is not None:
        return known
    if isinstance(target, OpOverload):
        return _returned(target)
    annotated = _annotated(target)
    if annotated is not None:
        return annotated
    name = getattr(target, "__name__", None)
    if not isinstance(name, str) or not _is_torchs(target):
        return None
    if target in BOOLEAN_DISPATCHED:  # Those that can return indices, too.
        return None if kwargs.get("return_indices") or len(kinds) > 6 else TENSOR
    if name == "where" and len(kinds) == 3:  # condition and both values
        return TENSOR
    return _METHODS.get(name) if name in _METHODS and kinds else _named_kind(name)


def _operator_kind(target: Any, kinds: Sequence[Kind | None]) -> Kind | None:
    if not _is_hashable(target):
        return None
    is_tensor = any(kind is not None and issubclass(kind.cls, torch.Tensor) for kind in kinds)
    if target in _MATMUL:
        return TENSOR
    if is_tensor and (target in _ARITHMETIC or target in _UNARY or target in _COMPARISONS):
        return TENSOR
    classes = {None if kind is None else kind.cls for kind in kinds}
    if not classes or not classes <= {int, float}:
        return None
    if target in _COMPARISONS:
        return _BOOL
    if target is operator.truediv or target is operator.itruediv:
        return _FLOAT
    if target in _WHOLE or target in _UNARY:
        return _FLOAT if float in classes else _INT
    return None


def part_kind(whole: Kind | None, key: Any) -> Kind | None:
    """Return the kind of ``whole[key]``, None where it is not certain."""
    if whole is None or issubclass(whole.cls, torch.Tensor):
        return None if whole is None else TENSOR
    if isinstance(key, slice):
        return whole if whole.cls in {torch.Size, tuple, list} else None
    return whole.part


def module_kind(module: Any) -> Kind | None:
    """Return the kind of what a call of a module returns, None where it is not certain."""
    kind = type(module)
    if not isinstance(module, nn.Module) or "forward" in vars(module):
        return None
    if str(kind.__module__).startswith("torch.nn.") and hasattr(module, "return_indices"):
        return None if module.return_indices else TENSOR
    if kind is nn.MultiheadAttention:
        return Kind(tuple)
    if isinstance(module, nn.Identity):
        return None
    return _annotated(kind.forward)


def count_of_results(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Return how many values a function or method of torch returns at most, None where that is open.

    Args:
        target: The function, or the name of the method.
        args: What it is called with.
        kwargs: What it is called with by name.
    """
    if not isinstance(target, str) and not _is_torchs(target):
        return None
    name = (target if isinstance(target, str) else str(getattr(target, "__name__", ""))).partition(".")[0]
    if name == "broadcast_tensors":
        return len(args)
    if name in _COUNTED:
        return _count_that_is_said(
            name, [kwargs[word] for word in _COUNTED[name] if word in kwargs] or args[1:2]
        )
    if name in _UNCERTAIN:
        return 2 if type(kwargs.get("dim", args[1] if len(args) > 1 else None)) is int else None
    if kwargs.get("return_indices") is True:
        return 2
    counts = {len(schema_of(form).returns) for form in tensor_forms(name)}
    count = counts.pop() if len(counts) == 1 else 1
    return count if count > 1 else None


def _count_that_is_said(name: str, given: Sequence[Any]) -> int | None:
    said = given[0] if given else None
    if isinstance(said, (list, tuple)):
        return len(cast("Sequence[Any]", said)) if name in _BY_SIZES else None
    return said if type(said) is int and name not in _BY_SIZES else None


_BY_SIZES = frozenset({"split", "split_with_sizes"})
_COUNTED = {
    **dict.fromkeys(("chunk", "unsafe_chunk"), ("chunks",)),
    "split": ("split_size_or_sections", "split_size"),
    "split_with_sizes": ("split_sizes",),
}
"""Functions that return as many parts as one of their arguments says, and its names."""


def _annotated(function: Any) -> Kind | None:
    found = getattr(function, "__annotations__", None)
    result = found.get("return") if isinstance(found, dict) else None
    if result is torch.Tensor:
        return TENSOR
    return TENSOR if isinstance(result, str) and result in {"Tensor", "torch.Tensor"} else None


def _is_torchs(target: Any) -> bool:
    module = getattr(target, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] == "torch"


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@functools.lru_cache(maxsize=4096)
def _named_kind(name: str) -> Kind | None:
    """Return the kind of what the operator of a name returns, if all its forms on tensors agree."""
    if name in _UNCERTAIN:
        return None
    kinds = {_returned(form) for form in tensor_forms(name)}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None or kind.cls is not tuple:
        return kind
    # Several results with names, as those of topk, have a class of their own.
    return Kind(getattr(torch.return_types, name, tuple), kind.part)


def _returned(overload: Any) -> Kind | None:
    returns = [str(entry.type) for entry in schema_of(overload).returns]
    if not returns:
        return None
    if len(returns) > 1:
        return _TENSORS if all(text == "Tensor" for text in returns) else Kind(tuple)
    return _RETURNED.get(returns[0])


_RETURNED: dict[str, Kind] = {
    "Tensor": TENSOR,
    "List[Tensor]": _TENSORS,
    "Tensor[]": _TENSORS,
    "int": _INT,
    "SymInt": _INT,
    "bool": _BOOL,
    "float": _FLOAT,
}
