"""Finding the first node of a graph whose value is another one than before a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.comparison import compare
from fxplug.analyze.isolation import copy_values, tensors_in
from fxplug.execute import GraphModule, Interpreter
from fxplug.passes.references import Kept, seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.analyze.comparison import Tolerance
    from fxplug.ir import Node

__all__ = ["NodeValues"]

_MOST_BYTES = 2**28
"""What copies of values may take; nodes behind that are not compared."""


class NodeValues:
    """What the nodes of a module have for values on some inputs.

    Args:
        module: Run once, and left as it is.
        inputs: Its positional arguments.
    """

    def __init__(self, module: GraphModule, inputs: tuple[Any, ...]) -> None:
        self._inputs = inputs
        self._values: dict[str, Any] = {}
        self._left = _MOST_BYTES
        _run(module, inputs, self._note)

    def _note(self, node: Node, value: Any) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(value))
        if size <= self._left:
            self._left -= size
            self._values[node.name] = copy_values(value)

    def first_difference(self, module: GraphModule, tolerance: Tolerance) -> str:
        """Return a sentence about the first node of `module` that has another value than its namesake had here.

        Args:
            module: What computes the right values; run once, and left as it is.
            tolerance: What is close enough.

        Returns:
            Empty where no such node is found.
        """
        found: list[tuple[Node, str]] = []

        def judge(node: Node, value: Any) -> None:
            if found or node.op == "output" or node.name not in self._values:
                return
            for entry in compare(value, self._values[node.name], tolerance, node.name):
                if not entry.passed:
                    found.append((node, entry.reason))
                    return

        _run(module, self._inputs, judge)
        if not found:
            return ""
        node, reason = found[0]
        origin = next(iter(node.origins), None)
        line = None if origin is None else origin.source()
        where = "" if line is None else f" at {line} ({line.text!r})"
        return f" The first node whose value differs is {node.name!r}{where}: {reason.rstrip('.')}."


class _Watching(Interpreter):
    """Tells of every value."""

    def __init__(self, module: GraphModule, hear: Callable[[Node, Any], None]) -> None:
        super().__init__(module)
        self._hear = hear

    def run_node(self, n: Node) -> Any:
        """Run one node, and tell."""
        value = super().run_node(n)
        self._hear(n, value)
        return value


def _run(module: GraphModule, inputs: tuple[Any, ...], hear: Callable[[Node, Any], None]) -> None:
    """Run a module node by node as far as it goes, and leave everything as it is."""
    kept = Kept(module)
    try:
        with seeded(), torch.no_grad():
            _Watching(module, hear).run(*copy_values(inputs))
    except Exception:  # What was heard of until then is what is known; the error is told elsewhere.
        return
    finally:
        kept.restore()
