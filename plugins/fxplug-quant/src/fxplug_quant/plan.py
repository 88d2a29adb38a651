"""The plan: what every call, weight and value becomes, who decided, and why."""

from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from fxplug.errors import ConfigError, UnknownNameError
from fxplug_quant.config import MODES, QuantConfig
from fxplug_quant.observers import make_observer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Plan", "PlanEntry", "checksum_of", "fixed_columns"]

_FORMAT = "fxplug-quant-plan"
_VERSION = 1
_COLUMNS = (
    "node",
    "what",
    "operation",
    "mode",
    "dtype",
    "scheme",
    "observer",
    "decided_by",
    "reason",
    "line",
)


@dataclass(frozen=True)
class PlanEntry:
    """One row of a plan."""

    node: str
    """Name of the node: the same for each capture of the same program."""
    what: str
    """``"call"``: what becomes of it; ``"weight"``: of its weight; ``"edge"``: of the value that it gives."""
    operation: str
    """The class of the module or the name of the function that is called."""
    path: str = ""
    """Path of the module that is called."""
    line: str = ""
    """Line of the program, as ``file.py:12``."""
    mode: str = ""
    """Of a call: one of `fxplug_quant.MODES`."""
    dtype: str = ""
    """Of a weight or an edge: ``"int8"``, ``"uint8"``, ``"float32"``, …."""
    scheme: str = ""
    """Of a weight or an edge: how its steps are laid, e.g. ``"per-channel symmetric"``."""
    observer: str = ""
    """Of an edge: what chooses its range."""
    decided_by: str = ""
    """``"default"``, ``"rule 2"``, ``"conflict"``, ``"backend"``, ``"program"``, ``"flow"``, ``"edited"``, or
    ``"autotune"``."""
    reason: str = ""
    """Why."""


