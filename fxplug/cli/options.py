"""Options that several commands have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

__all__ = ["config_option", "json_option", "print_json"]


def config_option(function: Any) -> Any:
    """Give a command the option ``--config``."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Configuration to use instead of fxplug.toml or pyproject.toml.",
    )(function)


def json_option(function: Any) -> Any:
    """Give a command the option ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="As JSON.")(function)


def print_json(data: Any) -> None:
    """Print plain values as JSON."""
    click.echo(json.dumps(data, indent=2))
