"""Measuring what every node of a program takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.analyze.profiling import Profile, check_runs, measure_nodes
from fxplug.api.capturing import as_args
from fxplug.api.costing import captured_for
from fxplug.api.positions import as_inputs
from fxplug.plugins import PluginManager, default_manager

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

__all__ = ["profile"]


def profile(  # noqa: PLR0913 - all that a user may choose, by keyword
    module: nn.Module | Callable[..., Any],
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    runs: int = 10,
    warm_up: int = 3,
    progress: Callable[[int, int], None] | None = None,
    mode: str | None = None,
    manager: PluginManager | None = None,
) -> Profile:
    """Measure the time and the memory that every call of a program takes, without gradients.

    After the warm-up, runs in which each node is measured take turns with calls of the whole module in which nothing
    is, so that the result says how far the parts add up to the whole (`Profile.covered`), and what measuring adds
    (`Profile.overhead_seconds`). On a GPU each node is waited for.

    Every run has copies of the inputs and the same random state. The module, its buffers, and the random state stay as
    they were, in training mode, too; parameters are copied once for that.

    Args:
        module: A graph module, or what is captured first (`trace`).
        example_inputs: The positional arguments of one call, with data.
        example_kwargs: Inputs by name, for parameters that take them by position, too.
        runs: How many runs of either kind are measured.
        warm_up: How many come before.
        progress: Called with (runs done, runs planned).
        mode: How a program is captured; as for `trace`.
        manager: The plugins that take part in a capture; by default the installed ones.

    Returns:
        One entry for each call, in the order of the graph; `Profile.rows` sorts them, and sums them by module or kind.

    Raises:
        ConfigError: There is nothing to measure: no runs, or no data.
        ExampleError: The program fails on the example inputs.
        TraceError: The program cannot be captured.
        AnalysisError: A graph module fails; the message names the node and its line.

    Example:
        ::

            measured = fxplug.profile(model.eval(), (torch.randn(1, 3, 224, 224),))
            print(measured)
            for row in measured.rows("kind", sort="seconds"):
                print(row.name, row.calls, row.seconds, row.spread)
    """
    plugins = default_manager() if manager is None else manager
    args = as_inputs(as_args(example_inputs), example_kwargs, module)
    check_runs(runs, warm_up)
    captured = captured_for(module, args, plugins, mode)
    return measure_nodes(captured, args, runs=runs, warm_up=warm_up, progress=progress)
