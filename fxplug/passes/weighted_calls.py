"""Calls that multiply by a weight and add a bias: linear layers and convolutions, as modules or as functions."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.errors import GraphError
from fxplug.execute import set_path
from fxplug.execute.aliases import memory_of
from fxplug.ir import Node, effects
from fxplug.passes.sharing import free_path, is_customised, is_shared
from fxplug.rewrite.calls import value_at
from fxplug.semantics.internals import persists

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from fxplug.execute import GraphModule

__all__ = [
    "WeightedCall",
    "are_plain",
    "arguments_of",
    "fits_in_dtype",
    "give_argument",
    "new_parameter",
    "read_attribute",
    "read_weighted_call",
    "replace_weights",
    "reweighted",
]

_NAMES = (
    "linear",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
)
_FUNCTIONS: dict[Any, str] = {getattr(functional, name): name for name in _NAMES}
# Exact classes only: a subclass may compute something else.
_MODULES: dict[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.Conv1d: "conv1d",
    nn.Conv2d: "conv2d",
    nn.Conv3d: "conv3d",
    nn.ConvTranspose1d: "conv_transpose1d",
    nn.ConvTranspose2d: "conv_transpose2d",
    nn.ConvTranspose3d: "conv_transpose3d",
}
_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_KINDS = frozenset({torch.Tensor, nn.Parameter})


@dataclass(frozen=True)
class WeightedCall:
    """A call of a linear layer or convolution whose weights are known."""

    node: Node
    """The call."""
    operator: str
    """What it computes: ``"linear"``, ``"conv2d"``, ``"conv_transpose1d"``."""
    source: Node
    """What it is given."""
    weight: torch.Tensor
    bias: torch.Tensor | None
    groups: int
    training: bool
    """Whether what holds the weights is in training mode."""
    called: nn.Module | None = None
    """The module that is called; None for a function."""
    reads: tuple[Node, ...] = ()
    """The nodes that read weight and bias of a function."""

    @property
    def is_transposed(self) -> bool:
        """Whether it is a transposed convolution: its weight has the input channels first."""
        return self.operator.startswith("conv_transpose")

    @property
    def rank(self) -> int | None:
        """How many dimensions an input with a batch has; None where a linear layer takes any."""
        return None if self.operator == "linear" else int(self.operator[-2]) + 2

    @property
    def channels(self) -> int:
        """How many channels, or features, it puts out."""
        return self.weight.shape[1] * self.groups if self.is_transposed else self.weight.shape[0]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Weight and bias, as far as there are."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]


def read_weighted_call(module: GraphModule, node: Node, written: Collection[Hashable]) -> WeightedCall | None:
    """Return a node as a call with weights; None where it is none, or one whose weights cannot be changed.

    Args:
        module: What the graph's paths refer to.
        node: Any node.
        written: What identifies the memory that the graph may write; weights in there are not those of later runs.
    """
    if node.op == "call_module":
        call = _of_module(module, node)
    else:
        call = _of_function(module, node) if node.op == "call_function" else None
    if call is None or not are_plain(call.tensors, written) or effects.effect_of(node, module).must_be_kept:
        return None
    if call.operator == "linear" and call.weight.dim() != 2:
        return None
    return call


def _of_module(module: GraphModule, node: Node) -> WeightedCall | None:
    called: Any = value_at(module, str(node.target))
    operator = _MODULES.get(type(called))
    if operator is None or is_customised(called) or not _has_parameters(called):
        return None
    source = (arguments_of(module, node) or {}).get("input")
    if not isinstance(source, Node):
        return None
    return WeightedCall(
        node,
        operator,
        source,
        called.weight,
        called.bias,
        getattr(called, "groups", 1),
        called.training,
        called,
    )


def _has_parameters(called: Any) -> bool:
    return isinstance(called.weight, nn.Parameter) and isinstance(called.bias, (nn.Parameter, type(None)))


def _of_function(module: GraphModule, node: Node) -> WeightedCall | None:
    operator = _name_of(node.target)
    given = arguments_of(module, node) if operator is not None else None
    if operator is None or given is None:
        return None
    source, groups = given["input"], given.get("groups", 1)
    weight, bias = (read_attribute(module, given.get(name)) for name in ("weight", "bias"))
    if not isinstance(source, Node) or type(groups) is not int or weight is None:
        return None
    if bias is None and given.get("bias") is not None:
        return None
    reads = [given["weight"], *([] if bias is None else [given["bias"]])]
    return WeightedCall(
        node, operator, source, weight, bias, groups, module.training, reads=tuple(dict.fromkeys(reads))
    )


def _name_of(function: Any) -> str | None:
    return _FUNCTIONS.get(function) if getattr(type(function), "__hash__", None) is not None else None


def arguments_of(module: GraphModule, node: Node) -> Mapping[str, Any] | None:
    """Return the arguments of a call by name, None where they do not fit."""
    try:
        pair = node.normalized_arguments(module, normalize_to_only_use_kwargs=True)
    except GraphError:  # Several overloads would give the arguments different meanings.
        return None
    return None if pair is None else pair.kwargs


def read_attribute(module: GraphModule, value: Any) -> torch.Tensor | None:
    """Return the tensor that an argument reads from the module; None where it is something else."""
    if not isinstance(value, Node) or value.op != "get_attr":
        return None
    found = value_at(module, str(value.target), module.graph.lifted)
    return found if isinstance(found, torch.Tensor) else None


def are_plain(tensors: Collection[torch.Tensor | None], written: Collection[Hashable]) -> bool:
    """Return whether new weights can be computed from tensors once and for all.

    They hold real floating-point numbers of one dtype on one device, are of no class of their own, and are neither
    computed from others nor written.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    first = given[0]
    return all(
        type(tensor) in _KINDS
        and tensor.dtype in _DTYPES
        and tensor.layout is torch.strided
        and tensor.is_leaf
        and (tensor.dtype, tensor.device) == (first.dtype, first.device)
        and memory_of(tensor).isdisjoint(written)
        for tensor in given
    )


