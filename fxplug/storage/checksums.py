"""The SHA-256 of what is written, found beside the writing."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Checksum"]

_LARGE = 1 << 18
"""From so many bytes on, handing a piece to another thread takes less time than it saves."""


class Checksum:
    """A SHA-256 that takes in large pieces in a thread of its own, which ends with the ``with`` statement.

    Hashing and writing both let other threads run. Small pieces need no thread, and none is started for them. Reading
    is so much faster than hashing that it would gain nothing.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the thread, if there is one."""
        if self._thread is not None:
            self._thread.shutdown()

    def update(self, piece: Any) -> None:
        """Take in the next piece, which must stay what and where it is until `wait` or `hexdigest` returns."""
        if len(piece) < _LARGE:
            self.wait()
            self._digest.update(piece)
            return
        try:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "fxplug-checksum")
            self._last = self._thread.submit(self._digest.update, piece)
        except (
            RuntimeError
        ):  # There are no threads, or no more: while the interpreter ends, none can be started.
            self.wait()
            self._digest.update(piece)

    def wait(self) -> None:
        """Return when all pieces are taken in."""
        if self._last is not None:
            self._last.result()
            self._last = None

    def hexdigest(self) -> str:
        """Return the SHA-256 of all pieces in hexadecimal digits."""
        self.wait()
        return self._digest.hexdigest()
