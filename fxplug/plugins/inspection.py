"""What the host says about a plugin, put together from what is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.plugins.discovery import core_ranges
from fxplug.plugins.records import PluginInfo, RecordInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxplug.plugins.loading import LoadedPlugin

__all__ = ["describe_plugin"]


def describe_plugin(plugin: LoadedPlugin, active: Sequence[LoadedPlugin]) -> PluginInfo:
    """Return all that is known of a plugin.

    Args:
        plugin: The plugin.
        active: The active plugins in order; what fxplug itself offers is the first of them.
    """
    candidate = plugin.candidate

    def names(hook: str) -> tuple[str, ...]:
        return tuple(_full_name(plugin, record) for record in plugin.records.get(hook, ()))

    return PluginInfo(
        name=candidate.name,
        distribution=candidate.distribution,
        version=candidate.version,
        status=plugin.status,
        reason=plugin.reason,
        remedy=plugin.remedy,
        hooks=plugin.hooks,
        passes=names("fxplug_register_passes"),
        backends=names("fxplug_register_backends"),
        commands=names("fxplug_register_commands"),
        failures=tuple(plugin.failures),
        declared_hooks=plugin.declares,
        idle_hooks=plugin.idle_hooks,
        records=tuple(
            RecordInfo(hook, _full_name(plugin, record), str(getattr(record, "summary", "")))
            for hook, records in plugin.records.items()
            for record in records
        ),
        place=active.index(plugin) if plugin.is_active else None,
        before=plugin.before,
        after=plugin.after,
        target=candidate.target,
        path=getattr(plugin.module, "__file__", None) or candidate.location,
        core_range=core_ranges(candidate),
        programs=plugin.programs,
        error=plugin.error,
    )


def _full_name(plugin: LoadedPlugin, record: Any) -> str:
    name = getattr(record, "name", None)
    if isinstance(name, str):
        return f"{plugin.candidate.name}:{name}"
    subject = getattr(record, "target", record)
    return getattr(subject, "__qualname__", None) or repr(subject)
