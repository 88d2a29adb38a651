"""Undoing a pass: what a module was, and how to make it that again."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from fxplug.semantics.internals import buffers_of, parameters_of
from fxplug.semantics.storages import StorageJournal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from fxplug.execute import GraphModule

__all__ = ["Snapshot"]

_CONTAINERS = (dict, list, set)


class Snapshot:
    """A module as it is now: its graph, its tree of modules, their attributes, and what their tensors hold.

    Nothing of the size of the weights is copied: `journal` is entered while the pass runs, and copies the memory of a
    tensor before the first write to it. Containers among the attributes are restored to what they hold now; objects
    in them are not looked into.

    Args:
        module: What is saved, with everything below it.
    """

    def __init__(self, module: GraphModule) -> None:
        self._graph = module.graph
        self.version = module.graph.version
        """Version of the graph."""
        self._copy = copy.deepcopy(module.graph)
        self._copy.observers = list(module.graph.observers)
        self._parts: list[tuple[nn.Module, type, dict[str, Any]]] = []
        self._contents: dict[int, tuple[Any, Any]] = {}
        for part in module.modules():
            attributes = dict(vars(part))
            self._parts.append((part, type(part), attributes))
            for value in attributes.values():
                if isinstance(value, _CONTAINERS):
                    self._contents[id(value)] = value, _elements_of(value)
        self.journal = StorageJournal(_tensors_of(self._parts))
        """Entered while the module may be changed."""

    def graph_changed(self, module: GraphModule) -> bool:
        """Return whether the module has another graph than it had, or an edited one."""
        return module.graph is not self._graph or module.graph.version != self.version

    def changes_of_state(self, module: GraphModule) -> list[str]:
        """Return paths of what is another object or holds other values than before: modules, parameters, buffers."""
        changed = {id(tensor) for tensor in self.journal.changed()}
        known = {id(part): attributes for part, _, attributes in self._parts}
        found: list[str] = []
        for path, part in module.named_modules():
            prefix = f"{path}." if path else ""
            if id(part) not in known:
                found.append(path)
                continue
            for table in ("_parameters", "_buffers"):
                before: dict[str, Any] = dict(self._contents[id(known[id(part)][table])][1])
                now: dict[str, Any] = vars(part)[table]
                names = dict.fromkeys((*before, *now))
                found += [
                    prefix + name
                    for name in names
                    if before.get(name) is not now.get(name) or id(now.get(name)) in changed
                ]
        return found

    def restore(self, module: GraphModule) -> None:
        """Make `module` what it was. Its parts stay the objects that they are; the graph may be a copy."""
        for container, elements in self._contents.values():
            if isinstance(container, list):
                container[:] = elements
            else:
                container.clear()
                container.update(elements)
        for part, kind, attributes in self._parts:
            if type(part) is not kind:
                part.__class__ = kind
            vars(part).clear()
            vars(part).update(attributes)
        self.journal.restore()
        if self.graph_changed(module):
            module.graph = self._copy


def _elements_of(container: Any) -> tuple[Any, ...]:
    """Return what a container holds; most tables of most modules are empty."""
    if not container:
        return ()
    return tuple(container.items()) if isinstance(container, dict) else tuple(container)


def _tensors_of(parts: list[tuple[nn.Module, type, dict[str, Any]]]) -> Iterator[torch.Tensor]:
    for part, _, attributes in parts:
        for table in (parameters_of(part), buffers_of(part), attributes):
            yield from (value for value in table.values() if isinstance(value, torch.Tensor))