@dataclass(frozen=True)
class Plan:
    """A table of every call, weight and value of a module. Nothing has been changed yet.

    ``print(plan)`` shows it as text.
    """

    entries: tuple[PlanEntry, ...]
    config: QuantConfig = field(default_factory=QuantConfig)
    checksum: str = field(default="", compare=False, repr=False)
    """Of what cannot be edited in the entries, as it was when the plan was made: after an edit of a mode, rows that
    follow from it are as before, and this tells them from rows that somebody edited."""

    def calls(self) -> dict[str, PlanEntry]:
        """Return name of node -> what becomes of the call."""
        return {entry.node: entry for entry in self.entries if entry.what == "call"}

    def edges(self) -> dict[str, PlanEntry]:
        """Return name of node -> what becomes of the value that it gives."""
        return {entry.node: entry for entry in self.entries if entry.what == "edge"}

    def left_in_float(self) -> dict[str, str]:
        """Return name of node -> why the call stays float, for all that could be thought to be quantized.

        Sums and the like that stay float since what they add does are no decisions; they stand in the table alone.
        """
        return {
            name: entry.reason
            for name, entry in self.calls().items()
            if entry.mode == "float" and entry.decided_by != "flow"
        }

    # -- edits -------------------------------------------------------------------------------------------------

    def with_mode(self, node: str, mode: str, reason: str = "edited", *, decided_by: str = "edited") -> Plan:
        """Return a plan in which a call becomes something else. What follows for values is decided in `prepare`.

        Args:
            node: Name of the call.
            mode: One of `fxplug_quant.MODES`.
            reason: Why.
            decided_by: Who says so.

        Raises:
            UnknownNameError: There is no such call, or no such mode.
            ConfigError: The program or the engine does not allow it.
        """
        if mode not in MODES:
            raise UnknownNameError("quantization mode", mode, MODES)
        former = self._entry("call", node)
        if former.decided_by in {"backend", "program"} and mode != "float":
            raise ConfigError(f"Cannot make node {node!r} {mode}: {former.reason}. It stays float.")
        return self._replaced(former, mode=mode, decided_by=decided_by, reason=reason)

    def with_observer(self, node: str, observer: str) -> Plan:
        """Return a plan in which another observer sees the value of a node.

        Raises:
            UnknownNameError: There is no such value, or no such observer.
            ConfigError: The value is not observed, since it does not become steps, or has those of another one.
        """
        make_observer(observer)
        former = self._entry("edge", node)
        if not former.observer:
            observed = [entry.node for entry in self.edges().values() if entry.observer]
            raise ConfigError(
                f"Cannot observe the value of node {node!r} with {observer!r}: in this plan it has no observer "
                f"({former.reason}). Observed are: {', '.join(observed) or 'none'}. After edits of modes, prepare the "
                f"module with the plan, and edit the plan of what that returns."
            )
        return self._replaced(former, observer=observer, decided_by="edited", reason="edited")

    def _entry(self, what: str, node: str) -> PlanEntry:
        found = self.calls() if what == "call" else self.edges()
        if node not in found:
            raise UnknownNameError(f"{what} in the plan", node, found)
        return found[node]

    def _replaced(self, former: PlanEntry, **changes: str) -> Plan:
        fresh = replace(former, **changes)
        return replace(self, entries=tuple(fresh if entry is former else entry for entry in self.entries))

    # -- text --------------------------------------------------------------------------------------------------

    def diff(self, other: Plan) -> str:
        """Return the rows that differ in `other`, with ``-`` and ``+`` before them; empty when none does."""
        lines = difflib.unified_diff(_lines(self.entries), _lines(other.entries), n=0, lineterm="")
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))

    def __str__(self) -> str:
        rows = [_COLUMNS, *(_cells(entry) for entry in self.entries)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    # -- JSON --------------------------------------------------------------------------------------------------

    def data(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "config": self.config.data(),
            "checksum": self.checksum,
            "entries": [asdict(entry) for entry in self.entries],
        }

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return json.dumps(self.data(), indent=1)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Return the plan that `to_json` wrote.

        Raises:
            ConfigError: The text is no plan, or an entry has no text where there has to be some.
            UnknownNameError: It has a mode or an observer that there is not.
        """
        entries, config, checksum = _read(text)
        for entry in entries:
            _check(entry)
        return Plan(entries, QuantConfig.of(config), checksum)


def _read(text: str) -> tuple[tuple[PlanEntry, ...], Mapping[str, Any], str]:
    """Return entries, config and checksum in JSON text.

    Raises:
        ConfigError: The text is no plan.
    """
    try:
        data = json.loads(text)
        kind = (data["format"], data["version"])
        names = [entry.name for entry in fields(PlanEntry)]
        rows = data["entries"] if kind == (_FORMAT, _VERSION) else ()
        entries = tuple(PlanEntry(**{name: row[name] for name in names}) for row in rows)
        config = {**data["config"]} if rows != () else {}
        checksum = str(data.get("checksum", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"Cannot read a plan: the text is not what Plan.to_json writes ({error!r}). Write the plan anew."
        ) from error
    if kind != (_FORMAT, _VERSION):
        raise ConfigError(
            f"Cannot read a plan: the text is {kind[0]!r}, version {kind[1]!r}, and not {_FORMAT!r}, version "
            f"{_VERSION}. Write the plan anew."
        )
    return entries, config, checksum


def checksum_of(entries: Iterable[PlanEntry]) -> str:
    """Return a checksum of what cannot be edited in entries."""
    return hashlib.sha256(json.dumps([fixed_columns(entry) for entry in entries]).encode()).hexdigest()


def fixed_columns(entry: PlanEntry) -> dict[str, str]:
    """Return what cannot be edited in an entry.

    That is all but the mode of a call, which of the observers an edge has, and what is told to people alone.
    """
    columns = asdict(entry)
    for name in ("decided_by", "reason", "line", *(("mode",) if entry.what == "call" else ())):
        del columns[name]
    if entry.what == "edge" and entry.observer:
        columns["observer"] = "one"
    return columns


_ROWS = ("call", "weight", "edge")


def _check(entry: PlanEntry) -> None:
    """Check what can be edited by hand.

    Raises:
        UnknownNameError: There is no such mode, or no such observer.
        ConfigError: A column is no text, or the entry is of nothing.
    """
    for name, value in asdict(entry).items():
        if not isinstance(value, str):
            raise ConfigError(
                f"Cannot read a plan: its entry {entry.what} {entry.node!r} has {name} = {value!r}, and that has to be "
                f"text."
            )
    if entry.what not in _ROWS:
        raise ConfigError(
            f"Cannot read a plan: its entry {entry.node!r} has what = {entry.what!r}, and that has to be one of "
            f"{', '.join(_ROWS)}. It cannot be edited."
        )
    if entry.what == "call" and entry.mode not in MODES:
        raise UnknownNameError(
            "quantization mode", entry.mode, MODES, note=f"It stands at node {entry.node!r}."
        )
    if entry.what == "edge" and entry.observer:
        make_observer(entry.observer)


def _cells(entry: PlanEntry) -> tuple[str, ...]:
    cells = [str(getattr(entry, name)) for name in _COLUMNS]
    # The folder of a program is of no use in a table.
    cells[-1] = cells[-1].replace("\\", "/").rpartition("/")[2]
    return tuple(cells)


def _lines(entries: Iterable[PlanEntry]) -> list[str]:
    return ["  ".join(cell or "-" for cell in _cells(entry)) for entry in entries]
