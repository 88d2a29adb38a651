"""What the schema of an operator says about its effects, and what it should say but does not."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from fxplug.ir import PURE, UNKNOWN, Effect, Node, writes
from fxplug.semantics.internals import OpOverload, OpOverloadPacket, schema_of

__all__ = [
    "declares_writes",
    "is_settled_name",
    "name_computes",
    "named_effect",
    "operator_rule",
    "statistics_effect",
    "tensor_forms",
    "written_arguments",
]

_TRUSTED = frozenset({"aten", "prims", "quantized", "onednn", "mkldnn"})
"""Namespaces whose schemas are looked after; for operators of others, a tensor must go in and come out."""

_STATISTICS = frozenset(
    {
        "batch_norm",
        "cudnn_batch_norm",
        "instance_norm",
        "miopen_batch_norm",
        "native_batch_norm",
        "_batch_norm_impl_index",
    }
)
"""Operators that update running statistics in training without saying so."""

_UNSAID: dict[str, Effect] = {
    "_copy_from": writes(1),
    "_copy_from_and_resize": writes(1),
    "batch_norm_gather_stats": writes(3, 4),
    "batch_norm_gather_stats_with_counts": writes(3, 4),
    "batch_norm_update_stats": writes(1, 2),
}
"""Operators whose schema leaves out what they write."""


def overload_effect(node: Node, overload: Any) -> Effect:
    """Return the effect of a call of one operator overload."""
    name = schema_of(overload).name.partition("::")[2]
    if name in _UNSAID:
        return _UNSAID[name]
    if name in _STATISTICS:
        parameters = tuple(argument.name for argument in schema_of(overload).arguments)
        return statistics_effect(node, parameters).join(_schema_effect(overload))
    effect = _schema_effect(overload)
    return replace(effect, random=False) if effect.random and _draws_nothing(node, overload) else effect


def _draws_nothing(node: Node, overload: Any) -> bool:
    """Return whether an operator that may drop elements drops none: in evaluation, or with probability 0."""
    for position, argument in enumerate(schema_of(overload).arguments):
        otherwise = node.args[position] if position < len(node.args) else argument.default_value
        given = node.kwargs.get(argument.name, otherwise)
        if argument.name in {"train", "training"} and given is False:
            return True
        if argument.name == "dropout_p" and type(given) in {int, float} and given == 0:
            return True
    return False


def named_effect(node: Node, name: str) -> Effect | None:
    """Return the effect of a call of the function or method that has the name of an operator.

    Args:
        node: The call; which overload it will reach is not known.
        name: Of the operator in ``aten`` or ``prims``.

    Returns:
        What any of its forms on tensors may do, without those that have ``out=``; None when there is no such
        operator.
    """
    if name in _UNSAID:
        return _UNSAID[name]
    overloads = tensor_forms(name)
    if not overloads:
        return None
    if name in _STATISTICS:
        return statistics_effect(node, tuple(argument.name for argument in schema_of(overloads[0]).arguments))
    return _join(name)


def is_settled_name(name: str) -> bool:
    """Return whether `named_effect` says the same of every call of the function or method of a name."""
    return name not in _STATISTICS


def name_computes(name: str) -> bool:
    """Return whether there are operators of a name that work on tensors, and none of them does more than compute."""
    is_said = name not in _STATISTICS and name not in _UNSAID
    return is_said and bool(tensor_forms(name)) and _join(name).is_pure


def statistics_effect(
    node: Node, parameters: tuple[str, ...], *, flag: str | None = None, default: bool = True
) -> Effect:
    """Return the effect of a normalisation that updates running statistics in training.

    Args:
        node: The call.
        parameters: Names of the callee's parameters in order.
        flag: The parameter that says whether it trains; by default it is looked for.
        default: What the flag is when it is not given.
    """

    def given(name: str, otherwise: Any) -> Any:
        if name in node.kwargs:
            return node.kwargs[name]
        if name in parameters and parameters.index(name) < len(node.args):
            return node.args[parameters.index(name)]
        return otherwise

    if flag is None:
        flag = next(
            (name for name in ("training", "train", "use_input_stats") if name in parameters), "training"
        )
    if given(flag, default) is False or given("running_mean", None) is None:
        return PURE
    positions = [parameters.index(name) for name in ("running_mean", "running_var") if name in parameters]
    return writes(*positions, "running_mean", "running_var")


@functools.lru_cache(maxsize=4096)
def written_arguments(overload: Any) -> tuple[int | str, ...]:
    """Return positions, and names of those that come by keyword, of the arguments that an operator may write."""
    if not isinstance(overload, OpOverload):
        return ()  # Operators that run functions; those of the functions are heard of where they are run.
    schema = schema_of(overload)
    name = schema.name.partition("::")[2]
    unsaid: frozenset[int | str] = _UNSAID[name].writes if name in _UNSAID else frozenset()
    found: list[int | str] = []
    for position, argument in enumerate(schema.arguments):
        is_said = argument.alias_info is not None and argument.alias_info.is_write
        is_statistic = name in _STATISTICS and argument.name in {"running_mean", "running_var"}
        if is_said or is_statistic or position in unsaid:
            found.append(argument.name if argument.kwarg_only else position)
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def declares_writes(overload: Any) -> bool:
    """Return whether the schema of an operator says that it writes; others may, according to their arguments."""
    return isinstance(overload, OpOverload) and bool(_schema_effect(overload).writes)


@functools.cache
def _schema_effect(overload: Any) -> Effect:
    schema = schema_of(overload)
    written: list[int | str] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name if argument.kwarg_only else position)
    effect = Effect(
        writes=frozenset(written),
        random=torch.Tag.nondeterministic_seeded in overload.tags,
        # What returns nothing is called for something else: an assertion, a setting, a gradient.
        outside=not schema.returns and not written,
    )
    library = schema.name.partition("::")[0]
    if library not in _TRUSTED and not (_has_tensor(schema.arguments) and _has_tensor(schema.returns)):
        return effect.join(UNKNOWN)
    return effect


def _has_tensor(arguments: Any) -> bool:
    return any("Tensor" in str(argument.type) for argument in arguments)


@functools.cache
def tensor_forms(name: str) -> tuple[Any, ...]:
    """Return the overloads that work on tensors, leaving out those of TorchScript's lists, strings and dicts."""
    forms: list[Any] = []
    for library in (torch.ops.aten, torch.ops.prims):
        packet = getattr(library, name, None)
        if not isinstance(packet, OpOverloadPacket):
            continue
        for overload_name in packet.overloads():
            overload = getattr(packet, overload_name)
            schema = schema_of(overload)
            if any(argument.is_out for argument in schema.arguments):
                continue
            if _has_tensor(schema.arguments) or _has_tensor(schema.returns):
                forms.append(overload)
    # A form that returns nothing beside forms that do sorts or changes a list.
    return tuple([form for form in forms if schema_of(form).returns] or forms)


@functools.cache
def _join(name: str) -> Effect:
    effects = [_schema_effect(overload) for overload in tensor_forms(name)]
    return functools.reduce(Effect.join, effects, PURE)


def packet_effect(node: Node, packet: Any) -> Effect:
    """Return the effect of a call of an operator whose overload is chosen when it runs."""
    effects = [overload_effect(node, getattr(packet, name)) for name in packet.overloads()]
    return functools.reduce(Effect.join, effects, PURE)


def operator_rule(node: Node, _: Any) -> Effect | None:
    """Answer for operators that are called as such."""
    target = node.target
    if isinstance(target, OpOverload):
        return overload_effect(node, target)
    if isinstance(target, OpOverloadPacket):
        return packet_effect(node, target)
    return None
