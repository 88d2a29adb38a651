"""A line for every call of a hook, on demand: ``FXPLUG_TRACE_PLUGINS=1``."""

from __future__ import annotations

import logging
import reprlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CALL_LOG_VARIABLE", "logged", "switch_on_call_log"]

CALL_LOG_VARIABLE = "FXPLUG_TRACE_PLUGINS"
"""Environment variable: whether every call of a hook is logged."""

_LOGGER = logging.getLogger("fxplug.plugins")
_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 80


def switch_on_call_log() -> None:
    """Let the logger ``fxplug.plugins`` write to standard error, unless the program has logging of its own."""
    if not _LOGGER.isEnabledFor(logging.INFO):
        _LOGGER.setLevel(logging.INFO)
    if not _LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        _LOGGER.addHandler(handler)


def logged(function: Callable[..., Any], hook: str, plugin: str, provider: str) -> Callable[..., Any]:
    """Return a function that does the same, and logs who was asked what, the answer and how long it took.

    Args:
        function: An implementation of a hook.
        hook: The hook.
        plugin: The plugin that implements it.
        provider: Distribution and version.
    """

    def call(*arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            answer = function(*arguments)
        except BaseException as error:
            _write(started, hook, plugin, provider, arguments, f"raised {type(error).__name__}: {error}")
            raise
        said = "no answer" if answer is None else f"answered {_SHORT.repr(answer)}"
        _write(started, hook, plugin, provider, arguments, said)
        return answer

    return call


def _write(
    started: float, hook: str, plugin: str, provider: str, arguments: tuple[Any, ...], said: str
) -> None:
    microseconds = (time.perf_counter() - started) * 1e6
    subject = ", ".join(map(_subject, arguments))
    _LOGGER.info("%s(%s): %s (%s) %s, %.0f us", hook, subject, plugin, provider, said, microseconds)


def _subject(argument: Any) -> str:
    if isinstance(argument, (str, int, float)):
        return _SHORT.repr(argument)
    name = getattr(argument, "name", None)
    return name if isinstance(name, str) else type(argument).__name__
