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
import marshal
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch.nn.modules
from torch import nn

from fxplug.execute import RESERVED_ATTRIBUTES, GraphModule, GuardSet
from fxplug.execute.fused import FUSED_MODULES
from fxplug.passes import StateOrigins
from fxplug.passes.state_origins import NOTE
from fxplug.semantics import internals
from fxplug.storage.documents import MOST_OBJECTS, MOST_VALUES, check_count, count_values
from fxplug.storage.engines import StoredEngine
from fxplug.storage.faults import Codes, Refusal, checked
from fxplug.storage.state_origins import describe_origins

if TYPE_CHECKING:
    from fxplug.ir import Graph
    from fxplug.storage.targets import TargetTable
    from fxplug.storage.tensors import TensorWriter
    from fxplug.storage.values import Encoder

__all__ = [
    "EMPTY_STATE",
    "GRAPH_MODULE",
    "MODULE_COLUMNS",
    "ModuleWriter",
    "PathChecker",
    "StandIn",
    "check_names",
    "check_parameter",
    "module_classes",
]

StandIn = Callable[[nn.Module, str], nn.Module | None]
"""Returns what is written in the place of a submodule and its path; None for the submodule itself."""

GRAPH_MODULE = "fxplug:GraphModule"
"""How a file calls the class of graph modules."""

EMPTY_STATE = vars(nn.Module())
"""What ``nn.Module.__init__`` sets. Never changed."""
_TABLES = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"})
_GRAPH_STATE = frozenset({"_graph", "_guards", "_compiled", "_class_name", "meta"})
_HIDDEN = frozenset(EMPTY_STATE.keys() - {"training"})
_HIDDEN_OF_GRAPH = _HIDDEN | _GRAPH_STATE
MODULE_COLUMNS = ("number", "held", "parts", "graph")
"""What the parts of a module's row are; the last ones are left out where they are empty."""
_FEW = 40
_SHORT = 1 << 12
_DEEPEST = 4
_WITHOUT_REFERENCES = 2
"""The version of what ``marshal`` writes in which equal values are written alike, whoever else holds them."""
_HOOKS = tuple(sorted(EMPTY_STATE.keys() - _TABLES - {"_is_full_backward_hook"}))
_NO_NAMES = frozenset[str]()


@functools.lru_cache(maxsize=1)
def module_classes() -> dict[str, type[nn.Module]]:
    """Return the module classes that torch.nn ships, and fused layers, by the names that files call them."""
    holders = [value for value in vars(torch.nn.modules).values() if isinstance(value, types.ModuleType)]
    found = [
        value
        for holder in holders
        for value in vars(holder).values()
        if isinstance(value, type) and issubclass(value, nn.Module)
    ]
    found = [kind for kind in found if str(kind.__module__).startswith("torch.nn.modules.")]
    return {_class_name(kind): kind for kind in (*found, *FUSED_MODULES.values(), StoredEngine)}


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


@functools.lru_cache(maxsize=8192)
def _hides_class_attribute(kind: type, name: str) -> bool:
    """Return whether an instance attribute would stand in front of a method or property of the class."""
    hidden = inspect.getattr_static(kind, name, None)
    return callable(hidden) or hasattr(type(hidden), "__get__")


