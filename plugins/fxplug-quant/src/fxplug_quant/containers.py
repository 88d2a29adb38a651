"""Modules of torch that stay one call in a trace although they hold linear layers."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from fxplug.plugins import PluginManager, default_manager

__all__ = ["layers_inside", "manager_that_opens"]

_CONTAINERS = (
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
"""Their own forward calls layers; that of `nn.MultiheadAttention` computes with weights itself."""


def manager_that_opens(module: nn.Module) -> PluginManager | None:
    """Return a manager that has the Transformer layers in a module traced; None, for the usual one, without any."""
    if not any(type(part) in _CONTAINERS for part in module.modules()):
        return None
    config = default_manager().config
    paths = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in _CONTAINERS)
    trace = replace(config.trace, through_modules=(*config.trace.through_modules, *paths))
    return PluginManager(config=replace(config, trace=trace))


def layers_inside(module: nn.Module) -> str:
    """Return why a module that is one call stays float, if it holds layers that could be quantized; empty if not."""
    found = sum(isinstance(part, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) for part in module.modules())
    if not found:
        return ""
    return (
        f"it is one call here, and the {found} layer{'s' if found > 1 else ''} in it are not seen: name its class "
        f"under through_modules in the table trace of the configuration"
    )
