"""Hooks that torch calls when the captured program runs, and not while it is recorded.

A layer that stays a call keeps its hooks, and a tensor is given its hooks by a node. What such a hook changes besides
what it is called with, a list of features or an attribute, is as it was before while the program is recorded: a program
that reads it there would go on with the wrong value.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from types import BuiltinMethodType, FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from fxplug.capture.attributes import attribute_of
from fxplug.capture.containers import is_container
from fxplug.capture.gradients import HOOKING
from fxplug.capture.reached import function_behind
from fxplug.capture.sources import is_installed
from fxplug.capture.writes import (
    attributes_set,
    changes_in,
    is_read,
    is_read_of,
    may_fill,
    names_by_text,
    place_of_write,
    with_inner,
)
from fxplug.errors import TraceError
from fxplug.semantics.internals import DYNAMO_INLINE, global_hook_tables, hook_tables, parameters_of
from fxplug.semantics.kinds import TENSOR_NAMES

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
    from types import CodeType

    from fxplug.capture.outside import Step
    from fxplug.ir import Graph, SourceLine

__all__ = ["functions_behind", "left_by_call", "missed_change", "unheard_value"]

_GRADIENTS = frozenset({"backward", "grad"})
"""Names of what computes gradients."""
_FORWARD_TABLES = 2
"""So many of the tables of hooks are for what runs around the forward; the others are for the backward."""


class _Hook(NamedTuple):
    """A function that torch will call."""

    function: Any
    owner: str
    """Whose hook it is, as messages call it."""


def missed_change(
    graph: Graph,
    modules: Sequence[nn.Module],
    paths: Mapping[int, str],
    codes: Sequence[CodeType],
    kept: Iterable[Any] = (),
    whole: Mapping[str, nn.Module] = MappingProxyType({}),
) -> TraceError | None:
    """Return the refusal of a program that reads what a hook has not changed yet; None if it reads no such thing.

    So it is with functions that stay calls (see `left_by_call`).

    Args:
        graph: What was recorded.
        modules: Those below the root.
        paths: The id of each -> its path.
        codes: The functions of the program, with those inside of them.
        kept: The functions that stay calls.
        whole: Path -> module, of those that stay calls and whose classes are not those of torch.
    """
    left = left_by_call(kept, modules, codes, with_examples=False)
    if left is not None:
        return left
    for hook in _hooks_of(graph, modules, paths, codes):
        for name, line in _changes_read(hook.function, modules, codes, _ANYWHERE):
            return _refusal(hook, name, line)
    for path, module in whole.items():
        for name, line in _changes_read(module.forward, modules, codes, _ANYWHERE):
            # What tensors have, too, the program most likely reads of one.
            if name not in TENSOR_NAMES or is_read_of(codes, path.rpartition(".")[2], name):
                return _refusal_of_layer(path, name, line)
    return None


def left_by_call(
    kept: Iterable[Any], modules: Sequence[nn.Module], codes: Sequence[CodeType], *, with_examples: bool
) -> TraceError | None:
    """Return the refusal of a program that reads what a function that stays a call changes besides what it returns.

    Of attributes only those of what the function names as a global, or as a variable around it, are looked at: whose
    others are is not plain to see, and most are those of what it returns.

    Args:
        kept: The functions.
        modules: Those below the root.
        codes: The functions of the program, with those inside of them.
        with_examples: Whether the function has run while the program was recorded.
    """
    for function in kept:
        for name, line in _changes_read(function, modules, codes, _AROUND):
            return _refusal_of_call(function, name, line, with_examples=with_examples)
        own = {code for one in functions_behind(function) for code in with_inner(one.__code__)}
        others = [code for code in codes if code not in own]
        for code in own:
            for holder, name in attributes_set(code):
                if is_read_of(others, holder, name):
                    line = place_of_write([code], name, "attribute")
                    return _refusal_of_call(function, f"{holder}.{name}", line, with_examples=with_examples)
    return None


def unheard_value(
    graph: Graph,
    modules: Sequence[nn.Module],
    paths: Mapping[int, str],
    codes: Sequence[CodeType],
    left: Sequence[Step],
    assigned: Sequence[tuple[nn.Module, str, str, Any, bool]],
    constants: Container[int],
) -> TraceError | None:
    """Return the refusal of a program that was run and reads a number that a layer or a hook of it has left.

    The layer runs as a whole, and what it and its hooks compute is not heard of: the number would be a constant.
    Tensors are heard of when the program uses them, but not that a hook has chosen one that was there before.

    Args:
        graph: What was recorded.
        modules: Those below the root.
        paths: The id of each -> its path.
        codes: The functions of the program, with those inside of them.
        left: What the program has left that was not there before.
        assigned: What calls of layers have assigned to them: module, its path, name and value, and whether it is what
            is in the attribute that they have changed.
        constants: The ids of the tensors from before the program that the graph reads.

    Returns:
        None if it reads no such number, and no tensor that was chosen so.
    """
    hooked = _with_hooks(modules, backward=False)
    called = [str(target) for target in graph.distinct_targets("call_module")] if hooked else []
    for module in hooked:
        path = paths[id(module)]
        if not any(path == one or path.startswith(f"{one}.") for one in called):
            continue
        for table in hook_tables(module)[:_FORWARD_TABLES]:
            for hook in table.values():
                for name, line in _changes_read(hook, modules, codes, _ANYWHERE):
                    if any(map(_holds_number, _values_under(name, hook, modules, left))):
                        return _refusal_of_left(
                            _NUMBER, _called(_Hook(hook, f"the layer {path!r}")), name, line
                        )
                    if any(
                        id(part) in constants for step in left if step.name == name for part in _put_by(step)
                    ):
                        return _refusal_of_left(
                            _CHOICE, _called(_Hook(hook, f"the layer {path!r}")), name, line
                        )
    for module, path, name, value, contents in assigned:
        if not _is_heard_of(value) and is_read(
            _codes_outside(module, codes), name, "attribute", contents=contents
        ):
            return _refusal_of_left(_NUMBER, f"a call of the layer {path!r}", name, None)
    return None


def _codes_outside(module: nn.Module, codes: Sequence[CodeType]) -> list[CodeType]:
    """Return the code of a program that belongs neither to the class of a module nor to its hooks."""
    methods = [value for kind in type(module).__mro__ for value in vars(kind).values()]
    functions = [function for function in map(function_behind, methods) if isinstance(function, FunctionType)]
    for table in hook_tables(module):
        functions += [function for hook in table.values() for function in functions_behind(hook)]
    own = {code for function in functions for code in with_inner(function.__code__)}
    return [code for code in codes if code not in own]


def _values_under(name: str, hook: Any, modules: Sequence[nn.Module], left: Sequence[Step]) -> Iterator[Any]:
    """Yield what the objects that a hook may change hold under a name, and what it may have put there."""
    holders = [*modules, _parts_of(hook)[1]]
    yield from (vars(one)[name] for one in holders if name in attribute_of(one, "__dict__", {}))
    yield from (_found_by(function, name) for function in functions_behind(hook))
    yield from (_contents(step) for step in left if step.name == name)


def _contents(step: Step) -> Any:
    """Return what was left in a place; of a dict the values, which stand behind their keys there."""
    found = step.found
    if step.contents and isinstance(found, list):
        parts = cast("list[Any]", found)
        return [part[1] if isinstance(part, tuple) and len(part) == _PAIR else part for part in parts]
    return found


_PAIR = 2


def _put_by(step: Step) -> list[torch.Tensor]:
    """Return the tensors that are in a place now, or in the container that is there, and were not before."""
    former, found = (_tensors_in(_contents(one)) for one in (step._replace(found=step.former), step))
    return [part for part in found if all(part is not one for one in former)]


def _tensors_in(value: Any, steps: int = 3) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(dict.values(cast("dict[Any, Any]", value)))
    parts = value if steps and isinstance(value, (list, tuple)) else ()
    return [one for part in cast("list[Any]", parts) for one in _tensors_in(part, steps - 1)]


def _is_heard_of(value: Any, steps: int = 3) -> bool:
    """Return whether a value is a tensor, or a container of nothing but tensors, texts being their keys."""
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, dict):
        value = list(dict.values(cast("dict[Any, Any]", value)))
    if isinstance(value, tuple) and len(value) == _PAIR and isinstance(value[0], str):
        value = value[1:]  # A key with what is behind it.
    return bool(steps) and is_container(value) and all(_is_heard_of(part, steps - 1) for part in value)


def _holds_number(value: Any, steps: int = 3) -> bool:
    """Return whether a value is a number, or a container that holds one."""
    if isinstance(value, (bool, int, float, complex)):
        return True
    if isinstance(value, dict):
        value = list(dict.values(cast("dict[Any, Any]", value)))
    return bool(steps) and is_container(value) and any(_holds_number(part, steps - 1) for part in value)


_AROUND = frozenset({"global", "variable"})
_ANYWHERE = _AROUND | {"attribute"}


def _changes_read(
    function: Any, modules: Sequence[nn.Module], codes: Sequence[CodeType], kinds: frozenset[str]
) -> Iterator[tuple[str, SourceLine | None]]:
    """Yield the names of what a function changes and the program reads, and where it changes that."""
    own = {code for one in functions_behind(function) for code in with_inner(one.__code__)}
    others = [code for code in codes if code not in own]
    for name, kind, contents in _changes_by(function, modules):
        if name == "" or (kind in kinds and is_read(others, name, kind, contents=contents)):
            yield name, place_of_write(own, name, kind)


def _hooks_of(
    graph: Graph, modules: Sequence[nn.Module], paths: Mapping[int, str], codes: Sequence[CodeType]
) -> Iterator[_Hook]:
    """Yield the hooks that the captured program runs."""
    names: set[str] = set().union(*(code.co_names for code in codes))
    backward = not names.isdisjoint(_GRADIENTS) and _computes_gradients(graph)
    hooked = _with_hooks(modules, backward=backward)
    everywhere = global_hook_tables()
    if hooked or any(everywhere):
        called = [str(target) for target in graph.distinct_targets("call_module")]
        for module in hooked:
            path = paths[id(module)]
            if any(path == one or path.startswith(f"{one}.") for one in called):
                tables = hook_tables(module)[: None if backward else _FORWARD_TABLES]
                yield from (_Hook(hook, f"the layer {path!r}") for table in tables for hook in table.values())
        if called:
            tables = [everywhere[0], everywhere[1], *(everywhere[2:] if backward else ())]
            yield from (_Hook(hook, "all modules") for table in tables for hook in table.values())
    if backward:
        yield from _hooks_of_weights(modules, paths)
    if backward and not names.isdisjoint(HOOKING):
        for node in graph.nodes_that_call(lambda op, target: op == "call_method" and target in HOOKING):
            given = [value for value in (*node.args, *node.kwargs.values()) if callable(value)]
            yield from (_Hook(hook, f"the tensor {str(node.args[0])!r}") for hook in given)


def _hooks_of_weights(modules: Sequence[nn.Module], paths: Mapping[int, str]) -> Iterator[_Hook]:
    for module in modules:
        for name, weight in parameters_of(module).items():
            path = f"{paths[id(module)]}.{name}".removeprefix(".")
            for table in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                hooks: dict[int, Any] = getattr(weight, table, None) or {}
                yield from (_Hook(hook, f"the weight {path!r}") for hook in hooks.values())


def _with_hooks(modules: Sequence[nn.Module], *, backward: bool) -> list[nn.Module]:
    """Return the modules with hooks of their own; looked at in each trace are all, and most traces find none."""
    try:
        return [
            module
            for module in modules
            if (held := module.__dict__)["_forward_hooks"]
            or held["_forward_pre_hooks"]
            or (backward and (held["_backward_hooks"] or held["_backward_pre_hooks"]))
        ]
    except KeyError:  # What is compiled keeps them elsewhere.
        return [
            module
            for module in modules
            if not isinstance(module, torch.jit.ScriptModule) and any(hook_tables(module))
        ]


def _computes_gradients(graph: Graph) -> bool:
    return bool(
        graph.nodes_that_call(
            lambda op, target: (
                op.startswith("call_")
                and (target if isinstance(target, str) else getattr(target, "__name__", "")) in _GRADIENTS
            )
        )
    )


# -- what a hook changes


def _parts_of(hook: Any) -> tuple[Any, Any]:
    """Return the function behind a hook, and the object whose method it is, None for no such."""
    while isinstance(hook, partial):
        hook = hook.func
    function, owner = function_behind(hook), attribute_of(hook, "__self__")
    if not isinstance(function, (FunctionType, BuiltinMethodType)):
        function, owner = function_behind(vars(type(hook)).get("__call__")), hook
    return getattr(function, DYNAMO_INLINE, function), owner


def functions_behind(hook: Any) -> list[FunctionType]:
    """Return the function behind a hook, or another callable, and those of the program that it calls by a name."""
    function, owner = _parts_of(hook)
    found: list[FunctionType] = []
    waiting = [function]
    while waiting:
        current = waiting.pop()
        if isinstance(current, FunctionType) and current not in found and not is_installed(_file_of(current)):
            found.append(current)
            names = {name for part in with_inner(current.__code__) for name in part.co_names}
            values = [_found_by(current, name) for name in names.union(current.__code__.co_freevars)]
            kinds = {type(value) for value in (owner, *values)}
            waiting += [
                *values,
                *(function_behind(method) for kind in kinds for method in _methods(kind, names)),
            ]
    return found


def _file_of(function: FunctionType) -> str:
    return function.__code__.co_filename


def _methods(kind: type, names: set[str]) -> Iterator[Any]:
    for base in kind.__mro__:
        if base is nn.Module:
            break
        yield from (value for name, value in vars(base).items() if name in names)


def _changes_by(hook: Any, modules: Sequence[nn.Module]) -> Iterator[tuple[str, str, bool]]:
    """Yield name and kind of what a hook changes, and whether it is what the thing holds that it changes.

    Where it changes something that has no name which is known, the name is empty.
    """
    function, owner = _parts_of(hook)
    if isinstance(function, BuiltinMethodType) and is_container(owner):
        names = list(_names_of(owner, modules))
        yield from ((name, "attribute", True) for name in names or [""])
    for one in functions_behind(hook):
        for name, kind, contents in chain.from_iterable(map(changes_in, with_inner(one.__code__))):
            yield name, kind, contents
            value = None if kind == "attribute" else _found_by(one, name)
            if contents and is_container(value):
                yield from ((other, "attribute", True) for other in _names_of(value, modules))
        handed = [*_handed_to(one), *_bound_by(hook)]
        for code in with_inner(one.__code__):
            yield from ((name, "attribute", False) for name in names_by_text(code, handed))
            filled = filter(is_container, handed) if may_fill(code) else ()
            yield from ((name, "attribute", True) for value in filled for name in _names_of(value, modules))


def _handed_to(function: FunctionType) -> list[Any]:
    """Return what a function has as defaults, and what it finds by its names."""
    code = function.__code__
    found = [_found_by(function, name) for name in (*code.co_freevars, *code.co_names)]
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *found]


def _bound_by(hook: Any) -> list[Any]:
    """Return what a `functools.partial` calls its function with."""
    found: list[Any] = []
    while isinstance(hook, partial):
        found += (*hook.args, *hook.keywords.values())
        hook = hook.func
    return found


def _found_by(function: FunctionType, name: str) -> Any:
    """Return what a function finds under a name in its closure or among its globals."""
    for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        if free == name:
            try:
                return cell.cell_contents
            except ValueError:  # It has no value yet.
                return None
    return function.__globals__.get(name)


def _names_of(value: Any, modules: Iterable[nn.Module]) -> Iterator[str]:
    for module in modules:
        yield from (name for name, held in vars(module).items() if held is value)


def _place(line: SourceLine | None) -> str:
    return "" if line is None else f" at {line} ({line.text!r})"


def _called(hook: _Hook) -> str:
    """Return how messages call a hook, and whose it is."""
    function = _parts_of(hook.function)[0]
    name = getattr(function, "__qualname__", type(hook.function).__qualname__)
    return f"{name}, a hook of {hook.owner},"


def _refusal_of_call(function: Any, name: str, line: SourceLine | None, *, with_examples: bool) -> TraceError:
    if with_examples:
        return TraceError(
            f"Cannot trace: {function.__qualname__}, which is kept as a call, changes {name!r}{_place(line)}, and the "
            "program reads it. What the function does is not heard of: what it leaves for the program would be the "
            "same in every call. Let the function return what is new.",
            code="FXP-T061",
        )
    return TraceError(
        f"Cannot trace: {function.__qualname__}, which is kept as a call, changes {name!r}{_place(line)}, and the "
        "program reads it. The function runs when the captured program runs, and not while it is recorded: what the "
        "program has read is what was there before. Let the function return what is new.",
        code="FXP-T056",
    )


def _refusal_of_layer(path: str, name: str, line: SourceLine | None) -> TraceError:
    return TraceError(
        f"Cannot trace: the forward of {path!r}, which stays one call, changes {name!r}{_place(line)}, and the program "
        "reads it. The module runs when the captured program runs, and not while it is recorded: what the program has "
        "read is what was there before. Let the module return what is new, let the trace enter it, or give example "
        "inputs (fxplug.trace(root, example_inputs)).",
        code="FXP-T056",
    )


_NUMBER = (
    "a number",
    "what its hooks compute is not heard of: it would be a constant. Compute it in forward, or keep the tensor itself.",
)
_CHOICE = (
    "a tensor that was there before",
    "how its hooks choose is not heard of: it would be the same tensor in every call. Choose it in forward.",
)


def _refusal_of_left(left: tuple[str, str], who: str, name: str, line: SourceLine | None) -> TraceError:
    """Return the error for what a layer leaves for the program: `_NUMBER` or `_CHOICE`."""
    what, reason = left
    return TraceError(
        f"Cannot trace: {who} puts {what} into {name!r}{_place(line)}, and the program "
        f"reads it. The layer stays one call, and {reason}",
        code="FXP-T061",
    )


def _refusal(hook: _Hook, name: str, line: SourceLine | None) -> TraceError:
    what = f"changes {name!r}{_place(line)}" if name else "changes a container of the program"
    return TraceError(
        f"Cannot trace: {_called(hook)} {what}, and the program reads it. The hook runs when the "
        "captured program runs, and not while it is recorded: what the program has read is what was there before. Give "
        "example inputs (fxplug.trace(root, example_inputs)), let the trace enter the layer (a policy with "
        "is_leaf_module), or compute in forward what the hook keeps.",
        code="FXP-T010",
    )
