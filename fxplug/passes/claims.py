"""Holding a pass to what its record claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.isolation import copy_values
from fxplug.analyze.shapes import ShapeProp, TensorMetadata
from fxplug.passes.references import Kept, seeded
from fxplug.passes.transaction import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.execute import GraphModule
    from fxplug.passes.base import PassContext, PassRecord, PassResult

__all__ = ["idempotence_fault", "preservation_fault", "wrong_shapes"]


def idempotence_fault(module: GraphModule, again: Callable[[Snapshot], PassResult]) -> str:
    """Run a pass on its own result, and undo that.

    Args:
        module: What the pass made.
        again: Runs the pass on it; gets what undoes that.

    Returns:
        What is wrong, as the rest of a sentence about the pass; empty when nothing is.
    """
    claim = "claims to be idempotent, but a second run on its own result"
    snapshot = Snapshot(module)
    snapshot.journal.save_all()
    try:
        result = again(snapshot)
        changed = snapshot.changes_of_state(module)
        if snapshot.graph_changed(module):
            return f"{claim} changes the graph again. Correct it, or leave the claim out."
        if changed:
            return f"{claim} changes {', '.join(changed[:3])}. Correct it, or leave the claim out."
        if result.modified:
            return f"{claim} says modified=True. Return PassResult(modified=False) where nothing was found."
    except Exception as error:  # Whatever a plugin raises.
        return f"{claim} fails: {type(error).__name__}: {str(error).rstrip('.')}."
    finally:
        snapshot.restore()
    return ""


def preservation_fault(record: PassRecord, wrong: frozenset[str]) -> str:
    """Return what is wrong with the analyses that a pass claims to preserve, as the rest of a sentence about it.

    Args:
        record: What claims.
        wrong: The nodes whose noted shapes were right before the pass, and are not now.
    """
    if "shapes" not in record.preserves or not wrong:
        return ""
    named = ", ".join(repr(name) for name in sorted(wrong)[:3])
    return (
        f"claims to preserve 'shapes', but what is noted in node.meta['tensor_meta'] is not right any more for "
        f"{named}. Note the new shapes, or leave the claim out."
    )


def wrong_shapes(module: GraphModule, context: PassContext) -> frozenset[str]:
    """Return the nodes whose noted shapes and dtypes are not those that a run on the example inputs gives."""
    noted = {
        node: _described(node.meta["tensor_meta"])
        for node in module.graph.nodes
        if "tensor_meta" in node.meta
    }
    if not noted or context.example_inputs is None:
        return frozenset()
    inputs = context.example_inputs
    kept = Kept(module)
    try:
        with seeded(), torch.no_grad():
            ShapeProp(module).run(*copy_values(inputs))
        found = {node: _described(node.meta.get("tensor_meta")) for node in noted}
    except Exception:  # Inputs that the module does not take, which other checks tell of.
        return frozenset()
    finally:
        kept.restore()
    return frozenset(node.name for node, known in noted.items() if found[node] != known)


def _described(noted: Any) -> Any:
    """Return shapes and dtypes, which have to be right; layouts and gradients may change."""
    if isinstance(noted, TensorMetadata):
        return tuple(noted.shape), noted.dtype
    if isinstance(noted, dict):
        return {key: _described(value) for key, value in noted.items()}
    if isinstance(noted, (list, tuple)):
        return [_described(value) for value in noted]
    return noted
