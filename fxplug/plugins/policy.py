"""The plugins' answers to the questions of a tracer.

Whether a module is a leaf is decided by the first of these that has an answer: the globs
``trace.through_modules``, the globs ``trace.leaf_modules``, the plugins in order, the tracer itself. The
configuration comes first because it is the user's own word.
"""

from __future__ import annotations

import fnmatch
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import nn

from fxplug.capture import Proxy, TraceContext, TracePolicy, lifting
from fxplug.ir.node import EarlyNotes
from fxplug.plugins.leaf_functions import functions_named
from fxplug.plugins.offers import CORE
from fxplug.plugins.records import PluginWarning
from fxplug.plugins.registration import FAILURES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fxplug.errors import PluginError
    from fxplug.ir import Node
    from fxplug.plugins.records import ConstantRecord
    from fxplug.plugins.registration import Implementation
    from fxplug.plugins.settings import TraceConfig

__all__ = ["ModuleGlobs", "class_paths", "create_policy", "first_answer", "observer"]

Implementations = Callable[[str], "Sequence[Implementation]"]
"""Returns the implementations of a hook, in the order in which they are asked."""


def create_policy(
    implementations: Implementations,
    config: TraceConfig,
    *,
    strict: bool = False,
    constants: Iterable[ConstantRecord] = (),
    places: Sequence[str] = (),
) -> TracePolicy:
    """Return a policy that asks plugins; each question that nobody answers is None.

    Args:
        implementations: Whom to ask.
        config: The user's own rules.
        strict: Whether an observer that fails ends the trace.
        constants: Whose values are constants of the graph.
        places: Where each of the configured leaf functions stands, for errors.
    """
    proxies = implementations("fxplug_create_proxy")
    by_node = any(implementation.takes_subject for implementation in proxies)
    return TracePolicy(
        is_leaf_module=_leaf_question(implementations("fxplug_is_leaf_module"), config),
        create_argument=_argument_question(implementations("fxplug_create_argument")),
        lift_constant=lifting(constants),
        proxy_mixins=_mixin_question(proxies) if by_node else None,
        mixins_of_kind=None if by_node else _kind_question(proxies),
        node_created=_note_question(implementations("fxplug_node_created")),
        unwrap_module=_unwrap_question(implementations("fxplug_unwrap_module")),
        leaf_functions=_function_question(
            implementations("fxplug_leaf_functions"), config.leaf_functions, places
        ),
        trace_started=observer(implementations("fxplug_trace_started"), strict=strict),
        trace_finished=observer(implementations("fxplug_trace_finished"), strict=strict),
    )


# -- leaf modules --------------------------------------------------------------------------------------------


class ModuleGlobs:
    """Decides about modules by globs over class paths and qualified names. Nothing is imported.

    A class path is any path under which a loaded package holds the class: ``torch.nn.Linear`` as well as
    ``torch.nn.modules.linear.Linear``. A glob means the class itself, not those derived from it. ``*`` also
    matches dots.

    Args:
        leaf: Globs of modules that stay one node.
        through: Globs of modules whose forward is traced. They prevail.
    """

    def __init__(self, leaf: Sequence[str], through: Sequence[str]) -> None:
        self._rules = [
            (_one_pattern(globs), answer, globs)
            for globs, answer in ((through, False), (leaf, True))
            if globs
        ]
        self._by_class: WeakKeyDictionary[type[nn.Module], tuple[bool, ...]] = WeakKeyDictionary()

    def __bool__(self) -> bool:
        return bool(self._rules)

    def answer(self, module: nn.Module, qualified_name: str) -> bool | None:
        """Return whether a module is a leaf, None when no glob matches."""
        rule = self._deciding_rule(module, qualified_name)
        return None if rule is None else rule[1]

    def deciding_glob(self, module: nn.Module, qualified_name: str) -> tuple[bool, int] | None:
        """Return the answer for a module and the position, in its list, of the glob that gives it; None as `answer`."""
        rule = self._deciding_rule(module, qualified_name)
        if rule is None:
            return None
        _, answer, globs = rule
        names = [*class_paths(type(module)), qualified_name]
        position = next(
            position
            for position, glob in enumerate(globs)
            if any(_one_pattern([glob]).fullmatch(name) for name in names)
        )
        return answer, position

    def _deciding_rule(
        self, module: nn.Module, qualified_name: str
    ) -> tuple[re.Pattern[str], bool, Sequence[str]] | None:
        kind = type(module)
        matches = self._by_class.get(kind)
        if matches is None:
            paths = class_paths(kind)
            matches = tuple(any(rule[0].fullmatch(path) for path in paths) for rule in self._rules)
            self._by_class[kind] = matches
        for matched, rule in zip(matches, self._rules, strict=True):
            if matched or rule[0].fullmatch(qualified_name):
                return rule
        return None


def _one_pattern(globs: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs))


