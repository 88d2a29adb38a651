"""Taking the submodules, parameters and constants of a replacement into the module that is rewritten."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.errors import PatternError
from fxplug.execute import RESERVED_ATTRIBUTES, GraphModule, fetch_path, has_path, set_path
from fxplug.ir import PATH_OPCODES
from fxplug.rewrite.calls import value_at
from fxplug.semantics.internals import persists

if TYPE_CHECKING:
    from fxplug.ir import Node
    from fxplug.rewrite.pattern import Template

__all__ = ["Adoption", "drop_unreached"]


class Adoption:
    """Finds, for each path of a replacement, the path in the module that its nodes are to use.

    A path that the pattern names too is the module's own, and so is one at which both hold the same object. Anything
    else belongs to the replacement: it is copied, once for all matches, to a path that is free.

    Args:
        module: The module that is rewritten.
        pattern: What was searched for.
        replacement: What is put in its place.
    """

    def __init__(self, module: GraphModule, pattern: Template, replacement: Template) -> None:
        self._module = module
        self._graph = replacement.graph
        self._root = replacement.root
        self._shared = {
            node.target for node in _references(pattern) if node.target not in pattern.graph.lifted
        }
        self._paths: dict[str, str] = {}
        self._tops: dict[str, str] = {}
        self._copies: dict[int, Any] = {}
        for node in _references(replacement):
            self._check(node)

    def _check(self, node: Node) -> None:
        path = str(node.target)
        if self._root is not None and has_path(self._root, path):
            return
        if path in self._graph.lifted or (self._is_own_of_module(path) and has_path(self._module, path)):
            return
        holder = "the module that is rewritten" if self._is_own_of_module(path) else type(self._root).__name__
        raise PatternError(
            f"Cannot use the replacement: its node {node.name!r} refers to {path!r}, which {holder} does not have. "
            "Pass a module that has it, or let the pattern refer to it too."
        )

    def _is_own_of_module(self, path: str) -> bool:
        return path not in self._graph.lifted and (self._root is None or path in self._shared)

    def path_for(self, path: str) -> str:
        """Return the path in the module for one of the replacement, taking over what lies there if need be."""
        known = self._paths.get(path)
        if known is None:
            known = self._paths[path] = self._find(path)
        return known

    def _find(self, path: str) -> str:
        if has_path(self._module, path):
            value = value_at(self._root, path)
            if self._is_own_of_module(path) or fetch_path(self._module, path) is value:
                return path
        if path in self._graph.lifted:
            return self._take_constant(path)
        value = fetch_path(self._root, path)
        holder = fetch_path(self._root, path.rpartition(".")[0]) if "." in path else self._root
        free = self._free(path)
        kept = isinstance(holder, nn.Module) and persists(holder, path.rpartition(".")[2])
        # One memo for all paths: what the replacement ties together stays tied.
        set_path(self._module, free, copy.deepcopy(value, self._copies), persistent=kept)
        return free

    def _take_constant(self, path: str) -> str:
        value = value_at(self._root, path, self._graph.lifted)
        graph = self._module.graph
        for other, constant in graph.lifted.items():
            if constant is value and has_path(self._module, other):
                return other
        free = self._free(path)
        graph.lifted[free] = value
        set_path(self._module, free, value, persistent=False)
        return free

    def _free(self, path: str) -> str:
        """Return a path like `path` whose first part is new to the module, so that nothing that it has is changed."""
        top, _, rest = path.partition(".")
        if top not in self._tops:
            name, number = top, 0
            while hasattr(self._module, name) or name in RESERVED_ATTRIBUTES or name in self._tops.values():
                number += 1
                name = f"{top}_{number}"
            self._tops[top] = name
        return f"{self._tops[top]}.{rest}" if rest else self._tops[top]


def _references(template: Template) -> list[Node]:
    return [node for node in template.graph.nodes if node.op in PATH_OPCODES]


def drop_unreached(module: GraphModule, paths: list[str]) -> None:
    """Remove the submodules at `paths` that no node of the module's graph reaches any more.

    A module of the user's that the graph module holds as a whole is left as it is.
    """
    if not paths:
        return
    targets = {str(node.target) for node in module.graph.nodes if node.op in PATH_OPCODES}
    for path in dict.fromkeys(paths):
        reached = any(
            target == path or _is_below(target, path) or _is_below(path, target) for target in targets
        )
        holder = value_at(module, path.rpartition(".")[0]) if "." in path else module
        if not reached and (holder is module or type(holder) is nn.Module):
            module.delete_submodule(path)


def _is_below(path: str, other: str) -> bool:
    return path.startswith(f"{other}.")
