"""Running one pass on a module: watched, counted and limited."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from fxplug.errors import PassError
from fxplug.passes.changes import ChangeCounter, graphs_below
from fxplug.passes.limits import time_limit

if TYPE_CHECKING:
    from collections.abc import Generator

    from fxplug.execute import GraphModule
    from fxplug.passes.base import PassContext, PassResult, PipelineStep
    from fxplug.passes.changes import NodeChanges
    from fxplug.passes.transaction import Snapshot

__all__ = ["apply_pass", "run_pass"]


def apply_pass(step: PipelineStep, module: GraphModule, context: PassContext) -> PassResult:
    """Make a pass, and let it work.

    Raises:
        PassError: What its record gives is no pass.
    """
    factory: Any = step.record.factory
    if not callable(factory):
        raise PassError(f"{step.title} cannot be made: its factory is {factory!r}. Give a callable.")
    made: Any = factory(**step.options)
    if isinstance(made, type) or not callable(getattr(made, "run", None)):
        found = made.__name__ if isinstance(made, type) else type(made).__name__
        raise PassError(
            f"{step.title} cannot be run: its factory returned "
            f"{'the class' if isinstance(made, type) else 'a'} {found} instead of a Pass."
        )
    return made.run(module, context)


@contextmanager
def _modes_kept() -> Generator[None]:
    """Give back what a pass may have switched for all that follows: gradients and the default dtype."""
    gradients, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_grad_enabled(gradients)
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)


def run_pass(
    step: PipelineStep, module: GraphModule, context: PassContext, snapshot: Snapshot
) -> tuple[PassResult, NodeChanges]:
    """Make a pass and run it, here.

    Args:
        step: The pass.
        module: Transformed in place.
        context: What the pass may know besides.
        snapshot: The module as it was; hears of writes.

    Returns:
        What the pass returned, unchecked, and how many nodes it changed.

    Raises:
        PassTimeoutError: It took longer than the step allows.
    """
    graphs = snapshot.graphs
    counter = ChangeCounter(graphs)
    limit = time_limit(step.time_limit, step.title, graphs, snapshot.journal)
    with _modes_kept(), snapshot.watching(), counter.listening(), limit:
        result = apply_pass(step, module, context)
    return result, counter.changes(graphs_below(module))
