"""Expressing calls by simpler ones, with what plugins know of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fxplug.errors import InvalidArgumentError
from fxplug.execute import GraphModule
from fxplug.plugins import PluginManager, default_manager
from fxplug.rewrite import DecompositionRecord
from fxplug.rewrite import decompose as decompose_graph

__all__ = ["decompose"]


def decompose(
    module: GraphModule,
    *,
    decompositions: Iterable[DecompositionRecord] | None = None,
    manager: PluginManager | None = None,
) -> GraphModule:
    """Return a module in which calls are expressed by simpler ones, as decompositions say.

    Each decomposition is a Python function with the parameters of the call that it stands for. It is run with
    proxies; what it calls takes the place of the call, keeps its region and its origins, and is looked at again.
    Graph modules inside the module are left as they are.

    Args:
        module: Not changed. Parameters and submodules are shared with the result.
        decompositions: What is expressed how; by default what fxplug and the plugins say (the hook
            ``fxplug_register_decompositions``), where plugins come first.
        manager: Supplies decompositions; by default the installed plugins.

    Returns:
        A new module. It computes the same, up to rounding, as far as the decompositions do.

    Raises:
        InvalidArgumentError: `module` is no graph module, or `decompositions` holds something else than records.
        DecompositionError: A decomposition fails, or leads back to itself.

    Example:
        ::

            simpler = fxplug.decompose(fxplug.symbolic_trace(model))
    """
    if not isinstance(module, GraphModule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(
            f"Cannot decompose a {type(module).__module__}.{type(module).__qualname__}: pass a fxplug.GraphModule, "
            "such as fxplug.symbolic_trace(...) returns."
        )
    if decompositions is None:
        decompositions = (default_manager() if manager is None else manager).decompositions()
    else:
        decompositions = _checked(decompositions)
    return decompose_graph(module, decompositions)


def _checked(decompositions: Any) -> list[DecompositionRecord]:
    """Return decompositions as a list.

    Raises:
        InvalidArgumentError: There is something else among them.
    """
    records: list[Any] = list(decompositions) if isinstance(decompositions, Iterable) else [decompositions]
    for record in records:
        if not isinstance(record, DecompositionRecord):
            raise InvalidArgumentError(
                f"Cannot decompose by {record!r}: decompositions holds records only, such as "
                f"fxplug.DecompositionRecord(target, function)."
            )
    return records
