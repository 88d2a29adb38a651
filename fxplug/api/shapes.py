"""What the values of a program are like, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.analyze import described_copy, shape_text
from fxplug.api.capturing import as_args
from fxplug.api.costing import captured_for
from fxplug.ir import qualified_name
from fxplug.plugins import PluginManager, default_manager
from fxplug.semantics.symbols import is_symbolic, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["NodeShape", "ShapeTable", "shapes"]

_HEADER = ("name", "opcode", "target", "value", "line")


@dataclass(frozen=True)
class NodeShape:
    """What the value of one node is like."""

    name: str
    """Of the node."""
    opcode: str
    """Of the node."""
    target: str
    """What it calls or reads, by name."""
    value: str
    """Dtype and sizes, ``"float32[batch, 64]"``; empty where there is no tensor."""
    line: str
    """File and line of the program; empty where no line made it."""


@dataclass(frozen=True)
class ShapeTable:
    """Dtype and sizes of every value of a program; printed, one line for each."""

    module: GraphModule
    """A copy of the module, whose nodes have the notes ``meta["tensor_meta"]`` and, without data, ``meta["val"]``."""
    nodes: tuple[NodeShape, ...]
    """In the order of the graph."""

    def __str__(self) -> str:
        """Return a table with aligned columns."""
        rows = [_HEADER, *((row.name, row.opcode, row.target, row.value, row.line) for row in self.nodes)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(lines)


def shapes(
    module: nn.Module | Callable[..., Any],
    example_inputs: Sequence[Any] | torch.Tensor,
    *,
    dynamic: Mapping[int | str, Mapping[int, str]] | None = None,
    manager: PluginManager | None = None,
) -> ShapeTable:
    """Return dtype and sizes of every value of a program.

    Nothing is computed where torch can tell them without data.

    Args:
        module: A graph module, or what is captured first (`trace`).
        example_inputs: The positional arguments of one call.
        dynamic: Position or name of an input -> dimension -> a name, ``{0: {0: "batch"}}``. Sizes with a name are
            printed by it, and so are those that are computed from them.
        manager: The plugins that take part in the capture; by default the installed ones.

    Returns:
        One entry for each node.

    Raises:
        ExampleError: The program fails on the example inputs.
        TraceError: The program cannot be captured.
        InvalidArgumentError: `dynamic` names what is not there.
        AnalysisError: The program works for one value of a size that is to stay open.

    Example:
        ::

            print(fxplug.shapes(model, (images,), dynamic={0: {0: "batch"}}))
    """
    plugins = default_manager() if manager is None else manager
    args = as_args(example_inputs)
    captured = captured_for(module, args, plugins)
    described = described_copy(captured, *args, dynamic=dynamic)
    return ShapeTable(described, tuple(_row(node) for node in described.graph.nodes))


def _row(node: Node) -> NodeShape:
    source = node.origins[0].source() if node.origins else None
    target = node.target if isinstance(node.target, str) else qualified_name(node.target)
    number = node.meta.get("val")
    value = size_text(number) if is_symbolic(number) else shape_text(node)
    return NodeShape(
        node.name, node.op, target, value, "" if source is None else f"{source.filename}:{source.line}"
    )
