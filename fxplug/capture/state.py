"""The user's modules are as they were when a trace ends: what a forward assigned meanwhile is put back and reported."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from operator import is_
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fxplug.capture.containers import OWN_TABLES, PLAIN, Containers
from fxplug.capture.reached import codes_of, count_accesses, reads_contents
from fxplug.capture.sources import caller_level, user_line
from fxplug.capture.writes import is_read, place_of_write
from fxplug.codegen import AUGMENTED
from fxplug.errors import TraceError, TraceWarning
from fxplug.execute import GraphModule
from fxplug.semantics.internals import global_hook_tables, has_hooks, hook_tables, own_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, MutableMapping, Sequence

    from fxplug.capture.containers import Change
    from fxplug.capture.outside import OutsideChange, OutsideState
    from fxplug.ir import Node

__all__ = [
    "ModuleStates",
    "assignment_error",
    "may_assign",
    "report_outside",
    "speak_of",
    "training_error",
    "updates_in_place",
]

_NUMBERS = frozenset({int, float, bool, str, complex})
_NOTHING: dict[str, Any] = {}
_ScriptModule: type = torch.jit.ScriptModule


_Table: TypeAlias = "MutableMapping[str, Any]"
_Copies: TypeAlias = "tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]"
"""Copies of the attributes of a module, and of its tables of parameters, buffers and submodules."""
_DYNAMIC = frozenset({"__dict__", "getattr", "vars"})
"""What code uses that reads attributes by other than their names."""


class ModuleStates:
    """Remembers the attributes of modules, and what lists and dicts among them hold, to put it back.

    Known are all modules below the root, whether they are called or not, and those that the root does not have once
    they are entered. Assignments are found by identity.

    Args:
        holds_traced: Whether a value is, or holds, one that hangs on the inputs.
        codes: Returns the functions that the program has entered, for what is changed from outside of a module.
        runs_leaves: Whether modules that stay calls run while the program is traced.
    """

    def __init__(
        self,
        holds_traced: Callable[[Any], bool] | None = None,
        codes: Callable[[], list[CodeType]] | None = None,
        *,
        runs_leaves: bool = False,
    ) -> None:
        self._holds_traced = holds_traced or _nothing
        self._codes = codes or _no_codes
        self._runs_leaves = runs_leaves
        self._modules: dict[str, nn.Module] = {}
        self.is_watching = True
        """Whether the program is still running."""
        self._seen: dict[int, tuple[nn.Module, str, _Copies]] = {}
        """Id of a module -> the module, its path, and copies of its tables."""
        self._waiting: tuple[Sequence[nn.Module], Mapping[int, str]] = (), {}
        """All modules below the root, and their paths."""
        self._hooks: dict[int, tuple[dict[Any, Any], ...]] = {}
        """Id of a module that has hooks -> copies of their tables."""
        self._hooks_made = RemovableHandle.next_id
        self.is_disturbed = False
        """Whether modules that stay calls may be other ones than when the trace began."""
        self._left_by_calls: dict[int, _Copies] = {}
        """Id of a module -> its tables as a call that stays one has left them."""
        self._called: set[int] = set()
        """The ids of modules that have run in such a call."""
        self._forward = ""
        self._containers = Containers()
        self._refusal: TraceError | None = None

    def remember_all(self, modules: Sequence[nn.Module], paths: Mapping[int, str]) -> None:
        """Take note of what the modules below the root hold, of which `paths` has the ids in the same order.

        Layers of torch without hooks, and where no layer runs others that hold no containers, wait until an attribute
        of theirs is about to be assigned, or until `expect_changes`: a model has hundreds of them.
        """
        sizes: dict[type, int] = {}
        layouts: dict[tuple[type, int], frozenset[str]] = {}
        for module, path in zip(modules, paths.values(), strict=True):
            plain = module.__dict__
            kind = module.__class__
            size = sizes.get(kind)
            if size is None:
                size = sizes[kind] = _size_of_layer(kind, plain)
            if size != len(plain) or (self._runs_leaves and has_hooks(module)):
                key = kind, len(plain)
                names = layouts.get(key)
                if names is None:
                    names = layouts[key] = (
                        _NOT_HEARD_OF if self._runs_leaves else _names_heard_of(kind, plain)
                    )
                if not _is_plain(module, plain, names):
                    self.remember(module, path)
        self._waiting = modules, paths

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
        self._seen[id(module)] = module, path, _copies_of(module)
        self._containers.remember(path, vars(module))
        self._modules[path] = module
        self._note_hooks(module)

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

    def check_call(self, module: nn.Module, path: str) -> None:
        """Look whether `module`, which stays a call, is what it was when the trace began.

        Raises:
            TraceError: It is not: the captured program would call it as it was.
        """
        if not self.is_disturbed and RemovableHandle.next_id == self._hooks_made:
            return
        changed = self._changed_for_call(module, path)
        if changed is not None:
            error = leaf_error(path, *changed)
            self.refuse(error)
            raise error

    def _changed_for_call(self, module: nn.Module, path: str) -> tuple[str, str] | None:
        """Return the first thing about a module, or one in it, that is not what it was, and what kind it is of."""
        if any(self._is_new(key) for table in global_hook_tables() for key in table):
            return "hooks", path
        named: set[str] | None = None
        for part in module.modules():
            if self._changed_hooks(part):
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

    def restore(self) -> list[tuple[str, str]]:
        """Put everything back.

        Returns:
            For each attribute that had been changed: its path, and ``"state"`` for a parameter, buffer or submodule,
            ``"attribute"`` for another one, ``"contents"`` where what it holds had been changed, ``"carried over"`` for
            those by which the next call would have answered.
        """
        self.is_watching = False
        changes: list[tuple[str, str]] = []
        for module, path, copies in self._seen.values():
            left = self._left_by_calls.get(id(module), copies)
            # The attributes first: the tables are among them.
            for place, before in enumerate(copies):
                table = vars(module) if place == 0 else _tables(module)[place]
                if not is_same_table(table, before):
                    changes += self._changes(module, path, table, before, left[place], registered=place > 0)
                    table.clear()
                    table.update(before)
        self._restore_hooks()
        for change in self._containers.restore():
            module = self._modules[change.path]
            if id(module) in self._called and change.name in _names_in(module):
                continue
            name = f"{change.path}.{change.name}" if change.path else change.name
            is_read = self._is_read_again(module, change)
            if is_read:
                self._note_forward(module, change.name)
            changes.append((name, "carried over" if is_read else "contents"))
        self._modules.clear()
        self._seen.clear()
        self._waiting = (), {}
        self._left_by_calls.clear()
        # The tracer's own methods would keep the tracer alive.
        self._holds_traced, self._codes = _nothing, _no_codes
        return changes

    def _restore_hooks(self) -> None:
        if RemovableHandle.next_id == self._hooks_made and not self._hooks:
            return
        for module in (*self._waiting[0], *(module for module, *_ in self._seen.values())):
            if isinstance(module, _ScriptModule):
                continue
            if self._changed_hooks(module):
                former = self._hooks.get(id(module))
                for index, table in enumerate(hook_tables(module)):
                    kept = {key: hook for key, hook in table.items() if not self._is_new(key)}
                    table.clear()
                    table.update(former[index] if former else kept if id(module) not in self._seen else {})

    def _is_new(self, key: Any) -> bool:
        """Return whether a hook was registered since the trace began: they are numbered."""
        return not isinstance(key, int) or key >= self._hooks_made

    def _changes(
        self,
        module: nn.Module,
        path: str,
        table: _Table,
        before: dict[str, Any],
        left: dict[str, Any],
        *,
        registered: bool,
    ) -> list[tuple[str, str]]:
        """Return what `restore` does for one table: of attributes, or of what is registered."""
        prefix = f"{path}." if path else ""
        found: list[tuple[str, str]] = []
        for name in _differing(table, before):
            former, value = before.get(name), table.get(name)
            if value is left.get(name) and left is not before:
                continue  # A call that stays one has assigned it, and will again.
            if registered:
                found.append((prefix + name, "state"))
            else:
                carried = self._is_carried_over(module, name, former, value)
                found.append((prefix + name, "carried over" if carried else "attribute"))
        return found

    def _is_carried_over(self, module: nn.Module, name: str, former: Any, value: Any) -> bool:
        """Return whether later calls of the program would have answered by what this one has assigned.

        What does not hang on the inputs, and took the place of None, is a table that is made when it is first needed. A
        counter that nothing reads but its own increment changes nothing.
        """
        if not self._holds_traced(value) and (former is None or type(value) not in _NUMBERS):
            return False
        reads, sets = count_accesses(module, name)
        is_read_again = reads > sets or self._is_read_outside(module, name, contents=False)
        if is_read_again:
            self._note_forward(module, name)
        return is_read_again

    def _is_read_outside(self, module: nn.Module, name: str, *, contents: bool) -> bool:
        """Return whether code of the program that is not that of the module reads an attribute."""
        own = codes_of(module)
        return is_read(
            (code for code in self._codes() if code not in own), name, "attribute", contents=contents
        )

    def _is_read_again(self, module: nn.Module, change: Change) -> bool:
        """Return whether later calls would have answered by what containers and objects were filled with."""
        if change.has_gone_on:
            return True
        is_counted = any(
            value is not former and former is not None and type(value) in _NUMBERS
            for former, value in change.replaced
        )
        if (is_counted or self._holds_traced(change.contents)) and (
            reads_contents(module, change.name) or self._is_read_outside(module, change.name, contents=True)
        ):
            return True
        for holder, name, former, value in change.fields:
            if self._holds_traced(value) or (former is not None and type(value) in _NUMBERS):
                reads, sets = count_accesses(module, name, type(holder))
                if reads > sets or self._is_read_outside(module, name, contents=False):
                    return True
        return False

    def _note_forward(self, module: nn.Module, attribute: str) -> None:
        """Remember the place of the first forward that is to be refused, or the line of the program if it has none."""
        if self._forward:
            return
        line = place_of_write(self._codes(), attribute, "attribute")
        if line is not None and not any(attribute in code.co_names for code in codes_of(module)):
            self._forward = f"the program, at {line} ({line.text!r}),"
            return
        code = getattr(getattr(module.forward, "__func__", module.forward), "__code__", None)
        place = f" ({code.co_filename}:{code.co_firstlineno})" if isinstance(code, CodeType) else ""
        self._forward = f"forward of {type(module).__name__}{place}"

    def restore_and_report(self, *, warns: bool = True) -> None:
        """Put everything back, and speak of what the captured program will not do.

        Args:
            warns: Whether attributes that were assigned are worth a warning; otherwise they are an error.

        Raises:
            TraceError: A parameter, buffer or submodule was assigned: later calls of the program would have seen it. Or
                something was refused.
        """
        changes = self.restore()
        if self._refusal is not None:
            raise self._refusal
        for path, kind in changes:
            if kind == "state":
                raise assignment_error(path)
            if kind == "carried over":
                raise _carried_over(path, self._forward)
            change = "assigned" if kind == "attribute" else "changed what is in"
            verb = "assign it" if kind == "attribute" else "change it"
            said = f"While tracing, forward {change} the attribute {path!r}. It was put back, and the captured program"
            speak_of(said, verb, "make the enclosing module a leaf", warns=warns)


def assignment_error(path: str) -> TraceError:
    """Return the error for assigning a part of a module's state."""
    return TraceError(
        f"Cannot trace: forward assigned {path!r}, which is part of the module's state, at {user_line(3)}, and an "
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
    return not type(module).__module__.startswith("torch.nn.modules.")


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


def _size_of_layer(kind: type, plain: dict[str, Any]) -> int:
    """Return how many attributes the layers of torch of this class have, 0 where one may hold a container."""
    # Bare modules hold what the program gives them.
    if kind is nn.Module or not kind.__module__.startswith("torch.nn.modules."):
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
        if "__setattr__" in vars(base):
            break
    return _NOT_HEARD_OF


_NOT_HEARD_OF = frozenset({""})


def _is_plain(module: nn.Module, plain: dict[str, Any], names: frozenset[str]) -> bool:
    """Return whether a module has attributes of these names, and holds nothing that changes without an assignment."""
    return all([type(plain.get(name, _NOTHING)) in PLAIN for name in names]) and not has_hooks(module)  # noqa: C419


def _nothing(_: Any) -> bool:
    return False


def _no_codes() -> list[CodeType]:
    return []


def _carried_over(path: str, forward: str) -> TraceError:
    return TraceError(
        f"Cannot trace: {forward} keeps something in the attribute {path!r} that its next call reads. The graph has no "
        "place for it, and would answer every call as the first one. Keep tensors in buffers that are updated in "
        "place, pass the state as an input and return the new one, or make the enclosing module a leaf.",
        code="FXP-T055",
    )


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
    verb = {"assigned": "assigns", "contents": "changes what is in", "iterator": "takes from the iterator in"}
    line = state.place_of(change.known)
    place = "" if line is None else f" at {line} ({line.text!r})"
    return f"{verb[change.how]} {change.known}{place}"


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
    while _is_update(node):
        node = node.all_input_nodes[0]
    return node.op == "get_attr" and node.target == path


def _is_update(node: Node) -> bool:
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
