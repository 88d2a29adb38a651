"""What a program that was written for example inputs relies on: their sizes, dtypes and plain values."""

from __future__ import annotations

import operator
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxplug.codegen import PyTreeCodeGen
from fxplug.errors import DecompositionError
from fxplug.execute import GuardSet
from fxplug.ir import Graph, Node
from fxplug.ir.guards import Guard
from fxplug.semantics.checks import class_of, same_value, share_memory
from fxplug.semantics.symbols import write_expression

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from fxplug.execute import GraphModule
    from fxplug.semantics.symbols import SymbolicSizes

__all__ = ["InputLeaf", "asked_of_sizes", "guards_for", "input_leaves"]


class InputLeaf(NamedTuple):
    """A part of an input that is no container."""

    value: Any
    """Of the example."""
    node: Node
    """What reads it."""
    text: str
    """The same for people, ``"x[0]"``."""


def input_leaves(graph: Graph, node: Node, value: Any, text: str) -> Iterator[InputLeaf]:
    """Yield the parts of an input, writing what reads them into a graph.

    Raises:
        DecompositionError: It is of a class that nobody can take apart.
    """
    if type(value) is dict:
        for key, element in value.items():
            read = graph.call_function(operator.getitem, (node, key))
            yield from input_leaves(graph, read, element, f"{text}[{key!r}]")
    elif type(value) in {tuple, list}:
        for index, element in enumerate(value):
            read = graph.call_function(operator.getitem, (node, index))
            yield from input_leaves(graph, read, element, f"{text}[{index}]")
    elif value is None or isinstance(value, _PLAIN):
        yield InputLeaf(value, node, text)
    else:
        raise DecompositionError(
            f"Cannot decompose to ATen: the input {text} is a {type(value).__module__}.{type(value).__qualname__}. "
            "Pass tensors, numbers, text and None, alone or in tuples, lists and dicts."
        )


_PLAIN = (
    torch.Tensor,
    bool,
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    slice,
    type(Ellipsis),
)


