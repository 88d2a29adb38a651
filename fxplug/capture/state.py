"""The user's modules are as they were when a trace ends: what a forward assigned meanwhile is put back and reported."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from contextlib import contextmanager
from operator import is_
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fxplug.capture.containers import OWN_TABLES, PLAIN, Containers, fill, is_object
from fxplug.capture.gradients import Gradients, WeightHooks
from fxplug.capture.iterators import is_iterator
from fxplug.capture.outside import ABSENT, Step
from fxplug.capture.reached import codes_of, function_behind
from fxplug.capture.sources import caller_level, user_line
from fxplug.capture.writes import place_of_write, writes_of
from fxplug.codegen import AUGMENTED
from fxplug.errors import TraceError, TraceWarning
from fxplug.execute import GraphModule
from fxplug.semantics.internals import (
    generate_code,
    global_hook_tables,
    has_hooks,
    hook_tables,
    hook_tables_in,
    is_transient,
    modules_below,
    own_tables,
    parameters_of,
    runs_for_all_modules,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
    from collections.abc import Set as AbstractSet

    from fxplug.capture.outside import OutsideChange, OutsideState
    from fxplug.ir import Node, SourceLine

__all__ = [
    "ModuleChange",
    "ModuleStates",
    "assignment_error",
    "carried_over_error",
    "class_error",
    "is_read_by_call",
    "is_update",
    "kept_draws_error",
    "may_assign",
    "report_changes",
    "report_outside",
    "speak_of",
    "training_error",
    "updates_in_place",
]

_NOTHING: dict[str, Any] = {}
_ScriptModule: type = torch.jit.ScriptModule


_Table: TypeAlias = "MutableMapping[str, Any]"
_Copies: TypeAlias = "tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]"
"""Copies of the attributes of a module, and of its tables of parameters, buffers and submodules."""
_DYNAMIC = frozenset({"__dict__", "getattr", "vars"})
"""What code uses that reads attributes by other than their names."""


class ModuleChange(NamedTuple):
    """Something that the program has changed in a module."""

    module: nn.Module
    path: str
    """Of the attribute; of the module, where its hooks are others."""
    name: str
    """Of the attribute."""
    how: str
    """``"assigned"``, ``"state"`` (a parameter, buffer or submodule), ``"contents"``, ``"iterator"`` or ``"hooks"``."""
    steps: tuple[Step, ...] = ()
    """The places in it where something else stands now."""


class ModuleStates:
    """Remembers the attributes of modules, and what lists and dicts among them hold, to put it back.

    Known are all modules below the root, whether they are called or not, and those that the root does not have once
    they are entered. Assignments are found by identity.

    Args:
        runs_leaves: Whether modules that stay calls run while the program is traced.
    """

    def __init__(self, *, runs_leaves: bool = False) -> None:
        self._runs_leaves = runs_leaves
        self._modules: dict[str, nn.Module] = {}
        self.is_watching = True
        """Whether the program is still running."""
        self._seen: dict[int, tuple[nn.Module, str, _Copies]] = {}
        """Id of a module -> the module, its path, and copies of its tables."""
        self.plain_layers: list[nn.Module] = []
        """Layers of torch without hooks and with nothing that other ones of their class do not have, if leaves run."""
        self._waiting: tuple[Sequence[nn.Module], Mapping[int, str]] = (), {}
        """All modules below the root, and their paths."""
        self._hooks: dict[int, tuple[dict[Any, Any], ...]] = {}
        """Id of a module that has hooks -> copies of their tables."""
        self._hooks_made = RemovableHandle.next_id
        self.rehooked: AbstractSet[str] = frozenset()
        """Paths of the modules that had other hooks than when the trace began, when a call was refused for that."""
        self.gradients: Gradients | None = None
        """Those of the parameters, once code is reached that may change them."""
        self._weight_hooks: WeightHooks | None = None
        """The same for their hooks."""
        self.is_disturbed = False
        """Whether modules that stay calls may be other ones than when the trace began."""
        self._left_by_calls: dict[int, _Copies] = {}
        """Id of a module -> its tables as a call that stays one has left them."""
        self.assigned_by_calls: list[tuple[nn.Module, str, str, Any, bool]] = []
        """Module, its path, name and value of what such calls had assigned when all was put back; and whether they have
        changed what is in the attribute."""
        self._called: set[int] = set()
        """The ids of modules that have run in such a call."""
        self._containers = Containers()
        self._refusal: TraceError | None = None
        self._tables_left: list[tuple[_Table, dict[Any, Any], dict[Any, Any]]] = []
        """Each table that was put back, what it holds again, and what the program had left in it."""
        self._contents_left: list[tuple[Any, list[Any], list[Any]]] = []
        """The same for containers and objects."""

    def remember_all(self, modules: Sequence[nn.Module], paths: Mapping[int, str]) -> None:
        """Take note of what the modules below the root hold, of which `paths` has the ids in the same order.

        Layers of torch without hooks, and where no layer runs others that hold no containers, wait until an attribute
        of theirs is about to be assigned, or until `expect_changes`: a model has hundreds of them.
        """
        self._waiting = modules, paths
        runs_leaves = self._runs_leaves
        has_global_hooks = runs_leaves and runs_for_all_modules()
        sizes: dict[type, int] = {}
        layouts: dict[tuple[type, int], frozenset[str]] = {}
        for module, path in zip(modules, paths.values(), strict=True):
            plain = module.__dict__
            kind = module.__class__
            size = sizes.get(kind)
            if size is None:
                size = sizes[kind] = _size_of_layer(kind, plain)
            is_usual = size == len(plain) and _OF_LAYERS.issuperset(map(type, plain.values()))
            if is_usual and not (runs_leaves and (has_global_hooks or any(hook_tables_in(plain)))):
                if runs_leaves:
                    self.plain_layers.append(module)
            else:
                key = kind, len(plain)
                names = layouts.get(key)
                if names is None:
                    names = layouts[key] = _NOT_HEARD_OF if runs_leaves else _names_heard_of(kind, plain)
                if not _is_plain(module, plain, names):
                    self.remember(module, path)

    @property
    def below(self) -> tuple[Sequence[nn.Module], Mapping[int, str]]:
        """The modules below the root, and the path of each by its id."""
        return self._waiting

    def modules_with(self, function: FunctionType) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules below the root whose class has a function as a method or property, with their paths."""
        modules, paths = self._waiting
        kinds: dict[type, bool] = {}
        for module in modules:
            kind = type(module)
            has_it = kinds.get(kind)
            if has_it is None:
                values = [
                    value
                    for base in kind.__mro__[:-1]
                    if base is not nn.Module
                    for value in vars(base).values()
                ]
                has_it = kinds[kind] = any(function_behind(value) is function for value in values)
            if has_it:
                yield paths[id(module)], module

    def keep_gradients(self, others: Iterable[torch.Tensor]) -> None:
        """Hear that the program is about to run code that may change the gradients of parameters below the root.

        Args:
            others: Weights that the code finds elsewhere.
        """
        if not self._runs_leaves:  # Nothing is run that could.
            return
        if self.gradients is None:
            held = [one for module in self._waiting[0] for one in parameters_of(module).values()]
            self.gradients = Gradients([one for one in held if one is not None])
        self.gradients.add(others)

    def keep_weight_hooks(self) -> None:
        """Hear that the program is about to run code that may put hooks on weights which it has found itself."""
        # On examples, calls of methods of all tensors are heard of.
        if self._weight_hooks is None and not self._runs_leaves:
            modules, paths = self._waiting
            self._weight_hooks = WeightHooks(
                (f"{paths[id(module)]}.{name}".removeprefix("."), weight)
                for module in modules
                for name, weight in parameters_of(module).items()
                if weight is not None
            )

    def expect_changes(self) -> None:
        """Hear that the program is about to run code that changes modules without a word."""
        self.is_disturbed = True
        modules, paths = self._waiting
        for module in modules:
            self.remember(module, paths[id(module)])

    def remember(self, module: nn.Module, path: str) -> None:
        """Take note of what `module` at `path` holds, the first time it is met."""
        if id(module) in self._seen or isinstance(module, _ScriptModule):
            return  # What is compiled assigns nothing that Python sees.
        if isinstance(module, GraphModule):
            module.recompile()  # What it compiles when it is called is no change that its forward makes.
        if path in self._modules:  # Modules that the root does not have are called by their classes.
            path = f"{path} ({len(self._modules)})"
        self._seen[id(module)] = module, path, _copies_of(module)
        self._containers.remember(path, vars(module))
        self._modules[path] = module
        self._note_hooks(module)

        for found in self._containers.modules_found():
            self._remember_outside(found)

    def _remember_outside(self, module: nn.Module) -> None:
        """Take note of what a module holds that another one has in a list, a dict or an object, and those below it."""
        paths = self._waiting[1]
        generate_code(module)
        for path, part in modules_below(module):
            if id(part) not in paths and id(part) not in self._seen:
                name = f"<{type(module).__name__}>"
                self.remember(part, f"{name}.{path}" if path else name)

    def _note_hooks(self, module: nn.Module) -> None:
        tables = hook_tables(module)
        if any(tables):
            self._hooks[id(module)] = tuple(dict(table) for table in tables)
            self.is_disturbed = True  # They can be taken away without a word.

    def note_assignment(self, module: nn.Module, path: str) -> None:
        """Hear that an attribute of `module` at `path` is about to be assigned."""
        self.is_disturbed = True
        self.remember(module, path)

    # -- modules that stay calls

    def are_as_found(self) -> bool:
        """Return whether modules that stay calls are for sure what they were when the trace began."""
        return not self.is_disturbed and RemovableHandle.next_id == self._hooks_made

    def check_call(self, module: nn.Module, path: str) -> None:
        """Look whether `module`, which stays a call, is what it was when the trace began.

        Raises:
            TraceError: It is not: the captured program would call it as it was.
        """
        if self.are_as_found():
            return
        changed = self._changed_for_call(module, path)
        if changed is not None:
            error = leaf_error(path, *changed)
            self.refuse(error)
            raise error

    def _changed_for_call(self, module: nn.Module, path: str) -> tuple[str, str] | None:
        """Return the first thing about a module, or one in it, that is not what it was, and what kind it is of."""
        if any(self._is_new(key) for table in global_hook_tables() for key in table):
            self.rehooked = frozenset()  # What runs for all modules is the business of none of them.
            return "hooks", path
        named: set[str] | None = None
        for part in module.modules():
            if self._changed_hooks(part):
                modules, paths = self._waiting
                self.rehooked = {paths[id(one)] for one in modules if self._changed_hooks(one)} | {path}
                return "hooks", path
            known = self._seen.get(id(part))
            if known is None:
                continue
            prefix = known[1]
            copies = self._left_by_calls.get(id(part), known[2])
            for table, before in zip(_tables(part), copies, strict=True):
                if is_same_table(table, before):
                    continue
                for name in _differing(table, before):
                    if before is copies[0]:
                        named = _names_in(module) if named is None else named
                        if name == "training" or not _is_read_by(part, name, named):
                            continue
                    return "attribute", f"{prefix}.{name}" if prefix else name
        return None

    def _changed_hooks(self, module: nn.Module) -> bool:
        tables = hook_tables(module)
        former = self._hooks.get(id(module))
        if former is None:
            if id(module) in self._seen:
                return any(tables)
            return any(self._is_new(key) for table in tables for key in table)
        return any(not is_same_table(table, before) for table, before in zip(tables, former, strict=True))

    @contextmanager
    def calling(self, module: nn.Module) -> Generator[None]:
        """Take what a module that stays a call assigns itself while it runs for what its next call assigns again."""
        self.is_disturbed = True
        parts = [(part, _copies_of(part)) for part in module.modules() if id(part) in self._seen]
        try:
            yield
        finally:
            for part, before in parts:
                self._called.add(id(part))
                tables = _tables(part)
                if not all(map(is_same_table, tables, before)):
                    left = self._left_by_calls.setdefault(id(part), _copies(self._seen[id(part)][2]))
                    for table, former, kept in zip(tables, before, left, strict=True):
                        _take_over(kept, table, _differing(table, former))

    def held(self) -> Iterator[Any]:
        """Yield what the containers and objects that the modules hold held when they were noted."""
        return self._containers.held()

    def arrays(self) -> list[Any]:
        """Return the arrays of NumPy that the modules hold, until they are put back."""
        return self._containers.arrays()

    def changed(self) -> set[int]:
        """Return the ids of the containers and objects that had been changed when all was put back."""
        return {id(container) for container, _, _ in self._contents_left}

    def refuse(self, error: TraceError) -> None:
        """Hear of something that must not stay unsaid when the program has ended."""
        self._refusal = self._refusal or error

    def held_before(self, module: nn.Module, name: str, value: Any) -> bool:
        """Return whether `module` held `value` under that name before the trace."""
        known = self._seen.get(id(module))
        if known is None:
            return True
        for table in known[2]:  # noqa: SIM110 - asked about every tensor of the root
            if table.get(name) is value:
                return True
        return False

    # -- putting back

    def restore(self) -> list[ModuleChange]:
        """Put everything back, and return what had been changed; what calls that stay ones change is their affair."""
        self.is_watching = False
        if self.gradients is not None:
            self.gradients.restore()
        hooked = None if self._weight_hooks is None else self._weight_hooks.restore()
        if hooked is not None:
            self.refuse(_hooked_weight(hooked))
        changes: list[ModuleChange] = []
        for module, path, copies in self._seen.values():
            left = self._left_by_calls.get(id(module), copies)
            table: _Table = vars(module)
            tables: Sequence[_Table] = ()
            for place, before in enumerate(copies):
                if place > 0:
                    tables = tables or _tables(module)
                    table = tables[place]
                if not is_same_table(table, before):
                    found = dict(table)
                    changes += _changes_in(module, path, (before, found, left[place]), is_state=place > 0)
                    table.clear()
                    table.update(before)
                    self._tables_left.append((table, before, found))
        changes += self._restore_hooks()
        changes += self._restore_containers()
        for key, left in self._left_by_calls.items():
            module, path, copies = self._seen[key]
            for name in _differing(left[0], copies[0]):
                self.assigned_by_calls.append((module, path, name, left[0].get(name), False))
        self._left_by_calls.clear()
        return changes

    def _restore_containers(self) -> Iterator[ModuleChange]:
        for change in self._containers.restore():
            module = self._modules[change.path]
            if id(module) in self._called and change.name in _names_in(module):
                found = [part for _, _, parts in change.parts for part in parts]
                self.assigned_by_calls.append((module, change.path, change.name, found, True))
                continue
            self._contents_left += change.parts
            path = f"{change.path}.{change.name}" if change.path else change.name
            steps = tuple(step for part in change.parts for step in _steps_in(change.name, *part))
            how = "iterator" if change.has_gone_on else "contents"
            yield ModuleChange(module, path, change.name, how, steps)

    def _restore_hooks(self) -> Iterator[ModuleChange]:
        if RemovableHandle.next_id == self._hooks_made and not self._hooks:
            return
        seen: set[int] = set()
        for module in (*self._waiting[0], *(module for module, *_ in self._seen.values())):
            if isinstance(module, _ScriptModule) or id(module) in seen or not self._changed_hooks(module):
                continue
            seen.add(id(module))
            former = self._hooks.get(id(module))
            for index, table in enumerate(hook_tables(module)):
                found = dict(table)
                kept = {key: hook for key, hook in found.items() if not self._is_new(key)}
                before = former[index] if former else kept if id(module) not in self._seen else {}
                table.clear()
                table.update(before)
                self._tables_left.append((table, before, found))
            path = self._seen[id(module)][1] if id(module) in self._seen else self._waiting[1][id(module)]
            yield ModuleChange(module, path, "", "hooks")

    def _is_new(self, key: Any) -> bool:
        """Return whether a hook was registered since the trace began: they are numbered."""
        return not isinstance(key, int) or key >= self._hooks_made

    def exchange(self, *, as_left: bool) -> None:
        """Put there what the program had left in its modules, or again what was there before.

        Args:
            as_left: Whether it is what the program had left.
        """
        for table, before, found in self._tables_left:
            table.clear()
            table.update(found if as_left else before)
        for container, before, found in self._contents_left:
            fill(container, found if as_left else before)

    def release(self) -> None:
        """Let go of the modules."""
        held = (self._modules, self._seen, self._left_by_calls, self._hooks, self.plain_layers)
        for table in (*held, self._tables_left, self._contents_left, self.assigned_by_calls):
            table.clear()
        self._waiting = (), {}

    def refuse_changes(self, changes: Sequence[ModuleChange], codes: Sequence[CodeType]) -> None:
        """Refuse what no program may do.

        Args:
            changes: What `restore` returned.
            codes: The functions of the program.

        Raises:
            TraceError: A parameter, buffer or submodule was assigned: later calls of the program would have seen it. Or
                something was refused.
        """
        if self._refusal is not None:
            raise self._refusal
        for change in changes:
            if change.how == "state":
                own = [*codes, *codes_of(change.module)]
                raise assignment_error(change.path, place_of_write(own, change.name, "attribute"))


