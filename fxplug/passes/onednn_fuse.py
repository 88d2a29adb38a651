"""Convolutions and linear layers that do what follows them, in one call of oneDNN on the CPU.

What a network does on images is limited by memory: an activation that is a call of its own reads and writes all of them
once more, and so does the sum of a residual block. The operators that PyTorch has from oneDNN do both at the end of a
convolution, and read weights that lie in memory as they need them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.execute import fetch_path, has_path, set_path
from fxplug.execute.fused import FUSED_MODULES, FusedLayer, onednn_fault, padding_of
from fxplug.ir import Node, effects
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.onednn_memory import settle_memory
from fxplug.passes.sharing import is_customised, is_written
from fxplug.rewrite.adoption import drop_unreached
from fxplug.rewrite.spellings import Spellings

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = ["OneDnnFuse", "OneDnnFuseOptions"]


@dataclass(frozen=True)
class OneDnnFuseOptions:
    """Options of the pass."""

    linear: bool = True
    """Whether linear layers are fused, too."""
    reuse_memory: bool = True
    """Whether a sum may be written into the memory of the value that it is the last one to read."""


class OneDnnFuse(Pass):
    """Lets convolutions and linear layers do the sum and the activation that follow them.

    Modules of float32 on the CPU take part, in evaluation mode, and without hooks. Where the operators of oneDNN do not
    exist, or do not compute what they should, nothing is done.
    """

    def __init__(self, *, linear: bool = True, reuse_memory: bool = True) -> None:
        self._linear = linear
        self._reuse_memory = reuse_memory

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Fuse what can be."""
        fault = onednn_fault()
        if fault:
            return PassResult(modified=False, summary=f"nothing done: oneDNN cannot be used, {fault}")
        search = _Search(module, with_linear=self._linear)
        plans = search.plans()
        refused = {plan.path for plan in plans if not context.allows(plan.node, "fuse")}
        # All calls of a module change, or none.
        allowed = [plan for plan in plans if plan.path not in refused]
        for plan in allowed:
            _apply(module, plan)
        if allowed:
            settle_memory(module, [plan.node for plan in allowed], reuse=self._reuse_memory)
            dropped = [
                str(node.target) for plan in allowed for node in plan.chain if node.op == "call_module"
            ]
            drop_unreached(module, dropped)
        return _result(allowed, search.in_training)


