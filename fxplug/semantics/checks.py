"""Checks inside a graph: guards on values that only the program itself computes."""

from __future__ import annotations

import warnings
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch.fx
from torch import Tensor

from fxplug.errors import GuardError, GuardWarning
from fxplug.ir import OUTSIDE, PURE, effects
from fxplug.semantics.internals import is_fake, memory_of, storage_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from fxplug.ir import Node

__all__ = [
    "CHECKS",
    "PLAIN_CHECKS",
    "are_distinct",
    "attribute_names",
    "check_equal",
    "check_length",
    "check_like",
    "check_raises",
    "check_true",
    "check_unchanged",
    "class_of",
    "guard_failed",
    "is_check",
    "is_instance",
    "refers_to",
    "same_value",
    "share_memory",
    "the_same",
    "warning_only",
]

_warns: ContextVar[bool] = ContextVar("fxplug_guards_warn", default=False)


@contextmanager
def warning_only() -> Generator[None]:
    """Let guards that fail in this thread or task warn, while the context lasts, instead of raising."""
    token = _warns.set(True)
    try:
        yield
    finally:
        _warns.reset(token)


def guard_failed(text: str, found: str = "", *, can_run_again: bool = True) -> None:
    """Say that a guard does not hold.

    Args:
        text: The guard, with the line that asked.
        found: What is the case instead.
        can_run_again: Whether nothing was changed yet.

    Raises:
        GuardError: Unless guards only warn.
    """
    message = (
        f"Cannot run the captured program with these inputs: it was captured for {text}{found and f', and {found}'}. "
        "Capture it again with inputs like these, or pass on_guard_failure='recapture' or 'eager' to fxplug.trace."
    )
    if _warns.get():
        warnings.warn(message, GuardWarning, stacklevel=3)
        return
    raise GuardError(message, can_run_again=can_run_again)


def class_of(value: Any) -> type:
    """Return the class of a value. Unlike `type`, it makes no classes, so files may name it.

    That of a tensor without data, on which a captured program is captured again, is the class that it stands for.
    """
    return Tensor if is_fake(value) else type(value)


def is_instance(value: Any, classes: type | tuple[type, ...]) -> bool:
    """Return what ``isinstance`` does, whose calls do not stay calls where a captured program is captured again."""
    return isinstance(value, classes)


def attribute_names(value: Any) -> list[str]:
    """Return the names of the attributes that an object has to itself, in order."""
    return list(vars(value))


def refers_to(reference: Any, value: Any) -> bool:
    """Return whether something is a weak reference to a value."""
    return type(reference) is weakref.ref and reference() is value


def same_value(value: Any, expected: Any) -> bool:
    """Return whether two plain values are the same: of one class, with the same sign of zero; no number is itself."""
    # What stands for a number while the captured program is captured again has the class of that.
    if value.__class__ is not expected.__class__:
        return isinstance(value, tuple) and isinstance(expected, tuple) and tuple(value) == tuple(expected)
    if isinstance(value, float):
        return value.hex() == expected.hex()
    return bool(value == expected)


def are_distinct(*values: Any) -> bool:
    """Return whether no two of the values are the same object."""
    return len(set(map(id, values))) == len(values)


def share_memory(first: Any, second: Any) -> bool:
    """Return whether a write to one tensor may change another one."""
    found = [{storage_of(part) for part in memory_of(value) or [value]} - {None} for value in (first, second)]
    return not found[0].isdisjoint(found[1])


def check_true(value: Any, text: str, can_run_again: bool = True) -> None:  # noqa: FBT001, FBT002 - by position in graphs
    """Check that a value is true.

    Args:
        value: Computed by the program.
        text: The guard, with the line that asked.
        can_run_again: Whether the program has changed nothing yet.

    Raises:
        GuardError: It is false.
    """
    if not value:
        guard_failed(text, can_run_again=can_run_again)


def check_equal(value: Any, expected: Any, text: str, can_run_again: bool = True) -> None:  # noqa: FBT001, FBT002
    """Check that a value is what it was when the program was captured; two that are no number are the same.

    Args:
        value: Computed by the program.
        expected: What it was.
        text: The guard, with the line that asked.
        can_run_again: Whether the program has changed nothing yet.

    Raises:
        GuardError: It is something else.
    """
    if not same_value(value, expected):
        guard_failed(text, f"now it is {_described(value)}", can_run_again=can_run_again)


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    return repr(value)