def _hooked_weight(path: str) -> TraceError:
    return TraceError(
        f"Cannot trace a hook that the program puts on the weight {path!r} where it has found it by itself, as by "
        "self.parameters(): nothing is recorded of it. Read the weight as an attribute of its module "
        "(self.layer.weight.register_hook(...)), or give example inputs: fxplug.trace(root, example_inputs).",
        code="FXP-T010",
    )


def _changes_in(
    module: nn.Module,
    path: str,
    tables: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
    *,
    is_state: bool,
) -> Iterator[ModuleChange]:
    """Yield what the program has changed in a table: of attributes, or of what is registered.

    Args:
        module: Whose.
        path: Of the module.
        tables: What the table held before, what it holds, and what calls that stay ones have left in it; the second is
            changed: it will be what the program alone has left.
        is_state: Whether the table is one of what is registered.
    """
    before, found, left = tables
    prefix = f"{path}." if path else ""
    for name in _differing(found, before):
        former, value = before.get(name, ABSENT), found.get(name, ABSENT)
        if left is not before and value is left.get(name, ABSENT):
            _take_over(found, before, [name])  # A call that stays one has assigned it, and will again.
            continue
        step = Step(name, "attribute", former, value, contents=False)
        # What no file holds is a table that the module makes for itself, as in a plain attribute.
        is_new = before.get(name) is None and isinstance(value, torch.Tensor)
        is_table = is_new and name in found and is_transient(module, name)
        yield ModuleChange(
            module, prefix + name, name, "state" if is_state and not is_table else "assigned", (step,)
        )


