"""Which frames belong to the user's program, and which only carried a call into the tracer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fxplug.ir import ModuleScope, Origin, SourceLine

if TYPE_CHECKING:
    from types import CodeType, FrameType

__all__ = ["capture_origin", "user_line"]

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_TORCH = str(Path(torch.__file__).resolve().parent) + os.sep
_TORCH_MODULES = str(Path(_TORCH, "nn", "modules")) + os.sep
_MODULE_BASE = str(Path(_TORCH_MODULES, "module.py"))

_is_carrier: dict[str, bool] = {}


def _carries(filename: str) -> bool:
    """Return whether code in `filename` only passes calls on: fxplug itself, and torch except its module classes."""
    known = _is_carrier.get(filename)
    if known is None:
        inside_torch = filename.startswith(_TORCH) and not filename.startswith(_TORCH_MODULES)
        known = _is_carrier[filename] = filename.startswith(_OURS) or inside_torch or filename == _MODULE_BASE
    return known


def capture_origin(
    boundary: CodeType, caller: Origin | None, scope: ModuleScope | None, depth: int = 2
) -> Origin | None:
    """Return the position in the user's program that is being run.

    Args:
        boundary: Code of the function at which the walk ends; what lies beyond is described by `caller`.
        caller: Origin of the call that led to the boundary.
        scope: The module whose forward is running.
        depth: How many frames above this one the walk starts.
    """
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    found: list[tuple[CodeType, int]] = []
    while frame is not None:
        code = frame.f_code
        if code is boundary:
            break
        carries = _is_carrier.get(code.co_filename)
        if carries is None:
            carries = _carries(code.co_filename)
        if not carries:
            found.append((code, frame.f_lasti))
        frame = frame.f_back
    origin = caller
    for code, offset in reversed(found):
        origin = Origin(code, offset, origin, scope)
    if origin is None and scope is not None:
        return Origin(None, module=scope)
    return origin


def user_line(depth: int = 2) -> SourceLine | None:
    """Return the innermost line of the user's program on the stack."""
    frame: FrameType | None = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if not _carries(frame.f_code.co_filename):
            return SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None
