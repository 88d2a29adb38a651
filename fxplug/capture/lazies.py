"""Modules whose parameters have no size yet, such as ``nn.LazyLinear``: running one gives them a size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from fxplug.errors import TraceError
from fxplug.semantics.internals import buffers_of, parameters_of, tensor_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

__all__ = ["lazies_among", "lazy_error"]


def lazies_among(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Return those of some modules that have tensors without a size."""
    # Layers of torch that are not lazy themselves give nothing a size, and a model has hundreds of them.
    kinds = {
        kind
        for kind in set(map(type, modules))
        if not str(kind.__module__).startswith("torch.nn.modules.") or issubclass(kind, LazyModuleMixin)
    }
    wanted = [module for module in modules if type(module) in kinds]
    tables = tensor_tables(wanted)
    if not any(map(is_lazy, [tensor for table in tables for tensor in table.values()])):
        return []
    return [module for module in wanted if _lazy_in(module)]


def _lazy_in(module: nn.Module) -> list[str]:
    tables: tuple[Any, ...] = (parameters_of(module), buffers_of(module))
    return [name for table in tables for name, value in table.items() if is_lazy(value)]


def lazy_error(module: nn.Module, path: str) -> TraceError:
    """Return the error for a module that is about to be run while it is traced, and has tensors without a size.

    Args:
        module: The module.
        path: As messages show it.
    """
    return TraceError(
        f"Cannot trace a call of {path}: {', '.join(_lazy_in(module))} have no size yet, and would get one while it is "
        "traced. Run the module once on inputs first.",
        code="FXP-T069",
    )
