"""What torch calls do besides computing a value.

Sources of the answers, in this order: operator schemas, ``out=`` and ``inplace=`` arguments, the trailing
underscore of in-place names, the training flag and hooks of modules, and closed lists of what is known only
to compute. A call that none of them speaks of is unknown, and is kept.
"""

from __future__ import annotations

import builtins
import collections
import functools
import inspect
import math
import operator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by

from fxplug.ir import OUTSIDE, PURE, RANDOM, UNKNOWN, Effect, Node, effects, writes
from fxplug.semantics.constructors import object_with, only_holds
from fxplug.semantics.internals import OpOverload, OpOverloadPacket, assert_function
from fxplug.semantics.libraries import what_does
from fxplug.semantics.modules import module_rule
from fxplug.semantics.schemas import (
    is_settled_name,
    name_computes,
    named_effect,
    operator_rule,
    statistics_effect,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["has_side_effect", "method_computes", "operator_name"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PURE_BUILTINS = _words(
    "abs all any bool complex dict divmod enumerate float frozenset getattr hasattr hash int isinstance "
    "len list max min pow range reversed round set slice sorted str sum tuple type zip"
)

# Tensor methods that have no operator of the same name, or one that says too little.
_PURE_METHODS = _words(
    "bfloat16 bool byte char cpu cuda data_ptr dim double element_size expand_as float get_device half "
    "int is_contiguous is_floating_point item long ndimension nelement new_tensor numel short size "
    "storage_offset stride to tolist type type_as view_as reshape_as"
)

# Functions written in Python, over several operators; closed lists, since a name proves nothing.
_PURE_FUNCTIONALS = _words(
    "adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices "
    "affine_grid cross_entropy fold gaussian_nll_loss grid_sample interpolate local_response_norm "
    "logsigmoid lp_pool1d lp_pool2d lp_pool3d max_unpool1d multilabel_soft_margin_loss normalize softmin "
    "softsign tanhshrink triplet_margin_with_distance_loss upsample upsample_bilinear upsample_nearest"
)
_PURE_FUNCTIONS = _words("broadcast_shapes is_storage is_tensor lu unique unravel_index")

_LIBRARIES: tuple[tuple[Any, str], ...] = (
    (torch, ""),
    (F, ""),
    (torch.Tensor, ""),
    (torch.linalg, "linalg_"),
    (torch.fft, "fft_"),
    (torch.special, "special_"),
)
"""Where torch keeps its functions, and what the names of their operators start with."""


def has_side_effect(function: Any) -> Any:
    """Declare that calls of `function` may never be removed; returns the function, so it serves as a decorator."""
    effects.register_target(function, OUTSIDE)
    return function


# -- functions


# Only torch's own functions are remembered: others may close over weights, which must not live on here.
_KNOWN_NAMES: dict[Any, str] = {}
_PARAMETERS: dict[Any, tuple[str, ...]] = {}


def _parameters(function: Any) -> tuple[str, ...]:
    if _says_itself(function):
        code = function.__code__
        return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = _PARAMETERS.get(function)
    if known is None:
        try:
            known = tuple(inspect.signature(function).parameters)
        except (TypeError, ValueError):  # Builtins without a text signature.
            known = ()
        if operator_name(function) is not None:
            _PARAMETERS[function] = known
    return known


def _says_itself(function: Any) -> bool:
    """Return whether the parameters of a function are those of its code: to make a signature of it takes long."""
    is_alone = type(function) is FunctionType and not vars(function)
    return is_alone and not function.__code__.co_flags & _STARS


_STARS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def _declared(function: Any, name: str) -> Any:
    """Return the default of a parameter; what `inspect` has for none where it has none."""
    if not _says_itself(function):
        return inspect.signature(function).parameters[name].default
    if name in (named := function.__kwdefaults__ or {}):
        return named[name]
    code, defaults = function.__code__, function.__defaults__ or ()
    place = code.co_varnames[: code.co_argcount].index(name) - code.co_argcount
    return defaults[place] if -place <= len(defaults) else inspect.Parameter.empty


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


def _python_rule(node: Node, _: Any) -> Effect | None:
    """Answer for the operator and math modules, where names alone decide."""
    name = getattr(node.target, "__name__", "")
    if getattr(operator, name, None) is node.target:
        if name in {"call", "attrgetter", "itemgetter", "methodcaller"}:
            return UNKNOWN  # What they run is given as an argument.
        in_place = (
            name.startswith("i") and name[1:].rstrip("_") in _OPERATOR_NAMES and name not in {"is_", "index"}
        )
        return writes(0) if in_place or name in {"setitem", "delitem"} else PURE
    return PURE if getattr(math, name, None) is node.target else None


_OPERATOR_NAMES = _words("add and concat floordiv lshift matmul mod mul or pow rshift sub truediv xor")


def operator_name(function: Any) -> str | None:
    """Return the name of the operator that a function of torch stands for; None for functions of others."""
    known = _KNOWN_NAMES.get(function)
    if known is not None:
        return known
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        return None
    for holder, prefix in _LIBRARIES:
        # The very object must be found there: a name can be claimed by anybody.
        if getattr(holder, name.removeprefix(prefix), None) is function:
            _KNOWN_NAMES[function] = name
            return name
    return None


def _library_rule(node: Node, _: Any) -> Effect | None:
    """Answer for torch's own functions."""
    if getattr(type(node.target), "__hash__", None) is None:
        return None
    name = operator_name(node.target)
    if name is None:
        return None
    written = _written_by(node, name)
    special = _SPECIAL_FUNCTIONS.get(node.target)
    effect = named_effect(node, name) if special is None else special(node)
    if written is not None:
        return written.join(RANDOM) if effect is not None and effect.random else written
    if effect is not None:
        return effect
    functional = getattr(F, name, None) is node.target
    return PURE if name in (_PURE_FUNCTIONALS if functional else _PURE_FUNCTIONS) else None


def _written_by(node: Node, name: str) -> Effect | None:
    """Return what a function of torch writes to because of how it is called, or named; None for nothing."""
    if _bound(node, "out", default=None) is not None:
        return writes("out", *_positions(node, "out"))
    is_in_place = name.endswith("_") and not name.endswith("__")
    return writes(0) if is_in_place or _bound(node, "inplace", default=False) is not False else None


def _known_rule(node: Node, _: Any) -> Effect | None:
    """Answer for functions of other libraries."""
    doing = what_does(node.target)
    if doing is None:
        return None
    if doing == "fills lists":
        # Lists that stand in the graph are new in each call; what a node returns others may read.
        return writes(*range(len(node.args)), *node.kwargs) if any(map(_is_node, _given(node))) else PURE
    return PURE if doing == "computes" else _random_in_training(node)


def _given(node: Node) -> tuple[Any, ...]:
    return (*node.args, *node.kwargs.values())


def _is_node(value: Any) -> bool:
    return isinstance(value, Node)


def _constructor_rule(node: Node, _: Any) -> Effect | None:
    """Answer for classes that keep what they are given."""
    return PURE if only_holds(node.target) or node.target is object_with else None


def _positions(node: Node, name: str) -> tuple[int, ...]:
    parameters = _parameters(node.target)
    return (parameters.index(name),) if name in parameters and name not in node.kwargs else ()


def _random_in_training(node: Node) -> Effect:
    declared = _declared(node.target, "training")
    return RANDOM if _bound(node, "training", default=declared) is not False else PURE


def _running_statistics(flag: str, *, default: bool) -> Callable[[Node], Effect]:
    return lambda node: statistics_effect(node, _parameters(node.target), flag=flag, default=default)


def _attention(node: Node) -> Effect:
    position = (
        4  # scaled_dot_product_attention(query, key, value, attn_mask, dropout_p); it has no text signature.
    )
    given = node.args[position] if len(node.args) > position else 0.0
    probability = node.kwargs.get("dropout_p", given)
    return PURE if type(probability) in {int, float} and probability == 0 else RANDOM


def _multi_head_attention(node: Node) -> Effect:
    probability = _bound(node, "dropout_p", default=1.0)
    off = type(probability) in {int, float} and probability == 0
    return PURE if off or _bound(node, "training", default=True) is False else RANDOM


def _renormalised_weight(node: Node) -> Effect:
    return PURE if _bound(node, "max_norm", default=None) is None else writes(1, "weight")


def _always_random(_: Node) -> Effect:
    return RANDOM


_SPECIAL_FUNCTIONS: dict[Any, Callable[[Node], Effect]] = {
    **dict.fromkeys(
        (
            F.dropout,
            F.dropout1d,
            F.dropout2d,
            F.dropout3d,
            F.alpha_dropout,
            F.feature_alpha_dropout,
            F.rrelu,
        ),
        _random_in_training,
    ),
    **dict.fromkeys(
        (
            F.gumbel_softmax,
            F.fractional_max_pool2d,
            F.fractional_max_pool3d,
            F.fractional_max_pool2d_with_indices,
            F.fractional_max_pool3d_with_indices,
        ),
        _always_random,
    ),
    F.batch_norm: _running_statistics("training", default=False),
    F.instance_norm: _running_statistics("use_input_stats", default=True),
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head_attention,
    F.embedding: _renormalised_weight,
    F.embedding_bag: _renormalised_weight,
}


# -- methods and modules


def _method_rule(node: Node, _: Any) -> Effect | None:
    name: str = node.target
    if name in _PURE_METHODS and node.kwargs.get("out") is None:
        return PURE
    effect = named_effect(node, name) if hasattr(torch.Tensor, name) else None
    if node.kwargs.get("out") is not None:
        written = writes("out")
    elif name.endswith("_") and not name.endswith("__"):
        written = writes(0)
    else:
        return effect
    return written.join(RANDOM) if effect is not None and effect.random else written


@functools.cache
def method_computes(name: str) -> bool:
    """Return whether a method of tensors returns a value that a graph can hold, and does nothing else whatever it gets.

    Those that give numbers, addresses or arrays do not, nor those that draw random numbers or write.

    Args:
        name: Of the method.
    """
    if name in _PURE_METHODS:
        return name not in _TOLD_METHODS
    is_public = not (name.startswith("_") or name.endswith("_")) and hasattr(torch.Tensor, name)
    return is_public and name_computes(name)


_TOLD_METHODS = _words("data_ptr item tolist")


# -- which answers hang on no values of arguments


def _is_said_by_name(node: Node) -> bool:
    """Return whether a method of tensors does the same whatever it is called with."""
    return "out" not in node.kwargs and is_settled_name(node.target)


def _is_said_by_function(node: Node) -> bool:
    """Return whether a function of torch does the same whatever it is called with; others are not remembered."""
    target: Any = node.target
    name = operator_name(target)
    if name is None or target in _SPECIAL_FUNCTIONS or not is_settled_name(name):
        return False
    return _SWITCHES.isdisjoint(node.kwargs) and _SWITCHES.isdisjoint(_parameters(target))


_SWITCHES = frozenset({"out", "inplace"})
"""Arguments that decide what a function of torch writes to."""


def _is_no_overload(node: Node) -> bool:
    return not isinstance(node.target, (OpOverload, OpOverloadPacket))


def _always(_: Node) -> bool:
    return True


def _register() -> None:
    effects.register_rule(module_rule, "call_module")
    effects.register_rule(_method_rule, "call_method", settles=_is_said_by_name)
    for rule, settles in (
        (_constructor_rule, None),
        (_known_rule, None),
        (_library_rule, _is_said_by_function),
        (_python_rule, _always),
        (operator_rule, _is_no_overload),
    ):
        effects.register_rule(rule, "call_function", settles=settles)
    for name in _PURE_BUILTINS:
        effects.register_target(getattr(builtins, name), PURE)
    effects.register_target(collections.OrderedDict, PURE)
    effects.register_target(print, OUTSIDE)
    effects.register_target(setattr, writes(0))
    effects.register_target(delattr, writes(0))
    effects.register_target(assert_function, OUTSIDE)


_register()