def _steps_in(attribute: str, container: Any, before: list[Any], found: list[Any]) -> Iterator[Step]:
    """Yield what is another one in a container or object that an attribute holds, or something in it."""
    if not is_object(container):
        yield Step(attribute, "attribute", before, found, contents=True)
        return
    former, current = dict(before), dict(found)
    for name in {**former, **current}:
        was, now = former.get(name, ABSENT), current.get(name, ABSENT)
        if was is not now:
            yield Step(name, "attribute", was, now, contents=False, holder=type(container))


def report_changes(changes: Sequence[ModuleChange], *, warns: bool) -> None:
    """Speak of what a program has changed in its modules, which was put back.

    Args:
        changes: What it has changed, and no call answers by.
        warns: Whether that is worth a warning; otherwise it is an error.

    Raises:
        TraceError: It is not to be a warning.
    """
    for change in changes:
        if change.how == "hooks":
            continue
        done, verb = (
            ("assigned", "assign it") if change.how == "assigned" else ("changed what is in", "change it")
        )
        said = f"While tracing, forward {done} the attribute {change.path!r}. It was put back, and the captured program"
        speak_of(said, verb, "make the enclosing module a leaf", warns=warns)


def assignment_error(path: str, line: SourceLine | None = None) -> TraceError:
    """Return the error for assigning a part of a module's state.

    Args:
        path: Of what is assigned.
        line: Where; by default where the program is.
    """
    place = line or user_line(3)
    return TraceError(
        f"Cannot trace: forward assigned {path!r}, which is part of the module's state, at {place}, and an "
        "assignment cannot be recorded. Update the tensor in place (self.buffer.copy_(...)), or make the enclosing "
        "module a leaf.",
        code="FXP-T009",
    )


