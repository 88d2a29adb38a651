"""What a program costs, and how long it takes on a device at best, with what plugins know about both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.analyze import (
    CostTable,
    DeviceRecord,
    Estimate,
    cost_table,
    described_copy,
    estimate_time,
)
from fxplug.analyze.isolation import SavedState, tensors_in
from fxplug.analyze.layers import RunFailure, failing_node
from fxplug.analyze.memory import bytes_of_state
from fxplug.analyze.parts import MemoryPropWithParts, ShapePropWithParts
from fxplug.analyze.runs import observe
from fxplug.api.capturing import as_args
from fxplug.api.optimization import example_error
from fxplug.api.positions import as_inputs
from fxplug.api.tracing import trace
from fxplug.errors import FxplugError
from fxplug.execute import GraphModule
from fxplug.plugins import PluginManager, default_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

__all__ = ["captured_for", "cost", "estimate"]


def cost(
    module: nn.Module | Callable[..., Any],
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    mode: str | None = None,
    manager: PluginManager | None = None,
) -> CostTable:
    """Count the multiply-adds of every call of a program, the bytes that it reads and writes, and the memory it takes.

    Nothing is computed. Multiply-adds and bytes are counted from shapes, by formulas of fxplug and of plugins (the hook
    ``fxplug_register_flop_formulas``). A call that no formula knows stands in the table with None, and under
    `CostTable.unknown`. Additions alone and functions such as ``exp`` count as one multiply-add for each element;
    comparisons, such as those of ``relu``, and copies count none. Bytes are those of each call on its own: a result
    that is used twice is read twice.

    Memory is that of one call without gradients (`CostTable.peak_bytes`): every tensor is followed from where it is
    made to where nothing refers to it any more, as in the generated code, also inside of modules that are one call.

    Args:
        module: A graph module, or what is captured first (`trace`).
        example_inputs: The positional arguments of one call. On the meta device nothing needs to have data.
        example_kwargs: Inputs by name, for parameters that take them by position, too.
        mode: How a program is captured; as for `trace`.
        manager: Supplies formulas; by default the installed plugins.

    Returns:
        One entry for each call, in the order of the graph, also for those inside of graph modules that it calls;
        `CostTable.rows` sorts them, and sums them by module.

    Raises:
        ExampleError: The program fails on the example inputs.
        TraceError: The program cannot be captured.
        AnalysisError: A graph module fails on the example inputs; the message names the node and its line.
        PluginError: A formula of a plugin failed.

    Example:
        ::

            costs = fxplug.cost(model, (torch.randn(1, 3, 224, 224),))
            print(costs)
            print(costs.rows("module", sort="multiply_adds")[:5])
            print(costs.peak_bytes, costs.peak_node)
    """
    plugins = default_manager() if manager is None else manager
    args = as_inputs(as_args(example_inputs), example_kwargs, module)
    captured = captured_for(module, args, plugins, mode)
    described = _described(captured, args)
    state = module if isinstance(module, nn.Module) else captured
    table = cost_table(described, plugins.flop_formulas(), state=state)
    return replace(table, input_bytes=bytes_of_state(tensors_in(args)))


def _described(module: GraphModule, args: tuple[Any, ...]) -> GraphModule:
    """Return a copy whose nodes have notes of shapes, and of memory where the program can be followed."""
    failure: RunFailure | None = None
    for interpreter in (
        MemoryPropWithParts,
        ShapePropWithParts,
    ):  # Some calls do not run where somebody hears of operators.
        try:
            return described_copy(module, *args, interpreter=interpreter)
        except Exception as error:
            failure = failure or failing_node(module, args)
            if failure is not None:
                raise failure from error
            if interpreter is ShapePropWithParts:
                raise
    raise AssertionError  # Either of them has returned or raised.


def captured_for(
    module: nn.Module | Callable[..., Any],
    args: tuple[Any, ...],
    manager: PluginManager,
    mode: str | None = None,
) -> GraphModule:
    """Return a graph module as it is, and anything else captured on the inputs.

    Raises:
        ExampleError: The program does not run on the inputs.
        TraceError: It cannot be captured, or there is no such mode.
    """
    if isinstance(module, GraphModule):
        return module
    try:
        return trace(module, args, mode=mode, check=False, manager=manager)
    except FxplugError:
        raise
    except Exception as error:
        if not isinstance(module, nn.Module) or _runs(module, args):
            raise
        raise example_error(module, args, error) from error


def _runs(module: nn.Module, args: tuple[Any, ...]) -> bool:
    """Return whether a module runs where nobody captures it; it is left as it was."""
    saved = SavedState(module)
    try:
        observe(module, args, saved)
    except (Exception, SystemExit):
        return False
    return True


def estimate(
    module: nn.Module | Callable[..., Any],
    example_inputs: Sequence[Any] | torch.Tensor,
    device: str | DeviceRecord,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    mode: str | None = None,
    manager: PluginManager | None = None,
) -> Estimate:
    """Estimate the least time that a program takes on a device: nothing is measured, and no device is needed.

    For each call it is the time of its multiply-adds at the highest rate of the device, or the time of its bytes at
    the bandwidth of its memory, whichever is longer. Real programs take longer.

    Args:
        module: As for `cost`.
        example_inputs: As for `cost`.
        device: A device, or the name of one that fxplug or a plugin describes (`PluginManager.devices`).
        example_kwargs: As for `cost`.
        mode: As for `cost`.
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
    return estimate_time(
        cost(module, example_inputs, example_kwargs=example_kwargs, mode=mode, manager=plugins), record
    )
