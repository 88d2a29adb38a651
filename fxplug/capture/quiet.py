"""What a program says while it is looked at a second time is not said: its text streams and its loggers."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["quiet"]

_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)
_lock = threading.Lock()
_running: list[object] = []
"""One for each thread or task that is quiet now."""
_NAMES = ("stdout", "stderr")
_held: dict[str, _Stream] = {}


class _Stream:
    """A text stream that keeps nothing of what those write who are to be quiet."""

    def __init__(self, beneath: Any) -> None:
        self._beneath = beneath

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        return len(text) if _is_quiet.get() else self._beneath.write(text)

    def writelines(self, lines: Any) -> None:
        """Write texts."""
        if not _is_quiet.get():
            self._beneath.writelines(lines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


class _Logging:
    """Stands in for the method by which loggers hand on what they are told."""

    hand_on = logging.Logger.handle

    @staticmethod
    def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        if not _is_quiet.get():
            _Logging.hand_on(logger, record)


def _handle(self: logging.Logger, record: logging.LogRecord) -> None:
    _Logging.handle(self, record)


@contextmanager
def quiet() -> Generator[None]:
    """Let nothing be heard of what this thread or task prints, logs and warns of; others are heard as ever."""
    token = _is_quiet.set(True)
    mark = object()
    with _lock:
        if not _running:
            _install()
        _running.append(mark)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _is_quiet.reset(token)
        with _lock:
            _running.remove(mark)
            if not _running:
                _remove()


def _install() -> None:
    for name in _NAMES:
        stream = getattr(sys, name)
        if stream is not None:
            _held[name] = _Stream(stream)
            setattr(sys, name, _held[name])
    _Logging.hand_on = logging.Logger.handle
    logging.Logger.handle = _handle


def _remove() -> None:
    for name, stream in _held.items():
        if getattr(sys, name) is stream:  # Not if somebody has put another one there meanwhile.
            setattr(sys, name, vars(stream)["_beneath"])
    _held.clear()
    if logging.Logger.handle is _handle:
        logging.Logger.handle = _Logging.hand_on
