"""The reference backend: every node is supported and runs as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.lower.backend import Backend, LoweringContext, Support

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["EagerBackend"]


class EagerBackend(Backend):
    """Runs graphs in PyTorch, node by node in generated code."""

    def supports(self, node: Node, context: LoweringContext) -> Support:
        """Say yes."""
        return Support(ok=True)

    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> nn.Module:
        """Return the subgraph itself."""
        return subgraph

    def profile(self, example_inputs: tuple[Any, ...]) -> None:
        """Accept all inputs."""
