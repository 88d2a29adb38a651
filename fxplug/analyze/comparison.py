"""Comparing what an optimised module returns with what eager PyTorch returns."""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections import UserDict, UserList, deque
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.capture.examples.structures import fields_of
from fxplug.errors import ConfigError, VerificationError
from fxplug.semantics.internals import flatten_tree_with_paths, is_fake, is_registered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Check", "Comparison", "MismatchError", "Tolerance", "compare", "describe"]

_DEFAULTS = {
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-4),
    torch.complex64: (1e-4, 1e-4),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (2e-2, 2e-2),
}
_COARSEST = (1e-1, 1e-1)


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be off: by ``atol + rtol * abs(expected) + share * max(abs(expected))``, element by element.

    Integers and booleans have to be equal.
    """

    rtol: float | None = None
    """None: by dtype, 1e-4 for float32."""
    atol: float | None = None
    """None: by dtype, 1e-4 for float32."""
    share: float = 0.0
    """Of the largest magnitude in the value that the number belongs to."""
    values: bool = True
    """Whether values count; else only structure, dtype, shape, device and layout do."""

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol), ("share", self.share)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(
                    f"Cannot compare with {name} = {value}: give a finite number that is not negative."
                )

    def of(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return rtol and atol for values of a dtype."""
        if not (dtype.is_floating_point or dtype.is_complex):
            return 0.0, 0.0
        rtol, atol = _DEFAULTS.get(dtype, _COARSEST)
        return (rtol if self.rtol is None else self.rtol), (atol if self.atol is None else self.atol)

    def share_of(self, dtype: torch.dtype) -> float:
        """Return the share of the largest magnitude that values of a dtype may be off."""
        return self.share if dtype.is_floating_point or dtype.is_complex else 0.0


@dataclass(frozen=True)
class Comparison:
    """One value of the result, compared."""

    path: str
    """Where it stands: ``"output"``, ``"output[0]"``, ``"output['logits']"``, ``"buffer bn.running_mean"``."""
    expected: str
    """What eager gives: dtype and shape of a tensor, type of anything else."""
    actual: str
    """What the optimised module gives."""
    max_abs_error: float = 0.0
    """Largest difference of an element."""
    max_rel_error: float = 0.0
    """Largest difference, as a share of the largest expected magnitude."""
    rtol: float = 0.0
    atol: float = 0.0
    reason: str = ""
    """Why it does not pass; empty when it does."""
    elements: int = 1
    """How many elements were compared: none of an empty tensor, and of one without data."""

    @property
    def passed(self) -> bool:
        """Whether the two agree."""
        return not self.reason


@dataclass(frozen=True)
class Check:
    """The comparison of two runs on the same inputs, from the same random state."""

    comparisons: tuple[Comparison, ...]
    """Every value of the result; after them the inputs and buffers that a run changed."""

    @property
    def passed(self) -> bool:
        """Whether everything agrees."""
        return all(comparison.passed for comparison in self.comparisons)

    @property
    def failures(self) -> tuple[Comparison, ...]:
        """What does not agree."""
        return tuple(comparison for comparison in self.comparisons if not comparison.passed)

    @property
    def elements(self) -> int:
        """How many elements were compared; with none, the check says nothing about what is computed."""
        return sum(comparison.elements for comparison in self.comparisons)

    @property
    def max_abs_error(self) -> float:
        """Largest difference of an element anywhere."""
        return max((comparison.max_abs_error for comparison in self.comparisons), default=0.0)

    @property
    def max_rel_error(self) -> float:
        """Largest difference anywhere, as a share of the largest magnitude of the value that it belongs to."""
        return max((comparison.max_rel_error for comparison in self.comparisons), default=0.0)


class MismatchError(VerificationError):
    """An optimised module does not compute what eager PyTorch computes; `check` says where and by how much."""

    code = "FXP-V002"

    def __init__(self, message: str, check: Check) -> None:
        super().__init__(message, [f"{failure.path}: {failure.reason}" for failure in check.failures])
        self.check = check


def describe(value: Any) -> str:
    """Return dtype and shape of a tensor, or the type of another value, for people."""
    if isinstance(value, torch.Tensor):
        sizes = f" of {value.size(0)} tensors" if value.is_nested else str(list(value.shape))
        return f"{str(value.dtype).removeprefix('torch.')}{sizes}"
    return type(value).__name__


