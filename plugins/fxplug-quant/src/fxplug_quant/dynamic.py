"""The pass that puts int8 layers in the place of linear ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch import nn

from fxplug.passes import Pass, PassContext, PassResult
from fxplug_quant.calls import reason_to_stay
from fxplug_quant.linear import DynamicInt8Linear
from fxplug_quant.options import DynamicInt8Options
from fxplug_quant.paths import Kept, free_path

if TYPE_CHECKING:
    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["DynamicInt8"]


class DynamicInt8(Pass):
    """Replaces each call of an ``nn.Linear`` in evaluation mode by one of a `DynamicInt8Linear`.

    Only the very class counts, a subclass may compute something else. The linear layers themselves are left
    as they are; one that is called in several places becomes one int8 layer. What stays float is listed with
    its reason in ``details["left"]``.

    Args:
        min_features: See `DynamicInt8Options`.
        per_channel: The same.

    Raises:
        ConfigError: An option is out of range.
    """

    def __init__(self, min_features: int = 1, *, per_channel: bool = True) -> None:
        self.options = DynamicInt8Options(min_features, per_channel)

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Replace every call that can be replaced.

        Raises:
            QuantizationError: There is something to replace, but no int8 matrix product on this machine.
        """
        chosen: list[tuple[Node, nn.Linear]] = []
        left: dict[str, str] = {}
        for node in module.graph.nodes:
            if node.op != "call_module":
                continue
            linear = module.get_submodule(node.target)
            if type(linear) is not nn.Linear:
                continue
            reason = self._reason_to_leave(node, linear)
            if reason:
                left[node.name] = reason
            elif context.allows(node, "quantize"):
                chosen.append((node, linear))
        layers = {id(linear): linear for _, linear in chosen}
        quantized = {
            key: DynamicInt8Linear.from_float(linear, per_channel=self.options.per_channel)
            for key, linear in layers.items()
        }
        kept = Kept(module, {node for node, _ in chosen})
        new_paths: dict[str, str] = {}
        for node, linear in chosen:
            path = str(node.target)
            if path not in new_paths:
                new_paths[path] = free_path(module, f"{path}_int8") if kept.concerns(path) else path
                module.add_submodule(new_paths[path], quantized[id(linear)])
            if new_paths[path] != path:
                node.target = new_paths[path]
        return PassResult(
            bool(chosen),
            _summary(len(quantized), left),
            {"quantized": len(quantized), "calls": len(chosen), "left": left},
        )

    def _reason_to_leave(self, node: Node, linear: nn.Linear) -> str:
        """Return why a call stays float; empty when it need not."""
        if not linear.training and min(linear.in_features, linear.out_features) < self.options.min_features:
            return f"fewer than {self.options.min_features} features"
        return reason_to_stay(node, linear)


def _summary(quantized: int, left: dict[str, str]) -> str:
    if not quantized and not left:
        return "no linear layer"
    parts = [f"quantized {quantized or 'no'} linear layer{'' if quantized <= 1 else 's'} to int8"]
    parts += [f"{count} left in float: {reason}" for reason, count in Counter(left.values()).items()]
    return "; ".join(parts)
