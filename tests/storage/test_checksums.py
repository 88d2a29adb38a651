"""Checksums of large weights are found beside the writing; what they say is the same."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import fxplug
from fxplug.storage import checksums
from fxplug.storage.checksums import Checksum

LARGE = checksums._LARGE
PIECES = [b"a", os.urandom(LARGE), b"", b"b" * 100, os.urandom(3 * LARGE), os.urandom(LARGE - 1), b"c"]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fxplug-checksum")]


def digest_of(pieces: list[bytes]) -> str:
    with Checksum() as checksum:
        for piece in pieces:
            checksum.update(piece)
        return checksum.hexdigest()


def test_pieces_of_all_sizes_count_in_their_order():
    assert digest_of(PIECES) == hashlib.sha256(b"".join(PIECES)).hexdigest()
    assert digest_of(PIECES[::-1]) == hashlib.sha256(b"".join(PIECES[::-1])).hexdigest()


def test_a_large_piece_is_hashed_in_a_thread_that_ends():
    with Checksum() as checksum:
        checksum.update(b"small")
        assert not threads()
        checksum.update(bytes(LARGE))
        assert len(threads()) == 1
    assert not threads()


def test_waiting_makes_the_memory_of_a_piece_free_again():
    memory = bytearray(8 * LARGE)
    with Checksum() as checksum:
        checksum.update(memory)
        checksum.wait()
        memory[:] = b"x" * len(memory)
        assert checksum.hexdigest() == hashlib.sha256(bytes(8 * LARGE)).hexdigest()


@pytest.mark.parametrize("after", [0, 1])
def test_without_threads_it_is_the_same(monkeypatch, after):
    submit, times = checksums.ThreadPoolExecutor.submit, []

    def refuse(self, *arguments):
        times.append(1)
        if len(times) > after:
            raise RuntimeError("can't start new thread")
        return submit(self, *arguments)

    monkeypatch.setattr(checksums.ThreadPoolExecutor, "submit", refuse)
    assert digest_of(PIECES) == hashlib.sha256(b"".join(PIECES)).hexdigest()
    assert len(times) == 2


def large_module() -> fxplug.GraphModule:
    torch.manual_seed(0)
    return fxplug.symbolic_trace(nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 8)))


def test_a_file_with_large_weights_comes_back(tmp_path):
    module, path = large_module(), tmp_path / "large.fxplug"
    fxplug.save(module, path)
    again = fxplug.load(path)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])


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
