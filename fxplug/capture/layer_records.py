"""What layers of torch record where they are looked through: the same for all that are set alike.

The forward of a convolution reads its settings and calls one function of torch. A model has dozens of them, and to run
that forward with whatever listens to it costs more than all else about them. So what it records is learned once (see
`fxplug.capture.examples.learning`), and written down again for each layer of the same class with the same settings.
"""

from __future__ import annotations

import marshal
from operator import is_
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import nn

from fxplug.capture.arguments import PLAIN_TYPES
from fxplug.capture.interception import own_code
from fxplug.capture.plain_holdings import is_function_of_layers, is_of_torch
from fxplug.capture.plain_programs import MissedProgramError
from fxplug.ir import PLAIN, Node, immutable_dict
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fxplug.capture.sources import Place
    from fxplug.ir import Graph, StoredOrigin
    from fxplug.ir.guards import Guard

__all__ = ["LayerCall", "LayerRecord", "LayerRecords", "Part", "Replayer", "Step", "record_of_graph"]


class Part(NamedTuple):
    """Stands for a value in the arguments of a step."""

    number: int
    """0 for the input of the layer, else which step gives it, counted from 1."""


_Frames: TypeAlias = "tuple[tuple[CodeType, int], ...]"
LayerCall: TypeAlias = "tuple[nn.Module, Node, Node, Node, Node]"
"""A layer that was called with one value: it, the node of the value, the first and the last of the nodes that
say what it does, and the one of them that gives what it returns. A tuple without names: a network calls hundreds."""


class Step(NamedTuple):
    """One node of a layer."""

    op: str
    target: Any
    """Of a weight its name in the layer."""
    args: tuple[Any, ...]
    kwargs: immutable_dict
    inputs: tuple[int, ...]
    """The numbers of the parts in both, in order."""
    has_named_parts: bool
    """Whether there are parts among the keyword arguments."""
    place: int
    """Which of the places in the record it stands at."""


class LayerRecord(NamedTuple):
    """What a layer records that takes one tensor."""

    steps: tuple[Step, ...]
    places: tuple[_Frames, ...]
    """For each place in the layer the code and offset of its functions that run there, outermost first."""
    result: int
    """Which step gives what the layer returns, counted from 1; 0 for the input."""
    asked: Guard | None
    """Where it asks how many dimensions its input has; it has that many in all runs then."""
    asks_for_training: bool
    """Whether it reads its flag."""


def record_of_graph(graph: Graph, asked: Guard | None) -> LayerRecord | None:
    """Return what was recorded of a layer that was traced alone; None where that cannot be written down again.

    Args:
        graph: Has one input.
        asked: Where the layer has asked how many dimensions it has.
    """
    inner = [node for node in graph.nodes if node.op not in {"placeholder", "output"}]
    given, output = graph.find_nodes(op="placeholder"), graph.output_node()
    if len(given) != 1 or graph.lifted or graph.training_overrides or graph.state_guards:
        return None
    places: dict[_Frames, int] = {}
    numbers = {node: number for number, node in enumerate((given[0], *inner))}
    steps: list[Step] = []
    for node in inner:
        args = _with_parts(node.args, numbers)
        kwargs = _with_parts(node.kwargs.values(), numbers)
        if args is None or kwargs is None or not _is_simple(node):
            return None
        place = places.setdefault(_frames(node), len(places))
        inputs = tuple([part.number for part in (*args, *kwargs) if type(part) is Part])
        named = immutable_dict(zip(node.kwargs, kwargs, strict=True))
        has_named_parts = any(type(part) is Part for part in kwargs)
        steps.append(Step(node.op, node.target, args, named, inputs, has_named_parts, place))
    result = output.args[0]
    if not isinstance(result, Node):
        return None
    asks_for_training = graph.captured_training is not None
    return LayerRecord(tuple(steps), tuple(places), numbers[result], asked, asks_for_training)


def _is_simple(node: Node) -> bool:
    """Return whether a node is in no context of the layer's own, and reads no weight of a part of the layer."""
    return node.region == PLAIN and (node.op != "get_attr" or "." not in node.target)


