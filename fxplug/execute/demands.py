"""What functions ask of the modules that they are given."""

from __future__ import annotations

from fxplug.errors import InvalidArgumentError
from fxplug.execute.graph_module import GraphModule

__all__ = ["require_graph_module"]


def require_graph_module(module: object, to_do: str) -> None:
    """Refuse what has no graph of fxplug.

    Args:
        module: What was given.
        to_do: What is to be done with it, for the message: ``"lower"``.

    Raises:
        InvalidArgumentError: It is no graph module.
    """
    if not isinstance(module, GraphModule):
        kind = type(module)
        raise InvalidArgumentError(
            f"Cannot {to_do} a {kind.__module__}.{kind.__qualname__}: it is no fxplug.GraphModule. Trace it first: "
            "fxplug.symbolic_trace(module), or fxplug.trace(module, *inputs)."
        )
