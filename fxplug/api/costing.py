"""What a program costs, and how long it takes on a device at best, with what plugins know about both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.analyze import CostTable, DeviceRecord, Estimate, cost_table, described_copy, estimate_time
from fxplug.api.capturing import as_args
from fxplug.api.tracing import trace
from fxplug.execute import GraphModule
from fxplug.plugins import PluginManager, default_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import nn

__all__ = ["cost", "estimate"]


def cost(
    module: nn.Module | Callable[..., Any],
    example_inputs: Sequence[Any] | torch.Tensor,
    *,
    manager: PluginManager | None = None,
) -> CostTable:
    """Count the multiply-adds of every call of a program, and the bytes that it reads and writes.

    Both are counted from shapes, by formulas of fxplug and of plugins (the hook ``fxplug_register_flop_formulas``). A
    call that no formula knows stands in the table with None, and under `CostTable.unknown`. Additions alone and
    functions such as ``exp`` count as one multiply-add for each element; comparisons, such as those of ``relu``, and
    copies count none. Bytes are those of each call on its own: a result that is used twice is read twice.

    Args:
        module: A graph module, or what is captured first (`trace`).
        example_inputs: The positional arguments of one call. On the meta device nothing needs to have data.
        manager: Supplies formulas; by default the installed plugins.

    Returns:
        One entry for each call, in the order of the graph.

    Raises:
        TraceError: The program cannot be captured.
        PluginError: A formula of a plugin failed.

    Example:
        ::

            costs = fxplug.cost(model, (torch.randn(1, 3, 224, 224),))
            print(costs)
            print(max(costs.nodes, key=lambda node: node.multiply_adds or 0))
    """
    plugins = default_manager() if manager is None else manager
    args = as_args(example_inputs)
    captured = module
    if not isinstance(captured, GraphModule):
        captured = trace(module, args, check=False, manager=plugins)
    return cost_table(described_copy(captured, *args), plugins.flop_formulas())


def estimate(
    module: nn.Module | Callable[..., Any],
    example_inputs: Sequence[Any] | torch.Tensor,
    device: str | DeviceRecord,
    *,
    manager: PluginManager | None = None,
) -> Estimate:
    """Estimate the least time that a program takes on a device: nothing is measured, and no device is needed.

    For each call it is the time of its multiply-adds at the highest rate of the device, or the time of its bytes at
    the bandwidth of its memory, whichever is longer. Real programs take longer.

    Args:
        module: As for `cost`.
        example_inputs: As for `cost`.
        device: A device, or the name of one that fxplug or a plugin describes (`PluginManager.devices`).
        manager: Supplies formulas and devices; by default the installed plugins.

    Returns:
        One entry for each call, in the order of the graph.

    Raises:
        UnknownNameError: No such device is described.
        TraceError: The program cannot be captured.
        PluginError: A formula of a plugin failed.

    Example:
        ::

            print(fxplug.estimate(model, (torch.randn(1, 3, 224, 224),), "nvidia-h200-sxm"))
    """
    plugins = default_manager() if manager is None else manager
    record = plugins.find_device(device).record if isinstance(device, str) else device
    return estimate_time(cost(module, example_inputs, manager=plugins), record)
