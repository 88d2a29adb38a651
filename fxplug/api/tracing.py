"""Capturing a program with whatever the installed plugins have to say about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.capture import Tracer
from fxplug.execute import GraphModule
from fxplug.ir.collector import paused_collection
from fxplug.plugins import PluginManager, default_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["symbolic_trace"]


def symbolic_trace(
    root: nn.Module | Callable[..., Any],
    concrete_args: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    manager: PluginManager | None = None,
) -> GraphModule:
    """Capture a module or function without running it on data.

    Leaf rules, proxies, node annotations and wrappers of the active plugins take part. Parameters, buffers and
    leaf modules are shared with `root`, not copied.

    Args:
        root: A module, whose forward is traced, or a function.
        concrete_args: Parameter name -> value to be used instead of a proxy, or one for each parameter in order;
            `fxplug.PH` stands for what stays an input, also inside lists, dicts and the like.
        manager: The plugins that take part; by default those that are installed and selected.

    Returns:
        A module that computes what `root` computes, named after it.

    Raises:
        TraceError: The program asks something that cannot be answered without inputs; the message shows its
            line.

    Example:
        ::

            import fxplug as fx

            graph_module = fx.symbolic_trace(model)
            print(graph_module.code)
    """
    policy = (default_manager() if manager is None else manager).trace_policy()
    program = _unwrapped(root, policy.unwrap_module)
    tracer = Tracer(policy=policy)
    with paused_collection():
        graph = tracer.trace(program, concrete_args)
        return GraphModule(tracer.root, graph, _name_of(program))


def _unwrapped(root: Any, unwrap: Callable[[nn.Module], nn.Module | None] | None) -> Any:
    while unwrap is not None and isinstance(root, nn.Module):
        inner = unwrap(root)
        if inner is None or inner is root:
            break
        root = inner
    return root


def _name_of(root: Any) -> str:
    if isinstance(root, nn.Module):
        return type(root).__name__
    return getattr(root, "__name__", type(root).__name__)
