"""Run every check of the project: install tox in a place of its own, then run its environments side by side.

Needs nothing but Python 3.11 with pip, and no package installed beforehand:

    python3.11 tools/check.py               # everything, as CI does
    python3.11 tools/check.py core lint     # these tox environments only

The exit status is 0 when every environment passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]
_TOX_HOME = _CHECKOUT / ".tox" / ".launcher"
_OLDEST_PYTHON = (3, 11)


def main(environments: list[str]) -> int:
    """Run the tox environments of these names (all of them if none is named) and return the exit status."""
    if sys.version_info < _OLDEST_PYTHON:
        wanted = ".".join(map(str, _OLDEST_PYTHON))
        print(
            f"Cannot run the checks: the tools in constraints.txt need Python {wanted} or later, and this is "
            f"{sys.version.split()[0]}. Run it as: python{wanted} tools/check.py",
            file=sys.stderr,
        )
        return 2
    started = time.monotonic()
    status = _run_tox(_install_tox(), environments)
    verdict = "All checks passed" if status == 0 else f"Some checks FAILED (tox exited with {status})"
    print(f"\n{verdict} after {time.monotonic() - started:.0f} s.")
    return status


def _install_tox() -> Path:
    """Return a Python that has the tox of constraints.txt."""
    python = _TOX_HOME / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        venv.create(_TOX_HOME, with_pip=True, clear=True)
    constraints = str(_CHECKOUT / "constraints.txt")
    subprocess.run(
        [str(python), "-m", "pip", "install", "-qq", "--constraint", constraints, "tox"],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return python


def _run_tox(launcher: Path, environments: list[str]) -> int:
    """Run tox with one environment per core, each printing its whole output when it ends."""
    command = [str(launcher), "-m", "tox", "run-parallel", "--parallel", "auto", "--parallel-no-spinner"]
    if environments:
        command += ["-e", ",".join(environments)]
    # Pythons kept by pyenv are named by path: its shims answer only for the versions that are switched on.
    others = [str(python) for python in sorted(Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python"))]
    if others:
        command += ["--discover", *others]
    return subprocess.run(command, check=False, cwd=_CHECKOUT, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
