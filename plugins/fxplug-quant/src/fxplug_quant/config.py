"""What is wished: how calls are quantized, by default and by rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from fxplug.errors import ConfigError, UnknownNameError
from fxplug_quant.calls import Call, place_of
from fxplug_quant.engine import ENGINES
from fxplug_quant.int4 import check_group_size
from fxplug_quant.observers import make_observer

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MODES", "QuantConfig", "Rule", "check_limit"]

MODES = ("static-int8", "dynamic-int8", "weight-int8", "weight-int4", "float")
"""What can become of a call. All but the first are for linear layers alone; ``weight-int8`` is for embeddings, too."""

_SELECTORS = ("path", "type", "function", "line", "node")


@dataclass(frozen=True)
class Rule:
    """Says how some calls are quantized. All selectors that are given must agree; a later rule prevails."""

    path: str | None = None
    """Glob for the path of the module that is called, e.g. ``"layer1.*"``."""
    type: str | None = None
    """Class of the module that is called, e.g. ``"Linear"``."""
    function: str | None = None
    """Name of the function or method that is called, e.g. ``"add"``."""
    line: str | None = None
    """Line of the program, as file and number: ``"model.py:12"``, or ``"pkg/model.py:12"`` for one of several files
    with that name. Parts of a name or of a number select nothing."""
    node: str | None = None
    """Name of the node in the graph."""
    mode: str | None = None
    """One of `MODES`."""
    observer: str | None = None
    """Observer of the value that the call gives; see `fxplug_quant.observers.make_observer`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_text(field.name, getattr(self, field.name), "a rule", may_be_none=True)
        if all(getattr(self, name) is None for name in _SELECTORS):
            raise ConfigError(f"Cannot use {self}: it selects nothing. Give one of {', '.join(_SELECTORS)}.")
        if self.line is not None and _place(self.line) is None:
            raise ConfigError(
                f"Cannot use {self}: its line is no file and number. Write it as 'model.py:12' or 'pkg/model.py:12'."
            )
        if self.mode is None and self.observer is None:
            raise ConfigError(f"Cannot use {self}: it says nothing. Give a mode or an observer.")
        if self.mode is not None and self.mode not in MODES:
            raise UnknownNameError("quantization mode", self.mode, MODES)
        if self.observer is not None:
            make_observer(self.observer)

    def selects(self, call: Call) -> bool:
        """Return whether the rule is about a call."""
        return all(
            wanted is None or _agrees(name, wanted, _property(name, call))
            for name, wanted in ((name, getattr(self, name)) for name in _SELECTORS)
        )

    def check(self, calls: Iterable[Call]) -> None:
        """Check that the rule is about something.

        Raises:
            UnknownNameError: It is not; the message has the nearest names.
        """
        calls = list(calls)
        if any(self.selects(call) for call in calls):
            return
        for name in _SELECTORS:
            wanted = getattr(self, name)
            known = [text for text in (_property(name, call) for call in calls) if text]
            if wanted is not None and not any(_agrees(name, wanted, text) for text in known):
                raise UnknownNameError(
                    _KINDS[name], wanted, known, note=f"It stands in {self}, which matches nothing."
                )
        raise ConfigError(f"Cannot use {self}: no call agrees with all of it. Take a selector away.")

    def __str__(self) -> str:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return f"Rule({', '.join(f'{name}={value!r}' for name, value in parts.items() if value is not None)})"


_KINDS = {
    "path": "called module",
    "type": "class of called modules",
    "function": "called function",
    "line": "line",
    "node": "node",
}


def _property(name: str, call: Call) -> str:
    node, is_module = call.node, bool(call.path)
    return {
        "path": call.path,
        "type": call.operation if is_module else "",
        "function": "" if is_module else call.operation,
        "line": place_of(node),
        "node": node.name,
    }[name]


def _agrees(name: str, wanted: str, found: str) -> bool:
    if name == "path":
        return fnmatchcase(found, wanted)
    if name != "line":
        return found == wanted
    place, other = _place(wanted), _place(found)
    if place is None or other is None or place[1] != other[1]:
        return False
    return other[0][-len(place[0]) :] == place[0]


def _place(line: str) -> tuple[list[str], int] | None:
    """Return the parts of a file's name and the number of the line; None where one of them is missing."""
    file, _, number = line.replace("\\", "/").rpartition(":")
    parts = file.removeprefix("./").split("/")
    is_whole = bool(parts[-1]) and number.isascii() and number.isdecimal()
    return (parts, int(number)) if is_whole else None


