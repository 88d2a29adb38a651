"""The passes and pipelines that fxplug itself offers."""

from __future__ import annotations

from fxplug.passes.base import PassRecord
from fxplug.passes.common_subexpressions import CommonSubexpressions
from fxplug.passes.dead_code import DeadCode
from fxplug.passes.fuse_conv_bn import FuseConvBN
from fxplug.passes.onednn_fuse import OneDnnFuse, OneDnnFuseOptions
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
        "onednn-fuse",
        OneDnnFuse,
        "Lets convolutions and linear layers on the CPU do the sum and the activation behind them.",
        phase="lower",
        after=("fuse-conv-bn", "remove-identities"),
        options=OneDnnFuseOptions,
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
    "inference": ("dead-code", "remove-identities", "fuse-conv-bn", "onednn-fuse", "propagate-shapes")
}
"""Name -> passes. A plugin's pass joins one by naming it in its record."""
