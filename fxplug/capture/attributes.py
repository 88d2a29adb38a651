"""Attributes of whatever a program holds, whose class may take any name for a key."""

from __future__ import annotations

from typing import Any

__all__ = ["attribute_of", "can_be_asked"]


def attribute_of(value: Any, name: str, default: Any = None) -> Any:
    """Return an attribute as `getattr` does, by default None; an error of the class says that there is none.

    A dict whose keys are attributes (``__getattr__ = dict.__getitem__``) is not asked: it raises a `KeyError` for what
    is no key, or makes it one.
    """
    try:
        kind = type(value)
        if issubclass(kind, dict):
            return object.__getattribute__(value, name)
        if kind is not type and issubclass(kind, type):  # Its metaclass may count what it is asked for.
            return type.__getattribute__(value, name)
        return getattr(value, name, default)
    except Exception:  # Whatever its class raises.
        return default


def can_be_asked(value: Any) -> bool:
    """Return whether ``isinstance`` can be asked of a value: a dead ``weakref.proxy`` answers nothing."""
    try:
        return value.__class__ is not None
    except Exception:  # Whatever its class raises.
        return False
