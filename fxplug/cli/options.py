"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

__all__ = ["config_option"]


def config_option(function: Any) -> Any:
    """Give a command the option ``--config``."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Configuration to use instead of fxplug.toml or pyproject.toml.",
    )(function)
