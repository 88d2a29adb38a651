"""What a backend is: an engine that runs parts of a graph, and the record by which it is offered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["Backend", "BackendRecord", "LoweringContext", "Support"]


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


class Backend(ABC):
    """Runs graphs on an engine."""

    @abstractmethod
    def supports(self, node: Node, context: LoweringContext) -> Support:
        """Say whether this backend can run `node`; must not change the node or its graph."""

    @abstractmethod
    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> nn.Module:
        """Return a module that computes what `subgraph` computes.

        Args:
            subgraph: All its nodes are supported.
            example_inputs: Inputs of the subgraph.
            options: Validated options.

        Raises:
            BackendError: The engine is not installed, or refuses. The message says what to install or change.
        """


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
