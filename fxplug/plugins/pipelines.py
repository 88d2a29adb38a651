"""From the name of a pipeline, or a list of passes, to a pipeline that can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fxplug.errors import ConfigError, FxplugError, PassOrderError, UnknownNameError
from fxplug.passes import BUILTIN_PIPELINES, Pipeline, PipelineStep, checked_limit, order_passes
from fxplug.plugins.offers import CORE
from fxplug.plugins.overrides import active_overrides
from fxplug.plugins.settings import ConfigFinding, ConfigSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fxplug.plugins.locations import Key
    from fxplug.plugins.offers import OfferTable, PassOffer
    from fxplug.plugins.overrides import PipelineOverrides
    from fxplug.plugins.records import PassRecord
    from fxplug.plugins.settings import Config, PipelineConfig

__all__ = [
    "PASS_SETTINGS",
    "PassEntry",
    "PassOverride",
    "PipelineEntry",
    "pipeline_entries",
    "pipeline_findings",
    "pipeline_names",
    "pipeline_overridden",
    "resolve_pipeline",
    "validated_options",
]

PassEntry = str | Mapping[str, Any]
"""The name of a pass, or a mapping of ``name``, its options, and its limits."""

PASS_SETTINGS = ("time_limit", "hard_time_limit")
"""What an entry may say besides the options of the pass; where a pass has an option of that name, it is the option."""


@dataclass(frozen=True)
class PipelineEntry:
    """Why a pass belongs to a pipeline."""

    entry: PassEntry
    origin: Literal["argument", "configuration", "built-in", "joined", "override"]
    """Who put it there; ``"joined"``: the record of the pass names the pipeline."""
    locate: Callable[[Key], ConfigSource] | None = None
    """Tells where an option stands, or for an empty key the entry itself; None outside of the configuration."""
    override: PipelineOverrides | None = None
    """What added the entry, or changed its options last."""

    @property
    def name(self) -> str:
        """The pass, as the entry names it.

        Raises:
            ConfigError: It does not name any.
        """
        name = self.entry if isinstance(self.entry, str) else self.entry.get("name")
        if not isinstance(name, str):
            raise ConfigError(
                f"Cannot use {self.entry!r} as a pass: it does not say which one. Give a name, or add 'name'."
            )
        return name

    @property
    def place(self) -> str:
        """Where the name of the pass stands, for errors; empty for an argument."""
        return str(self.override or "" if self.origin == "override" else self.source or "")

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

    What `fxplug.pipeline_overrides` says around the call holds.

    Raises:
        UnknownNameError: There is no such pipeline or pass; the message says where the name stands.
        ConfigError: A pass does not take its options.
        PassOrderError: The passes say contradictory things about their order.
    """
    if isinstance(pipeline, str):
        name, listed = pipeline, pipeline_entries(pipeline, table, config)
    else:
        name, listed = "", [PipelineEntry(entry, "argument") for entry in pipeline]
    entries, _ = pipeline_overridden(name, listed, table, config)
    settings = _settings_of(config.pipelines.get(name))
    for override in active_overrides():
        if override.pipeline in {None, name}:
            settings |= override.settings
    return _build(name, [_resolve(entry, table) for entry in entries], settings)


def pipeline_findings(name: str, table: OfferTable[PassRecord], config: Config) -> Iterator[ConfigFinding]:
    """Yield everything that is wrong with a pipeline: names and options of passes, and their order."""
    resolved: list[_Resolved] = []
    for entry in pipeline_entries(name, table, config):
        try:
            resolved.append(_resolve(entry, table))
        except FxplugError as error:
            yield ConfigFinding("error", error.message, entry.source or ConfigSource())
    try:
        _build(name, resolved, {})
    except PassOrderError as error:
        yield ConfigFinding(
            "error",
            f"In the pipeline {name!r}: {error.message}",
            config.source_of(f"pipelines.{name}.passes"),
        )


class _Resolved(NamedTuple):
    """A pass that takes part."""

    offer: PassOffer
    options: dict[str, Any]
    settings: dict[str, Any]
    """What the entry says of `PASS_SETTINGS`."""


def _locator(config: Config, place: Key) -> Callable[[Key], ConfigSource]:
    return lambda key: config.locate((*place, *key))


def _joins(offer: PassOffer, pipeline: str) -> bool:
    return offer.plugin != CORE and pipeline in offer.record.pipelines


def _settings_of(configured: PipelineConfig | None) -> dict[str, Any]:
    if configured is None:
        return {}
    return {
        entry.name: getattr(configured, entry.name) for entry in fields(configured) if entry.name != "passes"
    }


