"""Refusing questions that need a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from fxplug.capture.sources import place_in_program
from fxplug.errors import TraceError

if TYPE_CHECKING:
    from fxplug.ir import Node

__all__ = ["no_condition", "no_iteration", "unknown_value"]


class UnknownValue(Protocol):
    """A proxy, as far as a refusal needs to know it."""

    @property
    def node(self) -> Node:
        """The node whose value is unknown."""
        ...

    tracer: Any
    """Who records; told of the refusal if it wants to know."""


def unknown_value(
    proxy: UnknownValue, what: str, remedy: str, code: str, *, is_probe: bool = False
) -> TraceError:
    """Return the error for a question that cannot be answered while a value is unknown.

    Args:
        proxy: Stands for the value.
        what: What needs the answer.
        remedy: What to do.
        code: Of the error.
        is_probe: Whether the question may be one by which torch only finds out what it was given.
    """
    error = TraceError(
        f"Cannot trace: {what} {proxy.node.name!r} is unknown{place_in_program()}. {remedy}", code=code
    )
    # The program may catch it; the tracer must not believe then that all is well.
    note = getattr(proxy.tracer, "note_refusal", None)
    if note is not None and not is_probe:
        note(error)
    return error


def no_condition(proxy: UnknownValue) -> TraceError:
    """Return the error for a condition on a traced value."""
    return unknown_value(
        proxy,
        "a condition depends on a traced value;",
        "Trace with that branch fixed (concrete_args), rewrite it with torch.where, or make the enclosing "
        "module a leaf.",
        "FXP-T001",
    )


def no_iteration(proxy: UnknownValue) -> TraceError:
    """Return the error for iterating over a traced value."""
    return unknown_value(
        proxy,
        "iterating needs to know how many elements there are;",
        "Unpack it into a fixed number of names (a, b = value), index it, or make the enclosing module a "
        "leaf.",
        "FXP-T005",
    )
