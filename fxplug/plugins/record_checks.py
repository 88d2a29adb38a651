"""Checking one record of a plugin, and what its functions return: whoever uses it finds what the record promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import nn

from fxplug.analyze import CallCost
from fxplug.capture import Proxy
from fxplug.errors import did_you_mean
from fxplug.ir import iterate_leaves
from fxplug.ir.effects import Effect
from fxplug.passes import ANALYSES, PHASES
from fxplug.plugins.records import (
    ConstantRecord,
    DecompositionRecord,
    DeviceRecord,
    EffectRecord,
    FlopFormulaRecord,
    PassRecord,
    StorageTargetRecord,
)
from fxplug.plugins.refusal import Refused, check_name, is_text_list

__all__ = ["check_record", "cost_fault", "decomposition_fault"]

_HELD_BY_GRAPHS = (
    int,
    float,
    bool,
    str,
    bytes,
    complex,
    type(None),
    tuple,
    list,
    dict,
    slice,
    torch.Tensor,
    nn.Module,
)


def check_record(record: Any) -> None:
    """Refuse a record that could not be used.

    Args:
        record: Of the class that its hook asks for.

    Raises:
        Refused: Something about it is wrong; the message says what, in a clause.
    """
    check = _CHECKS.get(type(record))
    if check is not None:
        check(record)
        return
    title = _check_title(record)
    if not callable(record.factory):
        raise Refused(f"the factory of {title} is {record.factory!r}, which cannot be called")
    observer = getattr(record, "observer", None)
    if observer is not None and not callable(observer):
        raise Refused(f"the observer of {title} is {observer!r}, which cannot be called")
    options = getattr(record, "options", None)
    if options is not None and not (isinstance(options, type) and is_dataclass(options)):
        raise Refused(f"the options of {title} are {options!r}; they must be a dataclass or None")
    for attribute in ("before", "after", "pipelines", "requires"):
        value = getattr(record, attribute, ())
        if not is_text_list(value):
            raise Refused(f"{attribute!r} of {title} is {value!r}; it must be a tuple of names")
    if isinstance(record, PassRecord):
        _check_pass(record, title)


def _check_pass(record: PassRecord, title: str) -> None:
    if record.phase not in PHASES:
        raise Refused(f"the phase of {title} is {record.phase!r}; it must be one of {', '.join(PHASES)}")
    preserves: Any = record.preserves
    if not isinstance(preserves, (frozenset, set)) or not all(isinstance(name, str) for name in preserves):
        raise Refused(f"'preserves' of {title} is {preserves!r}; it must be a frozenset of names of analyses")
    for name in sorted(preserves - ANALYSES.keys()):
        raise Refused(f"{title} preserves {name!r}, which is no analysis. {did_you_mean(name, ANALYSES)}")
    replaces: Any = record.replaces_parameters
    if not isinstance(replaces, bool):
        raise Refused(f"'replaces_parameters' of {title} is {replaces!r}; it must be True or False")
    tolerance: Any = record.tolerance
    is_number = isinstance(tolerance, (int, float)) and not isinstance(tolerance, bool)
    if not is_number or not 0 <= tolerance < math.inf:
        raise Refused(f"the tolerance of {title} is {tolerance!r}; it must be a number that is not negative")


def _check_title(record: Any) -> str:
    title = f"its {type(record).__name__}"
    check_name(record.name, title)
    return f"{title} {record.name!r}"


def _check_target(record: Any) -> str:
    title = f"its {type(record).__name__}"
    target: Any = record.target
    if not isinstance(target, Hashable):
        raise Refused(f"the target of {title}, {target!r}, is not hashable")
    return f"{title} for {target!r}"


def _check_effect(record: EffectRecord) -> None:
    title = _check_target(record)
    if not isinstance(record.effect, Effect) and not callable(record.effect):
        raise Refused(f"{title} holds {record.effect!r}, which is no Effect and no function")


def _check_callable_target(record: Any) -> str:
    title = _check_target(record)
    if not callable(record.target) and not (isinstance(record.target, str) and record.target.isidentifier()):
        raise Refused(f"{title} stands for no call; a target is a callable, a method name or a module class")
    return title


def _check_decomposition(record: DecompositionRecord) -> None:
    title = _check_callable_target(record)
    if not callable(record.function):
        raise Refused(f"the function of {title} is {record.function!r}, which cannot be called")


def _check_formula(record: FlopFormulaRecord) -> None:
    title = _check_callable_target(record)
    if not callable(record.formula):
        raise Refused(f"the formula of {title} is {record.formula!r}, which cannot be called")


def _check_device(record: DeviceRecord) -> None:
    title = _check_title(record)
    rates: Any = record.multiply_adds_per_second
    if not isinstance(rates, Mapping) or not rates:
        raise Refused(
            f"'multiply_adds_per_second' of {title} is {rates!r}; it must map names of dtypes to numbers"
        )
    for dtype, rate in rates.items():
        if not isinstance(getattr(torch, str(dtype), None), torch.dtype):
            raise Refused(f"'multiply_adds_per_second' of {title} has {dtype!r}, which is no dtype of torch")
        _check_figure(rate, f"'multiply_adds_per_second' for {dtype!r} of {title}")
    _check_figure(record.bytes_per_second, f"'bytes_per_second' of {title}")
    _check_figure(record.memory_bytes, f"'memory_bytes' of {title}")


def _check_figure(value: Any, what: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise Refused(f"{what} is {value!r}; it must be a number above zero")


def _check_storage_target(record: StorageTargetRecord) -> None:
    title = _check_title(record)
    if not callable(record.target):
        raise Refused(f"the target of {title} is {record.target!r}, which cannot be called")
    if record.python is not None and not callable(record.python):
        raise Refused(f"'python' of {title} is {record.python!r}, which cannot be called")


def _check_constant(record: ConstantRecord) -> None:
    title = _check_title(record)
    kind: Any = record.type
    if not isinstance(kind, type):
        raise Refused(f"the type of {title} is {kind!r}, which is no class")
    if issubclass(kind, _HELD_BY_GRAPHS):
        raise Refused(f"the type of {title} is {kind.__name__!r}, whose values graphs hold already")
    if (record.encode is None) != (record.decode is None):
        raise Refused(f"{title} has only one of 'encode' and 'decode'; a file needs both, or neither")
    for name in ("encode", "decode"):
        value = getattr(record, name)
        if value is not None and not callable(value):
            raise Refused(f"{name!r} of {title} is {value!r}, which cannot be called")


_CHECKS: dict[type[Any], Callable[[Any], object]] = {
    ConstantRecord: _check_constant,
    DecompositionRecord: _check_decomposition,
    DeviceRecord: _check_device,
    EffectRecord: _check_effect,
    FlopFormulaRecord: _check_formula,
    StorageTargetRecord: _check_storage_target,
}


# -- what functions of records return --------------------------------------------------------------------------


def cost_fault(answer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> str | None:
    """Return what a formula may return if `answer` is something else."""
    count, kinds = (answer.multiply_adds, (int, float)) if isinstance(answer, CallCost) else (answer, (int,))
    is_number = isinstance(count, kinds) and not isinstance(count, bool)
    if answer is None or (is_number and 0 <= count < math.inf):
        return None
    return "a whole number of multiply-adds that is not negative, a fxplug.CallCost, or None"


def decomposition_fault(answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return what a decomposition may return if `answer` is None and somebody uses the value of the call."""
    if answer is not None:
        return None
    tracer = next((leaf.tracer for leaf in iterate_leaves((args, kwargs)) if isinstance(leaf, Proxy)), None)
    node = getattr(tracer, "current", None)  # The call that is being replaced.
    if node is None or not node.users:
        return None
    return "what takes the place of a value that is used, or NotImplemented to leave the call as it is"
