"""Programs that only have layers of torch and modules with plain forwards, and nothing around them."""

from __future__ import annotations

from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from fxplug.capture.hazards import scan_of
from fxplug.capture.live_code import letting_errors_through
from fxplug.capture.plain_functions import PlainPart, holds_the_same, layout_of, plain_parts
from fxplug.capture.plain_holdings import (
    CONTAINERS,
    containers_among,
    is_base_as_written,
    is_layer_as_written,
    is_layer_of_torch,
)
from fxplug.capture.plain_modules import (
    may_be_converted,
    may_be_values,
    tables_of_containers,
)
from fxplug.capture.plain_objects import codes_of_plain_class, names_of_plain_class
from fxplug.semantics.internals import global_hook_tables, is_run_as_written
from fxplug.semantics.kinds import TENSOR_METHODS, TENSOR_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from types import CodeType, FunctionType

__all__ = ["MissedProgramError", "PlainProgram", "plain_program", "put_back"]


class MissedProgramError(Exception):
    """A program that was taken for a plain one has layers entered, or modules that it does not hold."""


class PlainProgram(NamedTuple):
    """A program that only has layers of torch and modules with plain forwards."""

    codes: set[int]
    """The ids of the code of the forwards and of what they call."""
    parts: list[PlainPart]
    """These functions."""
    asks_for_training: frozenset[type]
    """Those classes of modules of which these read ``training``, of their own module: they can read no other's."""
    enters: bool
    """Whether they enter contexts of torch."""
    catching: list[FunctionType]
    """Those that handle errors: they are plain as long as none is raised."""
    needs_examples: bool
    """Whether they compare values with None, which a run has to tell to be none."""
    asks_for_classes: bool
    """Whether they ask of which class values are, perhaps by trying whether they have something."""
    containers: list[tuple[Any, Any]]
    """The lists and dicts of constants that they read off modules, each with a copy."""
    compares: bool
    """Whether they ask of two values whether they are one object."""

    @property
    def asking(self) -> list[tuple[dict[str, Any], frozenset[str]]]:
        """The globals of those that call ``len`` or ``type``, and which of both."""
        # What comprehensions name counts, too.
        asked = [(function.__globals__, _HEARD & scan_of(code).globals) for function, code, *_ in self.parts]
        return [(namespace, names) for namespace, names in asked if names]


def plain_program(
    modules: Collection[nn.Module],
    code_of: Callable[[FunctionType], CodeType],
    is_remarkable: Callable[[CodeType], bool],
    *,
    with_methods: bool = False,
    on_examples: bool = False,
    function: Any = None,
) -> PlainProgram | None:
    """Return what runs of a program that only has layers of torch and modules with plain forwards, and nothing around.

    Args:
        modules: The root and all modules below it.
        code_of: Returns the own code of a function, whose code may be exchanged.
        is_remarkable: Returns whether there is more to know of a function, by its code.
        with_methods: As in `plain_parts`: all inputs of the program are traced.
        on_examples: As there: it is run on examples, too.
        function: The program itself, where it is no module.

    Returns:
        What its forwards are, and what they call; None for other programs.
    """
    if any(global_hook_tables()) or not is_base_as_written():
        return None
    find = partial(plain_parts, code_of=code_of, with_methods=with_methods, on_examples=on_examples)
    try:
        parts = _parts_of_modules(modules, find)
    except KeyError:  # A module lacks a table that every module has.
        return None
    own = [] if function is None else find(function, None)
    if parts is None or own is None:
        return None
    found, asking = own + parts[0], parts[1]
    if any(is_remarkable(part.live) for part in found) or not may_be_values(modules, found):
        return None
    if any(part.compares for part in found) and not all(map(_reads_objects_of_their_own, found)):
        return None
    fields = frozenset[str]().union(*[part.fields for part in found])
    made = frozenset[type]().union(*[part.made for part in found])
    if fields and not fields <= frozenset[str]().union(*map(names_of_plain_class, made)):
        return None
    codes = set[int]().union(*map(codes_of_plain_class, made))
    codes.update(*[scan_of(part.code).codes for part in found])
    catching = {id(part.function): part for part in found if part.catches}
    codes.update(id(letting_errors_through(part.code)) for part in catching.values())
    enters = any(part.enters for part in found)
    functions = [part[0] for part in catching.values()]
    of_examples = _on_examples(modules, found if on_examples else [])
    return PlainProgram(codes, found, frozenset(asking), enters, functions, *of_examples)