def _with_parts(values: Iterable[Any], numbers: Mapping[Node, int]) -> tuple[Any, ...] | None:
    """Return arguments with parts in the place of nodes; None where there is more in them than plain values."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, Node):
            found.append(Part(numbers[value]))
        elif _is_plain(value):
            found.append(value)
        else:
            return None
    return tuple(found)


def _filled(kwargs: Mapping[str, Any], values: Sequence[Node]) -> immutable_dict:
    return immutable_dict(
        {name: values[part.number] if type(part) is Part else part for name, part in kwargs.items()}
    )


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN_TYPES or (type(value) is tuple and all(map(_is_plain, value)))


def _frames(node: Node) -> _Frames:
    """Return the functions that ran where a node was made, outermost first."""
    origin = next(iter(node.origins), None)
    found: list[tuple[CodeType, int]] = []
    while origin is not None and isinstance(origin.code, CodeType):
        found.append((origin.code, origin.offset))
        origin = origin.caller
    return tuple(reversed(found))


# -- which layers are set alike


class _Class(NamedTuple):
    """A class of layers, as it was when something was learned of it."""

    names: tuple[str, ...]
    """The attributes that its forward reads, of the layer or of other values."""
    chains: tuple[tuple[Mapping[str, Any], tuple[str, ...]], ...]
    """Globals in which it finds something, with the names that lead to it."""
    values: tuple[Any, ...]
    """What all these lead to."""
    codes: tuple[Any, ...]
    """The code and the defaults of the functions among them."""


def _look_at(kind: type[nn.Module]) -> _Class | None:
    """Return what there is to know of a class; None if its forward may run what is not of torch."""
    waiting: list[Any] = [kind.forward]
    functions: list[FunctionType] = []
    names: dict[str, None] = {"forward": None}
    chains: list[tuple[Mapping[str, Any], tuple[str, ...]]] = []
    while waiting:
        function = waiting.pop()
        if type(function) is not FunctionType or function in functions:
            continue
        if not is_function_of_layers(function, code := own_code(function)):
            return None
        functions.append(function)
        attributes, found = _names_in(code)
        names.update(attributes)
        chains += [(function.__globals__, chain) for chain in found]
        # What all modules have runs where it is called, and that is seen in what it does.
        waiting += [getattr(kind, name, None) for name in attributes if not hasattr(nn.Module, name)]
    values = _values_of(kind, names, chains)
    if values[:2] != _AS_WRITTEN or not all(_is_torchs_own(kind, name, functions) for name in names):
        return None
    found = values[len(values) - len(chains) :]
    if not all(is_of_torch(value) for value in found if type(value) is FunctionType):
        return None
    return _Class(tuple(names), tuple(chains), values, _codes_of(values))


def _names_in(code: CodeType) -> tuple[dict[str, None], list[tuple[str, ...]]]:
    """Return the attributes that code reads, and the names by which it finds something among globals."""
    attributes: dict[str, None] = {}
    chains: list[tuple[str, ...]] = []
    is_global = False
    for entry in instructions_of(code):
        if entry.opname in {"CACHE", "EXTENDED_ARG", "NOP"}:
            continue
        if entry.opname in {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"}:
            if is_global:
                chains.append((*chains.pop(), entry.argval))
            else:
                attributes[entry.argval] = None
            continue
        is_global = entry.opname in {"LOAD_GLOBAL", "LOAD_NAME"}
        if is_global:
            chains.append((entry.argval,))
    return attributes, chains


def _values_of(
    kind: type[nn.Module],
    names: Iterable[str],
    chains: Iterable[tuple[Mapping[str, Any], tuple[str, ...]]],
) -> tuple[Any, ...]:
    found: list[Any] = [kind.__getattribute__, kind.__getattr__]
    for name in names:
        found += (getattr(kind, name, None), getattr(torch.Tensor, name, None))
    for namespace, chain in chains:
        value = namespace.get(chain[0])
        for name in chain[1:]:
            value = vars(value).get(name) if type(value) is ModuleType else None
        found.append(value)
    return tuple(found)


_AS_WRITTEN = (nn.Module.__getattribute__, nn.Module.__getattr__)


def _is_torchs_own(kind: type[nn.Module], name: str, functions: Iterable[FunctionType]) -> bool:
    """Return whether an attribute is what the layer has itself, or a method of layers or tensors that torch has."""
    of_class, of_tensor = getattr(kind, name, None), getattr(torch.Tensor, name, None)
    is_method = any(of_class is function for function in functions) or of_class is getattr(
        nn.Module, name, _UNKNOWN
    )
    return (is_method or not hasattr(type(of_class), "__get__")) and (
        type(of_tensor) is not FunctionType or is_of_torch(of_tensor)
    )


def _codes_of(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(
        [
            (own_code(value), value.__defaults__, value.__kwdefaults__)
            for value in values
            if type(value) is FunctionType
        ]
    )


_UNKNOWN = object()


class LayerRecords:
    """What was learned of layers, by their classes and settings."""

    def __init__(self) -> None:
        self._classes: dict[type, _Class | None] = {}
        self._records: dict[tuple[Any, ...], Any] = {}

    def renew(self, kind: type[nn.Module]) -> None:
        """Look at a class, and forget what was learned of it if it is not as it was: its forward calls other things."""
        known = self._classes.get(kind)
        if known is not None:
            values = _values_of(kind, known.names, known.chains)
            if all(map(is_, values, known.values)) and _codes_of(values) == known.codes:
                return
        self._records = {key: record for key, record in self._records.items() if key[0] is not kind}
        self._classes[kind] = _look_at(kind)

    def key(self, layer: nn.Module) -> tuple[Any, ...] | None:
        """Return what is the same for layers that record the same; None where that cannot be told."""
        kind = type(layer)
        known = self._classes.get(kind)
        if known is None:
            return None
        held = layer.__dict__
        own = held.get
        try:
            # It tells 1, True and 1.0 apart, and refuses what is no plain value.
            settings = marshal.dumps([own(name) for name in known.names], 2)
        except ValueError:
            return None
        weights = [
            name
            for table in ("_parameters", "_buffers")
            for name, weight in held[table].items()
            if weight is not None
        ]
        return (kind, settings, *weights)

    def find(self, layer: nn.Module) -> LayerRecord | None:
        """Return what a layer records, None where that was not learned.

        Raises:
            MissedProgramError: It cannot be written down again.
        """
        key = self.key(layer)
        record = None if key is None else self._records.get(key, _UNKNOWN)
        if record is None:
            raise MissedProgramError
        return None if record is _UNKNOWN else record

    def add(self, layer: nn.Module, record: LayerRecord | None) -> None:
        """Remember what a layer records; None where that cannot be written down again."""
        if len(self._records) >= _MOST_RECORDS:
            self._records.clear()
        key = self.key(layer)
        if key is not None:
            self._records[key] = record


_MOST_RECORDS = 4096


# -- the trace


class Replayer:
    """A tracer that writes down what is known of layers, in the place of running them."""

    graph: Graph
    layer_records: LayerRecords | None = None
    """What is known of layers, None where they are to be run."""
    layer_calls: list[LayerCall] | None = None
    """Calls of layers with one value, in order; None where nobody asks."""
    unknown_layers: list[nn.Module]
    """Layers of which it is not known what they record."""
    weight_nodes: dict[int, Node]
    """Id of a weight -> the node that reads it."""
    asked_rank: Guard | None
    """Where it was first asked how many dimensions a value has."""
    asked_flags: dict[str, bool]
    """Path of a layer that reads its flag -> whether it is trained."""
    _place: Place
    _renewed: set[type]

    def _forget_layers(self) -> None:
        self.unknown_layers, self.weight_nodes, self.asked_rank, self.asked_flags = [], {}, None, {}
        self._renewed = set()

    def _record_inside(self, path: str, layer: nn.Module, value: Node, depth: int) -> Node | None:
        """Record what a layer does that is looked through; None where that is not known.

        Args:
            path: Of the layer.
            layer: A layer of torch without hooks.
            value: What it is given.
            depth: How many frames, seen from here, are none of the program.

        Raises:
            MissedProgramError: It has to be watched.
        """
        records, kind = self.layer_records, type(layer)
        if records is None:
            return None
        if kind not in self._renewed:
            self._renewed.add(kind)
            records.renew(kind)
        record = records.find(layer)
        if record is None:
            self.unknown_layers.append(layer)
            return None
        if record.asks_for_training:
            self.asked_flags[path] = layer.training
        if record.asked is not None and self.asked_rank is None:
            self.asked_rank = record.asked
        places = self._place.origins_inside(path, kind, record.places, depth + 1)
        graph, values = self.graph, [value]
        end = graph._sentinel  # pyright: ignore[reportPrivateUsage]
        before = end._prev  # pyright: ignore[reportPrivateUsage]
        for op, name, args, kwargs, inputs, has_named_parts, place in record.steps:
            if op == "get_attr":
                values.append(self._weight_node(layer.__dict__, path, name, places[place]))
                continue
            given = tuple([values[part.number] if type(part) is Part else part for part in args])
            named = _filled(kwargs, values) if has_named_parts else kwargs
            used = [values[number] for number in inputs]
            values.append(graph._create_alike(op, name, given, named, used, places[place]))  # pyright: ignore[reportPrivateUsage]
        result = values[record.result]
        if self.layer_calls is not None and result is not value:
            self.layer_calls.append((layer, value, before._next, end._prev, result))  # pyright: ignore[reportPrivateUsage]
        return result

    def _weight_node(self, held: dict[str, Any], path: str, name: str, origin: StoredOrigin) -> Node:
        """Return the node that reads a weight of a layer: one for each weight.

        Raises:
            MissedProgramError: Two layers have it, or its class may say what functions do with it.
        """
        weight = held["_parameters"].get(name)
        if weight is None:
            weight = held["_buffers"][name]
        target = f"{path}.{name}"
        node = self.weight_nodes.get(id(weight))
        if node is None:
            if type(weight) not in _WEIGHTS:
                raise MissedProgramError
            node = self.graph._create_at("get_attr", target, None, origin)  # pyright: ignore[reportPrivateUsage]
            self.weight_nodes[id(weight)] = node
        elif node.target != target:
            raise MissedProgramError
        return node


_WEIGHTS = frozenset({nn.Parameter, torch.Tensor})
