"""Settings of torch and hooks of all modules that a program changes while it is traced: they are put back.

A graph has no place for them. What would be computed otherwise behind the program is refused.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxplug.capture.state import speak_of
from fxplug.errors import TraceError
from fxplug.ir import SourceLine
from fxplug.semantics.internals import global_hook_tables

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

__all__ = ["SETTERS", "Settings"]


class _Setting(NamedTuple):
    what: str
    """How messages call it."""
    setters: tuple[str, ...]
    """Functions of torch that change it."""
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    is_harmless: bool = False
    """Whether nothing is computed otherwise by it."""


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _set_deterministic(state: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(state[0], warn_only=state[1])


def _autocast() -> list[tuple[str, bool, torch.dtype]]:
    return [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
    ]


def _set_autocast(state: list[tuple[str, bool, torch.dtype]]) -> None:
    for device, is_on, dtype in state:
        torch.set_autocast_enabled(device, is_on)
        torch.set_autocast_dtype(device, dtype)


def _hooks() -> list[dict[Any, Any]]:
    return [dict(table) for table in global_hook_tables()]


def _set_hooks(state: list[dict[Any, Any]]) -> None:
    for table, former in zip(global_hook_tables(), state, strict=True):
        table.clear()
        table.update(former)


def _set_device(device: torch.device) -> None:
    # None takes the mode away that torch has put in place; a device would leave one behind.
    torch.set_default_device(None)
    if torch.get_default_device() != device:
        torch.set_default_device(device)


_SETTINGS = (
    _Setting("the default dtype", ("set_default_dtype",), torch.get_default_dtype, torch.set_default_dtype),
    _Setting("the default device", ("set_default_device",), torch.get_default_device, _set_device),
    _Setting(
        "whether algorithms are deterministic",
        ("use_deterministic_algorithms", "set_deterministic_debug_mode"),
        _deterministic,
        _set_deterministic,
    ),
    _Setting(
        "the precision of products",
        ("set_float32_matmul_precision",),
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    _Setting(
        "autocast",
        (
            *("set_autocast_enabled", "set_autocast_dtype", "set_autocast_cpu_enabled"),
            *("set_autocast_cpu_dtype", "set_autocast_gpu_dtype"),
        ),
        _autocast,
        _set_autocast,
    ),
    _Setting(
        "hooks of all modules",
        (
            *("register_module_forward_hook", "register_module_forward_pre_hook"),
            *("register_module_backward_hook", "register_module_full_backward_hook"),
            "register_module_full_backward_pre_hook",
        ),
        _hooks,
        _set_hooks,
    ),
    _Setting(
        "the number of threads",
        ("set_num_threads",),
        torch.get_num_threads,
        torch.set_num_threads,
        is_harmless=True,
    ),
    _Setting(
        "whether anomalies are detected",
        ("set_detect_anomaly",),
        torch.is_anomaly_enabled,
        torch.autograd.set_detect_anomaly,
        is_harmless=True,
    ),
)
SETTERS = frozenset({name for setting in _SETTINGS for name in setting.setters})
"""The names by which code changes settings."""


class Settings:
    """Remembers the settings that the code of a program may change, from before the first of it runs.

    Settings are those of the whole process: what the code does not name, others may change meanwhile.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[_Setting, Any, CodeType]] = {}

    def note_code(self, code: CodeType, names: frozenset[str]) -> None:
        """Hear of code that is about to run and that names a function which changes settings."""
        for setting in _SETTINGS:
            if setting.what not in self._found and not names.isdisjoint(setting.setters):
                self._found[setting.what] = setting, setting.read(), code

    def restore(self) -> list[str]:
        """Put back what is not as it was, and return what that is."""
        changed: list[str] = []
        for what, (setting, former, _) in self._found.items():
            if setting.read() != former:
                setting.write(former)
                changed.append(what)
        return changed

    def report(self, changed: list[str], *, warns: bool) -> None:
        """Refuse a program that leaves settings changed; only tell of those by which nothing is computed otherwise.

        Args:
            changed: What `restore` has returned.
            warns: Whether to tell of those with a warning; otherwise they are refused, too.

        Raises:
            TraceError: One is refused.
        """
        for what in changed:
            setting, _, code = self._found[what]
            place = _place_of(code, setting)
            if not setting.is_harmless:
                raise TraceError(
                    f"Cannot trace: the program changes {what}{place} and leaves it changed behind it, which cannot be "
                    "recorded. Change it before the program, or put it back in it.",
                    code="FXP-T050",
                )
            said = f"While it was traced, the program changed {what}{place}. It was put back, and the captured program"
            speak_of(said, "do so", "change it before the program", warns=warns)


def _place_of(code: CodeType, setting: _Setting) -> str:
    """Return where code names what changes a setting, for a message."""
    line = code.co_firstlineno
    lines = dict(dis.findlinestarts(code))
    for entry in dis.get_instructions(code):
        line = lines.get(entry.offset) or line
        if entry.argval in setting.setters:
            found = SourceLine(code.co_filename, line, code.co_name)
            return f" at {found} ({found.text!r})"
    return ""
