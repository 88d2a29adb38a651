"""Which trace runs in a thread or task, for those who need to know no more of it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

__all__ = ["active"]

active: ContextVar[Any] = ContextVar("fxplug_active_trace", default=None)
"""The session of the running thread or task (see `fxplug.capture.sessions`), None where nothing is traced."""
