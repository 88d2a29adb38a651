"""The file itself: a zip archive with a fixed set of members, checked before anything in it is looked at."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import secrets
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from fxplug.ir.collector import paused_collection
from fxplug.storage.checksums import CHECKSUM, checksum_of_version, crc32, new_checksum
from fxplug.storage.documents import check_values, parse_json, to_json
from fxplug.storage.faults import Codes, Refusal, checked
from fxplug.storage.migrations import FORMAT_VERSION, migrate
from fxplug.storage.weights import ALIGNMENT, Extent, Weights, read_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.storage.weights import Progress

__all__ = [
    "GRAPHS",
    "LARGEST",
    "LARGEST_RATIO",
    "MANIFEST",
    "MODULES",
    "WEIGHTS",
    "Contents",
    "read_container",
    "write_container",
]

MANIFEST = "manifest.json"
GRAPHS = "graph.json"
MODULES = "modules.json"
WEIGHTS = "weights.safetensors"

_MEMBERS = (MANIFEST, GRAPHS, MODULES, WEIGHTS)
_MEBIBYTE = 1 << 20
LARGEST = {MANIFEST: 64 * _MEBIBYTE, GRAPHS: 512 * _MEBIBYTE, MODULES: 128 * _MEBIBYTE}
"""How many bytes the members in JSON may have."""
LARGEST_RATIO = 250
"""How many times its packed size a member may have."""
_FORMAT = "fxplug"
_PIECE = 1 << 19
_LEVEL = 1  # Files are weights, mostly: a higher one takes longer than it saves.
_SHORT = 1 << 18
"""Up to how many bytes a member in JSON is stored as it is."""
_RELEASE = re.compile(r"[0-9][A-Za-z0-9.+!_-]{0,60}", re.ASCII)
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_PADDING = 0xD935  # As tools that align Android packages mark theirs.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,  # Seeking to where a damaged directory points.
    struct.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    ValueError,
)

# zipfile decodes names with this codec; looking it up here keeps the import out of every later load.
codecs.lookup("cp437")

Sink = Callable[[Any], Any]
"""Takes in the next piece of a member: bytes, or a view of memory."""
Writer = Callable[[Sink], object]
"""Hands the content of a member to a sink, piece by piece."""


# -- writing


def write_container(path: Path, contents: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write a file, replacing an older one only when the new one is complete.

    Args:
        path: Where it goes. The folder must exist.
        contents: Member name -> JSON value, or a `Writer`.
        about: Further entries of the manifest.

    Raises:
        Refusal: A member would be larger than what `read_container` accepts.
        OSError: The file cannot be written; an older one is as it was, and nothing else is left behind.
    """
    # Where a link leads to is replaced, not the link.
    path = Path(os.path.realpath(path))
    # In the same folder, since only there replacing is atomic; with a random name, so that two writers do not
    # meet.
    temporary = path.parent / f".fxplug-{secrets.token_hex(8)}.tmp"
    try:
        mode = _mode_of(path)
        # Made with no more than its permissions: who may not read the old file cannot read the new one meanwhile.
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode & 0o666)) as stream:
            if path.exists():
                with contextlib.suppress(OSError):  # There are no permissions where it is.
                    temporary.chmod(mode)
            _write_members(stream, contents, about)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _mode_of(path: Path) -> int:
    """Return the permissions of a file; those that a new one asks for where there is none."""
    try:
        return stat.S_IMODE(path.stat().st_mode) & 0o777
    except OSError:
        return 0o666