class _Collector:
    """Writes the questions that guards ask into a graph of their own."""

    def __init__(self, module: GraphModule, *, strides: bool) -> None:
        former = module.guard_set
        self.graph = Graph()
        self.guards: list[Guard] = []
        self.answers: list[Any] = []
        self._strides = strides
        nodes: dict[Node, Any] = {}
        if former is not None and former.graph is not None:
            answers: Any = self.graph.graph_copy(former.graph, nodes)
            self.answers += answers
            self.guards += former.guards[: len(self.answers)]
            self.later = former.guards[len(self.answers) :]
        else:
            self.later = () if former is None else former.guards
            for placeholder in module.graph.find_nodes(op="placeholder"):
                self.graph.node_copy(placeholder)
        self.graph.keyword_only = module.graph.keyword_only
        generator = vars(module.graph)["_codegen"]
        if isinstance(generator, PyTreeCodeGen):  # The same nested inputs, and one plain result.
            self.graph.set_codegen(PyTreeCodeGen(generator.parameters, generator.flatten))
        self.inputs = self.graph.find_nodes(op="placeholder")

    def ask(self, node: Node, text: str) -> None:
        self.answers.append(node)
        self.guards.append(Guard(text))

    def ask_structure(self, node: Node, value: Any, text: str) -> None:
        """Ask whether containers are those of the example."""
        if type(value) not in {dict, tuple, list}:
            return
        kind = self.graph.call_function(class_of, (node,))
        self.ask(
            self.graph.call_function(operator.is_, (kind, type(value))),
            f"type({text}) is {type(value).__name__}",
        )
        length = self.graph.call_function(len, (node,))
        self.ask(self.graph.call_function(operator.eq, (length, len(value))), f"len({text}) == {len(value)}")
        for key, element in value.items() if isinstance(value, dict) else enumerate(value):
            if type(element) in {dict, tuple, list}:
                read = self.graph.call_function(operator.getitem, (node, key))
                self.ask_structure(read, element, f"{text}[{key!r}]")

    def ask_leaf(self, leaf: InputLeaf, sizes: Mapping[int, str]) -> None:
        """Ask whether a part of an input is like that of the example."""
        value, node, text = leaf
        if not isinstance(value, torch.Tensor):
            self.ask_value(node, value, text)
            return
        dtype = self.graph.call_function(getattr, (node, "dtype"))
        self.ask(
            self.graph.call_function(operator.eq, (dtype, value.dtype)), f"{text}.dtype == {value.dtype}"
        )
        shape = self.graph.call_function(getattr, (node, "shape"))
        if not sizes:
            answer = self.graph.call_function(same_value, (shape, tuple(value.shape)))
            self.ask(answer, f"{text}.shape == {tuple(value.shape)}, the sizes of the example inputs")
        else:
            rank = self.graph.call_function(len, (shape,))
            self.ask(
                self.graph.call_function(operator.eq, (rank, value.dim())), f"{text}.dim() == {value.dim()}"
            )
            for at, size in enumerate(value.shape):
                if at not in sizes:
                    read = self.graph.call_function(operator.getitem, (shape, at))
                    answer = self.graph.call_function(operator.eq, (read, size))
                    self.ask(answer, f"{text}.shape[{at}] == {size}, as in the example inputs")
        if self._strides:
            strides = self.graph.call_method("stride", (node,))
            answer = self.graph.call_function(same_value, (strides, tuple(value.stride())))
            self.ask(answer, f"{text}.stride() == {tuple(value.stride())}, as of the example inputs")

    def ask_memory(self, leaves: Sequence[InputLeaf], written: Collection[str]) -> None:
        """Ask whether what the program writes to is memory that no other input has."""
        tensors = [leaf for leaf in leaves if isinstance(leaf.value, torch.Tensor)]
        for first, second in combinations(tensors, 2):
            if first.text in written or second.text in written:
                shared = self.graph.call_function(share_memory, (first.node, second.node))
                self.ask(
                    self.graph.call_function(operator.not_, (shared,)),
                    f"{first.text} and {second.text} sharing no memory, as the program writes to one of them",
                )

    def ask_value(self, node: Node, value: Any, text: str) -> None:
        if value is None or value is Ellipsis:
            answer = self.graph.call_function(operator.is_, (node, value))
        else:
            answer = self.graph.call_function(same_value, (node, value))
        self.ask(answer, f"{text} is {value!r}, as in the example inputs")

    def ask_sizes(self, sizes: SymbolicSizes, dynamic: Mapping[int, Mapping[int, str]]) -> None:
        """Ask what has to hold for open sizes."""
        reads: dict[str, Node] = {}
        for position, dimensions in dynamic.items():
            for at, name in dimensions.items():
                read = self.graph.call_method("size", (self.inputs[position], at))
                where = f"{self.inputs[position].target}.shape[{at}]"
                if name in reads:
                    self.ask(self.graph.call_function(operator.eq, (read, reads[name])), f"{where} == {name}")
                    continue
                reads[name] = read
                self.ask(
                    self.graph.call_function(operator.ge, (read, 2)),
                    f"{where} >= 2, as {name!r} is an open size",
                )
        places = {sizes.places[name]: read for name, read in reads.items()}
        known: dict[Any, Any] = {}
        for predicate in sizes.predicates():
            answer = write_expression(
                predicate, self.graph, lambda symbol: places[sizes.place_of(symbol)], known
            )
            self.ask(answer, f"{sizes.text_of(predicate)}{_ASKED}")


_ASKED = ", which the program asked"


def asked_of_sizes(guards: GuardSet) -> list[str]:
    """Return what else than being 2 or more open sizes have to fulfil, for people; of what `guards_for` returned."""
    return [guard.text.removesuffix(_ASKED) for guard in guards.guards if guard.text.endswith(_ASKED)]


def guards_for(
    module: GraphModule,
    inputs: Sequence[Any],
    sizes: SymbolicSizes | None,
    *,
    strides: bool,
    written: Collection[str] = (),
) -> GuardSet:
    """Return guards that hold for inputs like the examples, and those of the program itself.

    Args:
        module: The program, and what it relies on already.
        inputs: The example for each of its inputs.
        sizes: Which sizes are open; None where none is.
        strides: Whether the layout in memory matters, too.
        written: The parts of inputs that the program writes to, as `InputLeaf.text` names them.
    """
    former = module.guard_set
    collector = _Collector(module, strides=strides)
    dynamic = {} if sizes is None else sizes.dynamic
    leaves: list[InputLeaf] = []
    for position, (node, value) in enumerate(zip(collector.inputs, inputs, strict=True)):
        text = str(node.target)
        collector.ask_structure(node, value, text.lstrip("*"))
        found = list(input_leaves(collector.graph, node, value, text.lstrip("*")))
        leaves += found
        for leaf in found:
            collector.ask_leaf(leaf, dynamic.get(position, {}))
    collector.ask_memory(leaves, written)
    if sizes is not None:
        collector.ask_sizes(sizes, dynamic)
    collector.graph.output(tuple(collector.answers))
    guards = (*collector.guards, *collector.later)
    if former is None:
        return GuardSet(collector.graph, guards)
    return GuardSet(collector.graph, guards, former.on_failure, former.instead)
