"""What this plugin asks others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug import hookspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug_tensorrt.conversion import ConverterRecord

__all__ = ["tensorrt_converters"]


@hookspec
def tensorrt_converters() -> Iterable[ConverterRecord]:  # pyright: ignore[reportReturnType] - a declaration
    """Offer converters of operators; they come before those of this plugin."""
