"""Splitting a program into partitions."""

from __future__ import annotations

from fxplug.passes import split_module

__all__ = ["split_module"]
