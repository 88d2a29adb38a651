"""The plugin manager: one method for everything that the rest of fxplug wants to know of plugins."""

from __future__ import annotations

import os
import warnings
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from fxplug.errors import ConfigError, PluginError, UnknownNameError
from fxplug.plugins.call_log import CALL_LOG_VARIABLE, switch_on_call_log
from fxplug.plugins.config import STRICT_VARIABLE, flag_from_environment
from fxplug.plugins.discovery import PluginCandidate, core_version, discover
from fxplug.plugins.inspection import describe_plugin
from fxplug.plugins.loading import PluginLoader
from fxplug.plugins.offers import BackendOffer, CommandOffer, Offer, OfferTable, PassOffer
from fxplug.plugins.pipelines import PassEntry, pipeline_names, resolve_pipeline, validated_options
from fxplug.plugins.policy import create_policy, observer
from fxplug.plugins.records import (
    BackendRecord,
    CommandRecord,
    EffectRecord,
    PassEvent,
    PassRecord,
    PluginInfo,
    PluginWarning,
)
from fxplug.plugins.requirements import check_required
from fxplug.plugins.selection import Selection
from fxplug.plugins.settings import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fxplug.capture import TracePolicy
    from fxplug.passes import Pipeline

__all__ = ["PluginManager"]

RecordT = TypeVar("RecordT", PassRecord, BackendRecord, CommandRecord)


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
        version: The version of fxplug that plugins must accept; by default the installed one.

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
        note = self._inactive_note()
        self._passes = OfferTable("pass", self._offers("fxplug_register_passes", PassRecord), note)
        self._backends = OfferTable("backend", self._offers("fxplug_register_backends", BackendRecord), note)
        self._commands = OfferTable("command", self._offers("fxplug_register_commands", CommandRecord), note)

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

    def _offers(self, hook: str, kind: type[RecordT]) -> list[Offer[RecordT]]:
        return [
            Offer(
                record.name if plugin is self._loader.core else f"{plugin.candidate.name}:{record.name}",
                record,
                plugin.candidate.name,
                plugin.candidate.distribution,
                plugin.candidate.version,
            )
            for plugin in self._active
            for record in plugin.records.get(hook, ())
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

    def effect_records(self) -> tuple[EffectRecord, ...]:
        """Return what plugins say about effects, in order."""
        return tuple(
            record for plugin in self._active for record in plugin.records.get("fxplug_register_effects", ())
        )

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
        settings = config or self.config
        offer = self._backends.find(name)
        keys = [key for key in (offer.name, offer.alias) if key is not None and key in settings.backends]
        if len(keys) > 1:
            raise ConfigError(
                f"Cannot choose the options of backend {offer.name!r}: the configuration has both "
                f"[backends.{keys[0]}] and [backends.{keys[1]}]. Keep one of them."
            )
        configured = settings.backends[keys[0]] if keys else {}
        source = settings.source_of(f"backends.{keys[0]}.{next(iter(configured))}") if configured else None
        values = {**configured, **(given or {})}
        return validated_options(offer.record.options, values, f"backend {offer.name!r}", source)

    # -- hooks -----------------------------------------------------------------------------------------------

    def trace_policy(self, config: Config | None = None) -> TracePolicy:
        """Return the answers of configuration and plugins to the questions of a tracer.

        A question to which nobody has an answer is None in the policy, and costs nothing.

        Args:
            config: Instead of the manager's own.
        """
        if config is None or config is self.config:
            return self._own_policy
        return create_policy(self._implementations, config.trace, strict=self.strict)

    @cached_property
    def _own_policy(self) -> TracePolicy:
        return create_policy(self._implementations, self.config.trace, strict=self.strict)

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
            except Exception as error:
                failure = implementation.failed(error)
                if self.strict:
                    raise failure from error
                warnings.warn(failure.message, PluginWarning, stacklevel=2)
                continue
            if answer is not None:
                answers.append(answer)
                if self._loader.ends_with_first_answer(hook):
                    break
        return answers

    def _implementations(self, hook: str) -> Sequence[Any]:
        return self._loader.implementations(hook, self._active)


def _is_strict(environ: Mapping[str, str], config: Config) -> bool:
    flag = flag_from_environment(environ, STRICT_VARIABLE)
    return config.plugins.strict if flag is None else flag
