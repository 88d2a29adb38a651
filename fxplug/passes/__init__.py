"""Passes: what they are, how they are ordered and run, and the built-in ones."""

from __future__ import annotations

from fxplug.passes.analyses import ANALYSES, AnalysisResult, analyze, check_preserved, known_facts
from fxplug.passes.base import PHASES, Pass, PassContext, PassEvent, PassRecord, PassResult, Phase
from fxplug.passes.bisection import Judgement
from fxplug.passes.builtin import BUILTIN_PASSES, BUILTIN_PIPELINES
from fxplug.passes.changes import NodeChanges
from fxplug.passes.channels_last import ChannelsLast
from fxplug.passes.common_subexpressions import CommonSubexpressions
from fxplug.passes.dead_code import DeadCode
from fxplug.passes.derivations import Recipe, TensorOrigin, recipe_of
from fxplug.passes.fold_constants import FoldConstants, FoldConstantsOptions
from fxplug.passes.folding import fold_submodule, named_calls
from fxplug.passes.functionalize import Functionalize
from fxplug.passes.fuse_conv_bn import FuseConvBN, fold_batch_norm
from fxplug.passes.inline_submodules import InlineSubmodules
from fxplug.passes.inlining import inline_submodule
from fxplug.passes.limits import checked_limit
from fxplug.passes.merge_linear import MergeLinear, MergeLinearOptions
from fxplug.passes.mixed_precision import MixedPrecision, MixedPrecisionOptions
from fxplug.passes.normalize import Normalize
from fxplug.passes.onednn_fuse import OneDnnFuse, OneDnnFuseOptions
from fxplug.passes.order import order_passes, order_reasons
from fxplug.passes.original_state import LoadedKeys, load_original_state_dict
from fxplug.passes.partition import group_nodes, group_nodes_by_kind, order_partitions, requirements
from fxplug.passes.parts import Part, PartStyle, build_part, split_into
from fxplug.passes.pipeline import Pipeline
from fxplug.passes.propagate_shapes import PropagateShapes
from fxplug.passes.remove_identities import RemoveIdentities
from fxplug.passes.replace_activations import (
    ReplaceActivations,
    ReplaceActivationsOptions,
    replace_activations,
)
from fxplug.passes.splitting import split_by, split_by_size, split_by_tags, split_module
from fxplug.passes.state_origins import StateOrigins, state_origins
from fxplug.passes.steps import PassReport, PipelineStep
from fxplug.passes.transaction import Snapshot
from fxplug.passes.verification import LEVELS, Level, PassVerificationError, UnverifiableError, Verification

__all__ = [
    "ANALYSES",
    "BUILTIN_PASSES",
    "BUILTIN_PIPELINES",
    "LEVELS",
    "PHASES",
    "AnalysisResult",
    "ChannelsLast",
    "CommonSubexpressions",
    "DeadCode",
    "FoldConstants",
    "FoldConstantsOptions",
    "Functionalize",
    "FuseConvBN",
    "InlineSubmodules",
    "Judgement",
    "Level",
    "LoadedKeys",
    "MergeLinear",
    "MergeLinearOptions",
    "MixedPrecision",
    "MixedPrecisionOptions",
    "NodeChanges",
    "Normalize",
    "OneDnnFuse",
    "OneDnnFuseOptions",
    "Part",
    "PartStyle",
    "Pass",
    "PassContext",
    "PassEvent",
    "PassRecord",
    "PassReport",
    "PassResult",
    "PassVerificationError",
    "Phase",
    "Pipeline",
    "PipelineStep",
    "PropagateShapes",
    "Recipe",
    "RemoveIdentities",
    "ReplaceActivations",
    "ReplaceActivationsOptions",
    "Snapshot",
    "StateOrigins",
    "TensorOrigin",
    "UnverifiableError",
    "Verification",
    "analyze",
    "build_part",
    "check_preserved",
    "checked_limit",
    "fold_batch_norm",
    "fold_submodule",
    "group_nodes",
    "group_nodes_by_kind",
    "inline_submodule",
    "known_facts",
    "load_original_state_dict",
    "named_calls",
    "order_partitions",
    "order_passes",
    "order_reasons",
    "recipe_of",
    "replace_activations",
    "requirements",
    "split_by",
    "split_by_size",
    "split_by_tags",
    "split_into",
    "split_module",
    "state_origins",
]
