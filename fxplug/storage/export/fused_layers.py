"""Layers that oneDNN computes with what follows them, as the calls that they stand for."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn import functional
from torch.nn.utils import skip_init

from fxplug.execute import GraphModule
from fxplug.execute.fused import ACTIVATIONS, FUSED_MODULES, FusedLayer
from fxplug.ir import ModuleScope, Origin
from fxplug.semantics.internals import modules_of
from fxplug.storage.faults import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug.ir import Graph, Node

__all__ = ["plain_layer", "write_fused_calls"]

_LAYERS = {fused: plain for plain, fused in FUSED_MODULES.items()}
_GEOMETRY = ("stride", "padding", "dilation", "groups")


def plain_layer(module: nn.Module) -> nn.Module:
    """Return the layer of torch.nn for a fused one, with the very same parameters; any other module as it is."""
    if not isinstance(module, FusedLayer):
        return module
    kind = _LAYERS.get(type(module))
    layer: Any = module
    if kind is None:
        return module
    if kind is nn.Linear:
        plain = nn.Linear(layer.in_features, layer.out_features, bias=module.bias is not None, device="meta")
    else:
        geometry = {name: getattr(layer, name) for name in _GEOMETRY}
        sizes = (layer.in_channels, layer.out_channels, layer.kernel_size)
        plain = skip_init(kind, *sizes, bias=module.bias is not None, device="meta", **geometry)
    plain.weight = module.weight
    plain.register_parameter("bias", module.bias)
    return plain.train(module.training)


def write_fused_calls(graph: Graph, find: Callable[[list[str]], Any]) -> None:
    """Make every call of a fused layer in a graph the call of a plain one, and calls of what follows it.

    Args:
        graph: Is changed.
        find: Returns what the root of the graph holds at a path.

    Raises:
        Refusal: A fused layer is used otherwise than by a call; the message names the node.
    """
    for node in list(graph.nodes):
        if node.op not in {"call_module", "get_attr"}:
            continue
        held = find(str(node.target).split("."))
        if type(held) in _LAYERS and node.op == "call_module":
            _write(graph, node, held)
        elif isinstance(held, nn.Module) and _holds_fused(held):
            raise Refusal(
                f"node {node.name!r} uses {node.target!r}, in which layers are fused with what follows them, and these "
                "exist in fxplug alone. Export the module as it was before 'onednn-fuse', or capture it with "
                f"through_modules for {type(held).__name__}."
            )


def _holds_fused(module: nn.Module) -> bool:
    """Return whether the code of a module may call a fused layer; a graph module says so in its own graph."""
    seen: set[nn.Module] = set()
    pending: list[nn.Module | None] = [module]
    while pending:  # Each module once: what is shared in shared modules has more paths than anybody can walk.
        part = pending.pop()
        if part is None or part in seen or isinstance(part, GraphModule):
            continue
        if isinstance(part, FusedLayer):
            return True
        seen.add(part)
        pending += modules_of(part).values()
    return False


def _write(graph: Graph, node: Node, layer: FusedLayer) -> None:
    given = {**dict(zip(("x", "other"), node.args, strict=False)), **node.kwargs}
    other = given.get("other")
    if (other is None) is layer.add or "x" not in given:
        raise Refusal(
            f"node {node.name!r} calls {node.target!r} with arguments that it does not take. Correct the call."
        )
    # What follows is called beside the layer, not in it.
    home = Origin(None, module=ModuleScope(str(node.target).rpartition(".")[0], nn.Module))
    value: Any = given["x"]
    with graph.inserting_before(node):
        for op, target, more, options in _steps(str(node.target), layer, other):
            value = graph.create_node(op, target, (value, *more), options)
            value.region, value.origins = node.region, (home,)
    node.replace_all_uses_with(value)
    graph.erase_node(node)


def _steps(
    path: str, layer: FusedLayer, other: Any
) -> Iterator[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    """Yield opcode, target, further arguments and keywords of each call; the first argument is the value so far."""
    yield "call_module", path, (), {}
    if layer.add:
        yield "call_function", operator.iadd if layer.in_place else operator.add, (other,), {}
    if layer.activation == "gelu_tanh":
        yield "call_function", functional.gelu, (), {"approximate": "tanh"}
    elif layer.activation:
        yield "call_function", ACTIVATIONS[layer.activation].function, layer.numbers, {}
    if getattr(layer, "layout", "") == "contiguous":
        yield "call_method", "contiguous", (), {}
