"""Lists and dicts that a program hands to a function that stays a call, and reads afterwards.

Such a call is one node, and what the function does to a list that it is given happens when the graph runs: what the
program then reads from its own list is what was in it while it was traced. Nothing can be said about that without
running the function. So where the program may read the list again, the graph gives both the call and a check the same
list, and the check fails where the function has changed it. A list that nobody reads again may be changed by anybody.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from operator import is_
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.capture.attributes import attribute_of
from fxplug.capture.bytecode import changed_parameters, is_read_later
from fxplug.capture.containers import OWN_TABLES, is_object
from fxplug.capture.proxy import Proxy
from fxplug.capture.sources import frames_of_program, is_installed, place_in_program
from fxplug.errors import TraceError
from fxplug.semantics.checks import check_unchanged, the_same

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from fxplug.ir import Argument, Node

__all__ = ["Contents", "HandedOver", "hand_over"]

_KINDS = (list, dict, set, deque)
_PLAIN = frozenset({list, tuple, dict})
_MOST, _STEPS = 1000, 3
"""Containers are looked into that have at most so many elements, and this many steps deep."""
_HARMLESS = frozenset({"builtins", "copy", "math"})
"""Modules whose functions change no container that they are given."""
_CHANGING = ("__setitem__", "delattr", "next", "setattr")


class HandedOver:
    """The arguments of a call that hold what the program may read again.

    Args:
        args: Of the call.
        kwargs: Of the call.
        places: Positions and names of those arguments.
        is_trusted: Whether the function is of an installed library. What libraries have wrapped for torch.fx leaves
            lists alone, and their models would be full of checks.
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], places: list[int | str], *, is_trusted: bool
    ) -> None:
        self.args = args
        self.kwargs = kwargs
        self._places = places
        self._is_trusted = is_trusted
        self._kept: list[tuple[Node, Argument]] = []

    def refuse_plain_changes(self, tracer: Any, target: Any, original: Any) -> None:
        """Refuse a function in whose code it stands that it changes one of them.

        Args:
            tracer: Records the program.
            target: The function.
            original: The same with its own code.

        Raises:
            TraceError: It does.
        """
        if not isinstance(original, FunctionType):
            return
        code = original.__code__
        changed = changed_parameters(code)
        for place in self._places:
            is_named = isinstance(place, str) or place < code.co_argcount
            name = code.co_varnames[place] if isinstance(place, int) and is_named else place
            value = self.kwargs[place] if isinstance(place, str) else self.args[place]
            if name in changed and isinstance(value, _KINDS):
                raise _changed(tracer, target, value)

    def give_names(self, tracer: Any) -> None:
        """Record a node for each of them, and let `args` and `kwargs` hold what stands for these."""
        if self._is_trusted:
            return
        args, kwargs = list(self.args), dict(self.kwargs)
        for place in self._places:
            holder: Any = args if isinstance(place, int) else kwargs
            value = holder[place]
            if not isinstance(value, (list, tuple, dict)):
                continue  # A graph makes it anew for each call.
            given = before = tracer.create_arg(value)
            if type(value) not in _PLAIN:
                before = tracer.create_arg(value)  # Another one: the call may change what its class has made.
            node = tracer.create_node("call_function", the_same, (given,), {})
            self._kept.append((node, before))
            holder[place] = Proxy(node, tracer)
        self.args, self.kwargs = tuple(args), kwargs

    def record_checks(self, tracer: Any, target: Any) -> None:
        """Record behind the call of `target` that it has changed none of them."""
        name = getattr(target, "__name__", str(target))
        text = f"{name} leaving what it is given as it is{place_in_program()}"
        for node, before in self._kept:
            tracer.create_node("call_function", check_unchanged, (node, before, text, False), {})


