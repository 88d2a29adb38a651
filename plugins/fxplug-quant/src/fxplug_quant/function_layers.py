"""Layers that a program calls as functions, with weights of its own: they are read as the modules of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from fxplug.execute import fetch_path, has_path
from fxplug.ir import Node, effects

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = ["LAYER_FUNCTIONS", "FunctionLayers", "drop_unread_attributes"]

LAYER_FUNCTIONS: dict[Any, str] = {
    functional.linear: "linear",
    functional.conv1d: "conv1d",
    functional.conv2d: "conv2d",
    functional.conv3d: "conv3d",
    functional.conv_transpose1d: "conv_transpose1d",
    functional.conv_transpose2d: "conv_transpose2d",
    functional.conv_transpose3d: "conv_transpose3d",
}
"""Function -> kind of call."""
_MODULES: dict[str, Any] = {
    "conv1d": nn.Conv1d,
    "conv2d": nn.Conv2d,
    "conv3d": nn.Conv3d,
    "conv_transpose1d": nn.ConvTranspose1d,
    "conv_transpose2d": nn.ConvTranspose2d,
    "conv_transpose3d": nn.ConvTranspose3d,
}
_DEFAULTS: dict[str, Any] = {
    "bias": None,
    "stride": 1,
    "padding": 0,
    "output_padding": 0,
    "groups": 1,
    "dilation": 1,
}


def _names(kind: str) -> tuple[str, ...]:
    if kind == "linear":
        return ("input", "weight", "bias")
    if kind.startswith("conv_transpose"):
        return ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
    return ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


class _Read(NamedTuple):
    input: Any
    layer: nn.Module | None
    reason: str


class FunctionLayers:
    """Reads calls of functions that have weights; calls with the same weights and numbers give the same layer.

    Args:
        module: The module that holds the weights.
    """

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._known: dict[Any, nn.Module] = {}
        self._written: set[str] | None = None

    def read(self, node: Node, kind: str) -> _Read:
        """Return the input of a call, and its layer as a module that shares the weights; or why there is none."""
        names = _names(kind)
        given = dict(zip(names, node.args, strict=False)) | node.kwargs
        value = given.get("input")
        if len(node.args) > len(names) or not set(given) <= set(names) or not isinstance(value, Node):
            return _Read(value, None, "a function whose arguments are not the usual ones")
        wish = {name: given.get(name, _DEFAULTS.get(name)) for name in names[1:]}
        paths, reason = self._paths(wish.pop("weight"), wish.pop("bias"))
        numbers = {name: _number(number) for name, number in wish.items()}
        if not reason and None in numbers.values():
            reason = "a function whose padding, stride or the like is no number"
        if reason:
            return _Read(value, None, reason)
        key = (kind, *paths.values(), *numbers.values())
        if key not in self._known:
            layer = self._layer(kind, paths, numbers)
            if isinstance(layer, str):
                return _Read(value, None, layer)
            self._known[key] = layer
        return _Read(value, self._known[key], "")

    def _paths(self, weight: Any, bias: Any) -> tuple[dict[str, str | None], str]:
        """Return where weight and bias are, and why they cannot be used, if so."""
        paths: dict[str, str | None] = {}
        for name, source in (("weight", weight), ("bias", bias)):
            if source is None and name == "bias":
                paths[name] = None
            elif not isinstance(source, Node) or source.op != "get_attr":
                return paths, f"a function whose {name} is computed while the program runs"
            else:
                paths[name] = str(source.target)
        is_written = set(paths.values()) & self._written_paths()
        return paths, "a function whose weights the program writes in place" if is_written else ""

    def _layer(self, kind: str, paths: dict[str, str | None], wish: dict[str, Any]) -> nn.Module | str:
        """Return a layer, or why there is none."""
        found: dict[str, Any] = {
            name: fetch_path(self._module, path) for name, path in paths.items() if path is not None
        }
        tensors = {name: _as_parameter(tensor) for name, tensor in found.items()}
        if None in tensors.values():
            return "weights that are not plain float32 on the CPU"
        weight = found["weight"]
        if (
            weight.dim() != _rank(kind)
            or not weight.numel()
            or ("bias" in found and found["bias"].dim() != 1)
        ):
            return "a function whose weights do not have the usual dimensions"
        layer = _empty_layer(kind, weight, has_bias="bias" in found, wish=wish)
        for name, tensor in tensors.items():
            setattr(layer, name, tensor)
        return layer.train(self._module.training)

    def _written_paths(self) -> set[str]:
        """Return the paths of tensors that some call may write, itself or through a view."""
        if self._written is None:
            self._written = set()
            for node in self._module.graph.nodes:
                effect = effects.effect_of(node, self._module)
                if node.op.startswith("call_") and (effect.writes or effect.unknown):
                    self._written |= _attributes_behind(node)
        return self._written


def drop_unread_attributes(module: GraphModule, nodes: list[Node]) -> None:
    """Erase reads of attributes that nobody uses any more, and the attributes that nobody else reads."""
    unread = [node for node in nodes if node.op == "get_attr" and not node.users]
    for node in unread:
        module.graph.erase_node(node)
    read = [str(node.target) for node in module.graph.nodes if node.op in {"get_attr", "call_module"}]
    for path in {str(node.target) for node in unread}:
        holder_path, _, name = path.rpartition(".")
        holder = module.get_submodule(holder_path) if has_path(module, path) else None
        # A holder of another class is the user's.
        is_ours = holder is module or type(holder) is nn.Module
        if is_ours and not any(other == path or path.startswith(f"{other}.") for other in read):
            delattr(holder, name)


def _attributes_behind(node: Node) -> set[str]:
    found: set[str] = set()
    seen: set[Node] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.op == "get_attr":
            found.add(str(value.target))
        waiting += value.all_input_nodes
    return found


def _as_parameter(tensor: Any) -> nn.Parameter | None:
    """Return a tensor as a parameter that shares its memory; None where it is no plain one."""
    if type(tensor) is nn.Parameter:
        return tensor
    return nn.Parameter(tensor, requires_grad=False) if type(tensor) is torch.Tensor else None


def _number(value: Any) -> int | tuple[int, ...] | None:
    """Return a number, or one for each dimension; None for anything else."""
    if isinstance(value, (tuple, list)):
        numbers: tuple[Any, ...] = tuple(value)
        if not numbers or not all(type(number) is int for number in numbers):
            return None
        return numbers[0] if len(numbers) == 1 else numbers
    return value if type(value) is int else None


def _rank(kind: str) -> int:
    return 2 if kind == "linear" else int(kind[-2]) + 2


def _empty_layer(kind: str, weight: torch.Tensor, *, has_bias: bool, wish: dict[str, Any]) -> nn.Module:
    """Return a layer whose tensors are still missing."""
    first, second = weight.shape[:2]
    if kind == "linear":
        return nn.Linear(second, first, bias=has_bias, device="meta")
    groups = wish["groups"]
    inputs, outputs = second * groups, first
    if kind.startswith("conv_transpose"):
        inputs, outputs = first, second * groups
    return _MODULES[kind](inputs, outputs, tuple(weight.shape[2:]), bias=has_bias, device="meta", **wish)