@dataclass
class _Plan:
    """What becomes of one call."""

    node: Node
    path: str
    layer: Any
    add: Node | None = None
    """The sum that follows."""
    in_place: bool = False
    """Whether the sum is written into the value of the layer."""
    activation: str = ""
    numbers: tuple[float, ...] = ()
    chain: list[Node] = field(default_factory=list[Node])
    """The calls that become part of this one, in order."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """What the module has to know; calls of one module need one answer."""
        return self.add is not None, self.in_place, self.activation, self.numbers

    @property
    def is_worth_it(self) -> bool:
        """Whether anything is gained; weights of rank 1 are not packed."""
        return bool(self.chain) or not isinstance(self.layer, nn.Conv1d)

    def reduce(self) -> None:
        """Leave what follows to the calls that do it."""
        self.add = None
        self.in_place, self.activation, self.numbers, self.chain = False, "", (), []


class _Search:
    """Finds what can be fused in a graph, and edits nothing."""

    def __init__(self, module: GraphModule, *, with_linear: bool) -> None:
        self.in_training = 0
        """How many layers were left alone because they are in training mode."""
        self._module = module
        self._with_linear = with_linear
        self._spellings = Spellings(module)
        self._claimed: set[Node] = set()
        self._free: dict[str, bool] = {}
        self._paths = Counter(id(part) for _, part in module.named_modules(remove_duplicate=False))

    def plans(self) -> list[_Plan]:
        """Return what to do, in the order of the graph."""
        layers = [plan for node in self._module.graph.nodes if (plan := self._layer(node)) is not None]
        # Backwards: of two layers whose values are added, the later one takes the sum, and need not move.
        for plan in reversed(layers):
            self._extend(plan)
        by_path: dict[str, list[_Plan]] = {}
        for plan in layers:
            by_path.setdefault(plan.path, []).append(plan)
        for path, group in by_path.items():
            calls = self._module.graph.find_nodes(op="call_module", target=path, sort=False)
            if len(calls) != len(group):
                group.clear()  # Another call of the module cannot be fused at all.
            elif len({plan.kind for plan in group}) > 1:
                for plan in group:
                    plan.reduce()
        kept = {id(plan) for group in by_path.values() for plan in group if plan.is_worth_it}
        return [plan for plan in layers if id(plan) in kept]

    def _layer(self, node: Node) -> _Plan | None:
        if node.op != "call_module" or not has_path(self._module, node.target):
            return None
        path = str(node.target)
        layer = fetch_path(self._module, path)
        given = [*node.args, *node.kwargs.values()]
        if type(layer) not in FUSED_MODULES or (isinstance(layer, nn.Linear) and not self._with_linear):
            return None
        if len(given) != 1 or not isinstance(given[0], Node) or node.kwargs.keys() - {"input"}:
            return None
        if not self._is_free(path, layer):
            return None
        if layer.training:
            self.in_training += 1
            return None
        return _Plan(node, path, layer)

    def _is_free(self, path: str, layer: Any) -> bool:
        """Return whether another module may stand at the path of a layer, and oneDNN can compute it."""
        known = self._free.get(path)
        if known is None:
            known = self._free[path] = (
                not is_customised(layer)
                and _is_computable(layer)
                and self._paths[id(layer)] == 1
                and not self._is_run_inside(path)
                and not is_written(self._module, path)
            )
        return known

    def _is_run_inside(self, path: str) -> bool:
        """Return whether a module above the path is called as a whole, and so calls this one itself."""
        parts = path.split(".")
        above = [".".join(parts[:count]) for count in range(1, len(parts))]
        return any(self._module.graph.find_nodes(op="call_module", target=name, sort=False) for name in above)

    # -- what follows a layer

    def _extend(self, plan: _Plan) -> None:
        value = plan.node
        add = self._only_user(value)
        if add is not None and self._takes_sum(plan, add):
            value = add
        activation = self._only_user(value)
        if activation is None:
            return
        found = self._activation(activation)
        if found is None or (
            plan.add is not None and (found[0] != "relu" or isinstance(plan.layer, nn.Linear))
        ):
            return
        plan.activation, plan.numbers = found
        plan.chain.append(activation)
        self._claimed.add(activation)

    def _only_user(self, value: Node) -> Node | None:
        """Return what alone uses a value, if that is not part of another plan."""
        users = list(value.users)
        if len(users) != 1 or users[0] in self._claimed or users[0].region != value.region:
            return None
        return users[0]

    def _takes_sum(self, plan: _Plan, add: Node) -> bool:
        call = self._spellings.call(add)
        if isinstance(plan.layer, nn.Conv1d) or call is None or call.name not in {"add", "add_"}:
            return False
        first, second = call.arguments.get("self"), call.arguments.get("other")
        alpha = call.arguments.get("alpha", 1)
        if type(alpha) not in {int, float} or alpha != 1 or first is second or "out" in call.arguments:
            return False
        other = second if first is plan.node else first
        # A parameter or buffer that is added is nearly always broadcast.
        if not isinstance(other, Node) or other.op == "get_attr":
            return False
        writes = call.name == "add_"
        if (writes and first is not plan.node) or not self._may_move(plan.node, add):
            return False
        plan.add, plan.in_place = add, writes
        plan.chain.append(add)
        self._claimed.add(add)
        return True

    def _may_move(self, node: Node, place: Node) -> bool:
        """Return whether a layer can run where the sum is: nothing between them writes what it reads."""
        current = node.next
        while current is not place:
            effect = effects.effect_of(current, self._module)
            if current not in self._claimed and (effect.writes or effect.unknown):
                return False
            current = current.next
        return True

    def _activation(self, node: Node) -> tuple[str, tuple[float, ...]] | None:
        """Return name and numbers of the activation that a node is."""
        call = self._spellings.call(node)
        if call is None or (node.op == "call_module" and self._spellings.is_patched(str(node.target))):
            return None
        name, arguments = call.name.rstrip("_"), dict(call.arguments)
        if name in _PLAIN:
            return (name, ()) if len(arguments) == 1 else None
        if name == "relu6":
            return "hardtanh", (0.0, 6.0)
        if name == "gelu":
            return {"none": ("gelu", ()), "tanh": ("gelu_tanh", ())}.get(arguments.get("approximate", "none"))
        if name in _WITH_NUMBERS:
            numbers = [arguments.get(key) for key in _WITH_NUMBERS[name]]
            if all(type(number) in {int, float} for number in numbers):
                return name, tuple(float(number) for number in numbers)  # pyright: ignore[reportArgumentType]
        return None


_PLAIN = frozenset({"relu", "sigmoid", "tanh", "silu", "hardswish", "hardsigmoid"})
_WITH_NUMBERS = {"leaky_relu": ("negative_slope",), "hardtanh": ("min_val", "max_val")}


def _is_computable(layer: Any) -> bool:
    tensors = [tensor for tensor in (layer.weight, layer.bias) if tensor is not None]
    if any(tensor.dtype is not torch.float32 or tensor.device.type != "cpu" for tensor in tensors):
        return False
    if isinstance(layer, nn.Linear):
        return layer.weight.numel() > 0
    return layer.weight.numel() > 0 and layer.padding_mode == "zeros" and padding_of(layer) is not None


def _apply(module: GraphModule, plan: _Plan) -> None:
    """Put the new module in the place of the old one, and one call in the place of several."""
    if not isinstance(fetch_path(module, plan.path), FusedLayer):
        set_path(module, plan.path, _fused(plan))
    node = plan.node
    given = node.args[0] if node.args else node.kwargs["input"]
    node.kwargs = {}
    if plan.add is None:
        node.args = (given,)
    else:
        plan.add.prepend(node)
        node.args = (given, *(used for used in plan.add.all_input_nodes if used is not node))
    for call in plan.chain:
        node.origins = (*node.origins, *call.origins)
    for call in reversed(plan.chain):
        call.replace_all_uses_with(node, delete_user_cb=lambda user: user is not node)
        module.graph.erase_node(call)


def _fused(plan: _Plan) -> FusedLayer:
    kind: Any = FUSED_MODULES[type(plan.layer)]
    return kind(plan.layer, plan.activation, plan.numbers, add=plan.add is not None, in_place=plan.in_place)


def _result(plans: list[_Plan], in_training: int) -> PassResult:
    sums = sum(plan.add is not None for plan in plans)
    activations = sum(bool(plan.activation) for plan in plans)
    linear = sum(isinstance(plan.layer, nn.Linear) for plan in plans)
    details = {
        "convolutions": len(plans) - linear,
        "linear": linear,
        "activations": activations,
        "sums": sums,
        "in_training": in_training,
    }
    if plans:
        text = (
            f"{_count(len(plans) - linear, 'convolution')} and {_count(linear, 'linear layer')} for oneDNN, "
            f"with {_count(activations, 'activation')} and {_count(sums, 'sum')}"
        )
    else:
        text = "nothing to fuse"
    if in_training:
        text += f"; {in_training} left alone in training mode (call eval() first)"
    return PassResult(bool(plans), text, details)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
