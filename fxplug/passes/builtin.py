"""The passes and pipelines that fxplug itself offers."""

from __future__ import annotations

from fxplug.passes.base import PassRecord
from fxplug.passes.common_subexpressions import CommonSubexpressions
from fxplug.passes.dead_code import DeadCode
from fxplug.passes.fuse_conv_bn import FuseConvBN
from fxplug.passes.merge_linear import MergeLinear, MergeLinearOptions
from fxplug.passes.propagate_shapes import PropagateShapes
from fxplug.passes.remove_identities import RemoveIdentities
from fxplug.passes.replace_activations import ReplaceActivations, ReplaceActivationsOptions

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
        "Folds batch norms in evaluation mode into the convolutions and linear layers before them.",
        preserves=frozenset({"shapes"}),
        replaces_parameters=True,
        idempotent=True,
    ),
    PassRecord(
        "merge-linear",
        MergeLinear,
        "Merges linear layers in evaluation mode with nothing between them.",
        options=MergeLinearOptions,
        preserves=frozenset({"shapes"}),
        replaces_parameters=True,
        idempotent=True,
    ),
    PassRecord(
        "replace-activations",
        ReplaceActivations,
        "Replaces activation functions by others.",
        phase="prepare",
        options=ReplaceActivationsOptions,
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
