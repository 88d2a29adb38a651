"""The passes and pipelines that fxplug itself offers."""

from __future__ import annotations

from fxplug.passes.base import PassRecord
from fxplug.passes.channels_last import ChannelsLast
from fxplug.passes.common_subexpressions import CommonSubexpressions
from fxplug.passes.dead_code import DeadCode
from fxplug.passes.fold_constants import FoldConstants, FoldConstantsOptions
from fxplug.passes.functionalize import Functionalize
from fxplug.passes.fuse_conv_bn import FuseConvBN
from fxplug.passes.inline_submodules import InlineSubmodules, InlineSubmodulesOptions
from fxplug.passes.merge_linear import MergeLinear, MergeLinearOptions
from fxplug.passes.mixed_precision import MixedPrecision, MixedPrecisionOptions
from fxplug.passes.normalize import Normalize
from fxplug.passes.onednn_fuse import OneDnnFuse, OneDnnFuseOptions
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
        "fold-constants",
        FoldConstants,
        "Computes what is the same in every call once, and holds it.",
        options=FoldConstantsOptions,
        preserves=frozenset({"shapes"}),
        replaces_parameters=True,
        idempotent=True,
    ),
    PassRecord(
        "normalize",
        Normalize,
        "Writes each call in one way, whichever of several its author chose.",
        phase="prepare",
        preserves=frozenset({"shapes"}),
        idempotent=True,
    ),
    PassRecord(
        "functionalize",
        Functionalize,
        "Lets calls that work in place make a new value, where nobody can tell the difference.",
        phase="prepare",
        preserves=frozenset({"shapes"}),
        idempotent=True,
    ),
    PassRecord(
        "channels-last",
        ChannelsLast,
        "Lets convolutions compute with the channels of each pixel side by side in memory.",
        phase="lower",
        replaces_parameters=True,
        idempotent=True,
    ),
    PassRecord(
        "mixed-precision",
        MixedPrecision,
        "Computes products in bfloat16 or float16, and everything else in float32.",
        options=MixedPrecisionOptions,
        phase="lower",
        replaces_parameters=True,
        idempotent=True,
        tolerance=0.05,
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
        "onednn-fuse",
        OneDnnFuse,
        "Lets convolutions and linear layers on the CPU do the sum and the activation behind them.",
        phase="lower",
        after=("fuse-conv-bn", "remove-identities"),
        options=OneDnnFuseOptions,
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
    "inference": ("dead-code", "remove-identities", "fuse-conv-bn", "onednn-fuse", "propagate-shapes")
}
"""Name -> passes. A plugin's pass joins one by naming it in its record."""
