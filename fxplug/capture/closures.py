"""Functions that hold values of a program by their closure, made again for other values.

``torch.func.vmap(lambda row, column: mask[row, column])`` holds a tensor of the program. As a constant of a graph the
function would answer every call with the mask of the first; so the graph hands the mask over, and the function is made
again around it in each call.
"""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack
from functools import partial
from operator import is_
from types import (
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import torch
from torch import nn

from fxplug.capture.proxy import Proxy
from fxplug.capture.root_views import attributes_read, needed_of, new_view
from fxplug.capture.sessions import active_interceptor
from fxplug.errors import GuardError
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.overrides import TorchFunctionMode

    from fxplug.ir import Node

__all__ = ["Closure", "ClosureCall", "Transformed", "held_by", "opened", "plain_function"]

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
    if isinstance(part, Transformed):
        return (part.plain,)
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


class Transformed:
    """What a transform of torch has made of a function while a trace runs.

    Args:
        plain: What the transform has made.
        call: Makes the calls of it in its place.
        node: Gives it in the graph; None where it is a constant.
    """

    def __init__(self, plain: Any, call: Callable[..., Any], node: Node | None = None) -> None:
        self.plain = plain
        self.node = node
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make a call of it."""
        return self._call(*args, **kwargs)

    def __fx_create_arg__(self, tracer: Any) -> Any:
        """Return what stands for it in a graph."""
        return tracer.create_arg(self.plain) if self.node is None else self.node


def plain_function(value: Any) -> Any:
    """Return what a transform has made, for what stands for that while a trace runs; anything else as it is."""
    return value.plain if isinstance(value, Transformed) else value


class Made:
    """What a function is made again from for one call.

    Args:
        held: The values of the program that it holds.
    """

    def __init__(self, held: Sequence[Any]) -> None:
        self.held = held
        self._made: dict[int, tuple[Any, list[Any]]] = {}
        self._view: Any = None

    def once(self, place: int, make: Callable[[], Any]) -> Any:
        """Return what stands for something that more than one part of the function may hold."""
        known = self._made.get(place)
        if known is None:
            value = make()
            known = self._made[place] = (value, _contents(value))
        return known[0]

    def view(self, make: Callable[[], Any]) -> Any:
        """Return what stands for the root."""
        if self._view is None:
            self._view = make()
        return self._view

    def refuse_changes(self, name: str) -> None:
        """Refuse a call that has changed a list or dict: the program would see that, and the graph does not.

        Args:
            name: Of the call.

        Raises:
            GuardError: It has.
        """
        for value, before in self._made.values():
            if not _are_same(_contents(value), before):
                raise GuardError(
                    f"Cannot go on behind the call of {name!r}: its function has changed the {type(value).__name__} "
                    "that it shares with the program, and the graph does not hold that. Capture the program again "
                    "with a function that returns what is new.",
                    can_run_again=False,
                )


def _contents(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*dict.keys(cast("dict[Any, Any]", value)), *dict.values(cast("dict[Any, Any]", value))]
    return list(value)


def _are_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


class Closure:
    """A function that can be made again.

    Args:
        held: The values of the program that it holds, each once.
        make: Returns the function for others in their place.
        containers: The lists and dicts of the program that it holds.
        is_constant: Whether it holds nothing for which it would have to be made again.
        asks_for_mode: Whether it asks the root whether that is in training.
    """

    def __init__(
        self,
        held: tuple[Any, ...],
        make: Callable[[Made], Any],
        containers: Sequence[Any],
        *,
        is_constant: bool,
        asks_for_mode: bool,
    ) -> None:
        self.held = held
        self.is_constant = is_constant
        self.asks_for_mode = asks_for_mode
        self.make = make
        self._before = [(value, _contents(value)) for value in containers]

    @property
    def has_containers(self) -> bool:
        """Whether there are any."""
        return bool(self._before)

    def has_changed(self) -> bool:
        """Return whether the function that this was made of has changed a list or dict since then."""
        return not all(_are_same(_contents(value), before) for value, before in self._before)


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
        self._make = closure.make
        self._transform = transform
        self._modes = tuple(modes)

    def __call__(self, held: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        """Return the result for one value of each that the function holds; in a trace it stays a call."""
        interceptor = active_interceptor()
        if interceptor is not None:
            return interceptor.on_function_call(self, self._run, (held, *args), kwargs)
        return self._run(held, *args, **kwargs)

    def _run(self, held: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        made = Made(held)
        with ExitStack() as stack:
            for mode in self._modes:
                stack.enter_context(mode)
            result = self._transform(self._make(made))(*args, **kwargs)
        made.refuse_changes(self.__name__)
        return result

    def __deepcopy__(self, _: dict[int, Any]) -> ClosureCall:
        return self  # As functions are.


def opened(function: Any, is_held: Callable[[Any], bool], root: Any = None) -> Closure | None:
    """Return how to make a function again, None where it cannot be.

    It cannot where a function writes to what it shares with others, or reaches itself; nor where it holds values of the
    program in an object, or does more with the root than to read its attributes.

    Args:
        function: What holds values by its closure, its defaults, as a partial or as a method, at any depth of
            functions, tuples, lists and dicts.
        is_held: Tells which values are those of the program: they are handed over.
        root: The module that is captured; None for a function.
    """
    opening = _Opening(is_held, root)
    try:
        recipe = opening.recipe(function)
    except _CannotOpenError:
        return None

    def same(_: Made) -> Any:
        return function

    make = recipe or same
    return Closure(
        tuple(opening.held),
        make,
        opening.containers,
        is_constant=recipe is None,
        asks_for_mode=opening.asks_for_mode,
    )


class _CannotOpenError(Exception):
    """A function cannot be made again."""


_Recipe: TypeAlias = "Callable[[Made], Any]"


class _Opening:
    def __init__(self, is_held: Callable[[Any], bool], root: Any) -> None:
        self.held: list[Any] = []
        self.containers: list[Any] = []
        self.asks_for_mode = False
        self._is_held = is_held
        self._root = root
        self._open: set[int] = set()

    def recipe(self, part: Any) -> _Recipe | None:
        """Return how a part is made again, None where it holds nothing of the program and stays what it is."""
        if self._is_held(part):
            return self._place_of(part)
        open_part = self._openers.get(type(part))
        if open_part is None:
            if any(isinstance(inner, nn.Module) or self._is_held(inner) for inner in held_by((part,))):
                raise _CannotOpenError
            return None
        if id(part) in self._open:
            raise _CannotOpenError
        self._open.add(id(part))
        try:
            return open_part(self, part)
        finally:
            self._open.discard(id(part))

    def _place_of(self, value: Any) -> _Recipe:
        for place, known in enumerate(self.held):
            if known is value:
                return lambda made: made.held[place]
        self.held.append(value)
        place = len(self.held) - 1
        return lambda made: made.held[place]

    def _of_tuple(self, parts: tuple[Any, ...]) -> _Recipe | None:
        recipes = [self.recipe(part) for part in parts]
        return (lambda made: tuple(_made(recipes, parts, made))) if any(recipes) else None

    def _of_list(self, values: list[Any]) -> _Recipe | None:
        parts = list(values)
        recipes = [self.recipe(part) for part in parts]
        if not any(recipes):
            return None
        self.containers.append(values)
        return lambda made: made.once(id(values), lambda: _made(recipes, parts, made))

    def _of_dict(self, values: dict[Any, Any]) -> _Recipe | None:
        keys, parts = list(values), list(values.values())
        recipes = [self.recipe(part) for part in parts]
        if not any(recipes):
            return None
        self.containers.append(values)
        return lambda made: made.once(
            id(values), lambda: dict(zip(keys, _made(recipes, parts, made), strict=True))
        )

    def _of_transformed(self, function: Transformed) -> _Recipe:
        plain = function.plain

        def same(_: Made) -> Any:
            return plain

        return self.recipe(plain) or same

    def _of_method(self, method: MethodType) -> _Recipe | None:
        function, receiver = method.__func__, method.__self__
        if receiver is self._root:
            name = function.__name__
            if getattr(type(receiver), name, None) is not function:
                raise _CannotOpenError
            view = self._of_root(frozenset({name}))
            return lambda made: getattr(view(made), name)
        recipe = self.recipe(receiver)
        if not isinstance(function, FunctionType) or self.recipe(function) is not None:
            raise _CannotOpenError
        return None if recipe is None else lambda made: MethodType(function, recipe(made))

    def _of_root(self, names: frozenset[str] | None) -> _Recipe:
        """Return how to make what stands for the root in a function that reads some of its attributes."""
        needed = None if names is None else needed_of(self._root, names)
        if needed is None:
            raise _CannotOpenError
        self.asks_for_mode = self.asks_for_mode or needed.asks_for_mode
        tables = [
            (table, values, {name: self.recipe(value) for name, value in values.items()})
            for table, values in (*needed.tables.items(), ("", needed.own))
        ]
        empty = new_view(self._root)

        def of_root(made: Made) -> Any:
            view = made.view(empty)
            for table, values, recipes in tables:
                held = vars(view)[table] if table else vars(view)
                for name, recipe in recipes.items():
                    if name not in held:
                        held[name] = values[name] if recipe is None else recipe(made)
            return view

        return of_root

    def _of_given(self, function: Any, name: str, part: Any) -> _Recipe | None:
        """Return how to make a part of a function again, which the function has as a variable of its own."""
        if self._root is None or part is not self._root:
            return self.recipe(part)
        if not isinstance(function, FunctionType):
            raise _CannotOpenError
        code = function.__code__
        if name not in (*code.co_freevars, *_parameters_of(function)):
            raise _CannotOpenError
        return self._of_root(attributes_read(code, name, function.__globals__))

    def _of_partial(self, function: partial[Any]) -> _Recipe | None:
        parts = (function.func, *function.args, *function.keywords.values())
        positional = (*_parameters_of(function.func), *[""] * len(function.args))[: len(function.args)]
        recipes = [
            self._of_given(function.func, name, part)
            for name, part in zip(("", *positional, *function.keywords), parts, strict=True)
        ]
        if not any(recipes):
            return None
        count, names = len(function.args), tuple(function.keywords)

        def make(made: Made) -> Any:
            called, *values = _made(recipes, parts, made)
            return partial(called, *values[:count], **dict(zip(names, values[count:], strict=True)))

        return make

    def _of_function(self, function: FunctionType) -> _Recipe | None:
        code = function.__code__
        cells = [*_cells(function)]
        defaults = function.__defaults__ or ()
        named = function.__kwdefaults__ or {}
        parts = (*cells, *defaults, *named.values())
        optional = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        recipes = [
            self._of_given(function, name, part)
            for name, part in zip((*code.co_freevars, *optional, *named), parts, strict=True)
        ]
        if not any(recipes):
            return None
        if _writes_to_cells(code, frozenset(code.co_freevars)):
            raise _CannotOpenError
        first, last = len(cells), len(cells) + len(defaults)

        def make(made: Made) -> Any:
            values = _made(recipes, parts, made)
            closure = tuple(
                CellType(value) if recipe is not None else cell
                for recipe, value, cell in zip(recipes, values, function.__closure__ or (), strict=False)
            )
            again = FunctionType(
                code, function.__globals__, function.__name__, tuple(values[first:last]) or None, closure
            )
            again.__kwdefaults__ = dict(zip(named, values[last:], strict=True)) or None
            again.__dict__.update(function.__dict__)
            return again

        return make

    _openers: ClassVar[dict[type, Callable[[_Opening, Any], _Recipe | None]]] = {
        tuple: _of_tuple,
        list: _of_list,
        dict: _of_dict,
        Transformed: _of_transformed,
        MethodType: _of_method,
        partial: _of_partial,
        FunctionType: _of_function,
    }


def _parameters_of(function: Any) -> tuple[str, ...]:
    """Return the names of what a function takes, but for what it takes with stars."""
    if not isinstance(function, FunctionType):
        return ()
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _made(recipes: Sequence[Any], parts: Sequence[Any], made: Made) -> list[Any]:
    return [part if recipe is None else recipe(made) for recipe, part in zip(recipes, parts, strict=True)]


def _writes_to_cells(code: CodeType, around: frozenset[str]) -> bool:
    """Return whether a function, or one inside of it, writes to what it has from around it."""
    if any(entry.opname in _WRITES and entry.argval in around for entry in instructions_of(code)):
        return True
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any(_writes_to_cells(part, around.intersection(part.co_freevars)) for part in inner)
