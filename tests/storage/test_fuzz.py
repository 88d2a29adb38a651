"""Damaged files end in a module or a refusal; tools/fuzz_storage.py makes them, here a slice of those it makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fxplug.errors import StorageError
from fxplug.storage import load

CHECKOUT = Path(__file__).resolve().parents[2]
CORPUS = sorted((CHECKOUT / "tests" / "storage" / "corpus").glob("*.fxplug"))


@pytest.mark.skipif(sys.platform == "win32", reason="measures memory with the module resource")
def test_two_thousand_damaged_files_import_run_and_make_nothing():
    command = [sys.executable, str(CHECKOUT / "tools" / "fuzz_storage.py"), "--count", "2000", "--seed", "2"]
    result = subprocess.run(command, check=False, capture_output=True, text=True)

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("2000 files: ")
    assert " 0 went wrong;" in result.stdout
    # Neither all of them were harmless, nor all of them nonsense.
    loaded, refused = (
        int(result.stdout.split(f" {word}")[0].rpartition(" ")[2]) for word in ("loaded", "refused")
    )
    assert loaded > 50
    assert refused > 1000


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_file_of_the_corpus_is_refused(golden, path, lazy):
    with pytest.raises(StorageError):
        load(path, lazy=lazy, provisions=golden.provisions)
