"""What a backend is: an engine that runs parts of a graph, and the record by which it is offered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze import described_copy
from fxplug.errors import BackendError
from fxplug.execute import Interpreter
from fxplug.ir import map_aggregate
from fxplug.lower.profile import Profile
from fxplug.semantics.checks import CHECKS
from fxplug.semantics.internals import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = [
    "Backend",
    "BackendRecord",
    "LoweringContext",
    "Support",
    "fixed_inputs",
    "note_fixed_inputs",
    "values_of",
]

_FIXED = "fxplug.fixed_sizes"
"""Key in the notes of an input of a part that is the same in every call."""


@dataclass(frozen=True)
class Support:
    """Whether a backend can run a node, and why not."""

    ok: bool
    reason: str = ""
    """For people; empty when the node is supported."""

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class LoweringContext:
    """What a backend may know when it is asked about a node."""

    module: GraphModule
    """The module that holds the node."""
    example_inputs: tuple[Any, ...] | None = None
    """Inputs of the whole module; None when nobody gave any."""

    def submodule(self, node: Node) -> nn.Module | None:
        """Return the module that a ``call_module`` node calls, None for other nodes."""
        return self.module.get_submodule(node.target) if node.op == "call_module" else None

    @cached_property
    def values(self) -> Mapping[Node, Any]:
        """What nodes return for the example inputs: tensors without data in the places of tensors.

        Empty without example inputs, and where the program does not run without data.
        """
        return {} if self.example_inputs is None else values_of(self.module, self.example_inputs)

    @cached_property
    def constants(self) -> frozenset[Node]:
        """Nodes that no input reaches, as what becomes of weights alone: their sizes are the same in every call."""
        found: set[Node] = set()
        for node in self.module.graph.nodes:
            if node.op not in {"placeholder", "output"} and found.issuperset(node.all_input_nodes):
                found.add(node)
        return frozenset(found)


def note_fixed_inputs(module: GraphModule, names: Iterable[str]) -> None:
    """Note at the inputs of parts which of them no input of the whole module reaches.

    Args:
        module: Calls the parts.
        names: The paths of the parts.
    """
    constants, wanted = LoweringContext(module).constants, set(names)
    for call in module.graph.find_nodes(op="call_module"):
        if call.target not in wanted:
            continue
        part: Any = module.get_submodule(call.target)
        for given, used in zip(part.graph.find_nodes(op="placeholder"), call.args, strict=True):
            if used in constants:
                given.meta[_FIXED] = True


def fixed_inputs(part: GraphModule) -> frozenset[int]:
    """Return the positions of inputs of a part that are the same in every call, so that none of their sizes is open."""
    places = part.graph.find_nodes(op="placeholder")
    return frozenset(number for number, given in enumerate(places) if given.meta.get(_FIXED) is True)


def values_of(
    module: GraphModule,
    inputs: tuple[Any, ...],
    dynamic: Mapping[int | str, Mapping[int, str]] | None = None,
) -> dict[Node, Any]:
    """Return what nodes return: tensors without data in the places of tensors. Checks are left out.

    Args:
        module: Not changed.
        inputs: Of the module.
        dynamic: Sizes that stay open, as for `fxplug.propagate_shapes`.

    Returns:
        Nothing where the program does not run.
    """
    try:
        described = described_copy(module, *inputs, dynamic=dynamic, interpreter=_Values)
    except (
        Exception
    ):  # Whatever it is: it is an answer to nobody's question, and running the program tells it.
        return {}
    pairs = zip(module.graph.nodes, described.graph.nodes, strict=True)
    return {node: copy.meta["val"] for node, copy in pairs if "val" in copy.meta}


class _Values(Interpreter):
    """Notes what nodes return, without data."""

    def run_node(self, n: Node) -> Any:
        """Run a node, and note its value."""
        if n.target in CHECKS:
            return None
        value = super().run_node(n)
        n.meta["val"] = map_aggregate(value, _without_data, frozen=False)
        return value


def _without_data(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach() if isinstance(leaf, FakeTensor) else leaf.detach().to("meta")


class Backend(ABC):
    """Runs graphs on an engine."""

    options: Any = None
    """A dataclass with what it was made with, as `BackendRecord.options` says; None where nothing can be chosen.
    What it compiled is only used again for the same options."""

    @abstractmethod
    def supports(self, node: Node, context: LoweringContext) -> Support:
        """Say whether this backend can run `node`; must not change the node or its graph."""

    @abstractmethod
    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> nn.Module:
        """Return a module that computes what `subgraph` computes.

        The module may have two methods besides: ``problem_with(inputs)`` returns why it cannot compute with inputs that
        fit its profile, or an empty text; ``submit(*inputs)`` begins a call, and returns what has ``result()``.

        Args:
            subgraph: All its nodes are supported.
            example_inputs: Inputs of the subgraph.
            options: Validated options.

        Raises:
            BackendError: The engine is not installed, or refuses. The message says what to install or change.
        """

    def profile(self, example_inputs: tuple[Any, ...]) -> Profile | None:
        """Return what inputs a module accepts that was compiled for `example_inputs`; None for all.

        By default those of the same dtypes, devices and sizes, and with the same plain values.
        """
        return Profile.of(example_inputs)

    def operators(self) -> Mapping[str, str]:
        """Return name -> who brings it, for every operator that has a converter; empty where there are none.

        For people, who see it with ``fxplug backends show``: whether a call is supported is what `supports` says.
        """
        return {}

    def environment(self) -> Mapping[str, str] | None:
        """Return what a compiled engine depends on besides program and options: versions, and the processor.

        By default None: what this backend compiles cannot be kept, neither in a cache nor in a file.
        """
        return None

    def artefact(self, engine: nn.Module) -> bytes | None:
        """Return what `restore` makes `engine` of, None where this one cannot be kept.

        Args:
            engine: What `compile` or `restore` returned.
        """
        return None

    def restore(self, artefact: bytes) -> nn.Module:
        """Return the engine that `artefact` was called with, in another process.

        Only asked with bytes that were made in the same environment, with the same options.

        Args:
            artefact: What the method of this name returned.

        Raises:
            BackendError: The engine is not installed, or refuses.
        """
        raise BackendError(f"Cannot restore what {type(self).__name__} compiled: it keeps nothing.")


@dataclass(frozen=True)
class BackendRecord:
    """Offers a backend under a name."""

    name: str
    """Lower-case words joined by hyphens, e.g. ``"openvino"``."""
    factory: Callable[..., Backend]
    """Makes the backend; receives the options as keyword arguments. Must work when the engine is not installed."""
    summary: str
    """One line for people."""
    options: type[Any] | None = None
    """A dataclass whose fields are the factory's keyword arguments."""
    requires: tuple[str, ...] = ()
    """Python distributions that the engine needs, e.g. ``("openvino",)``."""
    problem: Callable[[], str] | None = None
    """Says why the engine does not run on this machine and what to do about it, empty where it does; for ``fxplug
    doctor``, where it takes the place of what `requires` tells. Must work when the engine is not installed."""
