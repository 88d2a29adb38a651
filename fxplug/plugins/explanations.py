"""Who decided what, and why: the values that explain it, and the explanation of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from fxplug.errors import UnknownNameError
from fxplug.passes import order_reasons
from fxplug.plugins.offers import CORE
from fxplug.plugins.options import OptionInfo, describe_options

if TYPE_CHECKING:
    from fxplug.passes import PipelineStep
    from fxplug.plugins.manager import PluginManager
    from fxplug.plugins.pipelines import PipelineEntry
    from fxplug.plugins.settings import Config

__all__ = ["Decision", "PassExplanation", "PassPlace", "configured_decision", "explain_pass"]


@dataclass(frozen=True)
class Decision:
    """What somebody said when they were asked."""

    by: Literal["configuration", "plugin", "tracer", "fxplug"]
    """``"tracer"``: the rule that applies where nobody else has an opinion; ``"fxplug"``: what it knows by itself."""
    answer: Any
    """None for no opinion."""
    name: str = ""
    """The plugin, or what the configuration holds: ``"trace.leaf_modules = 'torch.nn.*'"``."""
    provider: str = ""
    """Distribution and version of a plugin."""
    source: str = ""
    """``"FILE:LINE"`` of what the configuration holds."""

    def __str__(self) -> str:
        if self.by == "plugin":
            return f"plugin {self.name!r} ({self.provider})"
        if self.by == "configuration":
            return f"{self.name} at {self.source}"
        return f"the tracer's own rule: {self.name}" if self.by == "tracer" else f"fxplug itself: {self.name}"


def configured_decision(config: Config, key: str, position: int, answer: Any) -> Decision:
    """Return what an element of a list in the table ``trace`` decides."""
    value = getattr(config.trace, key)[position]
    source = config.source_of(f"trace.{key}.{position}")
    return Decision("configuration", answer, f"trace.{key} = {value!r}", source=str(source))


@dataclass(frozen=True)
class PassPlace:
    """Where a pass stands in a pipeline, and why."""

    pipeline: str
    position: int
    """Counted from 1."""
    total: int
    """How many passes run."""
    listed_by: str
    """Who put it into the pipeline, as a clause."""
    previous: str
    """The pass that runs before it; empty for the first one."""
    after_previous: tuple[str, ...]
    """Why it runs after that one, as clauses."""
    following: str
    """The pass that runs behind it; empty for the last one."""
    before_following: tuple[str, ...]
    """Why it runs before that one, as clauses."""


@dataclass(frozen=True)
class PassExplanation:
    """Who offers a pass, what it takes, and where it runs."""

    name: str
    short_name: str | None
    summary: str
    plugin: str
    """``"core"`` for what fxplug itself offers."""
    distribution: str
    version: str
    phase: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    preserves: tuple[str, ...]
    options: tuple[OptionInfo, ...]
    places: tuple[PassPlace, ...]
    """One for each time that it runs in a pipeline."""
    overrides: tuple[str, ...] = ()
    """What `fxplug.pipeline_overrides` does to it here, as clauses: ``"in 'inference': disabled at FILE:LINE ..."``."""


def explain_pass(name: str, manager: PluginManager, pipeline: str | None = None) -> PassExplanation:
    """Say who offers a pass, and why it stands where it stands in each pipeline.

    Args:
        name: Full or unique short name.
        manager: Its plugins and configuration.
        pipeline: The only pipeline that is looked at.

    Raises:
        UnknownNameError: There is no such pass or pipeline.
        FxplugError: A pipeline cannot be resolved.
    """
    offer = manager.find_pass(name)
    record = offer.record
    names = manager.pipelines()
    if pipeline is not None and pipeline not in names:
        raise UnknownNameError("pipeline", pipeline, names)
    looked_at = [pipeline] if pipeline is not None else names
    return PassExplanation(
        name=offer.name,
        short_name=offer.alias,
        summary=record.summary,
        plugin=offer.plugin,
        distribution=offer.distribution,
        version=offer.version,
        phase=record.phase,
        before=record.before,
        after=record.after,
        preserves=tuple(sorted(record.preserves)),
        options=describe_options(record.options),
        places=tuple(place for other in looked_at for place in _places(offer.name, other, manager)),
        overrides=tuple(
            f"in {other!r}: {override.text}"
            for other in looked_at
            for override in manager.pass_overrides(other)
            if override.name == offer.name
        ),
    )


def _places(name: str, pipeline: str, manager: PluginManager) -> list[PassPlace]:
    steps = manager.resolve_pipeline(pipeline).steps
    reasons = [order_reasons(_entry(first), _entry(second)) for first, second in pairwise(steps)]
    entries = iter(
        entry for entry in manager.pipeline_entries(pipeline) if manager.find_pass(entry.name).name == name
    )
    return [
        PassPlace(
            pipeline,
            index + 1,
            len(steps),
            _listed_by(next(entries), pipeline, manager),
            steps[index - 1].name if index else "",
            reasons[index - 1] if index else (),
            steps[index + 1].name if index + 1 < len(steps) else "",
            reasons[index] if index + 1 < len(steps) else (),
        )
        for index, step in enumerate(steps)
        if step.name == name
    ]


def _entry(step: PipelineStep) -> Any:
    return step.name, step.record


def _listed_by(entry: PipelineEntry, pipeline: str, manager: PluginManager) -> str:
    if entry.origin == "override":
        return f"added at {entry.override}"
    if entry.origin == "configuration":
        return f"listed at {entry.source}"
    if entry.origin == "built-in":
        return f"part of the built-in pipeline {pipeline!r}"
    offer = manager.find_pass(entry.name)
    assert offer.plugin != CORE  # Passes of fxplug are listed.
    return f"joins by itself: its record in {offer.provider} names the pipeline"
