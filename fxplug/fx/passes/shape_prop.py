"""Shapes and dtypes of every value."""

from __future__ import annotations

from fxplug.analyze import ShapeProp, TensorMetadata

__all__ = ["ShapeProp", "TensorMetadata"]
