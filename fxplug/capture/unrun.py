"""Hooks of layers that stay calls, in a trace that runs no layers: what they would have left for the program."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from fxplug.capture.reached import function_behind
from fxplug.capture.sources import is_installed
from fxplug.capture.writes import is_read, with_inner, writes_of
from fxplug.errors import TraceError
from fxplug.execute.paths import module_at
from fxplug.semantics.internals import hook_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from fxplug.ir import Graph

__all__ = ["are_hooked", "error_behind_hooks", "refuse_values_of_hooks"]


def are_hooked(modules: Sequence[nn.Module]) -> bool:
    """Return whether some modules have hooks around their forward."""
    # Written out: a model has hundreds of them.
    found = [
        module
        for module in modules
        if (own := module.__dict__).get("_forward_hooks") or own.get("_forward_pre_hooks")
    ]
    return bool(found)


def _hooks(graph: Graph, root: nn.Module) -> Iterator[tuple[str, CodeType]]:
    """Yield the code of the hooks of the program at layers that stay calls, with the paths of the layers."""
    for path in dict.fromkeys(str(node.target) for node in graph.find_nodes(op="call_module")):
        layer = module_at(root, path)
        if layer is not None and "_forward_hooks" in vars(layer):
            for table in hook_tables(layer)[:2]:
                for hook in map(function_behind, table.values()):
                    if isinstance(hook, FunctionType) and not is_installed(hook.__code__.co_filename):
                        yield path, hook.__code__


def error_behind_hooks(error: BaseException, graph: Graph, root: nn.Module) -> TraceError | None:
    """Return what to say of an error of a program that has not found something which a hook would have put there.

    Args:
        error: Was raised by the program.
        graph: What was recorded until then.
        root: What its paths refer to.
    """
    if not isinstance(error, (AttributeError, LookupError)):
        return None
    found = next(_hooks(graph, root), None)
    if found is None:
        return None
    return TraceError(
        f"Cannot trace: the program raises {type(error).__name__}: {error}. The layer {found[0]!r} has hooks, which do "
        "not run while it is traced without example inputs: what they leave for the program is not there. Give example "
        "inputs, let the hooks return what they compute, or make the module around the layer a leaf.",
        code="FXP-T010",
    )


def refuse_values_of_hooks(graph: Graph, root: nn.Module, codes: Sequence[CodeType]) -> None:
    """Refuse a program that reads an attribute which a hook assigns: it has read what an earlier run has left there.

    Args:
        graph: What was recorded.
        root: What its paths refer to.
        codes: The functions of the program.

    Raises:
        TraceError: It does.
    """
    for path, hook in _hooks(graph, root):
        own = set(with_inner(hook))
        others = [code for code in codes if code not in own]
        for name in writes_of(hook).attributes:
            if is_read(others, name, "attribute", contents=False):
                raise TraceError(
                    f"Cannot trace: a hook of the layer {path!r} assigns the attribute {name!r}, which the program "
                    "reads. The layer stays one call, and without example inputs neither it nor its hooks run: the "
                    "captured program would read what is there now. Give example inputs, or make the module around the "
                    "layer a leaf.",
                    code="FXP-T010",
                )