def hand_over(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HandedOver | None:
    """Return the lists and dicts among the arguments of a call that the program may read again, None without such.

    Args:
        target: What is called.
        args: Of the call.
        kwargs: Of the call.
    """
    given: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
    found = {place: held for place, value in given.items() if (held := list(_containers_in(value)))}
    if not found or _is_harmless(target):
        return None
    places = [place for place, held in found.items() if any(map(_is_held, held))]
    if not places:
        return None
    code = getattr(target, "__code__", None)
    is_trusted = code is not None and is_installed(code.co_filename)
    return HandedOver(args, kwargs, places, is_trusted=is_trusted)


def _is_harmless(target: Any) -> bool:
    home, name = str(getattr(target, "__module__", None)), getattr(target, "__name__", "")
    return (home in _HARMLESS or home.partition(".")[0] == "torch") and name not in _CHANGING


def _containers_in(value: Any, steps: int = _STEPS) -> Iterator[Any]:
    """Yield the lists, dicts and the like in a value; a traced one is none, whatever it says that its class is."""
    kind = type(value)
    if issubclass(kind, _KINDS):
        yield value
    if steps and issubclass(kind, (list, tuple, dict)):
        for part in _elements(value):
            if issubclass(type(part), (*_KINDS, tuple)):
                yield from _containers_in(part, steps - 1)


def _elements(value: Any) -> Iterator[Any]:
    held: Any = dict.values(cast("dict[Any, Any]", value)) if isinstance(value, dict) else value
    return islice(held, _MOST)


# -- whether the program can read one again


def _is_held(container: Any) -> bool:
    """Return whether the program may read a container after the call that it is making."""
    frames = list(frames_of_program())
    return any(
        _is_read_in(frame, container, is_outermost=frame is frames[-1]) or _is_global(frame, container)
        for frame in frames
    )


def _is_read_in(frame: FrameType, container: Any, *, is_outermost: bool) -> bool:
    code = frame.f_code
    for name, value in frame.f_locals.items():
        if _holds(value, container):
            is_given = name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            # What the caller has given, the caller can read.
            if (is_outermost and is_given) or is_read_later(code, frame.f_lasti, name):
                return True
        elif _outlives(value) and _has(value, container):
            return True
    return False


def _is_global(frame: FrameType, container: Any) -> bool:
    namespace = frame.f_globals
    return any(
        _holds(namespace[name], container)
        or (_outlives(namespace[name]) and _has(namespace[name], container))
        for name in frame.f_code.co_names
        if name in namespace
    )


def _holds(value: Any, container: Any, steps: int = _STEPS) -> bool:
    """Return whether a value is a container, or is one that holds it."""
    if value is container:
        return True
    if steps == 0 or not issubclass(type(value), (*_KINDS, tuple)):
        return False
    return any(
        _holds(part, container, steps - 1)
        for part in _elements(cast("list[Any]", value))
        if issubclass(type(part), (*_KINDS, tuple))
    )


def _outlives(value: Any) -> bool:
    """Return whether a value is an object, whose attributes are there for the next call, too."""
    kind = type(value)
    return issubclass(kind, nn.Module) or (not issubclass(kind, (torch.Tensor, Proxy)) and is_object(value))


def _has(value: Any, container: Any) -> bool:
    held: dict[str, Any] = attribute_of(value, "__dict__", {})
    return any(_holds(part, container) for name, part in held.items() if name not in OWN_TABLES)


# -- what a call has done that is made while the program is traced


class Contents:
    """What lists and dicts hold before a call is made on them.

    Args:
        given: Arguments of the program.
        real: What the function receives in their place, of the same structure.
    """

    def __init__(self, given: Any, real: Any) -> None:
        pairs = zip(_containers_in(given), _containers_in(real), strict=False)
        self._before = [(one, other, _copied(other)) for one, other in pairs]

    def refuse_changes(self, tracer: Any, target: Any) -> None:
        """Refuse a function that has changed something which the program may read again.

        Args:
            tracer: Records the program.
            target: The function.

        Raises:
            TraceError: It has.
        """
        for given, received, before in self._before:
            after = _copied(received)
            if len(after) != len(before) or not all(map(is_, after, before)):
                if not _is_held(given):
                    continue
                raise _changed(tracer, target, given)


def _changed(tracer: Any, target: Any, value: Any) -> TraceError:
    name = getattr(target, "__name__", str(target))
    error = TraceError(
        f"Cannot record the call of {name}{place_in_program()}: it changes the {type(value).__name__} that it is "
        "given, and the program may read it again. In the graph the call is one node, and what it does to a list or "
        "dict of the program is lost. Let it return what is new, hand it a copy, or let the trace look into it.",
        code="FXP-T056",
    )
    note = getattr(tracer, "note_refusal", None)
    if note is not None:
        note(error)  # A program that catches it does not undo it.
    return error


def _copied(container: Any) -> list[Any]:
    if isinstance(container, dict):
        given = cast("dict[Any, Any]", container)
        return [*given, *given.values()]
    return list(container)
