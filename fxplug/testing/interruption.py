"""Ending what does not end, while a plugin is checked."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["OvertimeError", "interrupted_after"]

_AGAIN_SECONDS = 1.0


class OvertimeError(Exception):
    """Something took longer than it may."""


class _Interruption(BaseException):
    """Raised in the thread that takes too long."""


@contextmanager
def interrupted_after(seconds: float, what: str) -> Generator[None]:
    """Raise an error in what runs inside when it takes too long: also in a loop of plain Python, in any thread.

    A call that never comes back from C code is not interrupted.

    Args:
        seconds: When, and then again every second while it goes on.
        what: What runs, as the beginning of a sentence.

    Raises:
        OvertimeError: It took longer.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    lock, done, late = threading.Lock(), threading.Event(), threading.Event()

    def watch() -> None:
        wait = seconds
        while not done.wait(wait):
            with lock:
                if not done.is_set():
                    late.set()
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_Interruption))
            wait = _AGAIN_SECONDS

    watcher = threading.Thread(target=watch, name="fxplug-check-limit", daemon=True)
    watcher.start()
    try:
        try:
            yield
        finally:
            with lock:
                done.set()
                # What was raised and has not arrived yet must not arrive outside.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)
            watcher.join()
    except _Interruption:
        pass
    if late.is_set():
        raise OvertimeError(f"{what} did not end within {seconds:g} s")
