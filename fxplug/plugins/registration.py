"""Checking what a plugin brings before it takes part: its hook implementations and its records."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from difflib import get_close_matches
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from fxplug.errors import PluginError
from fxplug.plugins.markers import PROJECT
from fxplug.plugins.offers import CORE
from fxplug.plugins.record_checks import check_record
from fxplug.plugins.records import (
    BackendRecord,
    CommandRecord,
    ConstantRecord,
    DecompositionRecord,
    DeviceRecord,
    EffectRecord,
    FlopFormulaRecord,
    HookFailure,
    PassRecord,
    ReportSectionRecord,
    StorageTargetRecord,
)
from fxplug.plugins.refusal import Refused, check_name, is_text_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    import pluggy


__all__ = [
    "FAILURES",
    "RECORDS",
    "Implementation",
    "Refused",
    "blaming",
    "by_position",
    "check_plugin_name",
    "collect_records",
    "implementations_of",
    "name_list",
    "program_table",
    "takes_subject",
    "wants_subject_alone",
]


FAILURES = (Exception, SystemExit)
"""How a hook fails: leaving the process is not for a plugin to decide."""


@dataclass(frozen=True)
class Implementation:
    """One plugin's implementation of one hook."""

    hook: str
    plugin: str
    provider: str
    """Distribution and version."""
    function: Callable[..., Any]
    """Takes all arguments of the hook, by position."""
    failures: list[HookFailure]
    """Where a call that failed is noted."""
    short: Callable[..., Any] | None = None
    """Takes the first argument alone, where the implementation asks for no more: one call less."""
    takes_subject: bool = True
    """Whether the implementation asks for the first argument of the hook."""

    def failed(self, error: BaseException) -> PluginError:
        """Note that a call raised `error`, and return the error to be raised instead."""
        return self._failure(f"raised {type(error).__name__}: {error}")

    def refused(self, answer: object, allowed: str) -> PluginError:
        """Note that a call gave an answer that the hook does not allow, and return the error to be raised."""
        return self._failure(f"returned {answer!r}; it may return {allowed}")

    def _failure(self, reason: str) -> PluginError:
        failure = HookFailure(self.hook, reason)
        if failure not in self.failures:  # A hot hook fails in the same way again and again.
            self.failures.append(failure)
        if self.plugin == CORE:
            return PluginError(
                f"Hook {self.hook!r} of {self.provider} itself {reason}. Report it to the authors of fxplug.",
                code="FXP-H004",
            )
        return PluginError(
            f"Hook {self.hook!r} of plugin {self.plugin!r} ({self.provider}) {reason}. Report it to its "
            f"authors, or switch the plugin off: FXPLUG_DISABLE_PLUGINS={self.plugin}.",
            code="FXP-H004",
        )


def blaming(
    implementation: Implementation, fault: Callable[[Any, tuple[Any, ...], dict[str, Any]], str | None]
) -> Callable[..., Any]:
    """Return the function of an implementation so that an error in it says whose it is.

    Args:
        implementation: Holds the function.
        fault: Given an answer with the positional and keyword arguments, says what is allowed instead; None for an
            answer that is.
    """
    function = implementation.function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = function(*args, **kwargs)
        except FAILURES as error:
            raise implementation.failed(error) from error
        allowed = fault(answer, args, kwargs)
        if allowed is not None:
            raise implementation.refused(answer, allowed)
        return answer

    return call


def check_plugin_name(name: str) -> None:
    """Refuse a name that could not serve as a namespace.

    Raises:
        Refused: It is malformed or reserved.
    """
    check_name(name, "its entry point")
    if name == CORE:
        raise Refused(f"its entry point is named {CORE!r}, which is reserved for fxplug itself")


def name_list(module: ModuleType, attribute: str) -> tuple[str, ...]:
    """Return the list of names that a plugin's module holds, empty when it holds none.

    Raises:
        Refused: It is something else than a list of texts.
    """
    # Not getattr: a module may do whatever it likes when a name is missing.
    value: Any = vars(module).get(attribute, ())
    if not is_text_list(value):
        raise Refused(f"{attribute} is {value!r}; it must be a list of plugin names")
    return tuple(value)


def program_table(module: ModuleType) -> dict[str, str]:
    """Return the programs outside Python that a plugin's module names in ``PLUGIN_PROGRAMS`` -> what for.

    Raises:
        Refused: It is something else than a dict of texts.
    """
    value: Any = vars(module).get("PLUGIN_PROGRAMS", {})
    if not isinstance(value, dict) or not all(
        isinstance(text, str) for entry in cast("dict[Any, Any]", value).items() for text in entry
    ):
        raise Refused(f"PLUGIN_PROGRAMS is {value!r}; it must be a dict of programs and what they are for")
    return dict(cast("dict[str, str]", value))


# -- hook implementations ------------------------------------------------------------------------------------


def implementations_of(manager: pluggy.PluginManager, module: ModuleType) -> list[str]:
    """Return the names of the declared hooks that a module implements, after checking each implementation.

    Raises:
        Refused: One of them could not be called as the hook's declaration says.
    """
    declared = {name: caller.spec for name, caller in vars(manager.hook).items() if caller.spec is not None}
    implemented: list[str] = []
    for attribute in dir(module):
        options = manager.parse_hookimpl_opts(module, attribute)
        if options is None:
            _check_unmarked(attribute, vars(module).get(attribute), declared)
            continue
        hook = options.get("specname") or attribute
        if hook in declared:
            arguments = (*declared[hook].argnames, *declared[hook].kwargnames)
            _check_implementation(hook, getattr(module, attribute), arguments, options)
            implemented.append(hook)
        elif not options.get("optionalhook"):
            raise Refused(_unknown_hook(hook, declared))
    return sorted(implemented)