def compare(
    expected: Any,
    actual: Any,
    tolerance: Tolerance,
    path: str = "output",
    _around: tuple[tuple[int, int], ...] = (),
) -> Iterator[Comparison]:
    """Compare two values of any structure; in one that holds itself, each part is compared once.

    Args:
        expected: What is right: tensors, plain values, and tuples, lists, dicts and dataclasses of them.
        actual: What is judged.
        tolerance: What is close enough.
        path: Name of the value.

    Yields:
        One comparison per tensor or plain value, in order; one for a container where the containers differ.
    """
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        if expected.is_nested or actual.is_nested:
            yield from _compare_nested(expected, actual, tolerance, path)
            return
        yield _compare_tensors(expected, actual, tolerance, path)
        return
    if type(expected) is not type(actual):
        reason = f"it is a {describe(actual)} and should be a {describe(expected)}"
        yield Comparison(path, describe(expected), describe(actual), math.inf, math.inf, reason=reason)
        return
    parts, others = _parts(expected), _parts(actual) or {}
    if parts is None and not _say_equal(expected, actual):
        # What is equal to itself alone, or cannot be compared, is looked into all the same.
        parts, others = _attributes_alone(expected) or None, _attributes_alone(actual) or {}
    if parts is None:
        yield _compare_plain(expected, actual, tolerance, path)
        return
    if parts.keys() != others.keys():
        reason = f"it has {_elements(others)} and should have {_elements(parts)}"
        yield Comparison(path, describe(expected), describe(actual), math.inf, math.inf, reason=reason)
        return
    pair = id(expected), id(actual)
    if pair in _around:
        return
    for key, part in parts.items():
        yield from compare(part, others[key], tolerance, f"{path}{key}", (*_around, pair))


def _compare_nested(
    expected: torch.Tensor, actual: torch.Tensor, tolerance: Tolerance, path: str
) -> Iterator[Comparison]:
    """Compare the tensors in nested ones, which have no shape."""
    if expected.is_nested and actual.is_nested and expected.layout is actual.layout:
        yield from compare(list(expected.detach().unbind()), list(actual.detach().unbind()), tolerance, path)
        return
    wanted, found = (
        f"nested tensor ({value.layout})" if value.is_nested else "plain tensor"
        for value in (expected, actual)
    )
    reason = f"it is a {found} and should be a {wanted}"
    yield Comparison(path, describe(expected), describe(actual), math.inf, math.inf, reason=reason)


def _own_names(value: Any) -> list[str]:
    """Return the names of what an object holds besides its fields, those of its class that are worked out left out."""
    held: dict[str, Any] = getattr(value, "__dict__", {})
    return [name for name in held if not isinstance(getattr(type(value), name, None), cached_property)]


