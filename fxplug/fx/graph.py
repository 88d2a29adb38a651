"""The graph and the generation of its code."""

from __future__ import annotations

from fxplug.codegen import CodeGen
from fxplug.ir import Graph, PythonCode, map_arg

__all__ = ["CodeGen", "Graph", "PythonCode", "map_arg"]
