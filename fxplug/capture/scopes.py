"""Which module a node is made in, in the form in which torch.fx speaks of it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from torch import nn

    from fxplug.capture.sources import Place
    from fxplug.ir import Graph, ModuleScope

__all__ = ["Scope", "ScopeContextManager", "TraceViews"]


class Scope:
    """Path and class of a module.

    Args:
        module_path: Dotted path below the root; empty for the root.
        module_type: Class of the module; None for the root.
    """

    def __init__(self, module_path: str, module_type: Any) -> None:
        self.module_path = module_path
        self.module_type = module_type

    def __repr__(self) -> str:
        return f"Scope({self.module_path!r}, {self.module_type!r})"


class ScopeContextManager:
    """Makes one scope say what another says, at once; puts it back when the context ends.

    Args:
        scope: Changed.
        current_scope: What it says meanwhile.
    """

    def __init__(self, scope: Scope, current_scope: Scope) -> None:
        self._scope = scope
        self._former = scope.module_path, scope.module_type
        scope.module_path, scope.module_type = current_scope.module_path, current_scope.module_type

    def __enter__(self) -> Scope:
        return self._scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.module_path, self._scope.module_type = self._former


class TraceViews:
    """What a tracer of torch.fx keeps beside the graph, read off the graph and off the place where the trace is.

    A subclass of the tracer may assign each of them; from then on it is what was assigned, and the subclass keeps it
    up itself. Nodes know their modules from their origins, whatever is assigned here.
    """

    _place: Place
    graph: Graph
    root: nn.Module

    @property
    def scope(self) -> Scope:
        """The module whose forward runs: one object, which says something else when another module is entered."""
        own = vars(self)
        scope: Scope = own.setdefault("_scope", Scope("", None))
        entered = self._place.scope
        if not own.get("_scope_is_assigned") and own.get("_scope_of") is not entered:
            own["_scope_of"] = entered
            scope.module_path, scope.module_type = _named(entered)
        return scope

    @scope.setter
    def scope(self, scope: Scope) -> None:
        vars(self).update(_scope=scope, _scope_is_assigned=True)

    @property
    def module_stack(self) -> OrderedDict[str, tuple[str, Any]]:
        """Path -> (path, class) of the modules that are being run, the outermost one first, without the root."""
        assigned: OrderedDict[str, tuple[str, Any]] | None = vars(self).get("_module_stack")
        if assigned is not None:
            return assigned
        scope = self._place.scope
        return OrderedDict(
            (path, entry) for path, entry in (scope.stack() if scope is not None else {}).items() if path
        )

    @module_stack.setter
    def module_stack(self, stack: OrderedDict[str, tuple[str, Any]]) -> None:
        vars(self)["_module_stack"] = stack

    @property
    def node_name_to_scope(self) -> dict[str, tuple[str, Any]]:
        """Name of each node -> path and class of the module in whose forward it was made."""
        assigned: dict[str, tuple[str, Any]] | None = vars(self).get("_node_name_to_scope")
        if assigned is not None:
            return assigned
        return {
            node.name: _named(node.origins[0].module if node.origins else None) for node in self.graph.nodes
        }

    @node_name_to_scope.setter
    def node_name_to_scope(self, scopes: dict[str, tuple[str, Any]]) -> None:
        vars(self)["_node_name_to_scope"] = scopes

    @property
    def submodule_paths(self) -> dict[nn.Module, str]:
        """Each module below the root -> its first path."""
        return {module: path for path, module in self.root.named_modules()}

    @property
    def root_module_name(self) -> str:
        """Name of the root's class."""
        return type(self.root).__name__


def _named(scope: ModuleScope | None) -> tuple[str, Any]:
    return ("", None) if scope is None or not scope.path else (scope.path, scope.kind)