def _parts(value: Any) -> dict[str, Any] | None:
    """Return suffix of the path -> element for a container, None for anything else."""
    if isinstance(value, (dict, UserDict)):
        entries = cast("dict[Any, Any]", value)
        return {f"[{key!r}]": element for key, element in entries.items()}
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields is not None:
        return {f".{name}": element for name, element in zip(fields, value, strict=True)}
    if isinstance(value, (list, tuple, deque, UserList)):
        elements = cast("list[Any]", value)
        return {f"[{index}]": element for index, element in enumerate(elements)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [entry.name for entry in dataclasses.fields(value) if hasattr(value, entry.name)]
        return {f".{name}": getattr(value, name) for name in dict.fromkeys((*names, *_own_names(value)))}
    if is_registered(value):  # What it has beside that, such as a cache, is its own affair.
        return dict(flatten_tree_with_paths(value)[0])
    if type(value) is weakref.ref:
        return {"()": value()}
    if type(value).__eq__ is not object.__eq__ and not isinstance(value, SimpleNamespace):
        return None  # It says itself what it is equal to.
    return _attributes(value)


def _say_equal(expected: Any, actual: Any) -> bool:
    """Return whether two objects say that they are equal."""
    try:
        return expected is actual or bool(expected == actual)
    except Exception:  # What `==` of a foreign type does is not known.
        return False


def _attributes_alone(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object that is nothing but them, though its class says what it is equal to."""
    kind = type(value)
    builtin = next(base for base in kind.__mro__ if not base.__flags__ & _MADE_BY_PYTHON)
    is_plain = builtin is object and isinstance(kind.__eq__, FunctionType)
    return _attributes(value) if is_plain else None


_MADE_BY_PYTHON = 1 << 9
"""The flag of classes that are no static ones of C, as `copyreg` tells them apart."""


def _attributes(value: Any) -> dict[str, Any] | None:
    """Return suffix of the path -> attribute of an object whose class keeps all of them in a dict; None for others."""
    fields = fields_of(value)
    return None if fields is None else {f".{name}": part for name, part in fields.items()}


def _elements(parts: Mapping[str, Any]) -> str:
    return (
        f"{len(parts)} elements ({', '.join(key.strip('.[]') for key in parts)})" if parts else "no element"
    )


def _compare_plain(expected: Any, actual: Any, tolerance: Tolerance, path: str) -> Comparison:
    name = describe(expected)
    if not tolerance.values:
        return Comparison(path, name, name, elements=0)
    both_nan = isinstance(expected, float) and math.isnan(expected) and math.isnan(actual)
    try:
        equal = both_nan or expected is actual or bool(expected == actual)
    except Exception as error:  # What `==` of a foreign type does is not known.
        reason = f"the two {name}s cannot be compared ({type(error).__name__}: {error})"
        return Comparison(path, name, name, math.inf, math.inf, reason=reason)
    if equal:
        return Comparison(path, name, name)
    return Comparison(
        path, name, name, math.inf, math.inf, reason=f"it is {actual!r} and should be {expected!r}"
    )


def _compare_tensors(
    expected: torch.Tensor, actual: torch.Tensor, tolerance: Tolerance, path: str
) -> Comparison:
    texts = describe(expected), describe(actual)
    differing = [
        f"its {name} is {mine} and should be {wanted}"
        for name, wanted, mine in (
            ("dtype", expected.dtype, actual.dtype),
            ("shape", list(expected.shape), list(actual.shape)),
            ("device", expected.device, actual.device),
            ("layout", expected.layout, actual.layout),
        )
        if wanted != mine
    ]
    if differing:
        return Comparison(path, *texts, math.inf, math.inf, reason="; ".join(differing))
    if not tolerance.values or expected.is_meta or is_fake(expected):
        return Comparison(path, *texts, elements=0)
    rtol, atol = tolerance.of(expected.dtype)
    wanted, found = _dense(expected), _dense(actual)
    reference, candidate = _as_numbers(wanted), _as_numbers(found)
    is_exact = not (wanted.is_floating_point() or wanted.is_complex())
    same = wanted == found if is_exact else (reference == candidate) | (reference.isnan() & candidate.isnan())
    error = torch.where(same, 0.0, (candidate - reference).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    if is_exact:  # Double precision cannot tell large integers apart.
        error = torch.where(same, error, error.clamp(min=1.0))
    magnitude = reference.abs()
    scale = magnitude[magnitude.isfinite()].max().item() if magnitude.isfinite().any() else 0.0
    share = tolerance.share_of(expected.dtype)
    close = same | (error.isfinite() & (error <= atol + rtol * magnitude + share * scale))
    largest = error.max().item() if error.numel() else 0.0
    relative = 0.0 if largest == 0 else (largest / scale if scale else math.inf)
    allowed = _allowed_text(rtol, atol, share)
    reason = "" if bool(close.all()) else _worst_place(wanted, found, error, close, allowed)
    return Comparison(path, *texts, largest, relative, rtol, atol, reason, error.numel())


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values where they can be compared: dense, and on the CPU."""
    values = tensor.detach()
    if values.is_quantized:
        values = values.dequantize()
    if values.layout != torch.strided:
        values = values.to_dense()
    return values.cpu()


def _as_numbers(values: torch.Tensor) -> torch.Tensor:
    """Return them where they can be subtracted: in double precision."""
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def _worst_place(
    expected: torch.Tensor,
    actual: torch.Tensor,
    error: torch.Tensor,
    close: torch.Tensor,
    allowed: str,
) -> str:
    """Return how much is off, and where it is worst."""
    # What is close enough is out of the question even where its error is larger.
    flat = torch.where(close, -1.0, error).flatten().argmax()
    place = [int(part) for part in torch.unravel_index(flat, error.shape)]
    off = int((~close).sum().item())
    where = f" at {place}" if place else ""
    mine, right = (_number(values[tuple(place)]) for values in (actual, expected))
    return (
        f"{off} of {close.numel()} elements are off, most of all{where}: {mine} instead of {right} "
        f"(allowed error: {allowed})"
    )


def _number(value: torch.Tensor) -> str:
    is_rounded = value.is_floating_point() or value.is_complex()
    return f"{value.item():.6g}" if is_rounded else str(int(value.item()))


def _allowed_text(rtol: float, atol: float, share: float) -> str:
    terms = [f"{atol:g} + {rtol:g} * abs(expected)"] if rtol or atol else []
    if share:
        terms.append(f"{share:g} * largest magnitude")
    return " + ".join(terms) or "none"
