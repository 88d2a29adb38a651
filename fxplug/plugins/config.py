"""The configuration: where it is found, and how it is read.

The sources, strongest first: an argument; ``FXPLUG_CONFIG`` (a path; empty = no configuration); the nearest
folder, from the working directory upwards, that holds an ``fxplug.toml`` or a ``pyproject.toml`` with the
table ``[tool.fxplug]``. One file counts, files are not merged. In ``fxplug.toml`` the tables stand at the
top: ``[plugins]``, ``[trace]``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fxplug.errors import ConfigError
from fxplug.plugins.locations import line_of
from fxplug.plugins.settings import Config, ConfigSource

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["flag_from_environment", "load_config"]

CONFIG_VARIABLE = "FXPLUG_CONFIG"
STRICT_VARIABLE = "FXPLUG_STRICT"


def load_config(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    start: Path | None = None,
) -> Config:
    """Find, read and validate the configuration.

    Args:
        path: The file to be read, instead of any other.
        environ: Environment variables; by default those of the process.
        start: Where the search upwards begins; by default the working directory.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or says something that fxplug does not understand.
    """
    variables = os.environ if environ is None else environ
    if path is not None:
        return _load_named(Path(path), "")
    named = variables.get(CONFIG_VARIABLE)
    if named is not None:
        return _load_named(Path(named), f" {CONFIG_VARIABLE} names it.") if named else Config()
    for folder in _upwards(start):
        found = _load_from_folder(folder)
        if found is not None:
            return found
    return Config()


def flag_from_environment(environ: Mapping[str, str], variable: str) -> bool | None:
    """Return what a yes-or-no variable says, None when it is not set.

    Raises:
        ConfigError: It says something else.
    """
    text = environ.get(variable, "")
    if not text:
        return None
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off"}:
        return False
    raise ConfigError(f"Cannot read the environment variable {variable}: it is {text!r}. Set it to 1 or 0.")


# -- files ---------------------------------------------------------------------------------------------------


def _upwards(start: Path | None) -> Iterator[Path]:
    try:
        folder = (Path.cwd() if start is None else start).resolve()
    except FileNotFoundError:  # The working directory was removed.
        return
    yield folder
    yield from folder.parents


def _load_named(path: Path, note: str) -> Config:
    text = _read(path, note)
    table = _parse(path, text)
    if path.name != "pyproject.toml":
        return _validate(path, text, table, ())
    if "fxplug" not in _table(table, "tool"):
        raise ConfigError(f"Cannot use the configuration {path}: it has no table [tool.fxplug].{note}")
    return _validate(path, text, table["tool"]["fxplug"], ("tool", "fxplug"))


def _load_from_folder(folder: Path) -> Config | None:
    own = folder / "fxplug.toml"
    project = folder / "pyproject.toml"
    settings = _project_table(project) if project.is_file() else None
    if own.is_file():
        if settings is not None:
            raise ConfigError(
                f"Cannot choose between two configurations: {own} and the table [tool.fxplug] of {project}. "
                f"Keep one of them."
            )
        return _load_named(own, "")
    if settings is None:
        return None
    return _validate(project, _read(project, ""), settings, ("tool", "fxplug"))


def _project_table(path: Path) -> Any:
    text = _read(path, "")
    if "fxplug" not in text:  # Spares the parsing, and the errors in files that do not concern us.
        return None
    return _table(_parse(path, text), "tool").get("fxplug")


def _table(parent: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _read(path: Path, note: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"Cannot read the configuration {path}: {reason}.{note}") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error}. Correct the TOML.") from error


def _validate(path: Path, text: str, table: Any, prefix: tuple[str, ...]) -> Config:
    # pydantic loads only when there is something to validate.
    from fxplug.plugins.validation import validate_settings  # noqa: PLC0415

    def locate(key: tuple[str | int, ...]) -> ConfigSource:
        return ConfigSource(path, line_of(text, (*prefix, *key)))

    settings = validate_settings(table, path, locate)
    sources = {".".join(key): locate(key) for key in _keys(table)}
    return Config(settings.plugins, settings.trace, settings.pipelines, settings.backends, path, sources)


def _keys(table: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _keys(value, (*prefix, name))
        else:
            yield (*prefix, name)
