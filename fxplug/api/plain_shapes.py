"""What is known of the values of a plain program without a run: the sizes of all, and what is in those of integers.

A run of what was traced of a plain program tells which error the program raises, and whether what was told without a
run is so. Where the sizes of all values follow from those of inputs and weights, by functions and layers of which it is
known when they raise an error, both are known, and nobody has to run it (ADR 0026).
"""

# Each node of a network is looked at here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
import operator
from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from fxplug.api.plain_run import PASSING
from fxplug.capture.arguments import PLAIN_TYPES
from fxplug.execute.paths import fetch_path, module_at, weight_at
from fxplug.ir import Node, map_arg
from fxplug.semantics.internals import (
    are_calls_heard,
    are_saved_tensors_heard,
    is_differentiating,
    is_under_modes,
)
from fxplug.semantics.libraries import what_does
from fxplug.semantics.shapes.abstract import ABSTRACT, AbstractFlags, AbstractTensor, UnknownShapeError
from fxplug.semantics.shapes.composites import shape_of_call
from fxplug.semantics.shapes.functions import FUNCTIONS, METHODS, METHODS_OF_FLAGS, are_intact
from fxplug.semantics.shapes.integers import CREATING, compute, holds_tensors, known_value
from fxplug.semantics.shapes.layers import LAYERS
from fxplug.semantics.shapes.operands import new_tensor
from fxplug.semantics.shapes.reading import converted, read_attribute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from fxplug.api.plain_run import Checks
    from fxplug.capture.layer_records import LayerCall
    from fxplug.ir import RegionEntry
    from fxplug.semantics.shapes.abstract import Memory

__all__ = ["Shapes", "shapes_of"]

_DTYPES = frozenset({torch.float32, torch.float64})
_MOST_ELEMENTS = 2**28
"""How many elements a value may have: for more there may be no memory."""


def shapes_of(
    root: nn.Module, args: Sequence[Any], before: Node, calls: Sequence[LayerCall]
) -> Shapes | None:
    """Return what tells what is known of values; None where nothing may be told.

    Args:
        root: What the paths in the nodes refer to.
        args: One value for each placeholder.
        before: The node in front of the placeholders.
        calls: The calls of layers, in order; the trace adds others.
    """
    # These let functions return or raise something else than they usually do.
    if are_calls_heard() or is_under_modes() or torch.is_autocast_enabled("cpu"):
        return None
    if torch.are_deterministic_algorithms_enabled() or is_differentiating() or are_saved_tensors_heard():
        return None
    if not are_intact():
        return None
    tensors = (one for one in chain(args, root.parameters()) if isinstance(one, torch.Tensor))
    dtype = next((one.dtype for one in tensors if one.is_floating_point()), None)
    return Shapes(root, args, before, calls, dtype) if dtype in _DTYPES else None