def _write_members(stream: BinaryIO, contents: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    members: dict[str, Any] = {}
    with zipfile.ZipFile(stream, "w", compresslevel=_LEVEL) as archive:
        for name, content in contents.items():
            members[name] = (
                _write_stored(archive, stream, name, content)
                if callable(content)
                else _write_json(archive, name, content)
            )
        _write_json(
            archive,
            MANIFEST,
            {"format": _FORMAT, "format_version": FORMAT_VERSION, **about, "members": members},
        )


def _padding(position: int, name: str) -> bytes:
    """Return an extra field with which the content of a member whose header is at `position` is aligned."""
    zip64 = 20
    end = position + _LOCAL_HEADER.size + len(name) + zip64 + 4
    size = -end % ALIGNMENT
    return struct.pack("<HH", _PADDING, size) + bytes(size)


def _write_json(archive: zipfile.ZipFile, name: str, content: Any) -> dict[str, Any]:
    """Write a member in JSON, compressed unless it would unpack like a zip bomb."""
    text = to_json(content)
    if len(text) > LARGEST[name]:
        raise Refusal(
            f"{name} would have {len(text):,} bytes, more than the {LARGEST[name]:,} that a file may have. Save the "
            f"parts of the module in files of their own.",
            Codes.TOO_LARGE,
        )
    check_values(text, name)
    # Packing a short one takes longer than it saves: files are weights, mostly.
    suspicious = len(text) <= _SHORT or len(text) * 2 > len(zlib.compress(text, _LEVEL)) * LARGEST_RATIO
    # Of members that are opened by name; others are stored as they are.
    archive.compression = zipfile.ZIP_STORED if suspicious else zipfile.ZIP_DEFLATED
    with archive.open(name, "w", force_zip64=True) as member:
        member.write(text)
    return _stating(archive, name, new_checksum(content=text).hexdigest(), len(text))


def _write_stored(archive: zipfile.ZipFile, stream: BinaryIO, name: str, writer: Writer) -> dict[str, Any]:
    """Write a member as it is: weights hardly shrink, and can be mapped into memory then."""
    info = zipfile.ZipInfo(name)
    info.extra = _padding(stream.tell(), name)
    checksum, check, size = new_checksum(), 0, 0
    buffer = memoryview(bytearray(_PIECE))

    def sink(content: Any) -> None:
        nonlocal check, size
        view = memoryview(content)
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            # A copy if another thread may write to the weights meanwhile: what is written is what was summed up.
            if not piece.readonly and len(sys._current_frames()) > 1:  # pyright: ignore[reportPrivateUsage]
                buffer[: len(piece)] = piece
                piece = buffer[: len(piece)]
            checksum.update(piece)
            check = crc32(piece, check)
            stream.write(piece)
        size += len(content)

    # Past zipfile, whose CRC-32 takes longer than all else: it writes the header, which is told the rest afterwards.
    with archive.open(info, "w", force_zip64=True):
        writer(sink)
    info.CRC, info.file_size, info.compress_size = check, size, size
    end = stream.tell()
    stream.seek(info.header_offset)
    stream.write(info.FileHeader(zip64=True))
    stream.seek(end)
    return _stating(archive, name, checksum.hexdigest(), size)


def _stating(archive: zipfile.ZipFile, name: str, checksum: str, size: int) -> dict[str, Any]:
    # Members have the fixed date of 1980: equal modules give equal files.
    archive.getinfo(name).external_attr = 0o644 << 16
    return {CHECKSUM: checksum, "size": size}


# -- reading


@dataclass(frozen=True)
class Contents:
    """What a file holds, brought up to date and not yet looked at."""

    manifest: dict[str, Any]
    graphs: Any
    """What ``graph.json`` says."""
    modules: Any
    """What ``modules.json`` says."""
    weights: Weights


def read_container(path: Path, *, lazy: bool = False, progress: Progress | None = None) -> Contents:
    """Return what a file holds, after checking names, sizes, version and checksums.

    Args:
        path: The file.
        lazy: Map the weights into memory, unread and without checking their checksum.
        progress: Told how many bytes of the weights were read, and how many there are.

    Raises:
        Refusal: The file is damaged, no fxplug file, or of a newer version.
        OSError: It cannot be read.
    """
    with path.open("rb") as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                manifest, texts, extent, expected = _read_members(archive, stream)
        except _DAMAGE as error:
            raise Refusal(
                f"it is damaged or not an fxplug file: {error}. Write it again with fxplug.save.",
                Codes.NO_ARCHIVE,
            ) from error
        with paused_collection():
            graphs, modules = (parse_json(text, name) for name, text in texts.items())
            migrate(manifest["format_version"], manifest, graphs, modules)
        checksum = new_checksum(checksum_of_version(manifest["format_version"]))
        weights = read_weights(stream, extent, checksum, expected, lazy=lazy, progress=progress)
    return Contents(manifest, graphs, modules, weights)


def _read_members(
    archive: zipfile.ZipFile, stream: BinaryIO
) -> tuple[dict[str, Any], dict[str, bytes], Extent, str]:
    infos = archive.infolist()
    manifest = _read_manifest(archive, stream, infos)
    _check_members(infos)
    members = checked(manifest.get("members"), dict, "The list of members")
    for name in members:
        if name not in _MEMBERS:
            raise Refusal(
                f"its {MANIFEST} lists a member {str(name)[:40]!r} that it has not. The file is damaged."
            )
    kind = checksum_of_version(manifest["format_version"])
    texts = {name: _read_checked(archive, stream, name, members, kind) for name in (GRAPHS, MODULES)}
    checksum, size = _stated(members, WEIGHTS, kind)
    extent = _locate(stream, archive.getinfo(WEIGHTS))
    if extent.size != size:
        raise _wrong_size(WEIGHTS)
    return manifest, texts, extent, checksum


def _read_manifest(
    archive: zipfile.ZipFile, stream: BinaryIO, infos: list[zipfile.ZipInfo]
) -> dict[str, Any]:
    found = [info for info in infos if info.filename == MANIFEST]
    if len(found) != 1:
        raise Refusal(
            f"it is a zip archive with {len(found)} {MANIFEST}, so it is not an fxplug file.",
            Codes.NO_ARCHIVE,
        )
    manifest = parse_json(_read(archive, stream, found[0]), MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise Refusal(f"its {MANIFEST} does not say that it is an fxplug file.", Codes.NO_ARCHIVE)
    fields = cast("dict[str, Any]", manifest)
    version = fields.get("format_version")
    if type(version) is not int or version < 1:
        raise Refusal(f"its format version is {version!r}. The file is damaged.")
    if version > FORMAT_VERSION:
        writer = fields.get("fxplug_version")
        is_release = isinstance(writer, str) and _RELEASE.fullmatch(writer)
        advice = (
            f"Install the one that wrote it, or a newer one: pip install 'fxplug>={writer}'."
            if is_release
            else "Install a newer one: pip install --upgrade fxplug."
        )
        raise Refusal(
            f"it has format version {version}, and this fxplug reads versions up to {FORMAT_VERSION}. {advice}",
            Codes.NEWER,
        )
    return fields


def _check_members(infos: list[zipfile.ZipInfo]) -> None:
    names = [info.filename for info in infos]
    for name in names:
        if name not in _MEMBERS:
            raise Refusal(
                f"it has a member named {name!r}, which does not belong into an fxplug file.",
                Codes.NO_ARCHIVE,
            )
        if names.count(name) > 1:
            raise Refusal(f"it has two members named {name!r}. The file is damaged.", Codes.NO_ARCHIVE)
    for name in _MEMBERS:
        if name not in names:
            raise Refusal(f"its member {name!r} is missing. The file is damaged.", Codes.NO_ARCHIVE)


def _check_size(info: zipfile.ZipInfo) -> None:
    if info.flag_bits & 0x1 or info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise Refusal(
            f"its member {info.filename!r} is encrypted, or packed in a way that fxplug does not use.",
            Codes.NO_ARCHIVE,
        )
    limit = LARGEST.get(info.filename)
    if limit is None and info.compress_type != zipfile.ZIP_STORED:
        raise Refusal(
            f"its member {info.filename!r} is compressed, which fxplug never does with weights.",
            Codes.NO_ARCHIVE,
        )
    if limit is not None and info.file_size > limit:
        raise Refusal(
            f"its member {info.filename!r} has {info.file_size:,} bytes, more than the {limit:,} that are "
            f"allowed.",
            Codes.TOO_LARGE,
        )
    if info.file_size > LARGEST_RATIO * max(info.compress_size, 1):
        raise Refusal(
            f"its member {info.filename!r} unpacks to {info.file_size:,} bytes from {info.compress_size:,}, "
            f"more than {LARGEST_RATIO} times its size: it looks like a zip bomb.",
            Codes.TOO_LARGE,
        )


def _locate(stream: BinaryIO, info: zipfile.ZipInfo) -> Extent:
    """Return where the packed bytes of a member lie.

    Raises:
        Refusal: It is packed in a forbidden way, or reaches beyond the end of the file.
    """
    _check_size(info)
    stream.seek(info.header_offset)
    header = stream.read(_LOCAL_HEADER.size)
    if len(header) != _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise Refusal(
            f"its member {info.filename!r} is not where it should be. The file is damaged.", Codes.NO_ARCHIVE
        )
    _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    start = info.header_offset + len(header) + name_length + extra_length
    if start + info.compress_size > os.fstat(stream.fileno()).st_size:
        raise Refusal(
            f"its member {info.filename!r} reaches beyond its end. The file is truncated.", Codes.NO_ARCHIVE
        )
    return Extent(start, info.compress_size)


def _read(archive: zipfile.ZipFile, stream: BinaryIO, info: zipfile.ZipInfo) -> bytes:
    _locate(stream, info)
    with archive.open(info) as member:
        # A number, so that a member that unpacks to more than it says is cut off while it unpacks.
        content = member.read(info.file_size)
        if len(content) != info.file_size or member.read(1):
            raise _wrong_size(info.filename)
    return content


def _read_checked(
    archive: zipfile.ZipFile, stream: BinaryIO, name: str, members: dict[str, Any], kind: str
) -> bytes:
    content = _read(archive, stream, archive.getinfo(name))
    expected, size = _stated(members, name, kind)
    if len(content) != size:
        raise _wrong_size(name)
    if new_checksum(kind, content).hexdigest() != expected:
        raise Refusal(
            f"the checksum of its member {name!r} is wrong: its content was changed or damaged.",
            Codes.CHANGED,
        )
    return content


def _stated(members: dict[str, Any], name: str, kind: str) -> tuple[str, int]:
    entry = checked(members.get(name), dict, f"The checksum of {name!r}")
    checksum = checked(entry.get(kind), str, f"The checksum of {name!r}")
    return checksum, checked(entry.get("size"), int, f"The size of {name!r}")


def _wrong_size(name: str) -> Refusal:
    return Refusal(
        f"its member {name!r} does not have the size that it says. The file is damaged.", Codes.CHANGED
    )
