"""Checksums of members, and the CRC-32 that a zip archive wants of the weights."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
import zlib
from typing import TYPE_CHECKING

import pytest
import torch
import xxhash
from torch import nn

import fxplug
from fxplug.storage.checksums import checksum_of_version, crc32, new_checksum

if TYPE_CHECKING:
    from pathlib import Path

PIECES = [b"a", os.urandom(1 << 20), b"", b"b" * 100, memoryview(os.urandom(3 << 20))]


def test_files_up_to_version_3_state_another_checksum():
    kinds = [checksum_of_version(version) for version in range(1, fxplug.storage.FORMAT_VERSION + 1)]

    assert kinds == ["sha256", "sha256", "sha256", "xxh3_128", "xxh3_128"]


@pytest.mark.parametrize(("kind", "expected"), [("sha256", hashlib.sha256), ("xxh3_128", xxhash.xxh3_128)])
def test_pieces_count_in_their_order(kind, expected):
    for pieces in (PIECES, PIECES[::-1]):
        checksum = new_checksum(kind)
        for piece in pieces:
            checksum.update(piece)

        whole = b"".join(pieces)
        assert checksum.hexdigest() == expected(whole).hexdigest() == new_checksum(kind, whole).hexdigest()


def test_its_crc_is_that_of_zip_archives():
    check = 0
    for piece in PIECES:
        check = crc32(piece, check)

    assert check == zlib.crc32(b"".join(PIECES))


def large_module() -> fxplug.GraphModule:
    torch.manual_seed(0)
    return fxplug.symbolic_trace(nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 8)))


def test_other_tools_read_the_archive(tmp_path):
    module, path = large_module(), tmp_path / "large.fxplug"
    fxplug.save(module, path)

    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        weights = archive.getinfo("weights.safetensors")
        assert zlib.crc32(archive.read(weights)) == weights.CRC
        assert weights.file_size == weights.compress_size > 4 * 512 * 1024
    again = fxplug.load(path)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


def test_archives_are_the_same_where_there_is_no_fast_crc(tmp_path):
    program = """
import sys
if sys.argv[2] == "without":
    sys.modules["isal"] = sys.modules["isal.isal_zlib"] = None
import torch, fxplug
torch.manual_seed(0)
fxplug.save(fxplug.symbolic_trace(torch.nn.Linear(64, 64)), sys.argv[1])
print(fxplug.storage.checksums.crc32.__module__)
"""

    def write(name: str) -> tuple[Path, str]:
        path = tmp_path / name
        arguments = [sys.executable, "-W", "ignore", "-c", program, str(path), name]
        return path, subprocess.check_output(arguments, text=True).strip()

    (one, fast), (other, plain) = write("with"), write("without")
    assert plain == "zlib" != fast
    assert one.read_bytes() == other.read_bytes()


def test_a_module_can_be_saved_while_the_interpreter_ends(tmp_path):
    program = """
import atexit, sys
import torch, fxplug
module = fxplug.symbolic_trace(torch.nn.Linear(512, 1024))
atexit.register(lambda: fxplug.save(module, sys.argv[1]))
"""
    path = tmp_path / "last.fxplug"
    done = subprocess.run(
        # Torch warns where NumPy is missing.
        [sys.executable, "-W", "ignore", "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    assert fxplug.load(path).weight.shape == (1024, 512)
