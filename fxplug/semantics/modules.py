"""What calling a module does besides computing a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from fxplug.ir import PURE, RANDOM, UNKNOWN, Effect, effects, writes
from fxplug.semantics.internals import DropoutBase, NormBase, has_hooks

if TYPE_CHECKING:
    from fxplug.ir import Node

__all__ = ["module_effect"]


def module_effect(module: nn.Module, node: Node | None = None) -> Effect:
    """Return what calling `module` does, itself and everything below it.

    Args:
        module: Any module. Only classes of ``torch.nn`` and registered ones are known; others are unknown.
        node: The call, handed to rules that were registered for a class.
    """
    effect = PURE
    for part in module.modules():
        if has_hooks(part) or "forward" in vars(part):
            return UNKNOWN
        registered = effects.target_entry(type(part))
        if callable(registered):
            registered = registered(node, part) if node is not None else UNKNOWN
        if registered is not None:
            effect = effect.join(registered)
        elif not type(part).__module__.startswith("torch.nn.modules."):
            return UNKNOWN
        else:
            effect = effect.join(_own_effect(part))
    return effect


def _own_effect(module: nn.Module) -> Effect:
    effect = PURE
    if getattr(module, "inplace", False):
        effect = effect.join(writes(0))
    if getattr(module, "max_norm", None) is not None:
        effect = effect.join(writes("state"))  # A lookup renormalises the rows that it reads.
    if isinstance(module, (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)):
        effect = effect.join(RANDOM)
    if not module.training:
        return effect
    if isinstance(module, NormBase) and module.track_running_stats:
        return effect.join(writes("state"))
    dropout = getattr(module, "dropout", 0)
    draws = isinstance(module, (DropoutBase, nn.RReLU)) or (isinstance(dropout, (int, float)) and dropout > 0)
    return effect.join(RANDOM) if draws else effect
