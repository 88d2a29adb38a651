"""What runs here: versions and the machine, for reports and for people."""

from __future__ import annotations

import platform
from importlib import metadata

import fxplug

__all__ = ["environment", "installed_version"]


def environment() -> dict[str, str | int]:
    """Return versions and the machine as plain values."""
    import torch  # noqa: PLC0415 - who asks for the version of a library alone does without

    return {
        "fxplug": fxplug.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