def class_paths(kind: type[Any]) -> list[str]:
    """Return the path at which a class is defined, and those at which the packages around it hold it too."""
    name = kind.__qualname__
    paths = [f"{kind.__module__}.{name}"]
    package = kind.__module__.rpartition(".")[0]
    while package:
        loaded = sys.modules.get(package)
        # Not getattr: a package may import on access.
        if loaded is not None and vars(loaded).get(name) is kind:
            paths.append(f"{package}.{name}")
        package = package.rpartition(".")[0]
    return paths


def _leaf_question(
    implementations: Sequence[Implementation], config: TraceConfig
) -> Callable[[nn.Module, str, TraceContext], bool | None] | None:
    globs = ModuleGlobs(config.leaf_modules, config.through_modules)
    # The rule of fxplug itself is the function that every tracer asks at last, where a subclass may override it.
    plugins = [implementation for implementation in implementations if implementation.plugin != CORE]
    ask_plugins = first_answer(plugins, _is_bool, "True, False or None") if plugins else None
    if not globs:
        return ask_plugins
    if ask_plugins is None:
        return lambda module, qualified_name, _: globs.answer(module, qualified_name)

    def ask(module: nn.Module, qualified_name: str, context: TraceContext) -> bool | None:
        answer = globs.answer(module, qualified_name)
        return ask_plugins(module, qualified_name, context) if answer is None else answer

    return ask


# -- other questions -----------------------------------------------------------------------------------------


def first_answer(
    implementations: Sequence[Implementation], is_allowed: Callable[[Any, Any], bool], allowed: str
) -> Callable[..., Any]:
    """Return a function that asks one after the other until somebody has an opinion.

    Args:
        implementations: Who is asked, in order.
        is_allowed: Called with (answer, first argument of the question).
        allowed: What may be answered, for errors.
    """

    def judge(answer: Any, subject: Any, implementation: Implementation) -> Any:
        if not is_allowed(answer, subject):
            raise implementation.refused(answer, allowed)
        return answer

    # Two questions are asked about modules while they are called. Written out, they take half the time.
    usual = {"fxplug_unwrap_module": _ask_one, "fxplug_is_leaf_module": _ask_three}
    return usual.get(implementations[0].hook, _ask_any)(implementations, judge)


_Judge = Callable[[Any, Any, "Implementation"], Any]


def _ask_one(implementations: Sequence[Implementation], judge: _Judge) -> Callable[..., Any]:
    return _ask_about_subject([(one.function, one) for one in implementations], judge)


def _ask_about_subject(
    functions: Sequence[tuple[Callable[..., Any], Implementation]], judge: _Judge
) -> Callable[..., Any]:
    """Return the question for functions that take the first argument alone, whatever else there is to tell."""

    def ask(subject: Any, second: Any = None, third: Any = None) -> Any:
        for function, implementation in functions:
            try:
                answer = function(subject)
            except FAILURES as error:
                raise implementation.failed(error) from error
            if answer is not None:
                return judge(answer, subject, implementation)
        return None

    return ask


def _ask_three(implementations: Sequence[Implementation], judge: _Judge) -> Callable[..., Any]:
    shorts = [(one.short, one) for one in implementations if one.short is not None]
    if len(shorts) == len(implementations):
        return _ask_about_subject(shorts, judge)
    functions = _with_short(implementations)

    def ask(subject: Any, second: Any, third: Any) -> Any:
        for short, function, implementation in functions:
            try:
                answer = short(subject) if short is not None else function(subject, second, third)
            except FAILURES as error:
                raise implementation.failed(error) from error
            if answer is not None:
                return judge(answer, subject, implementation)
        return None

    return ask


def _ask_any(implementations: Sequence[Implementation], judge: _Judge) -> Callable[..., Any]:
    functions = [(implementation.function, implementation) for implementation in implementations]

    def ask(subject: Any, *others: Any) -> Any:
        for function, implementation in functions:
            try:
                answer = function(subject, *others)
            except FAILURES as error:
                raise implementation.failed(error) from error
            if answer is not None:
                return judge(answer, subject, implementation)
        return None

    return ask


def _with_short(
    implementations: Sequence[Implementation],
) -> list[tuple[Callable[..., Any] | None, Callable[..., Any], Implementation]]:
    return [
        (implementation.short, implementation.function, implementation) for implementation in implementations
    ]


def _is_bool(answer: Any, _: Any) -> bool:
    return answer is True or answer is False


def _is_other_module(answer: Any, module: Any) -> bool:
    return isinstance(answer, nn.Module) and answer is not module


def _is_other_value(answer: Any, value: Any) -> bool:
    return answer is not value


def _argument_question(
    implementations: Sequence[Implementation],
) -> Callable[[Any, TraceContext], Any] | None:
    if not implementations:
        return None
    return first_answer(implementations, _is_other_value, "another value, or None")


def _unwrap_question(
    implementations: Sequence[Implementation],
) -> Callable[[nn.Module], nn.Module | None] | None:
    if not implementations:
        return None
    return first_answer(implementations, _is_other_module, "the module inside, or None")


