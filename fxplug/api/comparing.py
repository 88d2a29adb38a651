"""Comparing two modules layer by layer, captured with whatever the installed plugins have to say about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.analyze.comparison import Tolerance
from fxplug.analyze.isolation import SavedState, forked_random_state, tensors_in
from fxplug.analyze.layers import ModuleComparison, compare_layers
from fxplug.api.optimization import as_inputs, example_error
from fxplug.api.tracing import trace
from fxplug.api.user_errors import error_text
from fxplug.errors import ConfigError, FxplugError
from fxplug.execute import GraphModule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxplug.plugins import PluginManager

__all__ = ["compare"]


def compare(
    reference: nn.Module,
    module: nn.Module,
    example_inputs: Sequence[Any] | torch.Tensor,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    same_dtype: bool = True,
    manager: PluginManager | None = None,
) -> ModuleComparison:
    """Run two modules on the same inputs and compare, layer by layer, what they compute.

    Layers belong together where their nodes come from the same place of the program: passes hand origins on, so a
    module is aligned with what a pipeline made of it, also when it comes from a file. What has no counterpart is listed
    in the result. Modules that are no graph modules are captured with the inputs first (see `trace`).

    Both start from the same random state and run without gradients; modules, inputs and the global random state stay as
    they are. Values are compared as they come up, so that memory for two runs is needed, not for all values.

    Args:
        reference: The module that is right.
        module: The module that is judged.
        example_inputs: The positional arguments of one call; a single tensor stands for itself.
        rtol: Allowed error relative to the expected value, element by element; by default according to dtype.
        atol: Allowed error beside it.
        same_dtype: Whether values have to have the dtype that they have in the reference. Otherwise a module in half
            precision can be compared with one in single precision.
        manager: The plugins that take part in captures; by default those that are installed and selected.

    Returns:
        What was found: `first_difference`, `worst`, all `layers`, and whether the outputs agree (`passed`).

    Raises:
        ConfigError: An argument cannot be used.
        ExampleError: A module that is to be captured fails on the inputs.
        TraceError: A module cannot be captured.
        AnalysisError: The modules take different inputs, or one of them fails; the message says which, and where.

    Example:
        ::

            import fxplug as fx

            result = fx.optimize(model.eval(), (images,))
            found = fx.compare(model, result.graph_module, (images,))
            print(found.passed, found.worst)
    """
    inputs = as_inputs(example_inputs)
    for given in (reference, module):
        if not isinstance(given, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"Cannot compare {given!r}: give torch.nn.Modules, not a {type(given).__name__}."
            )
    tolerance = Tolerance(rtol, atol)
    first, second = (_captured(given, inputs, manager) for given in (reference, module))
    return compare_layers(first, second, inputs, tolerance=tolerance, same_dtype=same_dtype)


def _captured(module: nn.Module, inputs: tuple[Any, ...], manager: PluginManager | None) -> GraphModule:
    if isinstance(module, GraphModule):
        return module
    saved = SavedState(module)
    try:
        with forked_random_state([*module.parameters(), *tensors_in(inputs)]):
            return trace(module, inputs, check=False, manager=manager)
    except FxplugError:
        raise
    except Exception as error:
        saved.restore()
        try:
            with forked_random_state([*module.parameters(), *tensors_in(inputs)]), torch.no_grad():
                module(*inputs)
        except Exception as own:
            raise example_error(module, inputs, own) from own
        raise ConfigError(f"Cannot capture {type(module).__name__}: {error_text(error)}.") from error
    finally:
        saved.restore()
