"""What calling a module does besides computing a value."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from fxplug.ir import PURE, RANDOM, UNKNOWN, Effect, effects, writes
from fxplug.semantics.internals import DropoutBase, NormBase, has_hooks, modules_of

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
    for part in module.modules() if modules_of(module) else (module,):
        if has_hooks(part) or "forward" in vars(part):
            return UNKNOWN
        registered = effects.target_entry(type(part))
        if callable(registered):
            registered = registered(node, part) if node is not None else UNKNOWN
        if registered is not None:
            effect = effect.join(registered)
        elif not type(part).__module__.startswith("torch.nn.modules."):
            return UNKNOWN
        elif (own := _own_effect(part)) is not PURE:
            effect = own if effect is PURE else effect.join(own)
    return effect


def _own_effect(module: nn.Module) -> Effect:
    updates, draws, always_draws, inplace, max_norm = _traits(type(module))
    own = vars(module)
    effect = RANDOM if always_draws else PURE
    if own.get("inplace", inplace):
        effect = _WRITES_INPUT.join(effect) if always_draws else _WRITES_INPUT
    if own.get("max_norm", max_norm) is not None:
        effect = effect.join(_WRITES_STATE)  # A lookup renormalises the rows that it reads.
    if not module.training:
        return effect
    if updates and cast("NormBase", module).track_running_stats:
        return effect.join(_WRITES_STATE)
    dropout = _setting(module, "dropout")
    draws = draws or (isinstance(dropout, (int, float)) and dropout > 0)
    return effect.join(RANDOM) if draws else effect


@lru_cache(maxsize=512)
def _traits(kind: type[nn.Module]) -> tuple[bool, bool, bool, Any, Any]:
    """Return what a class of torch may do: update statistics or draw random numbers in training, or draw always.

    Behind that stand its own ``inplace`` and ``max_norm``: asking a class for what it lacks takes long, too.
    """
    always_draws = issubclass(kind, (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d))
    draws = issubclass(kind, (DropoutBase, nn.RReLU))
    settings = getattr(kind, "inplace", None), getattr(kind, "max_norm", None)
    return issubclass(kind, NormBase), draws, always_draws, *settings


_WRITES_INPUT, _WRITES_STATE = writes(0), writes("state")


def _setting(module: nn.Module, name: str) -> Any:
    """Return a plain attribute, None where there is none; asking a module itself for what it lacks takes long."""
    own = vars(module)
    return own[name] if name in own else getattr(type(module), name, None)
