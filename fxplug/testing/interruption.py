"""Ending what does not end, while a plugin is checked."""

from __future__ import annotations

import ctypes
import threading
from contextlib import contextmanager, suppress
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
    begun, ended = threading.Lock(), threading.Lock()
    begun.acquire()
    ended.acquire()
    late: list[bool] = []

    def watch() -> None:
        # Starting a thread may take longer than the limit; what is raised then would arrive before anybody expects it.
        begun.acquire()
        wait = seconds
        while not ended.acquire(timeout=wait):
            late.append(True)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_Interruption))
            wait = _AGAIN_SECONDS

    watcher = threading.Thread(target=watch, name="fxplug-check-limit", daemon=True)
    watcher.start()
    try:
        begun.release()
        yield
    except _Interruption:
        pass
    finally:
        while True:
            try:  # It may arrive where the call begins, before anything there can catch it.
                _finish(ended, watcher)
            except _Interruption:
                continue
            break
    if late:
        raise OvertimeError(f"{what} did not end within {seconds:g} s")


def _finish(ended: threading.Lock, watcher: threading.Thread) -> None:
    """End the watch. What was raised and has not arrived yet arrives in here, and not outside.

    To withdraw it instead (by raising nothing) would leave Python 3.11 looking for it for ever, at every call.
    """
    while True:
        try:
            with suppress(RuntimeError):  # Released before.
                ended.release()
            watcher.join()
            for _ in range(2):  # Where a loop begins anew, it arrives.
                pass
        except _Interruption:
            continue
        return