def leaf_error(path: str, kind: str, name: str) -> TraceError:
    """Return the error for a module that stays a call, and is another one at its call than when the trace began."""
    what = (
        f"its hooks, or those of a module in it ({name!r}) or of all modules, are not those that it had"
        if kind == "hooks"
        else f"{name!r} is not what it was"
    )
    return TraceError(
        f"Cannot trace the call of the module {path!r} at {user_line(3)}: {what} when the trace began. The call is "
        "recorded as a whole, and the captured program would call the module as it was. Change the module before the "
        "program is captured, use the function of torch.nn.functional with the values that it is to have, or let the "
        "trace enter the module (a policy with is_leaf_module).",
        code="FXP-T010",
    )


def is_same_table(table: Mapping[Any, Any], before: Mapping[Any, Any]) -> bool:
    """Return whether a table holds what it held, in the same order."""
    # By identity: values may define any == of their own.
    return (not before and not table) or (
        len(table) == len(before) and all(map(is_, table.values(), before.values())) and [*table] == [*before]
    )


def _differing(table: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    names = (*before, *(name for name in table if name not in before))
    return [name for name in names if table.get(name, _NOTHING) is not before.get(name, _NOTHING)]


def _tables(module: nn.Module) -> tuple[_Table, _Table, _Table, _Table]:
    parameters, buffers, below = own_tables(module)
    return vars(module), parameters, buffers, below


def _copies_of(module: nn.Module) -> _Copies:
    return _copies(_tables(module))


def _copies(tables: tuple[_Table, _Table, _Table, _Table] | _Copies) -> _Copies:
    attributes, parameters, buffers, below = tables
    return dict(attributes), dict(parameters), dict(buffers), dict(below)


def _take_over(kept: dict[str, Any], table: _Table, names: list[str]) -> None:
    for name in names:
        if name in table:
            kept[name] = table[name]
        else:
            kept.pop(name, None)


def may_assign(module: nn.Module) -> bool:
    """Return whether a module may assign attributes when it is called, as a hook of it may; layers of torch do not."""
    plain = module.__dict__
    if "_modules" not in plain:  # What is compiled assigns nothing that Python sees.
        return False
    if plain["_modules"] or "forward" in plain or has_hooks(module):
        return True
    return not str(type(module).__module__).startswith("torch.nn.modules.")


def _names_in(module: nn.Module) -> set[str]:
    return {name for code in codes_of(module) for name in code.co_names}


def _is_read_by(module: nn.Module, name: str, named: set[str]) -> bool:
    """Return whether the call of a module may hang on an attribute of it.

    Args:
        module: The module, or one in it.
        name: Of the attribute.
        named: The names in the code of the module that is called.
    """
    if name == "forward" or name in OWN_TABLES or hasattr(type(module), name):
        return True
    return name in named or not named or not named.isdisjoint(_DYNAMIC) or name in _names_in(module)


def is_read_by_call(leaf: nn.Module, change: ModuleChange) -> bool:
    """Return whether the call of a module, which stays one, may hang on a change in it."""
    return change.how == "hooks" or _is_read_by(change.module, change.name, _names_in(leaf))


def _size_of_layer(kind: type, plain: dict[str, Any]) -> int:
    """Return how many attributes the layers of torch of this class have, 0 where one may hold a container."""
    # Bare modules hold what the program gives them.
    if kind is nn.Module or not str(kind.__module__).startswith("torch.nn.modules."):
        return 0
    declared = _declared.get(kind)
    if declared is None:
        bases = [vars(base) for base in kind.__mro__]
        declared = _declared[kind] = OWN_TABLES.union(
            *[(*held.get("__constants__", ()), *held.get("__annotations__", ())) for held in bases]
        )
    for name, value in plain.items():
        if name in OWN_TABLES or (name in declared and type(value) in PLAIN):
            continue
        if name not in declared or type(value) is not tuple or not all(type(part) in PLAIN for part in value):
            return 0
    return len(plain)


_declared: dict[type, frozenset[str]] = {}
"""The attributes that layers of torch declare."""


def _names_heard_of(kind: type, plain: dict[str, Any]) -> frozenset[str]:
    """Return which attributes a module has that not every module has, or `_NOT_HEARD_OF`.

    The latter where its class takes it into its own hands how attributes are assigned: nothing may be heard of it.
    """
    for base in kind.__mro__:
        if base is nn.Module:
            return frozenset(plain.keys() - OWN_TABLES)
        if "__setattr__" in vars(base) or any(map(_may_assign_unheard, vars(base).values())):
            break
    return _NOT_HEARD_OF


def _may_assign_unheard(value: Any) -> bool:
    """Return whether something in a class works like `functools.cached_property`, which writes to an object's table."""
    kind = type(value)
    return kind not in _USUAL_IN_CLASSES and hasattr(kind, "__get__")


_OF_LAYERS = frozenset({*PLAIN, dict, tuple, set, OrderedDict})
"""Classes of what layers of torch hold: settings and tables. What else somebody has put there may keep something."""
_USUAL_IN_CLASSES = frozenset({FunctionType, property, staticmethod, classmethod, type, *PLAIN})
_NOT_HEARD_OF = frozenset({""})


def _is_plain(module: nn.Module, plain: dict[str, Any], names: frozenset[str]) -> bool:
    """Return whether a module has attributes of these names, and holds nothing that changes without an assignment."""
    return all([type(plain.get(name, _NOTHING)) in PLAIN for name in names]) and not has_hooks(module)  # noqa: C419


def carried_over_error(change: ModuleChange, codes: Sequence[CodeType]) -> TraceError:
    """Return the error for a change by which the next call of the program would answer.

    Args:
        change: The change.
        codes: The functions of the program.
    """
    kind = type(change.module).__name__
    if change.how == "hooks":
        kept = f"the program leaves other hooks at the module {change.path!r} ({kind}) than it has found, and its next"
    else:
        where = _who_writes(change, codes)
        kept = f"{where} keeps something in the attribute {change.path!r} of {kind} that its next"
    verb = "call would run them" if change.how == "hooks" else "call reads"
    return TraceError(
        f"Cannot trace: {kept} {verb}. The graph has no place for it, and would answer every call as the first one. "
        "Keep tensors in buffers that are updated in place, pass the state as an input and return the new one, or make "
        "the enclosing module a leaf. If it is only filled once, like a cache, call the program before you capture it.",
        code="FXP-T055",
    )


def kept_draws_error(function: Any) -> TraceError:
    """Return the error for random numbers that a function draws once and keeps for its next calls.

    Args:
        function: One made by `functools.lru_cache`.
    """
    return TraceError(
        f"Cannot trace: {_shown_with_place(function)} draws random numbers once and keeps them for its next calls "
        "(functools.lru_cache). The graph has no place for them, and would draw others in every call. Keep them in a "
        "buffer that is made before the program is captured.",
        code="FXP-T055",
    )


def changed_result_error(function: Any) -> TraceError:
    """Return the error for a change of what a function has computed once and returns to its next callers, too.

    Args:
        function: One made by `functools.lru_cache`.
    """
    return TraceError(
        f"Cannot trace: the program changes what {_shown_with_place(function)} has returned, which is kept for its "
        "next calls (functools.lru_cache). The graph has no place for it, and would answer every call as the first "
        "one. Change a copy, or keep the state in a buffer that is updated in place.",
        code="FXP-T055",
    )


def _shown_with_place(function: Any) -> str:
    """Return the name of a function whose results are kept, and where the one stands that computes them."""
    code = function.__wrapped__.__code__
    return f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"


def _who_writes(change: ModuleChange, codes: Sequence[CodeType]) -> str:
    """Return who assigns an attribute, and the line; the place of the forward, where the line is not known."""
    module, name = change.module, change.name
    own = codes_of(module)
    others = [code for code in codes if code not in own]
    assigns = [code for code in (*own, *others) if name in writes_of(code).attributes]
    is_own = any(code in own for code in assigns) or (
        not assigns and any(name in code.co_names for code in own)
    )
    who = f"forward of {type(module).__name__}" if is_own else "the program"
    line = place_of_write(assigns or [*own, *others], name, "attribute")
    if line is not None:
        return f"{who}, at {line} ({line.text!r}),"
    code = getattr(getattr(module.forward, "__func__", module.forward), "__code__", None)
    return f"{who} ({code.co_filename}:{code.co_firstlineno})" if isinstance(code, CodeType) else who


def report_outside(
    changes: Sequence[OutsideChange], culprit: OutsideChange | None, state: OutsideState, *, warns: bool
) -> None:
    """Speak of what a program has changed outside of its modules, which was put back.

    Args:
        changes: What it has changed.
        culprit: The one by which its next call would have answered, None where there is no such.
        state: Knows the lines.
        warns: Whether what no call answers by is worth a warning; otherwise it is an error.

    Raises:
        TraceError: There is a culprit, or it is not to be a warning.
    """
    if culprit is not None:
        is_gone = " It has gone on by this capture, which cannot be put back." * (culprit.how == "iterator")
        raise TraceError(
            f"Cannot trace: the program {_changing(culprit, state)}, and its next call would answer by it. The graph "
            f"has no place for it, and would answer every call as the first one.{is_gone} Pass the state as an input "
            "and return the new one, keep it in a buffer of a module that is updated in place, or keep the function "
            "that changes it as a call (fxplug.wrap).",
            code="FXP-T055",
        )
    for text in dict.fromkeys(_changing(change, state) for change in changes):
        said = f"While it was traced, the program {text}. It was put back, and the captured program"
        speak_of(said, "do so", "keep the function that changes it as a call (fxplug.wrap)", warns=warns)


def speak_of(said: str, verb: str, remedy: str, *, warns: bool) -> None:
    """Warn of a change that was put back and that the captured program does not make, or refuse it."""
    if not warns:
        raise TraceError(
            f"{said} would not {verb}; with on_mutation='error' that is refused. Return what is to be kept, or "
            f"{remedy}.",
            code="FXP-T067",
        )
    warnings.warn(f"{said} does not {verb}.", TraceWarning, stacklevel=caller_level())


def _changing(change: OutsideChange, state: OutsideState) -> str:
    line = state.place_of(change.known)
    place = "" if line is None else f" at {line} ({line.text!r})"
    if change.how != "iterator":
        verb = "assigns" if change.how == "assigned" else "changes what is in"
    else:
        verb = "takes from the iterator in" if is_iterator(change.found) else "moves on what is in"
    return f"{verb} {change.known}{place}"


def class_error(path: str, module: nn.Module, kind: Any) -> TraceError:
    """Return the error for giving a module another class: the next call of the program runs its forward."""
    return TraceError(
        f"Cannot trace: the program gives the module {path!r} the class {getattr(kind, '__name__', kind)} in the place "
        f"of {type(module).__name__}, at {user_line(3)}. The graph has no place for it, and would answer every call as "
        "the first one. Give it that class before the program is captured, or make the enclosing module a leaf.",
        code="FXP-T055",
    )


def training_error(path: str) -> TraceError:
    """Return the error for switching a module between training and evaluation."""
    return TraceError(
        f"Cannot trace: forward sets {path!r}, at {user_line(3)}, which cannot be recorded: modules that stay calls "
        "would run in another mode than they do here. Call train() or eval() before the program, or make the enclosing "
        "module a leaf.",
        code="FXP-T052",
    )


def updates_in_place(node: Node, path: str) -> bool:
    """Return whether `node` is a chain of in-place operators on the attribute at `path`."""
    while is_update(node):
        node = node.all_input_nodes[0]
    return node.op == "get_attr" and node.target == path


def is_update(node: Node) -> bool:
    """Return whether a node is a call of an in-place operator, such as ``+=`` or ``add_``."""
    if node.op == "call_method":
        return node.target in _IN_PLACE and node.args[:1] == tuple(node.all_input_nodes[:1])
    return node.op == "call_function" and node.target in AUGMENTED


_IN_PLACE = frozenset(
    {
        f"{name}_"
        for name in ("add", "sub", "mul", "div", "true_divide", "floor_divide", "remainder", "pow", "matmul")
    }
    | {f"__i{name}__" for name in ("lshift", "rshift", "and", "or", "xor")}
)
"""The methods of tensors behind the in-place operators."""
