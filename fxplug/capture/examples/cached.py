"""Calls of functions whose results are kept (``functools.lru_cache``) with numbers that hang on the inputs.

Such a function looks its result up by the numbers, which would have to be fixed. One that computes nothing but numbers
of them, such as the sizes of a reshape, computes the same whether its results are kept or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch.overrides import TorchFunctionMode

from fxplug.capture.examples.numbers import NumberProxy, SizeProxy
from fxplug.capture.examples.parts import numbers_in
from fxplug.semantics.internals import put_on_calls, take_off_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    _Arguments = tuple[tuple[Any, ...], dict[str, Any]]

__all__ = ["NOTHING", "computed_of_numbers", "containers_in", "exact_of", "is_as_kept"]

NOTHING: Any = object()
"""Stands for no result."""
_CONTAINERS = frozenset({tuple, list, dict, torch.Size, SizeProxy})
_NUMBERS = frozenset({int, float, bool, str, type(None), torch.dtype})


class _NotOfNumbersError(BaseException):
    """A function that was to compute numbers calls torch. No program catches it."""


class _NoCalls(TorchFunctionMode):
    """Lets no function of torch be called but by the tracer itself.

    Args:
        is_of_tracer: Whether the tracer calls.
    """

    def __init__(self, is_of_tracer: Callable[[], bool]) -> None:
        self._is_of_tracer = is_of_tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """End the function that calls."""
        if not self._is_of_tracer():
            raise _NotOfNumbersError
        return func(*args, **(kwargs or {}))


def computed_of_numbers(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_of_tracer: Callable[[], bool]
) -> Any:
    """Return what a function computes whose results are kept, with numbers that hang on the inputs.

    Args:
        function: What `functools.lru_cache` has made.
        args: Of the call.
        kwargs: Of the call.
        is_of_tracer: Whether a call of torch, at the moment, is one of the tracer.

    Returns:
        Numbers, texts, and tuples, lists and dicts of them; `NOTHING` where no such number is among the arguments, and
        where the function has to be called for one number each: it works with tensors or objects, or fails.
    """
    inner: Callable[..., Any] | None = getattr(function, "__wrapped__", None)
    if inner is None or not any(True for _ in numbers_in((args, kwargs))) or not _is_key((args, kwargs)):
        return NOTHING
    mode = _NoCalls(is_of_tracer)
    put_on_calls(mode)
    try:
        result = inner(*args, **kwargs)
    except (_NotOfNumbersError, Exception):
        return NOTHING
    finally:
        take_off_calls(mode)
    return result if _is_of_numbers(result) else NOTHING


def is_as_kept(run: Callable[..., Any], function: Any, arguments: _Arguments, found: Any) -> bool:
    """Return whether a function gives, for the numbers of the examples, what it has computed with what stands for them.

    It does not if its result hangs on something else, which may have been another when the result was kept.

    Args:
        run: Calls a function as if nothing were traced.
        function: What `functools.lru_cache` has made.
        arguments: Of the call.
        found: What it has computed.
    """
    args, kwargs = arguments
    try:
        kept = run(function, *exact_of(args), **exact_of(kwargs))
    except Exception:
        return False
    return repr(exact_of(found)) == repr(kept)


def exact_of(value: Any) -> Any:
    """Return a nested value with the numbers of the examples for those that hang on the inputs."""
    if isinstance(value, NumberProxy):
        return value.value
    kind: Any = type(value)
    if kind is dict:
        return {key: exact_of(part) for key, part in cast("dict[Any, Any]", value).items()}
    if kind in _CONTAINERS:
        return (torch.Size if kind is SizeProxy else kind)(map(exact_of, cast("Iterable[Any]", value)))
    return value


def containers_in(value: Any) -> list[Any]:
    """Return the lists and dicts in what a function has computed, which all of its callers share in eager."""
    found: list[Any] = [value] if isinstance(value, (list, dict)) else []
    return found + [inner for part in _parts_of(value) for inner in containers_in(part)]


def _parts_of(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).values()
    return cast("Iterable[Any]", value) if isinstance(value, (tuple, list)) else ()


def _is_key(arguments: _Arguments) -> bool:
    """Return whether results can be kept by these arguments, as which numbers always can."""
    args, kwargs = arguments
    try:
        hash((*map(_keyed, args), *map(_keyed, kwargs.values())))
    except TypeError:
        return False
    return True


def _keyed(value: Any) -> Any:
    if isinstance(value, NumberProxy):
        return None
    return tuple(map(_keyed, cast("Iterable[Any]", value))) if isinstance(value, tuple) else value


def _is_of_numbers(value: Any) -> bool:
    if isinstance(value, NumberProxy) or type(value) in _NUMBERS:
        return True
    # The keys of a dict are fixed. An object may be changed in ways that would have to be looked for.
    return type(value) in _CONTAINERS and all(map(_is_of_numbers, _parts_of(value)))
