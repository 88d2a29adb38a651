"""Taking `nn.MultiheadAttention` apart, so that its projections are linear layers that can be quantized."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from fxplug.ir import Node
from fxplug.passes import Pass, PassContext, PassResult
from fxplug_quant.calls import Call, is_customised
from fxplug_quant.masks import AttentionMask
from fxplug_quant.paths import Kept, free_path
from fxplug_quant.weights import new_parameter, writing_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fxplug import GraphModule

__all__ = ["OpenAttention", "explained"]

_PARAMETERS = (
    "query",
    "key",
    "value",
    "key_padding_mask",
    "need_weights",
    "attn_mask",
    "average_attn_weights",
    "is_causal",
)
_CLOSED = "attention that is one call: the pass quant:open-attention makes linear layers of it"
_MASKS = ("attn_mask", "key_padding_mask")


class OpenAttention(Pass):
    """Replaces each call of an ``nn.MultiheadAttention`` by calls of linear layers with scaled products between them.

    The linear layers have the same weights; the outputs are the same but for the order in which sums are taken, and
    for rows that may look at no key, which are NaN in ``nn.MultiheadAttention`` and 0 before the last layer here. What
    stays one call is listed with its reason in ``details["left"]``. `fxplug_quant.plan` and `fxplug_quant.prepare` do
    the same by themselves.
    """

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Open every call that can be opened."""
        found = [node for node in module.graph.nodes if _attention_of(module, node) is not None]
        left: dict[str, str] = {}
        chosen: list[_Call] = []
        for node in found:
            call = _Call(module, node, _attention_of(module, node))
            reason = call.reason()
            if reason:
                left[node.name] = reason
            elif context.allows(node, "open"):
                chosen.append(call)
        kept = Kept(module, {call.node for call in chosen})
        projections = _Projections(module, kept, context)
        for call in chosen:
            call.open(projections)
        count = len(chosen)
        parts = [f"opened {count} attention{'' if count == 1 else 's'}" if count or left else "no attention"]
        parts += [f"{many} left as one call: {why}" for why, many in Counter(left.values()).items()]
        return PassResult(bool(chosen), "; ".join(parts), {"opened": count, "left": left})


def explained(module: GraphModule, call: Call) -> Call:
    """Return a call, with the reason why it is one call if it is that of an attention."""
    called = _attention_of(module, call.node)
    if called is None:
        return call
    reason = _Call(module, call.node, called).reason()
    return replace(call, reason=f"attention that is one call: {reason}" if reason else _CLOSED)


def _attention_of(module: GraphModule, node: Node) -> Any:
    """Return the attention that a node calls; None where it is something else, or of another class."""
    called = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    return called if type(called) is nn.MultiheadAttention else None


def _arguments(node: Node) -> dict[str, Any]:
    return {**dict(zip(_PARAMETERS, node.args, strict=False)), **node.kwargs}


@dataclass(frozen=True)
class _Call:
    """One call of an attention."""

    module: GraphModule
    node: Node
    called: Any

    def reason(self) -> str:
        """Return why it stays one call; empty when it need not."""
        return _reason_of_layer(self.node, self.called) or self._reason_of_users() or self._reason_of_masks()

    def _reason_of_users(self) -> str:
        given = _arguments(self.node)
        if not all(isinstance(given.get(name), Node) for name in _PARAMETERS[:3]):
            return "its inputs are no values of the graph"
        for user in self.node.users:
            if user.target is not operator.getitem or user.args[1] not in (0, 1):
                return "its two results are used as one"
            if user.args[1] == 1 and user.users:
                return "its attention weights are used"
        return ""

    def _reason_of_masks(self) -> str:
        given = _arguments(self.node)
        causal = given.get("is_causal")
        if causal not in {None, False, True}:
            return "is_causal is computed while the program runs"
        if causal and given.get("attn_mask") is None:
            return "is_causal without attn_mask"
        return ""

    def open(self, projections: _Projections) -> None:
        """Write the call anew."""
        graph, node = self.module.graph, self.node
        with graph.inserting_before(node):
            before = len(graph.nodes)
            writer = _Writer(self, projections)
            result = writer.write(_arguments(node))
            last = node
            for _ in range(len(graph.nodes) - before):
                last = last.prev
                last.region, last.origins = node.region, node.origins
        for user in list(node.users):
            if user.args[1] == 0:
                user.replace_all_uses_with(result)
            graph.erase_node(user)
        graph.erase_node(node)


def _reason_of_layer(node: Node, called: Any) -> str:
    if called.training:
        return "training mode (call eval() first)"
    if is_customised(called):
        return "hooks or a forward of its own"
    if any(entry.context is torch.autocast for entry in node.region):
        return "inside autocast"
    if called.bias_k is not None or called.add_zero_attn:
        return "add_bias_kv or add_zero_attn"
    tensors = [*called.parameters(recurse=False), *called.out_proj.parameters(recurse=False)]
    if any(type(tensor) is not nn.Parameter or not tensor.is_floating_point() for tensor in tensors):
        return "weights that are no plain parameters"
    return ""