class PathChecker:
    """Looks whether paths of a graph lead to something that its root holds.

    Only what is stored counts: methods, properties and attributes of classes are no targets.

    Args:
        root: The module that the graph refers to; it must not change meanwhile.
    """

    def __init__(self, root: nn.Module) -> None:
        # What holds the last part of a path, by the path without that; many paths of a graph have it in common.
        self._holders: dict[str | None, Any] = {None: root}

    def check(self, path: str, *, is_module: bool) -> None:
        """Refuse a path that leads nowhere, or to something else.

        Args:
            path: Target of a ``get_attr`` or ``call_module`` node.
            is_module: Whether the path must lead to a module.

        Raises:
            Refusal: With the path.
        """
        parents, separator, name = path.rpartition(".")
        key = parents if separator else None
        if key in self._holders:
            holder = self._holders[key]
        else:
            holder = self._holders[key] = self._find(parents)
        if isinstance(holder, nn.Module):
            if isinstance(internals.modules_of(holder).get(name), nn.Module):
                return
            values = (internals.parameters_of(holder), internals.buffers_of(holder), vars(holder))
            hidden = _HIDDEN_OF_GRAPH if isinstance(holder, GraphModule) else _HIDDEN
            if not is_module and name not in hidden and any(name in table for table in values):
                return
        kind = "submodule" if is_module else "parameter, buffer, submodule or attribute"
        raise Refusal(f"it refers to {path!r}, but the module holds no {kind} at that path.", Codes.REFERENCE)

    def _find(self, path: str) -> Any:
        holder = self._holders[None]
        for part in path.split("."):
            holder = internals.modules_of(holder).get(part) if isinstance(holder, nn.Module) else None
        return holder


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
        self._sizes: list[int] = []  # Of each kind, in values.
        self._values = 0
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
        check_count(len(self.rows), MOST_OBJECTS, "modules")
        return number

    def _describe(self, module: nn.Module, path: str) -> list[Any]:
        if isinstance(module, torch.jit.ScriptModule):
            raise Refusal(
                f"{_described(path)}: a scripted or traced module ({type(module).__name__}) is compiled code of "
                "PyTorch, which cannot be stored. Capture the program with the module that it was made from, or keep "
                "it in a file of its own (torch.jit.save)."
            )
        try:
            state = _state_of(module)
            layout = self._layout(type(module), state)
        except Refusal as refusal:
            raise refusal.within(_described(path)) from None
        prefix = f"{path}." if path else ""
        add = self._tensors.add
        held = [
            None if tensor is None else add(tensor, prefix + name)
            for table in (state["_parameters"], state["_buffers"])
            for name, tensor in table.items()
        ]
        parts = [
            None if child is None else self.add(child, prefix + name)
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
        held = tuple(parameters), tuple(state["_buffers"]), tuple(state["_modules"])
        key = kind, tuple(state), held
        layout = self._layouts.get(key)
        if layout is None:
            class_name = _storable_class(kind, self._targets)
            _check_hooks(state)
            own = _GRAPH_STATE if kind is GraphModule else _NO_NAMES
            names = tuple([name for name in state if name not in EMPTY_STATE and name not in own])
            check_names(kind, (*held[0], *held[1], *held[2], *names))
            layout = self._layouts[key] = _Layout(class_name, len(self._layouts), names)
        elif any(map(state.get, _HOOKS)):
            _check_hooks(state)
        for name, parameter in parameters.items():
            if type(parameter) is not nn.Parameter:
                check_parameter(name, parameter)
        return layout

    def _kind(self, layout: _Layout, state: dict[str, Any], path: str) -> int:
        """Return the number of what a module has in common with others like it."""
        if type(state["training"]) is not bool:
            raise Refusal(
                f"{_described(path)}: its training flag is {state['training']!r}. Set it with train() or eval()."
            )
        values = _exact([state[name] for name in layout.attributes])
        unsaved = state["_non_persistent_buffers_set"]
        key = layout.number, state["training"], values, frozenset(unsaved) if unsaved else None
        number = None if values is None else self._kind_numbers.get(key)
        if number is None:
            entry = self._describe_kind(layout, state, path)
            self.kinds.append(entry)
            self._sizes.append(count_values(entry.get("attributes", {})))
            number = len(self.kinds) - 1
            if values is not None:
                self._kind_numbers[key] = number
        self._values += self._sizes[number]
        check_count(self._values, MOST_VALUES, "values in modules")
        return number

    def _describe_kind(self, layout: _Layout, state: dict[str, Any], path: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"class": layout.class_name, "training": state["training"]}
        for field in ("parameters", "buffers"):
            if state[f"_{field}"]:
                entry[field] = list(state[f"_{field}"])
        # A name may be left of a buffer that was taken away.
        unsaved = state["_non_persistent_buffers_set"] & state["_buffers"].keys()
        if unsaved:
            entry["not_persistent"] = sorted(unsaved)
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

    def _attribute(self, value: Any, path: str, name: str) -> Any:
        try:
            return self._encoder.encode(value)
        except Refusal as refusal:
            raise refusal.within(f"attribute {name!r} of {_described(path)}") from None


def _described(path: str) -> str:
    return f"submodule {path!r}" if path else "the module itself"


_PLAIN_STATE = frozenset({getattr(object, "__getstate__", None), getattr(nn.Module, "__getstate__", None)})
"""What gives all that a module has, but for code that torch has compiled; object's is new in Python 3.11."""
_COMPILED = "_compiled_call_impl"
"""Where a module has code that torch has compiled: torch calls it in the place of ``forward``, whatever it is."""


def _state_of(module: nn.Module) -> dict[str, Any]:
    # Classes with a method of their own drop what they rebuild.
    state = vars(module)
    get_state = getattr(type(module), "__getstate__", None)
    if get_state is not None and get_state not in _PLAIN_STATE:
        try:
            found = get_state(module)
        except RuntimeError as error:
            if "parametrizations" in internals.modules_of(module):
                raise Refusal(
                    "its weights are computed by parametrizations, for which its class was made, and no file can name "
                    "that. Trace through it (through_modules in the table trace of the configuration), so that they "
                    "are part of the program, or take them off (torch.nn.utils.parametrize.remove_parametrizations)."
                ) from error
            raise Refusal(f"it does not give its state away: {error}") from error
        state = found if isinstance(found, dict) else state
        missing = _TABLES - state.keys()
        if missing:
            raise Refusal(
                f"its class {type(module).__qualname__} gives a state away that lacks {min(missing)!r}, so a file "
                f"cannot rebuild it. Trace through it instead of keeping it as a leaf."
            )
    if _COMPILED in state:
        return {name: value for name, value in state.items() if name != _COMPILED}
    return state


def _storable_class(kind: type[nn.Module], targets: TargetTable) -> str:
    if kind is GraphModule:
        return GRAPH_MODULE
    name = _class_name(kind)
    if module_classes().get(name) is not kind:
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


def _exact(values: list[Any]) -> bytes | None:
    """Return what is equal for two rows of values only if they are alike, in their types too; None where none is known.

    Plain values alone have it. It is compared and thrown away.
    """
    if not values:
        return b""
    if len(values) > _FEW or not all(map(_is_exact, values)):
        return None
    try:
        found = marshal.dumps(values, _WITHOUT_REFERENCES)
    except ValueError:
        return None
    return found if len(found) <= _SHORT else None


def _is_exact(value: Any, steps: int = _DEEPEST) -> bool:
    """Return whether ``marshal`` tells a value from all others: it writes whatever has a buffer as bytes."""
    kind = type(value)
    if kind in _EXACT:
        return True
    if steps == 0 or (kind is not tuple and kind is not list):
        return False
    return all(_is_exact(part, steps - 1) for part in value)


_EXACT = frozenset({bool, bytes, complex, float, int, str, type(None)})


def _check_hooks(state: dict[str, Any]) -> None:
    for name in _HOOKS:
        if state.get(name):
            raise Refusal(
                f"it has hooks ({name}), and a file cannot hold the functions they call. Remove them before "
                f"saving, and register them again after loading."
            )


def check_names(kind: type[nn.Module], names: tuple[str, ...]) -> None:
    """Refuse names that things in a module of a class cannot have.

    Raises:
        Refusal: With the first one.
    """
    # What is alike in many modules is looked at once; a file's word for it is kept no longer than it is short.
    check = (
        _check_few_names
        if len(names) <= _FEW and max(map(len, names), default=0) <= _FEW
        else _check_all_names
    )
    check(kind, names)


def _check_all_names(kind: type[nn.Module], names: tuple[str, ...]) -> None:
    reserved = {*EMPTY_STATE, _COMPILED} | (
        RESERVED_ATTRIBUTES | _GRAPH_STATE if kind is GraphModule else frozenset()
    )
    for name in names:
        # Python and torch look such names up by themselves: copy.deepcopy asks an instance for __deepcopy__.
        is_special = name.startswith("__") and name.endswith("__") and not hasattr(kind, name)
        if not name or "." in name or name in reserved or is_special:
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


def check_parameter(name: str, parameter: Any) -> None:
    """Refuse a parameter that is none; a plain one, as almost all are, need not be asked for what this asks.

    Raises:
        Refusal: It is not.
    """
    if parameter is not None and not isinstance(parameter, nn.Parameter):
        raise Refusal(
            f"its parameter {name!r} is a {type(parameter).__name__}. Make it a torch.nn.Parameter."
        )
