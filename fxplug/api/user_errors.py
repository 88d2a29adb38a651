"""Errors that the user's own program raises, in the words of a message."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

__all__ = ["error_text", "error_with_place"]

_NOT_THE_USERS = (str(Path(torch.__file__).resolve().parent), str(Path(__file__).resolve().parents[1]))


def error_text(error: BaseException) -> str:
    """Return type and text of an error, without a full stop."""
    text = str(error).strip().rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def error_with_place(error: BaseException) -> str:
    """Return type and text of an error, and the innermost line of the user's program that led to it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_USERS) and Path(frame.filename).is_file()
    ]
    if not frames:
        return error_text(error)
    line = f" ({frames[-1].line!r})" if frames[-1].line else ""
    return f"{error_text(error)}, at {frames[-1].filename}:{frames[-1].lineno}{line}"
