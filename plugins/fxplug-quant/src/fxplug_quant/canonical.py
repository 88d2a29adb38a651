"""Exporting what was decided as float programs with fxplug's quantize and dequantize operators, which backends fold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from fxplug.execute import set_path
from fxplug_quant.calls import TRANSPOSED
from fxplug_quant.convert import expect_fresh
from fxplug_quant.errors import QuantizationError
from fxplug_quant.function_layers import drop_unread_attributes
from fxplug_quant.linear import state_of
from fxplug_quant.paths import free_path

if TYPE_CHECKING:
    from fxplug import GraphModule, Node
    from fxplug_quant.affine import Affine
    from fxplug_quant.calibration import Prepared
    from fxplug_quant.flow import Fused

__all__ = ["export_canonical"]

_FUNCTIONS = {
    "linear": functional.linear,
    "conv1d": functional.conv1d,
    "conv2d": functional.conv2d,
    "conv3d": functional.conv3d,
    "conv_transpose1d": functional.conv_transpose1d,
    "conv_transpose2d": functional.conv_transpose2d,
    "conv_transpose3d": functional.conv_transpose3d,
}


def export_canonical(prepared: Prepared, *, symmetric: bool = False) -> GraphModule:
    """Return a float program in which the inputs and weights of static layers are quantized and dequantized.

    It computes what the int8 layers do, up to the rounding of values between layers that are fused here, and can be run
    anywhere. The operators are ``torch.ops.fxplug.quantize_per_tensor`` and its kin, which fxplug registers.

    Args:
        prepared: Calibrated; its module is the one that is changed.
        symmetric: Whether values are stored as int8 around zero, in steps large enough for what calibration saw, for
            backends whose kernels of eight bits know no zero point. Values that are never negative lose one bit.

    Raises:
        QuantizationError: Calibration is missing, or this fxplug has no such operators.
    """
    prepared.check()
    expect_fresh(prepared)
    if not hasattr(torch.ops.fxplug, "quantize_per_tensor"):
        raise QuantizationError(
            "Cannot export quantize and dequantize operators: this fxplug registers none. Install a newer one, or use "
            "convert.",
            code="FXP-Q009",
        )
    module, levels = prepared.module, prepared.draft.levels
    reads = [node for node in module.graph.nodes if node.op == "get_attr" and node.users]
    steps: dict[Node, Node] = {}
    for value, observer in prepared.observers.items():
        affine = observer.affine(levels)
        meaning = (affine.scale, affine.zero_point, 0, levels, torch.uint8)
        steps[value] = _rounded(module, value, _around_zero(affine, levels) if symmetric else meaning)
    for fused in prepared.draft.flow.fused:
        value = prepared.draft.flow.root(fused.layer.inputs[0])
        given = steps[value] if value is fused.layer.inputs[0] else fused.layer.inputs[0]
        _replace(module, fused, given, per_channel=prepared.plan.config.per_channel)
    drop_unread_attributes(module, reads)
    module.delete_all_unused_submodules()
    return module


def _around_zero(affine: Affine, levels: int) -> tuple[Any, ...]:
    """Return how values of the same range are stored as int8 with the zero point 0."""
    farthest = max(affine.zero_point, levels - affine.zero_point) * affine.scale
    # All of int8, so that backends need not cut values off themselves.
    return farthest / 127, 0, -128, 127, torch.int8


def _rounded(module: GraphModule, value: Node, meaning: tuple[Any, ...]) -> Node:
    """Return the value, rounded, behind the value; all that used it use that."""
    graph, operators = module.graph, torch.ops.fxplug
    users = list(value.users)
    with graph.inserting_after(value):
        quantized = graph.call_function(operators.quantize_per_tensor.default, (value, *meaning))
    with graph.inserting_after(quantized):
        restored = graph.call_function(operators.dequantize_per_tensor.default, (quantized, *meaning))
    for node in (quantized, restored):
        node.region, node.origins = value.region, value.origins
    for user in users:
        if user.op != "output":
            user.replace_input_with(value, restored)
    return restored


def _replace(module: GraphModule, fused: Fused, given: Node, *, per_channel: bool) -> None:
    """Make a layer a call of a function whose weight is dequantized."""
    node, called = fused.layer.node, fused.layer.called
    graph = module.graph
    int_weight, scale, bias = state_of(called, per_channel=per_channel)
    home = free_path(module, f"{fused.layer.path or node.name}_canonical")
    tensors = {"int_weight": int_weight, **({} if bias is None else {"bias": bias})}
    one_scale = fused.layer.kind in TRANSPOSED
    if not one_scale:
        tensors |= {"weight_scale": scale, "weight_zero_point": torch.zeros(len(scale), dtype=torch.int32)}
    reads: dict[str, Any] = {"bias": None}
    with graph.inserting_before(node):
        for name, tensor in tensors.items():
            set_path(module, f"{home}.{name}", tensor)
            reads[name] = graph.get_attr(f"{home}.{name}")
        meaning = (-127, 127, torch.int8)
        if one_scale:
            parts = (reads["int_weight"], float(scale), 0, *meaning)
            weight = graph.call_function(torch.ops.fxplug.dequantize_per_tensor.default, parts)
        else:
            parts = (reads["int_weight"], reads["weight_scale"], reads["weight_zero_point"], 0, *meaning)
            weight = graph.call_function(torch.ops.fxplug.dequantize_per_channel.default, parts)
        arguments: tuple[Any, ...] = (given, weight, reads["bias"])
        if one_scale:
            arguments += (
                called.stride,
                called.padding,
                called.output_padding,
                called.groups,
                called.dilation,
            )
        elif fused.layer.kind != "linear":
            arguments += (called.stride, called.padding, called.dilation, called.groups)
        fresh = graph.call_function(_FUNCTIONS[fused.layer.kind], arguments)
    fresh.region, fresh.origins = node.region, node.origins
    node.replace_all_uses_with(fresh)
    graph.erase_node(node)
