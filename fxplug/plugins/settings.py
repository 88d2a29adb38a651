"""What a configuration may say, as plain values that know where they came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fxplug.lower import DEFAULT_SIZE_LIMIT, ArtefactCache
from fxplug.plugins.locations import Key, line_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CacheConfig",
    "Config",
    "ConfigFinding",
    "ConfigSource",
    "PipelineConfig",
    "PluginsConfig",
    "Settings",
    "TraceConfig",
]


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
    """How `fxplug.trace`, `fxplug.optimize` and what captures models like them treat values unless a call says
    otherwise. By default `fxplug.trace` chooses ``value`` with example inputs and ``symbolic`` without, and
    `fxplug.optimize` ``symbolic`` where that is possible and ``value`` elsewhere."""
    autowrap: bool = False
    """Whether calls of functions that cannot be captured stay calls (see `fxplug.trace`)."""
    check: bool = True
    """Whether `fxplug.trace` runs what it captured on the example inputs, too, and compares it with the program."""
    on_error: Literal["raise", "collect"] = "raise"
    """What `fxplug.trace` does at a question that cannot be answered: raise, or go on and raise one error with all."""
    on_mutation: Literal["keep", "error"] = "keep"
    """What follows when a program assigns attributes of modules: put back with a warning, or an error."""
    on_guard_failure: Literal["error", "warn", "ignore", "eager", "recapture"] = "error"
    """What a call of a captured program does when a guard does not hold (see `fxplug.trace`)."""


@dataclass(frozen=True)
class PipelineConfig:
    """A pipeline."""

    passes: tuple[str | dict[str, Any], ...]
    """Names of passes, or tables that hold the ``name`` of the pass, its options, and its limits."""
    on_error: Literal["raise", "rollback", "stop"] = "raise"
    """What follows when a pass fails and was undone: its error is raised, the other passes still run, or none does."""
    time_limit: float | None = None
    """Seconds that each pass may take; one that takes longer is stopped where it edits or computes, and undone."""
    hard_time_limit: float | None = None
    """Seconds after which a pass is ended in any case; each pass runs in a process of its own."""
    verify: Literal["structure", "shape", "numeric", "gradient", "paranoid"] = "structure"
    """What is checked after each pass (see `fxplug.passes.Pipeline`): the graph, or what the module computes, too."""
    rtol: float | None = None
    """How far passes may move a number, relative to it, where values are verified. By default according to dtype."""
    atol: float | None = None
    """The same, absolute."""


@dataclass(frozen=True)
class CacheConfig:
    """Where compiled engines of backends are kept for the next time."""

    folder: str = ""
    """The folder, relative to that of the file, or below ``~``; empty for none. Whoever can write to it decides what
    engines run."""
    size_limit: int = DEFAULT_SIZE_LIMIT
    """How many bytes it may hold; what was not used for the longest time is removed first."""


@dataclass(frozen=True)
class Settings:
    """Everything that a configuration file may say."""

    plugins: PluginsConfig = field(default_factory=PluginsConfig)
    trace: TraceConfig = field(default_factory=TraceConfig)
    pipelines: dict[str, PipelineConfig] = field(default_factory=dict[str, PipelineConfig])
    """Pipeline name -> pipeline. One with the name of a built-in pipeline takes its place."""
    backends: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Backend name -> its options."""
    cache: CacheConfig = field(default_factory=CacheConfig)
    """Where compiled engines of backends are kept for the next time."""


@dataclass(frozen=True)
class ConfigSource:
    """Where a value of the configuration came from."""

    file: Path | None = None
    """None for a default."""
    line: int | None = None
    variable: str = ""
    """The environment variable that prevails over any file."""

    def __str__(self) -> str:
        if self.variable:
            return self.variable
        if self.file is None:
            return "default"
        return f"{self.file}:{self.line}" if self.line is not None else str(self.file)


@dataclass(frozen=True)
class ConfigFinding:
    """Something in the configuration that is wrong, or that probably is not what was meant."""

    severity: Literal["error", "warning"]
    message: str
    """What is wrong, on which named thing, and what to do."""
    source: ConfigSource = field(default_factory=ConfigSource)
    """Where it stands."""
    hides_selection: bool = False
    """Whether it may have said which plugins take part, so that nobody can tell any more which were switched off."""

    def __str__(self) -> str:
        place = "" if self.source == ConfigSource() else f"{self.source}: "
        return f"{place}{self.severity}: {self.message}"


@dataclass(frozen=True)
class Config(Settings):
    """The settings, and where they came from."""

    file: Path | None = None
    """None when there is no configuration."""
    sources: dict[str, ConfigSource] = field(default_factory=dict[str, ConfigSource], compare=False)
    """Dotted key -> where its value stands, for the keys that the file sets."""
    lines: Mapping[Key, int] = field(default_factory=dict[Key, int], compare=False, repr=False)
    """Path of a key, below the tables of fxplug -> its line."""

    def artefact_cache(self) -> ArtefactCache | None:
        """Return the cache of compiled engines, None where there is none."""
        if not self.cache.folder:
            return None
        folder = Path(self.cache.folder).expanduser()
        return ArtefactCache(
            folder if self.file is None else self.file.parent / folder, self.cache.size_limit
        )

    def locate(self, key: Key) -> ConfigSource:
        """Return where a key stands, or else the table or list that it would belong to."""
        return ConfigSource() if self.file is None else ConfigSource(self.file, line_of(self.lines, key))

    def source_of(self, key: str) -> ConfigSource:
        """Return where the value of a dotted key, such as ``"plugins.disable"``, came from.

        A key below a value that the file does not have, such as an option of a pass, has the source of that value.
        """
        while key:
            source = self.sources.get(key)
            if source is not None:
                return source
            key = key.rpartition(".")[0]
        return ConfigSource()

    def place_of(self, key: str, position: int | None = None) -> str:
        """Return a dotted key and, where a file sets it, where that is; for messages.

        Args:
            key: Such as ``"plugins.disable"``.
            position: Of an element, when the value is a list and one of them is meant.
        """
        source = self.source_of(key if position is None else f"{key}.{position}")
        return key if source.file is None else f"{key} at {source}"
