"""The dry run of lowering: what backends could run of a model, before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.isolation import SavedState, copy_values, forked_random_state
from fxplug.analyze.runs import observe
from fxplug.api.optimization import DEFAULT_PIPELINE, FOR_EAGER, example_error
from fxplug.api.positions import as_inputs
from fxplug.api.preparing import Preparation, chosen_mode, has_data, is_ready, own_copy
from fxplug.errors import ConfigError
from fxplug.lower import Choices, LoweringReport, plan_lowering
from fxplug.plugins import PluginManager, default_manager

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from fxplug.analyze.runs import Run

__all__ = ["plan"]


def plan(  # noqa: PLR0913 - all that a user may choose, by keyword
    module: nn.Module,
    example_inputs: Sequence[Any] | torch.Tensor | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    backend: str | Sequence[str],
    pipeline: str | None = None,
    passes: Sequence[str | Mapping[str, Any]] | None = None,
    choices: Choices | None = None,
    mode: str | None = None,
    manager: PluginManager | None = None,
) -> LoweringReport:
    """Return what backends would run of a model, and why not the rest, without building anything.

    The model is captured and transformed as `optimize` does it, on a copy.

    Args:
        module: The model.
        example_inputs: The positional arguments of one call; a single tensor stands for itself.
        example_kwargs: Inputs by name, for parameters that take them by position, too.
        backend: Name of a backend; or several, where the first that supports a call runs it.
        pipeline: Name of the pipeline that runs before; by default ``"inference"``, unless passes are named.
        passes: Names of passes instead of a pipeline; an empty sequence runs none.
        choices: What you decide about partitions.
        mode: How the model is captured, as for `optimize`.
        manager: Supplies passes and backends; by default the installed plugins.

    Raises:
        UnknownNameError: A pipeline, pass or backend does not exist.
        ExampleError: The module itself fails on the example inputs.
        TraceError: The module cannot be captured, or there is no such mode.
        ConfigError: `choices` names what is not there.

    Example:
        ::

            print(fxplug.plan(model.eval(), (torch.randn(1, 3, 224, 224),), backend="openvino"))
    """
    if pipeline is not None and passes is not None:
        raise ConfigError(f"Cannot choose between pipeline {pipeline!r} and passes: give one of the two.")
    inputs = as_inputs(example_inputs, example_kwargs, module)
    plugins = default_manager() if manager is None else manager
    names = [backend] if isinstance(backend, str) else list(backend)
    if not names:
        raise ConfigError("Cannot plan a lowering without a backend: name one, such as 'inductor'.")
    offers = [plugins.find_backend(name) for name in names]
    backends = [
        (offer.shown_name, offer.create(**plugins.backend_options(offer.name)))
        for offer in dict.fromkeys(offers)
    ]
    steps = plugins.resolve_pipeline(list(passes) if passes is not None else pipeline or DEFAULT_PIPELINE)
    if passes is None:
        steps = steps.without(*FOR_EAGER)
    chosen = chosen_mode(mode, plugins)
    original = SavedState(module)
    preparation = Preparation(module, inputs, original, mode=chosen, manager=plugins)
    try:
        with forked_random_state():
            prepared = preparation.prepare(_run(module, inputs, original))
            copied = own_copy(prepared.warn(), type(module).__name__)
        with forked_random_state(), torch.no_grad():
            steps.run(copied, copy_values(inputs), list(plugins.pass_observers()))
            return plan_lowering(copied, backends, example_inputs=copy_values(inputs), choices=choices)
    finally:
        original.restore()


def _run(module: nn.Module, inputs: tuple[Any, ...], saved: SavedState) -> Run | None:
    """Return what a module that is to be captured computes; None where nothing can be compared with it."""
    if is_ready(module) or not has_data(module, inputs):
        return None
    try:
        return observe(module, inputs, saved)
    except (Exception, SystemExit) as error:
        raise example_error(module, inputs, error) from error
