"""Functions that hold values of a program by their closure, made again for other values.

``torch.func.vmap(lambda row, column: mask[row, column])`` holds a tensor of the program. As a constant of a graph the
function would answer every call with the mask of the first; so the graph hands the mask over, and the function is made
again around it in each call.
"""

from __future__ import annotations

import dis
import gc
import weakref
from contextlib import ExitStack
from functools import partial
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.capture.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.overrides import TorchFunctionMode

__all__ = ["Closure", "ClosureCall", "held_by", "opened"]

_CLOSED = (Proxy, torch.Tensor, nn.Module, ModuleType, CodeType, FrameType, str, int, float, type(None))
"""What is itself what was looked for, or holds nothing of a program."""
_WRITES = frozenset({"STORE_DEREF", "DELETE_DEREF"})


def held_by(functions: tuple[Any, ...]) -> Iterator[Any]:
    """Yield what functions hold besides their code, at any depth: closures, defaults, containers, attributes, methods.

    What a function finds by a global name is none of it.
    """
    pending: list[Any] = list(functions)
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if not isinstance(part, (FunctionType, MethodType, partial, list, tuple, set, dict)):
            yield part
        pending.extend(_inside(part))


def _inside(part: Any) -> Iterable[Any]:
    if isinstance(part, FunctionType):
        named = (part.__kwdefaults__ or {}).values()
        return (*_cells(part), *(part.__defaults__ or ()), *named, *vars(part).values())
    if isinstance(part, type):
        # Classes that a function has made may have methods with closures.
        return vars(part).values() if "<locals>" in part.__qualname__ else ()
    if isinstance(part, _CLOSED):
        return ()
    if isinstance(part, GeneratorType):
        return () if part.gi_frame is None else part.gi_frame.f_locals.values()
    if isinstance(part, weakref.ReferenceType):
        return (cast("weakref.ReferenceType[Any]", part)(),)
    # Whatever it is: a deque, an iterator, a method of a tensor, an object with slots.
    return gc.get_referents(part)


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # Not filled yet.
            yield None


class Closure:
    """A function that can be made again.

    Args:
        held: The values of the program that it holds, each once.
        make: Returns the function for others in their place.
    """

    def __init__(self, held: tuple[Any, ...], make: Callable[[Sequence[Any]], Any]) -> None:
        self.held = held
        self.make = make


