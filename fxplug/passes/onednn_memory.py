"""In what order the values between fused calls lie in memory, and which of them may be written over."""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.execute import fetch_path, has_path
from fxplug.execute.aliases import may_return_argument
from fxplug.execute.fused import FusedConv2d, FusedConv3d, FusedLayer, FusedLinear
from fxplug.ir import Node, effects
from fxplug.rewrite.placement import EffectOrder
from fxplug.rewrite.spellings import Spellings
from fxplug.semantics.internals import has_hooks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fxplug.execute import GraphModule

__all__ = ["settle_memory"]

_PACKED = (FusedConv2d, FusedConv3d)

_ELEMENTWISE = frozenset(
    [
        "relu",
        "relu6",
        "sigmoid",
        "tanh",
        "silu",
        "hardswish",
        "hardsigmoid",
        "leaky_relu",
        "hardtanh",
        "gelu",
        "elu",
        "selu",
        "celu",
        "mish",
        "add",
        "sub",
        "mul",
        "div",
        "clamp",
        "neg",
        "abs",
    ]
)
_MODULES = (
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.Identity,
)
_FUNCTIONS = frozenset(
    {
        functional.max_pool2d,
        functional.avg_pool2d,
        functional.adaptive_avg_pool2d,
        torch.max_pool2d,
        torch.cat,
    }
)
"""What gives the same numbers for any order in memory, and keeps it."""
_QUESTIONS = frozenset({"size", "dim"})
_ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim"})


def settle_memory(module: GraphModule, fused: Sequence[Node], *, reuse: bool) -> None:
    """Tell fused modules in which order to leave their values, and whether they may write over what they add.

    Args:
        module: Its graph calls them.
        fused: The calls.
        reuse: Whether anything may be written over.
    """
    layouts = _layouts(module, fused)
    reusable = _reusable(module, fused) if reuse else set[Node]()
    by_path: dict[str, list[Node]] = defaultdict(list)
    for node in fused:
        by_path[str(node.target)].append(node)
    for path, calls in by_path.items():
        called: Any = fetch_path(module, path)
        if isinstance(called, _PACKED):
            wished = {layouts[node] for node in calls}
            called.layout = wished.pop() if len(wished) == 1 else "contiguous"
        called.reuse = all(node in reusable for node in calls)


# -- the order in memory


def _layouts(module: GraphModule, fused: Iterable[Node]) -> dict[Node, str]:
    """Return for each call which order its value has to have."""
    spellings = Spellings(module)
    order = EffectOrder(module.graph, module)
    free: set[Node] = set()
    exact: set[Node] = set()
    for node in reversed(list(module.graph.nodes)):
        is_free = bool(node.users) and not any(
            (user in exact and user not in free) or not _does_not_mind(user, free, spellings, order)
            for user in node.users
        )
        if is_free:
            free.add(node)
        elif any(user in exact or _is_written_view(user, order) for user in node.users):
            exact.add(
                node
            )  # Whether a write gets through depends on the order, and that on what it is made of.
    starts = {node for node in fused if isinstance(fetch_path(module, node.target), _PACKED)}
    other: set[Node] = set()
    for node in module.graph.nodes:
        if node in free and (node in starts or not other.isdisjoint(node.all_input_nodes)):
            other.add(node)  # In another order than it has by itself.
    return {node: _layout(node, free, other) for node in starts}


def _layout(node: Node, free: set[Node], other: set[Node]) -> str:
    if node in free:
        return "any"
    return "input" if other.isdisjoint(node.all_input_nodes) else "contiguous"


def _is_written_view(user: Node, order: EffectOrder) -> bool:
    """Return whether a call may give memory of its argument, or a copy, and that is written."""
    if user.op == "output" or effects.effect_of(user, order.root).writes:
        return False
    return may_return_argument(user, order.root) and order.may_be_written(user, set())


def _does_not_mind(user: Node, free: set[Node], spellings: Spellings, order: EffectOrder) -> bool:
    """Return whether a call computes the same, in the same order, whatever the order of what it is given."""
    if user.op == "call_module":
        called = _plain_module(spellings.root, user)
        if isinstance(called, (*_PACKED, nn.Linear, FusedLinear)):
            return True
        if isinstance(called, _MODULES):
            return user in free
    if user.op == "call_method" and user.target in _QUESTIONS:
        return True
    if user.op == "call_function" and user.target is getattr:
        return user.args[1] in _ATTRIBUTES
    if user.op == "call_function" and user.target in _FUNCTIONS:
        return user in free
    call = spellings.call(user)
    if call is None:
        return False
    name = call.name.rstrip("_")
    if name in {"flatten", "reshape"}:
        return (user in free or _mixes_channels(name, call.arguments)) and not order.may_be_written(
            user, set()
        )
    return name in _ELEMENTWISE and user in free


def _mixes_channels(name: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether what becomes of an image lies in the usual order, whatever the order of the image.

    Where pixels are put together and channels stay apart, there may be a view in another order.
    """
    if name == "flatten":
        return arguments.get("start_dim", 0) in {0, 1} and arguments.get("end_dim", -1) == -1
    shape = arguments.get("shape")
    if not isinstance(shape, (tuple, list)) or shape[-1:] not in ((-1,), [-1]):
        return False
    return len(shape) == 1 or (len(shape) == 2 and _is_batch_size(shape[0], arguments.get("self")))


def _is_batch_size(size: Any, image: Any) -> bool:
    """Return whether a value is the size of the first dimension of another one."""
    if not isinstance(size, Node):
        return False
    if size.op == "call_method" and size.target == "size":
        return size.args == (image, 0)
    if size.op != "call_function" or size.target is not operator.getitem or size.args[1] != 0:
        return False
    shape = size.args[0]
    return isinstance(shape, Node) and (
        (shape.op == "call_method" and shape.target == "size" and shape.args == (image,))
        or (shape.op == "call_function" and shape.target is getattr and shape.args == (image, "shape"))
    )


def _plain_module(root: Any, node: Node) -> Any:
    called = fetch_path(root, node.target) if has_path(root, node.target) else None
    if not isinstance(called, nn.Module) or has_hooks(called) or "forward" in vars(called):
        return None
    is_known = isinstance(called, FusedLayer) or str(type(called).__module__).startswith("torch.nn.modules.")
    return called if is_known and not getattr(called, "return_indices", False) else None


# -- memory that is written over


def _reusable(module: GraphModule, fused: Sequence[Node]) -> set[Node]:
    """Return the calls that are the last to read what they add, where nothing else shares its memory."""
    found: set[Node] = set()
    for node in sorted(fused):
        if len(node.args) == 2 and isinstance(node.args[1], Node) and _is_last_reader(module, node, found):
            found.add(node)
    return found


def _is_last_reader(module: GraphModule, node: Node, reusing: set[Node]) -> bool:
    other = node.args[1]
    if not isinstance(other, Node) or not other.op.startswith("call_") or other is node.args[0]:
        return False
    # A call that wrote over what it added is the only one that knows this memory.
    if other.region != node.region or (other not in reusing and may_return_argument(other, module)):
        return False
    for user in other.users:
        if user is node:
            continue
        is_only_read = user in reusing and user.args[1] is not other
        if (
            not user < node
            or user.op == "output"
            or not (is_only_read or not may_return_argument(user, module))
        ):
            return False
    return True