class Shapes:
    """Goes through a program that is being traced, with what is known of values in the place of values.

    Args:
        root: What the paths in the nodes refer to.
        args: One value for each placeholder.
        before: The node in front of the placeholders.
        calls: The calls of layers, in order; the trace adds others.
        dtype: What all tensors have, but for those of integers.
    """

    def __init__(
        self,
        root: nn.Module,
        args: Sequence[Any],
        before: Node,
        calls: Sequence[LayerCall],
        dtype: torch.dtype,
    ) -> None:
        self._root = root
        self._inputs = iter(args)
        self._calls = calls
        self.dtype = dtype
        self._values: dict[Node, Any] = {}
        """What is known of each value, but for the inside of layers: an abstract tensor, or all of it."""
        self._last = before
        self._count = 0
        """How many of the calls were gone through."""
        self._is_over = False
        """Whether there was anything of which nothing is known."""

    def of(self, node: Node) -> Any:
        """Return what is known of a value, behind which there may be others; None if that is nothing."""
        return self._values[node] if self._go_to(node) else None

    def are_as_told(self, output: Node, checks: Checks) -> bool:
        """Return whether a program raises no error, and all checks of a run would find what was told, as far as known.

        Args:
            output: The last node of the program.
            checks: What a run would look at.
        """
        if not self._go_to(output):
            return False
        values = self._values
        try:
            return (
                all(_is_same(values[node], value) for node, value in checks.told.items())
                and all(_is_plain_tensor(values[node]) for node in checks.tensors)
                and all(len(_sizes(values[node])) == rank for node, rank in checks.ranks.items())
                and all(self._wrote_to_own(node) for node in checks.writing)
                and not (checks.refuses_none and self._has_none)
            )
        except (KeyError, UnknownShapeError):  # What is inside of a layer is not known.
            return False

    _has_integers = False
    """Whether there are tensors of integers or flags, which are computed."""
    _enters = False
    """Whether anything stands in a context that says for what gradients are computed: from there on, torch may refuse
    to write to what is a view of another value, or has one, and many functions return views of what they compute."""
    _has_none = False
    """Whether any part of a value is None."""

    def _wrote_to_own(self, node: Node) -> bool:
        """Return whether a node wrote to its first argument, to no weight and to no input then."""
        # Inside of a layer it has written to what that was given. To a number nobody writes.
        value = self._values.get(node)
        is_other = node not in self._values or value.__class__ in _NUMBERS
        return is_other or value is self._values[node.all_input_nodes[0]]

    def _go_to(self, node: Node) -> bool:
        """Go through the program up to a node; return whether something is known of all up to it."""
        if node not in self._values and not self._is_over:
            try:
                self._go_on(node)
            except Exception:  # A shape function that is given what it does not know may raise anything.
                self._is_over = True
        return node in self._values

    def _go_on(self, node: Node) -> None:
        values, calls, dtype = self._values, self._calls, self.dtype
        at = self._last._next
        begin = calls[self._count][2] if self._count < len(calls) else None
        while node not in values:
            if at is begin:
                layer, given, first, at, result = calls[self._count]
                apply = LAYERS.get(layer.__class__)
                value: Any
                if apply is None:
                    value = shape_of_call(layer, (values[given],), {}, dtype)
                else:
                    value = apply(layer, values[given], dtype)
                if first._region:
                    self._note_region(first)
                if self._enters and value is values[given] and type(layer) not in PASSING:
                    raise UnknownShapeError
                self._count += 1
                begin = calls[self._count][2] if self._count < len(calls) else None
            else:
                result = at
                value = self._value(at)
                if at._region:
                    self._note_region(at)
                if self._enters and at._target not in _PASSING and self._is_given(at, value):
                    raise UnknownShapeError
            if value.__class__ in ABSTRACT and math.prod(value.sizes) > _MOST_ELEMENTS:
                raise UnknownShapeError
            values[result] = value
            self._last, at = at, at._next

    def _note_region(self, node: Node) -> None:
        """Take note of the contexts around a node.

        Raises:
            UnknownShapeError: They change more than for what gradients are computed.
        """
        if not all(map(_computes_alike, node._region)):
            raise UnknownShapeError
        self._enters = self._enters or any(entry.context in _OF_GRADIENTS for entry in node._region)

    def _is_given(self, node: Node, value: Any) -> bool:
        """Return whether the value of a node is one that it uses: it has written to that, as far as is known."""
        is_tensor = value.__class__ is AbstractTensor
        return is_tensor and any(value is self._values[one] for one in node.all_input_nodes)

    def _value(self, node: Node) -> Any:
        """Return what is known of a value, from those that it uses."""
        op, target, values = node._op, node._target, self._values
        if op == "placeholder":
            return self._noted(next(self._inputs), "given")
        if op == "get_attr":
            weight = weight_at(self._root, str(target))
            return self._noted(fetch_path(self._root, str(target)) if weight is None else weight, "given")
        args = [
            values[one]
            if one.__class__ is Node
            else one
            if one.__class__ in PLAIN_TYPES
            else map_arg(one, values.__getitem__)
            for one in node._args
        ]
        kwargs = {name: map_arg(one, values.__getitem__) for name, one in node._kwargs.items()}
        if op == "output":
            return None
        if op == "call_module":
            return shape_of_call(module_at(self._root, str(target)), args, kwargs, self.dtype)
        if target in CREATING or (self._has_integers and holds_tensors((*args, *kwargs.values()))):
            return self._noted(compute(op, target, args, kwargs), "own")
        return self._shape(op, target, args, kwargs)

    def _noted(self, value: Any, memory: Memory) -> Any:
        """Return what is known of a value that there is."""
        known = known_value(value, self.dtype, memory)
        self._has_integers = self._has_integers or (isinstance(value, torch.Tensor) and known is value)
        return known

    def _shape(self, op: str, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return what is known of what a call gives that is not computed."""
        if kwargs.get("dtype") is self.dtype and target in _TOLD_DTYPES:
            del kwargs["dtype"]  # It is the dtype of the result, to which what is given is converted.
            if args[0].__class__ is AbstractFlags:
                args[0] = new_tensor(args[0].sizes)
        if op == "call_method":
            of_kind = METHODS if args[0].__class__ is AbstractTensor else METHODS_OF_FLAGS
            if (method := of_kind.get(target)) is None:
                return converted(args[0], target, args[1:], kwargs, self.dtype)
            return method(*args, **kwargs)
        if target is getattr:
            return read_attribute(*args, dtype=self.dtype)
        function = FUNCTIONS.get(target)
        if function is None:
            return _of_library(target, *args, **kwargs)
        value = function(*args, **kwargs)
        self._has_none = self._has_none or (value is None and target is operator.getitem)
        return value


_NAMES = ("cumprod", "cumsum", "log_softmax", "mean", "softmax", "sum")
_TOLD_DTYPES = frozenset(
    {*_NAMES, *(getattr(torch, name) for name in _NAMES), functional.log_softmax, functional.softmax}
)
"""What may be told the dtype of its result."""
_PASSING = frozenset(
    {
        *("contiguous", "cpu", "expand", "float", "to", "type_as"),
        functional.dropout,
        getattr,
        operator.getitem,
    }
)
"""Functions and methods that may return what they are given, and write to nothing."""
_NUMBERS = frozenset({bool, float, int})
_OF_GRADIENTS = frozenset({torch.enable_grad, torch.no_grad, torch.set_grad_enabled})
_ENABLED = 2
"""Which of the arguments of `torch.autocast` says whether it does anything."""


def _computes_alike(entry: RegionEntry) -> bool:
    """Return whether a context leaves values as they are, where no other one changes any."""
    is_off = entry.context is torch.autocast and entry.arguments[_ENABLED] is False
    return is_off or entry.context in _OF_GRADIENTS


def _is_same(value: Any, told: Any) -> bool:
    return not _is_tensor(value) and type(value) is type(told) and bool(value == told)


def _is_tensor(value: Any) -> bool:
    return value.__class__ in _TENSORS


_TENSORS = ABSTRACT | {torch.Tensor}


def _is_plain_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of no other class than `torch.Tensor`."""
    return _is_tensor(value) and not (value.__class__ is AbstractTensor and value.memory == "weight")


def _sizes(value: Any) -> tuple[int, ...]:
    return value.shape if value.__class__ is torch.Tensor else value.sizes


def _of_library(target: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a function gives that is neither one of torch nor an operator."""
    if target is OrderedDict and not kwargs:
        return OrderedDict(*args)
    if what_does(target) == "drops in training":
        return _undropped(*args, **kwargs)
    raise UnknownShapeError


def _undropped(input: Any, p: Any, mode: Any, training: Any = None) -> Any:  # noqa: A002 - it is called so
    """Return what a function gives that drops rows or batches in training: outside of that what it is given."""
    if training is not False or type(p) is not float or not 0 <= p <= 1 or mode not in {"batch", "row"}:
        raise UnknownShapeError
    return input
