"""Values for programs: ``--json``."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["json_option", "plain_data", "print_json"]


def json_option(function: Any) -> Any:
    """Give a command the option ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="As JSON.")(function)


def print_json(value: Any) -> None:
    """Print a value as JSON; see `plain_data`."""
    click.echo(json.dumps(plain_data(value), indent=2))


def plain_data(value: Any) -> Any:
    """Return a value in the types of JSON: dataclasses as objects, and what JSON does not know as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: plain_data(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain_data(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_data(inner) for inner in cast("list[Any]", value)]
    return str(value)
