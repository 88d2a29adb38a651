"""The representation: nodes, graphs, arguments, names, origins, regions and effects. Knows nothing of torch."""

from __future__ import annotations

from fxplug.ir.arguments import (
    EMPTY_DICT,
    Argument,
    immutable_dict,
    immutable_list,
    iterate_leaves,
    map_aggregate,
)
from fxplug.ir.code import (
    PLAIN_STYLE,
    CodeGenerator,
    CodeTransformer,
    PythonCode,
    SourceMaker,
    SourceStyle,
    Transformation,
    install_generator,
)
from fxplug.ir.data import NodeRef, graph_from_data, graph_to_data
from fxplug.ir.description import argument_text
from fxplug.ir.display import notebook_bundle, show_in_notebooks
from fxplug.ir.effects import OUTSIDE, PURE, RANDOM, UNKNOWN, Effect, EffectRegistry, effects, writes
from fxplug.ir.finding import register_path
from fxplug.ir.graph import Graph
from fxplug.ir.lifetimes import last_uses
from fxplug.ir.lint import check_structure, find_structure_faults
from fxplug.ir.naming import (
    Namespace,
    are_usable,
    is_class_method,
    is_reserved,
    qualified_name,
    register_namespace,
)
from fxplug.ir.node import (
    OPCODES,
    PATH_OPCODES,
    Node,
    NodeOwner,
    Opcode,
    Target,
    exact_text,
    map_arg,
)
from fxplug.ir.normalization import (
    ArgsKwargsPair,
    CallTypes,
    NormalizationRegistry,
    bind_arguments,
    normalization,
)
from fxplug.ir.origins import MadeBy, ModuleScope, Origin, SourceLine, StoredOrigin
from fxplug.ir.parameters import find_parameter_faults, is_plain_name, split_stars
from fxplug.ir.printing import TABLE_HEADER, format_table, node_rows
from fxplug.ir.regions import PLAIN, Region, RegionEntry, common_depth
from fxplug.ir.ring import NodeList
from fxplug.ir.text import printable, tensor_text, type_text

__all__ = [
    "EMPTY_DICT",
    "OPCODES",
    "OUTSIDE",
    "PATH_OPCODES",
    "PLAIN",
    "PLAIN_STYLE",
    "PURE",
    "RANDOM",
    "TABLE_HEADER",
    "UNKNOWN",
    "ArgsKwargsPair",
    "Argument",
    "CallTypes",
    "CodeGenerator",
    "CodeTransformer",
    "Effect",
    "EffectRegistry",
    "Graph",
    "MadeBy",
    "ModuleScope",
    "Namespace",
    "Node",
    "NodeList",
    "NodeOwner",
    "NodeRef",
    "NormalizationRegistry",
    "Opcode",
    "Origin",
    "PythonCode",
    "Region",
    "RegionEntry",
    "SourceLine",
    "SourceMaker",
    "SourceStyle",
    "StoredOrigin",
    "Target",
    "Transformation",
    "are_usable",
    "argument_text",
    "bind_arguments",
    "check_structure",
    "common_depth",
    "effects",
    "exact_text",
    "find_parameter_faults",
    "find_structure_faults",
    "format_table",
    "graph_from_data",
    "graph_to_data",
    "immutable_dict",
    "immutable_list",
    "install_generator",
    "is_class_method",
    "is_plain_name",
    "is_reserved",
    "iterate_leaves",
    "last_uses",
    "map_aggregate",
    "map_arg",
    "node_rows",
    "normalization",
    "notebook_bundle",
    "printable",
    "qualified_name",
    "register_namespace",
    "register_path",
    "show_in_notebooks",
    "split_stars",
    "tensor_text",
    "type_text",
    "writes",
]
