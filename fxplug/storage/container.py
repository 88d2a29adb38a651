"""The file itself: a zip archive with a fixed set of members, checked before anything in it is looked at."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import secrets
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from fxplug.storage.faults import Refusal, checked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "FORMAT_VERSION",
    "GRAPHS",
    "MANIFEST",
    "MODULES",
    "WEIGHTS",
    "parse_json",
    "read_container",
    "write_container",
]

FORMAT_VERSION = 1
"""Version of the container that this fxplug writes, and the newest that it reads."""

MANIFEST = "manifest.json"
GRAPHS = "graph.json"
MODULES = "modules.json"
WEIGHTS = "weights.safetensors"

_MEMBERS = (MANIFEST, GRAPHS, MODULES, WEIGHTS)
_MEBIBYTE = 1 << 20
_LARGEST = {MANIFEST: 64 * _MEBIBYTE, GRAPHS: 512 * _MEBIBYTE, MODULES: 128 * _MEBIBYTE}
_LARGEST_RATIO = 250
_FORMAT = "fxplug"
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


# -- JSON


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def parse_json(content: bytes, name: str) -> Any:
    """Return what a JSON member holds.

    Raises:
        Refusal: It is no JSON, has a key twice, or is nested too deeply.
    """
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{name} is no valid JSON: {error}. The file is damaged.") from error


def _to_json(value: Any, *, indent: int | None = None) -> bytes:
    separators = None if indent else (",", ":")
    return json.dumps(value, indent=indent, separators=separators, allow_nan=False).encode("ascii")


# -- writing


def write_container(path: Path, contents: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write a file, replacing an older one only when the new one is complete.

    Args:
        path: Where it goes. The folder must exist.
        contents: Member name -> JSON value, or a `Writer`.
        about: Further entries of the manifest.

    Raises:
        OSError: The file cannot be written; an older one is as it was, and nothing else is left behind.
    """
    # In the same folder, since only there replacing is atomic; with a random name, so that two writers do not
    # meet.
    temporary = path.parent / f".fxplug-{secrets.token_hex(8)}.tmp"
    try:
        with temporary.open("xb") as stream:
            _write_members(stream, contents, about)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_members(stream: BinaryIO, contents: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    members: dict[str, Any] = {}
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in contents.items():
            # Weights hardly shrink, and what is stored as it is can be mapped into memory.
            writer, method = (
                (content, zipfile.ZIP_STORED) if callable(content) else _packed(_to_json(content))
            )
            members[name] = _write_member(archive, name, writer, method)
        manifest = {"format": _FORMAT, "format_version": FORMAT_VERSION, **about, "members": members}
        _write_member(archive, MANIFEST, *_packed(_to_json(manifest, indent=1)))


def _packed(text: bytes) -> tuple[Writer, int]:
    """Return a writer for `text` and how to pack it: compressed, unless it would unpack like a zip bomb."""
    suspicious = len(text) * 2 > len(zlib.compress(text, 1)) * _LARGEST_RATIO

    def write(sink: Sink) -> None:
        sink(text)

    return write, zipfile.ZIP_STORED if suspicious else zipfile.ZIP_DEFLATED


def _write_member(archive: zipfile.ZipFile, name: str, writer: Writer, method: int) -> dict[str, Any]:
    info = zipfile.ZipInfo(name)  # With the fixed date of 1980: equal modules give equal files.
    info.external_attr = 0o644 << 16
    info.compress_type = method
    digest, size = hashlib.sha256(), 0
    with archive.open(info, "w", force_zip64=True) as member:

        def sink(piece: Any) -> None:
            nonlocal size
            digest.update(piece)
            size += len(piece)
            member.write(piece)

        writer(sink)
    return {"sha256": digest.hexdigest(), "size": size}


# -- reading


def read_container(path: Path) -> dict[str, bytes]:
    """Return the members of a file except its manifest, after checking names, sizes, version and checksums.

    Raises:
        Refusal: The file is damaged, no fxplug file, or of a newer version.
        OSError: It cannot be read.
    """
    with path.open("rb") as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                return _read_members(archive)
        except _DAMAGE as error:
            raise Refusal(
                f"it is damaged or not an fxplug file: {error}. Write it again with fxplug.save."
            ) from error


def _read_members(archive: zipfile.ZipFile) -> dict[str, bytes]:
    infos = archive.infolist()
    manifest = _read_manifest(archive, infos)
    _check_members(infos)
    members = checked(manifest.get("members"), dict, "The list of members")
    return {name: _read_checked(archive, name, members.get(name)) for name in _MEMBERS if name != MANIFEST}


def _read_manifest(archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo]) -> dict[str, Any]:
    found = [info for info in infos if info.filename == MANIFEST]
    if len(found) != 1:
        raise Refusal(f"it is a zip archive with {len(found)} {MANIFEST}, so it is not an fxplug file.")
    manifest = parse_json(_read(archive, found[0]), MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise Refusal(f"its {MANIFEST} does not say that it is an fxplug file.")
    fields = cast("dict[str, Any]", manifest)
    version = fields.get("format_version")
    if type(version) is not int or version < 1:
        raise Refusal(f"its format version is {version!r}. The file is damaged.")
    if version > FORMAT_VERSION:
        raise Refusal(
            f"it has format version {version}, and this fxplug reads versions up to {FORMAT_VERSION}. "
            f"Install fxplug {fields.get('fxplug_version')!r} or newer, which wrote it."
        )
    return fields


def _check_members(infos: list[zipfile.ZipInfo]) -> None:
    names = [info.filename for info in infos]
    for name in names:
        if name not in _MEMBERS:
            raise Refusal(f"it has a member named {name!r}, which does not belong into an fxplug file.")
        if names.count(name) > 1:
            raise Refusal(f"it has two members named {name!r}. The file is damaged.")
    for name in _MEMBERS:
        if name not in names:
            raise Refusal(f"its member {name!r} is missing. The file is damaged.")


def _check_size(info: zipfile.ZipInfo) -> None:
    if info.flag_bits & 0x1 or info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise Refusal(
            f"its member {info.filename!r} is encrypted, or packed in a way that fxplug does not use."
        )
    limit = _LARGEST.get(info.filename)
    if limit is None and info.compress_type != zipfile.ZIP_STORED:
        raise Refusal(f"its member {info.filename!r} is compressed, which fxplug never does with weights.")
    if limit is not None and info.file_size > limit:
        raise Refusal(
            f"its member {info.filename!r} has {info.file_size:,} bytes, more than the {limit:,} that are "
            f"allowed."
        )
    if info.file_size > _LARGEST_RATIO * max(info.compress_size, 1):
        raise Refusal(
            f"its member {info.filename!r} unpacks to {info.file_size:,} bytes from {info.compress_size:,}, "
            f"more than {_LARGEST_RATIO} times its size: it looks like a zip bomb."
        )


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    _check_size(info)
    with archive.open(info) as member:
        # A number, so that a member that unpacks to more than it says is cut off while it unpacks.
        content = member.read(info.file_size)
        if len(content) != info.file_size or member.read(1):
            raise Refusal(
                f"its member {info.filename!r} does not have the size that it says. The file is damaged."
            )
    return content


def _read_checked(archive: zipfile.ZipFile, name: str, expected: Any) -> bytes:
    content = _read(archive, archive.getinfo(name))
    stated = checked(expected, dict, f"The checksum of {name!r}").get("sha256")
    if hashlib.sha256(content).hexdigest() != stated:
        raise Refusal(f"the checksum of its member {name!r} is wrong: its content was changed or damaged.")
    return content
