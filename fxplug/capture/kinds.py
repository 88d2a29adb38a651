"""Of what class the values of a graph are, as far as that is certain without values.

A kind is worked out when somebody asks, from the node and those before it; a trace in which nobody asks pays nothing.
"""

from __future__ import annotations

import operator
import typing
import weakref
from collections.abc import MutableMapping
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.ir import Node
from fxplug.semantics.internals import buffers_of, modules_of, parameters_of
from fxplug.semantics.kinds import (
    TENSOR,
    Kind,
    attribute_kind,
    function_kind,
    kind_of_value,
    method_kind,
    module_kind,
    part_kind,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "declare",
    "fails_on_none",
    "held_value",
    "kind_of_node",
    "may_be_none",
    "may_hold_none",
    "module_at",
]

_Known = MutableMapping[Node, Kind | None]
_known: _Known = weakref.WeakKeyDictionary()
_declared: weakref.WeakKeyDictionary[Node, Any] = weakref.WeakKeyDictionary()
"""Placeholder -> the annotation of its parameter, where that is text."""

_PLAIN = (int, float, bool, str, bytes, complex)
_CLASSES = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_CONTAINERS = (list, tuple, dict, set)


def declare(node: Node, annotation: Any) -> None:
    """Take note of the annotation of a parameter whose placeholder does not say it."""
    _declared[node] = annotation


def kind_of_node(node: Node, root: nn.Module | None, known: _Known | None = None) -> Kind | None:
    """Return the kind of the value of a node, None where it is not certain.

    Args:
        node: Of a graph that is being recorded, or of any one if `known` is given.
        root: What the paths of the graph refer to.
        known: Holds what was found out. A graph that is edited afterwards needs a new one.
    """
    known = _known if known is None else known
    waiting = [node]
    while waiting:
        current = waiting[-1]
        if current in known:
            waiting.pop()
        elif missing := [entry for entry in _asked(current, root) if entry not in known]:
            waiting.extend(missing)
        else:
            known[current] = _FOREIGN if _is_of_numpy(current, known) else _kind(current, root, known)
    found = known[node]
    return None if found is _FOREIGN else found


def _asked(node: Node, root: nn.Module | None) -> Sequence[Node]:
    """Return the nodes on whose kinds that of another one hangs: layers return the same kind for all that they get."""
    op, inputs = node.op, node.all_input_nodes
    if op == "call_function":
        return inputs
    if op == "call_module" and type(module_at(root, str(node.target))) is not nn.Identity:
        return ()
    return inputs[:1]


_FOREIGN = Kind(object)
"""The kind of what is computed from an array of NumPy: no tensor for sure, though it has methods of the same names."""
_PASSING = frozenset({"_operator", "builtins"})


def _is_of_numpy(node: Node, known: _Known) -> bool:
    """Return whether a value is an array of NumPy, or is taken or computed from one without functions of torch."""
    kinds = [known.get(entry) for entry in node.all_input_nodes]
    if node.op == "call_method":
        return node.target == "numpy" or (bool(kinds) and kinds[0] is _FOREIGN)
    if node.op != "call_function" or _FOREIGN not in kinds or TENSOR in kinds:
        return False
    return getattr(node.target, "__module__", None) in _PASSING


def _kind(node: Node, root: nn.Module | None, known: _Known) -> Kind | None:
    target, args, kwargs = node.target, node.args, node.kwargs
    if node.op == "placeholder":
        return _kind_of_input(node)
    if node.op == "get_attr":
        value = held_value(node, root)
        return None if value is None else kind_of_value(value)
    if node.op == "call_module":
        module = module_at(root, str(target))
        if type(module) is nn.Identity and args:
            return _of(args[0], known)
        return module_kind(module)
    if node.op == "call_method" and args:
        return method_kind(_of(args[0], known), str(target), args[1:], kwargs)
    return _kind_of_call(target, args, kwargs, known) if node.op == "call_function" else None


def _kind_of_call(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], known: _Known) -> Kind | None:
    if target is getattr and args and isinstance(args[1], str):
        return attribute_kind(_of(args[0], known), args[1])
    if target is operator.getitem and len(args) == 2:
        key = args[1]
        if isinstance(key, Node) and known.get(key) != Kind(int):
            whole = _of(args[0], known)
            return whole if whole == TENSOR else None
        return part_kind(_of(args[0], known), key)
    return function_kind(target, [_of(arg, known) for arg in args], kwargs)


def _of(value: Any, known: _Known) -> Kind | None:
    if not isinstance(value, Node):
        return kind_of_value(value)
    found = known.get(value)
    return None if found is _FOREIGN else found


