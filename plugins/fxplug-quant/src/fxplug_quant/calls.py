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
from fxplug_quant.function_layers import LAYER_FUNCTIONS, FunctionLayers

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = [
    "COMBINING",
    "TABLES",
    "TRANSPOSED",
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
    nn.ConvTranspose1d: "conv_transpose1d",
    nn.ConvTranspose2d: "conv_transpose2d",
    nn.ConvTranspose3d: "conv_transpose3d",
}
_TABLE_MODULES: dict[type[nn.Module], str] = {nn.Embedding: "embedding", nn.EmbeddingBag: "embedding_bag"}
_UNSUPPORTED_MODULES: dict[type[nn.Module], str] = {
    nn.MultiheadAttention: "attention that is one call",
    nn.LSTM: "recurrent layers are not quantized yet",
    nn.GRU: "recurrent layers are not quantized yet",
}
WEIGHTED = frozenset(_WEIGHTED_MODULES.values())
"""Kinds of calls with weights that values are multiplied by."""
TRANSPOSED = frozenset(kind for kind in WEIGHTED if kind.startswith("conv_transpose"))
"""Those whose operator gives steps and nothing else, and has one scale for all weights."""
TABLES = frozenset(_TABLE_MODULES.values())
"""Kinds of calls that look rows of a weight up."""
COMBINING = frozenset({"add", "mul", "cat"})
"""Kinds of calls that make one value of several, without weights."""
_OTHER_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.SELU: "selu",
    nn.GELU: "gelu",
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
    functional.gelu: "gelu",
    functional.silu: "silu",
    torch.sigmoid: "sigmoid",
    functional.sigmoid: "sigmoid",
    torch.tanh: "tanh",
    functional.tanh: "tanh",
    operator.add: "add",
    operator.iadd: "add",
    torch.add: "add",
    operator.mul: "mul",
    torch.mul: "mul",
    torch.cat: "cat",
    torch.concat: "cat",
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
    **dict.fromkeys(("relu", "sigmoid", "tanh", "add", "mul"), ""),
    **dict.fromkeys(("flatten", "view", "reshape", "permute", "transpose", "squeeze", "unsqueeze"), "shape"),
    **dict.fromkeys(("contiguous",), "shape"),
    **dict.fromkeys(("size", "dim"), "query"),
}
_PRODUCT = "a product of two values, of which neither is a weight"
_UNSUPPORTED_FUNCTIONS = {
    torch.matmul: _PRODUCT,
    torch.bmm: _PRODUCT,
    operator.matmul: _PRODUCT,
    functional.scaled_dot_product_attention: _PRODUCT,
    functional.multi_head_attention_forward: "attention that is one call: its weights are arguments of a function",
    functional.embedding: "embeddings are quantized where they are modules",
    functional.embedding_bag: "embeddings are quantized where they are modules",
}
# Anything that runs around the forward would be lost with the layer.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "forward")


@dataclass(frozen=True)
class Call:
    """One node, as quantization sees it."""

    node: Node
    kind: str
    """``"linear"``, ``"conv2d"``, …: has weights; ``"embedding"``, …; ``"relu"``, ``"selu"``, …; ``"add"``, ``"mul"``,
    ``"cat"``; ``"pool"``; ``"shape"``: only arranges values; ``"query"``: asks for sizes; ``"other"``."""
    inputs: tuple[Node, ...]
    """The values that it computes with, as far as its kind is known."""
    called: Any = None
    """The module that is called; of a function with weights, a module that computes the same with the same weights."""
    reason: str = ""
    """Why it cannot be quantized, whatever a rule says."""

    @property
    def operation(self) -> str:
        """What is called, in a word: the class of the module, or the name of the function."""
        return type(self.called).__name__ if self.node.op == "call_module" else operation_of(self.node)

    @property
    def path(self) -> str:
        """Path of the module that is called; empty where it is a function."""
        return str(self.node.target) if self.node.op == "call_module" else ""


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
    layers = FunctionLayers(module)
    return {node: _read(module, node, layers) for node in module.graph.nodes}


def _read(module: GraphModule, node: Node, layers: FunctionLayers) -> Call:
    if node.op == "call_module":
        return _read_module(node, module.get_submodule(str(node.target)))
    if node.op == "call_method":
        kind = _METHODS.get(str(node.target), "other") or str(node.target)
    elif node.op == "call_function":
        try:
            kind = _FUNCTIONS.get(node.target, "other")
            layer_kind = LAYER_FUNCTIONS.get(node.target)
            unsupported = _UNSUPPORTED_FUNCTIONS.get(node.target)
        except TypeError:  # A callable that has no hash.
            return Call(node, "other", ())
        if layer_kind is not None:
            value, layer, reason = layers.read(node, layer_kind)
            if layer is None:
                return Call(node, "other", (), reason=reason)
            return Call(node, layer_kind, (value,), layer, reason_to_stay(node, layer, _dtypes(layer_kind)))
        if unsupported is not None:
            return Call(node, "other", (), reason=unsupported)
    else:
        return Call(node, "other", ())
    return _checked(node, kind)


