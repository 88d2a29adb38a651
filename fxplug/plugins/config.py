"""The configuration: where it is found, and how it is read.

The sources, strongest first: an argument; ``FXPLUG_CONFIG`` (a path; empty = no configuration); the nearest
folder, from the working directory upwards, that holds an ``fxplug.toml`` or a ``pyproject.toml`` with the
table ``[tool.fxplug]``. One file counts, files are not merged. In ``fxplug.toml`` the tables stand at the
top: ``[plugins]``, ``[trace]``.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fxplug.errors import ConfigError
from fxplug.plugins.locations import line_of, lines_of, lines_without
from fxplug.plugins.refusal import PluginWarning
from fxplug.plugins.settings import Config, ConfigFinding, ConfigSource

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fxplug.plugins.locations import Key
    from fxplug.plugins.settings import Settings

__all__ = [
    "CONFIG_VARIABLE",
    "STRICT_VARIABLE",
    "examine_config",
    "flag_from_environment",
    "load_config",
    "toml_value",
]

CONFIG_VARIABLE = "FXPLUG_CONFIG"
STRICT_VARIABLE = "FXPLUG_STRICT"

_TOOL_TABLE = re.compile(r"^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*[\"']?([\w-]+)", re.MULTILINE)
_NEARLY = 0.82
"""How like the name of fxplug a name must be to be taken for it: one letter wrong, missing or too many."""


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
    notes: list[ConfigFinding] = []
    found = _find(path, os.environ if environ is None else environ, start, notes)
    for note in notes:
        warnings.warn(f"{note.source}: {note.message}", PluginWarning, stacklevel=2)
    if found is None:
        return Config()
    # pydantic loads only when there is something to validate.
    from fxplug.plugins.validation import validate_settings  # noqa: PLC0415

    settings = validate_settings(found.table, found.path, found.locate)
    return found.config(settings)


def examine_config(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    start: Path | None = None,
) -> tuple[Config, list[ConfigFinding]]:
    """Find and read the configuration as `load_config` does, and go on behind what is wrong.

    Returns:
        The configuration without what is wrong, and what is wrong.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    notes: list[ConfigFinding] = []
    found = _find(path, os.environ if environ is None else environ, start, notes)
    if found is None:
        return Config(), notes
    from fxplug.plugins.validation import examine_settings  # noqa: PLC0415

    settings, findings = examine_settings(found.table, found.locate, found.forget)
    return found.config(settings), [*notes, *findings]


def toml_value(text: str) -> Any:
    """Return the value that a text is in TOML, or the text itself where it is none."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


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


class _Found:
    """The tables of fxplug in a file.

    Args:
        path: The file.
        text: What is in it.
        table: What TOML gave.
        prefix: The tables around it.
    """

    def __init__(self, path: Path, text: str, table: Any, prefix: tuple[str, ...]) -> None:
        self.path = path
        self.table = table
        depth = len(prefix)
        self._lines = {key[depth:]: line for key, line in lines_of(text).items() if key[:depth] == prefix}

    def locate(self, key: Key) -> ConfigSource:
        """Return where a key stands, or else the table or list that it would belong to."""
        return ConfigSource(self.path, line_of(self._lines, key) or self._lines.get(()))

    def forget(self, key: Key) -> None:
        """Hear that an element of a list is left out."""
        self._lines = lines_without(self._lines, key)

    def config(self, settings: Settings) -> Config:
        """Return settings that were read from here."""
        sources = {".".join(map(str, key)): self.locate(key) for key in _keys(self.table)}
        return Config(
            settings.plugins,
            settings.trace,
            settings.pipelines,
            settings.backends,
            settings.cache,
            self.path,
            sources,
            self._lines,
        )


def _find(
    path: str | Path | None, variables: Mapping[str, str], start: Path | None, notes: list[ConfigFinding]
) -> _Found | None:
    """Return what the sources give, and note tables on the way that were probably meant."""
    if path is not None:
        return _load_named(Path(path), "")
    named = variables.get(CONFIG_VARIABLE)
    if named is not None:
        return _load_named(Path(named), f" {CONFIG_VARIABLE} names it.") if named else None
    for folder in _upwards(start):
        found = _load_from_folder(folder, notes)
        if found is not None:
            return found
    return None


def _upwards(start: Path | None) -> Iterator[Path]:
    try:
        folder = (Path.cwd() if start is None else start).resolve()
    except FileNotFoundError:  # The working directory was removed.
        return
    yield folder
    yield from folder.parents


def _load_named(path: Path, note: str) -> _Found:
    text = _read(path, note)
    table = _parse(path, text)
    if path.name != "pyproject.toml":
        return _Found(path, text, table, ())
    if "fxplug" not in _table(table, "tool"):
        meant = "".join(f" Rename [tool.{name}] if that is meant." for name, _ in _misspelt_tables(text))
        raise ConfigError(f"Cannot use the configuration {path}: it has no table [tool.fxplug].{meant}{note}")
    return _Found(path, text, table["tool"]["fxplug"], ("tool", "fxplug"))


def _load_from_folder(folder: Path, notes: list[ConfigFinding]) -> _Found | None:
    own = folder / "fxplug.toml"
    project = folder / "pyproject.toml"
    text, settings = "", None
    if project.is_file():
        text = _read(project, "")
        notes += [_misspelt(name, ConfigSource(project, line)) for name, line in _misspelt_tables(text)]
        settings = _project_table(project, text)
    if own.is_file():
        if settings is not None:
            raise ConfigError(
                f"Cannot choose between two configurations: {own} and the table [tool.fxplug] of {project}. "
                f"Keep one of them."
            )
        return _load_named(own, "")
    if settings is None:
        return None
    return _Found(project, text, settings, ("tool", "fxplug"))


def _misspelt_tables(text: str) -> Iterator[tuple[str, int]]:
    """Yield name and line of each tool whose name is nearly fxplug's; tools of plugins begin with it and a hyphen."""
    seen = {"fxplug"}
    for match in _TOOL_TABLE.finditer(text):
        name = match[1]
        is_near = SequenceMatcher(None, name.lower(), "fxplug").ratio() > _NEARLY
        if is_near and name not in seen and not name.startswith(("fxplug-", "fxplug_")):
            seen.add(name)
            yield name, text.count("\n", 0, match.start(1)) + 1


def _misspelt(name: str, source: ConfigSource) -> ConfigFinding:
    message = f"the table [tool.{name}] is nobody's that fxplug knows of. Did you mean [tool.fxplug]?"
    return ConfigFinding("warning", message, source)


def _project_table(path: Path, text: str) -> Any:
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


def _keys(value: Any, prefix: Key = ()) -> Iterator[Key]:
    """Yield the keys that have values, and the elements of lists with what is inside them."""
    if isinstance(value, dict):
        if any(isinstance(part, int) for part in prefix):
            yield prefix
        for name, inner in cast("dict[str, Any]", value).items():
            yield from _keys(inner, (*prefix, name))
        return
    yield prefix
    if isinstance(value, list):
        for position, inner in enumerate(cast("list[Any]", value)):
            yield from _keys(inner, (*prefix, position))
