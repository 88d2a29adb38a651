"""Patterns and replacements: small graphs made from functions and modules, checked before they are used."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fxplug.capture import Tracer
from fxplug.errors import PatternError
from fxplug.execute import GraphModule
from fxplug.execute.aliases import may_copy_argument, may_return_argument
from fxplug.ir import Graph, Node, effects, iterate_leaves
from fxplug.semantics.checks import is_check

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Template", "drop_checks"]


@dataclass(frozen=True)
class Template:
    """The graph of a pattern or of a replacement, with what is asked of it again and again."""

    graph: Graph
    root: Any
    """What the graph's paths refer to; None when that is not known."""
    word: str
    """``"pattern"`` or ``"replacement"``, for messages."""
    inputs: tuple[Node, ...] = field(init=False)
    """The placeholders in order."""
    results: tuple[Any, ...] = field(init=False)
    """The leaves of what the output returns, in order."""

    def __post_init__(self) -> None:
        inputs = tuple(self.graph.find_nodes(op="placeholder"))
        for node in inputs:
            if str(node.target).startswith("*"):
                raise PatternError(
                    f"Cannot use the {self.word}: its parameter {str(node.target)!r} takes a variable number of "
                    "arguments, and each parameter stands for one value. Name them one by one."
                )
        outputs = self.graph.find_nodes(op="output")
        if not outputs:
            raise PatternError(
                f"Cannot use the {self.word}: its graph has no output. Make one with graph.output(...)."
            )
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(
            self, "results", tuple(iterate_leaves(outputs[-1].args[0] if outputs[-1].args else ()))
        )

    @classmethod
    def of(cls, program: Any, word: str) -> Template:
        """Return the template of a function, module, graph or graph module; the first two are traced.

        Args:
            program: A graph's root is its owning module.
            word: ``"pattern"`` or ``"replacement"``.

        Raises:
            PatternError: It is none of these.
            TraceError: It cannot be traced.
        """
        if isinstance(program, GraphModule):
            return cls(program.graph, program, word)
        if isinstance(program, Graph):
            return cls(program, program.owning_module, word)
        if not callable(program):
            raise PatternError(
                f"Cannot use a {type(program).__module__}.{type(program).__qualname__} as a {word}: pass a function, a "
                "module, a fxplug.Graph or a fxplug.GraphModule."
            )
        tracer = Tracer()
        graph = tracer.trace(program)
        if word == "pattern":
            drop_checks(graph)
        module = GraphModule(tracer.root, graph)
        return cls(graph, module, word)

    @cached_property
    def shared(self) -> tuple[frozenset[int | str], ...]:
        """For each result: positions of the inputs, and paths of the attributes, with which it may share memory."""
        return tuple(self._origins_of(self.memory_of(result)) for result in self.results)

    @cached_property
    def shared_always(self) -> tuple[frozenset[int | str], ...]:
        """The same without those of which a result is a copy for some inputs."""
        return tuple(self._origins_of(self.memory_of(result, always=True)) for result in self.results)

    def _origins_of(self, nodes: Iterable[Node]) -> frozenset[int | str]:
        return frozenset(
            self.inputs.index(node) if node.op == "placeholder" else str(node.target)
            for node in nodes
            if node.op in {"placeholder", "get_attr"}
        )

    def share(self, first: Any, second: Any) -> bool:
        """Return whether two values of the graph may share memory with one another."""
        ours, theirs = self.memory_of(first), self.memory_of(second)
        read = {node.target for node in ours if node.op == "get_attr"}
        return not ours.isdisjoint(theirs) or any(
            node.op == "get_attr" and node.target in read for node in theirs
        )

    def memory_of(self, value: Any, *, always: bool = False) -> frozenset[Node]:
        """Return the nodes of which a value may be a view, itself among them; none for a plain value.

        Args:
            value: A value of the graph.
            always: Leave those out of which it is a copy for some inputs.
        """
        seen: set[Node] = set()
        waiting = [value] if isinstance(value, Node) else []
        while waiting:
            node = waiting.pop()
            is_call = node.op not in {"placeholder", "get_attr"}
            passes_on = is_call and may_return_argument(node, self.root)
            if node not in seen and passes_on and not (always and may_copy_argument(node)):
                waiting += node.all_input_nodes
            seen.add(node)
        return frozenset(seen)

    def calls(self) -> list[Node]:
        """Return the nodes that are neither input nor output, in order."""
        return [node for node in self.graph.nodes if node.op not in {"placeholder", "output"}]

    @cached_property
    def loose(self) -> frozenset[Node]:
        """The nodes of which what they stand for may be shared between matches and used outside of them.

        Reading an attribute is no work, so that nothing is gained by asking who else uses it, unless it is all there
        is.
        """
        return frozenset(node for node in self.graph.nodes if _is_loose(node))

    def check_as_pattern(self) -> None:
        """Check that the pattern says which nodes belong to a match and which value each parameter has.

        Raises:
            PatternError: It does not.
        """
        calls = self.calls()
        if not calls:
            raise PatternError(
                "Cannot search for the pattern: it computes nothing, so it would match every value. Write at least one "
                "call into it."
            )
        for node in (*self.inputs, *calls):
            if node.users or effects.effect_of(node, self.root).must_be_kept:
                continue
            if node.op == "placeholder":
                raise PatternError(
                    f"Cannot search for the pattern: nothing uses its parameter {str(node.target)!r}, so no match "
                    "would say which value it has. Take it out of pattern and replacement."
                )
            raise PatternError(
                f"Cannot search for the pattern: nothing uses the value of its node {node.name!r} "
                f"({node.format_node()}). Return it, or take it out."
            )


def drop_checks(graph: Graph) -> None:
    """Take the checks out of a pattern: how many parts there are is checked where it matches."""
    for node in [node for node in graph.nodes if is_check(node)]:
        graph.erase_node(node)


def _is_loose(node: Node) -> bool:
    if node.op == "get_attr":
        return not any(user.op == "output" for user in node.users)
    return node.op in {"placeholder", "output"}
