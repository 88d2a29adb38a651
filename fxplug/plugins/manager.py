"""The plugin manager: one method for everything that the rest of fxplug wants to know of plugins."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from fxplug.errors import PluginError, UnknownNameError, did_you_mean
from fxplug.lower import ConverterRecord
from fxplug.plugins.backend_options import backend_findings, backend_options
from fxplug.plugins.call_log import CALL_LOG_VARIABLE, switch_on_call_log
from fxplug.plugins.config import STRICT_VARIABLE, flag_from_environment
from fxplug.plugins.discovery import PluginCandidate, core_version, discover
from fxplug.plugins.hook_table import owned_prefix
from fxplug.plugins.inspection import describe_plugin
from fxplug.plugins.loading import LoadedPlugin, PluginLoader
from fxplug.plugins.offers import (
    CORE,
    BackendOffer,
    CommandOffer,
    DeviceOffer,
    Offer,
    OfferTable,
    PassOffer,
    ReportSectionOffer,
)
from fxplug.plugins.pipelines import (
    PassEntry,
    PassOverride,
    PipelineEntry,
    pipeline_entries,
    pipeline_findings,
    pipeline_names,
    pipeline_overridden,
    resolve_pipeline,
)
from fxplug.plugins.policy import create_policy, first_answer, observer
from fxplug.plugins.record_checks import cost_fault, decomposition_fault
from fxplug.plugins.records import (
    BackendRecord,
    CommandRecord,
    ConstantRecord,
    DecompositionRecord,
    DeviceRecord,
    EffectRecord,
    FlopFormulaRecord,
    PassEvent,
    PassRecord,
    PluginInfo,
    PluginWarning,
    ReportSectionRecord,
)
from fxplug.plugins.registration import FAILURES, Implementation, blaming
from fxplug.plugins.requirements import check_required, requirement_errors
from fxplug.plugins.selection import Selection
from fxplug.plugins.settings import Config, ConfigFinding
from fxplug.storage import ProvidedConstant, ProvidedTarget, Provisions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fxplug.capture import TracePolicy
    from fxplug.execute import GraphModule
    from fxplug.passes import Pipeline
    from fxplug.plugins.answers import AnswerLog
    from fxplug.plugins.policy import Implementations

__all__ = ["PluginManager"]

RecordT = TypeVar("RecordT", PassRecord, BackendRecord, CommandRecord, DeviceRecord, ReportSectionRecord)


class PluginManager:
    """The plugins of one selection: loaded, ordered, and never changed afterwards.

    Everything happens when the manager is made: installed plugins are found by their metadata, selected,
    imported, checked and asked what they offer. A plugin that fails is undone and skipped, with a
    `PluginWarning`.

    Args:
        config: The configuration; by default an empty one (see `load_config`).
        load: Plugins that are loaded, and no others.
        disable: Plugins that are not loaded.
        strict: Whether a plugin that cannot be loaded is an error; by default what ``FXPLUG_STRICT`` and then
            the configuration say.
        candidates: The plugins there are; by default those that are installed. An empty list refuses
            discovery.
        environ: Environment variables; by default those of the process.
        version: The version of fxplug that plugins must accept; by default the running one.

    Raises:
        UnknownNameError: A selection names a plugin that is not installed.
        ConfigError: The selection or the required plugins cannot be understood.
        PluginError: A required plugin is not active, or (strict) a plugin failed.
    """

    def __init__(
        self,
        *,
        config: Config | None = None,
        load: Iterable[str] | None = None,
        disable: Iterable[str] = (),
        strict: bool | None = None,
        candidates: Sequence[PluginCandidate] | None = None,
        environ: Mapping[str, str] | None = None,
        version: str | None = None,
    ) -> None:
        self.config = config if config is not None else Config()
        """The configuration it was made with."""
        variables = os.environ if environ is None else environ
        self.strict = _is_strict(variables, self.config) if strict is None else strict
        """Whether failures of plugins are errors."""
        found = sorted(discover() if candidates is None else candidates, key=lambda candidate: candidate.name)
        selection = Selection(self.config, variables, load, disable)
        selection.check_names(found)
        logs_calls = bool(flag_from_environment(variables, CALL_LOG_VARIABLE))
        if logs_calls:
            switch_on_call_log()
        running = core_version() if version is None else version
        self._loader = PluginLoader(found, selection, running, logs_calls=logs_calls)
        self._active = self._loader.load()
        self._report()
        check_required(self.config, self._loader.plugins)
        self._note = self._inactive_note()
        self._passes = self._table("pass", "fxplug_register_passes", PassRecord)
        self._backends = self._table("backend", "fxplug_register_backends", BackendRecord)
        self._commands = self._table("command", "fxplug_register_commands", CommandRecord)

    # -- plugins ---------------------------------------------------------------------------------------------

    def plugin_infos(self) -> list[PluginInfo]:
        """Return what became of every installed plugin, sorted by name."""
        return [describe_plugin(plugin, self._active) for plugin in self._loader.plugins]

    def plugin_info(self, name: str) -> PluginInfo:
        """Return what became of one plugin.

        Args:
            name: Its name or that of its distribution.

        Raises:
            UnknownNameError: It is not installed.
        """
        found = [plugin for plugin in self._loader.plugins if plugin.candidate.is_called(name)]
        if found:
            # Where several have the name, one at most takes part.
            return describe_plugin(
                next((plugin for plugin in found if plugin.is_active), found[0]), self._active
            )
        raise UnknownNameError("plugin", name, [plugin.candidate.name for plugin in self._loader.plugins])

    def _report(self) -> None:
        refused = [plugin for plugin in self._loader.plugins if plugin.error is not None]
        for plugin in refused:
            if self.strict and plugin.error is not None:
                raise plugin.error
            warnings.warn(
                f"Plugin {plugin.title} is skipped: {plugin.explanation}", PluginWarning, stacklevel=3
            )

    def _inactive_note(self) -> str:
        inactive = [
            f"{plugin.candidate.name!r} ({plugin.status}: {plugin.reason})"
            for plugin in self._loader.plugins
            if not plugin.is_active
        ]
        return f"Installed but not active: {', '.join(inactive)}." if inactive else ""

    # -- offers ----------------------------------------------------------------------------------------------

    def _table(self, kind: str, hook: str, record: type[RecordT]) -> OfferTable[RecordT]:
        return OfferTable(kind, self._offers(hook, record), self._note)

    @cached_property
    def _devices(self) -> OfferTable[DeviceRecord]:
        return self._table("device", "fxplug_register_devices", DeviceRecord)

    @cached_property
    def _report_sections(self) -> OfferTable[ReportSectionRecord]:
        return self._table("report section", "fxplug_register_report_sections", ReportSectionRecord)

    def _offers(self, hook: str, kind: type[RecordT]) -> list[Offer[RecordT]]:
        pairs = self._loader.records(hook, self._active)
        # What fxplug itself offers is listed first.
        ordered = sorted(pairs, key=lambda pair: pair[0] is not self._loader.core)
        return [
            Offer(
                record.name if plugin is self._loader.core else f"{plugin.candidate.name}:{record.name}",
                record,
                plugin.candidate.name,
                plugin.candidate.distribution,
                plugin.candidate.version,
            )
            for plugin, record in ordered
            if isinstance(record, kind)
        ]

    def passes(self) -> Mapping[str, PassOffer]:
        """Return every pass by its full name: those of fxplug first, then those of the plugins in order."""
        return self._passes.by_name

    def find_pass(self, name: str) -> PassOffer:
        """Return the pass that a full or unique short name means.

        Raises:
            UnknownNameError: There is none; the message offers the nearest names.
            PluginConflictError: Several plugins offer the short name.
        """
        return self._passes.find(name)

    def backends(self) -> Mapping[str, BackendOffer]:
        """Return every backend by its full name."""
        return self._backends.by_name

    def find_backend(self, name: str) -> BackendOffer:
        """Return the backend that a full or unique short name means; raises as `find_pass` does."""
        return self._backends.find(name)

    def commands(self) -> Mapping[str, CommandOffer]:
        """Return every command of plugins by its full name."""
        return self._commands.by_name

    def find_command(self, name: str) -> CommandOffer:
        """Return the command that a full or unique short name means; raises as `find_pass` does."""
        return self._commands.find(name)

    def devices(self) -> Mapping[str, DeviceOffer]:
        """Return every device by its full name."""
        return self._devices.by_name

    def find_device(self, name: str) -> DeviceOffer:
        """Return the device that a full or unique short name means; raises as `find_pass` does."""
        return self._devices.find(name)

    def report_sections(self) -> Mapping[str, ReportSectionOffer]:
        """Return every section of a report by its full name."""
        return self._report_sections.by_name

    def pipeline_entries(self, name: str, config: Config | None = None) -> list[PipelineEntry]:
        """Return what belongs to a pipeline and why, in listed order; raises as `resolve_pipeline` does."""
        return self._overridden(name, config)[0]

    def pass_overrides(self, name: str, config: Config | None = None) -> list[PassOverride]:
        """Return what `fxplug.pipeline_overrides` does here to passes of a pipeline.

        Raises:
            FxplugError: As `resolve_pipeline` does.
        """
        return self._overridden(name, config)[1]

    def _overridden(self, name: str, config: Config | None) -> tuple[list[PipelineEntry], list[PassOverride]]:
        settings = config or self.config
        listed = pipeline_entries(name, self._passes, settings)
        return pipeline_overridden(name, listed, self._passes, settings)

    def config_findings(self, config: Config | None = None) -> list[ConfigFinding]:
        """Return what is wrong with the required plugins, pipelines and backends of a configuration."""
        settings = config or self.config
        findings = [
            ConfigFinding("error", error.message, settings.source_of(f"plugins.require.{position}"))
            for position, error in requirement_errors(settings, self._loader.plugins)
        ]
        for name in self.pipelines(settings):
            findings += pipeline_findings(name, self._passes, settings)
        return findings + list(backend_findings(self._backends, settings))

    def effects_by_plugin(self) -> list[tuple[PluginInfo, EffectRecord]]:
        """Return what plugins say about effects, in order, each with who says it."""
        hook = "fxplug_register_effects"
        return [
            (describe_plugin(plugin, self._active), record)
            for plugin, record in self._loader.records(hook, self._active)
        ]

    # -- what is said about calls and values ----------------------------------------------------------------

    def effect_records(self) -> tuple[EffectRecord, ...]:
        """Return what plugins say about effects, in order."""
        return tuple(record for _, record in self._loader.records("fxplug_register_effects", self._active))

    def decompositions(self) -> tuple[DecompositionRecord, ...]:
        """Return how calls break into others: what plugins say, in order, then what fxplug itself says."""
        hook = "fxplug_register_decompositions"
        return tuple(
            record
            if plugin is self._loader.core
            else replace(record, function=self._blamed(hook, plugin, record.function, decomposition_fault))
            for plugin, record in self._loader.records(hook, self._active)
        )

    def flop_formulas(self) -> tuple[FlopFormulaRecord, ...]:
        """Return what calls cost: what plugins say, in order, then what fxplug itself says."""
        hook = "fxplug_register_flop_formulas"
        return tuple(
            record
            if plugin is self._loader.core
            else replace(record, formula=self._blamed(hook, plugin, record.formula, cost_fault))
            for plugin, record in self._loader.records(hook, self._active)
        )

    def constants(self) -> tuple[ConstantRecord, ...]:
        """Return of which types values are constants, in order."""
        return tuple(record for _, record in self._loader.records("fxplug_register_constants", self._active))

    def provisions(self) -> Provisions:
        """Return what plugins bring to files, for `fxplug.storage.save` and `fxplug.storage.load`."""
        targets = self._loader.records("fxplug_register_storage_targets", self._active)
        constants = self._loader.records("fxplug_register_constants", self._active)
        return Provisions(
            tuple(ProvidedTarget(record, *_identity(plugin)) for plugin, record in targets),
            tuple(ProvidedConstant(record, *_identity(plugin)) for plugin, record in constants),
            {
                plugin.candidate.name: plugin.candidate.provider
                for plugin in self._active
                if plugin.candidate.name != CORE
            },
        )

    def _blamed(
        self,
        hook: str,
        plugin: LoadedPlugin,
        function: Callable[..., Any],
        fault: Callable[[Any, tuple[Any, ...], dict[str, Any]], str | None],
    ) -> Callable[..., Any]:
        candidate = plugin.candidate
        implementation = Implementation(hook, candidate.name, candidate.provider, function, plugin.failures)
        return blaming(implementation, fault)

    def represents(self) -> bool:
        """Return whether a plugin takes part in `represent`."""
        return any(
            implementation.plugin != CORE for implementation in self._implementations("fxplug_represent")
        )

    def represent(self, graph_module: GraphModule, format: str) -> str | bytes | None:  # noqa: A002
        """Return a module in a format, as the first one has it who can; None when nobody can.

        Raises:
            PluginError: A plugin failed, or gave something else than text or bytes.
        """
        ask = first_answer(self._implementations("fxplug_represent"), _is_text, "text, bytes or None")
        return ask(graph_module, format)

    def pipelines(self, config: Config | None = None) -> list[str]:
        """Return the names of all pipelines, built-in and configured."""
        return pipeline_names(config or self.config)

    def resolve_pipeline(self, pipeline: str | Sequence[PassEntry], config: Config | None = None) -> Pipeline:
        """Return a pipeline that can run.

        Args:
            pipeline: The name of a configured or built-in one, or the passes: names, or mappings of ``name``
                and options.
            config: Instead of the manager's own.

        Raises:
            UnknownNameError: A pipeline or pass does not exist.
            PluginConflictError: A short name means several passes.
            ConfigError: An option is unknown or has a bad value; the message names key, file and pass.
            PassOrderError: The declared order has a cycle.
        """
        return resolve_pipeline(pipeline, self._passes, config or self.config)

    def backend_options(
        self, name: str, given: Mapping[str, Any] | None = None, config: Config | None = None
    ) -> dict[str, Any]:
        """Return the validated options of a backend: those given, over those of the configuration.

        Args:
            name: Full or short name of the backend; the configuration may use either too.
            given: Options that prevail.
            config: Instead of the manager's own.

        Raises:
            UnknownNameError: The backend does not exist.
            ConfigError: An option is unknown or has a bad value; the message names key, file and backend.
        """
        return backend_options(name, given or {}, self._backends, config or self.config)

    # -- hooks -----------------------------------------------------------------------------------------------

    def trace_policy(self, config: Config | None = None, log: AnswerLog | None = None) -> TracePolicy:
        """Return the answers of configuration and plugins to the questions of a tracer.

        A question to which nobody has an answer is None in the policy, and costs nothing.

        Args:
            config: Instead of the manager's own.
            log: Told of every answer of a plugin.
        """
        if log is not None:
            return self._policy(log.listening(self._implementations), config or self.config)
        if config is None or config is self.config:
            return self._own_policy
        return self._policy(self._implementations, config)

    @cached_property
    def _own_policy(self) -> TracePolicy:
        return self._policy(self._implementations, self.config)

    def _policy(self, implementations: Implementations, config: Config) -> TracePolicy:
        count = len(config.trace.leaf_functions)
        places = [config.place_of("trace.leaf_functions", position) for position in range(count)]
        return create_policy(
            implementations, config.trace, strict=self.strict, constants=self.constants(), places=places
        )

    def pass_observers(self) -> tuple[Callable[[PassEvent], None], ...]:
        """Return who is to hear of the start and the end of each pass, for `fxplug.passes.Pipeline.run`."""
        return self._pass_observers

    @cached_property
    def _pass_observers(self) -> tuple[Callable[[PassEvent], None], ...]:
        started = observer(self._implementations("fxplug_pass_started"), strict=self.strict)
        finished = observer(self._implementations("fxplug_pass_finished"), strict=self.strict)
        if started is None and finished is None:
            return ()

        def tell(event: PassEvent) -> None:
            ended = event.result is not None or event.error is not None
            listener = finished if ended else started
            if listener is not None:
                listener(event)

        return (tell,)

    def ask(self, hook: str, **arguments: Any) -> list[Any]:
        """Return the answers of all plugins to a hook that a plugin declared, in the order of the plugins.

        An implementation that raises an error is a `PluginWarning`, and the others are still asked.

        Args:
            hook: Name of the hook.
            arguments: All of its arguments.

        Returns:
            What was answered, without None. A hook that is declared with ``firstresult`` has one answer at most.

        Raises:
            UnknownNameError: No active plugin declares the hook.
            PluginError: The arguments are not those of the hook, or (strict) an implementation failed.
        """
        if hook not in self._loader.own_hooks:
            raise UnknownNameError("hook of a plugin", hook, self._loader.own_hooks)
        declared = self._loader.arguments_of(hook)
        if set(arguments) != set(declared):
            raise PluginError(
                f"Cannot ask hook {hook!r}: it was given ({', '.join(arguments)}), and takes ({', '.join(declared)})."
            )
        answers: list[Any] = []
        for implementation in self._implementations(hook):
            try:
                answer = implementation.function(*(arguments[name] for name in declared))
            except FAILURES as error:
                self._left_out(implementation.failed(error), error)
                continue
            if answer is not None:
                answers.append(answer)
                if self._loader.ends_with_first_answer(hook):
                    break
        return answers

    def converters(self, hook: str) -> list[tuple[str, ConverterRecord]]:
        """Return the converters of operators that plugins bring to a backend, in the order of the plugins.

        A plugin that raises an error, or brings something else, is a `PluginWarning`, and the others are still asked.

        Args:
            hook: Declared by the plugin of the backend, without arguments.

        Returns:
            Distribution and version, and converter. Nothing where no active plugin declares the hook: a backend works
            without being installed as a plugin.

        Raises:
            PluginError: (strict) A plugin failed, or brought something else.
        """
        found: list[tuple[str, ConverterRecord]] = []
        for implementation in self._implementations(hook) if hook in self._loader.own_hooks else ():
            try:
                records: list[Any] = list(implementation.function() or ())
            except FAILURES as error:
                self._left_out(implementation.failed(error), error)
                continue
            wrong = [record for record in records if not _is_converter(record)]
            if wrong:
                self._left_out(
                    implementation.refused(wrong[0], "ConverterRecords of fxplug.lower with functions")
                )
                continue
            found += [(implementation.provider, record) for record in records]
        return found

    def hook_problem(self, hook: str, distribution: str) -> str:
        """Return why nobody can answer a hook by which a distribution means to ask other plugins; empty for none.

        Args:
            hook: As the backend of a plugin names it.
            distribution: That brings the backend. Nothing is wrong where none of its plugins is active, as a backend
                works without being installed as a plugin, nor with a hook of a plugin that is switched off.
        """
        known, plugins = self._loader.own_hooks, self._loader.plugins
        owners = [plugin for plugin in plugins if plugin.candidate.is_called(distribution)]
        waits = any(
            not plugin.is_active and hook.startswith(owned_prefix(plugin.candidate.name))
            for plugin in plugins
        )
        if hook in known or waits or not any(plugin.is_active for plugin in owners):
            return ""
        return f"no active plugin declares the hook {hook!r}. {did_you_mean(hook, known)}"

    def _left_out(self, failure: PluginError, cause: BaseException | None = None) -> None:
        """Warn that a plugin failed; raise it in strict mode."""
        if self.strict:
            raise failure from cause
        warnings.warn(failure.message, PluginWarning, stacklevel=3)

    def _implementations(self, hook: str) -> Sequence[Any]:
        return self._loader.implementations(hook, self._active)


def _identity(plugin: LoadedPlugin) -> tuple[str, str, str]:
    return plugin.candidate.name, plugin.candidate.distribution, plugin.candidate.version


def _is_text(answer: Any, _: Any) -> bool:
    return isinstance(answer, (str, bytes))


def _is_converter(record: Any) -> bool:
    return isinstance(record, ConverterRecord) and callable(record.target) and callable(record.function)


def _is_strict(environ: Mapping[str, str], config: Config) -> bool:
    flag = flag_from_environment(environ, STRICT_VARIABLE)
    return config.plugins.strict if flag is None else flag
