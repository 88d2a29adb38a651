"""What backends compiled, kept in a folder for the next time."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fxplug.errors import CacheWarning, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEFAULT_SIZE_LIMIT", "ArtefactCache", "CacheEntry"]

DEFAULT_SIZE_LIMIT = 10_000_000_000
"""How many bytes a cache holds where nothing else is said."""
_MAGIC = b"fxplug-artefact 1\n"
_SUFFIX = ".artefact"
_KEY = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LONGEST_HEADER = 1 << 20
_ABANDONED = 3600.0
"""Seconds after which a file that somebody began to write counts as abandoned."""


@dataclass(frozen=True)
class CacheEntry:
    """One compiled engine."""

    key: str
    backend: str
    about: str
    """With what it was compiled: versions and processor, for people."""
    size: int
    """Of the file, in bytes."""
    used: float
    """When it was last used, in seconds since 1970."""
    fault: str = ""
    """What is wrong with it; empty when nothing is."""


class ArtefactCache:
    """A folder of compiled engines, which processes may share.

    Nothing that goes wrong with it is an error: what cannot be read is compiled again, what cannot be written is not
    kept, and a `CacheWarning` names the file or the folder. A file is there as a whole or not at all.

    Args:
        folder: Made when the first entry is written. Whoever can write to it decides what engines run.
        size_limit: How many bytes it may hold; what was not used for the longest time is removed first.

    Raises:
        ConfigError: The limit is no size.
    """

    def __init__(self, folder: str | os.PathLike[str], size_limit: int = DEFAULT_SIZE_LIMIT) -> None:
        if size_limit < 0:
            raise ConfigError(f"Cannot use a cache of {size_limit} bytes: give a size that is not negative.")
        self.folder = Path(folder).expanduser()
        self.size_limit = size_limit
        self._is_silent = False

    def get(self, key: str) -> bytes | None:
        """Return what is kept under a key, None where there is nothing, or nothing that can be used."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(path, error)
            return None
        try:
            _, artefact = _parse(content, key)
        except ValueError as error:
            warnings.warn(
                f"Cannot use the cached engine {str(path)!r}: {error}. It is compiled again.", CacheWarning, 2
            )
            return None
        with suppress(OSError):  # A folder that can only be read is as good.
            os.utime(path)
        return artefact

    def put(self, key: str, artefact: bytes, *, backend: str, about: str) -> bool:
        """Keep an engine, and remove old ones until the folder is within its limit.

        Args:
            key: See `artefact_key`.
            artefact: What the backend gave.
            backend: Its name.
            about: With what it was compiled, for people.

        Returns:
            Whether it is kept now.
        """
        header = {"key": key, "backend": backend, "about": about, "size": len(artefact)}
        header["sha256"] = hashlib.sha256(artefact).hexdigest()
        content = _MAGIC + json.dumps(header).encode("ascii") + b"\n" + artefact
        if len(content) > self.size_limit:
            return False
        path = self._path(key)
        # In the same folder, where replacing is atomic; with a random name, so that two writers do not meet.
        temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(len(content), path)
            with temporary.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            self._warn(self.folder, error)
            return False
        return True

    def remove(self, key: str) -> None:
        """Remove an entry; it need not be there."""
        with suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    def entries(self) -> list[CacheEntry]:
        """Return what is kept, what was used last being first.

        Raises:
            OSError: The folder cannot be read.
        """
        found = [entry for path, status in self._files() if (entry := _entry(path, status)) is not None]
        return sorted(found, key=lambda entry: (-entry.used, entry.key))

    def clean(self, size_limit: int = 0) -> list[CacheEntry]:
        """Remove entries until no more than so many bytes are left, and whatever cannot be used.

        Args:
            size_limit: By default, nothing is left.

        Returns:
            What was removed.

        Raises:
            OSError: Something cannot be removed.
        """
        self._remove_abandoned()
        removed: list[CacheEntry] = []
        kept = 0
        for entry in self.entries():
            if not entry.fault and kept + entry.size <= size_limit:
                kept += entry.size
                continue
            self._path(entry.key).unlink(missing_ok=True)
            removed.append(entry)
        return removed

    def _path(self, key: str) -> Path:
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"{key!r} is no key of a cache")
        return self.folder / f"{key}{_SUFFIX}"

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files of entries; files of others are left alone."""
        try:
            paths = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            if path.suffix != _SUFFIX or _KEY.fullmatch(path.stem) is None:
                continue
            with suppress(FileNotFoundError):  # Another process may remove it meanwhile.
                yield path, path.stat()

    def _make_room(self, size: int, replaced: Path) -> None:
        self._remove_abandoned()
        found = [(path, status) for path, status in self._files() if path != replaced]
        total = size + sum(status.st_size for _, status in found)
        for path, status in sorted(found, key=lambda pair: pair[1].st_mtime):
            if total <= self.size_limit:
                return
            path.unlink(missing_ok=True)
            total -= status.st_size

    def _remove_abandoned(self) -> None:
        """Remove what processes left behind that ended while they wrote."""
        with suppress(OSError):
            for path in self.folder.glob(".*.tmp"):
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink(missing_ok=True)

    def _warn(self, path: Path, error: OSError) -> None:
        if self._is_silent:  # What is said once about a folder need not be said for each partition.
            return
        self._is_silent = True
        warnings.warn(
            f"Cannot use the cache of compiled engines at {str(path)!r}: {error.strerror or error}. Nothing is kept; "
            "check that the folder can be written and has room, or leave the cache out.",
            CacheWarning,
            stacklevel=3,
        )


def _entry(path: Path, status: os.stat_result) -> CacheEntry | None:
    """Return what the head of a file says; the engine itself is not read, but for its length."""
    try:
        with path.open("rb") as stream:
            head = stream.read(len(_MAGIC)) + stream.readline(_LONGEST_HEADER)
    except FileNotFoundError:
        return None
    except OSError as error:
        return CacheEntry(path.stem, "", "", status.st_size, status.st_mtime, error.strerror or str(error))
    try:
        header = _header(head, path.stem)
        if status.st_size != len(head) + header["size"]:
            raise ValueError("it is truncated or too long")  # noqa: TRY301 - told as the others are
    except ValueError as error:
        return CacheEntry(path.stem, "", "", status.st_size, status.st_mtime, str(error))
    return CacheEntry(path.stem, header["backend"], header["about"], status.st_size, status.st_mtime)


def _parse(content: bytes, key: str) -> tuple[dict[str, Any], bytes]:
    """Return header and engine of a file.

    Raises:
        ValueError: They are not what was written under this key; the message says why.
    """
    end = content.find(b"\n", len(_MAGIC), len(_MAGIC) + _LONGEST_HEADER) + 1
    header = _header(content[:end], key)
    artefact = content[end:]
    if len(artefact) != header["size"]:
        raise ValueError("it is truncated or too long")
    if hashlib.sha256(artefact).hexdigest() != header["sha256"]:
        raise ValueError("its checksum is wrong: it was changed or damaged")
    return header, artefact


def _header(head: bytes, key: str) -> dict[str, Any]:
    if not head.startswith(_MAGIC):
        raise ValueError("it is no file of this version of the cache")
    try:
        header: Any = json.loads(head[len(_MAGIC) :])
    except (ValueError, RecursionError):
        header = None
    kinds = {"key": str, "backend": str, "about": str, "size": int, "sha256": str}
    if not isinstance(header, dict) or any(
        type(cast("dict[str, Any]", header).get(name)) is not kind for name, kind in kinds.items()
    ):
        raise ValueError("its head is damaged")
    if header["key"] != key:
        raise ValueError("it was written for something else")
    return cast("dict[str, Any]", header)
