"""The folder that ``fxplug optimize`` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.storage.folders import OutputError
from fxplug.storage.folders import OutputFolder as ResultFolder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FILES", "REPORT_FORMAT", "OutputError", "OutputFolder"]

FILES = ("module.fxplug", "module.py", "report.json", "report.md")
"""What a complete folder holds."""

REPORT_FORMAT = "fxplug-report"
"""The value of ``"format"`` in report.json, by which a folder is recognised as ours."""


class OutputFolder(ResultFolder):
    """The folder with an optimised module and its reports; see `fxplug.storage.folders.OutputFolder`.

    Args:
        path: The folder; missing parents are made.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, FILES, REPORT_FORMAT)
