"""Finding out things about a graph without changing it."""

from __future__ import annotations

from fxplug.analyze.alignment import AlignedBy, Alignment, align
from fxplug.analyze.cost import (
    CallCost,
    CostRow,
    CostTable,
    FlopFormulaRecord,
    NodeCost,
    OperatorCall,
    cost_table,
)
from fxplug.analyze.devices import BUILTIN_DEVICES, DeviceRecord, Estimate, NodeEstimate, estimate_time
from fxplug.analyze.formulas import builtin_formulas
from fxplug.analyze.shapes import (
    ShapeProp,
    TensorMetadata,
    described_copy,
    propagate_shapes,
    shape_text,
)

__all__ = [
    "BUILTIN_DEVICES",
    "AlignedBy",
    "Alignment",
    "CallCost",
    "CostRow",
    "CostTable",
    "DeviceRecord",
    "Estimate",
    "FlopFormulaRecord",
    "NodeCost",
    "NodeEstimate",
    "OperatorCall",
    "ShapeProp",
    "TensorMetadata",
    "align",
    "builtin_formulas",
    "cost_table",
    "described_copy",
    "estimate_time",
    "propagate_shapes",
    "shape_text",
]
