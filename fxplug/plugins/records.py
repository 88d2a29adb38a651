"""The values that hooks return and receive, and what the host says about a plugin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fxplug.analyze import DeviceRecord, FlopFormulaRecord
from fxplug.capture import ConstantRecord, TraceContext, TraceEvent
from fxplug.lower import BackendRecord
from fxplug.passes import PassEvent, PassRecord
from fxplug.plugins.refusal import PluginWarning, in_sentences
from fxplug.rewrite import DecompositionRecord
from fxplug.storage import StorageTargetRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.ir.effects import Effect, EffectRule

__all__ = [
    "BackendRecord",
    "CommandRecord",
    "ConstantRecord",
    "DecompositionRecord",
    "DeviceRecord",
    "EffectRecord",
    "FlopFormulaRecord",
    "HookFailure",
    "PassEvent",
    "PassRecord",
    "PluginInfo",
    "PluginStatus",
    "PluginWarning",
    "RecordInfo",
    "ReportContext",
    "ReportSectionRecord",
    "StorageTargetRecord",
    "TraceContext",
    "TraceEvent",
]

PluginStatus = Literal["active", "disabled", "failed", "incompatible"]


@dataclass(frozen=True)
class CommandRecord:
    """Offers a subcommand of the command line."""

    name: str
    """Lower-case words joined by hyphens, e.g. ``"draw"``."""
    factory: Callable[[], Any]
    """Returns the click command. Import click in here, not earlier."""
    summary: str
    """One line for people."""


@dataclass(frozen=True)
class ReportContext:
    """What a section of a report may know."""

    module: GraphModule
    """The module that is reported on. Not to be changed."""
    example_inputs: tuple[Any, ...]
    """Its inputs."""
    data: Mapping[str, Any]
    """The report so far, as ``report.json`` holds it."""
    folder: Path | None = None
    """Where the report is being written. A section may leave files of its own there, under names that are new; None
    where no report is written."""
    observer: Callable[[PassEvent], object] | None = None
    """What ``observer`` of the section's record made, after it heard of every pass; None where nothing was heard."""
    lowered: nn.Module | None = None
    """What a backend made of the module, whose engines `fxplug.lower.lowered_partitions` finds; None without one."""


@dataclass(frozen=True)
class ReportSectionRecord:
    """Offers a section of the report that ``fxplug optimize`` writes."""

    name: str
    """Lower-case words joined by hyphens, e.g. ``"memory-plan"``."""
    factory: Callable[[ReportContext], str | Sequence[Sequence[object]] | None]
    """Returns a text in Markdown; or the rows of a table, the first being its head; or None to leave the section out.
    Import heavy libraries in here, not earlier."""
    summary: str
    """One line for people; the section's title."""
    observer: Callable[[], Callable[[PassEvent], object]] | None = None
    """Makes an observer of the passes, before they run; the factory finds it in its context. For sections that need the
    module as it was behind each pass: a `PassEvent` holds the module itself, which the next pass changes."""


@dataclass(frozen=True)
class EffectRecord:
    """States what calls of one target do besides computing their value."""

    target: Hashable
    """A callable, a method name, or a module class; see `fxplug.ir.EffectRegistry.register_target`."""
    effect: Effect | EffectRule
    """The effect, or a function of (node, called module or None) that returns it, or None."""


@dataclass(frozen=True)
class HookFailure:
    """An error that a plugin raised when one of its hooks was called."""

    hook: str
    reason: str
    """Type and text of the error."""


@dataclass(frozen=True)
class RecordInfo:
    """One thing that a plugin offers."""

    hook: str
    """The hook that returned it."""
    name: str
    """Its full name, or what it is about where it has none."""
    summary: str = ""
    """One line for people."""


@dataclass(frozen=True)
class PluginInfo:
    """What became of one installed plugin."""

    name: str
    """Name of its entry point; the namespace of what it offers."""
    distribution: str
    version: str
    status: PluginStatus
    """``incompatible``: it asks for another fxplug and was not imported; ``failed``: it did not load."""
    reason: str = ""
    """Why it is not active."""
    remedy: str = ""
    """What the user can do about that."""
    hooks: tuple[str, ...] = ()
    """The hooks that it implements."""
    passes: tuple[str, ...] = ()
    """Full names of the passes that it offers."""
    backends: tuple[str, ...] = ()
    """Full names of the backends that it offers."""
    commands: tuple[str, ...] = ()
    """Full names of the commands that it offers."""
    failures: tuple[HookFailure, ...] = ()
    """Errors that its hooks raised since it was loaded."""
    declared_hooks: tuple[str, ...] = ()
    """The hooks that it declares for other plugins."""
    idle_hooks: tuple[str, ...] = ()
    """The hooks that it implements for plugins that take no part."""
    records: tuple[RecordInfo, ...] = ()
    """All that it offers, in the order of the hooks."""
    place: int | None = None
    """Its place in the order of the active plugins, from 1."""
    before: tuple[str, ...] = ()
    """What it declares in ``PLUGIN_BEFORE``."""
    after: tuple[str, ...] = ()
    """What it declares in ``PLUGIN_AFTER``."""
    target: str = ""
    """The module that its entry point names."""
    path: str = ""
    """The file of that module; the folder of the distribution where it was not imported."""
    core_range: str = ""
    """The range of fxplug that its distribution requires; empty when it names none."""
    programs: Mapping[str, str] = field(default_factory=dict[str, str])
    """Programs outside Python that it can use (``PLUGIN_PROGRAMS``) -> what for."""
    error: BaseException | None = field(default=None, compare=False, repr=False)
    """What was raised while it was loaded, with its traceback."""

    @property
    def explanation(self) -> str:
        """Reason and remedy, as sentences; empty for an active plugin."""
        return in_sentences(self.reason, self.remedy)
