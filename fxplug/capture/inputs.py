"""The inputs of a trace: one placeholder per parameter, and the call that hands the proxies over."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from fxplug.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = [
    "Given",
    "Input",
    "annotations_of",
    "call_with",
    "first_unknown",
    "inputs_of",
    "name_of",
    "signature_of",
]


@dataclass(frozen=True)
class Input:
    """One parameter of the program."""

    name: str
    """Without stars."""
    stars: str
    """``""``, ``"*"`` or ``"**"``."""
    annotation: Any
    """None where there is none, or where it is text: resolving text would run code."""
    default: Any
    """``inspect.Parameter.empty`` where there is none."""
    keyword_only: bool
    """Whether callers must name it."""
    declared: Any = None
    """What an annotation that is text names; None where it is no plain name."""
    positional_only: bool = False
    """Whether callers must not name it."""

    @property
    def target(self) -> str:
        """The target of the placeholder."""
        return self.stars + self.name


@dataclass(frozen=True)
class Given:
    """How example inputs were given."""

    positional: int
    """How many by their position."""
    names: Collection[str]
    """Which by their name."""


def inputs_of(function: Callable[..., Any]) -> list[Input]:
    """Return the parameters of a function in order.

    Raises:
        TraceError: Python does not know its signature.
    """
    plain = _inputs_of_plain(function)
    if plain is not None:
        return plain
    try:
        parameters = signature_of(function).parameters
    except (TypeError, ValueError) as error:
        raise TraceError(
            f"Cannot trace {function!r}: Python does not know its signature ({error}). Trace a Python function that "
            "calls it, such as a lambda with the parameters that you need."
        ) from error
    annotations = annotations_of(function)
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        Input(
            name,
            stars.get(parameter.kind, ""),
            annotations.get(name),
            parameter.default,
            parameter.kind is inspect.Parameter.KEYWORD_ONLY,
            _named(function, parameter.annotation) if isinstance(parameter.annotation, str) else None,
            parameter.kind is inspect.Parameter.POSITIONAL_ONLY,
        )
        for name, parameter in parameters.items()
    ]


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature by which a function can be called.

    A decorator shows that of the function inside (`functools.wraps`), and may give that some arguments itself. Its own
    counts where it names all of its parameters.

    Raises:
        TypeError: It is nothing that has one.
        ValueError: Python does not know it.
    """
    plain = function.__func__ if isinstance(function, MethodType) else function
    names_all = isinstance(plain, FunctionType) and not plain.__code__.co_flags & _STARS
    return inspect.signature(function, follow_wrapped=not names_all)


_STARS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def _inputs_of_plain(function: Callable[..., Any]) -> list[Input] | None:
    """Return the same for a function or method that nothing is said about but by its code, in a fraction of the time.

    Returns:
        The parameters; None where the signature may be another one, as behind a decorator.
    """
    is_method = isinstance(function, MethodType)
    plain = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(plain, FunctionType) or plain.__dict__:
        return None
    code, defaults = plain.__code__, plain.__defaults__ or ()
    count = code.co_argcount
    if count < is_method or len(defaults) > count:
        return None
    names, annotations, by_name = code.co_varnames, plain.__annotations__, plain.__kwdefaults__ or {}
    behind = count + code.co_kwonlyargcount
    values = (*[_EMPTY] * (count - len(defaults)), *defaults)
    # Name, stars, default, whether it must be named, whether it must not.
    rows: list[tuple[str, str, Any, bool, bool]] = [
        (names[place], "", values[place], False, place < code.co_posonlyargcount)
        for place in range(is_method, count)
    ]
    if code.co_flags & inspect.CO_VARARGS:
        rows.append((names[behind], "*", _EMPTY, False, False))
    rows += [(name, "", by_name.get(name, _EMPTY), True, False) for name in names[count:behind]]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        last = behind + 1 if code.co_flags & inspect.CO_VARARGS else behind
        rows.append((names[last], "**", _EMPTY, False, False))
    found: list[Input] = []
    for name, stars, default, must_name, must_not in rows:
        said = annotations.get(name)
        is_text = isinstance(said, str)
        declared = _named(function, said) if is_text else None
        found.append(Input(name, stars, None if is_text else said, default, must_name, declared, must_not))
    return found


_EMPTY = inspect.Parameter.empty