# -- new weights ---------------------------------------------------------------------------------------------------


def fits_in_dtype(*tensors: torch.Tensor | None) -> bool:
    """Return whether computed weights fit into their dtype; asked of float16, whose numbers end at 65504."""
    return all(
        tensor is None
        or tensor.dtype is not torch.float16
        or tensor.is_meta
        or bool(torch.isfinite(tensor).all())
        for tensor in tensors
    )


def new_parameter(value: torch.Tensor, *sources: torch.Tensor | None) -> torch.Tensor:
    """Return a tensor as a parameter that trains if a source does, or as a plain one where no source is a parameter."""
    if not any(isinstance(source, nn.Parameter) for source in sources):
        return value
    trains = any(source is not None and source.requires_grad for source in sources)
    return nn.Parameter(value, requires_grad=trains)


def reweighted(called: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    """Return a copy of a module with another weight and bias; nothing of the old ones is copied."""
    fresh = copy.deepcopy(called, {id(called.weight): weight, **_entry(called.bias, bias)})
    fresh.bias = bias
    if isinstance(fresh, nn.Linear):
        fresh.out_features, fresh.in_features = weight.shape
    return fresh


def _entry(old: torch.Tensor | None, new: torch.Tensor | None) -> dict[int, Any]:
    return {} if old is None or new is None else {id(old): new}


def replace_weights(
    module: GraphModule, call: WeightedCall, weight: torch.Tensor, bias: torch.Tensor | None, suffix: str
) -> None:
    """Let a call use other weights. What else uses the old ones keeps them.

    Args:
        module: Changed in place.
        call: The call; its node stays.
        weight: The new weight; of a linear layer, it may have other sizes.
        bias: The new bias.
        suffix: Ends the path of the new weights, where they cannot take the place of the old ones.
    """
    if call.called is not None:
        _call_instead(module, call.node, reweighted(call.called, weight, bias), suffix)
        return
    owner, _, own_name = str(call.reads[0].target).rpartition(".")
    path = free_path(module, f"{owner or own_name}_{suffix}")
    kept = persists(value_at(module, owner) if owner else module, own_name)
    node = call.node
    with module.graph.inserting_before(node):
        for position, name, value in ((1, "weight", weight), (2, "bias", bias)):
            if value is None:
                give_argument(node, position, name, None)
                continue
            set_path(module, f"{path}.{name}", value, persistent=kept)
            read = module.graph.get_attr(f"{path}.{name}")
            read.region, read.origins = node.region, node.origins
            give_argument(node, position, name, read)


def give_argument(node: Node, position: int, name: str, value: Node | None) -> None:
    """Give a call another argument, by position or by name as it has been; None takes one away."""
    if len(node.args) > position:
        node.args = (*node.args[:position], value, *node.args[position + 1 :])
    elif value is not None or name in node.kwargs:
        node.kwargs = {**node.kwargs, name: value}


def _call_instead(module: GraphModule, node: Node, fresh: nn.Module, suffix: str) -> None:
    path = str(node.target)
    sharers = module.graph.find_nodes(op="call_module", target=path, sort=False)
    if len(sharers) > 1 or is_shared(module, path):
        path = free_path(module, f"{path}_{suffix}")
        node.target = path
    set_path(module, path, fresh)
