"""The weights of a file: where each lies, and its bytes, read at once or mapped into memory.

The layout is that of safetensors: eight bytes that say how long the header is, the header in JSON, and the bytes of all
tensors without a gap. It is read here, and not by the safetensors library, since that neither maps a part of a file
nor reads one piece by piece.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import torch

from fxplug.storage.documents import parse_json
from fxplug.storage.faults import Codes, Refusal, checked, entry_fields, places

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.storage.checksums import Checksum

    Progress = Callable[[int, int], object]

__all__ = [
    "ALIGNMENT",
    "LARGEST_HEADER",
    "MOST_DIMENSIONS",
    "NATIVE",
    "Entry",
    "Extent",
    "Weights",
    "bytes_at",
    "memory_of",
    "read_weights",
]

NATIVE = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""How safetensors calls what it knows; others are stored as bytes, and the table of tensors says what they are."""

ALIGNMENT = 64
"""Where the bytes of tensors begin in a file: at a multiple of this, so that they can be mapped as they are."""

LARGEST_HEADER = 100_000_000
"""How long the header may be, as in the safetensors library."""

MOST_DIMENSIONS = 100
"""How many dimensions a tensor may have."""

_ELEMENT = 16
_PIECE = 1 << 20
"""How much is read at once: what fits into a cache is summed up while it is there."""
_STEP = 1 << 24
"""After how many bytes of a weight progress is told of."""
_SMALL = 1 << 16
_RUN = 1 << 20
_DTYPES = {name: dtype for dtype, name in NATIVE.items()}
_FIELDS = frozenset({"dtype", "shape", "data_offsets"})
_NO_FIELDS = frozenset[str]()


@dataclass(frozen=True)
class Extent:
    """A member that is stored as it is: where its bytes lie in the file."""

    start: int
    size: int


class Entry(NamedTuple):
    """What the header of the weights says of one."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


_PLACE = operator.itemgetter(3, 4)
"""Where a weight begins and ends."""


class Weights:
    """What the weights of a file are, and the memory of each.

    Args:
        entries: What the header says, in the order of the bytes.
        blocks: The content of each, in one dimension.
        ready: The numbers of those whose blocks have the dtype that the header says.
    """

    def __init__(self, entries: list[Entry], blocks: list[torch.Tensor], ready: set[int]) -> None:
        keys = [entry.key for entry in entries]
        self._entries = dict(zip(keys, entries, strict=True))
        self._blocks = dict(zip(keys, blocks, strict=True))
        self._ready = {keys[number] for number in ready}
        """Those whose blocks can be given away as they are, once."""

    def keys(self) -> set[str]:
        """Return the names."""
        return set(self._entries)

    def find(self, key: str) -> Entry:
        """Return what is said of a weight.

        Raises:
            Refusal: There is none of that name.
        """
        entry = self._entries.get(key)
        if entry is None:
            raise Refusal(f"the weight {key!r} is missing. The file is damaged.", Codes.WEIGHT)
        return entry

    def whole(self, entry: Entry, stride: tuple[int, ...]) -> torch.Tensor:
        """Return a new tensor that is all of a weight; each time one with the same memory.

        Args:
            entry: The weight.
            stride: Of a dense tensor of its shape.
        """
        key, dtype, shape, _, _ = entry
        block = self._blocks[key]
        if key in self._ready:
            self._ready.discard(key)
            # Most small weights have one dimension. A view would show that there was another tensor.
            return block if len(shape) == 1 else block.resize_(shape)
        return torch.empty(0, dtype=dtype, device="cpu").set_(block.untyped_storage(), 0, shape, stride)

    def memory(self, entry: Entry) -> torch.Tensor:
        """Return a tensor whose storage is the memory of a weight."""
        return self._blocks[entry.key]


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor of ``uint8`` that lies densely on the CPU and outlives them, without NumPy."""
    size = tensor.numel()
    return _memory_at(tensor.data_ptr(), size, _WRITABLE) if size else memoryview(b"")


_WRITABLE = 0x200
"""``PyBUF_WRITE`` of Python's C interface."""
_memory_at: Callable[[int, int, int], memoryview] = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
)(("PyMemoryView_FromMemory", ctypes.pythonapi))
"""Returns so many bytes at an address; an array of ctypes would need a new class for each size."""


