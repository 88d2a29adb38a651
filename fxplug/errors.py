"""The exception tree: every error that fxplug raises on purpose, with the data it carries.

A message says what was attempted, names the thing, says what was found and what to do next. Where a caller
would naturally catch a builtin (`ValueError`, `LookupError`, ...), the class inherits from it as well.
"""

from __future__ import annotations

from contextvars import ContextVar
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "AnalysisError",
    "BackendError",
    "CacheWarning",
    "CodegenError",
    "ConfigError",
    "DecompositionError",
    "FingerprintError",
    "ForeignNodeError",
    "FxplugError",
    "GraphError",
    "GuardError",
    "GuardWarning",
    "IncompatiblePluginError",
    "InvalidArgumentError",
    "LoweringError",
    "NodeInUseError",
    "NotConvertibleError",
    "PartitionError",
    "PassError",
    "PassOrderError",
    "PassTimeoutError",
    "PassWorkerError",
    "PatternError",
    "PluginConflictError",
    "PluginError",
    "PluginLoadError",
    "StorageError",
    "TraceError",
    "TraceWarning",
    "UnknownNameError",
    "UnresolvedReferenceError",
    "VerificationError",
    "did_you_mean",
    "shown",
    "trace_errors",
]


_MOST_SHOWN = 77


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that offers the nearest known names.

    Args:
        name: What the caller wrote.
        known: Every name that would have been accepted.

    Returns:
        ``"Did you mean 'a' or 'b'?"`` when something is near, else the sorted list of known names, else
        ``"None is available."``.
    """
    choices = sorted(set(known))
    near = get_close_matches(name, choices, n=3, cutoff=0.6)
    if near:
        return f"Did you mean {' or '.join(repr(choice) for choice in near)}?"
    if choices:
        return f"Available: {', '.join(repr(choice) for choice in choices)}."
    return "None is available."


def shown(value: object) -> str:
    """Return a value for messages, in one line of at most 80 characters: a tensor's numbers help nobody."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # What it is has to be said all the same.
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


class FxplugError(Exception):
    """Base of every error raised on purpose."""

    code: str = "FXP-E000"
    """Stable identifier of the kind of error; the documentation has one entry for each."""

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders; those that build their message from parts cannot be made from it again.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[FxplugError], args: tuple[Any, ...], state: dict[str, Any]) -> FxplugError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


trace_errors: ContextVar[list[TraceError] | None] = ContextVar("trace_errors", default=None)
"""Those that were made since a trace began that runs in this thread or task."""


class TraceError(FxplugError, ValueError):
    """A program could not be captured faithfully.

    Attributes:
        problems: With ``on_error="collect"``, everything that was found.
        stands_on_examples: Whether a capture on example inputs is refused for the same reason.
    """

    code = "FXP-T000"
    stands_on_examples: bool = False
    problems: tuple[TraceError, ...] = ()

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message, code=code)
        made = trace_errors.get()
        if made is not None:
            made.append(self)


class TraceWarning(UserWarning):
    """A program was captured, but something that it did while it ran is not part of the captured program."""


class GuardError(FxplugError, RuntimeError):
    """A captured program was called with inputs for which the program might do something else than was captured.

    Args:
        message: What was assumed, where, and what was found.
        can_run_again: Whether nothing had been changed yet when it was found out.
    """

    code = "FXP-T060"

    def __init__(self, message: str, *, code: str | None = None, can_run_again: bool = True) -> None:
        super().__init__(message, code=code)
        self.can_run_again = can_run_again


class GuardWarning(UserWarning):
    """A guard of a captured program does not hold, and it was run all the same (``on_guard_failure="warn"``)."""


class GraphError(FxplugError, RuntimeError):
    """A graph was edited or read in a way that would break it."""

    code = "FXP-G000"


class NodeInUseError(GraphError):
    """A node that other nodes still use was to be erased."""

    code = "FXP-G001"


class ForeignNodeError(GraphError):
    """A node of another graph, or one that was erased, was used as an argument."""

    code = "FXP-G002"


class InvalidArgumentError(GraphError, TypeError):
    """A value cannot stand in a graph, or an immutable argument was to be changed."""

    code = "FXP-G003"


class VerificationError(GraphError):
    """A graph does not fulfil its invariants; `findings` lists each violation."""

    code = "FXP-G004"

    def __init__(self, message: str, findings: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.findings = tuple(findings)


class PartitionError(GraphError):
    """Nodes cannot run together as one part of a program; no graph was changed."""

    code = "FXP-G030"


class CodegenError(FxplugError, RuntimeError):
    """A graph could not be turned into Python source."""

    code = "FXP-C000"


class PassError(FxplugError, RuntimeError):
    """A pass failed; the module is as it was before the pass."""

    code = "FXP-P000"


class PassOrderError(PassError):
    """The declared order of passes has a cycle."""

    code = "FXP-P001"


class FingerprintError(PassError, ValueError):
    """A pipeline holds a value of which nobody can tell whether another one is equal to it."""

    code = "FXP-P020"


class PassTimeoutError(PassError):
    """A pass ran longer than it may; the module is as it was before the pass."""

    code = "FXP-P021"


class PassWorkerError(PassError):
    """A pass could not run in a process of its own, or its process ended; the module is as it was before the pass."""

    code = "FXP-P022"


class PatternError(FxplugError, ValueError):
    """A pattern or its replacement cannot be used; no graph was changed."""

    code = "FXP-R000"


class DecompositionError(FxplugError, RuntimeError):
    """A call cannot be broken into others; the message names the node and the rule."""

    code = "FXP-R001"


class AnalysisError(FxplugError, ValueError):
    """Something cannot be found out about a graph; the message names the node and what is missing."""

    code = "FXP-A000"


class LoweringError(FxplugError, RuntimeError):
    """A partition could not be lowered."""

    code = "FXP-L000"


class CacheWarning(UserWarning):
    """A cache of compiled engines could not be used, or something in it; the work was done without it."""


class BackendError(LoweringError):
    """A backend cannot work here, for example because its engine is not installed."""

    code = "FXP-L001"


class NotConvertibleError(BackendError):
    """A call cannot be expressed by what an engine has.

    Attributes:
        node: Name of the call; empty where it is not known.
        source: Its line in the program, as file, line and function; empty where it is not known.
    """

    code = "FXP-L010"
    node: str = ""
    source: str = ""


class StorageError(FxplugError, ValueError):
    """A file could not be written, or does not hold what it should."""

    code = "FXP-S000"


class ConfigError(FxplugError, ValueError):
    """A configuration value is unknown or has the wrong form."""

    code = "FXP-F000"


class UnknownNameError(FxplugError, LookupError):
    """Nothing of that kind has the given name."""

    code = "FXP-F001"

    def __init__(self, kind: str, name: str, known: Iterable[str], *, note: str = "") -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(sorted(set(known)))
        message = f"There is no {kind} named {name!r}. {did_you_mean(name, self.known)}"
        super().__init__(f"{message} {note}" if note else message)


class UnresolvedReferenceError(FxplugError, ValueError):
    """A reference such as ``package.module:callable`` does not lead to an object."""

    code = "FXP-F002"


class PluginError(FxplugError, RuntimeError):
    """Something about a plugin is wrong."""

    code = "FXP-H000"


class PluginLoadError(PluginError):
    """A plugin could not be imported or registered."""

    code = "FXP-H001"


class PluginConflictError(PluginError):
    """Two plugins claim the same name."""

    code = "FXP-H002"


class IncompatiblePluginError(PluginError):
    """A plugin asks for another version of fxplug than the one that runs."""

    code = "FXP-H003"
