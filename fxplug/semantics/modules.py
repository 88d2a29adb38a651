"""What calling a module does besides computing a value."""

from __future__ import annotations

import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from torch import nn

from fxplug.ir import PURE, RANDOM, UNKNOWN, Effect, effects, writes
from fxplug.semantics.internals import ConvBase, DropoutBase, NormBase, has_hooks, has_own_call, modules_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.ir import Node

_Traits: TypeAlias = "tuple[Any, bool]"
"""Of a class of layers: whether they work in place where they say nothing, and whether training matters to them."""

__all__ = ["compute_alone", "effects_of_layers", "module_effect", "module_rule", "returns_new_tensor"]


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
        elif not _is_torchs(type(part)):
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


def module_rule(node: Node, module: Any) -> Effect | None:
    """Return what a call of a module does, None where there is none at its path."""
    return module_effect(module, node) if isinstance(module, nn.Module) else None


@lru_cache(maxsize=512)
def _traits(kind: type[nn.Module]) -> tuple[bool, bool, bool, Any, Any]:
    """Return what a class of torch may do: update statistics or draw random numbers in training, or draw always.

    Behind that stand its own ``inplace`` and ``max_norm``: asking a class for what it lacks takes long, too.
    """
    always_draws = issubclass(kind, (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d))
    draws = issubclass(kind, (DropoutBase, nn.RReLU))
    settings = getattr(kind, "inplace", None), getattr(kind, "max_norm", None)
    return issubclass(kind, NormBase), draws, always_draws, *settings


def effects_of_layers(layers: Iterable[nn.Module]) -> list[tuple[nn.Module, Effect]]:
    """Return what calls of layers do, those left out about which `module_effect` has to be asked at each call.

    Args:
        layers: Modules without hooks and without a forward of their own.
    """
    found: list[tuple[nn.Module, Effect]] = []
    classes: dict[type, _Traits | None] = {}
    # Each class is asked about once: a model has hundreds of layers.
    for layer in layers:
        kind = layer.__class__
        if kind not in classes:
            classes[kind] = _traits_of_usual_calls(layer)
        known = classes[kind]
        if known is None:
            continue
        own = layer.__dict__
        if not (own["_modules"] or (own["training"] and _minds_training(own, known))):
            found.append((layer, _WRITES_INPUT if own.get("inplace", known[0]) else PURE))
    return found


def _minds_training(own: dict[str, Any], traits: _Traits) -> bool:
    """Return whether a layer may do more than to compute while it is trained, given its attributes."""
    return traits[1] or bool(own["_buffers"]) or "dropout" in own


def compute_alone(modules: Iterable[nn.Module]) -> bool:
    """Return whether calls of the layers of torch among some modules change nothing but what they are given, if that.

    They draw no random numbers, and update no statistics, in the mode that they are in.

    Args:
        modules: Modules without hooks and without a forward of their own.
    """
    classes: dict[type, tuple[_Traits | None, int]] = {}
    called: set[type] = set()
    # The same here.
    for module in modules:
        kind, own = module.__class__, module.__dict__
        if kind not in classes:
            classes[kind] = _traits_of_layer(module), len(own)
        known, count = classes[kind]
        if len(own) != count:  # It has something of its own.
            known = _traits_of_layer(module)
        if known is None or (known is _CALLING and not _calls_layers_alone(module, called)):
            return False
        # One with a largest norm writes to its weights.
        if known is _LOOKING_UP and own.get("max_norm") is not None:
            return False
        # What a forward of a program does with its buffers is recorded.
        if own["training"] and known is not _OF_PROGRAM and _minds_training(own, known):
            return False
        # The class of a weight may say what functions do.
        if not _WEIGHTS.issuperset(map(type, own["_parameters"].values())):
            return False
    return True


_WEIGHTS = frozenset({nn.Parameter, type(None)})
_CALLING: _Traits = (None, True)
"""Of layers of torch that call what they hold."""
_LOOKING_UP: _Traits = (None, False)
"""Of layers that look up rows of their weights."""
_CALLERS = frozenset(
    {
        *(nn.MultiheadAttention, nn.Transformer, nn.TransformerDecoder, nn.TransformerDecoderLayer),
        *(nn.TransformerEncoder, nn.TransformerEncoderLayer),
    }
)