def bytes_at(address: int, size: int) -> bytes:
    """Return a copy of so many bytes of the CPU's memory, which a tensor keeps alive meanwhile."""
    return ctypes.string_at(address, size)


def read_weights(
    stream: BinaryIO,
    extent: Extent,
    checksum: Checksum,
    expected: str,
    *,
    lazy: bool,
    progress: Progress | None,
) -> Weights:
    """Return the weights of a file.

    Args:
        stream: The file.
        extent: Where they lie; the file has been found to be that long.
        checksum: A new one of the kind that the file states.
        expected: What it must be, in hexadecimal digits.
        lazy: Map them instead of reading them. The checksum is not verified then.
        progress: Told how many bytes of how many were read.

    Raises:
        Refusal: They are damaged.
        OSError: They cannot be read.
    """
    stream.seek(extent.start)
    head, entries = _read_header(stream, extent.size)
    if lazy:
        return Weights(entries, _map(stream, extent.start + len(head), entries), set())
    checksum.update(head)
    done = len(head)
    blocks: list[torch.Tensor] = []
    ready: set[int] = set()
    for part in _runs(entries):
        run, memory = _allocate(part[-1].stop - part[0].start)
        for start in range(0, len(memory), _PIECE):
            piece = memory[start : start + _PIECE]
            _fill(stream, piece)
            checksum.update(piece)
            stop = start + len(piece)
            if progress is not None and (stop % _STEP == 0 or stop == len(memory)):
                progress(done + stop, extent.size)
        done += len(memory)
        if len(part) == 1:
            blocks.append(run)
        else:
            ready.update(range(len(blocks), len(blocks) + len(part)))
            dtype = part[0].dtype
            sizes = [(one.stop - one.start) // dtype.itemsize for one in part]
            # Each gets memory of its own: a part of another's would be kept, and stored, with all of it.
            blocks += cast("list[torch.Tensor]", torch.split_with_sizes_copy(run.view(dtype), sizes))
    if checksum.hexdigest() != expected:
        raise Refusal(
            "the checksum of its member 'weights.safetensors' is wrong: its content was changed or damaged.",
            Codes.CHANGED,
        )
    return Weights(entries, blocks, ready)


def _runs(entries: list[Entry]) -> list[list[Entry]]:
    """Return weights that are read at once: small ones of one dtype that follow one another, and each large one."""
    runs: list[list[Entry]] = []
    room = -1
    former: torch.dtype | None = None
    for entry in entries:
        _, dtype, _, start, stop = entry
        size = stop - start
        # Copying a large one out of the memory of others would take longer than reading it by itself.
        if size > _SMALL:
            runs.append([entry])
            room = -1
        elif size > room or dtype is not former:
            runs.append([entry])
            room = _RUN - size
        else:
            runs[-1].append(entry)
            room -= size
        former = dtype
    return runs


def _allocate(size: int) -> tuple[torch.Tensor, memoryview]:
    """Return a tensor of so many bytes, and the same bytes as something to read into."""
    # Python would fill a buffer of its own with zeros, which takes longer than reading it.
    block = torch.empty(size, dtype=torch.uint8, device="cpu")
    return block, memory_of(block)


def _fill(stream: BinaryIO, piece: memoryview) -> None:
    position = 0
    while position < len(piece):
        count = cast("Any", stream).readinto(piece[position:])
        if not count:
            raise Refusal("its weights end too early. The file is damaged.", Codes.NO_ARCHIVE)
        position += count


def _map(stream: BinaryIO, start: int, entries: list[Entry]) -> list[torch.Tensor]:
    """Return tensors that lie in the file until they are written to, each with a storage of its own."""
    # Writing to one copies the page: the file is never changed.
    mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY) if entries else None
    blocks: list[torch.Tensor] = []
    for entry in entries:
        size = entry.stop - entry.start
        if not size:
            blocks.append(torch.empty(0, dtype=torch.uint8, device="cpu"))
            continue
        block = torch.frombuffer(mapping, dtype=torch.uint8, offset=start + entry.start, count=size)
        # Bytes may be read as elements of any size. Files of version 1 are aligned to nothing.
        element = _ELEMENT if entry.dtype is torch.uint8 else entry.dtype.itemsize
        blocks.append(block.clone() if block.data_ptr() % element else block)
    return blocks


