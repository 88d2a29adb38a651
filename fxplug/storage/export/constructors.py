"""Modules of torch.nn as calls of their constructors, which make the same module again."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.semantics.internals import buffers_of, modules_of, parameters_of, persists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Construction", "construct", "own_attributes"]

_STATE = frozenset(vars(nn.Module())) - {"training"}
_UNSAID = frozenset({"device", "_weight", "_freeze"})
_SCALARS = (bool, int, float, str, type(None), tuple, list, torch.dtype)


class Construction:
    """A call that makes a module.

    Args:
        kind: The class.
        args: Of the call.
        kwargs: Of the call; only what is not the default.
        made: What the call gives, on the meta device.
    """

    def __init__(
        self, kind: type[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any], made: nn.Module
    ) -> None:
        self.kind = kind
        self.args = args
        self.kwargs = kwargs
        self.made = made

    def extra(self, module: nn.Module) -> dict[str, Any]:
        """Return attributes of the module itself that the call does not give it."""
        theirs = own_attributes(self.made)
        return {
            name: value
            for name, value in own_attributes(module).items()
            if name not in theirs or not _same(theirs[name], value)
        }


def own_attributes(module: nn.Module) -> dict[str, Any]:
    """Return what is set on a module besides tensors in tables, submodules, hooks and the training flag."""
    return {name: value for name, value in vars(module).items() if name not in _STATE and name != "training"}


def construct(module: nn.Module) -> Construction | None:
    """Return a call that makes a module of torch.nn with everything below it, None when there is none.

    What the call gives was compared with the module: classes, attributes, and which tensors there are in which sizes.
    """
    kind = type(module)
    if (
        not str(kind.__module__).startswith("torch.nn.modules.")
        or getattr(nn, kind.__name__, None) is not kind
    ):
        return None
    for simplify in (True, False):
        found = _arguments(module, simplify=simplify)
        if found is None:
            return None
        args, kwargs = found
        try:
            with torch.device("meta"):
                made = kind(*args, **kwargs)
        except Exception:  # Whatever is wrong with the guess, there is another way.
            continue
        if _agree(made, module, outermost=True):
            return Construction(kind, args, kwargs, made)
    return None


def _arguments(module: nn.Module, *, simplify: bool) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    special = next((rule for known, rule in _SPECIAL.items() if isinstance(module, known)), None)
    known = special(module) if special is not None else {}
    required: list[tuple[str, Any]] = []
    optional: dict[str, Any] = {}
    for parameter in _parameters(type(module), known):
        value = known.get(parameter.name, _attribute(module, parameter))
        if value is _UNKNOWN:
            if parameter.default is parameter.empty:
                return None
            continue
        value = _shortest(value) if simplify else value
        if parameter.default is parameter.empty:
            required.append((parameter.name, value))
        elif not _same(parameter.default, value):
            optional[parameter.name] = value
    # The first two say what it is about; more of them would be a riddle.
    named = dict(required[2:])
    return tuple(value for _, value in required[:2]), {**named, **optional}


_UNKNOWN: Any = object()


def _parameters(kind: type, known: dict[str, Any]) -> Iterator[inspect.Parameter]:
    yielded: set[str] = set()
    for entry in inspect.signature(kind.__init__).parameters.values():
        is_named = entry.kind in {entry.POSITIONAL_OR_KEYWORD, entry.KEYWORD_ONLY}
        if is_named and entry.name not in _UNSAID | {"self"}:
            yielded.add(entry.name)
            yield entry
    for name in known:  # Some take their arguments by stars, and say in prose which.
        if name not in yielded:
            default = _DEFAULTS.get(name, inspect.Parameter.empty)
            yield inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


_DEFAULTS: dict[str, Any] = {
    "num_layers": 1,
    "bias": True,
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
    "proj_size": 0,
    "nonlinearity": "tanh",
}
"""Of recurrent modules."""


def _attribute(module: nn.Module, parameter: inspect.Parameter) -> Any:
    name = parameter.name
    if name == "dtype":
        return _dtype(module)
    value = getattr(module, name, _UNKNOWN)
    if isinstance(value, torch.Tensor):
        return True if isinstance(parameter.default, bool) else _UNKNOWN
    if value is None and isinstance(parameter.default, bool):
        has_none = name == "bias" and not getattr(
            module, "affine", getattr(module, "elementwise_affine", True)
        )
        return _UNKNOWN if has_none else False
    return value


def _dtype(module: nn.Module) -> Any:
    found = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    return found.pop() if len(found) == 1 and found != {torch.float32} else _UNKNOWN


def _shortest(value: Any) -> Any:
    """Return one number for a tuple that holds it alone."""
    if type(value) is tuple and value and all(type(part) is int and part == value[0] for part in value):
        return value[0]
    return value


def _recurrent(module: Any) -> dict[str, Any]:
    names = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"]
    if isinstance(module, nn.LSTM):
        names.append("proj_size")
    if isinstance(module, nn.RNN):
        names.append("nonlinearity")
    return {name: getattr(module, name) for name in names}


def _attention(module: Any) -> dict[str, Any]:
    same = module.kdim == module.embed_dim and module.vdim == module.embed_dim
    return {
        "bias": module.in_proj_bias is not None,
        "add_bias_kv": module.bias_k is not None,
        **({"kdim": None, "vdim": None} if same else {}),
    }


def _transformer_layer(module: Any) -> dict[str, Any]:
    names = {functional: name for name, functional in _ACTIVATIONS.items()}
    return {
        "d_model": module.self_attn.embed_dim,
        "nhead": module.self_attn.num_heads,
        "dim_feedforward": module.linear1.out_features,
        "dropout": module.dropout.p,
        "activation": names.get(module.activation, module.activation),
        "layer_norm_eps": module.norm1.eps,
        "batch_first": module.self_attn.batch_first,
        "bias": module.linear1.bias is not None,
    }


_ACTIVATIONS = {"relu": nn.functional.relu, "gelu": nn.functional.gelu}
_SPECIAL: dict[type[nn.Module], Callable[[Any], dict[str, Any]]] = {
    nn.RNNBase: _recurrent,
    nn.MultiheadAttention: _attention,
    nn.TransformerEncoderLayer: _transformer_layer,
    nn.TransformerDecoderLayer: _transformer_layer,
}


# -- comparison


def _agree(made: nn.Module, module: nn.Module, *, outermost: bool = False) -> bool:
    if type(made) is not type(module) or not _agree_in_tensors(made, module):
        return False
    ours, theirs = own_attributes(made), own_attributes(module)
    if ours.keys() - theirs.keys():
        return False
    different = [name for name, value in theirs.items() if name not in ours or not _same(ours[name], value)]
    if different and not (outermost and all(name not in ours for name in different)):
        return False
    children, others = modules_of(made), modules_of(module)
    if list(children) != list(others):
        return False
    pairs = [(children[name], others[name]) for name in children]
    return all(one is other if one is None or other is None else _agree(one, other) for one, other in pairs)


def _agree_in_tensors(made: nn.Module, module: nn.Module) -> bool:
    if any(persists(made, name) is not persists(module, name) for name in buffers_of(module)):
        return False
    for table in (parameters_of, buffers_of):
        ours, theirs = table(made), table(module)
        if list(ours) != list(theirs):
            return False
        if any(_shape(ours[name]) != _shape(theirs[name]) for name in ours):
            return False
    return True


def _shape(tensor: Any) -> Any:
    return None if tensor is None else tuple(tensor.shape)


def _same(one: Any, other: Any) -> bool:
    """Return whether two attributes mean the same: tensors in lists are those of the tables."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape
    if isinstance(one, weakref.ref) and isinstance(other, weakref.ref):
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (types.FunctionType, types.BuiltinFunctionType, functools.partial)):
        return one is other
    return isinstance(one, _SCALARS) and one == other
