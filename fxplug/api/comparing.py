"""Comparing two modules layer by layer, captured with whatever the installed plugins have to say about them."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.analyze.comparison import Tolerance
from fxplug.analyze.isolation import SavedState, forked_random_state
from fxplug.analyze.layers import ModuleComparison, compare_layers
from fxplug.analyze.runs import observe
from fxplug.api.optimization import example_error
from fxplug.api.positions import as_inputs
from fxplug.api.preparing import Preparation, chosen_mode
from fxplug.errors import ConfigError, shown
from fxplug.execute import GraphModule
from fxplug.plugins import PluginManager, default_manager

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

__all__ = ["compare"]


def compare(  # noqa: PLR0913 - all that a user may choose, by keyword
    reference: nn.Module,
    module: nn.Module,
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    same_dtype: bool = True,
    mode: str | None = None,
    manager: PluginManager | None = None,
) -> ModuleComparison:
    """Run two modules on the same inputs and compare, layer by layer, what they compute.

    Layers belong together where their nodes come from the same place of the program: passes hand origins on, so a
    module is aligned with what a pipeline made of it, also when it comes from a file. What has no counterpart is listed
    in the result. Modules that are no graph modules are captured first, as by `optimize`.

    Both start from the same random state and run without gradients; modules, inputs and the global random state stay as
    they are. Values are compared as they come up, so that memory for two runs is needed, not for all values.

    Args:
        reference: The module that is right.
        module: The module that is judged.
        example_inputs: The positional arguments of one call; a single tensor stands for itself.
        example_kwargs: Inputs by name, for parameters that take them by position, too, in both modules at the same one.
        rtol: Allowed error relative to the expected value, element by element; by default according to dtype.
        atol: Allowed error beside it.
        same_dtype: Whether values have to have the dtype that they have in the reference. Otherwise a module in half
            precision can be compared with one in single precision.
        mode: How modules are captured, as for `optimize`.
        manager: The plugins that take part in captures; by default those that are installed and selected.

    Returns:
        What was found: `first_difference`, `worst`, all `layers`, and whether the outputs agree (`passed`).

    Raises:
        ConfigError: An argument cannot be used.
        ExampleError: A module that is to be captured fails on the inputs.
        TraceError: A module cannot be captured, or there is no such mode.
        MismatchError: What was captured does something else than the module.
        AnalysisError: The modules take different inputs, or one of them fails; the message says which, and where.

    Example:
        ::

            import fxplug as fx

            result = fx.optimize(model.eval(), (images,))
            found = fx.compare(model, result.graph_module, (images,))
            print(found.passed, found.worst)
    """
    for given in (reference, module):
        if not isinstance(given, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"Cannot compare {shown(given)}: give torch.nn.Modules, not a {type(given).__name__}."
            )
    inputs = _inputs_of_both(reference, module, example_inputs, example_kwargs)
    tolerance = Tolerance(rtol, atol)
    plugins = default_manager() if manager is None else manager
    chosen = chosen_mode(mode, plugins)
    first, second = (_captured(given, inputs, chosen, plugins) for given in (reference, module))
    return compare_layers(first, second, inputs, tolerance=tolerance, same_dtype=same_dtype)


def _inputs_of_both(
    reference: nn.Module, module: nn.Module, given: Any, named: Mapping[str, Any] | None
) -> tuple[Any, ...]:
    inputs, others = (as_inputs(given, named, one) for one in (reference, module))
    if len(inputs) != len(others) or not all(map(is_, inputs, others)):
        raise ConfigError(
            f"Cannot compare the modules on example_kwargs: {sorted(named or ())} are parameters at other positions in "
            f"{type(module).__name__} than in {type(reference).__name__}. Give all inputs by position."
        )
    return inputs


def _captured(
    module: nn.Module, inputs: tuple[Any, ...], mode: str | None, manager: PluginManager
) -> GraphModule:
    """Return a module as a graph module: captured as `optimize` does it."""
    if isinstance(module, GraphModule):
        return module
    saved = SavedState(module)
    preparation = Preparation(module, inputs, saved, mode=mode, manager=manager)
    try:
        with forked_random_state():
            try:
                eager = observe(module, inputs, saved)
            except (Exception, SystemExit) as error:
                raise example_error(module, inputs, error) from error
            return preparation.prepare(eager).warn()
    finally:
        saved.restore()
