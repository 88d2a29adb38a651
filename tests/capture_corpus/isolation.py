"""Judging programs in another process, which they may end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import fxplug
from capture_corpus.comparison import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

_WORKER = Path(__file__).with_name("worker.py")
_LIMIT = 60
"""Seconds for one program."""


def judge_elsewhere(engine: str, names: Iterable[str], device: str = "cpu") -> dict[str, Verdict]:
    """Return the verdict of each program. One that ends its process is killed; the others go on in a new one.

    Args:
        engine: Who captures them.
        names: Of the programs.
        device: Where their tensors are.
    """
    left, verdicts = list(names), {}
    # That process starts elsewhere, and must find the same fxplug.
    home = str(Path(fxplug.__file__).parents[1])
    paths = os.pathsep.join([home, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    while left:
        done = subprocess.run(
            [sys.executable, str(_WORKER), engine, str(_LIMIT), device],
            input="".join(f"{name}\n" for name in left),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": paths, "FXPLUG_LOAD_PLUGINS": ""},
        )
        for line in done.stdout.splitlines():
            answer = json.loads(line)
            name = answer.pop("name")
            verdicts[name] = Verdict(**answer)
        missing = [name for name in left if name not in verdicts]
        if missing:
            reason = f"ended with status {done.returncode}: {done.stderr[-500:]}"
            if done.returncode >= 0 and len(missing) == len(left):
                raise RuntimeError(f"The worker {reason}")
            verdicts[missing[0]] = Verdict("killed", "", reason)
        left = missing[1:]
    return verdicts
