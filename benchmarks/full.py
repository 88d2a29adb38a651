"""A thorough run, some minutes long: ``python -m benchmarks.full``."""

from __future__ import annotations

from benchmarks.modes import FULL
from benchmarks.runner import main

if __name__ == "__main__":
    main(FULL)