class ClosureCall:
    """Calls what torch makes of a function, with what the function holds as the first argument.

    Args:
        name: What it is called in the code of a graph.
        closure: The function.
        transform: What torch makes of it.
        modes: What is entered around the call, as it was around the call that was recorded.
    """

    def __init__(
        self,
        name: str,
        closure: Closure,
        transform: Callable[[Any], Callable[..., Any]],
        modes: Sequence[TorchFunctionMode],
    ) -> None:
        self.__name__ = self.__qualname__ = name
        self._closure = closure
        self._transform = transform
        self._modes = tuple(modes)

    def __call__(self, held: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        """Return the result for one value of each that the function holds."""
        with ExitStack() as stack:
            for mode in self._modes:
                stack.enter_context(mode)
            return self._transform(self._closure.make(held))(*args, **kwargs)

    def __deepcopy__(self, _: dict[int, Any]) -> ClosureCall:
        return self  # As functions are.


def opened(function: Any, is_held: Callable[[Any], bool]) -> Closure | None:
    """Return how to make a function again, None where it cannot be.

    It cannot where a function writes to what it shares with others, or reaches itself; nor where it holds modules, or
    values of the program in something that others may change, such as a list.

    Args:
        function: What holds values by its closure, its defaults or as a partial, at any depth of functions and tuples.
        is_held: Tells which values are those of the program.
    """
    held: list[Any] = []
    try:
        recipe = _Opening(held, is_held).recipe(function)
    except _CannotOpenError:
        return None
    return Closure(tuple(held), recipe if recipe is not None else lambda _: function)


class _CannotOpenError(Exception):
    """A function cannot be made again."""


class _Opening:
    def __init__(self, held: list[Any], is_held: Callable[[Any], bool]) -> None:
        self._held = held
        self._is_held = is_held
        self._open: set[int] = set()

    def recipe(self, part: Any) -> Callable[[Sequence[Any]], Any] | None:
        """Return how a part is made again, None where it holds nothing of the program and stays what it is."""
        if self._is_held(part):
            return self._place_of(part)
        if not isinstance(part, (FunctionType, partial, tuple)):
            if any(isinstance(inner, nn.Module) or self._is_held(inner) for inner in held_by((part,))):
                raise _CannotOpenError
            return None
        if id(part) in self._open:
            raise _CannotOpenError
        self._open.add(id(part))
        try:
            if isinstance(part, FunctionType):
                return self._of_function(part)
            if isinstance(part, partial):
                return self._of_partial(cast("partial[Any]", part))
            return self._of_tuple(cast("tuple[Any, ...]", part))
        finally:
            self._open.discard(id(part))

    def _place_of(self, value: Any) -> Callable[[Sequence[Any]], Any]:
        for place, known in enumerate(self._held):
            if known is value:
                return lambda held: held[place]
        self._held.append(value)
        place = len(self._held) - 1
        return lambda held: held[place]

    def _of_tuple(self, parts: tuple[Any, ...]) -> Callable[[Sequence[Any]], Any] | None:
        recipes = [self.recipe(part) for part in parts]
        if not any(recipes):
            return None
        if type(parts) is not tuple:
            raise _CannotOpenError
        return lambda held: tuple(_made(recipes, parts, held))

    def _of_partial(self, function: partial[Any]) -> Callable[[Sequence[Any]], Any] | None:
        parts = (function.func, *function.args, *function.keywords.values())
        recipes = [self.recipe(part) for part in parts]
        if not any(recipes):
            return None
        count, names = len(function.args), tuple(function.keywords)

        def make(held: Sequence[Any]) -> Any:
            called, *values = _made(recipes, parts, held)
            return partial(called, *values[:count], **dict(zip(names, values[count:], strict=True)))

        return make

    def _of_function(self, function: FunctionType) -> Callable[[Sequence[Any]], Any] | None:
        cells = [*_cells(function)]
        defaults = function.__defaults__ or ()
        named = function.__kwdefaults__ or {}
        parts = (*cells, *defaults, *named.values())
        recipes = [self.recipe(part) for part in parts]
        if not any(recipes):
            return None
        if _writes_to_cells(function.__code__, frozenset(function.__code__.co_freevars)):
            raise _CannotOpenError
        first, last = len(cells), len(cells) + len(defaults)

        def make(held: Sequence[Any]) -> Any:
            values = _made(recipes, parts, held)
            closure = tuple(
                CellType(value) if recipe is not None else cell
                for recipe, value, cell in zip(recipes, values, function.__closure__ or (), strict=False)
            )
            made = FunctionType(
                function.__code__,
                function.__globals__,
                function.__name__,
                tuple(values[first:last]) or None,
                closure,
            )
            made.__kwdefaults__ = dict(zip(named, values[last:], strict=True)) or None
            made.__dict__.update(function.__dict__)
            return made

        return make


def _made(recipes: Sequence[Any], parts: Sequence[Any], held: Sequence[Any]) -> list[Any]:
    return [part if recipe is None else recipe(held) for recipe, part in zip(recipes, parts, strict=True)]


def _writes_to_cells(code: CodeType, around: frozenset[str]) -> bool:
    """Return whether a function, or one inside of it, writes to what it has from around it."""
    if any(entry.opname in _WRITES and entry.argval in around for entry in dis.get_instructions(code)):
        return True
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any(_writes_to_cells(part, around.intersection(part.co_freevars)) for part in inner)