def _calls_layers_alone(module: nn.Module, known: set[type]) -> bool:
    """Return whether a layer that calls what it holds, calls layers and functions of torch and nothing else.

    Args:
        module: The layer.
        known: Classes of torch of which nobody has said what their calls do. Others are added.
    """
    waiting, seen = [module], {id(module)}
    for part in waiting:
        kind, own = type(part), part.__dict__
        if kind not in known:
            if not _is_torchs(kind) or effects.target_entry(kind) is not None:
                return False
            known.add(kind)
        others = [value for value in own.values() if callable(value)]
        if any(value is not nn.functional.relu and value is not nn.functional.gelu for value in others):
            return False
        below = [inner for inner in own["_modules"].values() if inner is not None and id(inner) not in seen]
        seen.update(map(id, below))
        waiting += below
    return True


def _is_torchs(kind: type[nn.Module]) -> bool:
    return str(kind.__module__).startswith("torch.nn.modules.")


_OF_PROGRAM: _Traits = (None, False)
"""Of modules whose forwards are not torch's, and of those that call what they hold."""


def _traits_of_layer(module: nn.Module) -> _Traits | None:
    """Return what `_traits_of_calls` says of the class of a module; None also for layers that call what they hold."""
    kind = type(module)
    if not _is_torchs(kind) or issubclass(kind, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
        return _OF_PROGRAM
    if kind in _CALLERS:
        return _CALLING
    held = vars(module)
    if held["_modules"] or any(map(callable, held.values())):
        return None
    traits = _traits_of_calls(kind)
    return _LOOKING_UP if traits is None and _looks_up(kind) else traits


def returns_new_tensor(module: nn.Module) -> bool:
    """Return whether what a layer returns has none of the memory of what it is given, and that stays as it is."""
    return isinstance(module, _WITH_OWN_MEMORY)


_WITH_OWN_MEMORY = (ConvBase, NormBase, nn.GroupNorm, nn.LayerNorm, nn.Linear)


def _traits_of_usual_calls(layer: nn.Module) -> _Traits | None:
    """Return what `_traits_of_calls` says of the class of a layer; None also where something is around its calls."""
    return None if has_own_call(type(layer)) else _traits_of_calls(type(layer))


def _traits_of_calls(kind: type[nn.Module]) -> _Traits | None:
    """Return whether the layers of a class work in place where they say nothing, and whether training matters to them.

    Returns:
        None where more than that decides what their calls do.
    """
    global _calls  # noqa: PLW0603 - both parts are exchanged at once
    said = effects.settled_targets()
    if _calls[0] is not said:
        _calls = said, weakref.WeakKeyDictionary()
    known = _calls[1]
    traits: Any = known.get(kind, _UNKNOWN)
    if traits is _UNKNOWN:
        traits = known[kind] = _found_traits(kind)
    return traits


_UNKNOWN = object()


_calls: tuple[object, weakref.WeakKeyDictionary[type, _Traits | None]] = (None, weakref.WeakKeyDictionary())
"""What somebody has said of effects, and what is known of classes then."""


def _found_traits(kind: type[nn.Module]) -> _Traits | None:
    is_torchs = _is_torchs(kind) and not issubclass(kind, nn.Sequential)
    if not is_torchs or _is_anything_said(kind):
        return None
    updates, draws, always_draws, in_place, max_norm = _traits(kind)
    if always_draws or max_norm is not None or issubclass(kind, (nn.Embedding, nn.EmbeddingBag)):
        return None
    return in_place, updates or draws or hasattr(kind, "dropout")


def _looks_up(kind: type[nn.Module]) -> bool:
    """Return whether a class looks up rows of its weights, and nobody has said anything else of it."""
    return kind in {nn.Embedding, nn.EmbeddingBag} and not _is_anything_said(kind)


def _is_anything_said(kind: type[nn.Module]) -> bool:
    """Return whether somebody has said what calls of a class of layers do."""
    return effects.target_entry(kind) is not None or effects.rules_of("call_module") != (module_rule,)


_WRITES_INPUT, _WRITES_STATE = writes(0), writes("state")


def _setting(module: nn.Module, name: str) -> Any:
    """Return a plain attribute, None where there is none; asking a module itself for what it lacks takes long."""
    own = vars(module)
    return own[name] if name in own else getattr(type(module), name, None)
