"""Calls written in full."""

from __future__ import annotations

from fxplug.ir import ArgsKwargsPair
from fxplug.semantics import normalize_function, normalize_module

__all__ = ["ArgsKwargsPair", "normalize_function", "normalize_module"]
