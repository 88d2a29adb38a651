"""A quick run: ``python -m benchmarks.smoke``."""

from __future__ import annotations

from benchmarks.modes import SMOKE
from benchmarks.runner import main

if __name__ == "__main__":
    main(SMOKE)
