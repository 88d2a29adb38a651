"""What importing costs, each time in a fresh interpreter."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import fxplug
from benchmarks.report import Figure

if TYPE_CHECKING:
    from benchmarks.modes import Mode

__all__ = ["measure_imports"]

# The folder of fxplug goes to the end of the path, so that a checkout is found and an installed one changes nothing.
_PROGRAM = """
import gc, json, sys, time
sys.path.append({folder!r})
statements = {statements!r}
seconds = []
for statement in statements:
    gc.collect()  # Or what the statement before left behind would be collected at the expense of this one.
    started = time.perf_counter()
    exec(statement)
    seconds.append(time.perf_counter() - started)
print(json.dumps(seconds))
"""

_TORCH = "import torch"
_PROGRAMS = {
    "torch": (_TORCH,),
    "fxplug": (_TORCH, "import fxplug"),
    "first use": (_TORCH, "import fxplug", "fxplug.symbolic_trace"),
}


def measure_imports(mode: Mode) -> list[Figure]:
    """Measure ``import torch`` and what fxplug adds to it: on import, and when a name is first used.

    The cost of a statement is taken inside its process: as the difference of two whole runs it would drown in the
    scatter of ``import torch``.
    """
    samples: dict[str, list[list[float]]] = {name: [] for name in _PROGRAMS}
    for number in range(mode.import_rounds + 1):
        for name, statements in _PROGRAMS.items():
            seconds = _run(statements)
            if number > 0:  # The first round writes the bytecode files.
                samples[name].append(seconds)
    alone = [seconds[0] for runs in samples.values() for seconds in runs]
    added = [seconds[1] for name in ("fxplug", "first use") for seconds in samples[name]]
    first = [seconds[1] + seconds[2] for seconds in samples["first use"]]
    return [
        Figure("import torch", "ms", statistics.median(alone) * 1e3),
        Figure("import fxplug, on top of torch", "ms", statistics.median(added) * 1e3),
        Figure(
            "import fxplug and fxplug.symbolic_trace, on top of torch", "ms", statistics.median(first) * 1e3
        ),
    ]


def _run(statements: tuple[str, ...]) -> list[float]:
    program = _PROGRAM.format(folder=str(Path(fxplug.__file__).resolve().parents[1]), statements=statements)
    # With bytecode files switched off, compiling fxplug's sources would be measured.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    completed = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(completed.stdout)
