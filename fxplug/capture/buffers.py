"""Memory that holds numbers and is changed in place: ``bytearray``, ``array.array`` and arrays of NumPy."""

from __future__ import annotations

import sys
from array import array
from typing import Any

__all__ = ["fill_memory", "holds_numbers", "numbers_in"]

_MOST = 1 << 22
"""Bytes; larger memory is taken for data that programs read alone."""
_IN_BYTES = (bytearray, array)


def holds_numbers(value: Any) -> bool:
    """Return whether a value is memory with numbers that a program may change in place, and not too large to copy."""
    if isinstance(value, _IN_BYTES):
        return memoryview(value).nbytes <= _MOST
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, getattr(numpy, "ndarray", ())):
        return False
    return value.flags.writeable and not value.dtype.hasobject and value.nbytes <= _MOST


def numbers_in(value: Any) -> bytes:
    """Return a copy of memory with numbers, for `fill_memory`."""
    return bytes(value) if isinstance(value, bytearray) else value.tobytes()


def fill_memory(value: Any, before: bytes) -> None:
    """Let memory hold the numbers that it held when `numbers_in` returned `before`."""
    if isinstance(value, bytearray):
        value[:] = before
    elif isinstance(value, array):
        del value[:]
        value.frombytes(before)
    else:
        numpy = sys.modules["numpy"]
        numpy.copyto(value, numpy.frombuffer(before, value.dtype).reshape(value.shape))
