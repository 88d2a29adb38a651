"""``fxplug backends coverage``: which operators a backend runs, found by running them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

import fxplug.testing
from fxplug.cli.data import json_option, print_json
from fxplug.cli.failures import FAILED, traceback_option
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.listings import backends
from fxplug.cli.terminal import print_table
from fxplug.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from fxplug.plugins import BackendOffer

__all__ = ["backends"]


@backends.command("coverage")
@click.argument("name")
@click.option(
    "--operator", "operators", multiple=True, help="aten.add or aten.add.Tensor; by default all. Repeatable."
)
@click.option(
    "--open-batch",
    metavar="OPTION",
    help="The option of the backend that leaves the first size open: dynamic_batch.",
)
@click.option(
    "--without",
    metavar="NOTE",
    multiple=True,
    help="Leave out the cases with this note: 'not finite'. Repeatable.",
)
@click.option("--markdown", is_flag=True, help="As a table for a page of documentation.")
@json_option
@config_option
@traceback_option
def backend_coverage(
    name: str,
    operators: tuple[str, ...],
    open_batch: str | None,
    without: tuple[str, ...],
    config: Path | None,
    *,
    markdown: bool,
    as_json: bool,
) -> None:
    """Run the operator suite on the backend NAME: calls of ATen operators, built, run and compared with eager.

    What the backend refuses stays in PyTorch and is no failure. Exits with 1 if a call that it takes computes something
    else than eager, or raises an error.
    """
    if markdown and as_json:
        raise click.UsageError("--markdown and --json exclude one another.")
    manager = manager_for(config)
    offer, options = manager.find_backend(name), dict(manager.backend_options(name))
    found = fxplug.testing.run_operator_suite(
        offer.create(**options),
        offer.shown_name,
        open_batch=None if open_batch is None else _opened(offer, options, open_batch),
        operators=operators or None,
        outside=dict.fromkeys(without, "cases are left out: " + ", ".join(without)),
    )
    if as_json:
        print_json(found.to_data())
    elif markdown:
        click.echo(found.to_markdown(), nl=False)
    else:
        print_table(("operator", "dtypes", "cells that equal eager", "others"), list(found.rows()))
        click.echo(
            "\n".join(["", *(f"does not apply: {reason}" for reason in found.outside()), f"{found.summary}."])
        )
    if found.wrong:
        sys.exit(FAILED)


def _opened(offer: BackendOffer, options: dict[str, Any], option: str) -> Any:
    known = getattr(offer.record.options, "__dataclass_fields__", {})
    if option not in known:
        raise ConfigError(
            f"Cannot leave the batch open with {option!r}: the backend {offer.shown_name!r} has no such option. It has "
            f"{', '.join(sorted(known)) or 'none'}."
        )
    return offer.create(**{**options, option: True})