class _Projections:
    """The linear layers that attentions are made of, each made once."""

    def __init__(self, module: GraphModule, kept: Kept, context: PassContext) -> None:
        self._module, self._kept, self._context = module, kept, context
        self._paths: dict[str, str] = {}
        self._layers: dict[tuple[int, str], nn.Linear] = {}

    def path(self, call: _Call, name: str, start: int, end: int) -> str:
        """Return the path of a layer with some of the weights of an attention.

        Args:
            call: Names the attention.
            name: Of the layer.
            start: The first of the values query, key, and value, that it makes.
            end: Behind the last one.
        """
        layer = self._made(call.called, name, lambda: self._projection(call.called, start, end))
        return self._put(str(call.node.target), name, layer)

    def path_of_output(self, call: _Call) -> str:
        """Return the path of the layer behind the products."""
        inner = call.called.out_proj
        layer = self._made(call.called, "out_proj", lambda: _linear(inner.weight, inner.bias))
        return self._put(str(call.node.target), "out_proj", layer)

    def _made(self, called: nn.Module, name: str, make: Callable[[], nn.Linear]) -> nn.Linear:
        key = (id(called), name)
        if key not in self._layers:
            with writing_weights():
                self._layers[key] = make()
        return self._layers[key]

    def _put(self, target: str, name: str, layer: nn.Linear) -> str:
        if target not in self._paths:
            is_free = not self._kept.concerns(target)
            self._paths[target] = target if is_free else free_path(self._module, f"{target}_opened")
            # What stands there is the user's, and stays as it is.
            self._module.add_submodule(self._paths[target], nn.Module().eval())
        path = f"{self._paths[target]}.{name}"
        self._module.add_submodule(path, layer)
        return path

    def _projection(self, called: Any, start: int, end: int) -> nn.Linear:
        size = called.embed_dim
        rows = slice(start * size, end * size)
        bias = None if called.in_proj_bias is None else self._part(called.in_proj_bias, rows)
        if called.in_proj_weight is not None:
            return _linear(self._part(called.in_proj_weight, rows), bias)
        weights = (called.q_proj_weight, called.k_proj_weight, called.v_proj_weight)[start:end]
        if len(weights) == 1:
            return _linear(weights[0], bias)
        joined = new_parameter(_joined(*weights), weights[0])
        self._context.derive(joined, weights, _joined)
        return _linear(joined, bias)

    def _part(self, given: nn.Parameter, rows: slice) -> nn.Parameter:
        """Return some rows of a parameter, or the parameter where that is all of it."""
        if rows == slice(0, len(given)):
            return given
        part = _Rows(rows.start, rows.stop)
        fresh = new_parameter(part.taken(given).clone(), given)
        self._context.derive(fresh, (given,), part.taken)
        return fresh


@dataclass(frozen=True)
class _Rows:
    start: int
    stop: int

    def taken(self, given: Any) -> Any:
        """Return these rows of a tensor. It is captured."""
        return given[self.start : self.stop]


def _joined(*parts: Any) -> Any:
    return torch.cat(parts)


def _linear(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight, layer.bias = weight, cast("nn.Parameter", bias)
    return layer.eval()


class _Writer:
    """Writes one attention as linear layers, arrangements and scaled products. No size is written down."""

    def __init__(self, call: _Call, projections: _Projections) -> None:
        self._call, self._projections = call, projections
        self._graph = call.module.graph
        self._heads, self._features = call.called.num_heads, call.called.head_dim

    def write(self, given: Mapping[str, Any]) -> Node:
        """Return the value that the attention gives."""
        heads = self._inputs([given[name] for name in _PARAMETERS[:3]])
        query, key, value = (self._heads_first(part) for part in heads)
        mask = self._mask(given, query)
        mixed = self._graph.call_function(
            functional.scaled_dot_product_attention,
            (query, key, value),
            {} if mask is None else {"attn_mask": mask},
        )
        joined = self._method("flatten", self._heads_back(mixed), -2)
        return self._graph.call_module(self._projections.path_of_output(self._call), (joined,))

    def _inputs(self, values: Sequence[Node]) -> list[Node]:
        """Return query, key and value with the dimensions heads and features at the end."""
        query, key, value = values
        if query is key is value:
            return self._projected(query, "in_proj", 0, 3)
        if key is value:
            return [*self._projected(query, "q_proj", 0, 1), *self._projected(key, "kv_proj", 1, 3)]
        return [
            part
            for index, name in enumerate(("q_proj", "k_proj", "v_proj"))
            for part in self._projected(values[index], name, index, index + 1)
        ]

    def _projected(self, value: Node, name: str, start: int, end: int) -> list[Node]:
        path = self._projections.path(self._call, name, start, end)
        made = self._graph.call_module(path, (value,))
        count = end - start
        if count == 1:
            return [self._method("unflatten", made, -1, (self._heads, self._features))]
        split = self._method("unflatten", made, -1, (count, self._heads, self._features))
        return [self._method("select", split, -3, index) for index in range(count)]

    def _heads_first(self, part: Node) -> Node:
        """Return a value with its heads before its positions."""
        if self._call.called.batch_first:
            return self._method("transpose", part, -3, -2)
        return self._method("movedim", part, 0, -2)

    def _heads_back(self, part: Node) -> Node:
        if self._call.called.batch_first:
            return self._method("transpose", part, -3, -2)
        return self._method("movedim", part, -2, 0)

    def _mask(self, given: Mapping[str, Any], query: Node) -> Node | None:
        """Return what is added to the products; None without a mask."""
        masks = [given.get(name) for name in _MASKS]
        if masks == [None, None]:
            return None
        layer = AttentionMask(self._heads, is_causal=bool(given.get("is_causal"))).eval()
        path = free_path(self._call.module, f"{self._call.node.name}_mask")
        self._call.module.add_submodule(path, layer)
        return self._graph.call_module(path, (query, *masks))

    def _method(self, name: str, *arguments: Any) -> Node:
        return self._graph.call_method(name, arguments)
