"""Undoing a pass: what a module was, and how to make it that again."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from itertools import islice
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.execute import GraphModule
from fxplug.ir.clone import give_back_notes
from fxplug.ir.collector import paused_collection
from fxplug.semantics.internals import (
    ATTRIBUTES_OF_MODULES,
    HOOK_TABLES,
    OTHER_TABLES,
    SWITCHES,
    compiles_functions,
    is_listening,
    modules_in_order,
    modules_of,
)
from fxplug.semantics.storages import StorageJournal

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator

    from torch import nn

    from fxplug.ir import Graph, Node

__all__ = ["Snapshot"]

_NESTED = (dict, list, set, tuple)
_CONTAINERS = frozenset({dict, OrderedDict, list, set, tuple})
_SCALARS = frozenset({bool, int, float, str, type(None)})
_ATTRIBUTES = tuple(ATTRIBUTES_OF_MODULES)
_hooks_in, _tables_in, _switches_in = (
    itemgetter(*map(_ATTRIBUTES.index, names)) for names in (HOOK_TABLES, OTHER_TABLES, SWITCHES)
)
"""Return the values of what every module has, of all values of its attributes."""
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_TABLES = frozenset({"_parameters", "_buffers", "_modules"})
_NOT_PERSISTENT = "_non_persistent_buffers_set"
_SETTINGS = (int, float, str, tuple, type(None))
"""What attributes of the modules of torch are that say what a module computes: a stride, an eps, a mode."""
_NOT_COMPUTED_WITH = frozenset({"_compiled", "meta"})
"""Attributes of graph modules that do not say what they compute."""
_MISSING = object()
_ATTEMPTS = 100
"""How often an interrupt of a restoration is met with another one."""


class _Graph:
    """One graph as it was."""

    def __init__(self, owner: GraphModule, known: dict[Graph, Graph]) -> None:
        self.owner = owner
        self.graph = owner.graph
        self.version = owner.graph.version
        if self.graph not in known:  # Several modules may run one graph, and go on doing so.
            known[self.graph] = self.graph.__deepcopy__({})
            known[self.graph].observers = list(self.graph.observers)
        self._copy = known[self.graph]

    def is_changed(self) -> bool:
        return self.owner.graph is not self.graph or self.graph.version != self.version

    def restore(self) -> None:
        mapping = None if self.is_changed() else self._former_nodes()
        if mapping is None:
            self.owner.graph = self._copy
            return
        # Notes are no part of what a version counts.
        give_back_notes(self.graph.nodes, self._copy.nodes, mapping)
        self.graph.lifted = self._copy.lifted
        self.graph.rely_on(self._copy)
        self.graph.observers[:] = self._copy.observers

    def _former_nodes(self) -> dict[Node, Node] | None:
        """Return copy -> node; None where an edit was interrupted before it was counted."""
        nodes, copies = list(self.graph.nodes), list(self._copy.nodes)
        if len(nodes) != len(copies) or list(self.graph.nodes.reversed()) != nodes[::-1]:
            return None
        mapping = dict(zip(copies, nodes, strict=True))
        is_intact = all(
            node.all_input_nodes == [mapping[used] for used in former.all_input_nodes]
            and list(node.users) == [mapping[user] for user in former.users]
            for former, node in mapping.items()
        )
        return mapping if is_intact else None


class Snapshot:
    """A module as it is now: its graphs, its tree of modules, their attributes, and what their tensors hold.

    Nothing of the size of the weights is copied: `watching` is entered while the pass runs, and copies the memory of a
    tensor before the first write to it. Containers among the attributes, and those in them, are restored to what they
    hold now, tensors in them included; other objects are not looked into.

    Args:
        module: What is saved, with everything below it.
    """

    def __init__(self, module: GraphModule) -> None:
        self._parts: list[tuple[nn.Module, type, dict[str, Any]]] = []
        self._contents: dict[int, Any] = {}
        """Id of a container -> what it held: a dict of a dict, a tuple of any other."""
        self._containers: list[Any] = []
        """These containers, in the same order."""
        self._empty: list[Any] = []
        """The empty containers among the attributes of tensors; those of modules are not listed."""
        self._tensors: list[torch.Tensor] = []
        self._properties: list[tuple[type, dict[str, property]]] = []
        copies: dict[Graph, Graph] = {}
        parts = modules_in_order(module)
        self._graphs = [_Graph(part, copies) for part in parts if isinstance(part, GraphModule)]
        self.version = module.graph.version
        """Version of the graph."""
        with paused_collection():  # Almost all of it stays for as long as the pass runs.
            for part in parts:
                attributes = vars(part).copy()
                self._parts.append((part, type(part), attributes))
                if "parametrizations" in modules_of(part):
                    # The class was made for this module; what takes a parametrisation away changes the class.
                    own = {
                        name: value for name, value in vars(type(part)).items() if isinstance(value, property)
                    }
                    self._properties.append((type(part), own))
                self._keep_attributes(attributes)
            self._keep_attributes_of_tensors()
            self.journal = StorageJournal(self._tensors)
        """Hears of writes."""

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs that the module and those below it had."""
        return tuple(entry.graph for entry in self._graphs)

    def _keep_attributes(self, attributes: dict[str, Any]) -> None:
        """Note what a module holds."""
        own = (*attributes.values(),)
        if (*islice(attributes, len(_ATTRIBUTES)),) != _ATTRIBUTES:
            self._keep(own)
            return
        # What every module has comes first, and most of it is a table of hooks, in which there are none.
        hooks = _hooks_in(own)
        if any(hooks):
            self._keep(hooks)
        for table in _tables_in(own):
            if table:
                self._keep_table(table)
        switches = _switches_in(own)
        if not _SCALARS.issuperset(map(type, switches)):
            self._keep(switches)
        self._keep(own[len(_ATTRIBUTES) :])

    def _keep(self, values: Iterable[Any]) -> None:
        """Note the tensors among values, and what containers hold; those in them, too."""
        for value in values:
            kind = value.__class__
            if kind in _SCALARS:
                continue
            if kind in _CONTAINERS or isinstance(value, _NESTED):
                if not value:
                    continue
                if kind is not tuple or not _SCALARS.issuperset(map(type, value)):  # A stride holds no more.
                    self._keep_contents(value)
            elif isinstance(value, torch.Tensor):
                self._tensors.append(value)

    def _keep_table(self, table: Any) -> None:
        """Note a table of parameters, buffers or modules."""
        if table.__class__ is not dict or not _CONTAINERS.isdisjoint(map(type, table.values())):
            self._keep([table])
            return
        if id(table) not in self._contents:
            self._containers.append(table)
        self._contents[id(table)] = table.copy()
        if _TENSORS.issuperset(map(type, table.values())):  # As in most tables, but for those of modules.
            self._tensors += table.values()
        else:
            self._tensors += [value for value in table.values() if isinstance(value, torch.Tensor)]

    def _keep_attributes_of_tensors(self) -> None:
        """Note what tensors have as attributes, such as the scale of a weight; the tensors there may have some, too."""
        looked_into: set[int] = set()
        for tensor in self._tensors:  # It grows meanwhile.
            attributes = vars(tensor)
            if attributes and id(tensor) not in looked_into:
                looked_into.add(id(tensor))
                self._keep(attributes.values())
                self._empty += _empty_ones(attributes)

    def _keep_contents(self, container: Any) -> None:
        waiting = [container]  # A list instead of recursion: depth is the user's.
        while waiting:
            value = waiting.pop()
            if id(value) in self._contents:
                continue
            elements = _elements_of(value)
            self._contents[id(value)] = elements
            self._containers.append(value)
            for element in elements.values() if isinstance(elements, dict) else elements:
                if element.__class__ in _SCALARS:
                    continue
                if isinstance(element, _NESTED):
                    waiting.append(element)
                elif isinstance(element, torch.Tensor):
                    self._tensors.append(element)

    @contextmanager
    def watching(self) -> Generator[None]:
        """Hear of what is written while the context lasts."""
        targets = {
            id(node.target): node.target
            for entry in self._graphs
            for node in entry.graph.nodes.listed()
            if node.op == "call_function"
        }
        if any(map(compiles_functions, targets.values())):
            # Such operators compile what they run. Beside a mode that hears of operators that fails, then and later.
            self.journal.save_all()
            yield
            return
        with self.journal:
            yield

    def graph_changed(self, module: GraphModule) -> bool:
        """Return whether the module has another graph than it had, or an edited one."""
        return any(entry.is_changed() for entry in self._graphs if entry.owner is module)

    def graphs_to_check(self, module: GraphModule) -> dict[str, GraphModule]:
        """Return the graph modules inside of the module whose graph is new or edited, or may miss a module.

        Returns:
            Path -> graph module.
        """
        now = {id(part) for part in module.modules()}
        is_complete = all(id(part) in now for part, *_ in self._parts)
        unchanged = {id(entry.owner) for entry in self._graphs if is_complete and not entry.is_changed()}
        return {
            path: part
            for path, part in module.named_modules()
            if isinstance(part, GraphModule) and part is not module and id(part) not in unchanged
        }

    def changes_of_state(self, module: GraphModule) -> list[str]:
        """Return what is another object, or has other values than before, each by its path.

        That is modules, parameters and buffers, and of each module its class, its mode of training, its hooks, and a
        forward of its own; of the modules of torch also settings, such as a stride. Other modules may keep what they
        like in attributes, and change it whenever they run.
        """
        changed = {id(tensor) for tensor in self.journal.changed()}
        known = {id(part): (kind, attributes) for part, kind, attributes in self._parts}
        found = [
            f"the graph of {path or 'the module'}"
            for path, part in module.named_modules()
            if any(
                entry.owner is part and part is not module and entry.is_changed() for entry in self._graphs
            )
        ]
        for path, part in module.named_modules():
            if id(part) in known:
                kind, attributes = known[id(part)]
                found += [
                    f"{path}.{name}" if path else name
                    for name in self._changes(part, kind, attributes, changed)
                ]
            else:
                found.append(path)
        return found

    def may_compute_otherwise(self) -> bool:
        """Return whether any attribute of any module is another object, or holds others, or any tensor was written.

        Unlike `changes_of_state` this counts what a module may do whenever it runs, such as filling a cache. Whether it
        matters is seen by running the module.
        """
        notes: set[int] = set()
        for part, _, attributes in self._parts:
            notes.add(id(attributes.get("meta")))
            now = vars(part)
            names = dict.fromkeys((*attributes, *now))
            if any(
                attributes.get(name, _MISSING) is not now.get(name, _MISSING)
                for name in names
                if name not in _NOT_COMPUTED_WITH
            ):
                return True
        return (
            any(container and id(container) not in notes for container in self._were_empty())
            or any(
                not _holds(container, elements)
                for container, (key, elements) in zip(self._containers, self._contents.items(), strict=True)
                if key not in notes
            )
            or bool(self.journal.changed())
        )

    def _changes(
        self, part: nn.Module, kind: type, attributes: dict[str, Any], changed: set[int]
    ) -> Iterator[str]:
        now = vars(part)
        if type(part) is not kind:
            yield "__class__"
        for name in ("training", "forward"):
            if attributes.get(name) is not now.get(name):
                yield name
        if str(kind.__module__).startswith("torch.nn.modules."):
            yield from _changes_in_settings(now, attributes)
        yield from self._changes_in_tables(now, attributes, changed)
        yield from self._changes_in_persistence(now, attributes)
        if changed:
            yield from (
                name
                for name, held in attributes.items()
                if id(held) in changed and isinstance(held, torch.Tensor)
            )

    def _changes_in_persistence(self, now: dict[str, Any], attributes: dict[str, Any]) -> Iterator[str]:
        """Yield the buffers that have come into the state dict, or gone out of it."""
        held = attributes.get(_NOT_PERSISTENT)
        kept: set[str] = set(self._contents.get(id(held), ()))
        current: set[str] = now.get(_NOT_PERSISTENT) or set()
        if kept != current:
            yield from sorted(name for name in kept ^ current if name in now["_buffers"])

    def _changes_in_tables(
        self, now: dict[str, Any], attributes: dict[str, Any], changed: set[int]
    ) -> Iterator[str]:
        for table, held in attributes.items():
            if table not in _TABLES and not table.endswith("_hooks"):
                continue
            kept = self._contents.get(id(held), ())
            current: Any = now.get(table) or {}
            if not kept and not current:
                continue
            before = dict(kept)
            if before.keys() == current.keys() and table == "_modules":
                # Containers run their modules in order.
                yield from (new for old, new in zip(before, current, strict=True) if old != new)
            for name in dict.fromkeys((*before, *current)):
                value = current.get(name)
                if before.get(name) is not value or id(value) in changed:
                    yield str(name) if table in _TABLES else table

    def restore(self) -> list[str]:
        """Make the module what it was. Its parts stay the objects that they are; an edited graph becomes a copy.

        Returns:
            What could not be undone.

        Raises:
            KeyboardInterrupt: Somebody was impatient meanwhile; the module is what it was all the same.
        """
        interrupt: KeyboardInterrupt | None = None
        for _ in range(_ATTEMPTS):
            try:
                failures = self._restore()
            except KeyboardInterrupt as error:
                interrupt = error  # It may have come between any two steps; each of them can be made twice.
                continue
            if interrupt is None:
                return failures
            break
        assert interrupt is not None
        raise interrupt

    def _restore(self) -> list[str]:
        if is_listening(self.journal):  # An interrupt came before it was told to stop.
            self.journal.__exit__(None, None, None)
        for kind, properties in self._properties:
            for name, value in properties.items():
                if name not in vars(kind):
                    setattr(kind, name, value)
        self._restore_containers()
        for part, kind, attributes in self._parts:
            if type(part) is not kind:
                part.__class__ = kind
            vars(part).clear()
            vars(part).update(attributes)
        failures = self.journal.restore()
        for entry in self._graphs:
            entry.restore()
        return failures

    def _were_empty(self) -> Iterator[Any]:
        """Yield the containers that held nothing: most tables of most modules, and so they are not listed."""
        yield from self._empty
        for _, _, attributes in self._parts:
            for value in attributes.values():
                kind = type(value)  # Not its __class__: a weak proxy of what is gone has none.
                is_container = kind in _CONTAINERS or issubclass(kind, _NESTED)
                if is_container and not issubclass(kind, tuple) and id(value) not in self._contents:
                    yield value

    def _restore_containers(self) -> None:
        for container in self._were_empty():
            if container:
                container.clear()
        for container, elements in zip(self._containers, self._contents.values(), strict=True):
            if isinstance(container, list):
                container[:] = elements
            elif isinstance(container, dict):
                container.clear()
                if type(container) is dict:
                    container.update(elements)
                    continue
                for key, value in elements.items():  # A Counter is updated by counting.
                    container[key] = value
            elif isinstance(container, set):
                container.clear()
                container.update(elements)


