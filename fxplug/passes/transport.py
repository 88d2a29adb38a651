"""Taking a module to another process of ours and back, so that what was one object is one object again.

Only bytes that come from a process that this one has started itself may be read: they are pickles.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.passes.changes import graphs_below

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Arrival",
    "Parcel",
    "Shared",
    "graphs_in",
    "made_graph",
    "owners_of",
    "pack",
    "reduced_graph",
    "state_digest",
    "unpack",
]


class Shared:
    """Tensors, modules and graphs that two processes know by the same numbers."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        """Number -> object."""
        self._numbers: dict[int, int] = {}

    def number_of(self, value: Any) -> int | None:
        """Return the number of an object, None when it has none."""
        return self._numbers.get(id(value))

    def add(self, value: Any) -> int:
        """Give an object the next number."""
        number = len(self.objects)
        self.put(number, value)
        return number

    def put(self, number: int, value: Any) -> None:
        """Give an object a number, which another one may have had."""
        self.objects[number] = value  # It stays alive, so that nothing else gets its id.
        self._numbers[id(value)] = number

    def of_kind(self, kind: type[Any]) -> dict[int, Any]:
        """Return number -> object of the objects of a class."""
        return {number: value for number, value in self.objects.items() if isinstance(value, kind)}


@dataclass(frozen=True)
class Parcel:
    """What goes from one process to the other."""

    values: bytes
    tensors: bytes


class _Writer(pickle.Pickler):
    """Writes numbers for what both sides know, and remembers whose content has to follow."""

    def __init__(self, stream: io.BytesIO, shared: Shared) -> None:
        super().__init__(stream, protocol=5)
        self._shared = shared
        self.waiting: list[int] = []
        """Numbers of objects whose content has to be sent."""

    def persistent_id(self, obj: Any) -> Any:
        """Return what stands for an object."""
        number = self._shared.number_of(obj)
        if number is None:
            if not (isinstance(obj, torch.Tensor) or _is_plain_module(obj)):
                return None
            number = self._shared.add(obj)
            self.waiting.append(number)
        return number, type(obj) if isinstance(obj, nn.Module) else None


def _is_plain_module(value: Any) -> bool:
    """Return whether a module is made again by its class and its state, as modules are unless they say otherwise."""
    kind = type(value)
    return (
        issubclass(kind, nn.Module)
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and kind.__new__ is object.__new__
    )


def pack(shared: Shared, value: Any, changed: Iterable[int] = (), graphs: Sequence[Graph] = ()) -> Parcel:
    """Return a value as bytes.

    Args:
        shared: What both sides know; what is new in the value is added.
        value: Of picklable parts.
        changed: Numbers of known tensors and modules whose content goes along, too.
        graphs: Those whose content goes along.

    Raises:
        Exception: Something cannot be pickled; of any class.
    """
    stream = io.BytesIO()
    writer = _Writer(stream, shared)
    forms = [(shared.number_of(graph), reduced_graph(graph)) for graph in graphs]
    for graph, (number, form) in zip(graphs, forms, strict=True):
        writer.dump((shared.add(graph) if number is None else number, form))
    writer.dump(None)
    writer.waiting += changed
    writer.dump(value)
    tensors: dict[int, torch.Tensor] = {}
    for number in writer.waiting:  # It grows meanwhile.
        known = shared.objects[number]
        if isinstance(known, torch.Tensor):
            tensors[number] = known
        else:
            writer.dump((number, _state_of(known)))
    writer.dump(None)
    memory = io.BytesIO()
    torch.save(tensors, memory)
    return Parcel(stream.getvalue(), memory.getvalue())


def reduced_graph(graph: Graph) -> tuple[Any, ...]:
    """Return how a graph is made again: a function, its arguments, and attributes."""
    return cast("tuple[Any, ...]", copyreg.dispatch_table[Graph](graph))


def _state_of(module: nn.Module) -> dict[str, Any]:
    # object.__getstate__ is new in Python 3.11; classes with a method of their own drop what they rebuild.
    own = getattr(type(module), "__getstate__", None)
    if own is None or own is getattr(object, "__getstate__", None):
        return dict(vars(module))
    return cast("Any", module).__getstate__()


@dataclass
class Arrival:
    """What came out of a parcel."""

    value: Any
    tensors: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    """Number -> content of tensors that were known before."""
    graphs: dict[int, Graph] = field(default_factory=dict[int, Graph])
    """Number -> graph that takes the place of one that was known before."""


class _Reader(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, shared: Shared) -> None:
        super().__init__(stream)
        self._shared = shared

    def persistent_load(self, pid: Any) -> Any:
        number, kind = pid
        if number not in self._shared.objects:
            self._shared.put(number, kind.__new__(kind))
        return self._shared.objects[number]


def unpack(shared: Shared, parcel: Parcel) -> Arrival:
    """Return what is in a parcel; modules that are known get the state that is in it.

    Args:
        shared: What both sides know; what is new is added.
        parcel: From a process of ours.
    """
    arrival = Arrival(None)
    for number, tensor in torch.load(io.BytesIO(parcel.tensors), weights_only=False).items():
        if number in shared.objects:
            arrival.tensors[number] = tensor
        else:
            shared.put(number, tensor)
    reader = _Reader(io.BytesIO(parcel.values), shared)
    while (entry := reader.load()) is not None:
        number, form = entry
        graph = made_graph(form)
        if number in shared.objects:
            arrival.graphs[number] = shared.objects[number]
        shared.put(number, graph)
    arrival.value = reader.load()
    while (entry := reader.load()) is not None:
        number, state = entry
        module = shared.objects[number]
        vars(module).clear()
        module.__setstate__(state)
    return arrival


def made_graph(form: tuple[Any, ...]) -> Graph:
    """Return the graph that a form describes; see `reduced_graph`."""
    make, arguments, attributes = form
    graph: Graph = make(*arguments)
    vars(graph).update(attributes)
    return graph


def state_digest(module: nn.Module) -> bytes:
    """Return bytes that stay the same while the state of a module does, its parts taken as objects."""
    stream = io.BytesIO()
    _Digest(stream, protocol=5).dump(_state_of(module))
    return stream.getvalue()


class _Digest(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        return id(obj) if isinstance(obj, (torch.Tensor, Graph)) or _is_plain_module(obj) else None


def graphs_in(module: nn.Module) -> list[Graph]:
    """Return the graphs below a module, each once."""
    return list({id(graph): graph for graph in graphs_below(module)}.values())


def owners_of(shared: Shared) -> list[GraphModule]:
    """Return the graph modules that are known."""
    return list(shared.of_kind(GraphModule).values())