def _kind_of_input(node: Node) -> Kind | None:
    """Return what the annotation of a parameter says, if its default does not say otherwise."""
    if node.args and node.args[0] is None:
        return None
    target = str(node.target)
    annotation = node.type if node.type is not None else _declared.get(node)
    if target.startswith("*"):
        return Kind(dict if target.startswith("**") else tuple, _annotated(annotation))
    kind = _annotated(annotation)
    is_contradicted = kind is not None and node.args and not isinstance(node.args[0], (kind.cls, Node))
    return None if is_contradicted else kind


def _annotated(annotation: Any) -> Kind | None:
    if annotation is Parameter.empty or annotation is None:
        return None
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        is_known = annotation in _PLAIN or annotation in _CLASSES or annotation in _CONTAINERS
        if is_known or issubclass(annotation, torch.Tensor):
            return Kind(annotation)
        return Kind(torch.Size, Kind(int)) if annotation is torch.Size else None
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return _annotated(arguments[0])
    if origin is list or (origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis):
        return Kind(origin, _annotated(arguments[0]))
    return Kind(origin) if origin in {tuple, dict, set} else None


def held_value(node: Node, root: nn.Module | None) -> Any:
    """Return what a node that reads the root reads, None where nothing is there."""
    path = str(node.target)
    lifted: Mapping[str, Any] = getattr(node.graph, "lifted", {})
    return lifted[path] if path in lifted else module_at(root, path)


def module_at(root: nn.Module | None, path: str) -> Any:
    """Return what is at a path; by the tables of modules, since reading an attribute is recorded."""
    holder: Any = root
    for name in path.split("."):
        if not isinstance(holder, nn.Module):
            return None
        tables = (vars(holder), parameters_of(holder), buffers_of(holder), modules_of(holder))
        holder = next((table[name] for table in tables if name in table), None)
    return holder


def may_be_none(node: Node, root: nn.Module | None) -> bool:
    """Return whether a value may be None, as one that a caller leaves out."""
    if kind_of_node(node, root) is not None:
        return False
    if node.op == "call_method":
        return node.target in _GIVING_NONE
    if node.op == "call_module":
        return not _is_torchs(type(module_at(root, str(node.target))))
    if node.op != "call_function":
        return node.op == "placeholder"
    if node.target is getattr or node.target is operator.getitem:
        whole = node.all_input_nodes[0]
        return may_hold_none(whole, root) or may_be_none(whole, root)
    return node.has_note("is_wrapped") or not _is_torchs(node.target)


def may_hold_none(node: Node, root: nn.Module | None) -> bool:
    """Return whether a value of torch that is a tuple for sure may have None in it."""
    if node.op == "call_module":
        is_attention = isinstance(module_at(root, str(node.target)), nn.MultiheadAttention)
        given = node.args[_NEED_WEIGHTS] if len(node.args) > _NEED_WEIGHTS else True
        return is_attention and node.kwargs.get("need_weights", given) is not True
    if node.target is not torch.autograd.grad:
        return False
    return bool(node.kwargs.get("allow_unused")) and not node.kwargs.get("materialize_grads")


_NEED_WEIGHTS = 4
"""Position of the argument that says whether an attention returns its weights, or None in their place."""
_GIVING_NONE = frozenset({"get", "pop", "setdefault"})
"""Methods of dicts that give None for what is not there."""
_SOUND = frozenset({"torch", "operator", "_operator", "math", "builtins"})
"""Modules whose functions do not give None where they are called with a traced value."""


def _is_torchs(target: Any) -> bool:
    """Return whether a function or class is of torch, or of Python and known alike."""
    return str(getattr(target, "__module__", "")).partition(".")[0] in _SOUND


def fails_on_none(node: Node) -> bool:
    """Return whether something is done with a value that Python or torch refuses to do with None."""
    return any(_refuses_none(user, node) for user in node.users)


_ACCEPT_NONE = frozenset(
    (operator.eq, operator.ne, operator.is_, operator.is_not, operator.not_, operator.truth, isinstance)
)


_TAKE_NONE = frozenset((operator.getitem, operator.setitem, operator.contains))
"""Operators whose second operand may be None."""


def _refuses_none(user: Node, node: Node) -> bool:
    target, is_first = user.target, bool(user.args) and user.args[0] is node
    if user.op == "call_function" and _is_torchs(target) and not user.has_note("is_wrapped"):
        if target is getattr:
            return is_first and not str(user.args[1]).startswith("__")
        is_operator = "operator" in str(getattr(target, "__module__", "")) and target not in _TAKE_NONE
        return target not in _ACCEPT_NONE and (is_first or is_operator)
    if user.op == "call_method":
        return is_first and not str(target).startswith("__")
    return user.op == "call_module" and is_first
