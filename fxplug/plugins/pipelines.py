"""From the name of a pipeline, or a list of passes, to a pipeline that can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fxplug.errors import ConfigError, FxplugError, PassOrderError, UnknownNameError
from fxplug.passes import BUILTIN_PIPELINES, Pipeline, PipelineStep, order_passes
from fxplug.plugins.offers import CORE
from fxplug.plugins.settings import ConfigFinding, ConfigSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fxplug.plugins.locations import Key
    from fxplug.plugins.offers import OfferTable, PassOffer
    from fxplug.plugins.records import PassRecord
    from fxplug.plugins.settings import Config, PipelineConfig

__all__ = [
    "PassEntry",
    "PipelineEntry",
    "pipeline_entries",
    "pipeline_findings",
    "pipeline_names",
    "resolve_pipeline",
    "validated_options",
]

PassEntry = str | Mapping[str, Any]
"""The name of a pass, or a mapping of ``name`` and its options."""


@dataclass(frozen=True)
class PipelineEntry:
    """Why a pass belongs to a pipeline."""

    entry: PassEntry
    origin: Literal["argument", "configuration", "built-in", "joined"]
    """Who put it there; ``"joined"``: the record of the pass names the pipeline."""
    locate: Callable[[Key], ConfigSource] | None = None
    """Tells where an option stands, or for an empty key the entry itself; None outside of the configuration."""

    @property
    def source(self) -> ConfigSource | None:
        """Where the entry stands."""
        return None if self.locate is None else self.locate(())


def pipeline_names(config: Config) -> list[str]:
    """Return the names of all pipelines, sorted."""
    return sorted({*BUILTIN_PIPELINES, *config.pipelines})


def pipeline_entries(name: str, table: OfferTable[PassRecord], config: Config) -> list[PipelineEntry]:
    """Return what belongs to a pipeline, in listed order.

    Raises:
        UnknownNameError: There is no such pipeline.
    """
    configured = config.pipelines.get(name)
    if configured is not None:
        return [
            PipelineEntry(entry, "configuration", _locator(config, ("pipelines", name, "passes", position)))
            for position, entry in enumerate(configured.passes)
        ]
    if name not in BUILTIN_PIPELINES:
        raise UnknownNameError("pipeline", name, pipeline_names(config))
    built_in = BUILTIN_PIPELINES[name]
    joined = [key for key, offer in table.by_name.items() if _joins(offer, name) and key not in built_in]
    return [
        *(PipelineEntry(key, "built-in") for key in built_in),
        *(PipelineEntry(key, "joined") for key in joined),
    ]


def resolve_pipeline(
    pipeline: str | Sequence[PassEntry], table: OfferTable[PassRecord], config: Config
) -> Pipeline:
    """Return a pipeline whose passes are found, ordered, and have validated options.

    Args:
        pipeline: A name, or the passes themselves.
        table: The passes that are offered.
        config: May define pipelines. One that has the name of a built-in pipeline takes its place, and holds
            the passes that it lists and no others.

    Raises:
        UnknownNameError: There is no such pipeline or pass; the message says where the name stands.
        ConfigError: A pass does not take its options.
        PassOrderError: The passes say contradictory things about their order.
    """
    if not isinstance(pipeline, str):
        return _build("", [_resolve(PipelineEntry(entry, "argument"), table) for entry in pipeline])
    configured = config.pipelines.get(pipeline)
    resolved = [_resolve(entry, table) for entry in pipeline_entries(pipeline, table, config)]
    return _build(pipeline, resolved, configured)


def pipeline_findings(name: str, table: OfferTable[PassRecord], config: Config) -> Iterator[ConfigFinding]:
    """Yield everything that is wrong with a pipeline: names and options of passes, and their order."""
    resolved: list[_Resolved] = []
    for entry in pipeline_entries(name, table, config):
        try:
            resolved.append(_resolve(entry, table))
        except FxplugError as error:
            yield ConfigFinding("error", error.message, entry.source or ConfigSource())
    try:
        _build(name, resolved)
    except PassOrderError as error:
        yield ConfigFinding(
            "error",
            f"In the pipeline {name!r}: {error.message}",
            config.source_of(f"pipelines.{name}.passes"),
        )


_Resolved = tuple["PassOffer", dict[str, Any]]


def _locator(config: Config, place: Key) -> Callable[[Key], ConfigSource]:
    return lambda key: config.locate((*place, *key))


def _joins(offer: PassOffer, pipeline: str) -> bool:
    return offer.plugin != CORE and pipeline in offer.record.pipelines


def _resolve(wanted: PipelineEntry, table: OfferTable[PassRecord]) -> _Resolved:
    entry = wanted.entry
    values = {"name": entry} if isinstance(entry, str) else dict(entry)
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f"Cannot use {entry!r} as a pass: it does not say which one. Give a name, or add 'name'."
        )
    offer = table.find(name, str(wanted.source or ""))
    return offer, validated_options(offer.record.options, values, f"pass {offer.name!r}", wanted.locate)


def validated_options(
    options: type[Any] | None,
    values: Mapping[str, Any],
    what: str,
    locate: Callable[[Key], ConfigSource] | None,
) -> dict[str, Any]:
    """Return the keyword arguments for a factory; see `fxplug.plugins.validation.validate_options`."""
    if options is None and not values:
        return {}
    # pydantic loads only when there is something to validate.
    from fxplug.plugins.validation import validate_options  # noqa: PLC0415

    return validate_options(options, values, what, locate)


def _build(name: str, resolved: Sequence[_Resolved], configured: PipelineConfig | None = None) -> Pipeline:
    order = order_passes([(offer.name, offer.record) for offer, _ in resolved])
    steps = [
        PipelineStep(offer.name, offer.record, options, offer.provider)
        for offer, options in (resolved[position] for position in order)
    ]
    if configured is None:
        return Pipeline(name, steps)
    return Pipeline(
        name,
        steps,
        configured.on_error,
        verify=configured.verify,
        rtol=configured.rtol,
        atol=configured.atol,
    )
