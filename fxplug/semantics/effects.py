"""What torch calls do besides computing a value.

Sources of the answers, in this order: operator schemas, ``out=`` and ``inplace=`` arguments, the trailing
underscore of in-place names, the training flag and hooks of modules. A call that none of them speaks of is
unknown, and is kept.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import nn

from fxplug.ir import OUTSIDE, PURE, RANDOM, UNKNOWN, Effect, Node, effects, qualified_name, writes
from fxplug.semantics.internals import (
    DropoutBase,
    NormBase,
    OpOverload,
    OpOverloadPacket,
    assert_function,
    has_hooks,
    schema_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["has_side_effect", "module_effect"]

_PURE_BUILTINS = [
    "abs",
    "all",
    "any",
    "bool",
    "complex",
    "dict",
    "divmod",
    "enumerate",
    "float",
    "frozenset",
    "getattr",
    "hasattr",
    "hash",
    "int",
    "isinstance",
    "len",
    "list",
    "max",
    "min",
    "pow",
    "range",
    "reversed",
    "round",
    "set",
    "slice",
    "sorted",
    "str",
    "sum",
    "tuple",
    "type",
    "zip",
]

# Tensor methods that have no operator of the same name, or one that says too little.
_PURE_METHODS = frozenset(
    [
        "bfloat16",
        "bool",
        "byte",
        "char",
        "cpu",
        "cuda",
        "data_ptr",
        "dim",
        "double",
        "element_size",
        "expand_as",
        "float",
        "get_device",
        "half",
        "int",
        "is_contiguous",
        "is_floating_point",
        "item",
        "long",
        "ndimension",
        "nelement",
        "new_tensor",
        "numel",
        "short",
        "size",
        "storage_offset",
        "stride",
        "to",
        "tolist",
        "type",
        "type_as",
        "view_as",
        "reshape_as",
    ]
)

_LIBRARIES = ("torch", "torch.nn.functional", "torch.linalg", "torch.fft", "torch.special", "torch.Tensor")


def has_side_effect(function: Any) -> Any:
    """Declare that calls of `function` may never be removed; returns the function, so it serves as a decorator."""
    effects.register_target(function, OUTSIDE)
    return function


# -- operators with a schema


@functools.cache
def _schema_effect(overload: OpOverload) -> Effect:
    schema = schema_of(overload)
    written: list[int | str] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name if argument.kwarg_only else position)
    random = torch.Tag.nondeterministic_seeded in overload.tags
    return Effect(writes=frozenset(written), random=random)


@functools.cache
def _aten_overloads(name: str) -> tuple[OpOverload, ...]:
    for library in (torch.ops.aten, torch.ops.prims):
        packet = getattr(library, name, None)
        if isinstance(packet, OpOverloadPacket):
            return tuple(getattr(packet, overload) for overload in packet.overloads())
    return ()


def _named_effect(name: str) -> Effect | None:
    """Return the effect of the operator called `name` in its form without ``out=``; None when there is no operator."""
    overloads = _aten_overloads(name)
    if not overloads:
        return None
    forms = [
        overload for overload in overloads if not any(arg.is_out for arg in schema_of(overload).arguments)
    ]
    effect = PURE
    for overload in forms or overloads:
        effect = effect.join(_schema_effect(overload))
    return effect


def _written_by_convention(node: Node, name: str) -> Effect | None:
    if "out" in node.kwargs and node.kwargs["out"] is not None:
        return writes("out")
    if name.endswith("_") and not name.endswith("__"):
        return writes(0)
    return None


# -- functions


@functools.cache
def _parameters(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # Builtins without a text signature.
        return ()


def _bound(node: Node, name: str, default: Any) -> Any:
    """Return the argument that a call gives to the parameter `name`."""
    if name in node.kwargs:
        return node.kwargs[name]
    parameters = _parameters(node.target)
    if name in parameters:
        position = parameters.index(name)
        if position < len(node.args):
            return node.args[position]
    return default


def _overload_rule(node: Node, _: Any) -> Effect | None:
    target = node.target
    if isinstance(target, OpOverload):
        return _schema_effect(target)
    if isinstance(target, OpOverloadPacket):
        effect = PURE
        for overload in target.overloads():
            effect = effect.join(_schema_effect(getattr(target, overload)))
        return effect
    return None


def _python_rule(node: Node, _: Any) -> Effect | None:
    """Answer for the operator and math modules, where names alone decide."""
    if node.op != "call_function":
        return None
    name = getattr(node.target, "__name__", "")
    if getattr(operator, name, None) is node.target:
        in_place = (
            name.startswith("i") and name[1:].rstrip("_") in _OPERATOR_NAMES and name not in {"is_", "index"}
        )
        return writes(0) if in_place or name in {"setitem", "delitem"} else PURE
    return PURE if getattr(math, name, None) is node.target else None


_OPERATOR_NAMES = frozenset(
    [
        "add",
        "and",
        "concat",
        "floordiv",
        "lshift",
        "matmul",
        "mod",
        "mul",
        "or",
        "pow",
        "rshift",
        "sub",
        "truediv",
        "xor",
    ]
)


def _library_rule(node: Node, _: Any) -> Effect | None:
    """Answer for torch's own functions."""
    if node.op != "call_function":
        return None
    library, _, name = qualified_name(node.target).rpartition(".")
    if library not in _LIBRARIES:
        return None
    stated = _written_by_convention(node, name)
    if stated is not None:
        return stated
    if _bound(node, "inplace", default=False) is not False:
        return writes(0)
    if library == "torch.nn.functional" and name in _TRAINING_FUNCTIONS:
        return _TRAINING_FUNCTIONS[name](node)
    effect = _named_effect(name)
    if effect is not None:
        return effect
    return PURE if library == "torch.nn.functional" else None