def _named(function: Callable[..., Any], text: str) -> Any:
    """Return what a name, dotted or not, stands for where a function was defined; nothing is run for it."""
    target = inspect.unwrap(function)
    namespace: dict[str, Any] = getattr(getattr(target, "__func__", target), "__globals__", {})
    first, *rest = text.strip().strip("'").split(".")
    value = namespace.get(first, _BUILTINS.get(first))
    for name in rest:
        value = vars(value).get(name) if isinstance(value, ModuleType) else None
    return value


_BUILTINS: dict[str, Any] = {kind.__name__: kind for kind in (bool, dict, float, int, list, str, tuple)}


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function that are objects; those that are text are left out."""
    target = inspect.unwrap(function) if hasattr(function, "__wrapped__") else function
    target = getattr(target, "__func__", target)
    found: dict[str, Any] = getattr(target, "__annotations__", {})
    return {name: value for name, value in found.items() if not isinstance(value, str)}


def name_of(function: Callable[..., Any]) -> str:
    """Return a name of a callable for messages."""
    # Not as a default of getattr: the text of a bound method is that of its module, with all that is below.
    return function.__qualname__ if hasattr(function, "__qualname__") else repr(function)


def call_with(
    function: Callable[..., Any], inputs: list[Input], values: list[Any], given: Given | None = None
) -> Any:
    """Call a function with one value per parameter; the value of a starred parameter is what the function sees there.

    Args:
        function: What is called.
        inputs: Its parameters.
        values: Of each parameter.
        given: How the examples were given, for a decorator that may ask; None where there are none: by position what
            can be.

    Raises:
        TraceError: How many values a starred parameter receives is unknown, and the function is not written in Python,
            or is hidden by a decorator.
    """
    if first_unknown(inputs, values) is None:
        args, named = _arguments(inputs, values, given)
        return function(*args, **named)
    plain, receiver = (
        (function.__func__, [function.__self__]) if isinstance(function, MethodType) else (function, [])
    )
    if not isinstance(plain, FunctionType) or hasattr(plain, "__wrapped__"):
        starred = first_unknown(inputs, values)
        none = f"concrete_args={{{str(starred).lstrip('*')!r}: {'{}' if str(starred).startswith('**') else '()'}}}"
        raise TraceError(
            f"Cannot trace {name_of(function)!r}: how many values {starred} receives is unknown, and the function is "
            "not plain Python, so that a stand-in for all of them could be handed over. Trace it on example inputs "
            f"(mode='value' or 'shape'), which say how many there are, say that there are none ({none}), or trace a "
            "function with a fixed number of parameters that calls it.",
            code="FXP-T008",
        )
    if receiver and not plain.__code__.co_argcount:
        raise TraceError(
            f"Cannot trace {name_of(function)!r}: its starred parameter receives the object itself and an unknown "
            "number of values. Give it a parameter self in front of it, or fix the number of values in concrete_args: "
            "a tuple with fxplug.PH for each.",
            code="FXP-T008",
        )
    by_name = {entry.name: value for entry, value in zip(inputs, values, strict=True)}
    # The same code with its starred parameters turned into plain ones: each then is the stand-in itself.
    code = plain.__code__
    count = code.co_argcount + code.co_kwonlyargcount + sum(1 for entry in inputs if entry.stars)
    opened = code.replace(
        co_argcount=count,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
    )
    callee = FunctionType(opened, plain.__globals__, plain.__name__, None, plain.__closure__)
    order = code.co_varnames[len(receiver) : count]
    return callee(*receiver, *(by_name[name] for name in order))


def first_unknown(inputs: list[Input], values: list[Any]) -> str | None:
    """Return the first starred parameter of which the number of values is unknown, None where there is none."""
    for entry, value in zip(inputs, values, strict=True):
        if entry.stars and not isinstance(value, tuple if entry.stars == "*" else dict):
            return entry.target
    return None


def _arguments(
    inputs: list[Input], values: list[Any], given: Given | None
) -> tuple[list[Any], dict[str, Any]]:
    """Return with what a function is called, by position and by name."""
    args: list[Any] = []
    named: dict[str, Any] = {}
    for place, (entry, value) in enumerate(zip(inputs, values, strict=True)):
        if entry.stars == "*":
            args += value
        elif entry.stars:
            named.update(value)
        elif not entry.keyword_only and (given is None or place < given.positional or entry.positional_only):
            args.append(value)
        # What is left out has to be its default: a number that stands for others is not.
        elif given is None or entry.name in given.names or value is not entry.default:
            named[entry.name] = value
    return args, named