def _check_text(name: str, value: Any, where: str, *, may_be_none: bool = False) -> None:
    """Check that a value is text with something in it.

    Raises:
        ConfigError: It is not.
    """
    if (isinstance(value, str) and value) or (value is None and may_be_none):
        return
    raise ConfigError(
        f"Cannot use {name} = {value!r} in {where}: it has to be text that is not empty"
        f"{', or be left out' if may_be_none or value is None else ''}."
    )


def check_limit(limit: int | None) -> None:
    """Check how many batches are used at most; None is no limit.

    Raises:
        ConfigError: It is no number from 1 on.
    """
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):  # pyright: ignore[reportUnnecessaryIsInstance] - users may give anything
        raise ConfigError(
            f"Cannot use {limit!r} as the limit of batches: give a whole number from 1 on, or None for all of them."
        )


@dataclass(frozen=True)
class QuantConfig:
    """How a module is quantized.

    Raises:
        ConfigError: A value is out of range.
    """

    mode: str = "static-int8"
    """One of `MODES`, for all calls that no rule is about."""
    engine: str = "x86"
    """Which of torch's int8 operators compute linear layers: ``"x86"`` takes the faster ones for each call,
    ``"onednn"``, ``"fbgemm"`` and ``"qnnpack"`` always the same. Convolutions are computed by oneDNN."""
    observer: str = "histogram"
    """Chooses the range of activations; see `fxplug_quant.observers.make_observer`."""
    per_channel: bool = True
    """Whether each output feature or channel has a scale of its own for its weights."""
    group_size: int = 64
    """How many weights of a row share a scale in ``weight-int4``: 32, 64, 128 or 256."""
    rules: tuple[Rule, ...] = ()
    """What differs from that, the last word last."""

    def __post_init__(self) -> None:
        for name in ("mode", "engine", "observer"):
            _check_text(name, getattr(self, name), "a config")
        if not isinstance(self.per_channel, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - or from JSON
            raise ConfigError(
                f"Cannot use per_channel = {self.per_channel!r} in a config: give True or False."
            )
        if self.mode not in MODES:
            raise UnknownNameError("quantization mode", self.mode, MODES)
        make_observer(self.observer)
        if not isinstance(self.group_size, int):  # pyright: ignore[reportUnnecessaryIsInstance] - or from JSON
            raise ConfigError(
                f"Cannot use group_size = {self.group_size!r} in a config: give a whole number."
            )
        check_group_size(self.group_size)
        if self.engine not in ENGINES:
            raise UnknownNameError("quantized engine", self.engine, ENGINES)
        if not isinstance(self.rules, (tuple, list)):  # pyright: ignore[reportUnnecessaryIsInstance] - or from JSON
            raise ConfigError(
                f"Cannot use rules = {self.rules!r} in a config: give a list of rules, also for a single one."
            )
        object.__setattr__(self, "rules", tuple(map(_rule, self.rules)))

    @staticmethod
    def of(config: QuantConfig | Mapping[str, Any] | None) -> QuantConfig:
        """Return a config that may be given as plain values.

        Raises:
            ConfigError: It is neither a config nor a mapping, or a value in it cannot be used.
            UnknownNameError: There is no such option, mode, engine or observer.
        """
        if isinstance(config, QuantConfig):
            return config
        if config is not None and not isinstance(config, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users may give anything
            example = config if isinstance(config, str) and config in MODES else MODES[0]
            raise ConfigError(
                f"Cannot quantize with {config!r}: it is a {type(config).__name__}. Give a QuantConfig, or a mapping "
                f"with its fields, such as {{'mode': {example!r}}}."
            )
        given = dict(config or {})
        known = [field.name for field in fields(QuantConfig)]
        for name in given:
            if name not in known:
                raise UnknownNameError("option of quantization", str(name), known)
        return QuantConfig(**given)

    def data(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def _rule(given: Rule | Mapping[str, Any]) -> Rule:
    if isinstance(given, Rule):
        return given
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - or from JSON
        raise ConfigError(
            f"Cannot use {given!r} as a rule: it is a {type(given).__name__}. Give a Rule, or a mapping with its "
            f"fields, such as {{'path': 'head', 'mode': 'float'}}."
        )
    known = [field.name for field in fields(Rule)]
    for name in given:
        if name not in known:
            raise UnknownNameError("part of a rule", str(name), known)
    return Rule(**given)
