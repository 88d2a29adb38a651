"""What fxplug itself offers, through the same hooks as everybody else; where order matters, it comes last."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from fxplug import capture  # By its own name here, the rule would be a second implementation.
from fxplug.analyze import BUILTIN_DEVICES, builtin_formulas
from fxplug.lower import BUILTIN_BACKENDS
from fxplug.passes import BUILTIN_PASSES
from fxplug.plugins.markers import hookimpl
from fxplug.rewrite import BUILTIN_DECOMPOSITIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.execute import GraphModule
    from fxplug.plugins.records import (
        BackendRecord,
        DecompositionRecord,
        DeviceRecord,
        FlopFormulaRecord,
        PassRecord,
    )

__all__ = [
    "fxplug_is_leaf_module",
    "fxplug_register_backends",
    "fxplug_register_decompositions",
    "fxplug_register_devices",
    "fxplug_register_flop_formulas",
    "fxplug_register_passes",
    "fxplug_represent",
]


fxplug_is_leaf_module = hookimpl(capture.is_leaf_by_class)
"""Keeps the classes that torch.nn ships, except containers: the very function that every tracer asks at last."""


@hookimpl
def fxplug_register_passes() -> Iterable[PassRecord]:
    """Offer the built-in passes."""
    return BUILTIN_PASSES


@hookimpl
def fxplug_register_backends() -> Iterable[BackendRecord]:
    """Offer eager execution."""
    return BUILTIN_BACKENDS


@hookimpl
def fxplug_register_decompositions() -> Iterable[DecompositionRecord]:
    """Express some of torch's activations, and addmm, by simpler calls."""
    return BUILTIN_DECOMPOSITIONS


@hookimpl
def fxplug_register_flop_formulas() -> Iterable[FlopFormulaRecord]:
    """State what torch's calls cost."""
    return builtin_formulas()


@hookimpl
def fxplug_register_devices() -> Iterable[DeviceRecord]:
    """Describe devices by the figures of their makers."""
    return BUILTIN_DEVICES


@hookimpl
def fxplug_represent(graph_module: GraphModule, format: str) -> str | None:  # noqa: A002 - the hook's name for it
    """Show the program as source."""
    if format not in {"text", "html"}:
        return None
    text = graph_module.print_readable(print_output=False)
    return text if format == "text" else f"<pre>{html.escape(text)}</pre>"
