"""Splitting a program by tags on its nodes."""

from __future__ import annotations

from fxplug.passes import split_by_tags

__all__ = ["split_by_tags"]
