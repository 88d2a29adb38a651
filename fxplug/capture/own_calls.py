"""Modules that stay calls though their class has a ``__call__`` of its own around what `nn.Module` does in a call.

While a program is traced, such a ``__call__`` runs, and only the call inside of it is one node; the captured program
runs it in that node, too. What it does besides would be done twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.capture.sources import line_of_program
from fxplug.errors import TraceError
from fxplug.semantics.internals import has_own_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import CodeType

    from fxplug.ir import Graph, Node

__all__ = ["refuse_doubled_calls"]


def refuse_doubled_calls(graph: Graph, modules: Iterable[nn.Module], paths: Mapping[int, str]) -> None:
    """Look, when all is recorded, whether something was that calls do which are one node.

    Args:
        graph: Of the whole program.
        modules: Those below the root.
        paths: Id of each of them -> its path.

    Raises:
        TraceError: It was.
    """
    kinds: dict[type, frozenset[CodeType]] = {}
    kept: dict[str, frozenset[CodeType]] = {}
    for module in modules:
        kind = type(module)
        if kind not in kinds:
            kinds[kind] = _codes_around(kind) if has_own_call(kind) else frozenset()
        if kinds[kind]:
            kept[paths[id(module)]] = kinds[kind]
    if not kept:
        return
    called = {code: node for node in graph.nodes for code in _kept_by(node, kept)}
    for node in graph.nodes if called else ():
        if not _kept_by(node, kept):
            for code in _codes_that_led_to(node) & called.keys():
                raise _doubled(called[code], node)


def _kept_by(node: Node, kept: Mapping[str, frozenset[CodeType]]) -> frozenset[CodeType]:
    """Return the code around the call that a node stands for, if it stands for one of these modules."""
    return kept.get(str(node.target), frozenset()) if node.op == "call_module" else frozenset()


def _codes_around(kind: type[nn.Module]) -> frozenset[CodeType]:
    """Return the code of the methods that are called before those of `nn.Module`."""
    bases = kind.__mro__[: kind.__mro__.index(nn.Module)]
    found = [getattr(vars(base).get("__call__"), "__code__", None) for base in bases]
    return frozenset(code for code in found if code is not None)


def _codes_that_led_to(node: Node) -> set[Any]:
    codes: set[Any] = set()
    for origin in node.origins:
        current = origin
        while current is not None:
            codes.add(current.code)
            current = current.caller
    return codes


def _doubled(call: Node, node: Node) -> TraceError:
    line = line_of_program(frame for origin in node.origins for frame in origin.frames())
    where = "" if line is None else f" at {line} ({line.text!r})"
    return TraceError(
        f"Cannot keep the call of module {str(call.target)!r} as one node: its class has a __call__ of its own, in "
        f"which {node.name!r} is computed{where}. The captured program would do that twice, once there and once in "
        "the call. Do it in the forward, or let the module be entered (do not make it a leaf).",
        code="FXP-T010",
    )
