"""The user's modules are as they were when a trace ends: what a forward assigned meanwhile is put back and reported."""

from __future__ import annotations

import warnings
from operator import is_
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch

from fxplug.capture.containers import Containers
from fxplug.capture.reached import count_accesses, reads_contents
from fxplug.capture.sources import caller_level, user_line
from fxplug.codegen import AUGMENTED
from fxplug.errors import TraceError, TraceWarning
from fxplug.execute import GraphModule
from fxplug.semantics.internals import own_tables

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from torch import nn

    from fxplug.capture.containers import Change
    from fxplug.capture.outside import OutsideChange, OutsideState
    from fxplug.ir import Node

__all__ = ["ModuleStates", "assignment_error", "report_outside", "training_error", "updates_in_place"]

_NUMBERS = frozenset({int, float, bool, str, complex})
_NOTHING: dict[str, Any] = {}
_ScriptModule: type = torch.jit.ScriptModule


_Table: TypeAlias = "MutableMapping[str, Any]"


class ModuleStates:
    """Remembers the attributes of modules whose forward runs, and what lists and dicts among them hold, to put it back.

    Assignments are found by identity.

    Args:
        holds_traced: Whether a value is, or holds, one that hangs on the inputs.
    """

    def __init__(self, holds_traced: Callable[[Any], bool] | None = None) -> None:
        self._holds_traced = holds_traced or _nothing
        self._modules: dict[str, nn.Module] = {}
        self.is_watching = True
        """Whether the program is still running."""
        self._seen: dict[int, list[dict[str, Any]]] = {}
        """Id of a module -> copies of its tables: of its attributes, then of what is registered."""
        self._tables: list[tuple[str, list[_Table], list[dict[str, Any]]]] = []
        """Path of each module, its tables as they are, and these copies."""
        self._forward = ""
        self._containers = Containers()
        self._refusal: TraceError | None = None

    def remember(self, module: nn.Module, path: str) -> None:
        """Take note of what `module` at `path` holds, the first time it is entered."""
        if id(module) in self._seen or isinstance(module, _ScriptModule):
            return  # What is compiled assigns nothing that Python sees.
        if isinstance(module, GraphModule):
            module.recompile()  # What it compiles when it is called is no change that its forward makes.
        plain = vars(module)
        tables: list[_Table] = [plain, *own_tables(module)]
        # Most modules have none of one or the other.
        copies = [cast("dict[str, Any]", table).copy() if table else _NOTHING for table in tables]
        self._containers.remember(path, plain)
        self._modules[path] = module
        self._tables.append((path, tables, copies))
        self._seen[id(module)] = copies

    def refuse(self, error: TraceError) -> None:
        """Hear of something that must not stay unsaid when the program has ended."""
        self._refusal = self._refusal or error

    def held_before(self, module: nn.Module, name: str, value: Any) -> bool:
        """Return whether `module` held `value` under that name before the trace."""
        before = self._seen.get(id(module))
        if before is None:
            return True
        for table in before:  # noqa: SIM110 - asked about every tensor of the root
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
        for path, tables, copies in self._tables:
            for table, before in zip(tables, copies, strict=True):
                # By identity: values may define any == of their own.
                if (not before and not table) or (
                    len(table) == len(before)
                    and all(map(is_, table.values(), before.values()))
                    and [*table] == [*before]
                ):
                    continue
                changes += self._changes(path, table, before, registered=table is not tables[0])
                table.clear()
                table.update(before)
        self._tables.clear()
        for change in self._containers.restore():
            name = f"{change.path}.{change.name}" if change.path else change.name
            is_read = self._is_read_again(self._modules[change.path], change)
            if is_read:
                self._note_forward(self._modules[change.path])
            changes.append((name, "carried over" if is_read else "contents"))
        self._modules.clear()
        self._holds_traced = _nothing  # The tracer's own method would keep the tracer alive.
        return changes

    def _changes(
        self, path: str, table: _Table, before: dict[str, Any], *, registered: bool
    ) -> list[tuple[str, str]]:
        """Return what `restore` does for one table: of attributes, or of what is registered."""
        prefix = f"{path}." if path else ""
        found: list[tuple[str, str]] = []
        for name in (*before, *(name for name in table if name not in before)):
            former, value = before.get(name), table.get(name)
            if value is not former:
                carried = self._is_carried_over(self._modules[path], name, former, value)
                kind = "carried over" if carried else "attribute"
                found.append((prefix + name, "state" if registered else kind))
        return found

    def _is_carried_over(self, module: nn.Module, name: str, former: Any, value: Any) -> bool:
        """Return whether later calls of the program would have answered by what this one has assigned.

        What does not hang on the inputs, and took the place of None, is a table that is made when it is first needed. A
        counter that nothing reads but its own increment changes nothing.
        """
        if not self._holds_traced(value) and (former is None or type(value) not in _NUMBERS):
            return False
        reads, sets = count_accesses(module, name)
        if reads > sets:
            self._note_forward(module)
        return reads > sets

    def _is_read_again(self, module: nn.Module, change: Change) -> bool:
        """Return whether later calls would have answered by what containers and objects were filled with."""
        if change.has_gone_on:
            return True
        is_counted = any(
            value is not former and former is not None and type(value) in _NUMBERS
            for former, value in change.replaced
        )
        if (is_counted or self._holds_traced(change.contents)) and reads_contents(module, change.name):
            return True
        for holder, name, former, value in change.fields:
            if self._holds_traced(value) or (former is not None and type(value) in _NUMBERS):
                reads, sets = count_accesses(module, name, type(holder))
                if reads > sets:
                    return True
        return False

    def _note_forward(self, module: nn.Module) -> None:
        """Remember the place of the first forward that is to be refused."""
        if self._forward:
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
            _speak_of(said, verb, "make the enclosing module a leaf", warns=warns)


def assignment_error(path: str) -> TraceError:
    """Return the error for assigning a part of a module's state."""
    return TraceError(
        f"Cannot trace: forward assigned {path!r}, which is part of the module's state, at {user_line(3)}, and an "
        "assignment cannot be recorded. Update the tensor in place (self.buffer.copy_(...)), or make the enclosing "
        "module a leaf.",
        code="FXP-T009",
    )


def _nothing(_: Any) -> bool:
    return False


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
        _speak_of(said, "do so", "keep the function that changes it as a call (fxplug.wrap)", warns=warns)


def _speak_of(said: str, verb: str, remedy: str, *, warns: bool) -> None:
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
