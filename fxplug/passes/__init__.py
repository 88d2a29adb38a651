"""Passes: what they are, how they are ordered and run, and the built-in ones."""

from __future__ import annotations

from fxplug.passes.base import PHASES, Pass, PassContext, PassEvent, PassRecord, PassResult, Phase
from fxplug.passes.bisection import Judgement
from fxplug.passes.builtin import BUILTIN_PASSES, BUILTIN_PIPELINES
from fxplug.passes.changes import NodeChanges
from fxplug.passes.common_subexpressions import CommonSubexpressions
from fxplug.passes.dead_code import DeadCode
from fxplug.passes.fuse_conv_bn import FuseConvBN, fold_batch_norm
from fxplug.passes.limits import checked_limit
from fxplug.passes.order import order_passes, order_reasons
from fxplug.passes.pipeline import Pipeline
from fxplug.passes.propagate_shapes import PropagateShapes
from fxplug.passes.remove_identities import RemoveIdentities
from fxplug.passes.steps import PassReport, PipelineStep
from fxplug.passes.transaction import Snapshot
from fxplug.passes.verification import LEVELS, Level, PassVerificationError, UnverifiableError, Verification

__all__ = [
    "BUILTIN_PASSES",
    "BUILTIN_PIPELINES",
    "LEVELS",
    "PHASES",
    "CommonSubexpressions",
    "DeadCode",
    "FuseConvBN",
    "Judgement",
    "Level",
    "NodeChanges",
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
    "RemoveIdentities",
    "Snapshot",
    "UnverifiableError",
    "Verification",
    "checked_limit",
    "fold_batch_norm",
    "order_passes",
    "order_reasons",
]
