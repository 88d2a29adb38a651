"""The module tree as data: what each module is, holds and has set, and how it is put together again.

Modules stand in a list in which children come before their parents, so that sharing is kept and a cycle
cannot be written down. What many modules have in common, their class, settings and the names of what they hold, stands
once in a list of kinds. A module is restored as pickle would do it, without running its constructor: an empty
instance takes in its state, and its class's own ``__setstate__`` brings state from older versions of torch up
to date.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch.nn.modules
from torch import nn

from fxplug.execute import POLICIES, RESERVED_ATTRIBUTES, GraphModule, GuardSet
from fxplug.execute.fused import FUSED_MODULES
from fxplug.ir.guards import Guard
from fxplug.passes import StateOrigins
from fxplug.passes.state_origins import NOTE
from fxplug.semantics import internals
from fxplug.storage.documents import MOST_VALUES
from fxplug.storage.engines import StoredEngine
from fxplug.storage.faults import Codes, Refusal, checked, entry_fields, places
from fxplug.storage.state_origins import describe_origins, restore_origins

if TYPE_CHECKING:
    from fxplug.ir import Graph
    from fxplug.storage.targets import TargetTable
    from fxplug.storage.tensors import TensorReader, TensorWriter
    from fxplug.storage.values import Decoder, Encoder

__all__ = ["GRAPH_MODULE", "MODULE_COLUMNS", "ModuleReader", "ModuleWriter", "StandIn", "check_path"]

StandIn = Callable[[nn.Module, str], nn.Module | None]
"""Returns what is written in the place of a submodule and its path; None for the submodule itself."""

GRAPH_MODULE = "fxplug:GraphModule"
"""How a file calls the class of graph modules."""

_STATE = vars(nn.Module())
_TABLES = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"})
_GRAPH_STATE = frozenset({"_graph", "_guards", "_compiled", "_class_name", "meta"})
_REQUIRED = frozenset({"class", "training"})
_OPTIONAL = frozenset({"attributes", "parameters", "buffers", "not_persistent", "children"})
MODULE_COLUMNS = ("number", "held", "parts", "graph")
"""What the parts of a module's row are; the last ones are left out where they are empty."""
_GRAPH_FIELDS = frozenset({"graph", "class_name", "meta"})
_GRAPH_OPTIONAL = frozenset({"guards", "state_origins"})
_GUARD_FIELDS = frozenset({"graph", "guards", "on_failure"})
_PARTS_OF_A_GUARD = 3
_FEW = 40
_FLAT_ENOUGH = 3
_FRESH: list[tuple[str, Callable[[], Any]]] = [
    (name, type(value)) for name, value in _STATE.items() if isinstance(value, (dict, set))
]
"""What ``nn.Module.__init__`` makes anew for each module; it sets one after the other, past every property."""
_PLAIN_SET_STATE = nn.Module.__setstate__
_HOOKS = tuple(sorted(_STATE.keys() - _TABLES - {"_is_full_backward_hook"}))
_NO_NAMES = frozenset[str]()
_LOOKED_INTO = frozenset({tuple, list, float})
_NO_PARTS: list[Any] = [None, [], [], {}]
"""What stands for a part that a module's row leaves out. Never changed."""
_UNCHANGING = frozenset({str, bool, int, float, type(None), bytes, torch.dtype, torch.device})
_LETTERS = 16
_EXACT = frozenset({str, bool, int, type(None)})
"""Exact types whose values are alike when they are equal."""


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