def _function_question(
    implementations: Sequence[Implementation], configured: Sequence[str], places: Sequence[str]
) -> Callable[[], Iterable[Callable[..., Any]]] | None:
    if not implementations and not configured:
        return None

    def ask() -> list[Callable[..., Any]]:
        functions: list[Callable[..., Any]] = functions_named(configured, places)
        for implementation in implementations:
            try:
                answer = implementation.function()
                answers = None if answer is None else list(answer)
            except FAILURES as error:
                raise implementation.failed(error) from error
            if answers is None:
                continue
            if not all(map(callable, answers)):
                raise implementation.refused(answers, "functions, or None")
            functions += answers
        return functions

    return ask


def _note_question(
    implementations: Sequence[Implementation],
) -> Callable[[Node, TraceContext], Mapping[str, Any] | None] | None:
    if not implementations:
        return None

    functions = _with_short(implementations)

    def ask(node: Node, context: TraceContext) -> Mapping[str, Any] | None:
        notes, count = EarlyNotes(), 0
        answers: list[dict[str, Any]] = []
        for short, function, implementation in functions:
            try:
                answer = short(node) if short is not None else function(node, context)
            except FAILURES as error:
                raise implementation.failed(error) from error
            if (
                type(answer) is not dict
            ):  # As most are: asking whether it is a Mapping takes longer than all the rest.
                if answer is None:
                    continue
                if not isinstance(answer, Mapping):
                    raise implementation.refused(answer, "a mapping of notes, or None")
                answer = dict(answer)
            answers.append(answer)
            count += len(answer)
            notes |= answer
        if len(notes) != count:  # Of several notes under one name, the first one counts.
            for answer in reversed(answers):
                notes |= answer
        return notes

    return ask


def _mixin_question(
    implementations: Sequence[Implementation],
) -> Callable[[Node, str, TraceContext], tuple[type, ...]] | None:
    if not implementations:
        return None
    functions = [(short, function) for short, function, _ in _with_short(implementations)]
    # Asked for every node: what the same answers made before is looked up, not checked again.
    chains: dict[tuple[type | None, ...], tuple[type, ...]] = {}

    def ask(node: Node, kind: str, context: TraceContext) -> tuple[type, ...]:
        answers: list[Any] = []
        try:
            for short, function in functions:
                answers.append(short(node) if short is not None else function(node, kind, context))
        except FAILURES as error:
            raise implementations[len(answers)].failed(error) from error
        given = tuple(answers)
        try:
            return chains[given]
        except (KeyError, TypeError):  # New, or nothing that can be a key.
            chain = chains[given] = _chain_of(given, implementations)
            return chain

    return ask


def _kind_question(
    implementations: Sequence[Implementation],
) -> Callable[[str, TraceContext], tuple[type, ...]] | None:
    """Return the question for implementations none of which looks at the node."""
    ask = _mixin_question(implementations)
    nothing: Any = None
    return None if ask is None else lambda kind, context: ask(nothing, kind, context)


def _chain_of(answers: Sequence[Any], implementations: Sequence[Implementation]) -> tuple[type, ...]:
    """Return the classes among the answers, each once, in order; refuse what cannot be mixed in."""
    mixins: dict[type, Implementation] = {}
    for answer, implementation in zip(answers, implementations, strict=True):
        if answer is not None:
            if not isinstance(answer, type) or issubclass(answer, Proxy):
                raise implementation.refused(answer, "a class that is not derived from Proxy, or None")
            mixins.setdefault(answer, implementation)
    _check_chain(mixins)
    return tuple(mixins)


def _check_chain(mixins: Mapping[type, Implementation]) -> None:
    """Refuse mixins that Python cannot combine in one class."""
    chain: tuple[type, ...] = ()
    for mixin, implementation in mixins.items():
        chain = (*chain, mixin)
        try:
            type("Chain", (*chain, Proxy), {})
        except TypeError as error:
            others = ", ".join(f"{other.__qualname__} of {mixins[other].plugin!r}" for other in chain[:-1])
            beside = f" beside {others}" if others else ""
            raise implementation.refused(
                mixin, f"a class that combines with fxplug's proxy{beside} ({error})"
            ) from error


# -- observers -----------------------------------------------------------------------------------------------


def observer(implementations: Sequence[Implementation], *, strict: bool) -> Callable[[Any], None] | None:
    """Return a function that tells every implementation of an event, None when there is none.

    Args:
        implementations: Who hears of the event.
        strict: Whether one that fails raises a `PluginError`; otherwise it is a `PluginWarning`, and the
            others still hear.
    """
    if not implementations:
        return None

    def tell(event: Any) -> None:
        for implementation in implementations:
            try:
                implementation.function(event)
            except FAILURES as error:
                failure: PluginError = implementation.failed(error)
                if strict:
                    raise failure from error
                warnings.warn(failure.message, PluginWarning, stacklevel=2)

    return tell
