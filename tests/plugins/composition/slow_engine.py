"""A backend that runs everything but sigmoid, and behaviour for proxies beside that of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug import Backend, BackendRecord, Support, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from fxplug import GraphModule, LoweringContext, Node


class SlowEngine(Backend):
    """Runs graphs in PyTorch."""

    def supports(self, node: Node, context: LoweringContext) -> Support:
        """Support all but one function."""
        is_known = node.target is not torch.sigmoid
        return Support(is_known, "" if is_known else "the engine has no sigmoid")

    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> nn.Module:
        """Return the subgraph itself."""
        return subgraph


class CountsSums:
    """Counts how often a value is added to."""

    def __add__(self, other: Any) -> Any:
        """Add, and count."""
        total = super().__add__(other)  # type: ignore[misc]
        total.node.meta["slow-engine.sums"] = total.node.meta.get("slow-engine.sums", 0) + 1
        return total


@hookimpl
def fxplug_create_proxy() -> type:
    """Watch sums."""
    return CountsSums


@hookimpl
def fxplug_register_backends() -> list[BackendRecord]:
    """Offer the engine."""
    return [BackendRecord("slow", SlowEngine, "Runs graphs slowly.", requires=("torch",))]
