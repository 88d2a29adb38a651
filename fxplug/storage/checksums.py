"""Checksums of the members of a file: they tell what is damaged, so the fastest ones that do are taken.

Who changes a file on purpose states a fitting checksum, whatever it is made with.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import xxhash

try:
    # The same CRC-32 in a fifth of the time.
    from isal.isal_zlib import crc32
except ImportError:  # There is none for this kind of machine.
    from zlib import crc32

__all__ = ["CHECKSUM", "Checksum", "checksum_of_version", "crc32", "new_checksum"]

CHECKSUM = "xxh3_128"
"""What a file states of each member: its XXH3 of 128 bits (https://xxhash.com)."""

_EARLIER = "sha256"
_LAST_WITH_EARLIER = 3


class Checksum(Protocol):
    """Takes in the content of a member piece by piece."""

    def update(self, data: Any, /) -> object:
        """Take in the next piece."""

    def hexdigest(self) -> str:
        """Return the checksum in hexadecimal digits."""
        ...


def checksum_of_version(version: int) -> str:
    """Return which checksum files of a version of the format state."""
    return _EARLIER if version <= _LAST_WITH_EARLIER else CHECKSUM


def new_checksum(kind: str = CHECKSUM, content: Any = b"") -> Checksum:
    """Return a checksum that has taken in `content`.

    Args:
        kind: What `checksum_of_version` returns.
        content: Bytes, or a view of memory.
    """
    return hashlib.sha256(content) if kind == _EARLIER else xxhash.xxh3_128(content)
