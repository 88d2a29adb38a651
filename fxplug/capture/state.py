"""The user's modules are as they were when a trace ends: what a forward assigned meanwhile is put back and reported."""

from __future__ import annotations

import warnings
from operator import is_
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.capture.sources import caller_level, user_line
from fxplug.codegen import AUGMENTED
from fxplug.errors import TraceError, TraceWarning
from fxplug.execute import GraphModule
from fxplug.semantics.internals import buffers_of, modules_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from torch import nn

    from fxplug.ir import Node

__all__ = ["ModuleStates", "assignment_error", "updates_in_place"]

_NOTHING: dict[str, Any] = {}


class ModuleStates:
    """Remembers the attributes of modules whose forward runs, to put them back.

    Assignments are found by identity: what a list or dict held by a module contains is not looked at.
    """

    def __init__(self) -> None:
        self.is_watching = True
        """Whether the program is still running."""
        self._seen: dict[int, list[dict[str, Any]]] = {}
        self._tables: list[tuple[str, bool, MutableMapping[str, Any], dict[str, Any]]] = []

    def remember(self, module: nn.Module, path: str) -> None:
        """Take note of what `module` at `path` holds, the first time it is entered."""
        if id(module) in self._seen or isinstance(module, torch.jit.ScriptModule):
            return  # What is compiled assigns nothing that Python sees.
        if isinstance(module, GraphModule):
            module.recompile()  # What it compiles when it is called is no change that its forward makes.
        plain = vars(module)
        copies = [plain.copy()]
        self._tables.append((path, False, plain, copies[0]))
        for table in (parameters_of(module), buffers_of(module), modules_of(module)):
            before = cast("dict[str, Any]", table).copy() if table else _NOTHING
            copies.append(before)
            self._tables.append((path, True, table, before))
        self._seen[id(module)] = copies

    def held_before(self, module: nn.Module, name: str, value: Any) -> bool:
        """Return whether `module` held `value` under that name before the trace."""
        before = self._seen.get(id(module))
        return before is None or any(table.get(name) is value for table in before)

    def restore(self) -> list[tuple[str, bool]]:
        """Put everything back.

        Returns:
            For each attribute that had been assigned: its path, and whether it is a parameter, buffer or submodule.
        """
        self.is_watching = False
        changes: list[tuple[str, bool]] = []
        for path, registered, table, before in self._tables:
            if not before and not table:
                continue
            # By identity: values may define any == of their own.
            if (
                len(table) == len(before)
                and all(map(is_, table.values(), before.values()))
                and all(map(is_, table, before))
            ):
                continue
            prefix = f"{path}." if path else ""
            names = [*before, *(name for name in table if name not in before)]
            changes += [
                (prefix + name, registered) for name in names if table.get(name) is not before.get(name)
            ]
            table.clear()
            table.update(before)
        self._tables.clear()
        return changes

    def restore_and_report(self) -> None:
        """Put everything back, and speak of what the captured program will not do.

        Raises:
            TraceError: A parameter, buffer or submodule was assigned: later calls of the program would have seen it.
        """
        for path, registered in self.restore():
            if registered:
                raise assignment_error(path)
            warnings.warn(
                f"While tracing, forward assigned the attribute {path!r}. It was put back, and the captured program "
                "does not assign it.",
                TraceWarning,
                stacklevel=caller_level(),
            )


def assignment_error(path: str) -> TraceError:
    """Return the error for assigning a part of a module's state."""
    return TraceError(
        f"Cannot trace: forward assigned {path!r}, which is part of the module's state, at {user_line(3)}, and an "
        "assignment cannot be recorded. Update the tensor in place (self.buffer.copy_(...)), or make the enclosing "
        "module a leaf.",
        code="FXP-T009",
    )


def updates_in_place(node: Node, path: str) -> bool:
    """Return whether `node` is a chain of in-place operators on the attribute at `path`."""
    while node.op == "call_function" and node.target in AUGMENTED:
        node = node.all_input_nodes[0]
    return node.op == "get_attr" and node.target == path
