"""``fxplug cache``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fxplug.cli.data import json_option, print_json
from fxplug.cli.failures import traceback_option
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.terminal import print_table
from fxplug.cli.wording import size_text
from fxplug.errors import ConfigError
from fxplug.lower import ArtefactCache

if TYPE_CHECKING:
    from fxplug.lower import CacheEntry

__all__ = ["cache"]

_folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The cache, instead of the one in the configuration.",
)


@click.group(short_help="What backends compiled and keep for the next time.")
def cache() -> None:
    """Show and empty the cache of compiled engines ([cache] in the configuration)."""


@cache.command("list")
@_folder_option
@json_option
@config_option
@traceback_option
def list_cache(folder: Path | None, config: Path | None, *, as_json: bool) -> None:
    """List the engines that are kept, what was used last being first."""
    kept = _cache_at(folder, config)
    entries = _entries(kept)
    if as_json:
        print_json({"format": "fxplug-cache", "version": 1, "folder": str(kept.folder), "entries": entries})
        return
    rows = [_row(entry) for entry in entries]
    if rows:
        print_table(("key", "backend", "size", "last used", "compiled with"), rows)
        click.echo()
    size = size_text(sum(entry.size for entry in entries))
    click.echo(f"{len(entries)} engines, {size} of {size_text(kept.size_limit)}, in {kept.folder}")


@cache.command("clean")
@_folder_option
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=0,
    metavar="BYTES",
    help="Keep so many bytes of what was used last.  [default: nothing]",
)
@config_option
@traceback_option
def clean_cache(folder: Path | None, keep: int, config: Path | None) -> None:
    """Remove engines that are kept, and whatever is damaged. Files of others in the folder are left alone."""
    kept = _cache_at(folder, config)
    try:
        removed = kept.clean(keep)
    except OSError as error:
        raise _unusable(kept, error) from error
    click.echo(f"{len(removed)} engines removed, {size_text(sum(entry.size for entry in removed))}")


def _cache_at(folder: Path | None, config: Path | None) -> ArtefactCache:
    settings = manager_for(config).config
    found = settings.artefact_cache()
    if folder is not None:
        return ArtefactCache(folder, settings.cache.size_limit)
    if found is None:
        raise ConfigError(
            'Cannot show the cache: the configuration names none. Write folder = "~/.cache/fxplug" into the table '
            "[tool.fxplug.cache], or name one with --folder."
        )
    return found


def _entries(kept: ArtefactCache) -> list[CacheEntry]:
    try:
        return kept.entries()
    except OSError as error:
        raise _unusable(kept, error) from error


def _unusable(kept: ArtefactCache, error: OSError) -> ConfigError:
    return ConfigError(
        f"Cannot use the cache at {str(kept.folder)!r}: {error.strerror or error}. Name a folder that can be read and "
        "written."
    )


def _row(entry: CacheEntry) -> tuple[str, ...]:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    return (
        entry.key[:12],
        entry.backend or "?",
        size_text(entry.size),
        used,
        entry.about or f"damaged: {entry.fault}",
    )
