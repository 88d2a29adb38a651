"""Finding out things about a graph without changing it."""

from __future__ import annotations

from fxplug.analyze.shapes import ShapeProp, TensorMetadata, propagate_shapes, shape_text

__all__ = ["ShapeProp", "TensorMetadata", "propagate_shapes", "shape_text"]
