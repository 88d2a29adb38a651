"""Loading plugins one by one, so that one that is broken is named, undone completely and skipped."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fxplug.errors import IncompatiblePluginError, PluginConflictError, PluginError, PluginLoadError
from fxplug.plugins import builtin, hookspecs
from fxplug.plugins.call_log import logged
from fxplug.plugins.discovery import PluginCandidate, canonical, excluding_range
from fxplug.plugins.hook_table import HookTable, owned_prefix
from fxplug.plugins.importing import forget_modules, import_plugin, unchanged_filters
from fxplug.plugins.markers import PROJECT
from fxplug.plugins.offers import CORE
from fxplug.plugins.ordering import PlacedPlugin, order_plugins
from fxplug.plugins.records import HookFailure, PluginStatus
from fxplug.plugins.refusal import in_sentences
from fxplug.plugins.registration import (
    Implementation,
    Refused,
    by_position,
    check_plugin_name,
    collect_records,
    implementations_of,
    name_list,
    program_table,
    takes_subject,
    wants_subject_alone,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from fxplug.plugins.selection import Selection

__all__ = ["LoadedPlugin", "PluginLoader"]

_RECORD_HOOKS = tuple(name for name in hookspecs.__all__ if name.startswith("fxplug_register_"))

_CORE_AT_ONCE = ("fxplug_register_passes", "fxplug_register_backends", "fxplug_register_commands")
"""What fxplug itself is asked for when plugins are loaded; the rest, which is more, when somebody needs it."""


@dataclass
class LoadedPlugin:
    """What is known of one plugin."""

    candidate: PluginCandidate
    status: PluginStatus = "active"
    reason: str = ""
    remedy: str = ""
    error: PluginError | None = None
    """What `strict` raises; its cause is what was raised while loading."""
    module: ModuleType | None = None
    modules: frozenset[str] = frozenset()
    """The modules of its own package that were imported for it."""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    programs: dict[str, str] = field(default_factory=dict[str, str])
    """Programs outside Python that it can use -> what for."""
    hooks: tuple[str, ...] = ()
    declares: tuple[str, ...] = ()
    """The hooks that it declares for others."""
    idle_hooks: tuple[str, ...] = ()
    """The hooks that it implements for plugins that take no part."""
    records: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """Hook -> the records that it returned."""
    failures: list[HookFailure] = field(default_factory=list[HookFailure])

    @property
    def is_active(self) -> bool:
        """Whether the plugin takes part."""
        return self.status == "active"

    @property
    def title(self) -> str:
        """Name, distribution and version, for messages."""
        return f"{self.candidate.name!r} ({self.candidate.provider})"

    @property
    def explanation(self) -> str:
        """Reason and remedy, as sentences."""
        return in_sentences(self.reason, self.remedy)

    def disable(self, reason: str) -> None:
        """Leave the plugin out because somebody wants that."""
        self.status, self.reason = "disabled", reason
        self.remedy = "To enable it, change that."

    def refuse(
        self,
        reason: str,
        remedy: str = "",
        *,
        kind: type[PluginError] = PluginLoadError,
        cause: BaseException | None = None,
    ) -> None:
        """Leave the plugin out because something about it is wrong.

        Args:
            reason: A clause without a full stop.
            remedy: What to do, in a sentence; there is one for the general case.
            kind: The error that `strict` raises.
            cause: What was raised.
        """
        self.status = "incompatible" if kind is IncompatiblePluginError else "failed"
        self.reason = reason
        self.hooks, self.declares, self.idle_hooks, self.records = (), (), (), {}
        self.remedy = remedy or (
            f"Update or uninstall {self.candidate.distribution} (pip uninstall "
            f"{self.candidate.distribution}), or "
            f"switch the plugin off: FXPLUG_DISABLE_PLUGINS={self.candidate.name}."
        )
        self.error = kind(f"Cannot load plugin {self.title}: {self.explanation}")
        self.error.__cause__ = cause


class PluginLoader:
    """Takes the candidates through selection, version check, import, ordering and registration.

    Args:
        candidates: Every plugin that is installed.
        selection: Which of them may take part.
        version: The running version of fxplug.
        logs_calls: Whether every call of a hook is logged.
    """

    def __init__(
        self,
        candidates: Sequence[PluginCandidate],
        selection: Selection,
        version: str,
        *,
        logs_calls: bool = False,
    ) -> None:
        self._hooks = HookTable(self._is_of_absent_plugin)
        self._selection = selection
        self._version = version
        self._logs_calls = logs_calls
        self._deprecations: list[tuple[LoadedPlugin, warnings.WarningMessage]] = []
        self.plugins = [LoadedPlugin(candidate) for candidate in candidates]
        self.core = LoadedPlugin(
            PluginCandidate.of_module(builtin, CORE, distribution=PROJECT, version=version)
        )

    def load(self) -> list[LoadedPlugin]:
        """Return the active plugins in order, what fxplug itself offers first."""
        with unchanged_filters():
            active = self._load()
        self._forget_refused()
        self._warn_of_deprecations()
        return active

    def _load(self) -> list[LoadedPlugin]:
        for plugin in self.plugins:
            self._select(plugin)
        self._refuse_shared_names()
        for plugin in self._active():
            self._import(plugin)
        ordered = self._order()
        self.core.module = builtin
        for plugin in ordered:
            self._declare(plugin)
        # pluggy asks the plugin that was registered last first.
        for plugin in reversed([self.core, *(plugin for plugin in ordered if plugin.is_active)]):
            self._register(plugin)
        for plugin in [self.core, *ordered]:
            self._collect(plugin)
        if self.core.error is not None:
            raise self.core.error
        for plugin in self._active():
            assert plugin.module is not None  # Only imported plugins are still active.
            plugin.idle_hooks = self._hooks.idle_hooks(plugin.module)
        return [plugin for plugin in [self.core, *ordered] if plugin.is_active]

    @property
    def own_hooks(self) -> tuple[str, ...]:
        """The hooks that plugins declare for others."""
        return tuple(self._hooks.own_hooks)

    def arguments_of(self, hook: str) -> tuple[str, ...]:
        """Return the names of the arguments of a declared hook, in order."""
        return tuple(getattr(self._hooks.hook, hook).spec.argnames)

    def ends_with_first_answer(self, hook: str) -> bool:
        """Return whether the first answer to a declared hook is the only one."""
        return bool(getattr(self._hooks.hook, hook).spec.opts.get("firstresult"))

    def implementations(self, hook: str, active: Sequence[LoadedPlugin]) -> list[Implementation]:
        """Return the implementations of a hook in the order in which they are asked.

        Args:
            hook: Name of a declared hook.
            active: The active plugins in order.
        """
        caller = getattr(self._hooks.hook, hook)
        declared = self.arguments_of(hook)
        places = {plugin.candidate.name: place for place, plugin in enumerate(active)}
        found = sorted(
            caller.get_hookimpls(),
            # What fxplug itself says comes behind whatever plugins say.
            key=lambda entry: (
                entry.plugin_name == CORE,
                entry.trylast - entry.tryfirst,
                places[entry.plugin_name],
            ),
        )
        plugins = {plugin.candidate.name: plugin for plugin in active}
        return [
            self._implementation(hook, entry.function, declared, plugins[entry.plugin_name])
            for entry in found
        ]

    def _implementation(
        self, hook: str, function: Callable[..., Any], declared: tuple[str, ...], plugin: LoadedPlugin
    ) -> Implementation:
        # A line of the log says all that a hook was asked.
        is_short = not self._logs_calls and wants_subject_alone(function, declared)
        return Implementation(
            hook,
            plugin.candidate.name,
            plugin.candidate.provider,
            self._observed(by_position(function, declared), hook, plugin),
            plugin.failures,
            function if is_short else None,
            takes_subject(function, declared),
        )

    def _observed(self, function: Callable[..., Any], hook: str, plugin: LoadedPlugin) -> Callable[..., Any]:
        if not self._logs_calls:
            return function
        return logged(function, hook, plugin.candidate.name, plugin.candidate.provider)

    def _active(self) -> list[LoadedPlugin]:
        return [plugin for plugin in self.plugins if plugin.is_active]

    def _select(self, plugin: LoadedPlugin) -> None:
        reason = self._selection.reason_against(plugin.candidate)
        if reason:
            plugin.disable(reason)
            return
        wanted = excluding_range(plugin.candidate, self._version)
        if wanted is not None:
            plugin.refuse(
                f"it requires fxplug {wanted}, but fxplug {self._version} is running; it was not imported",
                f"Install a release of {plugin.candidate.distribution} made for fxplug {self._version}, or "
                f"switch the plugin off: FXPLUG_DISABLE_PLUGINS={plugin.candidate.name}.",
                kind=IncompatiblePluginError,
            )
            return
        try:
            check_plugin_name(plugin.candidate.name)
        except Refused as refusal:
            plugin.refuse(str(refusal))

    def _refuse_shared_names(self) -> None:
        owners: dict[str, list[LoadedPlugin]] = {}
        for plugin in self._active():
            owners.setdefault(plugin.candidate.name, []).append(plugin)
        for name, plugins in owners.items():
            if len(plugins) == 1:
                continue
            self._settle_shared_name(name, plugins)

    def _settle_shared_name(self, name: str, plugins: Sequence[LoadedPlugin]) -> None:
        claims = " and ".join(plugin.candidate.provider for plugin in plugins)
        reason = f"the plugin name {name!r} is claimed by {claims}"
        owners = [
            plugin for plugin in plugins if canonical(plugin.candidate.distribution) == f"{PROJECT}-{name}"
        ]
        if len(owners) == 1:
            reason += f"; it belongs to {owners[0].candidate.distribution}, which is named after it"
        refused = [plugin for plugin in plugins if len(owners) != 1 or plugin is not owners[0]]
        for plugin in refused:
            plugin.refuse(
                reason,
                f"Uninstall one of them, or switch one off by its distribution: "
                f'disable = ["{refused[-1].candidate.distribution}"] in the table [tool.fxplug.plugins].',
                kind=PluginConflictError,
            )

    def _import(self, plugin: LoadedPlugin) -> None:
        try:
            module, plugin.modules = import_plugin(plugin.candidate)
        except Refused as refusal:
            plugin.refuse(str(refusal), cause=refusal.__cause__)
            return
        owner = next((other for other in self.plugins if other.module is module), None)
        if owner is not None:
            plugin.refuse(f"its module {module.__name__} is that of plugin {owner.title} already")
            return
        plugin.module = module

    def _order(self) -> list[LoadedPlugin]:
        placed: dict[str, PlacedPlugin] = {}
        for plugin in self._active():
            assert plugin.module is not None  # Only imported plugins are still active.
            try:
                plugin.before = name_list(plugin.module, "PLUGIN_BEFORE")
                plugin.after = name_list(plugin.module, "PLUGIN_AFTER")
                plugin.programs = program_table(plugin.module)
            except Refused as refusal:
                plugin.refuse(str(refusal))
            else:
                placed[plugin.candidate.name] = PlacedPlugin(plugin.candidate, plugin.before, plugin.after)
        by_name = {plugin.candidate.name: plugin for plugin in self._active()}
        while True:
            names, cycle = order_plugins(list(placed.values()))
            if not cycle:
                return [by_name[name] for name in names]
            chain = " before ".join(repr(name) for name in [*cycle, cycle[0]])
            for name in cycle:
                placed.pop(name)
                by_name[name].refuse(
                    f"PLUGIN_BEFORE and PLUGIN_AFTER contradict each other: {chain}",
                    f"Switch one of them off: FXPLUG_DISABLE_PLUGINS={cycle[-1]}.",
                    kind=PluginConflictError,
                )

    def _is_of_absent_plugin(self, hook: str) -> bool:
        """Return whether a hook would be that of a plugin that is installed and takes no part."""
        owners = [plugin for plugin in self.plugins if hook.startswith(owned_prefix(plugin.candidate.name))]
        owners.sort(key=lambda plugin: len(plugin.candidate.name))
        return bool(owners) and not any(
            plugin.is_active for plugin in owners if plugin.candidate.name == owners[-1].candidate.name
        )

    def _declare(self, plugin: LoadedPlugin) -> None:
        assert plugin.module is not None  # Only imported plugins are ordered.
        try:
            plugin.declares = self._hooks.declare(plugin.candidate.name, plugin.module)
        except Refused as refusal:
            plugin.refuse(str(refusal), cause=refusal.__cause__)

    def _register(self, plugin: LoadedPlugin) -> None:
        assert plugin.module is not None  # Only imported plugins are registered.
        try:
            plugin.hooks = tuple(implementations_of(self._hooks, plugin.module))
            deprecations = self._hooks.enrol(plugin.module, plugin.candidate.name, plugin.hooks)
        except Refused as refusal:
            self._undo(plugin)
            plugin.refuse(str(refusal), cause=refusal.__cause__)
        except Exception as error:  # What a module does when its members are looked at is its own affair.
            self._undo(plugin)
            reason = " ".join(str(error).split())
            plugin.refuse(f"looking for its hooks raised {type(error).__name__}: {reason}", cause=error)
        else:
            self._deprecations += [(plugin, deprecation) for deprecation in deprecations]

    def _forget_refused(self) -> None:
        in_use = {plugin.candidate.package for plugin in self._active()}
        for plugin in self.plugins:
            if plugin.error is not None and plugin.modules and plugin.candidate.package not in in_use:
                forget_modules(plugin.modules)

    def _warn_of_deprecations(self) -> None:
        for plugin, deprecation in self._deprecations:
            text = f"Plugin {plugin.title}: {deprecation.message}"
            warnings.warn_explicit(text, deprecation.category, deprecation.filename, deprecation.lineno)

    def _undo(self, plugin: LoadedPlugin) -> None:
        # pluggy 1.6 keeps a plugin that it rejects half registered.
        if self._hooks.has_plugin(plugin.candidate.name):
            self._hooks.unregister(name=plugin.candidate.name)
        self._hooks.withdraw(plugin.declares)
        for other in self.plugins:
            other.hooks = tuple(hook for hook in other.hooks if hook not in plugin.declares)

    def _collect(self, plugin: LoadedPlugin) -> None:
        if not plugin.is_active:
            return
        hooks = _RECORD_HOOKS if plugin is not self.core else _CORE_AT_ONCE
        try:
            for hook in hooks:
                if hook in plugin.hooks:
                    plugin.records[hook] = self._ask_for_records(hook, plugin)
        except Refused as refusal:
            self._undo(plugin)
            plugin.refuse(str(refusal), cause=refusal.__cause__)

    def records(self, hook: str, active: Sequence[LoadedPlugin]) -> list[tuple[LoadedPlugin, Any]]:
        """Return the records of a hook with the plugins that gave them: plugins in order, fxplug itself last.

        Args:
            hook: Name of a hook that returns records.
            active: The active plugins in order.
        """
        if hook not in self.core.records and hook in self.core.hooks:
            self.core.records[hook] = self._ask_for_records(hook, self.core)
        plugins = [plugin for plugin in active if plugin is not self.core]
        return [
            (plugin, record) for plugin in [*plugins, self.core] for record in plugin.records.get(hook, ())
        ]

    def _ask_for_records(self, hook: str, plugin: LoadedPlugin) -> list[Any]:
        records: list[Any] = []
        for entry in getattr(self._hooks.hook, hook).get_hookimpls():
            if entry.plugin is plugin.module:
                records.extend(collect_records(hook, self._observed(entry.function, hook, plugin)))
        return records