def _check_unmarked(name: str, value: Any, declared: Iterable[str]) -> None:
    """Refuse a function that has the name of a hook of fxplug, and that nobody would ever call."""
    if (
        not name.startswith(f"{PROJECT}_")
        or not isinstance(value, FunctionType)
        or hasattr(value, f"{PROJECT}_impl")
    ):
        return
    if f"{value.__module__}.".startswith(f"{PROJECT}."):
        return  # What fxplug itself defines may be called whatever the plugin likes.
    if name in declared:
        raise Refused(f"its {name!r} is not marked as the implementation of a hook; add @{PROJECT}.hookimpl")
    nearest = get_close_matches(name, declared, n=1, cutoff=0.0)
    raise Refused(
        f"its function {name!r} has a name that belongs to hooks of fxplug, and there is no such hook; rename it, or "
        f"write {nearest[0]!r} with @{PROJECT}.hookimpl if that is meant"
    )


def _unknown_hook(hook: str, declared: Iterable[str]) -> str:
    # Hooks have long beginnings in common: only the nearest one is meant.
    is_ours = hook.startswith(f"{PROJECT}_")
    nearest = get_close_matches(hook, declared, n=1, cutoff=0.0 if is_ours else 0.8)
    if nearest:
        return f"it implements the unknown hook {hook!r}. Did you mean {nearest[0]!r}?"
    return (
        f"it implements the hook {hook!r}, which neither fxplug nor an active plugin declares; if it belongs to a "
        f"plugin that may be absent, mark it with @hookimpl(optionalhook=True)"
    )


def _check_implementation(
    hook: str, function: Callable[..., Any], declared: tuple[str, ...], options: pluggy.HookimplOpts
) -> None:
    if options.get("wrapper") or options.get("hookwrapper"):
        raise Refused(f"its {hook!r} is a wrapper; hooks of fxplug have answers of their own and no wrappers")
    if inspect.iscoroutinefunction(function):
        raise Refused(f"its {hook!r} is a coroutine function; write 'def', not 'async def'")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise Refused(f"its {hook!r} takes {str(parameter)!r}; hooks take plain parameters, by name")
        if parameter.default is not parameter.empty:
            raise Refused(
                f"its {hook!r} gives the parameter {parameter.name!r} a default value, which may hide what "
                f"fxplug passes; remove the default"
            )
        if parameter.name not in declared:
            offered = f"({', '.join(declared)})" if declared else "no arguments"
            raise Refused(
                f"its {hook!r} takes the unknown parameter {parameter.name!r}; the hook offers {offered}"
            )


def wants_subject_alone(function: Callable[..., Any], declared: tuple[str, ...]) -> bool:
    """Return whether an implementation takes the first argument of its hook and no other."""
    return tuple(inspect.signature(function).parameters) == declared[:1]


def takes_subject(function: Callable[..., Any], declared: tuple[str, ...]) -> bool:
    """Return whether an implementation takes the first argument of its hook."""
    return not set(inspect.signature(function).parameters).isdisjoint(declared[:1])


def by_position(function: Callable[..., Any], declared: tuple[str, ...]) -> Callable[..., Any]:
    """Return `function` so that it can be called with all `declared` arguments by position."""
    wanted = tuple(inspect.signature(function).parameters)
    if wanted == declared:
        return function
    positions = [declared.index(name) for name in wanted]

    def first_of_two(subject: Any, _: Any) -> Any:
        return function(subject)

    def first_of_three(subject: Any, _: Any, __: Any) -> Any:
        return function(subject)

    def two_of_three(subject: Any, other: Any, _: Any) -> Any:
        return function(subject, other)

    def pick(*arguments: Any) -> Any:
        return function(*[arguments[position] for position in positions])

    # Hooks of a trace are called for every node, so the usual cases are spelt out.
    usual: dict[tuple[int, tuple[int, ...]], Callable[..., Any]] = {
        (2, (0,)): first_of_two,
        (3, (0,)): first_of_three,
        (3, (0, 1)): two_of_three,
    }
    return usual.get((len(declared), tuple(positions)), pick)


# -- records -------------------------------------------------------------------------------------------------

RECORDS: dict[str, type[Any]] = {
    "fxplug_register_passes": PassRecord,
    "fxplug_register_backends": BackendRecord,
    "fxplug_register_effects": EffectRecord,
    "fxplug_register_commands": CommandRecord,
    "fxplug_register_constants": ConstantRecord,
    "fxplug_register_decompositions": DecompositionRecord,
    "fxplug_register_devices": DeviceRecord,
    "fxplug_register_flop_formulas": FlopFormulaRecord,
    "fxplug_register_report_sections": ReportSectionRecord,
    "fxplug_register_storage_targets": StorageTargetRecord,
}
"""Hook -> the class of the records that it returns."""


def collect_records(hook: str, function: Callable[[], Any]) -> list[Any]:
    """Return the records that a plugin offers, after checking each.

    Args:
        hook: Name of a hook that returns records.
        function: The plugin's implementation.

    Raises:
        Refused: The implementation raised an error, or returned something else than sound records.
    """
    kind = RECORDS[hook]
    try:
        answer = function()
        records = None if isinstance(answer, kind) else list[Any](answer or ())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Libraries with compiled parts raise what is no Exception.
        raise Refused(f"its {hook!r} raised {type(error).__name__}: {error}") from error
    if records is None:
        raise Refused(f"its {hook!r} returned a {kind.__name__}; it must return a list of them")
    for record in records:
        if not isinstance(record, kind):
            raise Refused(f"its {hook!r} returned {record!r} in the list; it must hold {kind.__name__} only")
        check_record(record)
    names = [record.name for record in records if hasattr(record, "name")]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Refused(f"its {hook!r} offers {twice!r} twice")
    return records
