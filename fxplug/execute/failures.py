"""Telling which node a running graph failed at, and where that node came from."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch

from fxplug.errors import FxplugError, GuardError
from fxplug.ir.handlers import catching_origin

if TYPE_CHECKING:
    from fxplug.codegen import CompiledFunction
    from fxplug.ir import Graph, Node

__all__ = ["add_note", "caught_by_program", "note_failed_line", "note_failed_node"]


def add_note(error: Exception, text: str) -> None:
    """Attach a note to an error, which tracebacks show below its message."""
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:  # Where Python shows no notes, tools such as pytest and rich look for them.
        notes: list[str] = getattr(error, "__notes__", [])
        error.__notes__ = [*notes, text]  # type: ignore[attr-defined]


def note_failed_node(error: Exception, node: Node, where: str = "") -> None:
    """Note on an error that it came up while `node` ran.

    Args:
        error: Gets the note.
        node: The node.
        where: More about the place, in a line of its own.
    """
    # Whatever goes wrong with the note, the error itself is what must be seen.
    with contextlib.suppress(Exception):
        lines = [f"While running node {node.format_node()}", where]
        trace = node.stack_trace
        lines += ["which came from:", trace] if trace else []
        add_note(error, "\n".join(line for line in lines if line))


def caught_by_program(error: Exception, node: Node) -> GuardError | None:
    """Return what to raise for an error of a call that the program would have caught; None where it would not.

    The program would have gone another way, which no graph has.

    Args:
        error: Was raised while `node` ran.
        node: The node.
    """
    place = None
    # Whatever goes wrong with finding it out, the error itself is what must be seen.
    with contextlib.suppress(Exception):
        origin = next(iter(node.origins), None)
        # Errors of others are none of the call, and nodes that were changed are none of the program.
        if _is_of_call(error, node) and origin is not None and not origin.history:
            place = catching_origin(origin, error)
    if place is None:
        return None
    source, text = place.source(), str(error).partition("\n")[0]
    where = f"at {source} ({source.text!r})" if source else "itself"
    return GuardError(
        f"Cannot run the captured program with these inputs: {node.name} raises {type(error).__name__} ({text}), which "
        f"the program catches {where}, and how it goes on then was not captured. Capture it again with inputs like "
        "these (fxplug.trace).",
        can_run_again=False,
    )


def _is_of_call(error: Exception, node: Node) -> bool:
    """Return whether an error is one that torch raises, or that the function raises which a node calls.

    Whoever runs a graph, and torch itself, may end a call by an error of a class of their own.
    """
    if type(error).__module__ == "builtins" or isinstance(error, _OF_TORCH):
        return True
    code, traceback = getattr(node.target, "__code__", None), error.__traceback__
    while code is not None and traceback is not None and not isinstance(error, FxplugError):
        if traceback.tb_frame.f_code is code:
            return True
        traceback = traceback.tb_next
    return False


_OF_TORCH = (torch.linalg.LinAlgError, torch.OutOfMemoryError)  # pyright: ignore[reportPrivateImportUsage]


def note_failed_line(
    error: Exception, compiled: CompiledFunction | None, graph: Graph, name: str
) -> Node | None:
    """Note on an error that went through generated code which node it came up in.

    Args:
        error: Gets the note; nothing is done when it did not come from inside the code.
        compiled: The code.
        graph: What it was generated from.
        name: Of the module.

    Returns:
        The node, None where it is not known.
    """
    line = _line_in(error, compiled) if compiled is not None else None
    if compiled is None or line is None:
        return None
    failed = compiled.code.lines.get(line)
    node = next((node for node in graph.nodes if node.name == failed), None)
    source: list[str] = compiled.code.src.splitlines()[line - 1 : line]
    where = f"in line {line} of the code of {name}: {''.join(source).strip()}"
    if node is not None:
        note_failed_node(error, node, where)
    else:
        add_note(error, f"While running {where.removeprefix('in ')}")
    return node


def _line_in(error: Exception, compiled: CompiledFunction) -> int | None:
    """Return the line of generated code that an error came from, None when it is not the code's."""
    code: Any = compiled.function.__code__
    traceback, line = error.__traceback__, None
    while traceback is not None:
        if traceback.tb_frame.f_code is code:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