def _parts_of_modules(
    modules: Collection[nn.Module], find: Callable[[Any, nn.Module], list[PlainPart] | None]
) -> tuple[list[PlainPart], set[type]] | None:
    """Return the functions of modules, and those classes whose functions read whether they are trained.

    Args:
        modules: The root and all modules below it.
        find: Returns the functions of one, None where these are not plain.

    Raises:
        KeyError: A module lacks a table that every module has.
    """
    found: list[PlainPart] = []
    known: dict[tuple[Any, ...], list[list[PlainPart]]] = {}
    layers: set[type] = set()
    asking: set[type] = set()
    root = next(iter(modules), None)
    for module in modules:
        kind = type(module)
        if not is_run_as_written(module.__dict__):
            return None
        # A model has hundreds of layers.
        if kind in layers:
            continue
        is_layer = is_layer_as_written(kind)
        if is_layer and not _is_looked_through(module, root):
            layers.add(kind)
            continue
        variants = known.setdefault(layout_of(module), [])
        if _holds_one_of(module, variants):
            continue
        is_other = _is_switched(kind) or (is_layer_of_torch(kind) and not is_layer)
        parts = None if is_other else find(kind.forward, module)
        if parts is None:
            return None
        if not parts:  # Its class says all: it is a container that calls what it holds.
            layers.add(kind)
        if len(variants) < _MOST_VARIANTS:
            variants.append(parts)
        found += parts
        asking.update([kind] if _reads_training(parts) else ())
    return found, asking


_HEARD = frozenset({"len", "type"})
_OF_CLASSES = frozenset({"isinstance", "type"})
_BY_TRYING = frozenset({"AttributeError", "BaseException", "Exception", "TypeError"})
"""Who catches these may have asked what something is by trying what it does."""


_MOST_VARIANTS = 8
"""How many functions are kept for modules of one layout, which may differ in their flags."""


def _holds_one_of(module: nn.Module, variants: Iterable[list[PlainPart]]) -> bool:
    """Return whether the functions that were found for a module of the same layout are those of another one."""
    for parts in variants:  # noqa: SIM110 - each block of a network gets here, and a generator takes longer
        if holds_the_same(module, parts):
            return True
    return False


def _is_looked_through(module: nn.Module, root: nn.Module | None) -> bool:
    """Return whether a layer is the program itself."""
    return module is root and is_layer_of_torch(type(module))


def _is_switched(kind: type[nn.Module]) -> bool:
    """Return whether a class has methods of its own by which its modules are switched to training, and from it."""
    return kind.train is not nn.Module.train or kind.eval is not nn.Module.eval


def _reads_training(parts: Iterable[PlainPart]) -> bool:
    """Return whether functions may read whether modules are trained."""
    return any("training" in part.values or "training" in part.code.co_names for part in parts)


def _on_examples(modules: Collection[nn.Module], parts: list[PlainPart]) -> tuple[Any, ...]:
    """Return what `PlainProgram` has of programs that are plain on examples alone."""
    if not parts:
        return False, False, [], False
    needs_examples = any(part.needs_examples for part in parts)
    asks_for_classes = any(
        not _OF_CLASSES.isdisjoint(scan_of(part.live).globals)
        or (part.catches and not _BY_TRYING.isdisjoint(scan_of(part.code).globals))
        for part in parts
    )
    return (
        needs_examples,
        asks_for_classes,
        [(value, value.copy()) for value in _containers_in(modules, parts)],
        any(part.compares for part in parts),
    )


def _reads_objects_of_their_own(part: PlainPart) -> bool:
    """Return whether a function reads no attribute of values that may be one object for two of them.

    These are not recorded where nobody computes with them. A tuple of a tuple is that tuple.
    """
    read = part.of_values & (TENSOR_NAMES - TENSOR_METHODS)
    return read <= _NEW_FOR_EACH and "tuple" not in scan_of(part.live).globals


_NEW_FOR_EACH = frozenset({"T", "mT", "shape"})


def _containers_in(modules: Iterable[nn.Module], parts: list[PlainPart]) -> Iterator[Any]:
    """Yield the lists and dicts that functions read off modules, and the tables of modules that they may change."""
    names = frozenset[str]().union(*(part.containers for part in parts))
    for module in modules if names else ():
        held = module.__dict__
        for name in names:
            if type(held.get(name)) in CONTAINERS:
                yield from containers_among(held[name])
    if any(part.handles_modules for part in parts):
        yield from tables_of_containers(modules)
    if may_be_converted(parts):
        yield from (module.__dict__["_buffers"] for module in modules)


def put_back(containers: Iterable[tuple[Any, Any]]) -> None:
    """Put back into lists and dicts what was in them.

    Args:
        containers: Each with a copy of what it was.

    Raises:
        MissedProgramError: A program has changed one, which was taken for a constant.
    """
    changed = [(value, before) for value, before in containers if not _is_like(value, before)]
    for value, before in changed:
        value.clear()
        (value.extend if isinstance(value, list) else value.update)(before)
    if changed:
        raise MissedProgramError


def _is_like(value: Any, other: Any) -> bool:
    """Return whether two lists or dicts hold the same objects in the same order."""
    pairs = zip(value, other, strict=False)
    is_same = len(value) == len(other) and all(one is another for one, another in pairs)
    return is_same and (isinstance(value, list) or all(map(is_, value.values(), other.values())))
