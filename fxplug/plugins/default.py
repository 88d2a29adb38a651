"""The manager that is used where none is named: one per process, made when it is first needed."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fxplug.errors import PluginError
from fxplug.plugins.config import load_config
from fxplug.plugins.effects import apply_effects
from fxplug.plugins.manager import PluginManager

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["default_manager", "default_manager_is", "reset_default_manager"]


class _Default:
    """Holds the manager; a holder, so that nothing is rebound at module level."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.manager: PluginManager | None = None
        self.is_loading = False
        self.undo: Callable[[], None] = lambda: None


_default = _Default()


def default_manager() -> PluginManager:
    """Return the process-wide manager, with the configuration found when it was first asked for.

    Safe to be called from several threads. When loading fails, the next call tries again.

    Raises:
        ConfigError: The configuration is wrong.
        PluginError: A required plugin is missing, a plugin failed and strictness was asked for, or a plugin
            used fxplug's front door while it was imported.
    """
    manager = _default.manager
    if manager is not None:
        return manager
    with _default.lock:
        if _default.manager is not None:
            return _default.manager
        if _default.is_loading:
            raise PluginError(
                "Cannot use plugins while they are being loaded: a plugin traces, optimises or asks for plugins "
                "when it is imported. Move that into a function."
            )
        _default.is_loading = True
        try:
            manager = PluginManager(config=load_config())
            _default.undo = apply_effects(manager.effect_records())
            _default.manager = manager
        finally:
            _default.is_loading = False
        return manager


@contextmanager
def default_manager_is(manager: PluginManager | None) -> Generator[None]:
    """Let a manager be the process-wide one while the context lasts, for tests.

    Args:
        manager: It takes the place of the one that is there, which comes back afterwards. None: the next use finds
            configuration and plugins anew.
    """
    with _default.lock:
        former = _default.manager
        _put(manager)
    try:
        yield
    finally:
        with _default.lock:
            _put(former)


def _put(manager: PluginManager | None) -> None:
    """Take back what the former manager says about effects, and apply what this one says."""
    undo, _default.undo, _default.manager = _default.undo, lambda: None, None
    undo()
    if manager is not None:
        _default.undo = apply_effects(manager.effect_records())
        _default.manager = manager


def reset_default_manager() -> None:
    """Forget the process-wide manager, so that the next use finds configuration and plugins anew.

    For tests, and for shells in which plugins were installed meanwhile.
    """
    with _default.lock:
        _put(None)
