"""The module tree of a file, put together again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.execute import POLICIES, GraphModule, GuardSet
from fxplug.ir.guards import Guard
from fxplug.passes.state_origins import NOTE
from fxplug.storage.documents import MOST_OBJECTS, MOST_VALUES, check_count, count_values
from fxplug.storage.faults import Codes, Refusal, checked, entry_fields, places
from fxplug.storage.modules import (
    EMPTY_STATE,
    GRAPH_MODULE,
    MODULE_COLUMNS,
    check_names,
    check_parameter,
    module_classes,
)
from fxplug.storage.state_origins import restore_origins

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.ir import Graph
    from fxplug.passes import StateOrigins
    from fxplug.storage.tensors import TensorReader
    from fxplug.storage.values import Decoder

__all__ = ["ModuleReader"]

_REQUIRED = frozenset({"class", "training"})
_OPTIONAL = frozenset({"attributes", "parameters", "buffers", "not_persistent", "children"})
_GRAPH_FIELDS = frozenset({"graph", "class_name", "meta"})
_GRAPH_OPTIONAL = frozenset({"guards", "state_origins"})
_GUARD_FIELDS = frozenset({"graph", "guards", "on_failure"})
_PARTS_OF_A_GUARD = 3
_FRESH: list[tuple[str, Callable[[], Any]]] = [
    (name, type(value))
    for name, value in EMPTY_STATE.items()
    if isinstance(value, (dict, set)) and type(value) is not OrderedDict
]
_FRESH_HOOKS = [name for name, value in EMPTY_STATE.items() if type(value) is OrderedDict]
"""What ``nn.Module.__init__`` makes anew for each module; it sets one after the other, past every property."""
_PLAIN_SET_STATE = nn.Module.__setstate__
_NO_PARTS: list[Any] = [None, [], [], {}]
"""What stands for a part that a module's row leaves out. Never changed."""
_HOLDING_NAMES = ("parameters", "buffers", "not_persistent", "children")
_NO_NAMES: list[Any] = []  # Never changed.
_TEXT = frozenset({str})
_SHORT = frozenset({bool, int, float, type(None)})
"""Exact types of settings that are in JSON what they are, and count as one value."""
_UNCHANGING = frozenset({str, bool, int, float, type(None), bytes, torch.dtype, torch.device})


@dataclass(frozen=True, slots=True)
class _Kind:
    """What several modules of a file have in common."""

    cls: type[nn.Module]
    state: dict[str, Any]
    """What is in each of them, in its order; `changing` and what every module has anew is put in its place."""
    changing: dict[str, Any]
    """Attributes as JSON, of which each module gets its own."""
    parameters: list[str]
    buffers: list[str]
    not_persistent: frozenset[str]
    children: list[str]
    size: int
    """How many values one more module of this kind takes."""
    has_state_of_its_own: bool
    """Whether the class has a ``__setstate__`` of its own."""
    is_of_torch: bool
    """Whether torch.nn ships the class: its ``__setstate__`` looks at names and settings alone, which a kind shares."""


def _names_in(data: Any, field: str) -> list[str]:
    """Return the names that a kind of modules has in a field."""
    names: list[Any] = checked(data, list, f"The {field} of a module")
    if not _TEXT.issuperset(map(type, names)):
        for name in names:
            checked(name, str, "A name")
    return names


def _is_unchanging(value: Any) -> bool:
    """Return whether several modules may hold the same object, since nobody can change it."""
    kind = type(value)
    return kind in _UNCHANGING or (kind is tuple and _UNCHANGING.issuperset(map(type, value)))


