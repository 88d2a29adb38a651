"""What a configuration may say, as plain values that know where they came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Config", "ConfigSource", "PipelineConfig", "PluginsConfig", "Settings", "TraceConfig"]


@dataclass(frozen=True)
class PluginsConfig:
    """Which plugins take part."""

    disable: tuple[str, ...] = ()
    """Plugins or distributions that are not loaded; ``"*"`` = none is."""
    require: tuple[str, ...] = ()
    """Plugins or distributions, with a version range where wanted, without which nothing is done."""
    strict: bool = False
    """Whether a plugin that cannot be loaded is an error instead of a warning."""


@dataclass(frozen=True)
class TraceConfig:
    """How programs are captured."""

    leaf_modules: tuple[str, ...] = ()
    """Globs of modules that stay one node, over class paths (``torch.nn.*``) and qualified names."""
    through_modules: tuple[str, ...] = ()
    """Globs of the same kind: modules whose forward is traced. They prevail over `leaf_modules`."""
    leaf_functions: tuple[str, ...] = ()
    """Functions whose calls stay calls: ``einops.rearrange``, ``mypkg.ops:*``."""
    mode: Literal["symbolic", "shape", "value"] | None = None
    """How `fxplug.trace` treats values unless a call says otherwise. By default as with example inputs, or without."""
    autowrap: bool = False
    """Whether calls of functions that cannot be captured stay calls (see `fxplug.trace`)."""


@dataclass(frozen=True)
class PipelineConfig:
    """A pipeline."""

    passes: tuple[str | dict[str, Any], ...]
    """Names of passes, or tables that hold the ``name`` and the options of the pass."""
    on_error: Literal["raise", "rollback"] = "raise"
    """What follows when a pass fails and was undone: its error is raised, or the other passes still run."""


@dataclass(frozen=True)
class Settings:
    """Everything that a configuration file may say."""

    plugins: PluginsConfig = field(default_factory=PluginsConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
    pipelines: dict[str, PipelineConfig] = field(default_factory=dict[str, PipelineConfig])
    """Pipeline name -> pipeline. One with the name of a built-in pipeline takes its place."""
    backends: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Backend name -> its options."""


@dataclass(frozen=True)
class ConfigSource:
    """Where a value of the configuration came from."""

    file: Path | None = None
    """None for a default."""
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return "default"
        return f"{self.file}:{self.line}" if self.line is not None else str(self.file)


@dataclass(frozen=True)
class Config(Settings):
    """The settings, and where they came from."""

    file: Path | None = None
    """None when there is no configuration."""
    sources: dict[str, ConfigSource] = field(default_factory=dict[str, ConfigSource], compare=False)
    """Dotted key -> where its value stands, for the keys that the file sets."""

    def source_of(self, key: str) -> ConfigSource:
        """Return where the value of a dotted key, such as ``"plugins.disable"``, came from.

        Keys below a value, such as an option in a list of passes, have the source of that value.
        """
        while key:
            source = self.sources.get(key)
            if source is not None:
                return source
            key = key.rpartition(".")[0]
        return ConfigSource()

    def place_of(self, key: str) -> str:
        """Return a dotted key and, where a file sets it, where that is; for messages."""
        source = self.source_of(key)
        return key if source.file is None else f"{key} at {source}"