def check_length(value: Any, expected: int, text: str, can_run_again: bool = True) -> None:  # noqa: FBT001, FBT002
    """Check that there are as many parts as when the program was captured.

    Args:
        value: A sequence computed by the program.
        expected: How many there were.
        text: The guard, with the line that asked.
        can_run_again: Whether the program has changed nothing yet.

    Raises:
        GuardError: There are more, or fewer.
    """
    record = getattr(type(value), "record_check", None)
    if record is not None:  # The captured program is captured again.
        record(value, check_length, (value, expected, text, can_run_again))
    elif isinstance(value, torch.fx.Proxy):
        value.tracer.create_proxy("call_function", check_length, (value, expected, text, can_run_again), {})
    elif len(value) != expected:
        guard_failed(text, f"now there are {len(value)}", can_run_again=can_run_again)


def check_like(value: Any, expected: Any, text: str, can_run_again: bool = True) -> None:  # noqa: FBT001, FBT002
    """Check that a tensor can stand in the place of another one: the same sizes, dtype and device.

    Args:
        value: Computed by the program.
        expected: The other tensor.
        text: The guard.
        can_run_again: Whether the program has changed nothing yet.

    Raises:
        GuardError: They differ.
    """
    if (value.shape, value.dtype, value.device) != (expected.shape, expected.dtype, expected.device):
        found = f"{value.dtype} of {tuple(value.shape)} on {value.device}"
        guard_failed(text, f"now there is {found}", can_run_again=can_run_again)


def check_raises(
    function: Any,
    kind: type[BaseException],
    text: str,
    can_run_again: bool,  # noqa: FBT001 - by position in graphs
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Check that a call fails as it did when the program was captured.

    Args:
        function: What is called; the name of a method of the first argument.
        kind: Of the error.
        text: The guard, with the line that asked.
        can_run_again: Whether the program has changed nothing yet.
        args: Of the call.
        kwargs: Of the call.

    Raises:
        GuardError: It does not fail, or in another way.
    """
    try:
        if isinstance(function, str):
            getattr(args[0], function)(*args[1:], **kwargs)
        else:
            function(*args, **kwargs)
    except Exception as error:  # Whatever it raises is looked at.
        if not isinstance(error, kind):
            guard_failed(text, f"now it raises {type(error).__name__}", can_run_again=can_run_again)
        return
    guard_failed(text, "now it does not", can_run_again=can_run_again)


def the_same(value: Any) -> Any:
    """Return what is given: in a graph it gives a name to a list that several calls are to receive."""
    return value


def check_unchanged(value: Any, expected: Any, text: str, can_run_again: bool = True) -> None:  # noqa: FBT001, FBT002
    """Check that a list, dict or another container holds the very values that it held before a call.

    Args:
        value: The container, which the call has received.
        expected: Another one that holds what it held.
        text: The guard, with the line of the call.
        can_run_again: Whether the program has changed nothing yet.

    Raises:
        GuardError: It holds something else.
    """
    if not _holds_the_same(value, expected):
        guard_failed(text, "now it holds something else", can_run_again=can_run_again)


def _holds_the_same(value: Any, expected: Any) -> bool:
    if value is expected:
        return True
    if type(value) is not type(expected):
        return False
    if isinstance(value, dict):
        pairs = zip(value.items(), expected.items(), strict=False)
        return len(value) == len(expected) and all(_holds_the_same(one, other) for one, other in pairs)
    if isinstance(value, (list, tuple)):
        pairs = zip(value, expected, strict=False)
        return len(value) == len(expected) and all(_holds_the_same(one, other) for one, other in pairs)
    # Numbers and text of the program itself stand twice in the graph.
    return isinstance(value, (bool, int, float, complex, str, bytes)) and repr(value) == repr(expected)


PLAIN_CHECKS = (check_equal, check_length, check_like, check_true)
CHECKS = (*PLAIN_CHECKS, check_raises, check_unchanged)
"""The functions that graphs call; the plain ones ask about a value, and call nothing."""


def is_check(node: Node) -> bool:
    """Return whether a call only checks what the captured program relies on."""
    return node.op == "call_function" and node.target in CHECKS


effects.register_target(are_distinct, PURE)
effects.register_target(attribute_names, PURE)
effects.register_target(class_of, PURE)
effects.register_target(is_instance, PURE)
effects.register_target(refers_to, PURE)
effects.register_target(same_value, PURE)
effects.register_target(share_memory, PURE)
# Not pure: what is the same twice must not become one list, nor a constant.
for _check in (*CHECKS, the_same):
    effects.register_target(_check, OUTSIDE)
