"""What fxplug itself offers, through the same hooks as everybody else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.lower import BUILTIN_BACKENDS
from fxplug.passes import BUILTIN_PASSES
from fxplug.plugins.markers import hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.plugins.records import BackendRecord, PassRecord

__all__ = ["fxplug_register_backends", "fxplug_register_passes"]


@hookimpl
def fxplug_register_passes() -> Iterable[PassRecord]:
    """Offer the built-in passes."""
    return BUILTIN_PASSES


@hookimpl
def fxplug_register_backends() -> Iterable[BackendRecord]:
    """Offer eager execution."""
    return BUILTIN_BACKENDS
