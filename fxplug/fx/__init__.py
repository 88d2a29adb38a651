"""torch.fx's public module paths, for migration: ``fxplug.fx`` in place of ``torch.fx``.

Every name is the one of fxplug itself, under the path that it has in torch.fx. Nothing else in fxplug needs this
package, and what it offers is offered elsewhere: `docs/migration/torch-fx-names.md` says where, and why some names of
torch.fx are missing. Names and submodules are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fxplug.fx._symbolic_trace import PH, ProxyableClassMeta, Tracer, symbolic_trace, wrap
    from fxplug.fx.graph import CodeGen, Graph
    from fxplug.fx.graph_module import GraphModule
    from fxplug.fx.interpreter import Interpreter, Transformer
    from fxplug.fx.node import Node, has_side_effect, map_arg
    from fxplug.fx.proxy import Proxy
    from fxplug.fx.subgraph_rewriter import replace_pattern

_HOMES = {
    "fxplug.fx._symbolic_trace": ("PH", "ProxyableClassMeta", "Tracer", "symbolic_trace", "wrap"),
    "fxplug.fx.graph": ("CodeGen", "Graph"),
    "fxplug.fx.graph_module": ("GraphModule",),
    "fxplug.fx.interpreter": ("Interpreter", "Transformer"),
    "fxplug.fx.node": ("Node", "has_side_effect", "map_arg"),
    "fxplug.fx.proxy": ("Proxy",),
    "fxplug.fx.subgraph_rewriter": ("replace_pattern",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

_SUBMODULES = frozenset(
    {
        "_symbolic_trace",
        "annotate",
        "graph",
        "graph_module",
        "immutable_collections",
        "interpreter",
        "node",
        "operator_schemas",
        "passes",
        "proxy",
        "subgraph_rewriter",
    }
)
"""What `import torch.fx` makes reachable as an attribute, too."""

__all__ = [
    "PH",
    "CodeGen",
    "Graph",
    "GraphModule",
    "Interpreter",
    "Node",
    "Proxy",
    "ProxyableClassMeta",
    "Tracer",
    "Transformer",
    "has_side_effect",
    "map_arg",
    "replace_pattern",
    "symbolic_trace",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"fxplug.fx.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(
            f"module 'fxplug.fx' has no attribute {name!r}. docs/migration/torch-fx-names.md says for every name of "
            "torch.fx what takes its place, or why nothing does."
        )
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})
