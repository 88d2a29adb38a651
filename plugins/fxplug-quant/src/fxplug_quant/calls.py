"""What the calls of a graph are to quantization."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.ir import Node, effects
from fxplug_quant.containers import layers_inside

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = [
    "WEIGHTED",
    "Call",
    "is_customised",
    "only_writes_first",
    "place_of",
    "read_calls",
    "reason_to_stay",
    "writes_in_place",
]

# Exact classes only: a subclass may compute something else.
_WEIGHTED_MODULES: dict[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.Conv1d: "conv1d",
    nn.Conv2d: "conv2d",
    nn.Conv3d: "conv3d",
}
_UNSUPPORTED_MODULES: dict[type[nn.Module], str] = {
    nn.ConvTranspose1d: "transposed convolutions are not quantized yet",
    nn.ConvTranspose2d: "transposed convolutions are not quantized yet",
    nn.ConvTranspose3d: "transposed convolutions are not quantized yet",
    nn.Embedding: "embeddings are not quantized yet",
    nn.EmbeddingBag: "embeddings are not quantized yet",
    nn.MultiheadAttention: "attention is one call here; its projections are not seen",
    nn.LSTM: "recurrent layers are not quantized yet",
    nn.GRU: "recurrent layers are not quantized yet",
}
WEIGHTED = frozenset(_WEIGHTED_MODULES.values())
"""Kinds of calls with weights."""
_OTHER_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.SELU: "selu",
    nn.SiLU: "silu",
    nn.Sigmoid: "sigmoid",
    nn.Tanh: "tanh",
    nn.MaxPool2d: "pool",
    nn.AvgPool2d: "pool",
    nn.AdaptiveAvgPool2d: "pool",
    nn.Flatten: "shape",
    nn.Identity: "shape",
    nn.Dropout: "shape",
    nn.Dropout2d: "shape",
}
_FUNCTIONS: dict[Any, str] = {
    torch.relu: "relu",
    functional.relu: "relu",
    torch.selu: "selu",
    functional.selu: "selu",
    functional.silu: "silu",
    torch.sigmoid: "sigmoid",
    functional.sigmoid: "sigmoid",
    torch.tanh: "tanh",
    functional.tanh: "tanh",
    operator.add: "add",
    operator.iadd: "add",
    torch.add: "add",
    functional.max_pool2d: "pool",
    torch.max_pool2d: "pool",
    functional.avg_pool2d: "pool",
    functional.adaptive_avg_pool2d: "pool",
    torch.flatten: "shape",
    functional.dropout: "shape",
    torch.reshape: "shape",
    torch.permute: "shape",
    torch.transpose: "shape",
    torch.squeeze: "shape",
    torch.unsqueeze: "shape",
}
_METHODS: dict[str, str] = {
    **dict.fromkeys(("relu", "sigmoid", "tanh", "add"), ""),
    **dict.fromkeys(("flatten", "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze"), "shape"),
    **dict.fromkeys(("contiguous",), "shape"),
    **dict.fromkeys(("size", "dim"), "query"),
}
_UNSUPPORTED_FUNCTIONS = {
    functional.linear: "linear",
    functional.conv1d: "conv1d",
    functional.conv2d: "conv2d",
    functional.conv3d: "conv3d",
    torch.matmul: "matmul",
    torch.bmm: "bmm",
    operator.matmul: "matmul",
}
# Anything that runs around the forward would be lost with the layer.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "forward")


@dataclass(frozen=True)
class Call:
    """One node, as quantization sees it."""

    node: Node
    kind: str
    """``"linear"``, ``"conv2d"``, …: has weights; ``"relu"``, ``"selu"``, …; ``"add"``; ``"pool"``; ``"shape"``: only
    arranges values; ``"query"``: asks for sizes; ``"other"``."""
    inputs: tuple[Node, ...]
    """The values that it computes with, as far as its kind is known."""
    called: Any = None
    """The module that is called."""
    reason: str = ""
    """Why it cannot be quantized, whatever a rule says."""

    @property
    def operation(self) -> str:
        """What is called, in a word: the class of the module, or the name of the function."""
        return type(self.called).__name__ if self.called is not None else operation_of(self.node)


def operation_of(node: Node) -> str:
    """Return what a node calls, in a word."""
    target = node.target
    if node.op == "call_function":
        return str(getattr(target, "__name__", target))
    return str(target) if node.op == "call_method" else node.op


def place_of(node: Node) -> str:
    """Return the line of the program that made a node, as ``file.py:12``; empty where it is not known."""
    for origin in node.origins:
        line = origin.source()
        if line is not None:
            return f"{line.filename}:{line.line}"
    return ""


def read_calls(module: GraphModule) -> dict[Node, Call]:
    """Return what each call of a graph is, in order."""
    return {node: _read(module, node) for node in module.graph.nodes}


def _read(module: GraphModule, node: Node) -> Call:
    if node.op == "call_module":
        return _read_module(node, module.get_submodule(str(node.target)))
    if node.op == "call_method":
        kind = _METHODS.get(str(node.target), "other") or str(node.target)
    elif node.op == "call_function":
        try:
            kind = _FUNCTIONS.get(node.target, "other")
            unsupported = _UNSUPPORTED_FUNCTIONS.get(node.target)
        except TypeError:  # A callable that has no hash.
            return Call(node, "other", ())
        if unsupported is not None:
            reason = "a function whose weights, if any, are no module's; only calls of modules are quantized"
            return Call(node, "other", (), reason=reason)
    else:
        return Call(node, "other", ())
    return _checked(node, kind)


def _checked(node: Node, kind: str) -> Call:
    """Return a call of a function, as nothing in particular where its arguments are not the usual ones."""
    inputs = tuple(value for value in node.args if isinstance(value, Node))
    if kind == "add":
        is_plain = len(node.args) == 2 and len(inputs) == 2 and not node.kwargs and inputs[0] is not inputs[1]
        return Call(node, kind if is_plain else "other", inputs if is_plain else ())
    first = node.args[0] if node.args else node.kwargs.get("input")
    if not isinstance(first, Node):
        return Call(node, "other", ())
    if kind == "shape" and node.kwargs.get("training", node.target is functional.dropout):
        return Call(node, "other", ())
    if kind == "pool" and node.kwargs.get("return_indices"):
        return Call(node, "other", ())
    return Call(node, kind, (first,))


def _read_module(node: Node, called: nn.Module) -> Call:
    kind = _WEIGHTED_MODULES.get(type(called))
    first = node.args[0] if node.args else node.kwargs.get("input")
    if kind is not None:
        if not isinstance(first, Node):
            return Call(node, "other", (), called, "its input is no value of the graph")
        return Call(node, kind, (first,), called, reason_to_stay(node, called))
    kind = _OTHER_MODULES.get(type(called), "other")
    if kind == "other" or not isinstance(first, Node) or len(node.args) + len(node.kwargs) != 1:
        reason = _UNSUPPORTED_MODULES.get(type(called)) or layers_inside(called)
        return Call(node, "other", (), called, reason)
    is_plain = not is_customised(called) and not getattr(called, "return_indices", False)
    if isinstance(called, (nn.Dropout, nn.Dropout2d)):
        is_plain = is_plain and not called.training
    return Call(node, kind if is_plain else "other", (first,) if is_plain else (), called)


def is_customised(called: nn.Module) -> bool:
    """Return whether calling a module does more than its class says."""
    return any(vars(called).get(name) for name in _HOOKS)


def reason_to_stay(node: Node, called: Any) -> str:
    """Return why a call of a layer with weights cannot be quantized; empty when it can."""
    if called.training:
        return "training mode (call eval() first)"
    if is_customised(called):
        return "hooks or a forward of its own"
    if any(entry.context is torch.autocast for entry in node.region):
        return "inside autocast"
    if not isinstance(called, nn.Linear):
        if called.padding_mode != "zeros":
            return f"padding_mode={called.padding_mode!r}"
        if isinstance(called.padding, str):
            return f"padding={called.padding!r} (give numbers)"
    for tensor in called.parameters(recurse=False):
        if (
            type(tensor) is not nn.Parameter
            or tensor.dtype is not torch.float32
            or tensor.device.type != "cpu"
        ):
            return "weights that are not plain float32 on the CPU"
        if not bool(tensor.isfinite().all()):
            return "weights that are not finite"
    return ""


def writes_in_place(module: GraphModule, call: Call) -> bool:
    """Return whether a call changes memory that another one may read."""
    effect = effects.effect_of(call.node, module)
    return bool(effect.writes) or effect.unknown


def only_writes_first(module: GraphModule, call: Call) -> bool:
    """Return whether a call writes its first argument, and does nothing else that others could notice."""
    effect = effects.effect_of(call.node, module)
    return effect.writes <= {0, "input", "x"} and not (effect.unknown or effect.outside)