def _resolve(wanted: PipelineEntry, table: OfferTable[PassRecord]) -> _Resolved:
    offer = table.find(wanted.name, wanted.place)
    values = {} if isinstance(wanted.entry, str) else dict(wanted.entry)
    values.pop("name", None)
    options = offer.record.options
    own = {entry.name for entry in fields(options)} if options is not None else set()
    said = {key: values.pop(key) for key in PASS_SETTINGS if key in values and key not in own}
    what = f"pass {offer.name!r}" + (f" (given at {wanted.override})" if wanted.override is not None else "")
    place = f" at {wanted.source}" if wanted.source is not None and wanted.source.file is not None else ""
    settings = {key: checked_limit(value, f"{key} of {what}{place}") for key, value in said.items()}
    return _Resolved(offer, validated_options(options, values, what, wanted.locate), settings)


# -- overrides -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PassOverride:
    """What an override does to a pass of a pipeline."""

    name: str
    """Full name of the pass."""
    text: str
    """As a clause: ``"disabled at FILE:LINE in pipeline_overrides(...)"``."""


def pipeline_overridden(
    name: str, listed: Sequence[PipelineEntry], table: OfferTable[PassRecord], config: Config
) -> tuple[list[PipelineEntry], list[PassOverride]]:
    """Return what belongs to a pipeline once it is overridden, and what the overrides that hold here did.

    Args:
        name: The pipeline; empty for a list of passes.
        listed: What belongs to it otherwise.
        table: The passes that are offered.
        config: May define pipelines.

    Raises:
        UnknownNameError: An override names a pipeline or a pass that does not exist.
        ConfigError: An override changes options of a pass that the pipeline it names does not hold.
    """
    entries = list(listed)
    done: list[PassOverride] = []
    for override in active_overrides():
        if override.pipeline is not None and override.pipeline not in pipeline_names(config):
            raise UnknownNameError(
                "pipeline", override.pipeline, pipeline_names(config), note=f"The name stands at {override}."
            )
        if override.pipeline in {None, name}:
            entries = _apply(override, entries, table, done)
    return entries, done


def _apply(
    override: PipelineOverrides,
    entries: Sequence[PipelineEntry],
    table: OfferTable[PassRecord],
    done: list[PassOverride],
) -> list[PipelineEntry]:
    disabled = {table.find(name, str(override)).name for name in override.disable}
    changed = {table.find(name, str(override)).name: values for name, values in override.options.items()}
    kept: list[PipelineEntry] = []
    seen: set[str] = set()
    for entry in entries:
        name = table.find(entry.name, entry.place).name
        seen.add(name)
        if name in disabled:
            done.append(PassOverride(name, f"disabled at {override}"))
        elif name in changed:
            given = ", ".join(f"{key} = {value!r}" for key, value in changed[name].items())
            done.append(PassOverride(name, f"{given or 'nothing'} set at {override}"))
            kept.append(_with_options(entry, changed[name], override))
        else:
            kept.append(entry)
    absent = [name for name in changed if name not in seen]
    if absent and override.pipeline is not None:
        raise ConfigError(
            f"Cannot set options of pass {absent[0]!r} at {override}: the pipeline {override.pipeline!r} does not hold "
            "it. Add the pass with its options: add=[{'name': ..., ...}]."
        )
    added = [PipelineEntry(entry, "override", override=override) for entry in override.add]
    done += [
        PassOverride(table.find(entry.name, entry.place).name, f"added at {override}") for entry in added
    ]
    return [*kept, *added]


def _with_options(
    entry: PipelineEntry, values: Mapping[str, Any], override: PipelineOverrides
) -> PipelineEntry:
    former = {"name": entry.entry} if isinstance(entry.entry, str) else dict(entry.entry)
    locate = entry.locate

    def located(key: Key) -> ConfigSource:
        return ConfigSource() if locate is None or (key and key[0] in values) else locate(key)

    return replace(
        entry,
        entry={**former, **values, "name": entry.name},
        locate=None if locate is None else located,
        override=override,
    )


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


def _build(name: str, resolved: Sequence[_Resolved], settings: Mapping[str, Any]) -> Pipeline:
    order = order_passes([(found.offer.name, found.offer.record) for found in resolved])
    steps = [
        PipelineStep(
            found.offer.name, found.offer.record, found.options, found.offer.provider, **found.settings
        )
        for found in (resolved[position] for position in order)
    ]
    return Pipeline(name, steps, **settings)
