"""From the name of a pipeline, or a list of passes, to a pipeline that can run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fxplug.errors import ConfigError, UnknownNameError
from fxplug.passes import BUILTIN_PIPELINES, Pipeline, PipelineStep, order_passes
from fxplug.plugins.offers import CORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxplug.plugins.offers import OfferTable, PassOffer
    from fxplug.plugins.records import PassRecord
    from fxplug.plugins.settings import Config, ConfigSource

__all__ = ["PassEntry", "pipeline_names", "resolve_pipeline", "validated_options"]

PassEntry = str | Mapping[str, Any]
"""The name of a pass, or a mapping of ``name`` and its options."""


def pipeline_names(config: Config) -> list[str]:
    """Return the names of all pipelines, sorted."""
    return sorted({*BUILTIN_PIPELINES, *config.pipelines})


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
        return _build("", [_resolve(entry, table, None) for entry in pipeline])
    configured = config.pipelines.get(pipeline)
    if configured is not None:
        source = config.source_of(f"pipelines.{pipeline}.passes")
        resolved = [_resolve(entry, table, source) for entry in configured.passes]
        return _build(pipeline, resolved, configured.on_error)
    if pipeline not in BUILTIN_PIPELINES:
        raise UnknownNameError("pipeline", pipeline, pipeline_names(config))
    names = list(BUILTIN_PIPELINES[pipeline])
    names += [name for name, offer in table.by_name.items() if _joins(offer, pipeline) and name not in names]
    return _build(pipeline, [_resolve(name, table, None) for name in names])


def _joins(offer: PassOffer, pipeline: str) -> bool:
    return offer.plugin != CORE and pipeline in offer.record.pipelines


def _resolve(
    entry: PassEntry, table: OfferTable[PassRecord], source: ConfigSource | None
) -> tuple[PassOffer, dict[str, Any]]:
    values = {"name": entry} if isinstance(entry, str) else dict(entry)
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f"Cannot use {entry!r} as a pass: it does not say which one. Give a name, or add 'name'."
        )
    offer = table.find(name, "" if source is None else str(source))
    return offer, validated_options(offer.record.options, values, f"pass {offer.name!r}", source)


def validated_options(
    options: type[Any] | None, values: Mapping[str, Any], what: str, source: ConfigSource | None
) -> dict[str, Any]:
    """Return the keyword arguments for a factory; see `fxplug.plugins.validation.validate_options`."""
    if options is None and not values:
        return {}
    # pydantic loads only when there is something to validate.
    from fxplug.plugins.validation import validate_options  # noqa: PLC0415

    return validate_options(options, values, what, source)


def _build(
    name: str, resolved: Sequence[tuple[PassOffer, dict[str, Any]]], on_error: Any = "raise"
) -> Pipeline:
    order = order_passes([(offer.name, offer.record) for offer, _ in resolved])
    steps = [
        PipelineStep(offer.name, offer.record, options, offer.provider)
        for offer, options in (resolved[position] for position in order)
    ]
    return Pipeline(name, steps, on_error)