def _checked(node: Node, kind: str) -> Call:
    """Return a call of a function, as nothing in particular where its arguments are not the usual ones."""
    if kind in COMBINING:
        inputs = _combined(node, kind)
        return Call(node, kind if inputs else "other", inputs)
    if kind == "gelu":
        tanh = node.kwargs.get("approximate", "none") == "tanh"
        is_plain = len(node.args) == 1 and set(node.kwargs) <= {"approximate"}
        kind = ("gelu-tanh" if tanh else "gelu") if is_plain else "other"
    first = node.args[0] if node.args else node.kwargs.get("input")
    if not isinstance(first, Node):
        return Call(node, "other", ())
    if kind == "shape" and node.kwargs.get("training", node.target is functional.dropout):
        return Call(node, "other", ())
    # With a divisor of its own, an average may be larger than all that it is of.
    if kind == "pool" and (node.kwargs.get("return_indices") or _divisor_of(node) is not None):
        return Call(node, "other", ())
    return Call(node, kind, (first,))


def _divisor_of(node: Node) -> Any:
    """Return by what an average of `avg_pool2d` is divided, None for what it is of."""
    if node.target is not functional.avg_pool2d:
        return None
    return node.args[6] if len(node.args) > 6 else node.kwargs.get("divisor_override")


def _combined(node: Node, kind: str) -> tuple[Node, ...]:
    """Return the values that a call combines; none where its arguments are not the usual ones."""
    if kind == "cat":
        given = node.args[0] if node.args else node.kwargs.get("tensors")
        values = tuple(given) if isinstance(given, (tuple, list)) else ()
        is_plain = len(values) > 1 and set(node.kwargs) <= {"tensors", "dim"}
    else:
        values, is_plain = node.args, len(node.args) == 2 and not node.kwargs
    nodes = tuple(value for value in values if isinstance(value, Node))
    is_plain = is_plain and len(nodes) == len(values) and len(set(nodes)) == len(nodes)
    return nodes if is_plain else ()


def _read_table(node: Node, called: Any, kind: str) -> Call:
    inputs = tuple(value for value in (*node.args, *node.kwargs.values()) if isinstance(value, Node))
    reason = reason_to_stay(node, called)
    if called.max_norm is not None:
        reason = "max_norm, which writes the weight"
    elif kind == "embedding_bag" and called.padding_idx is not None:
        reason = "padding_idx; bags with padding are not quantized"
    return Call(node, kind, inputs, called, reason)


def _read_module(node: Node, called: nn.Module) -> Call:
    table = _TABLE_MODULES.get(type(called))
    if table is not None:
        return _read_table(node, called, table)
    kind = _WEIGHTED_MODULES.get(type(called))
    first = node.args[0] if node.args else node.kwargs.get("input")
    if kind is not None:
        if not isinstance(first, Node):
            return Call(node, "other", (), called, "its input is no value of the graph")
        if len(node.args) + len(node.kwargs) != 1:
            return Call(node, "other", (), called, "it is called with more than its input")
        return Call(node, kind, (first,), called, reason_to_stay(node, called, _dtypes(kind)))
    kind = _OTHER_MODULES.get(type(called), "other")
    if kind == "other" or not isinstance(first, Node) or len(node.args) + len(node.kwargs) != 1:
        reason = _UNSUPPORTED_MODULES.get(type(called)) or layers_inside(called)
        return Call(node, "other", (), called, reason)
    is_plain = not is_customised(called) and not getattr(called, "return_indices", False)
    is_plain = is_plain and getattr(called, "divisor_override", None) is None
    if isinstance(called, (nn.Dropout, nn.Dropout2d)):
        is_plain = is_plain and not called.training
    if isinstance(called, nn.GELU) and called.approximate == "tanh":
        kind = "gelu-tanh"
    return Call(node, kind if is_plain else "other", (first,) if is_plain else (), called)


def _dtypes(kind: str) -> tuple[torch.dtype, ...]:
    """Return of which dtypes the weights of a layer can be rounded."""
    return (torch.float32, torch.bfloat16) if kind == "linear" else (torch.float32,)


def is_customised(called: nn.Module) -> bool:
    """Return whether calling a module does more than its class says."""
    return any(vars(called).get(name) for name in _HOOKS)


def reason_to_stay(node: Node, called: Any, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> str:
    """Return why a call of a layer with weights of one of `dtypes` cannot be quantized; empty when it can."""
    if called.training:
        return "training mode (call eval() first)"
    if is_customised(called):
        return "hooks or a forward of its own"
    if any(entry.context is torch.autocast for entry in node.region):
        return "inside autocast"
    if not isinstance(called, (nn.Linear, nn.Embedding, nn.EmbeddingBag)):
        if called.padding_mode != "zeros":
            return f"padding_mode={called.padding_mode!r}"
        if isinstance(called.padding, str):
            return f"padding={called.padding!r} (give numbers)"
    for tensor in called.parameters(recurse=False):
        if type(tensor) is not nn.Parameter or tensor.dtype not in dtypes or tensor.device.type != "cpu":
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