class _Layout(NamedTuple):
    """Which names are in the modules of a class that hold the same ones."""

    class_name: str
    number: int
    attributes: tuple[str, ...]


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
        self.kinds: list[dict[str, Any]] = []
        """What modules have in common."""
        self.rows: list[list[Any]] = []
        """The table, children before parents."""
        self._kind_numbers: dict[Any, int] = {}
        self._layouts: dict[Any, _Layout] = {}
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
        row = self._describe(module if written is None else written, path)
        number = self._numbers[id(module)] = len(self.rows)
        self.rows.append(row)
        return number

    def _describe(self, module: nn.Module, path: str) -> list[Any]:
        state = _state_of(module)
        try:
            layout = self._layout(type(module), state)
        except Refusal as refusal:
            raise refusal.within(_described(path)) from None
        held = [
            None if tensor is None else self._tensor(tensor, path, name)
            for table in (state["_parameters"], state["_buffers"])
            for name, tensor in table.items()
        ]
        parts = [
            None if child is None else self.add(child, _joined(path, name))
            for name, child in state["_modules"].items()
        ]
        graph = self._describe_graph(module, path) if isinstance(module, GraphModule) else {}
        row: list[Any] = [self._kind(layout, state, path), held, parts, graph]
        while not row[-1] and len(row) > 1:
            row.pop()
        return row

    def _layout(self, kind: type[nn.Module], state: dict[str, Any]) -> _Layout:
        """Return the names of what a module holds, after checking them and what it must not hold."""
        parameters = state["_parameters"]
        key = kind, *map(tuple, (state, parameters, state["_buffers"], state["_modules"]))
        layout = self._layouts.get(key)
        if layout is None:
            class_name = _storable_class(kind, self._targets)
            _check_hooks(state)
            own = _GRAPH_STATE if kind is GraphModule else _NO_NAMES
            names = tuple([name for name in state if name not in _STATE and name not in own])
            _check_names(kind, (*key[2], *key[3], *key[4], *names))
            layout = self._layouts[key] = _Layout(class_name, len(self._layouts), names)
        elif any(map(state.get, _HOOKS)):
            _check_hooks(state)
        for name, parameter in parameters.items():
            _check_parameter(name, parameter)
        return layout

    def _kind(self, layout: _Layout, state: dict[str, Any], path: str) -> int:
        """Return the number of what a module has in common with others like it."""
        values = _exact([state[name] for name in layout.attributes])
        unsaved = state["_non_persistent_buffers_set"]
        key = layout.number, state["training"], values, frozenset(unsaved) if unsaved else None
        number = None if values is None else self._kind_numbers.get(key)
        if number is None:
            self.kinds.append(self._describe_kind(layout, state, path))
            number = len(self.kinds) - 1
            if values is not None:
                self._kind_numbers[key] = number
        return number

    def _describe_kind(self, layout: _Layout, state: dict[str, Any], path: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"class": layout.class_name, "training": state["training"]}
        for field in ("parameters", "buffers"):
            if state[f"_{field}"]:
                entry[field] = list(state[f"_{field}"])
        if state["_non_persistent_buffers_set"]:
            entry["not_persistent"] = sorted(state["_non_persistent_buffers_set"])
        if state["_modules"]:
            entry["children"] = list(state["_modules"])
        if layout.attributes:
            entry["attributes"] = {
                name: self._attribute(state[name], path, name) for name in layout.attributes
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


_PLAIN_STATE = getattr(object, "__getstate__", None)


def _state_of(module: nn.Module) -> dict[str, Any]:
    # object.__getstate__ is new in Python 3.11; classes with a method of their own drop what they rebuild.
    get_state = getattr(type(module), "__getstate__", None)
    if get_state is None or get_state is _PLAIN_STATE:
        return vars(module)
    state = get_state(module)
    return state if isinstance(state, dict) else vars(module)


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


def _exact(values: list[Any], depth: int = 0) -> Any:
    """Return something that is equal for two rows of values only if they are alike, None where none is known."""
    if len(values) > _FEW or depth > _FLAT_ENOUGH:
        return None
    kinds = tuple(map(type, values))
    odd = _odd_places(kinds)
    if odd is None:
        return None
    for place in odd:
        value = values[place]
        if kinds[place] is float:
            # Neither -0.0 nor NaN is told apart by comparing.
            values[place] = value.hex() if value == value else None
        else:
            values[place] = _exact([*value], depth + 1)
        if values[place] is None:
            return None
    return kinds, tuple(values)


@functools.lru_cache(maxsize=1024)
def _odd_places(kinds: tuple[type, ...]) -> tuple[int, ...] | None:
    """Return where values stand that comparing does not do for, None where they hold what nothing is known of."""
    odd = [place for place, kind in enumerate(kinds) if kind not in _EXACT]
    return tuple(odd) if all(kinds[place] in _LOOKED_INTO for place in odd) else None


def _check_hooks(state: dict[str, Any]) -> None:
    for name in _HOOKS:
        if state.get(name):
            raise Refusal(
                f"it has hooks ({name}), and a file cannot hold the functions they call. Remove them before "
                f"saving, and register them again after loading."
            )


def _check_names(kind: type[nn.Module], names: tuple[str, ...]) -> None:
    # What is alike in many modules is looked at once; a file's word for it is kept no longer than it is short.
    check = _check_few_names if len(names) <= _FEW and max(map(len, names), default=0) <= _FEW else _check_all_names
    check(kind, names)


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


def _is_unchanging(value: Any) -> bool:
    """Return whether several modules may hold the same object, since nobody can change it."""
    if type(value) is tuple:
        return _UNCHANGING.issuperset(map(type, value))
    return type(value) in _UNCHANGING


def _size(data: Any) -> int:
    """Return about how many values an attribute is made of."""
    count = 0
    pending = [data]
    while pending:
        part = pending.pop()
        count += 1
        if isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part
        elif isinstance(part, str):
            count += len(part) // _LETTERS
    return count


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
        self._room = MOST_VALUES

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
        for number, row in enumerate(checked(rows, list, "The table of modules")):
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
        names = [
            [checked(one, str, "A name") for one in checked(fields.get(field, []), list, f"The {field} of a module")]
            for field in ("parameters", "buffers", "not_persistent", "children")
        ]
        parameters, buffers, not_persistent, children = names
        attributes = checked(fields.get("attributes", {}), dict, "The attributes of a module")
        _check_names(kind, (*parameters, *buffers, *children, *attributes))
        if not set(buffers).issuperset(not_persistent):
            raise Refusal("a buffer that is not persistent does not exist. The file is damaged.")
        training = checked(fields["training"], bool, "The training flag")
        state = {name: self._decoder.decode(value) for name, value in attributes.items()}
        changing = {name: attributes[name] for name, value in state.items() if not _is_unchanging(value)}
        return _Kind(
            kind,
            {**_STATE, "training": training, **state},
            changing,
            parameters,
            buffers,
            frozenset(not_persistent),
            children,
            len(state) + len(not_persistent) + sum(map(_size, changing.values())),
        )

    def _restore(self, kinds: list[_Kind], data: Any) -> nn.Module:
        row: list[Any] = checked(data, list, "A module")
        if not 1 <= len(row) <= len(MODULE_COLUMNS):
            raise Refusal(f"A module has {len(row)} parts, not 1 to {len(MODULE_COLUMNS)}. The file is damaged.")
        number, held, parts, graph = row + _NO_PARTS[len(row) :]
        kind = kinds[places(number, len(kinds), "The number of a kind of modules")]
        self._room -= kind.size
        if self._room < 0:
            raise Refusal(
                f"the modules hold more than the {MOST_VALUES:,} values that are allowed. The file is damaged.",
                Codes.TOO_LARGE,
            )
        # Deprecated classes warn in their own __new__, which is for people who write such code.
        module = object.__new__(kind.cls)
        state = self._state(kind, held, parts)
        if kind.cls is GraphModule:
            fields = entry_fields(graph, "The graph of a module", _GRAPH_FIELDS, _GRAPH_OPTIONAL)
            state.update(self._graph_state(fields))
        elif graph != {}:
            raise Refusal(f"a {kind.cls.__name__} has a graph. The file is damaged.")
        vars(module).update(state)
        if kind.cls.__setstate__ is _PLAIN_SET_STATE:
            return module
        try:
            # What came with newer versions of torch is added by the class.
            module.__setstate__(state)
        except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise Refusal(
                f"{kind.cls.__name__} does not take its state: {error!r}. The file is damaged."
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

    def _state(self, kind: _Kind, held: Any, parts: Any) -> dict[str, Any]:
        """Return all that is in a module of a kind: what is its own is made anew."""
        state = kind.state.copy()
        for name, make in _FRESH:
            state[name] = make()
        for name, value in kind.changing.items():
            state[name] = self._decoder.decode(value)
        tensors = checked(held, list, "What a module holds")
        count = len(kind.parameters)
        if len(tensors) != count + len(kind.buffers):
            raise Refusal(
                f"a module holds {len(tensors)} tensors where its kind names {count + len(kind.buffers)}. The file is "
                "damaged."
            )
        if tensors:
            found = [None if number is None else self._tensors.fetch(number) for number in tensors]
            for name, parameter in zip(kind.parameters, found, strict=False):
                _check_parameter(name, parameter)
                state["_parameters"][name] = parameter
            state["_buffers"].update(zip(kind.buffers, found[count:], strict=True))
        children = checked(parts, list, "The children of a module")
        if len(children) != len(kind.children):
            raise Refusal(
                f"a module has {len(children)} children where its kind names {len(kind.children)}. The file is damaged."
            )
        if children:
            state["_modules"].update(zip(kind.children, map(self._child, children), strict=True))
        state["_non_persistent_buffers_set"].update(kind.not_persistent)
        return state

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
