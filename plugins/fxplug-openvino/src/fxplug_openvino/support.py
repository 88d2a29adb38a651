"""Why a node stays in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.ir import Node, effects, qualified_name, writes
from fxplug_openvino.table import MODULES, find_row

if TYPE_CHECKING:
    from fxplug.lower import LoweringContext

__all__ = ["reason_against", "reason_against_effects"]

# Inside these a forward computes what it computes outside.
_HARMLESS_REGIONS: tuple[Any, ...] = (
    torch.no_grad,
    torch.enable_grad,
    torch.inference_mode,
    torch.set_grad_enabled,
)
_STATISTICS = writes("state", "running_mean", "running_var", 1, 2).writes
_FIRST_ARGUMENT = writes(0).writes


def reason_against(node: Node, context: LoweringContext) -> str:
    """Return why OpenVINO cannot run a node, for people; empty when it can.

    Only what is called is looked at, and what the call does besides computing its value; not dtypes and shapes.

    Args:
        node: Any node of the module in `context`; those that are no calls are never in the way.
        context: Knows the module.
    """
    if not node.op.startswith("call_"):
        return ""
    if find_row(node, context) is None:
        return _not_in_table(node, context)
    return reason_against_effects(node, context)


def reason_against_effects(node: Node, context: LoweringContext) -> str:
    """Return why a call cannot run in OpenVINO for what it does besides computing; empty when it can.

    Args:
        node: A call of the module in `context`.
        context: Knows the module.
    """
    for entry in node.region:
        if entry.context not in _HARMLESS_REGIONS:
            return f"it runs inside {qualified_name(entry.context)}, whose rules OpenVINO does not follow"
    return _effect_against(node, context)


def _not_in_table(node: Node, context: LoweringContext) -> str:
    if node.op == "call_method":
        return f"the tensor method {node.target!r} is not in the table of fxplug-openvino"
    if node.target is getattr:
        return f"the attribute {node.args[1]!r} is not in the table of fxplug-openvino"
    if node.op == "call_function":
        return f"the function {qualified_name(node.target)} is not in the table of fxplug-openvino"
    kind = type(context.module.get_submodule(node.target))
    name = f"{kind.__module__}.{kind.__qualname__}"
    for known in MODULES:
        if issubclass(kind, known):
            return f"the module class {name} derives from {known.__name__} and may compute something else"
    if kind.__module__.startswith("torch.nn."):
        return f"the module class {name} is not in the table of fxplug-openvino"
    return (
        f"the module class {name} is not in the table of fxplug-openvino; to have its forward traced, add it to "
        f"through_modules in [tool.fxplug.trace]"
    )


def _effect_against(node: Node, context: LoweringContext) -> str:
    effect = effects.effect_of(node, context.module)
    if not effect.must_be_kept:
        return ""
    if effect.unknown or effect.outside:
        return "it has hooks or a forward of its own, or does something else that OpenVINO would leave out"
    if effect.random:
        return "it draws random numbers; call eval() on the model before it is captured"
    if effect.writes <= _STATISTICS:
        return "it updates its running statistics; call eval() on the model before it is captured"
    if effect.writes != _FIRST_ARGUMENT:
        return "it writes its result into another tensor"
    written = node.args[0] if node.args else None
    if isinstance(written, Node) and _is_private(written, context):
        return ""
    return f"it changes {written!r} in place, which others may read; use the form that returns a new tensor"


def _is_private(node: Node, context: LoweringContext) -> bool:
    """Return whether nobody but the one user of `node` can see its value: it is new memory, or that of such a value."""
    waiting = [node]
    while waiting:
        value = waiting.pop()
        if not value.op.startswith("call_") or len(value.users) != 1:
            return False
        row = find_row(value, context)
        if row is None:  # It may return what it was given, as torchvision's stochastic_depth does.
            if not effects.effect_of(value, context.module).is_pure:
                return False
            waiting += value.all_input_nodes
        elif row.shares_memory:
            return False
    return True
