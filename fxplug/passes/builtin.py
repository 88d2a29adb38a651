"""The passes and pipelines that fxplug itself offers."""

from __future__ import annotations

from fxplug.passes.base import PassRecord
from fxplug.passes.common_subexpressions import CommonSubexpressions
from fxplug.passes.dead_code import DeadCode
from fxplug.passes.fuse_conv_bn import FuseConvBN
from fxplug.passes.inline_submodules import InlineSubmodules, InlineSubmodulesOptions
from fxplug.passes.propagate_shapes import PropagateShapes
from fxplug.passes.remove_identities import RemoveIdentities

__all__ = ["BUILTIN_PASSES", "BUILTIN_PIPELINES"]

BUILTIN_PASSES: tuple[PassRecord, ...] = (
    PassRecord(
        "dead-code",
        DeadCode,
        "Removes nodes whose value nobody uses and that have no effect.",
        preserves=frozenset({"shapes", "effects"}),
        replaces_parameters=True,
        idempotent=True,
    ),
    PassRecord(
        "common-subexpressions",
        CommonSubexpressions,
        "Makes calls once that are made several times with the same arguments.",
        preserves=frozenset({"shapes"}),
        idempotent=True,
    ),
    PassRecord(
        "fuse-conv-bn",
        FuseConvBN,
        "Folds batch norms in evaluation mode into the convolutions before them.",
        preserves=frozenset({"shapes"}),
        replaces_parameters=True,
        idempotent=True,
    ),
    PassRecord(
        "remove-identities",
        RemoveIdentities,
        "Removes nn.Identity, and dropout that is switched off.",
        preserves=frozenset({"shapes"}),
        idempotent=True,
    ),
    PassRecord(
        "inline-submodules",
        InlineSubmodules,
        "Puts the programs of submodules in the place of their calls.",
        phase="prepare",
        options=InlineSubmodulesOptions,
        idempotent=True,
    ),
    PassRecord(
        "propagate-shapes",
        PropagateShapes,
        "Notes shape and dtype of every value, from the example inputs.",
        phase="finish",
        preserves=frozenset({"shapes", "effects"}),
        idempotent=True,
    ),
)

BUILTIN_PIPELINES: dict[str, tuple[str, ...]] = {
    "inference": ("dead-code", "fuse-conv-bn", "propagate-shapes")
}
"""Name -> passes. A plugin's pass joins one by naming it in its record."""
