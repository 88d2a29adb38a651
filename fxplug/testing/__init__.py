"""Helpers for the tests of passes, backends and plugins."""

from __future__ import annotations

from fxplug.testing.behaviour import assert_same_behaviour

__all__ = ["assert_same_behaviour"]