class ModuleReader:
    """Restores a module tree.

    Args:
        decoder: Turns JSON into attributes.
        notes: Turns JSON into entries of ``module.meta``.
        tensors: Holds parameters and buffers.
        fetch_graph: Returns the graph with a number.
    """

    def __init__(
        self, decoder: Decoder, notes: Decoder, tensors: TensorReader, fetch_graph: Callable[[Any], Graph]
    ) -> None:
        self._decoder = decoder
        self._notes = notes
        self._tensors = tensors
        self._fetch_graph = fetch_graph
        self._modules: list[nn.Module] = []
        self._values = 0
        self._complete: set[int] = set()  # Kinds to which their class adds nothing.

    def graph_modules(self) -> list[GraphModule]:
        """Return the graph modules that were restored."""
        return [module for module in self._modules if isinstance(module, GraphModule)]

    def restore(self, kinds: Any, rows: Any) -> nn.Module:
        """Return the last module of the table, which is the root, with everything below it.

        Args:
            kinds: What modules have in common, as JSON.
            rows: The table, as JSON.

        Raises:
            Refusal: A table is damaged, or names a class that is not torch's.
        """
        known: list[_Kind] = []
        for number, entry in enumerate(checked(kinds, list, "The table of kinds of modules")):
            try:
                known.append(self._kind(entry))
            except Refusal as refusal:
                raise refusal.within(f"kind {number} of modules") from None
        check_count(len(checked(rows, list, "The table of modules")), MOST_OBJECTS, "modules")
        for number, row in enumerate(rows):
            try:
                self._modules.append(self._restore(known, row))
            except Refusal as refusal:
                raise refusal.within(f"module {number} of the table") from None
        if not self._modules:
            raise Refusal("it holds no module. The file is damaged.")
        return self._modules[-1]

    def _kind(self, entry: Any) -> _Kind:
        fields = entry_fields(entry, "A kind of modules", _REQUIRED, _OPTIONAL)
        name = fields["class"]
        is_graph = name == GRAPH_MODULE
        kind = GraphModule if is_graph else self._class_named(checked(name, str, "The class of a module"))
        parameters, buffers, not_persistent, children = [
            _names_in(fields[field], field) if field in fields else _NO_NAMES for field in _HOLDING_NAMES
        ]
        attributes = checked(fields.get("attributes", {}), dict, "The attributes of a module")
        check_names(kind, (*parameters, *buffers, *children, *attributes))
        if not set(buffers).issuperset(not_persistent):
            raise Refusal("a buffer that is not persistent does not exist. The file is damaged.")
        training = checked(fields["training"], bool, "The training flag")
        state: dict[str, Any] = {**EMPTY_STATE, "training": training}
        changing: dict[str, Any] = {}
        size = 1 + len(attributes)  # As `count_values` counts.
        for name, data in attributes.items():
            if type(data) in _SHORT:  # Almost always.
                state[name] = data
                continue
            value = state[name] = self._decoder.decode(data)
            size += count_values(data) - 1
            if not _is_unchanging(value):
                changing[name] = data
        return _Kind(
            kind,
            state,
            changing,
            parameters,
            buffers,
            frozenset(not_persistent),
            children,
            size,
            kind.__setstate__ is not _PLAIN_SET_STATE,
            module_classes().get(name) is kind and str(kind.__module__).startswith("torch.nn.modules."),
        )

    def _restore(self, kinds: list[_Kind], data: Any) -> nn.Module:
        row: list[Any] = checked(data, list, "A module")
        if not 1 <= len(row) <= len(MODULE_COLUMNS):
            raise Refusal(
                f"A module has {len(row)} parts, not 1 to {len(MODULE_COLUMNS)}. The file is damaged."
            )
        number, held, parts, graph = row + _NO_PARTS[len(row) :]
        kind = kinds[places(number, len(kinds), "The number of a kind of modules")]
        self._values += kind.size
        check_count(self._values, MOST_VALUES, "values in modules")
        # Deprecated classes warn in their own __new__, which is for people who write such code.
        module = object.__new__(kind.cls)
        state = self._state(kind, held, parts)
        if kind.cls is GraphModule:
            fields = entry_fields(graph, "The graph of a module", _GRAPH_FIELDS, _GRAPH_OPTIONAL)
            state.update(self._graph_state(fields))
        elif graph != {}:
            raise Refusal(f"a {kind.cls.__name__} has a graph. The file is damaged.")
        # Past nn.Module's own __setattr__, as its constructor does.
        object.__setattr__(module, "__dict__", state)
        if kind.has_state_of_its_own and number not in self._complete:
            self._take_state(module, kind, number)
        return module

    def _take_state(self, module: nn.Module, kind: _Kind, number: int) -> None:
        """Let a class add what came with newer versions of torch, unless others of the kind needed nothing."""
        state = vars(module).copy()
        if issubclass(kind.cls, nn.RNNBase):
            layers = state.get("num_layers")
            # It goes through as many as this says.
            if type(layers) is not int or not 0 <= layers <= max(len(kind.parameters), 1):
                raise Refusal(
                    f"a {kind.cls.__name__} does not have {str(layers)[:40]} layers. The file is damaged."
                )
        try:
            module.__setstate__(state.copy())
        except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise Refusal(
                f"{kind.cls.__name__} does not take its state: {error!r}. The file is damaged."
            ) from error
        found = vars(module)
        is_as_before = found.keys() == state.keys() and all(map(is_, map(found.get, state), state.values()))
        if kind.is_of_torch and is_as_before:
            self._complete.add(number)

    def _class_named(self, name: str) -> type[nn.Module]:
        """Return a class of torch, one that a plugin brings, or one that the caller allows."""
        targets = self._decoder.targets
        provision = targets.provision
        kind: Any = provision.resolve(name) if provision.is_name(name) else module_classes().get(name)
        if kind is None:
            kind = targets.allowed(name)
        if kind is None:
            raise Refusal(
                f"the class {name!r} is not one that torch.nn.modules of torch {torch.__version__} ships. If you know "
                f"what it does and trust the file, allow it: load(..., allow=[{name!r}]).",
                Codes.NOT_ALLOWED,
            )
        if not isinstance(kind, type) or not issubclass(kind, nn.Module):
            raise Refusal(f"{name!r} is no class of modules. The file is damaged.")
        return kind

    def _state(self, kind: _Kind, held: Any, parts: Any) -> dict[str, Any]:
        """Return all that is in a module of a kind: what is its own is made anew."""
        state = self._settings(kind)
        tensors = checked(held, list, "What a module holds")
        count = len(kind.parameters)
        if len(tensors) != count + len(kind.buffers):
            raise Refusal(
                f"a module holds {len(tensors)} tensors where its kind names {count + len(kind.buffers)}. The file is "
                "damaged."
            )
        if tensors:
            fetch = self._tensors.fetch
            found = [None if number is None else fetch(number) for number in tensors]
            for name, parameter in zip(kind.parameters, found, strict=False):
                if type(parameter) is not nn.Parameter:
                    check_parameter(name, parameter)
                state["_parameters"][name] = parameter
            if kind.buffers:
                state["_buffers"].update(zip(kind.buffers, found[count:], strict=True))
                state["_non_persistent_buffers_set"].update(kind.not_persistent)
        children = checked(parts, list, "The children of a module")
        if len(children) != len(kind.children):
            raise Refusal(
                f"a module has {len(children)} children where its kind names {len(kind.children)}. The file is damaged."
            )
        if children:
            made = self._modules
            for name, place in zip(kind.children, children, strict=True):
                state["_modules"][name] = (
                    None if place is None else made[places(place, len(made), "The number of a child")]
                )
        return state

    def _settings(self, kind: _Kind) -> dict[str, Any]:
        state = kind.state.copy()
        for name in _FRESH_HOOKS:
            state[name] = OrderedDict()
        for name, make in _FRESH:
            state[name] = make()
        for name, value in kind.changing.items():
            state[name] = self._decoder.decode(value)
        return state

    def _graph_state(self, fields: dict[str, Any]) -> dict[str, Any]:
        notes = checked(fields["meta"], dict, "The notes of a module")
        return {
            "_graph": self._fetch_graph(fields["graph"]),
            "_compiled": None,
            "_class_name": checked(fields["class_name"], str, "The class name of a graph module"),
            "meta": {
                **{name: self._notes.decode(value) for name, value in notes.items()},
                **({NOTE: self._origins(fields["state_origins"])} if "state_origins" in fields else {}),
            },
            **({"_guards": self._guards(fields["guards"])} if "guards" in fields else {}),
        }

    def _origins(self, data: Any) -> StateOrigins:
        return restore_origins(data, self._decoder, self._fetch_graph)

    def _guards(self, data: Any) -> GuardSet:
        fields = entry_fields(data, "The guards of a module", _GUARD_FIELDS, frozenset())
        rows = [
            [checked(part, str, "A guard") for part in checked(row, list, "A guard")]
            for row in checked(fields["guards"], list, "The list of guards")
        ]
        graph = None if fields["graph"] is None else self._fetch_graph(fields["graph"])
        if any(len(row) != _PARTS_OF_A_GUARD for row in rows) or fields["on_failure"] not in POLICIES:
            raise Refusal("its guards are not what guards can be. The file is damaged.")
        answers = graph.output_node().args[0] if graph is not None else ()
        if graph is not None and not (isinstance(answers, tuple) and len(answers) == len(rows)):
            raise Refusal("it does not have one guard for each answer. The file is damaged.")
        return GuardSet(graph, tuple(Guard(*row) for row in rows), fields["on_failure"])
