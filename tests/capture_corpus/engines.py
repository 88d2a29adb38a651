"""The ways of capturing that are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.fx

import fxplug

if TYPE_CHECKING:
    from collections.abc import Callable

Capture = Any
"""Takes a program, its positional and named inputs; returns the captured module."""


def _symbolic(root: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fxplug.symbolic_trace(root)


_symbolic.knows_no_inputs = True  # type: ignore[attr-defined]


def _with_examples(mode: str) -> Callable[..., Any]:
    def capture(root: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return fxplug.trace(root, args, example_kwargs=kwargs, mode=mode)

    return capture


def _torch_fx(root: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return torch.fx.symbolic_trace(root)


ENGINES: dict[str, Callable[..., Any]] = {"torch.fx": _torch_fx, "symbolic": _symbolic}
"""Name of an engine -> how it captures; fxplug's go by the name of their mode."""

if hasattr(fxplug, "trace"):
    ENGINES |= {mode: _with_examples(mode) for mode in ("shape", "value")}
