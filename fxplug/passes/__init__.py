"""Passes: what they are, how they are ordered and run, and the built-in ones."""

from __future__ import annotations

from fxplug.passes.analyses import ANALYSES, AnalysisResult, analyze, check_preserved, known_facts
from fxplug.passes.base import PHASES, Pass, PassContext, PassEvent, PassRecord, PassResult, Phase
from fxplug.passes.builtin import BUILTIN_PASSES, BUILTIN_PIPELINES
from fxplug.passes.dead_code import DeadCode
from fxplug.passes.derivations import Recipe, TensorOrigin, recipe_of
from fxplug.passes.fuse_conv_bn import FuseConvBN, fold_batch_norm
from fxplug.passes.order import order_passes, order_reasons
from fxplug.passes.original_state import LoadedKeys, load_original_state_dict
from fxplug.passes.pipeline import Pipeline
from fxplug.passes.propagate_shapes import PropagateShapes
from fxplug.passes.state_origins import StateOrigins, state_origins
from fxplug.passes.steps import PassReport, PipelineStep
from fxplug.passes.transaction import Snapshot

__all__ = [
    "ANALYSES",
    "BUILTIN_PASSES",
    "BUILTIN_PIPELINES",
    "PHASES",
    "AnalysisResult",
    "DeadCode",
    "FuseConvBN",
    "LoadedKeys",
    "Pass",
    "PassContext",
    "PassEvent",
    "PassRecord",
    "PassReport",
    "PassResult",
    "Phase",
    "Pipeline",
    "PipelineStep",
    "PropagateShapes",
    "Recipe",
    "Snapshot",
    "StateOrigins",
    "TensorOrigin",
    "analyze",
    "check_preserved",
    "fold_batch_norm",
    "known_facts",
    "load_original_state_dict",
    "order_passes",
    "order_reasons",
    "recipe_of",
    "state_origins",
]
