"""Settings of torch and hooks of all modules that a program changes while it is traced: they are put back.

A graph has no place for them. What would be computed otherwise behind the program is refused.
"""

from __future__ import annotations

import dis
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxplug.capture.state import speak_of
from fxplug.errors import TraceError
from fxplug.ir import SourceLine, iterate_leaves
from fxplug.ir.instructions import instructions_of
from fxplug.semantics.internals import global_hook_tables

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from fxplug.ir import Node

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
    is_for: Callable[[Node], bool] = lambda _: True
    """Whether what a node computes may hang on it."""


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


_NAMES = (
    "abs add addmm amax amin and argmax argmin bmm bool broadcast_to cat chunk clamp clone concat contiguous conv1d "
    "conv2d conv3d detach double eq expand flatten float floor_divide floordiv gather ge getitem gt half iadd iand "
    "imul index_select int invert ior isub le linear long lt masked_fill matmul max min mm mod mul narrow ne neg or "
    "permute pos relu repeat reshape roll scatter select size split squeeze stack sub sum t to transpose type type_as "
    "unbind unflatten unsqueeze view where xor"
)
_NAMES_OF_THESE = frozenset(_NAMES.split())
"""Names of calls whose result is of the dtype of what they are given, or of one that they say."""


def _takes_default_dtype(node: Node) -> bool:
    """Return whether the dtype of a result may be the default one, as that of a quotient of integers is."""
    if node.op == "call_module" or node.kwargs.get("dtype") is not None:
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    has_fraction = any(type(part) in {float, complex} for part in iterate_leaves((node.args, node.kwargs)))
    return has_fraction or name.rstrip("_") not in _NAMES_OF_THESE


def _has_no_device(node: Node) -> bool:
    return not node.all_input_nodes and "device" not in node.kwargs


def _is_outside_of_autocast(node: Node) -> bool:
    return not any(entry.context is torch.autocast for entry in node.region)


def _never(_: Node) -> bool:
    return False


_SETTINGS = (
    _Setting(
        "the default dtype",
        ("set_default_dtype", "set_default_tensor_type"),
        torch.get_default_dtype,
        torch.set_default_dtype,
        is_for=_takes_default_dtype,
    ),
    _Setting(
        "the default device",
        ("set_default_device",),
        torch.get_default_device,
        _set_device,
        is_for=_has_no_device,
    ),
    _Setting(
        "whether algorithms are deterministic",
        ("use_deterministic_algorithms", "set_deterministic_debug_mode"),
        _deterministic,
        _set_deterministic,
        is_for=_never,  # Chance decides what is computed otherwise.
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
        is_for=_is_outside_of_autocast,
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
_UNTOUCHED = frozenset({getattr, operator.getitem, setattr})
SETTERS = frozenset({name for setting in _SETTINGS for name in setting.setters})
"""The names by which code changes settings."""


class Settings:
    """Remembers the settings that the code of a program may change, from before the first of it runs.

    Settings are those of the whole process: what the code does not name, others may change meanwhile.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[_Setting, Any, CodeType]] = {}
        self._used: dict[str, None] = {}
        """The settings that were not as they had been while something was recorded that hangs on them."""

    def note_code(self, code: CodeType, names: frozenset[str] | None) -> None:
        """Hear of code that is about to run and that names a function which changes settings.

        Args:
            code: It.
            names: The names in it; None where it may change any.
        """
        for setting in _SETTINGS:
            if setting.what not in self._found and (names is None or not names.isdisjoint(setting.setters)):
                self._found[setting.what] = setting, setting.read(), code

    def on_node(self, event: str, node: Node) -> None:
        """Hear that something is recorded: whoever replays it finds the settings that were there before the program."""
        if event != "created" or not node.op.startswith("call_") or node.target in _UNTOUCHED:
            return
        for what, (setting, former, _) in self._found.items():
            if not setting.is_harmless and setting.is_for(node) and setting.read() != former:
                self._used[what] = None

    @property
    def are_noted(self) -> bool:
        """Whether the program may change any."""
        return bool(self._found)

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
        for what in self._used:
            setting, _, code = self._found[what]
            raise TraceError(
                f"Cannot trace: the program changes {what}{_place_of(code, setting)}, and computes something before it "
                "puts it back, which cannot be recorded. Change it before the program, or say in each call what it is "
                "to use (dtype=...).",
                code="FXP-T050",
            )
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
    for entry in instructions_of(code):
        line = lines.get(entry.offset) or line
        if entry.argval in setting.setters:
            found = SourceLine(code.co_filename, line, code.co_name)
            return f" at {found} ({found.text!r})"
    return ""
