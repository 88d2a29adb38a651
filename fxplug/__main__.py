"""``python -m fxplug``: the command line."""

from __future__ import annotations

import os
import sys


def _leave_working_directory() -> None:
    """Take the working directory off the path, where Python has put it first.

    A file `rich.py` of the user would be taken for the library. fxplug itself is imported already, so it is found
    even in a checkout that was never installed.
    """
    if getattr(sys.flags, "safe_path", False) or not sys.path:
        return
    try:
        here = os.getcwd()
    except FileNotFoundError:  # It was removed.
        return
    if sys.path[0] in {"", here}:
        del sys.path[0]


_leave_working_directory()

from fxplug.cli import main  # noqa: E402 - needs the path above

if __name__ == "__main__":
    main(prog_name="fxplug")