def _dropout_effect(node: Node) -> Effect:
    default = node.target in {F.dropout, F.alpha_dropout, F.feature_alpha_dropout}
    parameters = inspect.signature(node.target).parameters
    declared = parameters["training"].default if "training" in parameters else default
    return RANDOM if _bound(node, "training", default=declared) is not False else PURE


def _statistics_effect(flag: str, *, default: bool) -> Any:
    def rule(node: Node) -> Effect:
        if _bound(node, flag, default=default) is False or _bound(node, "running_mean", default=None) is None:
            return PURE
        return writes(1, 2, "running_mean", "running_var")

    return rule


def _random_effect(_: Node) -> Effect:
    return RANDOM


def _attention_effect(node: Node) -> Effect:
    probability = node.kwargs.get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0)
    return PURE if type(probability) in {int, float} and probability == 0 else RANDOM


_TRAINING_FUNCTIONS: dict[str, Any] = {
    **dict.fromkeys(
        ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu"),
        _dropout_effect,
    ),
    "batch_norm": _statistics_effect("training", default=False),
    "instance_norm": _statistics_effect("use_input_stats", default=True),
    **dict.fromkeys(("gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d"), _random_effect),
    "scaled_dot_product_attention": _attention_effect,
}


# -- methods and modules


def _method_rule(node: Node, _: Any) -> Effect | None:
    if node.op != "call_method":
        return None
    name = node.target
    stated = _written_by_convention(node, name)
    if stated is not None:
        return stated
    if name in _PURE_METHODS:
        return PURE
    if not hasattr(torch.Tensor, name):
        return None
    return _named_effect(name)


def module_effect(module: nn.Module) -> Effect:
    """Return what calling `module` does, itself and everything below it.

    Args:
        module: Any module. Only classes of ``torch.nn`` are known; others are unknown.
    """
    effect = PURE
    for part in module.modules():
        if has_hooks(part) or "forward" in vars(part):
            return UNKNOWN
        registered = effects.target_entry(type(part))
        if isinstance(registered, Effect):
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
    if not module.training:
        return effect
    if isinstance(module, NormBase) and module.track_running_stats:
        return effect.join(writes("state"))
    dropout = getattr(module, "dropout", 0)
    draws = isinstance(module, (DropoutBase, nn.RReLU)) or (isinstance(dropout, float) and dropout > 0)
    return effect.join(RANDOM) if draws else effect


def _module_rule(node: Node, module: Any) -> Effect | None:
    if node.op != "call_module" or not isinstance(module, nn.Module):
        return None
    return module_effect(module)


def _register(rules: Iterable[Any]) -> None:
    for rule in rules:
        effects.register_rule(rule)
    for name in _PURE_BUILTINS:
        effects.register_target(getattr(builtins, name), PURE)
    effects.register_target(print, OUTSIDE)
    effects.register_target(setattr, writes(0))
    effects.register_target(delattr, writes(0))
    effects.register_target(assert_function, OUTSIDE)


_register((_module_rule, _method_rule, _library_rule, _python_rule, _overload_rule))
