"""The module tree as data: what each module is, holds and has set, and how it is put together again.

Modules stand in a list in which children come before their parents, so that sharing is kept and a cycle
cannot be written down. A module is restored as pickle would do it, without running its constructor: an empty
instance takes in its state, and its class's own ``__setstate__`` brings state from older versions of torch up
to date.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch.nn.modules
from torch import nn

from fxplug.execute import POLICIES, RESERVED_ATTRIBUTES, GraphModule, GuardSet
from fxplug.execute.fused import FUSED_MODULES
from fxplug.ir.guards import Guard
from fxplug.passes import StateOrigins
from fxplug.passes.state_origins import NOTE
from fxplug.semantics import internals
from fxplug.storage.engines import StoredEngine
from fxplug.storage.faults import Codes, Refusal, checked, entry_fields, places
from fxplug.storage.state_origins import describe_origins, restore_origins

if TYPE_CHECKING:
    from fxplug.ir import Graph
    from fxplug.storage.targets import TargetTable
    from fxplug.storage.tensors import TensorReader, TensorWriter
    from fxplug.storage.values import Decoder, Encoder

__all__ = ["GRAPH_MODULE", "ModuleReader", "ModuleWriter", "StandIn", "check_path"]

StandIn = Callable[[nn.Module, str], nn.Module | None]
"""Returns what is written in the place of a submodule and its path; None for the submodule itself."""

GRAPH_MODULE = "fxplug:GraphModule"
"""How a file calls the class of graph modules."""

_STATE = vars(nn.Module())
_TABLES = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"})
_GRAPH_STATE = frozenset({"_graph", "_guards", "_compiled", "_class_name", "meta"})
_REQUIRED = frozenset({"class", "training"})
_OPTIONAL = frozenset({"attributes", "parameters", "buffers", "not_persistent", "children"})
_GRAPH_FIELDS = frozenset({"graph", "class_name", "meta"})
_GRAPH_OPTIONAL = frozenset({"guards", "state_origins"})
_GUARD_FIELDS = frozenset({"graph", "guards", "on_failure"})
_PARTS_OF_A_GUARD = 3
_FEW = 40
_FRESH = [
    (name, type(value) if isinstance(value, (dict, set)) else None, value) for name, value in _STATE.items()
]
_HOOKS = tuple(_STATE.keys() - _TABLES - {"_is_full_backward_hook"})


def _fresh_state() -> dict[str, Any]:
    """Return what ``nn.Module.__init__`` sets, which itself sets one after the other, past every property."""
    return {name: kind() if kind is not None else value for name, kind, value in _FRESH}


@functools.lru_cache(maxsize=1)
def _classes() -> dict[str, type[nn.Module]]:
    """Return the module classes that torch.nn ships, and fused layers, by the names that files call them."""
    holders = [value for value in vars(torch.nn.modules).values() if isinstance(value, types.ModuleType)]
    found = [
        value
        for holder in holders
        for value in vars(holder).values()
        if isinstance(value, type) and issubclass(value, nn.Module)
    ]
    found = [kind for kind in found if kind.__module__.startswith("torch.nn.modules.")]
    return {_class_name(kind): kind for kind in (*found, *FUSED_MODULES.values(), StoredEngine)}


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


@functools.lru_cache(maxsize=8192)
def _hides_class_attribute(kind: type, name: str) -> bool:
    """Return whether an instance attribute would stand in front of a method or property of the class."""
    hidden = inspect.getattr_static(kind, name, None)
    return callable(hidden) or hasattr(type(hidden), "__get__")


def check_path(root: nn.Module, path: str, *, is_module: bool) -> None:
    """Refuse a path of a graph that does not lead to something its root holds.

    Only what is stored counts: methods, properties and attributes of classes are no targets.

    Args:
        root: The module that the graph refers to.
        path: Target of a ``get_attr`` or ``call_module`` node.
        is_module: Whether the path must lead to a module.

    Raises:
        Refusal: It leads nowhere, or to something else.
    """
    holder: Any = root
    *parents, name = path.split(".")
    for part in parents:
        holder = internals.modules_of(holder).get(part) if isinstance(holder, nn.Module) else None
    if isinstance(holder, nn.Module):
        if isinstance(internals.modules_of(holder).get(name), nn.Module):
            return
        values = (internals.parameters_of(holder), internals.buffers_of(holder), vars(holder))
        hidden = (_STATE.keys() - {"training"}) | (
            _GRAPH_STATE if isinstance(holder, GraphModule) else frozenset()
        )
        if not is_module and name not in hidden and any(name in table for table in values):
            return
    kind = "submodule" if is_module else "parameter, buffer, submodule or attribute"
    raise Refusal(f"it refers to {path!r}, but the module holds no {kind} at that path.", Codes.REFERENCE)


# -- writing


class ModuleWriter:
    """Describes a module tree.

    Args:
        encoder: Turns attributes into JSON.
        notes: Turns entries of ``module.meta`` into JSON; it refuses tensors.
        tensors: Takes parameters and buffers in.
        add_graph: Takes in a graph, after the module that its paths refer to and the path of that, returns the graph's
            number.
        left_out: Called with (path, name) for each note of a module that is not stored.
        stand_in: Returns what is written in the place of a submodule.
    """

    def __init__(
        self,
        encoder: Encoder,
        notes: Encoder,
        tensors: TensorWriter,
        add_graph: Callable[[GraphModule, str, Graph], int],
        left_out: Callable[[str, str], None],
        stand_in: StandIn | None = None,
    ) -> None:
        self.entries: list[dict[str, Any]] = []
        """The table, children before parents."""
        self._encoder = encoder
        self._targets = encoder.targets
        self._notes = notes
        self._tensors = tensors
        self._add_graph = add_graph
        self._left_out = left_out
        self._stand_in = stand_in
        self._kept: list[nn.Module] = []  # So that no two of them have the same id.
        self._numbers: dict[int, int] = {}

    def add(self, module: nn.Module, path: str = "") -> int:
        """Take in a module with everything below it and return its number.

        Raises:
            Refusal: It, or something below it, cannot be stored; the message names the path.
        """
        number = self._numbers.get(id(module))
        if number is not None:
            return number
        written = None if self._stand_in is None else self._stand_in(module, path)
        if written is not None:
            self._kept.append(written)
        entry = self._describe(module if written is None else written, path)
        number = self._numbers[id(module)] = len(self.entries)
        self.entries.append(entry)
        return number

    def _describe(self, module: nn.Module, path: str) -> dict[str, Any]:
        state = _state_of(module)
        kind = type(module)
        try:
            entry: dict[str, Any] = {
                "class": _storable_class(kind, self._targets),
                "training": module.training,
            }
            attributes = _own_attributes(kind, state)
        except Refusal as refusal:
            raise refusal.within(_described(path)) from None
        for field, table in (("parameters", state["_parameters"]), ("buffers", state["_buffers"])):
            if table:
                entry[field] = {name: self._tensor(tensor, path, name) for name, tensor in table.items()}
        if state["_non_persistent_buffers_set"]:
            entry["not_persistent"] = sorted(state["_non_persistent_buffers_set"])
        if state["_modules"]:
            entry["children"] = {
                name: None if child is None else self.add(child, _joined(path, name))
                for name, child in state["_modules"].items()
            }
        if isinstance(module, GraphModule):
            entry |= self._describe_graph(module, path)
        if attributes:
            entry["attributes"] = {
                name: self._attribute(value, path, name) for name, value in attributes.items()
            }
        return entry

    def _describe_graph(self, module: GraphModule, path: str) -> dict[str, Any]:
        number = self._add_graph(module, path, module.graph)
        notes: dict[str, Any] = {}
        origins: dict[str, Any] = {}
        for name, value in module.meta.items():
            if name == NOTE and isinstance(value, StateOrigins):
                origins = self._describe_origins(module, path, value)
                continue
            try:
                notes[checked(name, str, "The name of a note")] = self._notes.encode(value)
            except Refusal:
                self._left_out(path, str(name))
        return {
            "class_name": vars(module)["_class_name"],
            "meta": notes,
            "graph": number,
            **origins,
            **({} if module.guard_set is None else {"guards": self._describe_guards(module, path)}),
        }

    def _describe_origins(self, module: GraphModule, path: str, origins: StateOrigins) -> dict[str, Any]:
        try:
            data = describe_origins(
                origins, self._encoder, lambda graph: self._add_graph(module, path, graph)
            )
        except (
            Refusal
        ):  # A recipe calls what a file cannot name; the module itself can be stored all the same.
            self._left_out(path, NOTE)
            return {}
        return {"state_origins": data}

    def _describe_guards(self, module: GraphModule, path: str) -> dict[str, Any]:
        guards = cast("GuardSet", module.guard_set)
        return {
            "graph": None if guards.graph is None else self._add_graph(module, path, guards.graph),
            "guards": [[guard.text, guard.line, guard.source] for guard in guards.guards],
            # What is called instead is no part of a file.
            "on_failure": "error" if guards.instead is not None else guards.on_failure,
        }

    def _tensor(self, tensor: Any, path: str, name: str) -> int | None:
        if tensor is None:
            return None
        where = _joined(path, name)
        try:
            return self._tensors.add(tensor, where)
        except Refusal as refusal:
            raise refusal.within(repr(where)) from None

    def _attribute(self, value: Any, path: str, name: str) -> Any:
        try:
            return self._encoder.encode(value)
        except Refusal as refusal:
            raise refusal.within(f"attribute {name!r} of {_described(path)}") from None


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _described(path: str) -> str:
    return f"submodule {path!r}" if path else "the module itself"


def _state_of(module: nn.Module) -> dict[str, Any]:
    # object.__getstate__ is new in Python 3.11; classes with a method of their own drop what they rebuild.
    get_state = getattr(module, "__getstate__", None)
    state = get_state() if get_state is not None else None
    return dict(state if isinstance(state, dict) else vars(module))


def _storable_class(kind: type[nn.Module], targets: TargetTable) -> str:
    if kind is GraphModule:
        return GRAPH_MODULE
    name = _class_name(kind)
    if _classes().get(name) is not kind:
        known = targets.allowed_name(kind) or targets.provision.name_of(kind)
        if known is not None:
            return known
        raise Refusal(
            f"its class {kind.__module__}.{kind.__qualname__} is not one that torch.nn.modules ships, so a "
            f"file cannot rebuild it. Trace through it instead of keeping it as a leaf, or name the class when saving "
            f"and again when loading: allow=[{name!r}].",
            Codes.NOT_ALLOWED,
        )
    return name


def _own_attributes(kind: type[nn.Module], state: dict[str, Any]) -> dict[str, Any]:
    """Return what was set on a module besides tensors and submodules; refuse what no file can hold."""
    for name in _HOOKS:
        if state.get(name):
            raise Refusal(
                f"it has hooks ({name}), and a file cannot hold the functions they call. Remove them before "
                f"saving, and register them again after loading."
            )
    own = _GRAPH_STATE if kind is GraphModule else frozenset[str]()
    attributes = {name: value for name, value in state.items() if name not in _STATE and name not in own}
    tables = (state["_parameters"], state["_buffers"], state["_modules"], attributes)
    _check_names(kind, [name for table in tables for name in table])
    for name, parameter in state["_parameters"].items():
        _check_parameter(name, parameter)
    return attributes


def _check_names(kind: type[nn.Module], names: list[str]) -> None:
    # What is alike in many modules is looked at once; a file's word for it is kept no longer than it is short.
    check = (
        _check_few_names
        if len(names) <= _FEW and all(len(name) <= _FEW for name in names)
        else _check_all_names
    )
    check(kind, tuple(names))


def _check_all_names(kind: type[nn.Module], names: tuple[str, ...]) -> None:
    reserved = _STATE.keys() | (RESERVED_ATTRIBUTES | _GRAPH_STATE if kind is GraphModule else frozenset())
    for name in names:
        if not name or "." in name or name in reserved:
            raise Refusal(
                f"{name!r} cannot be the name of something that a {kind.__name__} holds. Rename it.",
                Codes.NAME,
            )
        if _hides_class_attribute(kind, name):
            raise Refusal(
                f"its attribute {name!r} replaces what the class {kind.__name__} defines under that name. "
                f"Delete the attribute before saving.",
                Codes.NAME,
            )
    if len(set(names)) != len(names):
        raise Refusal("one name stands for two things that it holds. Rename one.", Codes.NAME)


_check_few_names = functools.lru_cache(maxsize=1024)(_check_all_names)


def _check_parameter(name: str, parameter: Any) -> None:
    # Asking whether it is an instance asks every tensor for attributes.
    if (
        parameter is not None
        and type(parameter) is not nn.Parameter
        and not isinstance(parameter, nn.Parameter)
    ):
        raise Refusal(
            f"its parameter {name!r} is a {type(parameter).__name__}. Make it a torch.nn.Parameter."
        )


# -- reading


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

    def restore(self, entries: Any) -> nn.Module:
        """Return the last module of the table, which is the root, with everything below it.

        Raises:
            Refusal: The table is damaged, or names a class that is not torch's.
        """
        for number, entry in enumerate(checked(entries, list, "The table of modules")):
            try:
                self._modules.append(self._restore(entry))
            except Refusal as refusal:
                raise refusal.within(f"module {number} of the table") from None
        if not self._modules:
            raise Refusal("it holds no module. The file is damaged.")
        return self._modules[-1]

    def _restore(self, entry: Any) -> nn.Module:
        name = checked(entry, dict, "A module").get("class")
        is_graph = name == GRAPH_MODULE
        fields = (
            entry_fields(entry, "A module", _REQUIRED | _GRAPH_FIELDS, _OPTIONAL | _GRAPH_OPTIONAL)
            if is_graph
            else entry_fields(entry, "A module", _REQUIRED, _OPTIONAL)
        )
        kind = GraphModule if is_graph else self._class_named(checked(name, str, "The class of a module"))
        state = self._state(kind, fields)
        if is_graph:
            state |= self._graph_state(fields)
        # Deprecated classes warn in their own __new__, which is for people who write such code.
        module = object.__new__(kind)
        vars(module).update(_fresh_state())
        try:
            module.__setstate__(state)
        except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise Refusal(
                f"{kind.__name__} does not take its state: {error!r}. The file is damaged."
            ) from error
        return module

    def _class_named(self, name: str) -> type[nn.Module]:
        """Return a class of torch, one that a plugin brings, or one that the caller allows."""
        targets = self._decoder.targets
        provision = targets.provision
        kind: Any = provision.resolve(name) if provision.is_name(name) else _classes().get(name)
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

    def _state(self, kind: type[nn.Module], fields: dict[str, Any]) -> dict[str, Any]:
        tables: list[dict[str, Any]] = [
            checked(fields[name], dict, f"The {name} of a module") if name in fields else {}
            for name in ("parameters", "buffers", "children", "attributes")
        ]
        _check_names(kind, [name for table in tables for name in table])
        parameters = self._tensor_table(tables[0])
        for name, parameter in parameters.items():
            _check_parameter(name, parameter)
        buffers = self._tensor_table(tables[1])
        not_persistent = checked(
            fields.get("not_persistent", []), list, "The list of buffers that are not persistent"
        )
        if not all(isinstance(name, str) and name in buffers for name in not_persistent):
            raise Refusal("a buffer that is not persistent does not exist. The file is damaged.")
        decode = self._decoder.decode
        attributes = {name: decode(value) for name, value in tables[3].items()}
        return {
            "training": checked(fields["training"], bool, "The training flag"),
            "_parameters": parameters,
            "_buffers": buffers,
            "_non_persistent_buffers_set": set(not_persistent),
            "_modules": {name: self._child(number) for name, number in tables[2].items()},
            **attributes,
        }

    def _tensor_table(self, table: dict[str, Any]) -> dict[str, torch.Tensor | None]:
        return {
            name: None if number is None else self._tensors.fetch(number) for name, number in table.items()
        }

    def _child(self, number: Any) -> nn.Module | None:
        return (
            None
            if number is None
            else self._modules[places(number, len(self._modules), "The number of a child")]
        )

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
