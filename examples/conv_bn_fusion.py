"""Folding batch norms into the convolutions before them: a whole transformation on public names alone.

It is the example by which the paper on torch.fx (J. Reed et al., "torch.fx: Practical Program Capture and
Transformation for Deep Learning in Python", MLSys 2022) shows that such a transformation takes no more than 150 lines:
walk over the graph, find a convolution that only a batch norm uses, fold the weights of the two, replace the calls.

In evaluation mode, batch norm is an affine map per channel, y = (x - mean) / sqrt(var + eps) * gain + shift, and so can
be part of the convolution that makes x. fxplug has this built in, as the pass `fuse-conv-bn`; the one here is called
`fold-batch-norms` and says all that a pass may say of itself: that it puts parameters in the place of others, that
shapes and effects stay what they were, and how the new weights come from the old ones, so that new checkpoints can be
loaded into the fused model.

Run it: ``python examples/conv_bn_fusion.py`` fuses ResNet-50, compares it with eager, and measures both.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

import fxplug
from fxplug import GraphModule, Node, Pass, PassContext, PassRecord, PassResult, Pipeline
from fxplug.passes import PipelineStep

_PAIRS = {nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}


class FoldBatchNorms(Pass):
    """Folds each batch norm in evaluation mode into the convolution that feeds it."""

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Fold every pair whose modules are called once and whose inner value nobody else uses."""
        calls = Counter(_module_of(module, node) for node in module.graph.find_nodes(op="call_module"))
        read = {str(node.target).rpartition(".")[0] for node in module.graph.find_nodes(op="get_attr")}
        effects = context.analysis("effects")
        folded = 0
        for node in module.graph.find_nodes(op="call_module"):
            conv_node, norm = _producer(node), _module_of(module, node)
            if conv_node is None or len(conv_node.users) > 1:
                continue
            conv = _module_of(module, conv_node)
            if not _fits(conv, norm):
                continue
            if calls[conv] > 1 or calls[norm] > 1 or not read.isdisjoint({conv_node.target, node.target}):
                continue  # Whoever else uses the weights needs them as they are.
            if effects[conv_node].must_be_kept or effects[node].must_be_kept:
                continue  # Batch norms in training mode write statistics, and hooks may do anything.
            fused = fold(conv, norm, context)
            module.add_submodule(str(conv_node.target), fused)
            calls[fused] = 1
            node.replace_all_uses_with(conv_node)
            conv_node.origins = (*conv_node.origins, *node.origins)
            module.graph.erase_node(node)
            folded += 1
        if folded:
            module.delete_all_unused_submodules()
        return PassResult(folded > 0, f"folded {folded} batch norms", {"folded": folded})


RECORD = PassRecord(
    "fold-batch-norms",
    FoldBatchNorms,
    "Folds batch norms into convolutions.",
    preserves=frozenset({"shapes", "effects"}),
    replaces_parameters=True,
    idempotent=True,
)


def fold(conv: Any, norm: Any, context: PassContext) -> nn.Module:
    """Return one convolution that computes what the two modules compute, and say how its weights were made."""

    def fold_weight(weight: Tensor, var: Tensor, gain: Tensor) -> Tensor:
        scale = gain * (var + norm.eps).rsqrt()
        return weight * scale.reshape((-1,) + (1,) * (conv.weight.dim() - 1))

    def fold_bias(mean: Tensor, var: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        return shift - mean * gain * (var + norm.eps).rsqrt()

    def fold_both_biases(bias: Tensor, *others: Tensor) -> Tensor:
        mean, *rest = others
        return fold_bias(mean - bias, *rest)

    statistics = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    fused = copy.deepcopy(conv)
    for name, sources, function in (
        ("weight", (conv.weight, norm.running_var, norm.weight), fold_weight),
        ("bias", statistics, fold_bias)
        if conv.bias is None
        else ("bias", (conv.bias, *statistics), fold_both_biases),
    ):
        trains = any(source.requires_grad for source in sources)
        with torch.no_grad():
            parameter = nn.Parameter(function(*sources), requires_grad=trains)
        setattr(fused, name, parameter)
        context.derive(parameter, sources, function)
    return fused


def _producer(node: Node) -> Node | None:
    """Return the call of a module whose value `node` takes as its only argument."""
    source = node.args[0] if len(node.args) == 1 and not node.kwargs else None
    is_call = isinstance(source, Node) and source.op == "call_module" and source.region == node.region
    return source if is_call else None


def _module_of(module: GraphModule, node: Node) -> nn.Module:
    return module.get_submodule(str(node.target))


def _fits(conv: Any, norm: Any) -> bool:
    """Return whether two modules are a convolution and a batch norm of its kind, with gain, shift and statistics."""
    if type(conv) not in _PAIRS or type(norm) is not _PAIRS[type(conv)]:
        return False  # Exact classes: a subclass may compute something else.
    same = norm.running_mean is not None and norm.running_mean.dtype == conv.weight.dtype
    return norm.affine and same


def fuse(model: nn.Module, inputs: tuple[Tensor, ...] | None = None) -> GraphModule:
    """Capture a model and fold its batch norms; the model itself stays as it is."""
    captured = fxplug.symbolic_trace(model)
    Pipeline("fusion", [PipelineStep(RECORD.name, RECORD)]).run(captured, inputs)
    return captured


def _milliseconds(model: nn.Module, inputs: tuple[Tensor, ...], rounds: int = 10) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        model(*inputs)
        best = min(best, time.perf_counter() - start)
    return best * 1000


if __name__ == "__main__":
    from resnet50 import example_inputs, resnet50

    model, inputs = resnet50(), example_inputs()
    fused = fuse(model)
    with torch.no_grad():
        error = (fused(*inputs) - model(*inputs)).abs().max().item()
        before, after = _milliseconds(model, inputs), _milliseconds(fused, inputs)
    print(f"{len(fused.graph.nodes)} nodes, largest error {error:.1e}")
    print(f"eager {before:.1f} ms, fused {after:.1f} ms: {before / after:.2f} times as fast")
