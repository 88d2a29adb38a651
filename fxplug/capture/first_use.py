"""Attributes whose values are made when somebody asks for them first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["forget_values", "made_at_first_use"]

ValueT = TypeVar("ValueT")


class _MadeAtFirstUse(Generic[ValueT]):
    """An attribute of a class: each object gets a value of its own when it is asked for. Assigning takes its place."""

    def __init__(self, make: Callable[[Any], ValueT]) -> None:
        self._make = make
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = vars(instance)[self._name] = self._make(instance)
        return value


def made_at_first_use(make: Callable[[Any], ValueT]) -> ValueT:
    """Return what a class has for an attribute that most of its objects never need.

    Args:
        make: Makes the value, given the object.
    """
    return cast("ValueT", _MadeAtFirstUse(make))


def forget_values(instance: object, names: tuple[str, ...]) -> None:
    """Let the values of such attributes be made anew when they are asked for again."""
    own = vars(instance)
    for name in names:
        own.pop(name, None)
