"""Every hook that fxplug 0.1 began with, by public names alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug import Backend, BackendRecord, CommandRecord, Pass, PassRecord, PassResult, Support, hookimpl
from fxplug.ir import OUTSIDE
from fxplug.plugins import EffectRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug import GraphModule, LoweringContext, Node, PassContext, PassEvent, TraceContext, TraceEvent

HEARD: list[str] = []
"""What the observers of this plugin heard."""


def tell(value: Any) -> Any:
    """Return the value; a plugin says that this acts outside."""
    return value


class Sizes:
    """A foreign value."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes


class Wrapper(nn.Module):
    """A module around another one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


class Golden:
    """Behaviour of proxies."""

    def __neg__(self) -> Any:
        """Negate, and say so."""
        result = super().__neg__()  # type: ignore[misc]
        result.node.meta["golden.negated"] = True
        return result


class SingleRelu(Pass):
    """Makes ``relu(relu(x))`` one ``relu(x)``."""

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Remove every relu of a relu."""
        removed = 0
        for node in list(module.graph.nodes):
            if node.target is torch.relu and getattr(node.args[0], "target", None) is torch.relu:
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
                removed += 1
        return PassResult(removed > 0, f"removed {removed}", {"removed": removed})


class Engine(Backend):
    """Runs graphs in PyTorch."""

    def supports(self, node: Node, context: LoweringContext) -> Support:
        """Say yes."""
        return Support(ok=True)

    def compile(
        self, subgraph: GraphModule, example_inputs: tuple[Any, ...], options: Mapping[str, Any]
    ) -> nn.Module:
        """Return the subgraph itself."""
        return subgraph


def make_command() -> Any:
    """Return the command."""
    import click

    @click.command()
    def shine() -> None:
        """Shine."""
        click.echo("golden")

    return shine


@hookimpl
def fxplug_is_leaf_module(module: nn.Module, qualified_name: str, context: TraceContext) -> bool | None:
    """Keep one class."""
    return True if type(module).__name__ == "Kept" else None


@hookimpl
def fxplug_create_proxy(node: Node, kind: str, context: TraceContext) -> type | None:
    """Mix behaviour in."""
    return Golden


@hookimpl
def fxplug_node_created(node: Node, context: TraceContext) -> Mapping[str, Any] | None:
    """Note the opcode."""
    return {"golden.op": node.op}


@hookimpl
def fxplug_create_argument(value: Any, context: TraceContext) -> Any:
    """Convert a foreign value."""
    return value.sizes if isinstance(value, Sizes) else None


@hookimpl
def fxplug_unwrap_module(module: nn.Module) -> nn.Module | None:
    """Unwrap."""
    return module.inner if isinstance(module, Wrapper) else None


@hookimpl
def fxplug_leaf_functions() -> list[Any]:
    """Keep calls of one function."""
    return [tell]


@hookimpl
def fxplug_register_passes() -> list[PassRecord]:
    """Offer a pass."""
    return [
        PassRecord(
            "single-relu", SingleRelu, "Removes relus.", before=("fuse-conv-bn",), pipelines=("inference",)
        )
    ]


@hookimpl
def fxplug_register_backends() -> list[BackendRecord]:
    """Offer a backend."""
    return [BackendRecord("engine", Engine, "Runs graphs.")]


@hookimpl
def fxplug_register_effects() -> list[EffectRecord]:
    """State an effect."""
    return [EffectRecord(tell, OUTSIDE)]


@hookimpl
def fxplug_register_commands() -> list[CommandRecord]:
    """Offer a command."""
    return [CommandRecord("shine", make_command, "Shines.")]


@hookimpl
def fxplug_trace_started(event: TraceEvent) -> None:
    """Hear of a trace."""
    HEARD.append(f"trace started {type(event.context.root).__name__}")


@hookimpl
def fxplug_trace_finished(event: TraceEvent) -> None:
    """Hear of a graph."""
    HEARD.append(f"trace finished {event.error}")


@hookimpl
def fxplug_pass_started(event: PassEvent) -> None:
    """Hear of a pass."""
    HEARD.append(f"pass started {event.name}")


@hookimpl
def fxplug_pass_finished(event: PassEvent) -> None:
    """Hear of its end."""
    HEARD.append(f"pass finished {event.name} {event.result.modified if event.result else event.error}")