def _changes_in_settings(now: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*before, *now)):
        ours, theirs = before.get(name, _MISSING), now.get(name, _MISSING)
        if ours is theirs or name.startswith("_") or name == "training":
            continue
        if all(value is _MISSING or isinstance(value, _SETTINGS) for value in (ours, theirs)) and (
            type(ours) is not type(theirs) or ours != theirs
        ):
            yield name


def _holds(container: Any, elements: Collection[Any]) -> bool:
    """Return whether a container holds the very objects, in their order, that `_elements_of` has found in it."""
    now = _elements_of(container)
    if len(now) != len(elements) or not all(map(is_, now, elements)):
        return False
    held = cast("dict[Any, Any]", elements)
    return not isinstance(now, dict) or all(map(is_, now.values(), held.values()))


def _empty_ones(attributes: dict[str, Any]) -> list[Any]:
    return [value for value in attributes.values() if isinstance(value, _NESTED) and not value]


def _elements_of(container: Any) -> Any:
    """Return what a container holds: a dict of a dict, a tuple of any other."""
    if not isinstance(container, dict):
        return tuple(container)
    # A class of its own may answer for a key with something else than it holds.
    is_plain = type(container) in _CONTAINERS
    return dict(cast("dict[Any, Any]", container) if is_plain else container.items())
