"""How many dimensions values have, as far as that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn import functional

from fxplug.analyze import TensorMetadata
from fxplug.ir import Node
from fxplug.passes.sharing import is_customised
from fxplug.rewrite.calls import value_at
from fxplug.semantics.canonical import canonical_call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.execute import GraphModule
    from fxplug.passes.base import PassContext

__all__ = ["Ranks"]

_SHAPED = {"view": "size", "reshape": "shape"}
_KEEPING = frozenset(
    [
        "celu",
        "elu",
        "gelu",
        "hardsigmoid",
        "hardswish",
        "leaky_relu",
        "mish",
        "relu",
        "relu6",
        "selu",
        "sigmoid",
        "silu",
        "tanh",
        "dropout",
    ]
)
_KEEPING_MODULES = frozenset({nn.Linear, nn.Identity, nn.BatchNorm1d, nn.Dropout, nn.AlphaDropout})


class Ranks:
    """Tells how many dimensions values have: from example inputs, from notes, or because the program says so.

    Args:
        module: What is asked about.
        context: Its example inputs are run on stand-ins without data, once somebody asks.
    """

    def __init__(self, module: GraphModule, context: PassContext) -> None:
        self._module = module
        self._context = context
        self._known: Mapping[Node, Any] | None = None

    def of(self, node: Node) -> int | None:
        """Return how many dimensions the value of a node has; None where it is not known, or no tensor."""
        if self._known is None:
            self._known = self._shapes()
        known = self._known.get(node, node.meta.get("tensor_meta"))
        if isinstance(known, TensorMetadata):
            return len(known.shape)
        return self._proven(node)

    def _shapes(self) -> Mapping[Node, Any]:
        if self._context.module is None or self._context.example_inputs is None:
            return {}
        try:
            # A copy: it is true of the nodes that stay, also once others were edited.
            return dict(self._context.analysis("shapes"))
        except Exception:  # Whatever the program raises on these inputs; then nothing is known.
            return {}

    def _proven(self, node: Node) -> int | None:
        """Return two where the program makes a matrix of whatever it is given, and only keeps to that afterwards."""
        found = node
        while True:
            if self._is_matrix(found):
                return 2
            before = self._same_rank(found)
            if before is None:
                return None
            found = before

    def _is_matrix(self, node: Node) -> bool:
        call = canonical_call(node, self._called(node))
        if call is None:
            return False
        if call.name == "flatten":
            return (call.arguments["start_dim"], call.arguments["end_dim"]) == (1, -1)
        sizes = call.arguments.get(_SHAPED.get(call.name, ""))
        return isinstance(sizes, (tuple, list)) and len(sizes) == 2

    def _same_rank(self, node: Node) -> Node | None:
        called = self._called(node)
        if called is not None:
            is_known = type(called) in _KEEPING_MODULES and not is_customised(called)
            keeps = is_known or self._is_activation(node, called)
        else:
            keeps = node.target is functional.linear or self._is_activation(node, None)
        given = node.args[0] if node.args else node.kwargs.get("input")
        return given if keeps and isinstance(given, Node) else None

    def _is_activation(self, node: Node, called: Any) -> bool:
        if node.target is functional.dropout or node.target is functional.batch_norm:
            return True
        call = canonical_call(node, called)
        return call is not None and call.name.rstrip("_") in _KEEPING

    def _called(self, node: Node) -> Any:
        return value_at(self._module, str(node.target)) if node.op == "call_module" else None