# -- the header


def _read_header(stream: BinaryIO, size: int) -> tuple[bytes, list[Entry]]:
    prefix = stream.read(min(8, size))
    length = int.from_bytes(prefix, "little")
    if len(prefix) != 8 or length > min(LARGEST_HEADER, size - 8):
        raise _unreadable(f"their header has {length:,} bytes")
    text = stream.read(length)
    entries = _usual_entries(text)
    if entries is None:
        fields = checked(parse_json(text, "the header of the weights"), dict, "The header of the weights")
        metadata = checked(fields.pop("__metadata__", {}), dict, "The notes on the weights")
        if any(type(value) is not str for value in metadata.values()):
            raise _unreadable("their notes are no texts")
        entries = [_entry(key, value) for key, value in fields.items()]
    entries.sort(key=_PLACE)
    position = 0
    for key, _, _, start, stop in entries:
        if start != position:
            raise _unreadable(f"{key!r} does not begin where the one before ends")
        position = stop
    if position != size - 8 - length:
        raise _unreadable(f"they have {size - 8 - length:,} bytes and describe {position:,}")
    return prefix + text, entries


def _usual_entries(text: bytes) -> list[Entry] | None:
    """Return what a header says that is written as fxplug writes most of them: that takes a fraction of reading JSON.

    Returns:
        None for others, and where something is wrong.
    """
    if len(text) > _USUAL_HEADER or not text.isascii():
        return None
    header = text.decode("ascii").rstrip(" ")
    if not (header.startswith(_BEGINNING) and header.endswith("}")):
        return None
    rows = _ENTRY.findall(header, len(_BEGINNING))
    # What was found is all that there is, and nothing twice.
    if sum([len(row[0]) for row in rows]) != len(header) - len(_BEGINNING) - 1:
        return None
    if len({"__metadata__", *(row[1] for row in rows)}) != len(rows) + 1:
        return None
    entries: list[Entry] = []
    shapes: dict[str, tuple[tuple[int, ...], int]] = {}
    for _, key, name, sizes, first, last in rows:
        known = shapes.get(sizes)
        if known is None:
            shape = tuple(map(int, sizes.split(","))) if sizes else ()
            known = shapes[sizes] = shape, math.prod(shape)
        shape, count = known
        dtype, start, stop = _DTYPES.get(name), int(first), int(last)
        if dtype is None or len(shape) > MOST_DIMENSIONS or stop - start != count * dtype.itemsize:
            return None
        entries.append(Entry(key, dtype, shape, start, stop))
    return entries


_USUAL_HEADER = 1 << 22
_BEGINNING = '{"__metadata__":{"format":"pt"}'
_NUMBER = "(?:0|[1-9][0-9]{0,17})"
_ENTRY = re.compile(
    rf'(,"([^"\\\x00-\x1f]+)":{{"dtype":"([A-Z0-9_]+)","shape":\[((?:{_NUMBER}(?:,{_NUMBER})*)?)\],'
    rf'"data_offsets":\[({_NUMBER}),({_NUMBER})\]}})'
)


def _entry(key: str, value: Any) -> Entry:
    fields = entry_fields(value, "An entry of the weights", _FIELDS, _NO_FIELDS)
    name = fields["dtype"]
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise _unreadable(f"{key!r} has the dtype {str(name)[:40]!r}")
    shape = [places(one, 2**62, "A size") for one in checked(fields["shape"], list, "The shape of a weight")]
    offsets = checked(fields["data_offsets"], list, "The place of a weight")
    if len(offsets) != 2 or any(type(one) is not int or one < 0 for one in offsets):
        raise _unreadable(f"{key!r} has no place")
    start, stop = offsets
    if len(shape) > MOST_DIMENSIONS or stop - start != math.prod(shape) * dtype.itemsize:
        raise _unreadable(f"{key!r} does not have as many bytes as its shape and dtype say")
    return Entry(key, dtype, tuple(shape), start, stop)


def _unreadable(reason: str) -> Refusal:
    return Refusal(f"the weights cannot be read: {reason}. The file is damaged.", Codes.WEIGHT)
